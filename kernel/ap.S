/* Where further cores start: real mode, in a page below 1 MiB to which this is copied. Everything it needs is in this page or behind the
 * pointer in it; it changes nothing here, so the page can be read-only. */
	.section .rodata.ap, "a"
	.globl ap_start_begin, ap_start_end, ap_start_cr3, ap_start_ticket, ap_start_fix32, ap_start_fix64, ap_start_gdtr
	.code16
ap_start_begin:
	cli
	cld
	mov %cs, %ax
	mov %ax, %ds                    /* the page's segment: addresses below are offsets into it */
	movzwl %ax, %ebp
	shl $4, %ebp                    /* and its linear address */
	lgdtl (ap_start_gdtr - ap_start_begin)
	mov %cr0, %eax
	or $1, %al
	mov %eax, %cr0
	.byte 0x66, 0xea                /* ljmpl $24, page + (1f - begin): filled in by smp.c */
ap_start_fix32:
	.long 1f - ap_start_begin
	.word 24
	.code32
1:	mov $16, %eax
	mov %eax, %ds
	mov %eax, %es
	mov %eax, %ss
	mov %cr4, %eax
	or $0x620, %eax                 /* PAE, OSFXSR, OSXMMEXCPT */
	mov %eax, %cr4
	mov (ap_start_cr3 - ap_start_begin)(%ebp), %eax
	mov %eax, %cr3
	mov $0xC0000080, %ecx           /* EFER: LME, NXE, before paging meets an NX bit */
	rdmsr
	or $0x900, %eax
	wrmsr
	mov %cr0, %eax
	and $~0x6000000C, %eax          /* EM and TS off; CD and NW off, which INIT leaves on */
	or $0x80010003, %eax            /* PG, WP, MP, PE */
	mov %eax, %cr0
	.byte 0xea                      /* ljmp $8, page + (2f - begin) */
ap_start_fix64:
	.long 2f - ap_start_begin
	.word 8
	.code64
2:	mov (ap_start_ticket - ap_start_begin)(%rbp), %rbx
	xor %eax, %eax
	xchg %rax, (%rbx)               /* struct ap_ticket: the stack, taken by one core only. A late one finds 0 and sleeps for ever */
	test %rax, %rax
	jz 3f
	mov %rax, %rsp
	mov 8(%rbx), %rax               /* entry */
	mov 16(%rbx), %rdi              /* id */
	mov 24(%rbx), %rsi              /* shared */
	fninit
	xor %ebp, %ebp
	push %rbp
	jmp *%rax
3:	hlt
	jmp 3b

	.balign 8
ap_gdt:	.quad 0, 0x00af9a000000ffff, 0x00cf92000000ffff, 0x00cf9a000000ffff
ap_start_gdtr:
	.short 31
	.long ap_gdt - ap_start_begin   /* made linear by smp.c */
	.balign 8
ap_start_cr3:
	.quad 0
ap_start_ticket:
	.quad 0
ap_start_end:

/* One ELF64, three ways in: the PVH note, multiboot 1 (with addresses: QEMU refuses it otherwise) and multiboot 2. All enter here in
 * 32-bit protected mode, paging off: eax says who calls, ebx points to what it says (PVH hands its pointer over in ebx too). */
	.section .multiboot1, "a"
	.balign 4
mb1:	.long 0x1BADB002, 0x00010003, -(0x1BADB002 + 0x00010003)
	.long mb1, __load_start, __load_end, __bss_end, start_multiboot

	.section .multiboot2, "a"
	.balign 8
mb2:	.long 0xE85250D6, 0, mb2_end - mb2, -(0xE85250D6 + 0 + (mb2_end - mb2))
	.short 0, 0
	.long 8
mb2_end:

	.section .note.Xen, "a", @note
	.balign 4
	.long 4, 4, 18                  /* XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz "Xen"
	.long start_pvh

	.section .text.boot, "ax"
	.code32
	.globl start_multiboot
start_pvh:
	mov $0x336ec578, %eax           /* XEN_HVM_START_MAGIC_VALUE: says PVH to loader_main() */
start_multiboot:
	cli
	cld
	mov %eax, %edi                  /* loader_main's first two arguments live here until it is called */
	mov %ebx, %esi
	rdtsc
	mov %eax, %ebp                  /* and its third, in ebp and ebx */
	mov %edx, %ebx
	mov $__bss_start, %ecx
	xor %eax, %eax
1:	cmp $__bss_end, %ecx
	jae 2f
	mov %eax, (%ecx)
	add $4, %ecx
	jmp 1b
2:	mov $boot_stack_top, %esp

	/* Page tables: the first 4 GiB by 2 MiB pages, address = address. The program makes its own. */
	movl $boot_pdpt + 3, boot_pml4
	mov $boot_pd + 3, %eax
	xor %ecx, %ecx
3:	mov %eax, boot_pdpt(, %ecx, 8)
	add $4096, %eax
	inc %ecx
	cmp $4, %ecx
	jb 3b
	mov $0x83, %eax                 /* present, writable, 2 MiB */
	xor %ecx, %ecx
4:	mov %eax, boot_pd(, %ecx, 8)
	add $0x200000, %eax
	inc %ecx
	cmp $2048, %ecx
	jb 4b
	mov $boot_pml4, %eax
	mov %eax, %cr3

	mov %cr4, %eax
	or $0x620, %eax                 /* PAE; OSFXSR and OSXMMEXCPT: the compiler's code uses SSE */
	mov %eax, %cr4
	mov $0xC0000080, %ecx           /* EFER */
	rdmsr
	or $0x900, %eax                 /* LME, NXE */
	wrmsr
	mov %cr0, %eax
	and $~0x0000000C, %eax          /* EM and TS off */
	or $0x80010003, %eax            /* PG, WP, MP, PE */
	mov %eax, %cr0
	lgdt boot_gdtr
	ljmp $8, $5f
	.code64
5:	mov $16, %eax
	mov %eax, %ds
	mov %eax, %es
	mov %eax, %ss
	xor %eax, %eax
	mov %eax, %fs
	mov %eax, %gs
	fninit
	mov %ebp, %edx
	shl $32, %rbx
	or %rbx, %rdx
	xor %ebp, %ebp
	call loader_main                /* (magic, info, first time stamp) */
6:	cli
	hlt
	jmp 6b

/* void enter_world(uint64_t entry, uint64_t id, struct shared *shared, uint64_t stack_top): starts a copy of the program on its own
 * stack; does not return. */
	.globl enter_world
enter_world:
	mov %rcx, %rsp
	mov %rdi, %rax
	mov %rsi, %rdi
	mov %rdx, %rsi
	xor %ebp, %ebp
	push %rbp                       /* return address 0 ends a backtrace */
	jmp *%rax

	.section .rodata
	.balign 8
boot_gdt:
	.quad 0, 0x00af9a000000ffff, 0x00cf92000000ffff
boot_gdtr:
	.short 23
	.long boot_gdt

/* The pristine program, from which every core's copy is made. */
	.balign 4096
	.globl program_start, program_end
program_start:
	.incbin PROGRAM
program_end:

	.section .bss
	.balign 4096
boot_pml4:
	.skip 4096
boot_pdpt:
	.skip 4096
boot_pd:
	.skip 4 * 4096
	.skip 16384
boot_stack_top:

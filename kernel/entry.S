/* Entry points of exceptions and interrupts. */

/* Exceptions 0 to 31: all registers are saved for the report; it never returns. Those without an error code get a 0. */
	.section .text.traps, "ax"
	.altmacro
	.macro exception vector
	.balign 16
	.if !(\vector == 8 || (\vector >= 10 && \vector <= 14) || \vector == 17 || \vector == 21 || \vector == 29 || \vector == 30)
	push $0
	.endif
	push $\vector
	jmp exception_entry
	.endm

	.balign 16
	.globl exception_stubs
exception_stubs:
	.set v, 0
	.rept 32
	exception %v
	.set v, v + 1
	.endr

exception_entry:
	push %r15
	push %r14
	push %r13
	push %r12
	push %r11
	push %r10
	push %r9
	push %r8
	push %rbp
	push %rdi
	push %rsi
	push %rdx
	push %rcx
	push %rbx
	push %rax
	cld
	mov %rsp, %rdi
	and $-16, %rsp
	call exception_report
	ud2

/* Interrupts 32 to 255. They are let in only within cpu_halt(), a function call: whoever called it expects the caller-saved
 * registers to be lost, SSE's too. So nothing is saved here. The processor has aligned the stack and pushed 5 words; with the
 * vector that is 6, as the ABI wants it before a call. */
	.macro interrupt vector
	.balign 16
	push $\vector
	jmp interrupt_entry
	.endm

	.balign 16
	.globl interrupt_stubs
interrupt_stubs:
	.set v, 32
	.rept 224
	interrupt %v
	.set v, v + 1
	.endr

interrupt_entry:
	cld
	mov (%rsp), %edi
	call irq_dispatch
	add $8, %rsp
	iretq

	.globl cpu_halt
cpu_halt:
	sti                     /* takes effect after the next instruction: an interrupt cannot slip in between and leave us asleep */
	hlt
	cli
	ret

	.globl cpu_poll_interrupts
cpu_poll_interrupts:
	sti
	nop
	cli
	ret

/* void load_gdt(const void *gdtr, uint16_t data): reloads all segment registers. */
	.globl load_gdt
load_gdt:
	lgdt (%rdi)
	mov %esi, %ds
	mov %esi, %es
	mov %esi, %ss
	pop %rax
	push $8
	push %rax
	lretq

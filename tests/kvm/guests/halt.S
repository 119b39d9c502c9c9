# A guest that arms its timer, halts, and counts: a dot on COM1 every 256 wake-ups. The time to the interrupt varies, so
# that it comes at every place around "sti; hlt" sooner or later. An interrupt taken between the two is a lost
# wake-up, and the dots end. Multiboot, 32 bits; test_lab.py builds and runs it.
.code32
.text
.align 4
.long 0x1badb002, 0, -0x1badb002
.globl _start
_start:
    movl $stack, %esp
    lgdt gdt_pointer
    ljmp $8, $1f
1:  movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl $interrupt, %eax               # the gate of vector 0x30
    movw %ax, idt + 0x30 * 8
    shrl $16, %eax
    movw %ax, idt + 0x30 * 8 + 6
    movw $8, idt + 0x30 * 8 + 2
    movw $0x8e00, idt + 0x30 * 8 + 4
    lidt idt_pointer
    movb $0xff, %al                     # nothing from the 8259s
    outb %al, $0x21
    outb %al, $0xa1
    movl $0xfee00000, %ebx
    movl $0x1ff, 0xf0(%ebx)             # local APIC on
    movl $0xb, 0x3e0(%ebx)              # timer: divide by 1,
    movl $0x30, 0x320(%ebx)             # one-shot, vector 0x30
    xorl %ecx, %ecx
    movl $500, %edi
next:
    addl $7, %edi                       # 500 to 60,000 ns
    cmpl $60000, %edi
    jb 2f
    movl $500, %edi
2:  movl %edi, 0x380(%ebx)
    sti
    hlt
    cli
    incl %ecx
    testl $0xff, %ecx
    jnz next
    movw $0x3f8, %dx
    movb $'.', %al
    outb %al, %dx
    jmp next
interrupt:
    movl $0, 0xb0(%ebx)                 # end of interrupt
    iret

.data
.align 8
gdt: .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
gdt_pointer: .word 23
    .long gdt
idt_pointer: .word 0x31 * 8 - 1
    .long idt
.bss
.align 8
idt: .skip 0x31 * 8
.skip 4096
stack:

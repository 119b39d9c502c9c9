# Boot headers of the stand-in guest: multiboot 1, multiboot 2 and a PVH note, all entering 32-bit code.
    .section .headers, "a"
    .balign 4
    .long 0x1BADB002, 3, -(0x1BADB002 + 3)
    .balign 8
mb2:
    .long 0xE85250D6, 0, mb2_end - mb2, -(0xE85250D6 + (mb2_end - mb2))
    .short 0, 0
    .long 8
mb2_end:

    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 4, 18
    .asciz "Xen"
    .long pvh_start

    .text
    .globl start
start:
    mov $stack, %esp
    push %ebx
    push %eax
    call guest_main
pvh_start:
    xor %eax, %eax
    jmp start

    .bss
    .balign 16
    .skip 4096
stack:
    .section .note.GNU-stack, "", @progbits

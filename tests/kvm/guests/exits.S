# A guest that does nothing but leave for the hypervisor, by cpuid. Multiboot, 32 bits; test_lab.py builds and runs it.
.code32
.text
.align 4
.long 0x1badb002, 0, -0x1badb002
.globl _start
_start:
    xorl %eax, %eax
    cpuid
    jmp _start

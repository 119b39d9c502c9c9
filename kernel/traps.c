#include <stddef.h>
#include "kernel/apic.h"
#include "kernel/console.h"
#include "kernel/panic.h"
#include "kernel/traps.h"
#include "kernel/x86.h"

/* What exception_entry pushes, then what the processor pushed. */
struct exception_frame {
    uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15;
    uint64_t vector, error, rip, cs, rflags, rsp, ss;
};

struct gate {
    uint16_t offset_low, selector;
    uint8_t ist, type;
    uint16_t offset_mid;
    uint32_t offset_high, reserved;
};

struct __attribute__((packed)) tss {
    uint32_t reserved0;
    uint64_t rsp[3], reserved1, ist[7], reserved2;
    uint16_t reserved3, iomap;
};

struct __attribute__((packed)) descriptor_pointer {
    uint16_t limit;
    uint64_t base;
};

extern const char exception_stubs[], interrupt_stubs[]; /* 16 bytes each */
void load_gdt(const struct descriptor_pointer *gdtr, uint16_t data);
void exception_report(const struct exception_frame *f);
void irq_dispatch(uint32_t vector);

static struct gate idt[256];
static struct tss tss;
static uint64_t gdt[5] = { 0, 0x00af9a000000ffff, 0x00cf92000000ffff, 0, 0 };
static struct {
    void (*handler)(void *argument);
    void *argument;
} irq[256];
static uint64_t unexpected[256];

static void set_gate(unsigned vector, const char *stub, uint8_t ist)
{
    uint64_t at = (uint64_t)stub;
    idt[vector] = (struct gate){ (uint16_t)at, 8, ist, 0x8e, (uint16_t)(at >> 16), (uint32_t)(at >> 32), 0 };
}

void traps_init(const struct world *world)
{
    tss.ist[0] = world->ist.end;
    tss.iomap = sizeof tss;
    uint64_t base = (uint64_t)&tss;
    gdt[3] = (sizeof tss - 1) | (base & 0xffffff) << 16 | 0x89ull << 40 | (base >> 24 & 0xff) << 56;
    gdt[4] = base >> 32;
    load_gdt(&(struct descriptor_pointer){ sizeof gdt - 1, (uint64_t)gdt }, 16);
    __asm__ volatile("ltr %0" : : "r"((uint16_t)24));
    for (unsigned v = 0; v < 32; v++)
        set_gate(v, exception_stubs + 16 * v, 1);
    for (unsigned v = 32; v < 256; v++)
        set_gate(v, interrupt_stubs + 16 * (v - 32), 0);
    struct descriptor_pointer idtr = { sizeof idt - 1, (uint64_t)idt };
    __asm__ volatile("lidt %0" : : "m"(idtr));
}

static const char *exception_name(uint64_t vector)
{
    // clang-format off
    static const char names[32][24] = {
        "divide error", "debug", "NMI", "breakpoint", "overflow", "bound range", "invalid opcode", "no coprocessor",
        "double fault", "coprocessor overrun", "invalid TSS", "segment not present", "stack fault",
        "general protection", "page fault", "reserved", "x87 error", "alignment check", "machine check", "SIMD error",
        "virtualization", "control protection", "reserved", "reserved", "reserved", "reserved", "reserved", "reserved",
        "hypervisor injection", "VMM communication", "security", "reserved",
    };
    // clang-format on
    return names[vector & 31];
}

/* Says what a page fault tried: bits 0, 1 and 4 of the error code (SDM 3, 4.7). */
static const char *page_fault_text(uint64_t error)
{
    if (error & 16)
        return "execution of ";
    return error & 2 ? "write to " : "read of ";
}

void exception_report(const struct exception_frame *f)
{
    static bool reporting;
    if (reporting) { /* an exception in this very function: leave with what has been said */
        console_plain("panic: exception %llu at %016llx while reporting another", (unsigned long long)f->vector,
                      (unsigned long long)f->rip);
        machine_exit(EXIT_PANIC);
    }
    reporting = true;
    bool page = f->vector == 14;
    console_plain("panic: exception %llu (%s), error %llx%s%s%s%016llx", (unsigned long long)f->vector,
                  exception_name(f->vector), (unsigned long long)f->error, page ? ", " : "",
                  page ? page_fault_text(f->error) : ", ", page ? "" : "at ",
                  (unsigned long long)(page ? read_cr2() : f->rip));
    const struct {
        const char *name;
        uint64_t value;
    } regs[] = { { "rax", f->rax }, { "rbx", f->rbx },    { "rcx", f->rcx },     { "rdx", f->rdx },
                 { "rsi", f->rsi }, { "rdi", f->rdi },    { "rbp", f->rbp },     { "rsp", f->rsp },
                 { "r8 ", f->r8 },  { "r9 ", f->r9 },     { "r10", f->r10 },     { "r11", f->r11 },
                 { "r12", f->r12 }, { "r13", f->r13 },    { "r14", f->r14 },     { "r15", f->r15 },
                 { "rip", f->rip }, { "flg", f->rflags }, { "cr2", read_cr2() }, { "cr3", read_cr3() } };
    for (size_t i = 0; i + 3 < sizeof regs / sizeof *regs; i += 4)
        console_plain("  %s %016llx  %s %016llx  %s %016llx  %s %016llx", regs[i].name,
                      (unsigned long long)regs[i].value, regs[i + 1].name, (unsigned long long)regs[i + 1].value,
                      regs[i + 2].name, (unsigned long long)regs[i + 2].value, regs[i + 3].name,
                      (unsigned long long)regs[i + 3].value);
    backtrace(f->rip, f->rsp);
    machine_exit(EXIT_PANIC);
}

void irq_install(uint8_t vector, void (*handler)(void *argument), void *argument)
{
    irq[vector].argument = argument;
    irq[vector].handler = handler;
}

void irq_dispatch(uint32_t vector)
{
    if (vector == VECTOR_SPURIOUS) /* not acknowledged: it was never in service (SDM 3, 10.9) */
        return;
    if (irq[vector].handler != NULL)
        irq[vector].handler(irq[vector].argument);
    else if (unexpected[vector]++ == 0)
        log_warn("kernel", "interrupt %u, for which there is no handler", vector);
    if (vector < VECTOR_PIC + 16 && vector >= VECTOR_PIC)
        pic_acknowledge((uint8_t)(vector - VECTOR_PIC));
    else
        lapic_acknowledge();
}

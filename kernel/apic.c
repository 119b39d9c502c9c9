#include "kernel/acpi.h"
#include "kernel/apic.h"
#include "kernel/clock.h"
#include "kernel/paging.h"
#include "kernel/traps.h"
#include "kernel/x86.h"

#define MSR_APIC_BASE    0x1b
#define MSR_TSC_DEADLINE 0x6e0
#define APIC_ID          0x20
#define APIC_TPR         0x80
#define APIC_EOI         0xb0
#define APIC_SVR         0xf0
#define APIC_LVT_TIMER   0x320
#define APIC_LVT_LINT0   0x350
#define APIC_LVT_LINT1   0x360
#define APIC_LVT_ERROR   0x370
#define APIC_TIMER_INIT  0x380
#define APIC_TIMER_NOW   0x390
#define APIC_TIMER_DIV   0x3e0
#define APIC_ICR         0x300
#define APIC_ICR_HIGH    0x310
#define ICR_PENDING      0x1000u
#define LVT_MASKED       0x10000u
#define LVT_EXTINT       0x700u
#define LVT_NMI          0x400u
#define LVT_DEADLINE     0x40000u
#define TIMER_MAX_NS     4000000000ull

static bool x2apic, tsc_deadline;
static volatile char *registers;
static uint32_t apic_id;
static uint64_t timer_hz;
static bool timer_armed;

static uint32_t lapic_read(unsigned reg)
{
    return x2apic ? (uint32_t)rdmsr(0x800 + (reg >> 4)) : mmio_read32(registers + reg);
}

static void lapic_write(unsigned reg, uint32_t v)
{
    if (x2apic)
        wrmsr(0x800 + (reg >> 4), v);
    else
        mmio_write32(registers + reg, v);
}

/* Both 8259s to vectors VECTOR_PIC.., everything masked (8259A data sheet, initialisation command words). */
void pic_init(void)
{
    outb(0x20, 0x11);
    outb(0xa0, 0x11);
    outb(0x21, VECTOR_PIC);
    outb(0xa1, VECTOR_PIC + 8);
    outb(0x21, 4);
    outb(0xa1, 2);
    outb(0x21, 1);
    outb(0xa1, 1);
    outb(0x21, 0xff);
    outb(0xa1, 0xff);
}

uint32_t lapic_init(uint64_t base)
{
    x2apic = cpuid(1, 0).c >> 21 & 1;
    tsc_deadline = cpuid(1, 0).c >> 24 & 1;
    wrmsr(MSR_APIC_BASE, rdmsr(MSR_APIC_BASE) | 0x800 | (x2apic ? 0x400 : 0));
    if (!x2apic)
        registers = (volatile char *)base;
    apic_id = x2apic ? lapic_read(APIC_ID) : lapic_read(APIC_ID) >> 24;
    lapic_write(APIC_TPR, 0);
    lapic_write(APIC_LVT_TIMER, LVT_MASKED | VECTOR_TIMER);
    lapic_write(APIC_LVT_LINT0, LVT_MASKED | LVT_EXTINT);
    lapic_write(APIC_LVT_LINT1, LVT_NMI);
    lapic_write(APIC_LVT_ERROR, LVT_MASKED);
    lapic_write(APIC_SVR, 0x100 | VECTOR_SPURIOUS);
    return apic_id;
}

bool lapic_is_x2apic(void)
{
    return x2apic;
}

void lapic_acknowledge(void)
{
    lapic_write(APIC_EOI, 0);
}

static void on_timer(void *argument)
{
    (void)argument;
    timer_armed = false; /* it has ended cpu_halt(): the loop looks at the time itself */
}

/* Counts the timer against the clock. Both are read as a pair; if something held the guest up between the two readings
 * the pair is taken again, so that a busy host does not spoil the result. */
static void count_pair(uint64_t *ns, uint32_t *count)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 16; i++) {
        uint64_t before = clock_ns();
        uint32_t now = lapic_read(APIC_TIMER_NOW);
        uint64_t width = clock_ns() - before;
        if (width < best) {
            best = width;
            *ns = before + width / 2;
            *count = now;
        }
    }
}

/* The timer's rate, counted against the clock for 5 ms. */
static uint64_t measure_timer(void)
{
    uint64_t from, to;
    uint32_t high, low;
    lapic_write(APIC_TIMER_INIT, UINT32_MAX);
    count_pair(&from, &high);
    while (clock_ns() < from + 5000000)
        cpu_relax();
    count_pair(&to, &low);
    lapic_write(APIC_TIMER_INIT, 0);
    return (uint64_t)(high - low) * 1000000000ull / (to - from);
}

uint64_t lapic_timer_init(uint64_t hz)
{
    irq_install(VECTOR_TIMER, on_timer, NULL);
    if (tsc_deadline) {
        lapic_write(APIC_LVT_TIMER, LVT_DEADLINE | VECTOR_TIMER);
        return 0;
    }
    lapic_write(APIC_TIMER_DIV, 0xb); /* divide by 1 */
    timer_hz = hz != 0 ? hz : measure_timer();
    lapic_write(APIC_LVT_TIMER, VECTOR_TIMER);
    return timer_hz;
}

void lapic_timer_arm(uint64_t ns)
{
    if (ns > TIMER_MAX_NS)
        ns = TIMER_MAX_NS;
    timer_armed = true;
    if (tsc_deadline) {
        wrmsr(MSR_TSC_DEADLINE, rdtsc() + clock_ns_to_tsc(ns));
        return;
    }
    uint64_t count = ns * (timer_hz / 1000) / 1000000;
    if (count > UINT32_MAX)
        count = UINT32_MAX;
    lapic_write(APIC_TIMER_INIT, count > 0 ? (uint32_t)count : 1);
}

bool lapic_timer_is_armed(void)
{
    return timer_armed;
}

uint64_t lapic_msi_address(uint32_t to)
{
    return 0xfee00000ull | (uint64_t)(to & 0xff) << 12;
}

/* The command register is written when the last command has been delivered: a bounded wait, since nothing follows from
 * a command that is lost but a core that does not answer. */
static void command(uint32_t to, uint32_t low)
{
    if (x2apic) {
        wrmsr(0x830, (uint64_t)to << 32 | low);
        return;
    }
    lapic_write(APIC_ICR_HIGH, to << 24);
    lapic_write(APIC_ICR, low);
    for (unsigned tries = 0; tries < 100000 && (lapic_read(APIC_ICR) & ICR_PENDING) != 0; tries++)
        cpu_relax();
}

void lapic_send_init(uint32_t to)
{
    command(to, 0x4500);
}

void lapic_send_startup(uint32_t to, uint8_t page)
{
    command(to, 0x4600u | page);
}

void lapic_send(uint32_t to, uint8_t vector)
{
    command(to, 0x4000u | vector);
}

uint32_t lapic_msi_data(uint8_t vector)
{
    return vector; /* fixed delivery, edge */
}

void pic_enable(uint8_t irq)
{
    uint16_t port = irq < 8 ? 0x21 : 0xa1;
    outb(port, (uint8_t)(inb(port) & ~(1u << (irq & 7))));
    if (irq >= 8)
        outb(0x21, (uint8_t)(inb(0x21) & ~(1u << 2))); /* the cascade */
    lapic_write(APIC_LVT_LINT0, LVT_EXTINT);
}

void pic_acknowledge(uint8_t irq)
{
    if (irq >= 8)
        outb(0xa0, 0x20);
    outb(0x20, 0x20);
}

bool ioapic_route(uint32_t gsi, uint8_t vector, bool level, bool low)
{
    const struct acpi *acpi = acpi_tables();
    for (unsigned i = 0; i < acpi->ioapic_count; i++) {
        volatile char *io = paging_map_mmio(acpi->ioapic[i].address, 4096);
        if (io == NULL)
            continue;
        mmio_write32(io, 1); /* version register: highest entry in bits 16..23 */
        uint32_t entries = (mmio_read32(io + 0x10) >> 16 & 0xff) + 1;
        if (gsi < acpi->ioapic[i].first_gsi || gsi - acpi->ioapic[i].first_gsi >= entries)
            continue;
        uint32_t index = 0x10 + 2 * (gsi - acpi->ioapic[i].first_gsi);
        mmio_write32(io, index + 1);
        mmio_write32(io + 0x10, apic_id << 24);
        mmio_write32(io, index);
        mmio_write32(io + 0x10, vector | (low ? 1u << 13 : 0) | (level ? 1u << 15 : 0));
        return true;
    }
    return false;
}

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include "kernel/acpi.h"
#include "kernel/clock.h"
#include "kernel/paging.h"
#include "kernel/x86.h"

#define PM_TIMER_HZ         3579545u /* ACPI 6.4, 4.8.3.3 */
#define PIT_HZ              1193182u
#define MEASURE_MS          20
#define MSR_KVM_SYSTEM_TIME 0x4b564d01
#define KVM_CLOCKSOURCE2    (1u << 3)

/* KVM's clock page of this core: the host updates it, `version` is odd meanwhile (Linux,
 * Documentation/virt/kvm/x86/msr.rst). */
struct pvclock {
    uint32_t version, pad;
    uint64_t tsc, ns;
    uint32_t multiplier;
    int8_t shift;
    uint8_t flags, pad2[2];
};

static volatile struct pvclock page __attribute__((aligned(64)));
static bool use_page;
static const char *source = "none";
static uint64_t tsc_khz;
static uint64_t base_tsc;   /* time 0 */
static uint64_t ns_per_tsc; /* 32.32 fixed point */
static int64_t page_offset; /* what clock_ns() adds to the page's time */

/* A counter of known rate to measure the TSC against. */
struct reference {
    const char *name;
    uint32_t (*read)(void);
    uint32_t mask;
    uint64_t hz;
};

static volatile char *hpet;

static uint32_t read_hpet(void)
{
    return mmio_read32(hpet + 0xf0);
}

static uint32_t read_pm_timer(void)
{
    return inl(acpi_tables()->pm_timer);
}

/* Channel 2 of the 8254 counts down from 0xffff once; reading latches it. */
static uint32_t read_pit(void)
{
    outb(0x43, 0x80);
    uint32_t low = inb(0x42);
    return 0xffff - (low | (uint32_t)inb(0x42) << 8);
}

static void start_pit(void)
{
    outb(0x61, (uint8_t)((inb(0x61) & ~2u) | 1)); /* gate on, speaker off */
    outb(0x43, 0xb0);                             /* channel 2, both bytes, mode 0 */
    outb(0x42, 0xff);
    outb(0x42, 0xff);
}

static void find_reference(struct reference *r)
{
    const struct acpi *acpi = acpi_tables();
    hpet = acpi->hpet != 0 ? paging_map_mmio(acpi->hpet, 4096) : NULL;
    uint32_t period = hpet != NULL ? mmio_read32(hpet + 4) : 0; /* femtoseconds; at most 100 ns (HPET 1.0a, 2.3.4) */
    if (period > 0 && period <= 100000000u) {
        mmio_write32(hpet + 0x10, mmio_read32(hpet + 0x10) | 1);
        *r = (struct reference){ "hpet", read_hpet, UINT32_MAX, 1000000000000000ull / period };
    } else if (acpi->pm_timer != 0) {
        *r = (struct reference){ "pm timer", read_pm_timer, 0xffffff, PM_TIMER_HZ };
    } else {
        start_pit();
        *r = (struct reference){ "pit", read_pit, 0xffff, PIT_HZ };
    }
}

struct reading {
    uint64_t tsc, width;
    uint32_t count;
};

/* The counter and the TSC at the same moment: of 64 tries the one in which least time passed around the counter's
 * reading. Being preempted only makes a try wide; a single reading was seen to be wrong by a factor of two on a loaded
 * host. */
static struct reading read_together(const struct reference *r)
{
    struct reading best = { 0, UINT64_MAX, 0 };
    for (int i = 0; i < 64; i++) {
        uint64_t before = rdtsc();
        uint32_t count = r->read();
        uint64_t width = rdtsc() - before;
        if (width < best.width)
            best = (struct reading){ before + width / 2, width, count };
    }
    return best;
}

/* TSC rate in kHz, or 0 when the reference does not move. */
static uint64_t measure(const struct reference *r)
{
    struct reading from = read_together(r);
    uint64_t ticks = r->hz * MEASURE_MS / 1000;
    for (uint64_t tries = 0; ((r->read() - from.count) & r->mask) < ticks; tries++)
        if (tries > 10000000)
            return 0;
    struct reading to = read_together(r);
    uint64_t passed = (to.count - from.count) & r->mask;
    return passed > 0 ? (to.tsc - from.tsc) * r->hz / passed / 1000 : 0;
}

static bool hypervisor_is(const char *signature)
{
    if (!(cpuid(1, 0).c >> 31))
        return false;
    struct cpuid id = cpuid(0x40000000, 0);
    return memcmp(&id.b, signature, 4) == 0 && memcmp(&id.c, signature + 4, 4) == 0 &&
           memcmp(&id.d, signature + 8, 4) == 0;
}

/* Time by the page: read again when the host changed it meanwhile. */
static uint64_t page_ns(void)
{
    uint32_t version;
    uint64_t ns;
    do {
        version = page.version;
        __asm__ volatile("" : : : "memory");
        uint64_t delta = rdtsc() - page.tsc;
        delta = page.shift >= 0 ? delta << page.shift : delta >> -page.shift;
        ns = page.ns + (uint64_t)((unsigned __int128)delta * page.multiplier >> 32);
        __asm__ volatile("" : : : "memory");
    } while ((version & 1) != 0 || version != page.version);
    return ns;
}

static uint64_t khz_of_kvm(void)
{
    if (!hypervisor_is("KVMKVMKVM\0\0\0") || !(cpuid(0x40000001, 0).a & KVM_CLOCKSOURCE2))
        return 0;
    wrmsr(MSR_KVM_SYSTEM_TIME, (uint64_t)&page | 1);
    if (page.multiplier == 0)
        return 0;
    uint64_t khz = (1000000ull << 32) / page.multiplier;
    return page.shift >= 0 ? khz >> page.shift : khz << -page.shift;
}

static uint64_t khz_of_cpuid(void)
{
    struct cpuid c = cpuid(0, 0);
    if (c.a >= 0x15) {
        c = cpuid(0x15, 0);
        if (c.a != 0 && c.b != 0 && c.c != 0)
            return (uint64_t)c.c * c.b / c.a / 1000;
    }
    return 0;
}

static uint64_t khz_of_hypervisor(void)
{
    if (!(cpuid(1, 0).c >> 31) || cpuid(0x40000000, 0).a < 0x40000010)
        return 0;
    return cpuid(0x40000010, 0).a;
}

static uint64_t khz_measured(void)
{
    struct reference r;
    find_reference(&r);
    source = r.name;
    return measure(&r);
}

/* Fits the page's time, where there is one, to time 0 at base_tsc. */
static void start(void)
{
    ns_per_tsc = (1000000ull << 32) / tsc_khz;
    if (use_page)
        page_offset = (int64_t)((unsigned __int128)(rdtsc() - base_tsc) * ns_per_tsc >> 32) - (int64_t)page_ns();
}

void clock_init(uint64_t boot_tsc)
{
    base_tsc = boot_tsc;
    if ((tsc_khz = khz_of_kvm()) != 0) {
        source = "pvclock";
        use_page = true;
    } else if ((tsc_khz = khz_of_hypervisor()) != 0) {
        source = "hypervisor";
    } else if ((tsc_khz = khz_of_cpuid()) != 0) {
        source = "cpuid";
    } else if ((tsc_khz = khz_measured()) == 0) {
        source = "guess";
        tsc_khz = 1000000;
    }
    start();
}

void clock_share(struct clock_rate *rate)
{
    rate->source = source;
    rate->tsc_khz = tsc_khz;
    rate->use_page = use_page;
}

void clock_adopt(const struct clock_rate *rate, uint64_t boot_tsc)
{
    base_tsc = boot_tsc;
    source = rate->source;
    tsc_khz = rate->tsc_khz;
    use_page = rate->use_page != 0;
    if (use_page)
        wrmsr(MSR_KVM_SYSTEM_TIME, (uint64_t)&page | 1);
    start();
}

const char *clock_source(void)
{
    return source;
}

uint64_t clock_tsc_khz(void)
{
    return tsc_khz;
}

uint64_t clock_ns(void)
{
    if (use_page)
        return page_ns() + (uint64_t)page_offset;
    return (uint64_t)((unsigned __int128)(rdtsc() - base_tsc) * ns_per_tsc >> 32);
}

uint64_t clock_ns_to_tsc(uint64_t ns)
{
    return ns / 1000000 * tsc_khz + ns % 1000000 * tsc_khz / 1000000;
}

/* The clock: nanoseconds since the loader's first instruction. */
#ifndef RINGSIDE_CLOCK_H
#define RINGSIDE_CLOCK_H
#include <stdint.h>
#include "kernel/shared.h"

/* Finds out how fast time goes: KVM's clock page; CPUID leaf 0x40000010; CPUID leaf 0x15; the HPET or the ACPI timer,
 * against which the TSC is measured for 20 ms; the 8254 last. `boot_tsc` is time 0. acpi_init() comes first. */
void clock_init(uint64_t boot_tsc);

/* On a further core: goes by what core 0 found out (KVM's clock page is each core's own). */
void clock_adopt(const struct clock_rate *rate, uint64_t boot_tsc);

/* What clock_init() found out, for the other cores. */
void clock_share(struct clock_rate *rate);

/* One word that says by what ("pvclock", "hypervisor", "cpuid", "hpet", "pm timer", "pit"), and the TSC's rate. */
const char *clock_source(void);
uint64_t clock_tsc_khz(void);

/* Nanoseconds; 0 before clock_init(). Monotonic. */
uint64_t clock_ns(void);

uint64_t clock_ns_to_tsc(uint64_t ns);
#endif

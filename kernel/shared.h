/* What all cores share: found out at start-up, read-only afterwards. Everything else in the program is private to a
 * core, because every core runs its own copy of the whole image. The loader (boot/) fills the first part, core 0 the
 * rest. */
#ifndef RINGSIDE_SHARED_H
#define RINGSIDE_SHARED_H
#include <stdint.h>
#include "kernel/bootline.h"

#define SHARED_MAX_RAM      64
#define SHARED_MAX_SEGMENTS 8
#define SHARED_CMDLINE      4097

enum boot_protocol { BOOT_PVH = 1, BOOT_MULTIBOOT1, BOOT_MULTIBOOT2 };

/* Physical memory, [start, end). */
struct range {
    uint64_t start, end;
};

/* A part of a loaded image and how it may be used; page-aligned. */
struct segment {
    struct range at;
    uint32_t flags; /* ELF's PF_R 4, PF_W 2, PF_X 1 */
};

/* One core's copy of the program with its stacks: the unit that is loaded once per core. Guard pages lie under both
 * stacks. */
struct world {
    struct range at; /* everything below */
    uint64_t entry;
    uint32_t segment_count;
    struct segment segment[SHARED_MAX_SEGMENTS];
    struct range stack;
    struct range ist;  /* the stack on which exceptions are handled */
    uint64_t guard[2]; /* addresses of the guard pages */
};

#define MAX_CORES 64

/* One core that is used. */
struct core_info {
    uint32_t apic_id;
    struct world world;
    struct range heap;
};

/* How fast time goes: measured once, by core 0. */
struct clock_rate {
    const char *source; /* points into core 0's copy, for printing only */
    uint64_t tsc_khz;
    uint64_t lapic_hz; /* of the APIC's timer; 0: it has a deadline mode */
    uint32_t use_page; /* KVM's clock page: each core asks for its own */
};

/* What cores write while others read it, beside packets and mailboxes (kernel/mailbox.h). */
struct public_area;

struct shared {
    /* by the loader */
    uint32_t protocol; /* enum boot_protocol */
    uint32_t ram_count;
    struct range ram[SHARED_MAX_RAM]; /* usable memory, sorted, page-aligned, without overlaps, page 0 left out */
    uint64_t rsdp;                    /* address of ACPI's root pointer, 0: to be searched for */
    uint8_t rsdp_copy[36];            /* multiboot2 hands over a copy; rsdp then points here */
    uint64_t boot_tsc;                /* time stamp counter at the first instruction */
    struct range image;               /* the pristine program (an ELF file), never run from */
    struct range loader;              /* all of the loader, this structure included */
    uint32_t loader_segment_count;
    struct segment loader_segment[SHARED_MAX_SEGMENTS];
    const void *symbols; /* names of the program's functions (kernel/panic.c) */
    char cmdline[SHARED_CMDLINE];
    struct world world0; /* core 0's copy */
    uint64_t low_page;   /* a free page below 1 MiB, where further cores start; 0: there is none */

    /* by core 0, before any other core runs the program */
    uint32_t core_count; /* cores in use */
    struct core_info core[MAX_CORES];
    struct clock_rate clock;
    uint64_t lapic; /* address of the APIC's registers */
    struct bootline boot;
    struct public_area *public_area;
};
#endif

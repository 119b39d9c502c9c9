/* What all cores share: found out at start-up, read-only afterwards. Everything else in the program is private to a
 * core, because every core runs its own copy of the whole image. The loader (boot/) fills the first part, core 0 the
 * rest. */
#ifndef RINGSIDE_SHARED_H
#define RINGSIDE_SHARED_H
#include <stdint.h>

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
};
#endif

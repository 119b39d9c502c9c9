/* What the three ways of booting hand over, built as their specifications describe it, in memory below 4 GiB that ends
 * where the structures end (AddressSanitizer watches); and the memory map that must come of it. */
#ifndef RINGSIDE_BOOT_RIG_H
#define RINGSIDE_BOOT_RIG_H
#include "boot/info.h"
#include "tests/unit/unit.h"

#define PVH        0x336ec578u
#define MULTIBOOT1 0x2badb002u
#define MULTIBOOT2 0x36d76289u
#define PAGE       4096ull
#define LOW        0x100000ull
#define ENTRIES    256

#define MB1_CMDLINE (1u << 2)
#define MB1_MAP     (1u << 6)
#define MB1_LOADER  (1u << 9)

/* The memory map that is handed over. */
struct entry {
    uint64_t addr, size;
    uint32_t type;
};
extern struct entry map[ENTRIES];
extern unsigned map_count;

/* What boot_info() makes of it. */
extern struct shared shared;

/* For cmocka: everything is forgotten before each test. A test that takes a minute is ended. */
int boot_make_arena(void **state);
int boot_set_up(void **state);
int boot_tear_down(void **state);

void add(uint64_t addr, uint64_t size, uint32_t type);
void put32(char *p, uint32_t v);

/* Xen's struct hvm_start_info. */
char *pvh(uint32_t version, const char *cmdline, uint64_t rsdp);

/* Multiboot 0.6.96, with entries of `entry_size` bytes (their own field of 4 not counted), the last `cut` bytes of the
 * map left off. The map's place goes into *at. */
char *multiboot1(uint32_t flags, const char *cmdline, const char *loader, uint32_t entry_size, uint32_t cut, char **at);

/* A multiboot2 information structure, tag by tag; the functions return where the tag is. mb2_end() places the first `n`
 * bytes of it (0: all). */
extern struct multiboot2_blob {
    char bytes[ENTRIES * 64];
    uint32_t n;
} mb2;
void mb2_begin(void);
char *mb2_tag(uint32_t type, const void *contents, uint32_t n);
char *mb2_map(uint32_t entry_size);
char *mb2_end(uint32_t n);

/* The whole pages above 1 MiB of every usable entry, united; returns how many ranges. An entry that reaches the end of
 * 64 bits is none. */
unsigned expected_map(struct range *want);

/* The result is sorted, disjoint, in whole pages above 1 MiB. */
void check_form(void);

/* And exactly what is expected; of too many ranges those at the lowest addresses. The page where further cores start is
 * the highest one below 640 KiB. */
void check_map(void);
#endif

/* The one set of page tables: every mapped address is itself (address = bus address). Writable memory is never
 * executable, nothing read-only is writable under any address, page 0 and the guard pages are not mapped (Intel SDM 3,
 * chapter 4). */
#ifndef RINGSIDE_PAGING_H
#define RINGSIDE_PAGING_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernel/shared.h"

/* Builds the tables from the memory map, the loader's segments and core 0's world, and switches to them. phys_init()
 * comes first. */
void paging_init(const struct shared *shared);

/* Maps device registers, uncached, readable and writable, wherever they are below 2^47. Returns the address, or NULL
 * when memory for tables has run out or the range is impossible (0 bytes, beyond 2^47, over memory that is mapped
 * otherwise). */
volatile void *paging_map_mmio(uint64_t address, uint64_t size);

/* Sets how whole pages may be used, mapped before or not: `flags` as ELF's (4 read, 2 write, 1 execute), 0: not at all.
 * Large pages are split. Only this core's view is refreshed: others must not have used the pages, or reload their
 * tables afterwards. False: no memory for a table. */
bool paging_protect(struct range range, uint32_t flags);

/* Address of the tables, for cores that start. */
uint64_t paging_root(void);

/* Makes firmware's tables readable; memory that is mapped already stays as it is. Returns the address, or NULL. */
const void *paging_map_readonly(uint64_t address, uint64_t size);
#endif

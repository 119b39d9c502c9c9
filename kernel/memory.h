/* Memory: physical ranges at start-up, then the core's heap. */
#ifndef RINGSIDE_MEMORY_H
#define RINGSIDE_MEMORY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernel/shared.h"

/* Takes over the memory map, less the loader and core 0's world. Core 0 only. */
void phys_init(const struct shared *shared);

/* `size` bytes of memory at a multiple of `align` (a power of two, at least 4096 is used), never given back; NULL when
 * there is none. Not cleared. */
void *phys_alloc(uint64_t size, uint64_t align);

/* The largest free range, and takes it (for the heap). */
struct range phys_take_largest(void);

/* Usable memory in all, in bytes. */
uint64_t phys_total(void);

/* The core's heap: malloc() and friends, and lwIP's allocator. Size classes four to a power of two, each a stack of
 * free blocks (the warmest is taken); when a class and the untouched rest are empty, a block of the next larger class
 * that has one is taken; when there is none either, free neighbours are merged. Blocks are aligned to 16 bytes.
 * heap_init() takes `region`. */
void heap_init(struct range region);

struct heap_stats {
    uint64_t size;      /* bytes in all */
    uint64_t untouched; /* bytes never handed out yet */
    uint64_t used;      /* bytes in blocks that are handed out, headers included */
    uint64_t lasting;   /* bytes that are never given back */
    uint64_t failures;  /* requests that could not be met */
};
struct heap_stats heap_stats(void);

/* The same, kept up to date where it lies: for other cores to read. */
const struct heap_stats *heap_counters(void);

/* True when less than an eighth of the heap is left: what can wait (a peer's data that it does not read) should not
 * take more of it, so that receiving, ARP and ICMP still work. */
bool heap_low(void);

/* True when less than one part in `share` of the heap is left. */
bool heap_below(unsigned share);

/* Memory at a multiple of `align` (a power of two), for rings and buffers that live as long as the guest: never given
 * back. Cleared. NULL when there is none. */
void *heap_alloc_aligned(size_t size, size_t align);
#endif

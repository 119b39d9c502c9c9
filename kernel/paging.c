#include <stdbool.h>
#include <string.h>
#include "kernel/memory.h"
#include "kernel/paging.h"
#include "kernel/panic.h"
#include "kernel/x86.h"

#define PTE_PRESENT  1ull
#define PTE_WRITE    2ull
#define PTE_UNCACHED 0x18ull /* PWT and PCD: strongly uncacheable with the power-on PAT */
#define PTE_LARGE    0x80ull
#define PTE_NX       (1ull << 63)
#define PTE_ADDRESS  0x000ffffffffff000ull
#define PAGE_SMALL   0x1000ull
#define PAGE_LARGE   0x200000ull
#define SPACE_END    (1ull << 47)

static uint64_t *top; /* PML4 */

static uint64_t *new_table(void)
{
    uint64_t *t = phys_alloc(PAGE_SMALL, PAGE_SMALL);
    if (t != NULL)
        memset(t, 0, PAGE_SMALL);
    return t;
}

/* The entry that maps `address` at `level` (1: 4 KiB, 2: 2 MiB), making tables on the way if `make`. Stops early, at
 * the entry found, where a large page is in the way. NULL: not there, or no memory for a table. */
static uint64_t *entry_of(uint64_t address, int level, bool make)
{
    uint64_t *table = top;
    for (int l = 4; l > level; l--) {
        uint64_t *e = &table[address >> (12 + 9 * (l - 1)) & 511];
        if (*e & PTE_PRESENT && *e & PTE_LARGE)
            return e;
        if (!(*e & PTE_PRESENT)) {
            uint64_t *next = make ? new_table() : NULL;
            if (next == NULL)
                return NULL;
            *e = (uint64_t)next | PTE_PRESENT | PTE_WRITE;
        }
        table = (uint64_t *)(*e & PTE_ADDRESS);
    }
    return &table[address >> (12 + 9 * (level - 1)) & 511];
}

/* Maps [start, end) with `flags`, by large pages where they fit. What is mapped already must have the same flags,
 * unless `keep`: then it stays. */
static bool map(uint64_t start, uint64_t end, uint64_t flags, bool keep)
{
    while (start < end) {
        bool large = (start & (PAGE_LARGE - 1)) == 0 && end - start >= PAGE_LARGE;
        uint64_t *e = large ? entry_of(start, 2, true) : NULL;
        if (e == NULL || (*e & PTE_PRESENT && !(*e & PTE_LARGE))) { /* small pages in this large one already */
            large = false;
            e = entry_of(start, 1, true);
        }
        if (e == NULL)
            return false;
        uint64_t had = *e & ~(PTE_ADDRESS | 0x60); /* accessed and dirty do not count */
        if (!(had & PTE_PRESENT))
            *e = start | flags | (large ? PTE_LARGE : 0);
        else if (!keep && (had & ~PTE_LARGE) != flags)
            return false;
        start += large ? PAGE_LARGE : PAGE_SMALL;
    }
    return true;
}

static uint64_t flags_of(uint32_t elf_flags)
{
    return PTE_PRESENT | (elf_flags & 2 ? PTE_WRITE : 0) | (elf_flags & 1 ? 0 : PTE_NX);
}

static bool map_segments(const struct segment *s, uint32_t count)
{
    bool ok = true;
    for (; count > 0; count--, s++)
        ok = ok && map(s->at.start, s->at.end, flags_of(s->flags), false);
    return ok;
}

/* Memory is for data: writable, not executable; the two ranges in `except` are mapped by their segments instead. */
static bool map_memory(struct range r, const struct range *except, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (r.start < except[i].end && except[i].start < r.end) {
            struct range low = { r.start, except[i].start }, high = { except[i].end, r.end };
            return map_memory(low, except + i + 1, count - i - 1) && map_memory(high, except + i + 1, count - i - 1);
        }
    return r.start >= r.end || map(r.start, r.end, flags_of(2), false);
}

void paging_init(const struct shared *shared)
{
    const struct world *w = &shared->world0;
    const struct range except[] = { shared->loader, w->at };
    top = new_table();
    bool ok = top != NULL;
    for (uint32_t i = 0; i < shared->ram_count; i++)
        ok = ok && map_memory(shared->ram[i], except, 2);
    ok = ok && map_segments(shared->loader_segment, shared->loader_segment_count);
    ok = ok && map_segments(w->segment, w->segment_count);
    ok = ok && map(w->stack.start, w->stack.end, flags_of(2), false);
    ok = ok && map(w->ist.start, w->ist.end, flags_of(2), false);
    if (!ok)
        panic("not enough memory for page tables, or the memory map contradicts itself");
    write_cr3((uint64_t)top);
}

/* Replaces the large page that maps `at` by 512 small ones that say the same. */
static bool split(uint64_t at)
{
    uint64_t *e = entry_of(at, 2, true);
    if (e == NULL)
        return false;
    if (!(*e & PTE_PRESENT) || !(*e & PTE_LARGE))
        return true;
    uint64_t *table = new_table(), base = at & ~(PAGE_LARGE - 1);
    if (table == NULL)
        return false;
    for (uint64_t i = 0; i < 512; i++)
        table[i] = (base + i * PAGE_SMALL) | (*e & ~(PTE_ADDRESS | PTE_LARGE));
    *e = (uint64_t)table | PTE_PRESENT | PTE_WRITE;
    return true;
}

bool paging_protect(struct range range, uint32_t flags)
{
    for (uint64_t at = range.start; at < range.end; at += PAGE_SMALL) {
        uint64_t *e = split(at) ? entry_of(at, 1, true) : NULL;
        if (e == NULL)
            return false;
        *e = flags == 0 ? 0 : at | flags_of(flags);
        invlpg(at);
    }
    return true;
}

uint64_t paging_root(void)
{
    return (uint64_t)top;
}

volatile void *paging_map_mmio(uint64_t address, uint64_t size)
{
    uint64_t start = address & ~(PAGE_SMALL - 1), end = (address + size + PAGE_SMALL - 1) & ~(PAGE_SMALL - 1);
    if (size == 0 || start >= end || end > SPACE_END)
        return NULL;
    if (!map(start, end, flags_of(2) | PTE_UNCACHED, false))
        return NULL;
    return (volatile void *)address;
}

const void *paging_map_readonly(uint64_t address, uint64_t size)
{
    uint64_t start = address & ~(PAGE_SMALL - 1), end = (address + size + PAGE_SMALL - 1) & ~(PAGE_SMALL - 1);
    if (start == 0 || start >= end || end > SPACE_END)
        return NULL;
    return map(start, end, flags_of(4), true) ? (const void *)address : NULL;
}

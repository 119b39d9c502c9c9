/* Walks the page tables that are in force and checks every mapping in them: address equals physical address (so nothing
 * is reachable under a second address), nothing is both writable and executable, page 0 and the guard pages are not
 * there, text is executable and not writable. Ends well, or by panic with the mapping that breaks a rule. */
#include <stdint.h>
#include "apps/app.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/panic.h"
#include "kernel/x86.h"

#define PRESENT 1ull
#define WRITE   2ull
#define LARGE   0x80ull
#define NX      (1ull << 63)
#define ADDRESS 0x000ffffffffff000ull

static uint64_t pages, executable;

static bool within(const struct range *r, uint64_t at, uint64_t size)
{
    return at < r->end && r->start < at + size;
}

/* True if any page of [at, at + size) belongs to a part that may be executed. */
static bool may_execute(uint64_t at, uint64_t size)
{
    const struct shared *s = core_shared();
    for (uint32_t i = 0; i < s->loader_segment_count; i++)
        if (s->loader_segment[i].flags & 1 && within(&s->loader_segment[i].at, at, size))
            return true;
    for (uint32_t core = 0; core < s->core_count; core++)
        for (uint32_t i = 0; i < s->core[core].world.segment_count; i++)
            if (s->core[core].world.segment[i].flags & 1 && within(&s->core[core].world.segment[i].at, at, size))
                return true;
    return at == s->low_page; /* where further cores start */
}

/* True if a guard page of any core lies in [at, at + size). */
static bool holds_guard(uint64_t at, uint64_t size)
{
    const struct shared *s = core_shared();
    for (uint32_t core = 0; core < s->core_count; core++)
        for (unsigned i = 0; i < 2; i++)
            if (s->core[core].world.guard[i] >= at && s->core[core].world.guard[i] < at + size)
                return true;
    return false;
}

static void check(uint64_t virtual, uint64_t entry, uint64_t size)
{
    uint64_t physical = entry & ADDRESS & ~(size - 1);
    pages++;
    if (physical != virtual)
        panic("mapping %llx leads to %llx", (unsigned long long)virtual, (unsigned long long)physical);
    if (virtual == 0)
        panic("page 0 is mapped");
    if (holds_guard(virtual, size))
        panic("a guard page in %llx is mapped", (unsigned long long)virtual);
    if (entry & NX)
        return;
    executable++;
    if (entry & WRITE)
        panic("mapping %llx is writable and executable", (unsigned long long)virtual);
    if (!may_execute(virtual, size))
        panic("mapping %llx is executable and no text", (unsigned long long)virtual);
}

static void walk(const uint64_t *table, int level, uint64_t base)
{
    for (uint64_t i = 0; i < 512; i++) {
        uint64_t at = base | i << (12 + 9 * (level - 1));
        if (!(table[i] & PRESENT))
            continue;
        if (level == 1 || (level < 4 && table[i] & LARGE))
            check(at, table[i], 1ull << (12 + 9 * (level - 1)));
        else
            walk((const uint64_t *)(table[i] & ADDRESS), level - 1, at);
    }
}

static bool start(void)
{
    if (core_number() != 0) /* there is one set of page tables for all */
        return true;
    if (!(read_cr0() & 1u << 16))
        panic("CR0.WP is off: the kernel could write to read-only pages");
    walk((const uint64_t *)(read_cr3() & ADDRESS), 4, 0);
    log_info("guest", "mappings are right: %llu, of them %llu executable; %u cores", (unsigned long long)pages,
             (unsigned long long)executable, core_shared()->core_count);
    machine_exit(EXIT_WELL);
}

APP(mappings, .ports = "a check", .start = start);

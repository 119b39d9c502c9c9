/* Physical ranges at start-up. */
#include "kernel/memory.h"

#define MAX_FREE (SHARED_MAX_RAM + 4)

static struct range available[MAX_FREE];
static unsigned available_count;
static uint64_t total;

static void add_available(uint64_t start, uint64_t end)
{
    if (start < end && available_count < MAX_FREE)
        available[available_count++] = (struct range){ start, end };
}

/* Cuts `taken` out of every available range. */
static void cut(struct range taken)
{
    unsigned count = available_count;
    for (unsigned i = 0; i < count; i++) {
        struct range r = available[i];
        if (taken.start >= r.end || taken.end <= r.start)
            continue;
        available[i].end = taken.start > r.start ? taken.start : r.start;
        add_available(taken.end, r.end);
    }
}

void phys_init(const struct shared *shared)
{
    for (uint32_t i = 0; i < shared->ram_count; i++) {
        add_available(shared->ram[i].start, shared->ram[i].end);
        total += shared->ram[i].end - shared->ram[i].start;
    }
    cut(shared->loader);
    cut(shared->world0.at);
}

uint64_t phys_total(void)
{
    return total;
}

void *phys_alloc(uint64_t size, uint64_t align)
{
    align = align < 4096 ? 4096 : align;
    if (size > UINT64_MAX - 4095)
        return NULL;
    size = (size + 4095) & ~4095ull;
    for (unsigned i = 0; i < available_count; i++) {
        uint64_t at = (available[i].start + align - 1) & ~(align - 1);
        if (at < available[i].start || at > available[i].end || available[i].end - at < size)
            continue;
        available[i].start = at + size; /* what alignment skips is lost: start-up aligns to pages, which ranges are */
        return (void *)at;
    }
    return NULL;
}

struct range phys_take_largest(void)
{
    unsigned best = 0;
    for (unsigned i = 1; i < available_count; i++)
        if (available[i].end - available[i].start > available[best].end - available[best].start)
            best = i;
    if (available_count == 0)
        return (struct range){ 0, 0 };
    struct range r = available[best];
    available[best].end = available[best].start;
    return r;
}

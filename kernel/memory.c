/* Physical ranges, and the heap. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <reent.h>
#include "kernel/memory.h"
#include "kernel/panic.h"

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

/* ---- the heap ----
 * A block: 8 bytes of header (its class, and whether it is handed out), then the caller's bytes, 16-byte aligned; so
 * blocks start 8 bytes before a multiple of 16. Classes 0..7: 16 to 128 bytes by 16; from there four to each power of
 * two. */
#define CLASSES    148
#define HEADER     8u
#define HANDED_OUT 0xa110c8edu
#define FREE       0xf4eeb10cu

struct block {
    uint32_t class, state;
    struct block *next; /* only while free: the caller's first bytes */
};

static struct block *freed[CLASSES];
static struct range untouched;
static struct heap_stats stats;

static unsigned class_of(size_t size)
{
    if (size <= 128)
        return (unsigned)((size + 15) / 16) - 1;
    unsigned e = 63u - (unsigned)__builtin_clzll(size - 1);
    return 8 + (e - 7) * 4 + (unsigned)((size - 1) >> (e - 2) & 3);
}

static size_t class_size(unsigned class)
{
    return class < 8 ? (class + 1) * 16u : (size_t)(5 + (class - 8) % 4) << (5 + (class - 8) / 4);
}

void heap_init(struct range region)
{
    untouched.start = ((region.start + 15) & ~15ull) + 16 - HEADER;
    untouched.end = region.end;
    if (untouched.start > untouched.end) /* not even room for a header */
        untouched.start = untouched.end;
    stats.size = region.end - region.start;
    stats.untouched = untouched.end - untouched.start;
}

struct heap_stats heap_stats(void)
{
    return stats;
}

const struct heap_stats *heap_counters(void)
{
    return &stats;
}

static struct block *carve(unsigned class)
{
    size_t size = class_size(class);
    if (untouched.end - untouched.start < size)
        return NULL;
    struct block *b = (struct block *)untouched.start;
    untouched.start += size;
    stats.untouched -= size;
    b->class = class;
    return b;
}

void *malloc(size_t n)
{
    if (n > (1ull << 40)) {
        stats.failures++;
        return NULL;
    }
    unsigned class = class_of(n + HEADER < 16 ? 16 : n + HEADER);
    struct block *b = freed[class];
    if (b == NULL)
        b = carve(class);
    for (; b == NULL && class + 1 < CLASSES; b = freed[class])
        class ++;
    if (b == NULL) {
        stats.failures++;
        return NULL;
    }
    if (b == freed[class])
        freed[class] = b->next;
    b->state = HANDED_OUT;
    stats.used += class_size(b->class);
    return (char *)b + HEADER;
}

/* The block of what malloc() handed out. */
static struct block *block_of(void *p, const char *what)
{
    struct block *b = (struct block *)((char *)p - HEADER);
    if (b->state != HANDED_OUT || b->class >= CLASSES)
        panic("heap: %s of %p, which is %s", what, p,
              b->state == FREE ? "free already" : "no block, or was overwritten");
    return b;
}

void free(void *p)
{
    if (p == NULL)
        return;
    struct block *b = block_of(p, "free");
    b->state = FREE;
    b->next = freed[b->class];
    freed[b->class] = b;
    stats.used -= class_size(b->class);
}

void *calloc(size_t count, size_t size)
{
    size_t n;
    if (__builtin_mul_overflow(count, size, &n))
        n = SIZE_MAX; /* refused, and counted */
    void *p = malloc(n);
    return p != NULL ? memset(p, 0, n) : NULL;
}

void *realloc(void *old, size_t n)
{
    if (old == NULL)
        return malloc(n);
    size_t had = class_size(block_of(old, "realloc")->class) - HEADER;
    if (n <= had)
        return old;
    void *p = malloc(n);
    if (p != NULL) {
        memcpy(p, old, had);
        free(old);
    }
    return p;
}

void *heap_alloc_aligned(size_t size, size_t align)
{
    uint64_t at = (untouched.end - size) & ~(uint64_t)(align - 1);
    if (size > untouched.end - untouched.start || at < untouched.start) {
        stats.failures++;
        return NULL;
    }
    untouched.end = at;
    stats.untouched = untouched.end - untouched.start;
    return memset((void *)at, 0, size);
}

/* newlib's own calls come through these. */
void *_malloc_r(struct _reent *r, size_t n)
{
    void *p = malloc(n);
    if (p == NULL)
        r->_errno = ENOMEM;
    return p;
}

void _free_r(struct _reent *r, void *p)
{
    (void)r;
    free(p);
}

void *_calloc_r(struct _reent *r, size_t count, size_t size)
{
    (void)r;
    return calloc(count, size);
}

void *_realloc_r(struct _reent *r, void *old, size_t n)
{
    (void)r;
    return realloc(old, n);
}

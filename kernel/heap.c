/* The core's heap.
 *
 * A block: 8 bytes of header (its class, and whether it is handed out), then the caller's bytes, 16-byte aligned; so
 * blocks start 8 bytes before a multiple of 16. Classes 0..7: 16 to 128 bytes by 16; from there four to each power of
 * two. */
#include <stdbool.h>
#include <string.h>
#include "kernel/memory.h"
#include "kernel/panic.h"

#define CLASSES     148
#define HEADER      8u
#define SMALL       128u  /* up to here classes go by 16 bytes */
#define USUAL       2048u /* up to here the short way is tried */
#define SWEEP_SHARE 16
#define HANDED_OUT  0xa110c8edu
#define FREE        0xf4eeb10cu

struct block {
    uint32_t class, state;
    struct block *next; /* only while free: the caller's first bytes */
};

static struct block *freed[CLASSES];
static size_t sizes[CLASSES]; /* class_size() of each, for the short ways */
static struct range untouched;
static uint64_t first;  /* the first block: they lie one behind the other from here to untouched.start */
static uint64_t credit; /* for the next sweep: grows with blocks given back and requests refused since the last one, */
static uint64_t walked; /* which looked at so many blocks */
static struct heap_stats stats;

static unsigned class_of(size_t size)
{
    if (size <= SMALL)
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
    first = untouched.start;
    credit = walked = 0;
    for (unsigned class = 0; class < CLASSES; class ++)
        sizes[class] = class_size(class);
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

static void push(struct block *b)
{
    unsigned class = b->class; /* once: for the compiler, writing to a block may change it */
    b->state = FREE;
    b->next = freed[class];
    freed[class] = b;
}

/* Makes free memory [at, end) into free blocks, the largest that fit first: any multiple of 16 comes out even. */
static void make_blocks(uint64_t at, uint64_t end)
{
    while (at < end) {
        unsigned class = class_of(end - at);
        if (class_size(class) > end - at)
            class --;
        struct block *b = (struct block *)at;
        b->class = class;
        push(b);
        at += class_size(class);
    }
}

/* The end of the free blocks that lie one behind the other from `at` on. */
static uint64_t end_of_free(uint64_t at)
{
    while (at < untouched.start && ((struct block *)at)->state == FREE)
        at += class_size(((struct block *)at)->class);
    return at;
}

/* Merges free neighbours, all over the heap, so that memory once used up in small blocks can serve a large request
 * again; what is free at the end becomes untouched. Only when a request fails, and not each time: a sweep looks at all
 * blocks, so it must have been earned by as many others given back or refused, a SWEEP_SHARE for each. Returns true if
 * it was done. */
static bool sweep(void)
{
    credit += SWEEP_SHARE;
    if (credit < walked)
        return false;
    credit = walked = 0;
    memset(freed, 0, sizeof freed);
    for (uint64_t at = first; at < untouched.start; walked++) {
        struct block *b = (struct block *)at;
        if (b->class >= CLASSES || (b->state != FREE && b->state != HANDED_OUT))
            panic("heap: the block at %p was overwritten", (void *)b);
        uint64_t end = end_of_free(at);
        if (end == at) {
            at += class_size(b->class);
        } else if (end >= untouched.start) {
            untouched.start = at;
            stats.untouched = untouched.end - at;
        } else {
            make_blocks(at, end);
            at = end;
        }
    }
    return true;
}

/* A block of `class`: from its stack; from what is untouched; or cut from one of the next larger class that has one. */
static struct block *find_block(unsigned class)
{
    unsigned from = class;
    struct block *b = freed[class];
    if (b == NULL && (b = carve(class)) != NULL)
        return b;
    for (; b == NULL && from + 1 < CLASSES; b = freed[from])
        from++;
    if (b == NULL)
        return NULL;
    freed[from] = b->next;
    if (from != class) {
        b->class = class;
        make_blocks((uint64_t)b + class_size(class), (uint64_t)b + class_size(from));
    }
    return b;
}

static __attribute__((noinline)) void *take_any(size_t n)
{
    struct block *b = NULL;
    if (n <= (1ull << 40)) {
        unsigned class = class_of(n + HEADER < 16 ? 16 : n + HEADER);
        b = find_block(class);
        if (b == NULL && sweep())
            b = find_block(class);
    }
    if (b == NULL) {
        stats.failures++;
        return NULL;
    }
    b->state = HANDED_OUT;
    stats.used += class_size(b->class);
    return (char *)b + HEADER;
}

void *heap_take(size_t n)
{
    if (n > USUAL)
        return take_any(n);
    unsigned class = n <= SMALL - HEADER ? (unsigned)(n + HEADER - 1) / 16 : class_of(n + HEADER);
    struct block *b = freed[class];
    if (b == NULL)
        return take_any(n);
    freed[class] = b->next;
    b->state = HANDED_OUT;
    stats.used += sizes[class];
    return (char *)b + HEADER;
}

static _Noreturn __attribute__((cold)) void no_block(const struct block *b, const void *p, const char *what)
{
    panic("heap: %s of %p, which is %s", what, p, b->state == FREE ? "free already" : "no block, or was overwritten");
}

/* The block of what heap_take() handed out. */
static struct block *block_of(void *p, const char *what)
{
    struct block *b = (struct block *)((char *)p - HEADER);
    if (b->state != HANDED_OUT || b->class >= CLASSES)
        no_block(b, p, what);
    return b;
}

void heap_give(void *p)
{
    if (p == NULL)
        return;
    struct block *b = block_of(p, "free");
    stats.used -= sizes[b->class];
    push(b);
    credit += SWEEP_SHARE;
}

void *heap_take_cleared(size_t count, size_t size)
{
    size_t n;
    if (__builtin_mul_overflow(count, size, &n))
        n = SIZE_MAX; /* refused, and counted */
    void *p = heap_take(n);
    return p != NULL ? memset(p, 0, n) : NULL;
}

void *heap_resize(void *old, size_t n)
{
    if (old == NULL)
        return heap_take(n);
    size_t had = class_size(block_of(old, "realloc")->class) - HEADER;
    if (n <= had)
        return old;
    void *p = heap_take(n);
    if (p != NULL) {
        memcpy(p, old, had);
        heap_give(old);
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
    stats.lasting += untouched.end - at;
    untouched.end = at;
    stats.untouched = untouched.end - untouched.start;
    return memset((void *)at, 0, size);
}

bool heap_below(unsigned share)
{
    uint64_t shared_out = stats.size - stats.lasting;
    return shared_out - stats.used < shared_out / share;
}

bool heap_low(void)
{
    return heap_below(8);
}

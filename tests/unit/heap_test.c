/* The heap against a shadow of it: random requests, each block filled with bytes of its own and looked at before it
 * goes; exhaustion; what must end in a panic. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <time.h>
#include "kernel/panic.h"
#include "tests/unit/heap_renamed.h"

#define REGION  (8u << 20)
#define BLOCKS  600
#define TOO_BIG ((size_t)1 << 40)

static char *region;
static jmp_buf after_panic;
static char panic_text[200];

_Noreturn void panic(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(panic_text, sizeof(panic_text), format, args);
    va_end(args);
    longjmp(after_panic, 1);
}

static bool free_panics(void *p)
{
    if (setjmp(after_panic))
        return true;
    heap_free(p);
    return false;
}

static bool realloc_panics(void *p, size_t n)
{
    if (setjmp(after_panic))
        return true;
    heap_realloc(p, n);
    return false;
}

static int make_region(void **state)
{
    (void)state;
    return posix_memalign((void **)&region, 4096, REGION);
}

static int free_region(void **state)
{
    (void)state;
    free(region);
    return 0;
}

static void start_with(size_t offset, size_t size)
{
    heap_forget();
    heap_init((struct range){ (uintptr_t)region + offset, (uintptr_t)region + offset + size });
}

static int set_up(void **state)
{
    (void)state;
    panic_text[0] = '\0';
    memset(region, 0xdb, REGION);
    start_with(0, REGION);
    return 0;
}

/* ---- the shadow ---- */

struct shadow {
    uint8_t *p;
    size_t n;
    uint8_t mark;
};

static struct shadow block[BLOCKS];
static unsigned live;
static struct shadow lasting[BLOCKS]; /* by heap_alloc_aligned(): never given back */
static unsigned lasting_count;
static uint8_t next_mark;

static void check_apart(const uint8_t *p, size_t n, const struct shadow *s)
{
    check(p + n <= s->p || s->p + s->n <= p, "%zu bytes at %p, and %zu at %p", n, (const void *)p, s->n,
          (const void *)s->p);
}

static void check_place(const uint8_t *p, size_t n, size_t align)
{
    assert_non_null(p);
    check((uintptr_t)p % align == 0, "%p is not a multiple of %zu", (const void *)p, align);
    check((const char *)p >= region && (const char *)p + n <= region + REGION, "%p, %zu bytes: outside",
          (const void *)p, n);
    for (unsigned i = 0; i < live; i++)
        check_apart(p, n, &block[i]);
    for (unsigned i = 0; i < lasting_count; i++)
        check_apart(p, n, &lasting[i]);
}

static void remember(uint8_t *p, size_t n)
{
    memset(p, ++next_mark, n);
    block[live++] = (struct shadow){ p, n, next_mark };
}

static void check_marked(const uint8_t *p, size_t n, uint8_t mark)
{
    for (size_t i = 0; i < n; i++)
        check(p[i] == mark, "byte %zu of a block of %zu has changed", i, n);
}

/* The block is no longer in the shadow, its contents were intact. */
static struct shadow take(unsigned i)
{
    struct shadow s = block[i];

    check_marked(s.p, s.n, s.mark);
    block[i] = block[--live];
    return s;
}

/* Mostly small, now and then large; every power of two and its neighbours come up. */
static size_t some_size(uint64_t *seed)
{
    size_t n = (size_t)2 << chance_below(seed, chance_below(seed, 8) ? 12 : 18);

    return chance(seed) % 2 ? n + chance_below(seed, 5) - 2 : n + chance_below(seed, (uint32_t)n + 1);
}

static void add_one(uint64_t *seed)
{
    size_t n = some_size(seed), count = 1 + chance_below(seed, 4);
    unsigned how = chance_below(seed, 16);
    uint8_t *p;

    if (how == 0 && heap_stats().untouched > REGION / 4 && lasting_count < BLOCKS) {
        size_t align = (size_t)1 << chance_below(seed, 13);
        p = heap_alloc_aligned(n % 3000, align);
        check_place(p, n % 3000, align);
        check_marked(p, n % 3000, 0);
        memset(p, ++next_mark, n % 3000);
        lasting[lasting_count++] = (struct shadow){ p, n % 3000, next_mark };
        return;
    }
    p = how < 4 ? heap_calloc(count, n / count) : heap_malloc(n);
    if (!p)
        return;
    n = how < 4 ? n / count * count : n;
    check_place(p, n, 16);
    if (how < 4)
        check_marked(p, n, 0);
    remember(p, n);
}

static void resize_one(uint64_t *seed)
{
    struct shadow s = take(chance_below(seed, live));
    size_t n = chance(seed) % 2 ? some_size(seed) : s.n + chance_below(seed, 40);
    uint8_t *p = heap_realloc(s.p, n);

    if (!p) { /* the old one stays */
        check_marked(s.p, s.n, s.mark);
        block[live++] = s;
        return;
    }
    check_place(p, n, 16);
    check_marked(p, s.n < n ? s.n : n, s.mark);
    remember(p, n);
}

static void test_random(void **state)
{
    uint64_t seed = chance_seed(0x4ea9);

    (void)state;
    live = lasting_count = 0;
    for (unsigned n = 0; n < 150000; n++) {
        unsigned target = n / 4000 % 2 ? BLOCKS / 8 : BLOCKS; /* fuller and emptier in turn */

        if (live == 0 || (live < target && chance_below(&seed, 8) < 5))
            live < BLOCKS ? add_one(&seed) : heap_free(take(0).p);
        else if (chance_below(&seed, 4) == 0)
            resize_one(&seed);
        else
            heap_free(take(chance_below(&seed, live)).p);
        struct heap_stats s = heap_stats();
        assert_int_equal(s.size, REGION);
        check(s.used + s.untouched + s.lasting <= REGION, "used %llu, untouched %llu, lasting %llu",
              (unsigned long long)s.used, (unsigned long long)s.untouched, (unsigned long long)s.lasting);
    }
    check(heap_stats().failures < 100, "%llu refused", (unsigned long long)heap_stats().failures);
    uint64_t sum = 0;
    for (unsigned i = 0; i < live; i++)
        sum += block[i].n;
    assert_true(heap_stats().used >= sum + live * 8);
    while (live > 0)
        heap_free(take(0).p);
    assert_int_equal(heap_stats().used, 0);
    assert_true(lasting_count > 50);
    for (unsigned i = 0; i < lasting_count; i++)
        check_marked(lasting[i].p, lasting[i].n, lasting[i].mark);
}

/* The same in so little memory that requests are refused all the time. */
static void test_random_in_little_memory(void **state)
{
    uint64_t seed = chance_seed(0x4ea8);

    (void)state;
    live = lasting_count = 0;
    start_with(24, 200000);
    for (unsigned n = 0; n < 60000; n++) {
        if (live == 0 || (live < BLOCKS && chance_below(&seed, 8) < 5))
            add_one(&seed);
        else if (chance_below(&seed, 4) == 0)
            resize_one(&seed);
        else
            heap_free(take(chance_below(&seed, live)).p);
    }
    check(heap_stats().failures > 1000, "%llu refused", (unsigned long long)heap_stats().failures);
    while (live > 0)
        heap_free(take(0).p);
    assert_int_equal(heap_stats().used, 0);
}

/* ---- classes ---- */

/* Every size: aligned, all of it usable, at most a quarter (or 16 bytes) too large, freed to the last byte. */
static void test_every_size(void **state)
{
    (void)state;
    for (size_t n = 0; n <= 70000; n += n < 5000 ? 1 : 97) {
        uint8_t *p = heap_malloc(n);
        uint64_t used = heap_stats().used;
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        memset(p, 0x77, n);
        check(used >= n + 8 && used <= (n + 8) + (n + 8) / 4 + 16, "%zu bytes take %llu", n, (unsigned long long)used);
        heap_free(p);
        assert_int_equal(heap_stats().used, 0);
    }
    for (unsigned e = 13; e < 22; e++) {
        for (int by = -9; by <= 9; by++) {
            size_t n = ((size_t)1 << e) + (size_t)by;
            start_with(0, REGION);
            uint8_t *p = heap_malloc(n), *q = heap_malloc(16);
            memset(p, 0x77, n);
            check(p + n <= q - 8, "%zu bytes end at %p, and the next header is at %p", n, (void *)(p + n),
                  (void *)(q - 8));
        }
    }
}

/* The block freed last is the first to be taken: it is in the cache. */
static void test_warmest_first(void **state)
{
    void *p[8];

    (void)state;
    for (unsigned i = 0; i < 8; i++)
        p[i] = heap_malloc(100);
    for (unsigned i = 0; i < 8; i++)
        heap_free(p[i]);
    for (unsigned i = 8; i > 0; i--)
        assert_ptr_equal(heap_malloc(97), p[i - 1]);
}

/* ---- no room ---- */

static unsigned fill(size_t n, void **first)
{
    void **p, *list = NULL;
    unsigned count = 0;

    while ((p = heap_malloc(n))) {
        *p = list;
        list = p;
        count++;
    }
    *first = list;
    return count;
}

static void empty(void *list)
{
    while (list) {
        void *next = *(void **)list;
        heap_free(list);
        list = next;
    }
}

static void test_exhaustion(void **state)
{
    static const size_t sizes[] = { 8, 24, 56, 120, 1000, 4088, 100000 };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        void *list;

        start_with(0, REGION);
        unsigned count = fill(sizes[i], &list);
        check(count > REGION / (sizes[i] + 8) * 3 / 4 && count <= REGION / (sizes[i] + 8), "%u of %zu", count,
              sizes[i]);
        assert_int_equal(heap_stats().failures, 1);
        assert_null(heap_alloc_aligned(REGION / 2, 64));
        assert_int_equal(heap_stats().failures, 2);
        empty(list);
        assert_int_equal(heap_stats().used, 0);
        assert_int_equal(fill(sizes[i], &list), count); /* nothing got lost */
    }
}

/* With nothing untouched, a larger free block is cut, and is whole again when its parts are given back. */
static void test_larger_block_serves(void **state)
{
    void *list, *small[2], *more;

    (void)state;
    unsigned count = fill(4000, &list);
    unsigned rest = fill(8, &more); /* what is left untouched */
    heap_free(list);
    assert_null(heap_malloc(5000));
    small[0] = heap_malloc(10);
    assert_ptr_equal(small[0], list);
    small[1] = heap_malloc(10);
    assert_non_null(small[1]);
    assert_null(heap_malloc(4000));
    heap_free(small[0]);
    heap_free(small[1]);
    void *whole = NULL;
    for (unsigned tries = 0; !whole && tries < (count + rest) / 8; tries++) /* merging has to be earned */
        whole = heap_malloc(4000);
    assert_ptr_equal(whole, list);
    assert_true(count > 1000 && rest < 1000);
}

/* Memory used up in one size and given back serves any other size: neighbours are merged. Cutting up may leave over
 * pieces that are too small. */
static void test_used_up_in_another_size(void **state)
{
    static const size_t sizes[] = { 24, 100, 1500, 9000, 70000 };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(sizes) * COUNT_OF(sizes); i++) {
        size_t before = sizes[i / COUNT_OF(sizes)], after = sizes[i % COUNT_OF(sizes)];
        void *list;

        start_with(0, REGION);
        unsigned alone = fill(after, &list);
        start_with(0, REGION);
        fill(before, &list);
        empty(list);
        unsigned count = fill(after, &list);
        check(count >= alone - alone / 7 - 1, "%u of %zu behind %zu, %u alone", count, after, before, alone);
        empty(list);
        assert_int_equal(heap_stats().used, 0);
    }
}

/* Blocks in use are left alone by merging, and what lies between them is merged. */
static void test_merging_between_blocks(void **state)
{
    static uint8_t *small[REGION / 112 + 1];
    unsigned count = 0;
    void *list;

    (void)state;
    while ((small[count] = heap_malloc(100))) {
        memset(small[count], (int)(count & 0xff), 100);
        count++;
    }
    for (unsigned i = 0; i < count; i++) /* of every hundred the first stays */
        if (i % 100 != 0)
            heap_free(small[i]);
    unsigned large = fill(4000, &list);
    check(large >= count / 100 * 2 - 2, "%u blocks of 4000 between %u", large, count / 100);
    for (unsigned i = 0; i < count; i += 100)
        check_marked(small[i], 100, (uint8_t)(i & 0xff));
    assert_null(heap_malloc(20000));
    empty(list);
    for (unsigned i = 0; i < count; i += 100)
        heap_free(small[i]);
    assert_non_null(heap_malloc(REGION / 2));
}

/* Refused requests do not walk the heap each time: merging waits until enough has been given back. (Each time, this
 * would take a minute.) */
static void test_refusals_are_cheap(void **state)
{
    void *list;

    (void)state;
    unsigned count = fill(8, &list);
    clock_t began = clock();
    for (unsigned n = 0; n < 60000; n++)
        assert_null(heap_malloc(1000));
    double seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
    check(seconds < 5, "60,000 refusals in a heap of %u blocks take %f s", count, seconds);
}

static void test_low(void **state)
{
    void *list, *more;

    (void)state;
    assert_false(heap_low());
    heap_alloc_aligned(REGION / 2, 64);
    assert_false(heap_low()); /* what lasts does not count */
    unsigned count = fill(1000, &list);
    assert_true(heap_low());
    assert_null(heap_malloc(1000));
    for (void *next; list; list = next) { /* an eighth of what is not lasting */
        struct heap_stats s = heap_stats();
        uint64_t all = s.size - s.lasting;
        assert_int_equal(heap_low(), all - s.used < all / 8);
        next = *(void **)list;
        heap_free(list);
    }
    assert_false(heap_low());
    assert_int_equal(fill(1000, &more), count);
}

static void test_impossible_sizes(void **state)
{
    static const size_t sizes[] = { REGION,       REGION - 8,   (size_t)1 << 32, TOO_BIG,       TOO_BIG + 1,
                                    SIZE_MAX / 2, SIZE_MAX - 8, SIZE_MAX - 7,    SIZE_MAX - 23, SIZE_MAX };
    uint8_t *p = heap_malloc(10);

    (void)state;
    memset(p, 0x31, 10);
    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        assert_null(heap_malloc(sizes[i]));
        assert_null(heap_calloc(1, sizes[i]));
        assert_null(heap_calloc(sizes[i], 1));
        assert_null(heap_realloc(p, sizes[i]));
        assert_null(heap_alloc_aligned(sizes[i], 4096));
    }
    assert_null(heap_calloc(SIZE_MAX / 8, 16));
    assert_null(heap_calloc((size_t)1 << 32, (size_t)1 << 32));
    assert_int_equal(heap_stats().failures, 5 * COUNT_OF(sizes) + 2);
    check_marked(p, 10, 0x31);
    assert_non_null(heap_malloc(10));
}

/* A region of any place and size, down to none at all: no byte outside is touched. */
static void test_any_region(void **state)
{
    (void)state;
    for (size_t size = 0; size < 300; size++) {
        for (size_t offset = 64; offset < 96; offset += 4) {
            void *list, *aligned;

            memset(region, 0xdb, 1024);
            start_with(offset, size);
            check(heap_stats().untouched <= size, "%llu untouched of %zu", (unsigned long long)heap_stats().untouched,
                  size);
            aligned = heap_alloc_aligned(16, 16);
            fill(8, &list);
            check_marked((uint8_t *)region, offset, 0xdb);
            check_marked((uint8_t *)region + offset + size, 1024 - offset - size, 0xdb);
            check(size < 64 || (list && aligned), "nothing to be had of %zu", size);
        }
    }
}

/* ---- calls by newlib ---- */

static void test_newlib(void **state)
{
    struct _reent r = { 0 };
    uint8_t *p = _malloc_r(&r, 100);

    (void)state;
    memset(p, 0x11, 100);
    p = _realloc_r(&r, p, 3000);
    check_marked(p, 100, 0x11);
    _free_r(&r, p);
    _free_r(&r, NULL);
    p = _calloc_r(&r, 10, 30);
    check_marked(p, 300, 0);
    _free_r(&r, p);
    assert_int_equal(heap_stats().used, 0);
    assert_int_equal(r._errno, 0);
    assert_null(_malloc_r(&r, SIZE_MAX));
    assert_int_equal(r._errno, ENOMEM);
    p = heap_realloc(NULL, 20); /* is malloc() */
    assert_non_null(p);
    heap_free(p);
    heap_free(NULL);
}

/* ---- misuse ---- */

static void check_panic(bool panicked, const char *part)
{
    assert_true(panicked);
    check(strstr(panic_text, part), "\"%s\" does not say \"%s\"", panic_text, part);
    panic_text[0] = '\0';
}

static void test_double_free(void **state)
{
    (void)state;
    for (size_t n = 0; n < 10000; n = n * 3 + 1) {
        void *p = heap_malloc(n), *q = heap_malloc(n);
        heap_free(p);
        check_panic(free_panics(p), "free already");
        heap_free(q);
        check_panic(free_panics(p), "free already"); /* not the last one either */
        check_panic(realloc_panics(p, 1), "free already");
        check_panic(realloc_panics(p, 100000), "free already");
        assert_int_equal(heap_stats().used, 0);
    }
}

static void test_no_block(void **state)
{
    uint8_t *p = heap_malloc(200), *q = heap_malloc(200);

    (void)state;
    memset(p, 0, 200);
    check_panic(free_panics(p + 16), "no block");
    check_panic(realloc_panics(p + 16, 10), "no block");
    memset(p, 0xff, (size_t)(q - p)); /* over the end, into the next block's header */
    check_panic(free_panics(q), "overwritten");
    check_panic(realloc_panics(q, 4000), "overwritten");
    check_panic(realloc_panics(q, 4), "overwritten");
}

static bool fill_panics(void)
{
    void *list;

    if (setjmp(after_panic))
        return true;
    fill(1000, &list);
    return false;
}

/* A header that was overwritten is found when free memory is merged, which needs all headers. */
static void test_overwritten_when_merging(void **state)
{
    /* Of class 10, which is its own, or of none. */
    static const uint32_t words[][2] = {
        { 148, 0xa110c8ed }, { UINT32_MAX, 0xf4eeb10c }, { 10, 0 }, { 10, 0xa110c8ec }
    };

    for (unsigned i = 0; i < COUNT_OF(words); i++) {
        set_up(state);
        heap_malloc(50);
        memcpy((char *)heap_malloc(200) - 8, words[i], 8);
        check_panic(fill_panics(), "overwritten");
    }
}

/* The state looks right, the class cannot be. */
static void test_overwritten_class(void **state)
{
    uint8_t *p = heap_malloc(200);
    static const uint32_t classes[] = { 148, 149, 1000, 0x80000000, UINT32_MAX };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(classes); i++) {
        memcpy(p - 8, &classes[i], 4);
        check_panic(free_panics(p), "overwritten");
        check_panic(realloc_panics(p, 300), "overwritten");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_random, set_up),
        cmocka_unit_test_setup(test_random_in_little_memory, set_up),
        cmocka_unit_test_setup(test_every_size, set_up),
        cmocka_unit_test_setup(test_warmest_first, set_up),
        cmocka_unit_test_setup(test_exhaustion, set_up),
        cmocka_unit_test_setup(test_larger_block_serves, set_up),
        cmocka_unit_test_setup(test_used_up_in_another_size, set_up),
        cmocka_unit_test_setup(test_merging_between_blocks, set_up),
        cmocka_unit_test_setup(test_refusals_are_cheap, set_up),
        cmocka_unit_test_setup(test_low, set_up),
        cmocka_unit_test_setup(test_impossible_sizes, set_up),
        cmocka_unit_test_setup(test_any_region, set_up),
        cmocka_unit_test_setup(test_newlib, set_up),
        cmocka_unit_test_setup(test_double_free, set_up),
        cmocka_unit_test_setup(test_no_block, set_up),
        cmocka_unit_test_setup(test_overwritten_when_merging, set_up),
        cmocka_unit_test_setup(test_overwritten_class, set_up),
    };

    return cmocka_run_group_tests_name("heap", tests, make_region, free_region);
}

/* Physical memory at start-up: what is given out lies in usable memory, outside of the loader and core 0's world, and
 * is given out once. Nothing is touched, so addresses are just numbers. */
#include "tests/unit/unit.h"

#include "kernel/panic.h"
#include "tests/unit/heap_renamed.h"

#define PAGE 4096ull

static struct shared shared;

_Noreturn void panic(const char *format, ...)
{
    fail_msg("panic: %s", format);
    abort();
}

static int set_up(void **state)
{
    (void)state;
    memset(&shared, 0, sizeof(shared));
    heap_forget();
    return 0;
}

static uint64_t pages(uint64_t *seed, uint32_t n)
{
    return PAGE * chance_below(seed, n);
}

/* A memory map as boot/info.c makes it: sorted, disjoint, whole pages. */
static void make_map(uint64_t *seed, unsigned count)
{
    uint64_t at = 0x100000;

    memset(&shared, 0, sizeof(shared));
    for (unsigned i = 0; i < count; i++) {
        at += PAGE + pages(seed, 16);
        shared.ram[i].start = at;
        at += PAGE + pages(seed, 64);
        shared.ram[i].end = at;
    }
    shared.ram_count = count;
    uint64_t all = (at - 0x100000) / PAGE + 1;
    shared.loader.start = 0x100000 + pages(seed, (uint32_t)all);
    shared.loader.end = shared.loader.start + pages(seed, 40);
    shared.world0.at.start = 0x100000 + pages(seed, (uint32_t)all);
    shared.world0.at.end = shared.world0.at.start + pages(seed, 40);
}

static bool within(const struct range *r, uint64_t page)
{
    return page >= r->start && page < r->end;
}

/* The oracle: a page is to be had if it is usable and not taken. */
static bool is_free(uint64_t page)
{
    for (uint32_t i = 0; i < shared.ram_count; i++) {
        if (within(&shared.ram[i], page))
            return !within(&shared.loader, page) && !within(&shared.world0.at, page);
    }
    return false;
}

static uint64_t count_free(void)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < shared.ram_count; i++) {
        for (uint64_t page = shared.ram[i].start; page < shared.ram[i].end; page += PAGE)
            n += is_free(page);
    }
    return n;
}

static uint8_t taken[1 << 16]; /* by page from 1 MiB on */

static void take(uint64_t at, uint64_t size)
{
    for (uint64_t page = at; page < at + size; page += PAGE) {
        check(is_free(page), "%llx is not usable", (unsigned long long)page);
        check(!taken[(page - 0x100000) / PAGE]++, "%llx given out twice", (unsigned long long)page);
    }
}

/* Page by page, everything is given out that there is. */
static void test_all_of_it(void **state)
{
    uint64_t seed = chance_seed(0x94e5);

    for (unsigned n = 0; n < 2000; n++) {
        set_up(state);
        make_map(&seed, 1 + n % SHARED_MAX_RAM);
        memset(taken, 0, sizeof(taken));
        phys_init(&shared);
        uint64_t usable = 0, got = 0;
        for (uint32_t i = 0; i < shared.ram_count; i++)
            usable += shared.ram[i].end - shared.ram[i].start;
        assert_int_equal(phys_total(), usable);
        for (void *p; (p = phys_alloc(1, 1)) != NULL; got++)
            take((uintptr_t)p, PAGE);
        assert_int_equal(got, count_free());
        assert_int_equal(phys_take_largest().end, phys_take_largest().start);
    }
}

static void test_sizes_and_alignment(void **state)
{
    uint64_t seed = chance_seed(0x94e6);
    unsigned served = 0;

    for (unsigned n = 0; n < 2000; n++) {
        set_up(state);
        make_map(&seed, 1 + n % 20);
        memset(taken, 0, sizeof(taken));
        phys_init(&shared);
        for (unsigned i = 0; i < 40; i++) {
            uint64_t size = 1 + chance_below(&seed, 20 * PAGE), align = 1ull << chance_below(&seed, 18);
            uintptr_t p = (uintptr_t)phys_alloc(size, align);
            if (!p)
                continue;
            served++;
            check(p % (align < PAGE ? PAGE : align) == 0, "%llx, alignment %llx", (unsigned long long)p,
                  (unsigned long long)align);
            take(p, (size + PAGE - 1) & ~(PAGE - 1));
        }
    }
    assert_true(served > 10000);
}

/* For the heap: the largest range, then the next, until there is none; together they are all there is. */
static void test_largest(void **state)
{
    uint64_t seed = chance_seed(0x94e7);

    for (unsigned n = 0; n < 2000; n++) {
        set_up(state);
        make_map(&seed, 1 + n % SHARED_MAX_RAM);
        memset(taken, 0, sizeof(taken));
        phys_init(&shared);
        uint64_t before = UINT64_MAX, got = 0;
        for (struct range r = phys_take_largest(); r.end > r.start; r = phys_take_largest()) {
            check(r.end - r.start <= before, "a larger one came later");
            take(r.start, r.end - r.start);
            before = r.end - r.start;
            got += before / PAGE;
        }
        assert_int_equal(got, count_free());
        assert_null(phys_alloc(1, 1));
    }
}

static void test_nothing_there(void **state)
{
    (void)state;
    phys_init(&shared);
    assert_null(phys_alloc(1, 1));
    assert_int_equal(phys_take_largest().end, 0);
    assert_int_equal(phys_total(), 0);
    shared.ram_count = 1;
    shared.ram[0] = shared.loader = (struct range){ 0x100000, 0x200000 };
    phys_init(&shared);
    assert_null(phys_alloc(1, 1));
}

static void test_too_much(void **state)
{
    static const uint64_t sizes[] = {
        0x100001, 1ull << 40, 1ull << 63, UINT64_MAX - 4095, UINT64_MAX - 4094, UINT64_MAX
    };

    (void)state;
    shared.ram_count = 1;
    shared.ram[0] = (struct range){ 0x100000, 0x200000 };
    phys_init(&shared);
    for (unsigned i = 0; i < COUNT_OF(sizes); i++)
        assert_null(phys_alloc(sizes[i], PAGE));
    assert_null(phys_alloc(1, 1ull << 40));
    assert_null(phys_alloc(1, 1ull << 63));
    assert_int_equal((uintptr_t)phys_alloc(0x100000, PAGE), 0x100000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_all_of_it, set_up), cmocka_unit_test_setup(test_sizes_and_alignment, set_up),
        cmocka_unit_test_setup(test_largest, set_up),   cmocka_unit_test_setup(test_nothing_there, set_up),
        cmocka_unit_test_setup(test_too_much, set_up),
    };

    return cmocka_run_group_tests_name("phys", tests, NULL, NULL);
}

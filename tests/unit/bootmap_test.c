/* The memory map, from each of the three ways of booting: whatever comes, it is sorted, disjoint, in whole pages above
 * 1 MiB, and claims nothing that was not said to be usable. */
#include "tests/unit/boot_rig.h"

static char *simple_multiboot1(void)
{
    char *at;

    return multiboot1(1u << 6, NULL, NULL, 20, 0, &at);
}

static char *simple_multiboot2(void)
{
    mb2_begin();
    mb2_map(24);
    return mb2_end(0);
}

/* The same map in each form. */
static void check_all_forms(void)
{
    unsigned count = map_count;
    struct range want[ENTRIES];

    for (unsigned form = 0; form < 3; form++) {
        boot_set_up(NULL);
        map_count = count;
        const char *wrong = form == 0   ? boot_info(&shared, PVH, pvh(1, NULL, 0))
                            : form == 1 ? boot_info(&shared, MULTIBOOT1, simple_multiboot1())
                                        : boot_info(&shared, MULTIBOOT2, simple_multiboot2());
        assert_int_equal(shared.protocol, form == 0 ? BOOT_PVH : form == 1 ? BOOT_MULTIBOOT1 : BOOT_MULTIBOOT2);
        if (expected_map(want) > 0)
            check(wrong == NULL, "form %u: %s", form, wrong);
        check_map();
    }
}

/* QEMU's, with 8 GiB. */
static void test_typical_map(void **state)
{
    (void)state;
    add(0, 0x9fc00, 1);
    add(0x9fc00, 0x400, 2);
    add(0xf0000, 0x10000, 2);
    add(0x100000, 0x7fee0000, 1);
    add(0x7ffe0000, 0x20000, 2);
    add(0xfeffc000, 0x4000, 2);
    add(0x100000000, 0x180000000, 1);
    check_all_forms();
    assert_int_equal(shared.ram_count, 2);
    assert_int_equal(shared.ram[0].end, 0x7ffe0000);
    assert_int_equal(shared.ram[1].end, 0x280000000);
}

static void test_odd_maps(void **state)
{
    static const struct {
        unsigned count;
        struct entry e[4];
    } rows[] = {
        { 1, { { 0, 0, 1 } } },
        { 1, { { 0, LOW, 1 } } },
        { 1, { { 0, LOW + 4095, 1 } } },
        { 1, { { 0, LOW + 4096, 1 } } },
        { 1, { { LOW - 1, 2, 1 } } },
        { 1, { { LOW, 4095, 1 } } },
        { 1, { { LOW + 1, 4096 + 4094, 1 } } },
        { 1, { { LOW + 1, 4096 + 4095, 1 } } },
        { 1, { { 0, UINT64_MAX, 1 } } }, /* all there is */
        { 1, { { UINT64_MAX, 1, 1 } } },
        { 1, { { UINT64_MAX, UINT64_MAX, 1 } } },
        { 1, { { UINT64_MAX - 0xff, 0x80, 1 } } }, /* rounded up, its start is beyond the end */
        { 1, { { UINT64_MAX - 4094, 4094, 1 } } },
        { 1, { { UINT64_MAX - 4095, 4095, 1 } } },
        { 1, { { UINT64_MAX - 4095, 4096, 1 } } },
        { 1, { { 1ull << 63, 1ull << 63, 1 } } },
        { 2, { { 0x300000, 0x100000, 1 }, { 0x200000, 0x100000, 1 } } }, /* touching, in the wrong order */
        { 2, { { 0x200000, 0x100000, 1 }, { 0x301000, 0x100000, 1 } } }, /* a page apart */
        { 2, { { 0x200000, 0x100800, 1 }, { 0x300800, 0x100000, 1 } } }, /* meeting within a page */
        { 3, { { 0x200000, 0x1000, 1 }, { 0x400000, 0x1000, 1 }, { 0x200000, 0x300000, 1 } } },
        { 3, { { 0x200000, 0x300000, 1 }, { 0x300000, 0x1000, 1 }, { 0x200000, 0x300000, 1 } } },
        { 3, { { 0x200000, 0x1000, 1 }, { 0x202000, 0x1000, 1 }, { 0x201000, 0x1000, 1 } } },
        { 4, { { 0x200000, 0x1000, 0 }, { 0x300000, 0x1000, 3 }, { 0x400000, 0x1000, 5 }, { 0x500000, 0x1000, 257 } } },
    };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        memcpy(map, rows[i].e, sizeof(rows[i].e));
        map_count = rows[i].count;
        check_all_forms();
    }
}

static void random_entry(uint64_t *seed)
{
    uint64_t unit = chance(seed) % 4 ? PAGE : 1 + chance_below(seed, 5000);
    uint64_t addr = chance_below(seed, 600) * unit, size = chance_below(seed, 40) * unit;

    if (chance_below(seed, 20) == 0) /* far away, or beyond everything */
        addr = UINT64_MAX >> chance_below(seed, 40);
    if (chance_below(seed, 40) == 0)
        size = UINT64_MAX >> chance_below(seed, 44);
    add(addr, size, chance_below(seed, 4) ? 1 : (uint32_t)chance_below(seed, 7));
}

static void test_random_maps(void **state)
{
    uint64_t seed = chance_seed(0xb007);

    (void)state;
    for (unsigned n = 0; n < 4000; n++) {
        map_count = 0;
        for (unsigned i = 0, count = chance_below(&seed, 60); i < count; i++)
            random_entry(&seed);
        check_all_forms();
    }
}

/* More ranges than there is room for, in any order: the lowest ones are kept. */
static void test_many_entries(void **state)
{
    uint64_t seed = chance_seed(0xb008);

    (void)state;
    for (unsigned n = 0; n < 200; n++) {
        map_count = 0;
        for (unsigned i = 0; i < (n < 50 ? 60 + n / 5 : 200); i++)
            add(LOW + i * 4 * PAGE, PAGE * (1 + i % 3), 1);
        for (unsigned i = map_count - 1; i > 0 && n % 2; i--) {
            unsigned k = chance_below(&seed, i + 1);
            struct entry e = map[i];
            map[i] = map[k];
            map[k] = e;
        }
        check_all_forms();
    }
}

/* Many ranges that overlap, so that they grow together and make room again: nothing is claimed that is not there. */
static void test_many_overlapping(void **state)
{
    uint64_t seed = chance_seed(0xb009);
    struct range want[ENTRIES];

    for (unsigned n = 0; n < 1000; n++) {
        boot_set_up(state);
        for (unsigned i = 0; i < 200; i++)
            add(LOW + chance_below(&seed, 2000) * PAGE, chance_below(&seed, 12) * PAGE, 1);
        boot_info(&shared, PVH, pvh(1, NULL, 0));
        check_form();
        unsigned count = expected_map(want);
        for (uint32_t i = 0; i < shared.ram_count; i++) {
            unsigned k = 0;
            while (k < count && want[k].end < shared.ram[i].end)
                k++;
            check(k < count && want[k].start <= shared.ram[i].start, "%llx to %llx is not all usable",
                  (unsigned long long)shared.ram[i].start, (unsigned long long)shared.ram[i].end);
        }
        check(shared.ram_count >= (count < 32 ? count : 32), "%u of %u", shared.ram_count, count);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, boot_set_up, boot_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_typical_map),  TEST(test_odd_maps),         TEST(test_random_maps),
        TEST(test_many_entries), TEST(test_many_overlapping),
    };

    return cmocka_run_group_tests_name("bootmap", tests, boot_make_arena, NULL);
}

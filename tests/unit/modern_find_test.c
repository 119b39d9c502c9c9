/* Which of a device's structures the modern transport takes (virtio 1.3, 4.1.4), whatever else is in the list of
 * capabilities, and that every list ends. */
#include "tests/unit/modern_rig.h"

static void test_plain(void **state)
{
    (void)state;
    modern_add_all_good_but(0);
    assert_null(modern_init());
    modern_check_good();
}

/* What a device may have beside them. */
static void test_other_capabilities(void **state)
{
    (void)state;
    modern_add_cap(0x11, 12);
    modern_add_structure(0, 4, 0, 0x1000);
    modern_add_structure(CAP_PCI, 0, 0, 0);
    modern_add_structure(CAP_SHARED_MEMORY, 0, 0, 0x1000);
    modern_add_structure(0xff, 4, 0, 0x1000);
    modern_add_all_good_but(0);
    modern_add_cap(0x01, 8);
    assert_null(modern_init());
    modern_check_good();
}

static void test_any_order(void **state)
{
    for (unsigned n = 0; n < 24; n++) {
        uint8_t left[TYPES] = { 1, 2, 3, 4 };

        modern_set_up(state);
        for (unsigned i = 0, rest = n; i < TYPES; i++) {
            unsigned at = rest % (TYPES - i);
            rest /= TYPES - i;
            modern_add_good(left[at]);
            left[at] = left[TYPES - 1 - i];
        }
        assert_null(modern_init());
        modern_check_good();
    }
}

/* The first usable one of each type is taken (4.1.4.1), although each is there three times. */
static void test_first_of_each(void **state)
{
    (void)state;
    modern_add_all_good_but(0);
    for (uint8_t type = 1; type <= TYPES; type++)
        modern_add_structure(type, 0, 0x4000, 0x1000);
    assert_null(modern_init());
    modern_check_good();
    modern_set_up(state);
    for (uint8_t type = 1; type <= TYPES; type++)
        modern_add_structure(type, 0, 0x4000, 0x1000);
    modern_add_all_good_but(0);
    assert_null(modern_init());
    assert_ptr_equal(modern.transport.common, modern.bar[0] + 0x4000);
    assert_ptr_equal(modern.transport.config, modern.bar[0] + 0x4000);
    assert_ptr_equal(modern.transport.isr, modern.bar[0] + 0x4000);
    assert_ptr_equal(modern.transport.notify, modern.bar[0] + 0x4000);
}

static void test_each_missing(void **state)
{
    for (uint8_t missing = 1; missing <= TYPES; missing++) {
        modern_set_up(state);
        modern_add_all_good_but(missing);
        const char *wrong = modern_init();
        check(wrong && strstr(wrong, good[missing].missing), "%s", wrong ? wrong : "no error");
    }
    modern_set_up(state);
    assert_non_null(strstr(modern_init(), "common")); /* no capability at all */
    modern_set_up(state);
    modern_add_all_good_but(0);
    fake_pci_set(modern.function, 0x06, 2, 0xf900, 0xf900); /* the status register denies the list */
    assert_non_null(strstr(modern_init(), "common"));
}

/* Ways in which a structure cannot be used. `offset` and `length` UINT32_MAX - 1: the good ones. */
#define SAME (UINT32_MAX - 1)
static const struct {
    const char *what;
    uint8_t bar;
    uint32_t offset, length;
} bad[] = {
    { "BAR 6", 6, SAME, SAME },
    { "BAR 7", 7, SAME, SAME },
    { "BAR 255", 255, SAME, SAME },
    { "the upper half of a BAR", 1, SAME, SAME },
    { "a BAR in I/O space", 2, 0, 4 },
    { "a BAR without an address", 3, SAME, SAME },
    { "offset at the end of the BAR", 4, BAR_SIZE, SAME },
    { "offset beyond the BAR", 4, 0xfffff000, SAME },
    { "a sum beyond 2^32", 4, UINT32_MAX - 3, SAME },
    { "an end beyond the BAR", 4, BAR_SIZE - 4, 0x1000 },
    { "a length beyond the BAR", 4, SAME, UINT32_MAX },
    { "a length beyond the BAR by one", 4, 0x4000, BAR_SIZE - 0x4000 + 1 },
    { "no length", 4, SAME, 0 },
};

static void add_bad(uint8_t type, unsigned i)
{
    modern_add_structure(type, bad[i].bar, bad[i].offset == SAME ? good[type].offset : bad[i].offset,
                         bad[i].length == SAME ? good[type].length : bad[i].length);
}

/* Each type, with each bad one before the good one, and instead of it. */
static void test_bad_ones_are_skipped(void **state)
{
    for (uint8_t type = 1; type <= TYPES; type++) {
        for (unsigned i = 0; i < COUNT_OF(bad); i++) {
            modern_set_up(state);
            add_bad(type, i);
            modern_add_all_good_but(0);
            check(modern_init() == NULL, "type %u: %s", type, bad[i].what);
            modern_check_good();
            modern_set_up(state);
            add_bad(type, i);
            modern_add_all_good_but(type);
            const char *wrong = modern_init();
            check(wrong && strstr(wrong, good[type].missing), "type %u: %s: %s", type, bad[i].what,
                  wrong ? wrong : "taken");
        }
    }
}

/* Registers must lie where their width can be read (4.1.4.3.1, 4.1.4.4.1, 4.1.4.6.1). */
static void test_misaligned_are_skipped(void **state)
{
    for (uint8_t type = 1; type <= TYPES; type++) {
        for (uint32_t off = 1; off < 4; off++) {
            bool usable = off % good[type].alignment == 0;

            modern_set_up(state);
            modern_add_structure(type, 0, 0x4000 + off, 0x1000);
            modern_add_all_good_but(0);
            assert_null(modern_init());
            if (!usable) {
                modern_check_good();
                continue;
            }
            assert_ptr_equal(type == CAP_ISR ? modern.transport.isr : modern.transport.notify,
                             modern.bar[0] + 0x4000 + off);
        }
    }
}

/* Exactly as long as it must be, at the very end of the BAR: usable. One byte less: not. */
static void test_shortest(void **state)
{
    for (uint8_t type = 1; type <= TYPES; type++) {
        uint32_t least = good[type].least;

        modern_set_up(state);
        modern_add_structure(type, 4, BAR_SIZE - ((least + 3) & ~3u), least);
        modern_add_all_good_but(type);
        assert_null(modern_init());
        modern_set_up(state);
        modern_add_structure(type, 0, 0x4000, least - 1);
        modern_add_all_good_but(0);
        assert_null(modern_init());
        modern_check_good();
    }
}

/* Structures as long as the BAR has room: of each no more is mapped than can be used. The multiplier says how much of
 * the notification structure that is; 0: all queues share its first two bytes. */
static void test_what_is_mapped(void **state)
{
    static const struct {
        uint32_t multiplier, notify;
    } rows[] = { { 0, 2 }, { 2, BAR_SIZE - NOTIFY_AT }, { 4096, BAR_SIZE - NOTIFY_AT } };

    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        modern_set_up(state);
        for (uint8_t type = 1; type <= TYPES; type++) {
            unsigned at = modern_add_structure(type, 4, good[type].offset, BAR_SIZE - good[type].offset);
            if (type == CAP_NOTIFY)
                fake_pci_set(modern.function, at + 16, 4, rows[i].multiplier, 0);
        }
        assert_null(modern_init());
        uint64_t bar = (uintptr_t)modern.bar[4], most[TYPES] = { COMMON_LENGTH, rows[i].notify, 1, 0x1000 };
        assert_int_equal(modern.window_count, TYPES);
        for (unsigned n = 0; n < TYPES; n++) {
            assert_int_equal(modern.window[n].start, bar + good[n + 1].offset);
            assert_int_equal(modern.window[n].size, most[n]);
        }
        assert_int_equal(modern.transport.notify_length, rows[i].notify);
        assert_int_equal(modern.transport.config_length, 0x1000);
    }
}

/* The last bytes of configuration space have no room for a whole capability: what would be read behind them is none of
 * it. */
static void test_cut_off_capability(void **state)
{
    for (uint8_t type = 1; type <= TYPES; type++) {
        unsigned size = type == CAP_NOTIFY ? 20 : 16;

        for (unsigned at = 256 - size + 4; at < 256; at += 4) {
            modern_set_up(state);
            modern_add_all_good_but(0);
            fake_pci_set(modern.function, at, 4, 0x09u | 0x40u << 8 | size << 16 | (uint32_t)type << 24, 0);
            fake_pci_set(modern.function, 0x34, 1, at, 0);
            assert_null(modern_init());
            modern_check_good();
        }
    }
}

/* One that ends with the space is whole. */
static void test_last_capability(void **state)
{
    for (uint8_t type = 1; type <= TYPES; type++) {
        modern_set_up(state);
        modern_add_all_good_but(type);
        modern.next_cap = type == CAP_NOTIFY ? 0xec : 0xf0;
        modern_add_good(type);
        assert_null(modern_init());
        modern_check_good();
    }
}

/* ---- lists that run in circles ---- */

static void test_loops(void **state)
{
    unsigned at[8];

    (void)state;
    for (unsigned from = 0; from < COUNT_OF(at); from++) {
        for (unsigned to = 0; to <= from; to++) {
            modern_set_up(state);
            for (unsigned i = 0; i < COUNT_OF(at); i++)
                at[i] = modern_add_structure((uint8_t)(i % 2 ? CAP_SHARED_MEMORY : 1 + i / 2), 4,
                                             good[1 + i / 2].offset, good[1 + i / 2].length);
            fake_pci_set(modern.function, at[from] + 1, 1, at[to], 0);
            const char *wrong = modern_init(); /* ends */
            if (from / 2 + 1 >= TYPES) {
                assert_null(wrong);
                modern_check_good();
            } else {
                check(wrong && strstr(wrong, good[from / 2 + 2].missing), "%s", wrong ? wrong : "no error");
            }
        }
    }
}

static void test_longest_list(void **state)
{
    (void)state;
    /* 44 little ones and the four: 48 in all, from the end of the space to its beginning. */
    modern_add_all_good_but(0);
    unsigned first = 0x40;
    for (unsigned at = modern.next_cap; at < 256; at += 4) {
        fake_pci_set(modern.function, at, 2, 0x09u | first << 8, 0);
        fake_pci_set(modern.function, at + 2, 2, 0xff10, 0); /* an unknown type */
        first = at;
    }
    fake_pci_set(modern.function, 0x34, 1, first, 0);
    assert_null(modern_init());
    modern_check_good();
}

static void test_any_bytes(void **state)
{
    uint64_t seed = chance_seed(0xca9);
    unsigned taken = 0;

    (void)state;
    for (unsigned n = 0; n < 3000; n++) {
        modern_set_up(state);
        modern_add_all_good_but(0);
        for (unsigned i = 0; i < 1 + n % 12; i++) {
            unsigned at = n % 2 ? 0x34 : 0x40 + chance_below(&seed, 0xc0);
            fake_pci_set(modern.function, at, 1, (uint8_t)chance(&seed), 0);
        }
        taken += modern_init() == NULL;
    }
    assert_true(taken > 0 && taken < 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_plain, modern_set_up),
        cmocka_unit_test_setup(test_other_capabilities, modern_set_up),
        cmocka_unit_test_setup(test_any_order, modern_set_up),
        cmocka_unit_test_setup(test_first_of_each, modern_set_up),
        cmocka_unit_test_setup(test_each_missing, modern_set_up),
        cmocka_unit_test_setup(test_bad_ones_are_skipped, modern_set_up),
        cmocka_unit_test_setup(test_misaligned_are_skipped, modern_set_up),
        cmocka_unit_test_setup(test_shortest, modern_set_up),
        cmocka_unit_test_setup(test_what_is_mapped, modern_set_up),
        cmocka_unit_test_setup(test_cut_off_capability, modern_set_up),
        cmocka_unit_test_setup(test_last_capability, modern_set_up),
        cmocka_unit_test_setup(test_loops, modern_set_up),
        cmocka_unit_test_setup(test_longest_list, modern_set_up),
        cmocka_unit_test_setup(test_any_bytes, modern_set_up),
    };

    return cmocka_run_group_tests_name("modern_find", tests, modern_make_bars, modern_free_bars);
}

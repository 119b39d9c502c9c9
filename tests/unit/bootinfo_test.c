/* Boot information by PVH, multiboot 1 and 2: boot lines, root pointers, and structures that are odd, cut off or
 * broken: no step outside of them, and an end. */
#include "tests/unit/boot_rig.h"

/* ---- PVH ---- */

static void test_pvh(void **state)
{
    (void)state;
    add(LOW, LOW, 1);
    assert_null(boot_info(&shared, PVH, pvh(1, "ip=dhcp ring=256", 0xf5a10)));
    assert_int_equal(shared.protocol, BOOT_PVH);
    assert_int_equal(shared.rsdp, 0xf5a10);
    assert_string_equal(shared.cmdline, "ip=dhcp ring=256");
    assert_null(boot_info(&shared, PVH, pvh(2, NULL, 0)));
    assert_string_equal(shared.cmdline, "");
    assert_int_equal(shared.rsdp, 0);
    const char *wrong = boot_info(&shared, PVH, pvh(0, NULL, 0));
    check(wrong && strstr(wrong, "version"), "%s", wrong);
    char *info = pvh(1, NULL, 0);
    info[0]++;
    assert_non_null(boot_info(&shared, PVH, info));
}

static void test_unknown_magic(void **state)
{
    static const uint32_t magic[] = { 0, 1, PVH + 1, MULTIBOOT1 ^ 0x80000000, 0x1badb002, 0xe85250d6, UINT32_MAX };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(magic); i++)
        assert_non_null(boot_info(&shared, magic[i], NULL));
    assert_int_equal(shared.protocol, 0);
}

/* ---- the boot line ---- */

/* Lines of every length about the limit: cut, and ended. The byte behind stays as it is. */
static void test_long_lines(void **state)
{
    char line[SHARED_CMDLINE + 20];

    for (unsigned form = 0; form < 3; form++) {
        for (size_t n = SHARED_CMDLINE - 3; n < SHARED_CMDLINE + 10; n++) {
            char *at;
            boot_set_up(state);
            add(LOW, LOW, 1);
            for (size_t i = 0; i < n; i++)
                line[i] = (char)('a' + i % 26);
            line[n] = '\0';
            memset(&shared.world0, 0x77, sizeof(shared.world0));
            mb2_begin();
            mb2_map(24);
            mb2_tag(1, line, (uint32_t)n + 1);
            assert_null(form == 0   ? boot_info(&shared, PVH, pvh(1, line, 0))
                        : form == 1 ? boot_info(&shared, MULTIBOOT1, multiboot1(0x44, line, NULL, 20, 0, &at))
                                    : boot_info(&shared, MULTIBOOT2, mb2_end(0)));
            size_t kept = n < SHARED_CMDLINE - 1 ? n : SHARED_CMDLINE - 1;
            assert_int_equal(strlen(shared.cmdline), kept);
            assert_memory_equal(shared.cmdline, line, kept);
            assert_int_equal(*(uint8_t *)&shared.world0, 0x77);
        }
    }
}

/* ---- multiboot 1 ---- */

static void test_multiboot1_lines(void **state)
{
    static const struct {
        uint32_t flags;
        const char *line, *loader, *expected;
    } rows[] = {
        { MB1_MAP, NULL, NULL, "" },
        { MB1_MAP, "a=b", NULL, "" }, /* the pointer does not count without its flag */
        { MB1_MAP | MB1_CMDLINE, "", NULL, "" },
        { MB1_MAP | MB1_CMDLINE, "ip=dhcp ring=2", NULL, "ip=dhcp ring=2" },
        { MB1_MAP | MB1_CMDLINE, "ip=dhcp ring=2", "qemu", "ip=dhcp ring=2" }, /* nor does the loader's name */
        { MB1_MAP | MB1_CMDLINE | MB1_LOADER, "ip=dhcp ring=2", "GRUB 2.06-13", "ip=dhcp ring=2" },
        { MB1_MAP | MB1_CMDLINE | MB1_LOADER, "build/ringside.elf ip=dhcp ring=2", "qemu", "ip=dhcp ring=2" },
        { MB1_MAP | MB1_CMDLINE | MB1_LOADER, "build/ringside.elf ", "qemu", "" },
        { MB1_MAP | MB1_CMDLINE | MB1_LOADER, "build/ringside.elf", "qemu", "" },
        { MB1_MAP | MB1_CMDLINE | MB1_LOADER, "", "qemu", "" },
        { MB1_MAP | MB1_CMDLINE | MB1_LOADER, "x ip=dhcp", "qem", "x ip=dhcp" },
        { MB1_MAP | MB1_CMDLINE | MB1_LOADER, "x ip=dhcp", "qemu2", "x ip=dhcp" },
        { MB1_MAP | MB1_CMDLINE | MB1_LOADER, "x ip=dhcp", "", "x ip=dhcp" },
        { MB1_MAP | MB1_LOADER, NULL, "qemu", "" },
    };

    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        char *at;
        boot_set_up(state);
        add(LOW, LOW, 1);
        assert_null(
            boot_info(&shared, MULTIBOOT1, multiboot1(rows[i].flags, rows[i].line, rows[i].loader, 20, 0, &at)));
        assert_string_equal(shared.cmdline, rows[i].expected);
        assert_int_equal(shared.rsdp, 0); /* to be searched for */
        check_map();
    }
}

static void test_multiboot1_without_map(void **state)
{
    char *at;

    (void)state;
    add(LOW, LOW, 1);
    const char *wrong = boot_info(&shared, MULTIBOOT1, multiboot1(~MB1_MAP & 0x3ff, "x", "GRUB", 20, 0, &at));
    check(wrong && strstr(wrong, "memory map"), "%s", wrong);
    assert_int_equal(shared.ram_count, 0);
}

/* Entries may be longer than they must be; a map may end in the middle of one, which does not count then. */
static void test_multiboot1_entry_sizes(void **state)
{
    for (uint32_t size = 20; size <= 48; size++) {
        for (uint32_t cut = 0; cut <= size + 4; cut++) {
            char *at;
            boot_set_up(state);
            for (unsigned i = 0; i < 5; i++)
                add(LOW + 3 * i * PAGE, PAGE, 1);
            char *info = multiboot1(MB1_MAP, NULL, NULL, size, cut, &at);
            assert_null(boot_info(&shared, MULTIBOOT1, info));
            map_count -= cut > size - 20; /* what makes up an entry is no longer there */
            check_map();
        }
    }
}

/* Sizes that lead nowhere, or round and round. */
static void test_multiboot1_broken_sizes(void **state)
{
    static const uint32_t sizes[] = { 0,          1,          4,          12,         19,         0x7fffffff,
                                      0x80000000, 0xffffffe8, 0xfffffffb, 0xfffffffc, 0xfffffffd, 0xffffffff };

    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        char *at, *info;
        boot_set_up(state);
        for (unsigned k = 0; k < 5; k++)
            add(LOW + 3 * k * PAGE, PAGE, 1);
        info = multiboot1(MB1_MAP, NULL, NULL, 20, 0, &at);
        put32(at + 2 * 24, sizes[i]);
        boot_info(&shared, MULTIBOOT1, info);
        check_form();
        assert_int_equal(shared.ram_count, sizes[i] < 20 ? 2 : 3); /* those before are good, and it if it is one */
    }
}

/* ---- multiboot 2 ---- */

static void test_multiboot2(void **state)
{
    char rsdp[36] = "RSD PTR ";

    (void)state;
    add(LOW, 2 * LOW, 1);
    mb2_begin();
    mb2_tag(2, "GRUB 2.06", 10); /* an odd size: the next tag is at a multiple of 8 */
    mb2_tag(1, "ip=dhcp", 8);
    mb2_tag(4, "12345678", 8);
    mb2_map(24);
    mb2_tag(14, rsdp, 20);
    mb2_tag(200, "unknown", 7);
    assert_null(boot_info(&shared, MULTIBOOT2, mb2_end(0)));
    assert_string_equal(shared.cmdline, "ip=dhcp");
    assert_int_equal(shared.protocol, BOOT_MULTIBOOT2);
    assert_int_equal(shared.rsdp, (uintptr_t)shared.rsdp_copy);
    assert_memory_equal(shared.rsdp_copy, rsdp, 20);
    check_map();
}

/* ACPI 2.0's pointer is the better one, wherever it stands; one that is no whole pointer is none. */
static void test_multiboot2_rsdp(void **state)
{
    char old[20] = "RSD PTR 1", new[36] = "RSD PTR 2";

    for (unsigned order = 0; order < 4; order++) {
        boot_set_up(state);
        add(LOW, LOW, 1);
        mb2_begin();
        if (order != 1)
            mb2_tag(order == 0 ? 14 : 15, order == 0 ? old : new, order == 0 ? 20 : 36);
        mb2_map(24);
        if (order != 3)
            mb2_tag(order == 0 ? 15 : 14, order == 0 ? new : old, order == 0 ? 36 : 20);
        assert_null(boot_info(&shared, MULTIBOOT2, mb2_end(0)));
        assert_int_equal(shared.rsdp, (uintptr_t)shared.rsdp_copy);
        assert_int_equal(shared.rsdp_copy[8], order == 1 ? '1' : '2');
    }
    for (uint32_t n = 0; n < 20; n++) {
        boot_set_up(state);
        add(LOW, LOW, 1);
        mb2_begin();
        mb2_map(24);
        mb2_tag(n % 2 ? 14 : 15, old, n);
        assert_null(boot_info(&shared, MULTIBOOT2, mb2_end(0)));
        assert_int_equal(shared.rsdp, 0);
    }
    boot_set_up(state);
    add(LOW, LOW, 1);
    mb2_begin();
    mb2_map(24);
    char larger[100] = "RSD PTR 2";
    mb2_tag(15, larger, sizeof(larger));
    assert_null(boot_info(&shared, MULTIBOOT2, mb2_end(0)));
    assert_memory_equal(shared.rsdp_copy, larger, 36);
    assert_int_equal(shared.boot_tsc, 0); /* what follows it is untouched */
}

static void test_multiboot2_without_map(void **state)
{
    (void)state;
    mb2_begin();
    mb2_tag(1, "ip=dhcp", 8);
    const char *wrong = boot_info(&shared, MULTIBOOT2, mb2_end(0));
    check(wrong && strstr(wrong, "memory map"), "%s", wrong);
    mb2_begin();
    assert_non_null(boot_info(&shared, MULTIBOOT2, mb2_end(0)));
    for (uint32_t n = 1; n < 8; n++)
        assert_non_null(boot_info(&shared, MULTIBOOT2, mb2_end(n < 4 ? 4 : n)));
}

/* What stands behind the tag that ends them all is none. */
static void test_multiboot2_end(void **state)
{
    (void)state;
    add(LOW, LOW, 1);
    mb2_begin();
    mb2_map(24);
    mb2_tag(0, NULL, 0);
    mb2_tag(1, "ip=dhcp", 8);
    assert_null(boot_info(&shared, MULTIBOOT2, mb2_end(0)));
    assert_string_equal(shared.cmdline, "");
}

/* A boot line that does not end within its tag. */
static void test_multiboot2_open_line(void **state)
{
    (void)state;
    add(LOW, LOW, 1);
    mb2_begin();
    mb2_map(24);
    mb2_tag(1, "ip=dhcpXYZ", 7);
    mb2_tag(2, "GRUB", 5);
    assert_null(boot_info(&shared, MULTIBOOT2, mb2_end(0)));
    assert_string_equal(shared.cmdline, "ip=dhcp");
    mb2_begin();
    mb2_map(24);
    mb2_tag(1, "ring=256", 8);
    assert_null(boot_info(&shared, MULTIBOOT2, mb2_end(mb2.n))); /* the very last bytes */
    assert_string_equal(shared.cmdline, "ring=256");
}

/* Entries longer than they must be, and sizes that cannot be. */
static void test_multiboot2_entry_sizes(void **state)
{
    static const uint32_t broken[] = { 0,          1,          8,          16,         23,
                                       25,         0x7ffffff8, 0x80000000, 0xfffffff0, 0xfffffff8,
                                       0xffffffe8, 0xffffffef, 0xffffffff };

    for (uint32_t size = 24; size <= 48; size += 8) {
        boot_set_up(state);
        for (unsigned i = 0; i < 5; i++)
            add(LOW + 3 * i * PAGE, PAGE, 1);
        mb2_begin();
        mb2_map(size);
        assert_null(boot_info(&shared, MULTIBOOT2, mb2_end(0)));
        check_map();
    }
    for (unsigned i = 0; i < COUNT_OF(broken); i++) {
        boot_set_up(state);
        add(LOW, LOW, 1);
        mb2_begin();
        put32(mb2_map(24) + 8, broken[i]);
        assert_non_null(boot_info(&shared, MULTIBOOT2, mb2_end(0)));
        assert_int_equal(shared.ram_count, 0);
    }
}

/* Tags whose size is too small, too large, or wraps round: what came before counts. */
static void test_multiboot2_broken_tags(void **state)
{
    static const uint32_t sizes[] = { 0,          1,          7,          0x10000,    0x7fffffff,
                                      0x80000000, 0xfffffff0, 0xfffffff8, 0xfffffff9, 0xffffffff };

    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        for (uint32_t type = 0; type < 17; type++) {
            boot_set_up(state);
            add(LOW, LOW, 1);
            mb2_begin();
            mb2_map(24);
            put32(mb2_tag(type, "0123456789abcdefghijklmnopqrstuvwxyz", 36) + 4, sizes[i]);
            assert_null(boot_info(&shared, MULTIBOOT2, mb2_end(0)));
            check_map();
        }
    }
    for (uint32_t n = 0; n < 32; n++) { /* a map with no room for its own head, or for an entry, at the very end */
        boot_set_up(state);
        mb2_begin();
        mb2_tag(6, "\30\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", n);
        assert_non_null(boot_info(&shared, MULTIBOOT2, mb2_end(16 + n)));
    }
}

static void make_full_multiboot2(void)
{
    char rsdp[36] = "RSD PTR ";

    map_count = 0;
    for (unsigned i = 0; i < 6; i++)
        add(LOW + 3 * i * PAGE, PAGE, 1 + i % 2);
    mb2_begin();
    mb2_tag(2, "GRUB 2.06", 10);
    mb2_map(24);
    mb2_tag(1, "ip=dhcp ring=2", 15);
    mb2_tag(14, rsdp, 20);
    mb2_tag(15, rsdp, 36);
}

/* Cut off anywhere: nothing behind is read, whatever came before counts. */
static void test_multiboot2_truncated(void **state)
{
    boot_set_up(state);
    make_full_multiboot2();
    uint32_t whole = mb2.n + 8;
    for (uint32_t n = 8; n <= whole; n++) {
        boot_set_up(state);
        make_full_multiboot2();
        const char *wrong = boot_info(&shared, MULTIBOOT2, mb2_end(n));
        if (!wrong)
            check_map();
    }
}

/* A good structure in which bytes have changed: no step outside, an end, a map in good form. */
static void test_multiboot2_mutations(void **state)
{
    uint64_t seed = chance_seed(0xb00b);
    unsigned good = 0;

    for (unsigned n = 0; n < 60000; n++) {
        boot_set_up(state);
        make_full_multiboot2();
        for (unsigned i = 0; i < 1 + n % 8; i++) {
            uint32_t at = 8 + chance_below(&seed, mb2.n - 8);
            mb2.bytes[n % 2 ? at & ~3u : at] = chance(&seed) % 2 ? (char)chance(&seed) : (char)0xff;
        }
        good += boot_info(&shared, MULTIBOOT2, mb2_end(0)) == NULL;
        check_form();
        assert_non_null(memchr(shared.cmdline, 0, SHARED_CMDLINE));
    }
    check(good > 1000 && good < 60000, "%u of 60,000 are good", good);
}

static void test_multiboot1_mutations(void **state)
{
    uint64_t seed = chance_seed(0xb00c);

    for (unsigned n = 0; n < 30000; n++) {
        char *at;
        boot_set_up(state);
        for (unsigned i = 0; i < 6; i++)
            add(LOW + 3 * i * PAGE, PAGE, 1 + i % 2);
        char *info = multiboot1(MB1_MAP, NULL, NULL, 20, 0, &at);
        for (unsigned i = 0; i < 1 + n % 8; i++)
            at[chance_below(&seed, 6 * 24)] = chance(&seed) % 2 ? (char)chance(&seed) : (char)0xff;
        assert_null(boot_info(&shared, MULTIBOOT1, info));
        check_form();
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, boot_set_up, boot_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_pvh),
        TEST(test_unknown_magic),
        TEST(test_long_lines),
        TEST(test_multiboot1_lines),
        TEST(test_multiboot1_without_map),
        TEST(test_multiboot1_entry_sizes),
        TEST(test_multiboot1_broken_sizes),
        TEST(test_multiboot2),
        TEST(test_multiboot2_rsdp),
        TEST(test_multiboot2_without_map),
        TEST(test_multiboot2_end),
        TEST(test_multiboot2_open_line),
        TEST(test_multiboot2_entry_sizes),
        TEST(test_multiboot2_broken_tags),
        TEST(test_multiboot2_truncated),
        TEST(test_multiboot2_mutations),
        TEST(test_multiboot1_mutations),
    };

    return cmocka_run_group_tests_name("bootinfo", tests, boot_make_arena, NULL);
}

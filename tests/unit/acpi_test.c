/* ACPI's tables, good and broken: what is found in them, and that broken ones are passed over without a step outside.
 */
#include "tests/unit/acpi_rig.h"

static const struct acpi *found;

/* A good set. */
static uint8_t *dsdt, *fadt, *madt, *mcfg, *hpet, *xsdt, *rsdt, *rsdp;

/* Name(\_S5_, Package(4) { 5, 6, 0, 0 }), after a name that is like it. */
static const uint8_t aml[] = { 0x08, '_', 'S', '4', '_',  0x12, 0x08, 0x04, 0x0a, 3,    0x0a, 3, 0, 0,    0x08, '\\',
                               '_',  'S', '5', '_', 0x12, 0x08, 0x04, 0x0a, 5,    0x0a, 6,    0, 0, 0xa4, 0 };

static const uint8_t madt_contents[] = {
    0, 0,  0xe0, 0xfe, 1,    0,    0,    0,                             /* local APIC, flags */
    0, 8,  0,    7,    1,    0,    0,    0,                             /* processor 0: APIC id 7 */
    0, 8,  1,    9,    1,    0,    0,    0,                             /* 1: 9 */
    0, 8,  2,    11,   0,    0,    0,    0,                             /* 2: 11, disabled */
    0, 8,  3,    13,   2,    0,    0,    0,                             /* 3: 13, could be plugged in later */
    1, 12, 0,    0,    0,    0,    0xc0, 0xfe, 0,  0, 0, 0,             /* I/O APIC, interrupts from 0 */
    1, 12, 1,    0,    0,    0,    0xc1, 0xfe, 24, 0, 0, 0,             /* and from 24 */
    2, 10, 0,    0,    2,    0,    0,    0,    0,  0,                   /* line 0 is interrupt 2 */
    2, 10, 0,    9,    21,   0,    0,    0,    5,  0,                   /* line 9 is 21, edge, high */
    4, 6,  0xff, 0,    0,    1,                                         /* NMI */
    9, 16, 0,    0,    0x34, 0x12, 0,    0,    1,  0, 0, 0, 4, 0, 0, 0, /* x2APIC id 0x1234 */
};

static uint8_t *make_fadt(uint32_t length, const uint8_t *of_32, const uint8_t *of_64)
{
    uint8_t c[276 - SDT] = { 0 };

    put32(c + 40 - SDT, acpi_address(of_32));
    put16(c + 46 - SDT, 9);
    put32(c + 48 - SDT, 0xb2);
    c[52 - SDT] = 0xf1;
    put32(c + 56 - SDT, 0x600);
    put32(c + 64 - SDT, 0x604);
    put32(c + 68 - SDT, 0x614);
    put32(c + 76 - SDT, 0x608);
    c[88 - SDT] = 4;
    put64(c + 140 - SDT, acpi_address(of_64));
    return acpi_table("FACP", c, length - SDT);
}

static void make_set(void)
{
    uint8_t c[64] = { 0 };

    acpi_set_up(NULL);
    dsdt = acpi_table("DSDT", aml, sizeof(aml));
    fadt = make_fadt(244, NULL, dsdt);
    madt = acpi_table("APIC", madt_contents, sizeof(madt_contents));
    put64(c + 8, 0xe0000000);
    put16(c + 8 + 8, 1); /* segment 1: not ours */
    put64(c + 24, 0xb0000000);
    c[24 + 10] = 0;
    c[24 + 11] = 0x7f;
    mcfg = acpi_table("MCFG", c, 8 + 32);
    memset(c, 0, sizeof(c));
    put64(c + 8, 0xfed00000);
    hpet = acpi_table("HPET", c, 20);
    uint8_t *tables[] = { acpi_table("BGRT", c, 20), hpet, madt, fadt, acpi_table("SSDT", aml, sizeof(aml)), mcfg };
    xsdt = acpi_root(true, tables, COUNT_OF(tables));
    rsdt = acpi_root(false, tables, COUNT_OF(tables));
    rsdp = acpi_rsdp(2, rsdt, xsdt);
}

static int set_up(void **state)
{
    (void)state;
    make_set();
    found = acpi_tables();
    return 0;
}

static void check_set(void)
{
    assert_int_equal(found->core_count, 3);
    assert_int_equal(found->core[0], 7);
    assert_int_equal(found->core[1], 9);
    assert_int_equal(found->core[2], 0x1234);
    assert_int_equal(found->ioapic_count, 2);
    assert_int_equal(found->ioapic[0].address, 0xfec00000);
    assert_int_equal(found->ioapic[0].first_gsi, 0);
    assert_int_equal(found->ioapic[1].address, 0xfec10000);
    assert_int_equal(found->ioapic[1].first_gsi, 24);
    assert_int_equal(found->lapic, 0xfee00000);
    assert_int_equal(found->ecam, 0xb0000000);
    assert_int_equal(found->ecam_first_bus, 0);
    assert_int_equal(found->ecam_last_bus, 0x7f);
    assert_int_equal(found->hpet, 0xfed00000);
    assert_int_equal(found->pm_timer, 0x608);
    assert_int_equal(found->pm1a_event, 0x600);
    assert_int_equal(found->pm1a_control, 0x604);
    assert_int_equal(found->pm1b_control, 0x614);
    assert_int_equal(found->smi_command, 0xb2);
    assert_int_equal(found->acpi_enable, 0xf1);
    assert_int_equal(found->pm1_event_length, 4);
    assert_int_equal(found->sci_gsi, 21);
    assert_false(found->sci_level || found->sci_low);
    assert_true(found->has_s5);
    assert_int_equal(found->s5a, 5);
    assert_int_equal(found->s5b, 6);
    assert_int_equal(fake_console_count(LOG_DEBUG), 0);
}

/* As if there were no ACPI. */
static void check_defaults(void)
{
    assert_int_equal(found->core_count, 1);
    assert_int_equal(found->core[0], BOOT_APIC_ID);
    assert_int_equal(found->lapic, 0xfee00000);
    assert_int_equal(found->ioapic_count, 0);
    assert_int_equal(found->ecam + found->hpet + found->pm_timer + found->pm1a_control + found->pm1a_event, 0);
    assert_false(found->has_s5);
    assert_true(found->sci_level && found->sci_low);
}

/* ---- good tables ---- */

static void test_xsdt(void **state)
{
    (void)state;
    memset(rsdt, 0xff, SDT);
    assert_true(acpi_start(acpi_address(rsdp)));
    check_set();
}

static void test_rsdt(void **state)
{
    (void)state;
    memset(xsdt, 0xff, SDT);
    assert_true(acpi_start(acpi_address(acpi_rsdp(0, rsdt, xsdt)))); /* ACPI 1.0 knows no XSDT */
    check_set();
    assert_true(acpi_start(acpi_address(acpi_rsdp(2, rsdt, NULL))));
    check_set();
}

/* A broken XSDT is no reason to do without tables. */
static void test_rsdt_if_xsdt_is_broken(void **state)
{
    (void)state;
    xsdt[9]++;
    assert_true(acpi_start(acpi_address(rsdp)));
    assert_non_null(fake_console_find(LOG_WARN, "XSDT"));
    fake_console_clear();
    check_set();
}

/* Nothing is left over from an earlier time. */
static void test_anew(void **state)
{
    (void)state;
    assert_true(acpi_start(acpi_address(rsdp)));
    assert_false(acpi_start(0));
    check_defaults();
    assert_true(acpi_start(acpi_address(rsdp)));
    check_set();
}

/* ---- the root pointer ---- */

static void test_search(void **state)
{
    static const uint32_t places[] = { 0, 16, 0x5a10, 0x1ffc0, 0x1ffe0 };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(places); i++) {
        memset(bios_area, 0x5a, sizeof(bios_area));
        if (places[i] > 100) /* before it: one with a bad checksum, and one where none can be */
            memcpy(bios_area + 32, "RSD PTR ", 8);
        if (places[i] > 100)
            memcpy(bios_area + 64 + 8, acpi_rsdp(0, NULL, NULL), 36);
        memcpy(bios_area + places[i], rsdp, sizeof(bios_area) - places[i] < 36 ? 20 : 36);
        assert_true(acpi_start(0));
        check_set();
    }
    memset(bios_area, 0, sizeof(bios_area));
    memcpy(bios_area + sizeof(bios_area) - 16, "RSD PTR ", 8); /* cut off by the area's end */
    memcpy(ebda_area + 0x3e0 - 16, rsdp, 36);
    assert_true(acpi_start(0));
    check_set();
    memcpy(bios_area + 0x100, acpi_rsdp(0, rsdt, NULL), 20);
    memset(xsdt, 0xff, SDT);
    assert_true(acpi_start(0)); /* the area of the BIOS comes first */
    check_set();
}

static void test_no_root_pointer(void **state)
{
    (void)state;
    assert_false(acpi_start(0));
    check_defaults();
    for (unsigned i = 0; i < 20; i++) {
        rsdp[i] ^= 0x10;
        assert_false(acpi_start(acpi_address(rsdp)));
        check_defaults();
        rsdp[i] ^= 0x10;
    }
    memcpy(rsdp, "RSD PTR!", 8);
    acpi_rsdp_sum(rsdp);
    assert_false(acpi_start(acpi_address(rsdp)));
    assert_false(acpi_start(8)); /* not mapped */
    assert_false(acpi_start(UINT64_MAX));
    check_defaults();
}

static void test_root_pointers_nowhere(void **state)
{
    static const uint64_t nowhere[] = { 0, 1, 0xfffff000, 1ull << 40, UINT64_MAX };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(nowhere); i++) {
        put32(rsdp + 16, (uint32_t)nowhere[i]);
        put64(rsdp + 24, nowhere[i]);
        acpi_rsdp_sum(rsdp);
        assert_false(acpi_start(acpi_address(rsdp)));
        check_defaults();
        put64(xsdt + SDT + 8 * (i % 6), nowhere[i]);
    }
    acpi_table_sum(xsdt);
    assert_true(acpi_start(acpi_address(acpi_rsdp(2, NULL, xsdt)))); /* some of its tables are nowhere */
}

/* ---- tables as such ---- */

/* Each table with each kind of damage: it is named, and the others are read. */
static void test_damaged_tables(void **state)
{
    for (unsigned which = 0; which < 5; which++) {
        for (unsigned how = 0; how < 7; how++) {
            static const uint32_t lengths[] = { 0, 35, (1u << 20) + 1, 0x80000000, UINT32_MAX };
            set_up(state);
            uint8_t *t = which == 0 ? dsdt : which == 1 ? fadt : which == 2 ? madt : which == 3 ? mcfg : hpet;
            char name[5] = { (char)t[0], (char)t[1], (char)t[2], (char)t[3], 0 };
            if (how < 5)
                put32(t + 4, lengths[how]);
            else
                t[how == 5 ? 9 : SDT]++;
            assert_true(acpi_start(acpi_address(rsdp)));
            assert_int_equal(fake_console_count(LOG_WARN), 1);
            const char *line = fake_console_find(LOG_WARN, name);
            check(line && strstr(line, how < 5 ? "length" : "checksum"), "%s", line ? line : "nothing said");
            assert_int_equal(found->has_s5, which > 1);
            assert_int_equal(found->pm_timer != 0, which != 1);
            assert_int_equal(found->core_count, which == 2 ? 1 : 3);
            assert_int_equal(found->ecam != 0, which != 3);
            assert_int_equal(found->hpet != 0, which != 4);
        }
    }
}

/* Every length that a table can have, cut off with a right checksum: what lies within it counts, nothing is read
 * behind.
 */
static void test_every_length(void **state)
{
    for (unsigned which = 0; which < 6; which++) {
        uint32_t last = UINT32_MAX;
        for (uint32_t cut = 0; cut < last; cut++) {
            set_up(state);
            uint8_t *t = which == 0   ? dsdt
                         : which == 1 ? fadt
                         : which == 2 ? madt
                         : which == 3 ? mcfg
                         : which == 4 ? hpet
                                      : xsdt;
            uint32_t whole = t[4] | (uint32_t)t[5] << 8;
            last = whole - SDT + 1;
            acpi_table_length(t, whole - cut);
            assert_true(acpi_start(acpi_address(rsdp)));
            assert_true(found->core_count >= 1 && found->core_count <= 3);
            assert_int_equal(fake_console_count(LOG_WARN), 0);
            assert_int_equal(found->ecam != 0, which < 3 || which == 4 || cut == 0);
            if (cut == 0)
                check_set();
        }
    }
}

/* ---- the table of interrupt controllers ---- */

static void start_with_madt(const uint8_t *entries, uint32_t n)
{
    uint8_t c[4096] = { 0, 0, 0xe0, 0xfe };

    set_up(NULL);
    if (n)
        memcpy(c + MADT_HEAD, entries, n);
    uint8_t *tables[] = { acpi_table("APIC", c, MADT_HEAD + n), fadt };
    assert_true(acpi_start(acpi_address(acpi_rsdp(2, NULL, acpi_root(true, tables, 2)))));
}

#define MADT(...)                       start_with_madt((const uint8_t[]){ __VA_ARGS__ }, sizeof((const uint8_t[]){ __VA_ARGS__ }))
#define CORE(id)                        0, 8, 0, id, 1, 0, 0, 0
#define X2CORE(low, high, flags)        9, 16, 0, 0, low, high, 0, 0, flags, 0, 0, 0, 0, 0, 0, 0
#define OVERRIDE(bus, line, gsi, flags) 2, 10, bus, line, gsi, 0, 0, 0, flags, 0

static void check_cores(unsigned count, const uint32_t *ids)
{
    assert_int_equal(found->core_count, count);
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(found->core[i], ids[i]);
}

#define CORES(...) check_cores(COUNT_OF(((const uint32_t[]){ __VA_ARGS__ })), (const uint32_t[]){ __VA_ARGS__ })

static void test_madt_broken_entries(void **state)
{
    (void)state;
    MADT(CORE(1), 0, 0, CORE(2)); /* length 0: the end */
    CORES(1);
    MADT(CORE(1), 0, 1, CORE(2));
    CORES(1);
    MADT(CORE(1), 77, 1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0, 0);
    assert_int_equal(found->ioapic_count, 0);
    MADT(CORE(1), 77, 2, CORE(2)); /* unknown, and of the least length */
    CORES(1, 2);
    MADT(CORE(1), CORE(2), 0, 9, 0, 3, 1, 0, 0, 0); /* reaches beyond the end */
    CORES(1, 2);
    MADT(CORE(1), CORE(2), 0, 8, 0, 3, 1, 0, 0);
    CORES(1, 2);
    MADT(CORE(1), CORE(2), 0);
    CORES(1, 2);
    MADT(0, 7, 0, 3, 1, 0, 0, CORE(2)); /* too short for what it is */
    CORES(2);
    MADT(9, 15, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, CORE(2));
    CORES(2);
    MADT(5, 11, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 1, 11, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 2, 9, 0, 9, 3, 0, 0, 0, 0);
    CORES(BOOT_APIC_ID);
    assert_int_equal(found->lapic, 0xfee00000);
    assert_int_equal(found->ioapic_count, 0);
    assert_int_equal(found->sci_gsi, 9);
    MADT(0, 10, 0, 3, 1, 0, 0, 0, 0xee, 0xee, CORE(2)); /* longer than known */
    CORES(3, 2);
    start_with_madt(NULL, 0);
    CORES(BOOT_APIC_ID);
}

static void test_madt_cores(void **state)
{
    uint8_t entries[100 * 8];

    (void)state;
    MADT(X2CORE(1, 1, 1), X2CORE(2, 1, 0), X2CORE(3, 1, 2), X2CORE(4, 1, 3));
    CORES(0x101, 0x104);
    /* One core is one core, however often it is named; an id that means all of them is none. */
    MADT(CORE(1), CORE(2), CORE(1), X2CORE(1, 0, 1), X2CORE(3, 0, 1), CORE(3));
    CORES(1, 2, 3);
    MADT(CORE(1), CORE(0xff), 9, 16, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, X2CORE(0xff, 0, 1));
    CORES(1, 0xff);
    for (unsigned i = 0; i < 100; i++)
        memcpy(entries + 8 * i, (const uint8_t[]){ CORE((uint8_t)i) }, 8);
    start_with_madt(entries, sizeof(entries));
    assert_int_equal(found->core_count, ACPI_MAX_CORES);
    for (unsigned i = 0; i < ACPI_MAX_CORES; i++)
        assert_int_equal(found->core[i], i);
}

static void test_madt_controllers(void **state)
{
    uint8_t entries[20 * 12];

    (void)state;
    MADT(5, 12, 0, 0, 0, 0, 0, 0xe0, 1, 0, 0, 0);
    assert_int_equal(found->lapic, 0x1e0000000);
    for (unsigned i = 0; i < 20; i++)
        memcpy(entries + 12 * i, (const uint8_t[]){ 1, 12, 0, 0, 0, 0, (uint8_t)i, 0, (uint8_t)i, 0, 0, 0 }, 12);
    start_with_madt(entries, sizeof(entries));
    assert_int_equal(found->ioapic_count, ACPI_MAX_IOAPICS);
    assert_int_equal(found->ioapic[7].address, 7 << 16);
    assert_int_equal(found->ioapic[7].first_gsi, 7);
}

static void check_sci(uint32_t gsi, bool level, bool low)
{
    assert_int_equal(found->sci_gsi, gsi);
    assert_int_equal(found->sci_level, level);
    assert_int_equal(found->sci_low, low);
}

/* Flags (5.2.12.5): polarity in bits 0-1, trigger in bits 2-3; 0 as the bus has it, which for the SCI is level, low. */
static void test_sci_override(void **state)
{
    (void)state;
    MADT(CORE(1));
    check_sci(9, true, true);
    MADT(OVERRIDE(0, 9, 20, 0));
    check_sci(20, true, true);
    MADT(OVERRIDE(0, 9, 9, 0x0d));
    check_sci(9, true, false);
    MADT(OVERRIDE(0, 9, 9, 0x07));
    check_sci(9, false, true);
    MADT(OVERRIDE(0, 9, 9, 0x0f));
    check_sci(9, true, true);
    MADT(OVERRIDE(0, 10, 20, 0x05), OVERRIDE(0, 0, 2, 0));
    check_sci(9, true, true);
    MADT(OVERRIDE(1, 9, 20, 0x05)); /* not of the ISA bus */
    check_sci(9, true, true);
    /* An override is about a line, not about the interrupt that another one has made of it. */
    MADT(OVERRIDE(0, 9, 11, 0), OVERRIDE(0, 11, 9, 0x05));
    check_sci(11, true, true);
}

/* ---- PCI's configuration space, the timer ---- */

static void test_mcfg(void **state)
{
    uint8_t c[8 + 3 * 16] = { 0 };

    for (unsigned n = 0; n < 3; n++) {
        set_up(state);
        for (unsigned i = 0; i < 3; i++) {
            put64(c + 8 + 16 * i, 0xa0000000 + ((uint64_t)i << 32));
            put16(c + 8 + 16 * i + 8, i < n); /* the first n are of another segment */
            c[8 + 16 * i + 10] = (uint8_t)i;
            c[8 + 16 * i + 11] = (uint8_t)(100 + i);
        }
        uint8_t *t = acpi_table("MCFG", c, sizeof(c));
        assert_true(acpi_start(acpi_address(acpi_rsdp(2, NULL, acpi_root(true, &t, 1)))));
        assert_int_equal(found->ecam, 0xa0000000 + ((uint64_t)n << 32));
        assert_int_equal(found->ecam_first_bus, n);
        assert_int_equal(found->ecam_last_bus, 100 + n);
    }
}

static void test_hpet_in_port_space(void **state)
{
    (void)state;
    hpet[40] = 1;
    acpi_table_sum(hpet);
    assert_true(acpi_start(acpi_address(rsdp)));
    assert_int_equal(found->hpet, 0);
}

/* ---- changed bytes ---- */

/* Any bytes of the whole set changed, checksums right again or not: no step outside of what is mapped, and an end. */
static void test_mutations(void **state)
{
    uint64_t seed = chance_seed(0xac91);
    unsigned rooted = 0;

    for (unsigned n = 0; n < 20000; n++) {
        set_up(state);
        uint8_t *tables[] = { dsdt, fadt, madt, mcfg, hpet, xsdt, rsdt };
        uint32_t used;
        uint8_t *byte = acpi_bytes(&used);
        for (unsigned i = 0; i < 1 + n % 10; i++) {
            uint8_t *t = tables[chance_below(&seed, COUNT_OF(tables))];
            uint32_t length = t[4] | (uint32_t)t[5] << 8, at = chance_below(&seed, length < 2000 ? length + 1 : 2000);
            uint8_t value = (uint8_t)(chance(&seed) % 3 ? chance(&seed) : chance(&seed) % 2 ? 0xff : 0);
            (n % 16 ? t + at : byte + chance_below(&seed, used))[0] = value;
        }
        for (unsigned i = 0; i < COUNT_OF(tables) && n % 4; i++)
            acpi_table_sum(tables[i]);
        rooted += acpi_start(acpi_address(rsdp));
        assert_true(found->core_count >= 1 && found->core_count <= ACPI_MAX_CORES);
        assert_true(found->ioapic_count <= ACPI_MAX_IOAPICS);
    }
    check(rooted > 10000 && rooted < 20000, "%u of 20,000 have a root", rooted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_xsdt, set_up),
        cmocka_unit_test_setup(test_rsdt, set_up),
        cmocka_unit_test_setup(test_rsdt_if_xsdt_is_broken, set_up),
        cmocka_unit_test_setup(test_anew, set_up),
        cmocka_unit_test_setup(test_search, set_up),
        cmocka_unit_test_setup(test_no_root_pointer, set_up),
        cmocka_unit_test_setup(test_root_pointers_nowhere, set_up),
        cmocka_unit_test_setup(test_damaged_tables, set_up),
        cmocka_unit_test_setup(test_every_length, set_up),
        cmocka_unit_test_setup(test_madt_broken_entries, set_up),
        cmocka_unit_test_setup(test_madt_cores, set_up),
        cmocka_unit_test_setup(test_madt_controllers, set_up),
        cmocka_unit_test_setup(test_sci_override, set_up),
        cmocka_unit_test_setup(test_mcfg, set_up),
        cmocka_unit_test_setup(test_hpet_in_port_space, set_up),
        cmocka_unit_test_setup(test_mutations, set_up),
    };

    return cmocka_run_group_tests_name("acpi", tests, acpi_make_arena, NULL);
}

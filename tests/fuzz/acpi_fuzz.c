/* Firmware's tables: good ones whose contents, headers and lengths are replaced, with right checksums or wrong ones.
 * Nothing is read beyond what was mapped (AddressSanitizer watches), what is found is in range, and switching off and
 * the power button end within bounded accesses to ports. */
#include "tests/fuzz/fuzz.h"
#include "tests/unit/acpi_rig.h"

enum { DSDT, FADT, MADT, MCFG, HPET, XSDT, RSDT, TABLES };

static uint8_t *table[TABLES];
static uint32_t length[TABLES]; /* as built: there is so much room for it */

static const uint8_t aml[] = { 0x08, '_',  'S', '5', '_',  0x12, 0x0a, 0x04, 0x0a, 5, 0x0b, 6,
                               0,    0x0c, 1,   0,   0xff, 0,    0x01, 0xa4, 0,    0, 0,    0 };
static const uint8_t madt[] = { 0, 0, 0xe0, 0xfe, 1, 0, 0,  0, 0, 8,  0, 7,    1,    0,    0, 0, 0, 8, 1,
                                9, 1, 0,    0,    0, 1, 12, 0, 0, 0,  0, 0xc0, 0xfe, 0,    0, 0, 0, 2, 10,
                                0, 9, 21,   0,    0, 0, 5,  0, 9, 16, 0, 0,    0x34, 0x12, 0, 0, 1, 0, 0,
                                0, 4, 0,    0,    0, 5, 12, 0, 0, 0,  0, 0xe1, 0xfe, 0,    0, 0, 0 };

static void note(unsigned which, uint8_t *at)
{
    table[which] = at;
    length[which] = (uint32_t)at[4] | (uint32_t)at[5] << 8;
}

static uint8_t *make_set(uint8_t how)
{
    uint8_t c[276] = { 0 };
    acpi_set_up(NULL);
    note(DSDT, acpi_table("DSDT", aml, sizeof aml));
    put32(c + 40 - SDT, acpi_address(table[DSDT]));
    put16(c + 46 - SDT, 9);
    put32(c + 48 - SDT, 0xb2);
    c[52 - SDT] = 0xf1;
    put32(c + 56 - SDT, 0x600);
    put32(c + 64 - SDT, 0x604);
    put32(c + 68 - SDT, 0x614);
    put32(c + 76 - SDT, 0x608);
    c[88 - SDT] = 4;
    if (how & 1)
        put64(c + 140 - SDT, acpi_address(table[DSDT]));
    note(FADT, acpi_table("FACP", c, (how & 2 ? 116u : 244u) - SDT));
    note(MADT, acpi_table("APIC", madt, sizeof madt));
    memset(c, 0, sizeof c);
    put64(c + 8, 0xb0000000);
    c[8 + 11] = 0x7f;
    note(MCFG, acpi_table("MCFG", c, 8 + 32));
    note(HPET, acpi_table("HPET", c, 20));
    uint8_t *tables[] = { table[HPET], table[MADT], table[FADT], table[MCFG], table[MADT] };
    note(XSDT, acpi_root(true, tables, COUNT_OF(tables)));
    note(RSDT, acpi_root(false, tables, COUNT_OF(tables)));
    return acpi_rsdp(how & 4 ? 2 : 0, table[RSDT], table[XSDT]);
}

/* Replaces bytes of a table from `at` on; its length, and the sum over it, may become anything. */
static void replace(struct input *in)
{
    uint8_t how = take8(in);
    unsigned which = how % TABLES;
    uint32_t at = take8(in), n = take8(in), room = length[which] + 64;
    while (n-- > 0 && more(in) && at < room)
        table[which][at++] = take8(in);
    if (how & 0x80)
        put32(table[which] + 4, how & 0x40 ? take32(in) : take8(in));
    if (!(how & 0x20))
        acpi_table_sum(table[which]);
}

static void replace_root(struct input *in, uint8_t *rsdp)
{
    uint8_t at = take8(in) % 36;
    rsdp[at] = take8(in);
    if (take8(in) & 1)
        acpi_rsdp_sum(rsdp);
}

static void check_found(const struct acpi *found)
{
    must(found->core_count >= 1 && found->core_count <= ACPI_MAX_CORES && found->ioapic_count <= ACPI_MAX_IOAPICS);
    for (unsigned i = 0; i < found->core_count; i++)
        for (unsigned k = 0; k < i; k++)
            must(found->core[i] != found->core[k]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool made;
    if (!made)
        must(acpi_make_arena(NULL) == 0);
    made = true;
    struct input in = { data, data + size };
    uint8_t how = take8(&in), *rsdp = make_set(how);
    while (more(&in))
        if (take8(&in) & 7)
            replace(&in);
        else
            replace_root(&in, rsdp);
    if (how & 8)
        memcpy(bios_area + 0x1000, rsdp, 36);
    machine.smi_port = how & 16 ? 0 : 0xb2;
    machine.smi_value = 0xf1;
    machine.control = 0x604;
    machine.refuses_route = how & 32;
    acpi_start(how & 8 ? 0 : acpi_address(rsdp));
    check_found(acpi_tables());
    acpi_power_off();
    if (acpi_power_button_init())
        machine.handler(machine.argument);
    return 0;
}

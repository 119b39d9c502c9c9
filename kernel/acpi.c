#include <stddef.h>
#include <string.h>
#include "kernel/acpi.h"
#include "kernel/apic.h"
#include "kernel/console.h"
#include "kernel/paging.h"
#include "kernel/traps.h"
#include "kernel/x86.h"

#define TABLE_MAX  (1u << 20) /* no table we read is larger; a length above is a broken one */
#define PM1_PWRBTN 0x100u
#define PM1_SCI_EN 0x001u
#define PM1_SLP_EN 0x2000u

struct __attribute__((packed)) sdt {
    char signature[4];
    uint32_t length;
    uint8_t revision, checksum;
    char oem[26];
};

struct __attribute__((packed)) rsdp {
    char signature[8];
    uint8_t checksum;
    char oem[6];
    uint8_t revision;
    uint32_t rsdt, length;
    uint64_t xsdt;
    uint8_t checksum2, reserved[3];
};

static struct acpi found;
static volatile bool button_pressed;

const struct acpi *acpi_tables(void)
{
    return &found;
}

static uint16_t get16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t get32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t get64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static bool sums_to_zero(const void *p, uint32_t n)
{
    uint8_t sum = 0;
    for (const uint8_t *b = p; n > 0; n--)
        sum = (uint8_t)(sum + *b++);
    return sum == 0;
}

static const struct rsdp *search(uint32_t from, uint32_t to)
{
    const char *p = paging_map_readonly(from, to - from);
    for (uint32_t i = 0; p != NULL && i + 20 <= to - from; i += 16)
        if (memcmp(p + i, "RSD PTR ", 8) == 0 && sums_to_zero(p + i, 20))
            return (const struct rsdp *)(p + i);
    return NULL;
}

/* Where a BIOS puts it: the first KiB of the extended data area, or 0xe0000..0xfffff (5.2.5.1). */
static const struct rsdp *find_rsdp(uint64_t given)
{
    if (given != 0) {
        const struct rsdp *r = paging_map_readonly(given, sizeof *r);
        return r != NULL && memcmp(r->signature, "RSD PTR ", 8) == 0 && sums_to_zero(r, 20) ? r : NULL;
    }
    const struct rsdp *r = search(0xe0000, 0x100000);
    return r != NULL ? r : search(0x9fc00, 0xa0000);
}

/* The table at `address`, mapped and checked, or NULL. */
static const struct sdt *table_at(uint64_t address)
{
    const struct sdt *t = paging_map_readonly(address, sizeof *t);
    if (t == NULL)
        return NULL;
    if (t->length < sizeof *t || t->length > TABLE_MAX) {
        log_warn("acpi", "table %.4s at %llx has length %u: passed over", t->signature, (unsigned long long)address,
                 t->length);
        return NULL;
    }
    t = paging_map_readonly(address, t->length);
    if (t != NULL && !sums_to_zero(t, t->length)) {
        log_warn("acpi", "table %.4s at %llx has a bad checksum: passed over", t->signature,
                 (unsigned long long)address);
        return NULL;
    }
    return t;
}

/* A core that is named twice (some firmware has it in both forms) is one; `none`, the id that means all cores, is none.
 */
static void add_core(uint32_t apic_id, uint32_t none, uint32_t flags)
{
    if ((flags & 1) == 0 || apic_id == none || found.core_count == ACPI_MAX_CORES)
        return;
    for (unsigned i = 0; i < found.core_count; i++)
        if (found.core[i] == apic_id)
            return;
    found.core[found.core_count++] = apic_id;
}

/* `line` is the SCI's, as the FADT names it: overrides are about lines of the ISA bus (e[2] is 0). */
static void read_override(const uint8_t *e, uint32_t line)
{
    uint16_t flags = get16(e + 8);
    if (e[2] != 0 || e[3] != line)
        return;
    found.sci_gsi = get32(e + 4);
    found.sci_low = (flags & 3) != 1;
    found.sci_level = (flags >> 2 & 3) != 1;
}

/* The table of interrupt controllers and cores (5.2.12). */
static void read_madt(const struct sdt *t)
{
    const uint8_t *end = (const uint8_t *)t + t->length, *e = (const uint8_t *)t + 44;
    uint32_t sci_line = found.sci_gsi;
    if (t->length < 44)
        return;
    found.lapic = get32((const uint8_t *)t + 36);
    for (; e + 2 <= end && e[1] >= 2 && e + e[1] <= end; e += e[1]) {
        if (e[0] == 0 && e[1] >= 8)
            add_core(e[3], 0xff, get32(e + 4));
        else if (e[0] == 9 && e[1] >= 16)
            add_core(get32(e + 4), UINT32_MAX, get32(e + 8));
        else if (e[0] == 5 && e[1] >= 12)
            found.lapic = get64(e + 4);
        else if (e[0] == 2 && e[1] >= 10)
            read_override(e, sci_line);
        else if (e[0] == 1 && e[1] >= 12 && found.ioapic_count < ACPI_MAX_IOAPICS) {
            found.ioapic[found.ioapic_count].address = get32(e + 4);
            found.ioapic[found.ioapic_count++].first_gsi = get32(e + 8);
        }
    }
}

/* One element of an AML package, an integer constant (20.2.3): its lowest byte. Returns where the next one is; NULL if
 * it is none, or is cut off. */
static const uint8_t *aml_integer(const uint8_t *p, const uint8_t *end, uint8_t *value)
{
    static const uint8_t width[] = { [0x0a] = 1, [0x0b] = 2, [0x0c] = 4, [0x0e] = 8 };
    if (p == end)
        return NULL;
    uint8_t op = *p++;
    if (op == 0x00 || op == 0x01 || op == 0xff) { /* ZeroOp, OneOp, OnesOp */
        *value = op;
        return p;
    }
    unsigned n = op < sizeof width ? width[op] : 0;
    if (n == 0 || n > end - p)
        return NULL;
    *value = *p;
    return p + n;
}

/* The sleep types in a package, from its length on: the second is 0 if it has only one. */
static bool read_s5(const uint8_t *p, const uint8_t *end)
{
    uint8_t a, b = 0;
    if (p == end || end - p < 1 + (*p >> 6) + 1)
        return false;
    p += 1 + (*p >> 6); /* bits 6 and 7: how many bytes of length follow (20.2.4) */
    unsigned count = *p++;
    p = count > 0 ? aml_integer(p, end, &a) : NULL;
    if (p == NULL || (count > 1 && aml_integer(p, end, &b) == NULL))
        return false;
    found.s5a = a;
    found.s5b = b;
    return true;
}

/* Searches the DSDT for Name(_S5_, Package() { a, b, ... }). */
static void read_dsdt(const struct sdt *t)
{
    if (t == NULL)
        return;
    const uint8_t *end = (const uint8_t *)t + t->length;
    for (const uint8_t *p = (const uint8_t *)(t + 1); p + 5 <= end && !found.has_s5; p++)
        if (memcmp(p, "_S5_", 4) == 0 && p[4] == 0x12)
            found.has_s5 = read_s5(p + 5, end);
}

/* The fixed hardware's registers (5.2.9). */
static void read_fadt(const struct sdt *t)
{
    const uint8_t *p = (const uint8_t *)t;
    if (t->length < 116)
        return;
    found.sci_gsi = get16(p + 46);
    found.smi_command = (uint16_t)get32(p + 48);
    found.acpi_enable = p[52];
    found.pm1a_event = (uint16_t)get32(p + 56);
    found.pm1a_control = (uint16_t)get32(p + 64);
    found.pm1b_control = (uint16_t)get32(p + 68);
    found.pm_timer = (uint16_t)get32(p + 76);
    found.pm1_event_length = p[88];
    uint64_t dsdt = t->length >= 148 ? get64(p + 140) : 0;
    read_dsdt(table_at(dsdt != 0 ? dsdt : get32(p + 40)));
}

static void read_mcfg(const struct sdt *t)
{
    for (uint32_t i = 44; i + 16 <= t->length; i += 16) {
        const uint8_t *e = (const uint8_t *)t + i;
        if (get16(e + 8) != 0 || found.ecam != 0)
            continue;
        found.ecam = get64(e);
        found.ecam_first_bus = e[10];
        found.ecam_last_bus = e[11];
    }
}

/* Calls read() for each table of this name. The FADT goes before the MADT: overrides are about the SCI line it names.
 */
static void each_table(const struct sdt *root, const char *signature, void (*read)(const struct sdt *t))
{
    bool wide = memcmp(root->signature, "XSDT", 4) == 0;
    uint32_t step = wide ? 8 : 4;
    for (uint32_t i = sizeof *root; i + step <= root->length; i += step) {
        const uint8_t *e = (const uint8_t *)root + i;
        const struct sdt *head = paging_map_readonly(wide ? get64(e) : get32(e), sizeof *head);
        if (head == NULL || memcmp(head->signature, signature, 4) != 0)
            continue;
        const struct sdt *t = table_at((uint64_t)head);
        if (t != NULL)
            read(t);
    }
}

static void read_hpet(const struct sdt *t)
{
    if (t->length >= 52 && ((const uint8_t *)t)[40] == 0) /* in memory space */
        found.hpet = get64((const uint8_t *)t + 44);
}

bool acpi_init(uint64_t given)
{
    found = (struct acpi){ .lapic = 0xfee00000, .sci_level = true, .sci_low = true };
    const struct rsdp *r = find_rsdp(given);
    const struct sdt *root = NULL;
    if (r != NULL && r->revision >= 2 && r->xsdt != 0)
        root = table_at(r->xsdt);
    if (r != NULL && root == NULL)
        root = table_at(r->rsdt);
    if (root != NULL) {
        each_table(root, "FACP", read_fadt);
        each_table(root, "APIC", read_madt);
        each_table(root, "MCFG", read_mcfg);
        each_table(root, "HPET", read_hpet);
    }
    if (found.core_count == 0) {
        found.core_count = 1;
        found.core[0] = cpuid(1, 0).b >> 24;
    }
    return root != NULL;
}

void acpi_power_off(void)
{
    if (!found.has_s5 || found.pm1a_control == 0)
        return;
    outw(found.pm1a_control, (uint16_t)((found.s5a & 7u) << 10 | PM1_SLP_EN));
    if (found.pm1b_control != 0)
        outw(found.pm1b_control, (uint16_t)((found.s5b & 7u) << 10 | PM1_SLP_EN));
}

static void on_sci(void *argument)
{
    (void)argument;
    uint16_t status = inw(found.pm1a_event);
    if (status & PM1_PWRBTN)
        button_pressed = true;
    outw(found.pm1a_event, status); /* writing ones clears: the line is level-triggered */
}

/* Firmware that keeps ACPI for itself hands it over on a write to its SMI port (4.8.2.5); a bounded wait for it to be
 * done. */
static bool take_over_from_firmware(void)
{
    if (inw(found.pm1a_control) & PM1_SCI_EN)
        return true;
    if (found.smi_command == 0)
        return false;
    outb(found.smi_command, found.acpi_enable);
    for (unsigned tries = 0; tries < 100000; tries++)
        if (inw(found.pm1a_control) & PM1_SCI_EN)
            return true;
    return false;
}

bool acpi_power_button_init(void)
{
    if (found.pm1a_event == 0 || found.pm1_event_length < 4 || !take_over_from_firmware())
        return false;
    irq_install(VECTOR_SCI, on_sci, NULL);
    if (!ioapic_route(found.sci_gsi, VECTOR_SCI, found.sci_level, found.sci_low))
        return false;
    outw(found.pm1a_event, PM1_PWRBTN);
    outw((uint16_t)(found.pm1a_event + found.pm1_event_length / 2), PM1_PWRBTN);
    return true;
}

bool acpi_power_button(void)
{
    return button_pressed;
}

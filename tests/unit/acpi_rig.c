/* See acpi_rig.h. */
#include "tests/unit/acpi_rig.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

/* In place of kernel/x86.h. */
#define RINGSIDE_X86_H
struct cpuid {
    uint32_t a, b, c, d;
};
static struct cpuid cpuid(uint32_t leaf, uint32_t sub);
static void outb(uint16_t port, uint8_t v);
static void outw(uint16_t port, uint16_t v);
static uint16_t inw(uint16_t port);
#include "kernel/acpi.c"

#define ARENA (1u << 16)

static uint8_t *arena;
static uint32_t arena_used;
uint8_t bios_area[0x20000], ebda_area[0x400];
struct acpi_machine machine;

/* ---- what kernel/acpi.c is linked with ---- */

static struct cpuid cpuid(uint32_t leaf, uint32_t sub)
{
    assert_int_equal(leaf, 1);
    return (struct cpuid){ .b = (uint32_t)BOOT_APIC_ID << 24 | 0x00ffffff, .c = sub };
}

static void note_write(uint16_t port, uint32_t value, unsigned width)
{
    check(machine.writes < COUNT_OF(machine.write), "more and more is written to ports");
    machine.write[machine.writes++] = (struct port_write){ port, value, width };
}

static void outb(uint16_t port, uint8_t v)
{
    note_write(port, v, 1);
}

static void outw(uint16_t port, uint16_t v)
{
    note_write(port, v, 2);
}

static uint16_t inw(uint16_t port)
{
    check(++machine.reads < 10000000, "ports are read without end");
    for (unsigned i = 0; i < machine.writes; i++) {
        if (machine.smi_port && machine.write[i].port == machine.smi_port &&
            machine.write[i].value == machine.smi_value && machine.reads > machine.smi_delay)
            machine.port[machine.control] |= 1;
    }
    return machine.port[port];
}

/* What is asked for may be read from now on; other memory may not. */
const void *paging_map_readonly(uint64_t address, uint64_t size)
{
    if (address == 0xe0000 && size == sizeof(bios_area))
        return bios_area;
    if (address == 0x9fc00 && size == sizeof(ebda_area))
        return ebda_area;
    if (address < (uintptr_t)arena || address - (uintptr_t)arena > ARENA || size == 0 ||
        size > ARENA - (address - (uintptr_t)arena))
        return NULL;
    ASAN_UNPOISON_MEMORY_REGION((void *)address, size);
    return (const void *)address;
}

void irq_install(uint8_t vector, void (*handler)(void *argument), void *argument)
{
    assert_int_equal(vector, VECTOR_SCI);
    machine.handler = handler;
    machine.argument = argument;
}

bool ioapic_route(uint32_t gsi, uint8_t vector, bool level, bool low)
{
    assert_int_equal(vector, VECTOR_SCI);
    machine.routed = true;
    machine.gsi = gsi;
    machine.level = level;
    machine.low = low;
    return !machine.refuses_route;
}

/* ---- building ---- */

int acpi_make_arena(void **state)
{
    (void)state;
    arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    return arena == MAP_FAILED;
}

int acpi_set_up(void **state)
{
    (void)state;
    ASAN_UNPOISON_MEMORY_REGION(arena, ARENA);
    memset(arena, 0, arena_used);
    arena_used = 0;
    memset(bios_area, 0, sizeof(bios_area));
    memset(ebda_area, 0, sizeof(ebda_area));
    memset(&machine, 0, sizeof(machine));
    fake_console_clear();
    return 0;
}

static uint8_t *place(uint32_t n)
{
    uint8_t *at = arena + arena_used;

    arena_used += (n + 64 + 15) & ~15u;
    check(arena_used <= ARENA, "the arena is too small");
    return at;
}

uint8_t *acpi_bytes(uint32_t *n)
{
    *n = arena_used;
    return arena;
}

uint32_t acpi_address(const void *p)
{
    return (uint32_t)(uintptr_t)p;
}

void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

void put32(uint8_t *p, uint32_t v)
{
    put16(p, v);
    put16(p + 2, v >> 16);
}

void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

static uint8_t sum(const uint8_t *p, uint32_t n)
{
    uint8_t s = 0;

    for (uint32_t i = 0; i < n; i++)
        s = (uint8_t)(s + p[i]);
    return s;
}

void acpi_table_sum(uint8_t *table)
{
    uint32_t length = get32(table + 4);

    table[9] = 0;
    if (length <= ARENA - (uint32_t)(table - arena))
        table[9] = (uint8_t)-sum(table, length);
}

void acpi_table_length(uint8_t *table, uint32_t length)
{
    put32(table + 4, length);
    acpi_table_sum(table);
}

uint8_t *acpi_table(const char *signature, const void *contents, uint32_t n)
{
    uint8_t *t = place(SDT + n);

    memcpy(t, signature, 4);
    t[8] = 1;
    memcpy(t + 10, "RINGSITESTTABLE\0\1\0\0\0TEST\1\0\0\0", 26);
    if (n)
        memcpy(t + SDT, contents, n);
    acpi_table_length(t, SDT + n);
    return t;
}

uint8_t *acpi_root(bool wide, uint8_t *const *tables, unsigned count)
{
    uint8_t entries[64 * 8];
    unsigned step = wide ? 8 : 4;

    for (unsigned i = 0; i < count; i++)
        wide ? put64(entries + 8 * i, acpi_address(tables[i])) : put32(entries + 4 * i, acpi_address(tables[i]));
    return acpi_table(wide ? "XSDT" : "RSDT", entries, count * step);
}

void acpi_rsdp_sum(uint8_t *rsdp)
{
    rsdp[8] = 0;
    rsdp[8] = (uint8_t)-sum(rsdp, 20);
    rsdp[32] = 0;
    rsdp[32] = (uint8_t)-sum(rsdp, 36);
}

uint8_t *acpi_rsdp(uint8_t revision, const uint8_t *rsdt, const uint8_t *xsdt)
{
    uint8_t *r = place(36);

    memcpy(r, "RSD PTR ", 8);
    memcpy(r + 9, "RINGSI", 6);
    r[15] = revision;
    put32(r + 16, acpi_address(rsdt));
    put32(r + 20, 36);
    put64(r + 24, acpi_address(xsdt));
    acpi_rsdp_sum(r);
    return r;
}

bool acpi_start(uint64_t rsdp)
{
    fake_console_clear();
    button_pressed = false;
    ASAN_POISON_MEMORY_REGION(arena, ARENA);
    bool good = acpi_init(rsdp);
    ASAN_UNPOISON_MEMORY_REGION(arena, ARENA);
    return good;
}

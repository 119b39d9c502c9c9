/* ACPI's tables in an arena below 4 GiB, where the code under test may read what it has had mapped and not a byte more
 * (AddressSanitizer watches); and I/O ports that are written down. kernel/acpi.c is compiled with these ports in place
 * of the processor's. */
#ifndef RINGSIDE_ACPI_RIG_H
#define RINGSIDE_ACPI_RIG_H
#include "kernel/acpi.h"
#include "tests/unit/fake_console.h"
#include "tests/unit/unit.h"

#define BOOT_APIC_ID 7  /* what CPUID says */
#define SDT          36 /* bytes of a table's header */
#define MADT_HEAD    8  /* what follows it in the MADT, before the entries */

/* For cmocka. */
int acpi_make_arena(void **state);
int acpi_set_up(void **state);

/* A table: header, then `n` bytes; checksum right. Returns where it is. acpi_table_sum() makes the checksum right
 * again, acpi_table_length() changes the length as well. */
uint8_t *acpi_table(const char *signature, const void *contents, uint32_t n);
void acpi_table_sum(uint8_t *table);
void acpi_table_length(uint8_t *table, uint32_t length);

/* Bytes of the arena in use, for what changes any of them. */
uint8_t *acpi_bytes(uint32_t *n);

uint32_t acpi_address(const void *p);
void put16(uint8_t *p, uint32_t v);
void put32(uint8_t *p, uint32_t v);
void put64(uint8_t *p, uint64_t v);

/* The root table, XSDT or RSDT, of these tables. */
uint8_t *acpi_root(bool wide, uint8_t *const *tables, unsigned count);

/* A root pointer of this revision, in the arena; `rsdt` and `xsdt` may be NULL. */
uint8_t *acpi_rsdp(uint8_t revision, const uint8_t *rsdt, const uint8_t *xsdt);
void acpi_rsdp_sum(uint8_t *rsdp);

/* The areas of a BIOS that are searched: 128 KiB from 0xe0000, 1 KiB from 0x9fc00. */
extern uint8_t bios_area[0x20000], ebda_area[0x400];

/* Starts anew on what is there. */
bool acpi_start(uint64_t rsdp);

/* ---- ports, and interrupts ---- */

struct port_write {
    uint16_t port;
    uint32_t value;
    unsigned width;
};
extern struct acpi_machine {
    uint16_t port[65536];
    struct port_write write[32];
    unsigned writes, reads;
    uint16_t smi_port;  /* firmware: on this value at this port */
    uint8_t smi_value;  /* it sets SCI_EN in the register at `control`, */
    unsigned smi_delay; /* after so many reads; UINT32_MAX: never */
    uint16_t control;
    void (*handler)(void *argument); /* of VECTOR_SCI */
    void *argument;
    uint32_t gsi; /* routed there */
    bool routed, level, low, refuses_route;
} machine;
#endif

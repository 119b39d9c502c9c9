/* ACPI tables: what start-up needs of RSDP, MADT, FADT, MCFG, HPET and the DSDT's _S5_ (ACPI 6.4, 5.2; PCI
 * Firmware 3.2, 4.1.2). */
#ifndef RINGSIDE_ACPI_H
#define RINGSIDE_ACPI_H
#include <stdbool.h>
#include <stdint.h>

#define ACPI_MAX_CORES   64
#define ACPI_MAX_IOAPICS 8

struct acpi {
    unsigned core_count;           /* usable processors, the one that booted among them */
    uint32_t core[ACPI_MAX_CORES]; /* APIC ids */
    unsigned ioapic_count;
    struct {
        uint64_t address;
        uint32_t first_gsi;
    } ioapic[ACPI_MAX_IOAPICS];
    uint64_t lapic; /* address of the xAPIC's registers */
    uint64_t ecam;  /* PCI segment 0's configuration space, 0: none */
    uint8_t ecam_first_bus, ecam_last_bus;
    uint64_t hpet;     /* 0: none */
    uint16_t pm_timer; /* I/O port, 0: none */
    uint16_t pm1a_event, pm1a_control, pm1b_control, smi_command;
    uint8_t acpi_enable, pm1_event_length;
    uint32_t sci_gsi; /* ACPI's own interrupt, after the MADT's overrides */
    bool sci_level, sci_low;
    bool has_s5;
    uint8_t s5a, s5b; /* sleep types that switch the power off */
};

/* Reads the tables. `rsdp` 0: it is searched for where a BIOS puts it. Returns false when there are none; the defaults
 * are set then (one core, xAPIC at 0xfee00000). A table with a bad checksum or an impossible length is passed over and
 * named on the console. */
bool acpi_init(uint64_t rsdp);

const struct acpi *acpi_tables(void);

/* Switches the machine off; returns if that cannot be done or takes a moment. */
void acpi_power_off(void);

/* Lets the power button raise VECTOR_SCI; acpi_power_button() then tells whether it was pressed. Returns false if there
 * is none. */
bool acpi_power_button_init(void);
bool acpi_power_button(void);
#endif

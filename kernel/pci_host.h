/* The machine's PCI host: how configuration space is reached here, and MSI-X. */
#ifndef RINGSIDE_PCI_HOST_H
#define RINGSIDE_PCI_HOST_H
#include <stdbool.h>
#include <stdint.h>
#include "kernel/pci.h"

/* ECAM where the MCFG table gives it and bus 0 answers there, else ports 0xcf8/0xcfc. */
const struct pci_access *pci_host(void);

/* "ecam" or "ports", for the console. */
const char *pci_host_name(void);

/* Makes `length` bytes from `offset` in BAR `index` reachable, and what shares pages with them. NULL: no such memory
 * BAR, not assigned, not so long, or not mappable. */
volatile char *pci_map_window(const struct pci_device *dev, unsigned index, uint64_t offset, uint64_t length);

/* The device's MSI-X table (PCI 3.0, 6.8.2), mapped, with MSI-X off. */
struct msix {
    const struct pci_device *dev;
    uint8_t capability;
    uint16_t count; /* vectors the device has; 0: none, use INTx */
    volatile char *table;
};

/* Finds and maps the table; msix->count is 0 when there is none or it makes no sense (the reason is on the console). */
void msix_init(struct msix *msix, const struct pci_device *dev);

/* Sets entry `index` to interrupt `vector` of the core with that APIC id, and unmasks it. */
void msix_set(const struct msix *msix, uint16_t index, uint32_t apic_id, uint8_t vector);

/* Switches MSI-X on or off; all entries that were not set stay masked. */
void msix_enable(const struct msix *msix, bool on);
#endif

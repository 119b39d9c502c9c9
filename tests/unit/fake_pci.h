/* A PCI configuration space in memory: any functions, with BARs that can be sized, and a status register whose bits are
 * cleared by writing ones. It watches how it is used. */
#ifndef RINGSIDE_FAKE_PCI_H
#define RINGSIDE_FAKE_PCI_H
#include <stdbool.h>
#include <stdint.h>
#include "kernel/pci.h"

#define FAKE_PCI_MAX 600

struct fake_function {
    uint16_t bdf;
    uint8_t space[256];
    uint8_t writable[256]; /* bits that a write changes */
};

struct fake_pci {
    struct fake_function function[FAKE_PCI_MAX];
    unsigned count;
    struct pci_access access;
    /* Counted while it is used: */
    unsigned reads, writes, bar_writes;
    unsigned bar_writes_decoding; /* a BAR was written while its device decoded that kind of address */
    unsigned status_writes;       /* a write touched the status register */
    unsigned misaligned;          /* offset not a multiple of the width, or a width other than 1, 2, 4 */
};

void fake_pci_init(struct fake_pci *pci);

/* Adds a function with a header of `type` (HEADER_MULTIFUNCTION included); status 0xf900 (all the bits that ones
 * clear). */
struct fake_function *fake_pci_add(struct fake_pci *pci, unsigned bus, unsigned dev, unsigned fn, uint16_t vendor,
                                   uint8_t type);

/* The same for a bridge to bus `secondary`. */
struct fake_function *fake_pci_bridge(struct fake_pci *pci, unsigned bus, unsigned dev, unsigned fn, uint8_t secondary);

/* Sets a configuration register of `width` bytes, and which of its bits can be written. */
void fake_pci_set(struct fake_function *f, unsigned offset, unsigned width, uint32_t value, uint32_t writable);

uint32_t fake_pci_get(const struct fake_function *f, unsigned offset, unsigned width);
#endif

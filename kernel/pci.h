/* PCI: configuration space, the walk over buses, BARs and capability lists (PCI Local Bus 3.0; PCI-to-PCI Bridge 1.2;
 * PCI Express Base 3.0, 7.2.2 for ECAM). Compiles on the host, where `struct pci_access` is a fake.
 *
 * A device's place is a bdf: bus << 8 | device << 3 | function. Only one PCI segment (0) is looked at. */
#ifndef RINGSIDE_PCI_H
#define RINGSIDE_PCI_H
#include <stdbool.h>
#include <stdint.h>

/* How configuration space is reached. width is 1, 2 or 4 bytes; offset is a multiple of it. Reading where nothing is
 * gives ones. */
struct pci_access {
    uint32_t (*read)(void *context, uint16_t bdf, uint16_t offset, unsigned width);
    void (*write)(void *context, uint16_t bdf, uint16_t offset, unsigned width, uint32_t value);
    void *context;
    uint16_t space; /* bytes of configuration space reached per function: 256 (ports) or 4096 (ECAM) */
};

struct pci_bar {
    uint64_t addr; /* 0: not assigned */
    uint64_t size; /* bytes; 0: there is no such BAR */
    bool io, is64, prefetchable;
};

struct pci_device {
    const struct pci_access *access;
    uint16_t bdf;
    uint16_t vendor, device, subsystem_vendor, subsystem;
    uint8_t revision, header_type;
    uint32_t class_code; /* class << 16 | subclass << 8 | programming interface */
    uint8_t irq_pin, irq_line;
    struct pci_bar bar[6]; /* filled by pci_size_bars() */
};

/* Calls visit() for each function behind bus 0 (bridges are followed into their secondary buses, each bus at most once,
 * whatever the bridges claim). The walk ends early when visit() returns false. Returns the number of functions visited.
 * Only the header is read: BARs are not sized here. */
unsigned pci_walk(const struct pci_access *access, bool (*visit)(void *context, const struct pci_device *dev),
                  void *context);

/* Fills dev->bar[] with address and size. Sizing writes ones to the BARs, so memory and I/O decoding are switched off
 * meanwhile and put back (a device that decoded 0xffff0000 for a moment could shadow the interrupt controller).
 * Impossible values (size not a power of two, a 64-bit BAR in the last register) leave size 0. (PCI 3.0, 6.2.5.1) */
void pci_size_bars(struct pci_device *dev);

/* Offset of the first capability `id` after offset `after` (0: from the start), or 0. At most 48 entries are followed;
 * pointers into the header or unaligned end the walk. (PCI 3.0, 6.7) */
uint8_t pci_find_capability(const struct pci_device *dev, uint8_t id, uint8_t after);

/* Sets and clears bits of the command register; the status register beside it is not touched. */
void pci_command(const struct pci_device *dev, uint16_t set, uint16_t clear);

static inline uint32_t pci_read(const struct pci_device *dev, uint16_t offset, unsigned width)
{
    return dev->access->read(dev->access->context, dev->bdf, offset, width);
}

static inline void pci_write(const struct pci_device *dev, uint16_t offset, unsigned width, uint32_t value)
{
    dev->access->write(dev->access->context, dev->bdf, offset, width, value);
}

#define PCI_COMMAND              0x04
#define PCI_COMMAND_IO           0x001
#define PCI_COMMAND_MEMORY       0x002
#define PCI_COMMAND_MASTER       0x004
#define PCI_COMMAND_INTX_DISABLE 0x400
#define PCI_STATUS               0x06
#define PCI_STATUS_CAP_LIST      0x10
#define PCI_CAP_VENDOR           0x09
#define PCI_CAP_MSIX             0x11
#endif

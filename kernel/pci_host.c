#include <stddef.h>
#include "kernel/acpi.h"
#include "kernel/apic.h"
#include "kernel/console.h"
#include "kernel/paging.h"
#include "kernel/pci_host.h"
#include "kernel/x86.h"

#define MSIX_CONTROL  2
#define MSIX_TABLE    4
#define MSIX_ENABLE   0x8000u
#define MSIX_MASK_ALL 0x4000u
#define MSIX_ENTRY    16u

static uint32_t ports_read(void *context, uint16_t bdf, uint16_t offset, unsigned width)
{
    (void)context;
    if (offset > 255)
        return UINT32_MAX;
    outl(0xcf8, 0x80000000u | (uint32_t)bdf << 8 | (offset & 0xfcu));
    uint16_t port = (uint16_t)(0xcfc + (offset & 3));
    return width == 4 ? inl(port) : width == 2 ? inw(port) : inb(port);
}

static void ports_write(void *context, uint16_t bdf, uint16_t offset, unsigned width, uint32_t value)
{
    (void)context;
    if (offset > 255)
        return;
    outl(0xcf8, 0x80000000u | (uint32_t)bdf << 8 | (offset & 0xfcu));
    uint16_t port = (uint16_t)(0xcfc + (offset & 3));
    if (width == 4)
        outl(port, value);
    else if (width == 2)
        outw(port, (uint16_t)value);
    else
        outb(port, (uint8_t)value);
}

/* A function's 4 KiB of the ECAM, mapped when it is first looked at (PCIe 3.0, 7.2.2). */
static volatile char *ecam_at(uint16_t bdf, uint16_t offset)
{
    const struct acpi *acpi = acpi_tables();
    unsigned bus = bdf >> 8;
    if (bus < acpi->ecam_first_bus || bus > acpi->ecam_last_bus || offset > 4095)
        return NULL;
    uint64_t at = acpi->ecam + ((uint64_t)bdf << 12);
    volatile char *p = paging_map_mmio(at, 4096);
    return p != NULL ? p + offset : NULL;
}

static uint32_t ecam_read(void *context, uint16_t bdf, uint16_t offset, unsigned width)
{
    (void)context;
    volatile char *p = ecam_at(bdf, offset);
    if (p == NULL)
        return UINT32_MAX;
    return width == 4 ? mmio_read32(p) : width == 2 ? mmio_read16(p) : mmio_read8(p);
}

static void ecam_write(void *context, uint16_t bdf, uint16_t offset, unsigned width, uint32_t value)
{
    (void)context;
    volatile char *p = ecam_at(bdf, offset);
    if (p == NULL)
        return;
    if (width == 4)
        mmio_write32(p, value);
    else if (width == 2)
        mmio_write16(p, (uint16_t)value);
    else
        mmio_write8(p, (uint8_t)value);
}

static const struct pci_access ports = { ports_read, ports_write, NULL, 256 };
static const struct pci_access ecam = { ecam_read, ecam_write, NULL, 4096 };
static const struct pci_access *host;

const struct pci_access *pci_host(void)
{
    if (host != NULL)
        return host;
    host = &ports;
    if (acpi_tables()->ecam != 0 && ecam_read(NULL, 0, 0, 4) != UINT32_MAX &&
        ecam_read(NULL, 0, 0, 4) == ports_read(NULL, 0, 0, 4))
        host = &ecam;
    return host;
}

const char *pci_host_name(void)
{
    return pci_host() == &ecam ? "ecam" : "ports";
}

volatile char *pci_map_window(const struct pci_device *dev, unsigned index, uint64_t offset, uint64_t length)
{
    if (index > 5 || dev->bar[index].io || dev->bar[index].addr == 0 || length == 0 || offset > dev->bar[index].size ||
        length > dev->bar[index].size - offset)
        return NULL;
    return paging_map_mmio(dev->bar[index].addr + offset, length);
}

void msix_init(struct msix *msix, const struct pci_device *dev)
{
    *msix = (struct msix){ .dev = dev, .capability = pci_find_capability(dev, PCI_CAP_MSIX, 0) };
    if (msix->capability == 0)
        return;
    uint16_t control = (uint16_t)pci_read(dev, (uint16_t)(msix->capability + MSIX_CONTROL), 2);
    uint16_t count = (uint16_t)((control & 0x7ff) + 1);
    uint32_t where = pci_read(dev, (uint16_t)(msix->capability + MSIX_TABLE), 4);
    volatile char *table = pci_map_window(dev, where & 7, where & ~7u, (uint64_t)count * MSIX_ENTRY);
    if (table == NULL) {
        log_warn("pci",
                 "MSI-X table of %u entries at BAR %u offset %x does not lie in the BAR (%llx bytes): INTx is used",
                 count, where & 7, where & ~7u, (where & 7) < 6 ? (unsigned long long)dev->bar[where & 7].size : 0ull);
        return;
    }
    msix->table = table;
    msix->count = count;
    msix_enable(msix, false);
}

void msix_set(const struct msix *msix, uint16_t index, uint32_t apic_id, uint8_t vector)
{
    volatile char *entry = msix->table + (size_t)index * MSIX_ENTRY;
    uint64_t address = lapic_msi_address(apic_id);
    mmio_write32(entry + 12, mmio_read32(entry + 12) | 1); /* masked while it changes (6.8.2.9) */
    mmio_write32(entry, (uint32_t)address);
    mmio_write32(entry + 4, (uint32_t)(address >> 32));
    mmio_write32(entry + 8, lapic_msi_data(vector));
    mmio_write32(entry + 12, mmio_read32(entry + 12) & ~1u);
}

void msix_enable(const struct msix *msix, bool on)
{
    uint16_t at = (uint16_t)(msix->capability + MSIX_CONTROL);
    uint16_t control = (uint16_t)(pci_read(msix->dev, at, 2) & ~(MSIX_ENABLE | MSIX_MASK_ALL));
    pci_write(msix->dev, at, 2, on ? control | MSIX_ENABLE : control);
}

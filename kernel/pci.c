/* PCI: the walk over buses, BAR sizing, capability lists. No access method here: see struct pci_access. Compiles on the
 * host. */
#include "kernel/pci.h"

#include <stddef.h>

/* Configuration header offsets (PCI 3.0, 6.1; bridge 1.2, 3.2). */
#define REG_ID          0x00
#define REG_REVISION    0x08
#define REG_HEADER_TYPE 0x0e
#define REG_BAR0        0x10
#define REG_SECONDARY   0x19
#define REG_SUBSYSTEM   0x2c
#define REG_CAPABILITY  0x34
#define REG_IRQ_LINE    0x3c
#define REG_IRQ_PIN     0x3d

#define HEADER_MULTIFUNCTION 0x80
#define HEADER_TYPE_MASK     0x7f
#define HEADER_DEVICE        0
#define HEADER_BRIDGE        1

#define BAR_IO         0x1
#define BAR_TYPE_MASK  0x6
#define BAR_TYPE_32    0x0
#define BAR_TYPE_1M    0x2 /* below 1 MiB: older than PCI 3.0, sized like any 32-bit BAR */
#define BAR_TYPE_64    0x4
#define BAR_PREFETCH   0x8
#define BAR_IO_FLAGS   0x3u
#define BAR_MEM_FLAGS  0xfu
#define HEADER_SIZE    0x40
#define BUSES          256
#define FUNCTIONS      256 /* per bus: 32 devices of 8 functions */
#define CAPABILITY_MAX 48  /* what fits behind the header at 4 bytes each */

/* A set of bus numbers. */
struct bus_set {
    uint8_t bits[BUSES / 8];
};

static bool bus_in(const struct bus_set *set, unsigned bus)
{
    return set->bits[bus / 8] & 1u << bus % 8;
}

static void bus_add(struct bus_set *set, unsigned bus)
{
    set->bits[bus / 8] |= (uint8_t)(1u << bus % 8);
}

/* The lowest bus that is known and not done, or BUSES. */
static unsigned next_bus(const struct bus_set *known, const struct bus_set *done)
{
    unsigned bus = 0;

    while (bus < BUSES && (!bus_in(known, bus) || bus_in(done, bus)))
        bus++;
    return bus;
}

/* Reads the header of one function. False: nothing is there. A vendor of 0 is given to no one, and is what a half-dead
 * bus reads as. */
static bool read_header(const struct pci_access *access, uint16_t bdf, struct pci_device *dev)
{
    *dev = (struct pci_device){ .access = access, .bdf = bdf };
    uint32_t id = pci_read(dev, REG_ID, 4);

    if ((id & 0xffff) == 0xffff || (id & 0xffff) == 0)
        return false;
    dev->vendor = (uint16_t)id;
    dev->device = (uint16_t)(id >> 16);
    uint32_t class_revision = pci_read(dev, REG_REVISION, 4);
    dev->revision = (uint8_t)class_revision;
    dev->class_code = class_revision >> 8;
    dev->header_type = (uint8_t)pci_read(dev, REG_HEADER_TYPE, 1);
    dev->irq_line = (uint8_t)pci_read(dev, REG_IRQ_LINE, 1);
    dev->irq_pin = (uint8_t)pci_read(dev, REG_IRQ_PIN, 1);
    if ((dev->header_type & HEADER_TYPE_MASK) == HEADER_DEVICE) {
        uint32_t subsystem = pci_read(dev, REG_SUBSYSTEM, 4);
        dev->subsystem_vendor = (uint16_t)subsystem;
        dev->subsystem = (uint16_t)(subsystem >> 16);
    }
    return true;
}

unsigned pci_walk(const struct pci_access *access, bool (*visit)(void *context, const struct pci_device *dev),
                  void *context)
{
    struct bus_set known = { { 0 } }; /* bus 0 and every bus that a bridge has named */
    struct bus_set done = { { 0 } };
    struct pci_device dev;
    unsigned visited = 0;

    bus_add(&known, 0);
    /* Each bus is done once, so that the walk ends even if bridges name their own bus, or each other's. */
    for (unsigned bus = 0; bus < BUSES; bus = next_bus(&known, &done)) {
        bus_add(&done, bus);
        for (unsigned devfn = 0; devfn < FUNCTIONS; devfn++) {
            if (!read_header(access, (uint16_t)(bus << 8 | devfn), &dev)) {
                if (devfn % 8 == 0)
                    devfn += 7; /* no function 0: no device */
                continue;
            }
            visited++;
            if (!visit(context, &dev))
                return visited;
            if ((dev.header_type & HEADER_TYPE_MASK) == HEADER_BRIDGE)
                bus_add(&known, pci_read(&dev, REG_SECONDARY, 1) & 0xff);
            if (devfn % 8 == 0 && !(dev.header_type & HEADER_MULTIFUNCTION))
                devfn += 7;
        }
    }
    return visited;
}

/* Writes ones to a BAR register, reads what sticks, puts the old value back. */
static uint32_t probe(const struct pci_device *dev, uint16_t offset, uint32_t old)
{
    pci_write(dev, offset, 4, UINT32_MAX);
    uint32_t mask = pci_read(dev, offset, 4);
    pci_write(dev, offset, 4, old);
    return mask;
}

/* Fills in size and address, if the size can be true: a power of two. (The address is then a multiple of it: what a
 * write of ones cannot change counts as size.) */
static void accept(struct pci_bar *bar, uint64_t size, uint64_t addr)
{
    if (size == 0 || (size & (size - 1)))
        return;
    bar->size = size;
    bar->addr = addr;
}

static void size_io_bar(const struct pci_device *dev, uint16_t offset, uint32_t old, struct pci_bar *bar)
{
    uint32_t mask = probe(dev, offset, old) & ~BAR_IO_FLAGS;

    bar->io = true;
    if (mask == 0)
        return;
    if (!(mask & 0xffff0000))
        mask |= 0xffff0000; /* the upper half may be wired to 0: x86 has 16 bits of I/O space (6.2.5.1) */
    accept(bar, ~mask + 1u, old & ~BAR_IO_FLAGS);
}

/* Sizes BAR `i` of `count`; returns how many registers it takes. */
static unsigned size_bar(struct pci_device *dev, unsigned i, unsigned count)
{
    struct pci_bar *bar = &dev->bar[i];
    uint16_t offset = (uint16_t)(REG_BAR0 + 4 * i);
    uint32_t old = pci_read(dev, offset, 4);

    if (old == UINT32_MAX) /* the device has gone, or this is no BAR */
        return 1;
    if (old & BAR_IO) {
        size_io_bar(dev, offset, old, bar);
        return 1;
    }
    uint32_t type = old & BAR_TYPE_MASK;
    uint64_t mask = probe(dev, offset, old) & ~BAR_MEM_FLAGS;
    uint64_t addr = old & ~BAR_MEM_FLAGS;

    bar->prefetchable = old & BAR_PREFETCH;
    if (type == BAR_TYPE_64) {
        bar->is64 = true;
        if (i + 1 == count)
            return 1;
        uint32_t old_high = pci_read(dev, (uint16_t)(offset + 4), 4);
        mask |= (uint64_t)probe(dev, (uint16_t)(offset + 4), old_high) << 32;
        addr |= (uint64_t)old_high << 32;
        if (mask)
            accept(bar, ~mask + 1, addr);
        return 2;
    }
    if (mask && (type == BAR_TYPE_32 || type == BAR_TYPE_1M))
        accept(bar, (uint32_t)(~mask + 1), addr);
    return 1;
}

void pci_size_bars(struct pci_device *dev)
{
    unsigned type = dev->header_type & HEADER_TYPE_MASK;
    unsigned count = type == HEADER_DEVICE ? 6 : type == HEADER_BRIDGE ? 2 : 0;

    for (unsigned i = 0; i < 6; i++)
        dev->bar[i] = (struct pci_bar){ 0 };
    uint16_t command = (uint16_t)pci_read(dev, PCI_COMMAND, 2);

    pci_write(dev, PCI_COMMAND, 2, command & ~(uint32_t)(PCI_COMMAND_IO | PCI_COMMAND_MEMORY));
    for (unsigned i = 0; i < count;)
        i += size_bar(dev, i, count);
    pci_write(dev, PCI_COMMAND, 2, command);
}

uint8_t pci_find_capability(const struct pci_device *dev, uint8_t id, uint8_t after)
{
    uint64_t seen = 0; /* one bit for each aligned offset: the list may run in circles */
    bool past = after == 0;

    if (!(pci_read(dev, PCI_STATUS, 2) & PCI_STATUS_CAP_LIST) || (dev->header_type & HEADER_TYPE_MASK) > HEADER_BRIDGE)
        return 0;
    uint8_t at = (uint8_t)pci_read(dev, REG_CAPABILITY, 1);
    /* Always from the start, even for `after`: a caller that goes from one to the next ends too when the list runs in
     * circles. */
    for (unsigned n = 0; n < CAPABILITY_MAX; n++) {
        if (at < HEADER_SIZE || at % 4 || seen & 1ull << at / 4)
            return 0;
        seen |= 1ull << at / 4;
        if (past && (uint8_t)pci_read(dev, at, 1) == id)
            return at;
        past = past || at == after;
        at = (uint8_t)pci_read(dev, (uint16_t)(at + 1), 1);
    }
    return 0;
}

void pci_command(const struct pci_device *dev, uint16_t set, uint16_t clear)
{
    uint32_t command = pci_read(dev, PCI_COMMAND, 2);

    /* Two bytes only: the status register above it has bits that are cleared by writing ones. */
    pci_write(dev, PCI_COMMAND, 2, (command & ~(uint32_t)clear) | set);
}

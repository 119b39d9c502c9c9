/* A PCI configuration space in memory. See fake_pci.h. */
#include "tests/unit/fake_pci.h"

#include <string.h>

#define COMMAND 0x04
#define STATUS  0x06

static struct fake_function *find(struct fake_pci *pci, uint16_t bdf)
{
    for (unsigned i = 0; i < pci->count; i++) {
        if (pci->function[i].bdf == bdf)
            return &pci->function[i];
    }
    return NULL;
}

static bool aligned(struct fake_pci *pci, uint16_t offset, unsigned width)
{
    bool good = (width == 1 || width == 2 || width == 4) && offset % width == 0 && offset + width <= 256;

    pci->misaligned += !good;
    return good;
}

static uint32_t read_space(void *context, uint16_t bdf, uint16_t offset, unsigned width)
{
    struct fake_pci *pci = context;
    struct fake_function *f = find(pci, bdf);

    pci->reads++;
    if (!aligned(pci, offset, width) || !f)
        return width == 4 ? UINT32_MAX : (1u << 8 * width) - 1;
    return fake_pci_get(f, offset, width);
}

static void watch_bar(struct fake_pci *pci, const struct fake_function *f, uint16_t offset)
{
    unsigned bars = (f->space[0x0e] & 0x7f) == 0 ? 6 : (f->space[0x0e] & 0x7f) == 1 ? 2 : 0;
    uint8_t command = f->space[COMMAND];

    if (offset < 0x10 || offset >= 0x10 + 4 * bars)
        return;
    pci->bar_writes++;
    pci->bar_writes_decoding += (command & 3) != 0;
}

static void write_space(void *context, uint16_t bdf, uint16_t offset, unsigned width, uint32_t value)
{
    struct fake_pci *pci = context;
    struct fake_function *f = find(pci, bdf);

    pci->writes++;
    if (!aligned(pci, offset, width) || !f)
        return;
    watch_bar(pci, f, offset);
    for (unsigned i = 0; i < width; i++) {
        uint8_t byte = (uint8_t)(value >> 8 * i), *at = &f->space[offset + i], mask = f->writable[offset + i];

        if (offset + i == STATUS || offset + i == STATUS + 1) {
            pci->status_writes++;
            *at &= (uint8_t) ~(byte & mask);
        } else {
            *at = (uint8_t)((*at & ~mask) | (byte & mask));
        }
    }
}

void fake_pci_init(struct fake_pci *pci)
{
    memset(pci, 0, sizeof(*pci));
    pci->access = (struct pci_access){ .read = read_space, .write = write_space, .context = pci, .space = 256 };
}

void fake_pci_set(struct fake_function *f, unsigned offset, unsigned width, uint32_t value, uint32_t writable)
{
    for (unsigned i = 0; i < width; i++) {
        f->space[offset + i] = (uint8_t)(value >> 8 * i);
        f->writable[offset + i] = (uint8_t)(writable >> 8 * i);
    }
}

uint32_t fake_pci_get(const struct fake_function *f, unsigned offset, unsigned width)
{
    uint32_t value = 0;

    for (unsigned i = width; i-- > 0;)
        value = value << 8 | f->space[offset + i];
    return value;
}

struct fake_function *fake_pci_add(struct fake_pci *pci, unsigned bus, unsigned dev, unsigned fn, uint16_t vendor,
                                   uint8_t type)
{
    struct fake_function *f = &pci->function[pci->count++];

    f->bdf = (uint16_t)(bus << 8 | dev << 3 | fn);
    fake_pci_set(f, 0x00, 2, vendor, 0);
    fake_pci_set(f, 0x02, 2, 0x1000u + pci->count, 0);
    fake_pci_set(f, COMMAND, 2, 0, 0x0547);
    fake_pci_set(f, STATUS, 2, 0xf900, 0xf900);
    fake_pci_set(f, 0x0e, 1, type, 0);
    return f;
}

struct fake_function *fake_pci_bridge(struct fake_pci *pci, unsigned bus, unsigned dev, unsigned fn, uint8_t secondary)
{
    struct fake_function *f = fake_pci_add(pci, bus, dev, fn, 0x1b36, 1);

    fake_pci_set(f, 0x08, 4, 0x06040000, 0);
    fake_pci_set(f, 0x18, 4, 0xff000000u | (uint32_t)secondary << 8 | bus, 0x00ffffff);
    return f;
}

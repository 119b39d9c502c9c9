/* A modern virtio device on PCI, and the transport that drives it. See modern_rig.h. */
#include "tests/unit/modern_rig.h"

#define RINGSIDE_X86_H
static uint32_t fake_read(const volatile void *at, unsigned width);
static void fake_write(volatile void *at, unsigned width, uint32_t value);
#define mmio_read8(p)      ((uint8_t)fake_read(p, 1))
#define mmio_read16(p)     ((uint16_t)fake_read(p, 2))
#define mmio_read32(p)     fake_read(p, 4)
#define mmio_write8(p, v)  fake_write(p, 1, v)
#define mmio_write16(p, v) fake_write(p, 2, v)
#define mmio_write32(p, v) fake_write(p, 4, v)
#include "drivers/virtio/pci_modern.c"

struct modern_rig modern;
static const uint32_t bar_size[6] = { [0] = BAR_SIZE, [4] = BAR_SIZE };
static char rings[3 * 4096] __attribute__((aligned(4096)));

/* ---- registers ---- */

uint8_t modern_config_byte(uint32_t i)
{
    if (modern.dev.config)
        return modern.dev.config[i];
    return (uint8_t)(i * 7 + modern.dev.generation * 29 + 1);
}

/* The configuration may change behind each access. */
static uint32_t read_config(uint32_t at, unsigned width)
{
    struct modern_device *dev = &modern.dev;
    uint32_t value = 0;

    dev->config_reads++;
    for (unsigned i = 0; i < width; i++) {
        value |= (uint32_t)modern_config_byte(at + i) << 8 * i;
        dev->config_touched |= at + i < 64 ? 1ull << (at + i) : 0;
    }
    dev->generation = (uint8_t)(dev->generation + (dev->changes_left > 0));
    if (dev->changes_left > 0 && dev->changes_left != UINT32_MAX)
        dev->changes_left--;
    return value;
}

/* The registers of the common structure, by offset; each has one width (4.1.4.3). 64-bit ones have two halves. */
static unsigned width_of(uint32_t at)
{
    return at < 16 || at >= 32 ? 4 : at == 20 || at == 21 ? 1 : 2;
}

static struct modern_queue *selected(void)
{
    static struct modern_queue none;

    none = (struct modern_queue){ .vector = 0xffff };
    return modern.dev.queue_select < modern.dev.queue_count ? &modern.dev.queue[modern.dev.queue_select] : &none;
}

static uint32_t half(uint64_t value, uint32_t which)
{
    return which < 2 ? (uint32_t)(value >> 32 * which) : 0;
}

static uint32_t read_register(uint32_t at)
{
    struct modern_device *dev = &modern.dev;

    switch (at) {
    case 4:
        return dev->offer_select >= 2 && dev->offers_beyond ? UINT32_MAX : half(dev->offered, dev->offer_select);
    case 16:
        return dev->config_vector;
    case 18:
        return dev->queue_count;
    case 20:
        return dev->status;
    case 21:
        dev->generation_reads++;
        return dev->generation;
    case 24:
        return selected()->size;
    case 26:
        return selected()->vector;
    case 30:
        return selected()->notify_off;
    default:
        fail_msg("a read of the register at %u", at);
        return 0;
    }
}

static void write_area(struct modern_queue *q, uint32_t at, uint32_t value)
{
    uint64_t *area = &q->area[(at - 32) / 8];

    check(at % 4 == 0 && at >= 32 && at < COMMON_LENGTH, "no register at %u", at);
    *area = at % 8 ? (uint32_t)*area | (uint64_t)value << 32 : (*area & ~0xffffffffull) | value;
}

static void write_register(uint32_t at, uint32_t value)
{
    struct modern_device *dev = &modern.dev;
    struct modern_queue *q = selected();

    check(at < 24 || !q->enabled, "the register at %u changes while the queue is enabled", at);
    if (dev->log_count < MODERN_LOG)
        dev->log[dev->log_count++] = (struct modern_write){ (uint16_t)at, value };
    switch (at) {
    case 0:
        dev->offer_select = value;
        return;
    case 8:
        dev->accept_select = value;
        return;
    case 12:
        if (dev->accept_select < 2)
            dev->accepted = dev->accept_select ? (uint32_t)dev->accepted | (uint64_t)value << 32
                                               : (dev->accepted & ~0xffffffffull) | value;
        return;
    case 16:
        dev->config_vector = dev->loses_config_vector ? 0xffff : (uint16_t)value;
        return;
    case 20:
        if (dev->on_status)
            dev->on_status((uint8_t)value);
        dev->status = (uint8_t)value;
        return;
    case 22:
        dev->queue_select = (uint16_t)value;
        return;
    case 24:
        q->size = dev->loses_size ? 256 : (uint16_t)value;
        return;
    case 26:
        q->vector = dev->loses_vector ? 0xffff : (uint16_t)value;
        return;
    case 28:
        check(value == 1 && ((q->area[0] && q->area[1] && q->area[2]) || dev->queue_select >= dev->queue_count),
              "queue_enable %u, not all areas set", value);
        q->enabled = true;
        return;
    default:
        write_area(q, at, value);
    }
}

/* Where in BAR 4: the transport's structures lie nowhere else when registers are used. */
static uint32_t place(const volatile void *p, unsigned width)
{
    uintptr_t at = (uintptr_t)p - (uintptr_t)modern.bar[4];

    modern.dev.accesses++;
    check(at + width <= BAR_SIZE, "an access outside of the BAR");
    check(modern_mapped(4, (uint32_t)at, width), "an access to what is not mapped, at %lx", (unsigned long)at);
    modern.dev.misfits += at < COMMON_LENGTH && width != width_of((uint32_t)at);
    return (uint32_t)at;
}

static uint32_t read_at(uint32_t at, unsigned width)
{
    uint32_t isr = modern.dev.isr;

    if (at < COMMON_LENGTH)
        return read_register(at);
    if (at >= DEVICE_AT && at < DEVICE_AT + 0x1000)
        return read_config(at - DEVICE_AT, width);
    check(at == ISR_AT && width == 1, "a read of %u bytes at %x", width, at);
    modern.dev.isr_reads++;
    modern.dev.isr = 0; /* reading acknowledges (4.1.4.5) */
    return isr;
}

static uint32_t fake_read(const volatile void *p, unsigned width)
{
    uint32_t at = place(p, width), value = read_at(at, width);

    return modern.dev.on_read ? modern.dev.on_read(at, width, value) : value;
}

static void fake_write(volatile void *p, unsigned width, uint32_t value)
{
    uint32_t at = place(p, width);

    check(at < COMMON_LENGTH, "a write of %u bytes at %x", width, at);
    write_register(at, value);
}

/* ---- what kernel/pci_host.c is linked with ---- */

const struct acpi *acpi_tables(void);
const struct acpi *acpi_tables(void)
{
    return NULL;
}

/* The processor's address is the BAR's; what is asked for is mapped, and noted. */
volatile void *paging_map_mmio(uint64_t address, uint64_t size);
volatile void *paging_map_mmio(uint64_t address, uint64_t size)
{
    if (size == 0)
        return NULL;
    check(modern.window_count < MODERN_WINDOWS, "%u mappings", modern.window_count);
    modern.window[modern.window_count++] = (struct modern_window){ address, size };
    return (volatile void *)(uintptr_t)address;
}

bool modern_mapped(unsigned bar, uint32_t at, uint32_t size)
{
    uint64_t start = (uintptr_t)modern.bar[bar] + at;

    for (unsigned i = 0; i < modern.window_count; i++) {
        if (modern.window[i].start <= start && start + size <= modern.window[i].start + modern.window[i].size)
            return true;
    }
    return false;
}

/* For MSI-X entries. */
uint64_t lapic_msi_address(uint32_t apic_id);
uint64_t lapic_msi_address(uint32_t apic_id)
{
    return 0xfee00000 | (uint64_t)apic_id << 12;
}

uint32_t lapic_msi_data(uint8_t vector);
uint32_t lapic_msi_data(uint8_t vector)
{
    return vector;
}

/* ---- the device ---- */

int modern_make_bars(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        if (bar_size[i] && posix_memalign((void **)&modern.bar[i], bar_size[i], bar_size[i]))
            return -1;
    }
    return 0;
}

int modern_free_bars(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++)
        free(modern.bar[i]);
    return 0;
}

static void put_bar(unsigned i, uint32_t flags)
{
    uint64_t at = (uintptr_t)modern.bar[i];

    fake_pci_set(modern.function, 0x10 + 4 * i, 4, (uint32_t)at | flags, ~(bar_size[i] - 1));
    fake_pci_set(modern.function, 0x14 + 4 * i, 4, (uint32_t)(at >> 32), UINT32_MAX);
}

int modern_set_up(void **state)
{
    (void)state;
    memset(&modern.dev, 0, sizeof(modern.dev));
    modern.window_count = 0;
    memset(&modern.transport, 0x5a, sizeof(modern.transport));
    fake_pci_init(&modern.pci);
    fake_console_clear();
    modern.function = fake_pci_add(&modern.pci, 0, 3, 0, 0x1af4, 0);
    fake_pci_set(modern.function, 0x06, 2, 0xf910, 0xf900);
    put_bar(0, 0x4);
    put_bar(4, 0xc);
    fake_pci_set(modern.function, 0x18, 4, 0xc001, 0xffe0);
    fake_pci_set(modern.function, 0x1c, 4, 0, ~0xfffu);
    modern.next_cap = 0x40;
    modern.dev.queue_count = 3;
    for (unsigned i = 0; i < MODERN_QUEUES; i++)
        modern.dev.queue[i] = (struct modern_queue){ .size = 256, .vector = 0xffff, .notify_off = (uint16_t)i };
    return 0;
}

unsigned modern_add_cap(uint8_t id, uint8_t length)
{
    struct fake_function *f = modern.function;
    unsigned at = modern.next_cap, last = 0x33;

    while (fake_pci_get(f, last + 1, 1))
        last = fake_pci_get(f, last + 1, 1);
    fake_pci_set(f, last + 1, 1, at, 0);
    fake_pci_set(f, at, 1, id, 0);
    fake_pci_set(f, at + 1, 1, 0, 0);
    fake_pci_set(f, at + 2, 1, length, 0);
    modern.next_cap = at + ((length + 3u) & ~3u);
    return at;
}

unsigned modern_add_structure(uint8_t type, uint8_t bar_index, uint32_t offset, uint32_t length)
{
    unsigned at = modern_add_cap(0x09, type == CAP_NOTIFY || type == CAP_PCI ? 20 : 16);

    fake_pci_set(modern.function, at + 3, 1, type, 0);
    fake_pci_set(modern.function, at + 4, 1, bar_index, 0);
    fake_pci_set(modern.function, at + 8, 4, offset, 0);
    fake_pci_set(modern.function, at + 12, 4, length, 0);
    if (type == CAP_NOTIFY)
        fake_pci_set(modern.function, at + 16, 4, 4, 0);
    return at;
}

const struct good_structure good[TYPES + 1] = {
    [CAP_COMMON] = { 0, 0x1000, COMMON_LENGTH, 4, "common" },
    [CAP_NOTIFY] = { NOTIFY_AT, NOTIFY_LENGTH, 2, 2, "notification" },
    [CAP_ISR] = { ISR_AT, 0x1000, 1, 1, "ISR" },
    [CAP_DEVICE] = { DEVICE_AT, 0x1000, 1, 4, "device configuration" },
};

void modern_add_good(uint8_t type)
{
    modern_add_structure(type, 4, good[type].offset, good[type].length);
}

void modern_add_all_good_but(uint8_t without)
{
    for (uint8_t type = 1; type <= TYPES; type++) {
        if (type != without)
            modern_add_good(type);
    }
}

static bool keep_first(void *to, const struct pci_device *found)
{
    *(struct pci_device *)to = *found;
    return false;
}

void modern_find_device(void)
{
    assert_int_equal(pci_walk(&modern.pci.access, keep_first, &modern.device), 1);
    pci_size_bars(&modern.device);
}

const char *modern_init(void)
{
    modern_find_device();
    unsigned writes = modern.pci.writes;
    const char *wrong = virtio_pci_modern_init(&modern.transport, &modern.device);
    assert_int_equal(modern.pci.writes, writes);
    assert_int_equal(modern.pci.misaligned, 0);
    assert_int_equal(modern.dev.accesses, 0);
    check(modern.pci.reads < 20000, "%u reads", modern.pci.reads);
    return wrong;
}

void modern_check_good(void)
{
    const struct virtio_transport *t = &modern.transport;

    assert_ptr_equal(t->common, modern.bar[4]);
    assert_ptr_equal(t->isr, modern.bar[4] + ISR_AT);
    assert_ptr_equal(t->config, modern.bar[4] + DEVICE_AT);
    assert_ptr_equal(t->notify, modern.bar[4] + NOTIFY_AT);
    assert_int_equal(t->config_length, 0x1000);
    assert_int_equal(t->notify_length, NOTIFY_LENGTH);
    assert_int_equal(t->notify_multiplier, 4);
    assert_ptr_equal(t->pci, &modern.device);
    assert_true(t->ops->queue_size_free);
}

struct virtqueue modern_ring(uint16_t index, uint16_t size)
{
    return (struct virtqueue){ .index = index,
                               .size = size,
                               .desc = (struct vring_desc *)rings,
                               .avail = (struct vring_avail *)(rings + 4096),
                               .used = (struct vring_used *)(rings + 8192) };
}

uint64_t modern_area(unsigned i)
{
    return (uintptr_t)rings + 4096 * i;
}

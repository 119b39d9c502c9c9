/* PCI on a fake configuration space: which functions the walk visits, however bridges lie; BAR sizing; capability
 * lists. */
#include "tests/unit/unit.h"

#include "kernel/pci.h"
#include "tests/unit/fake_pci.h"

#define MULTI 0x80

static struct fake_pci pci;

/* The places that a walk visits, in order. */
struct visits {
    uint16_t bdf[FAKE_PCI_MAX];
    unsigned count, stop_after; /* 0: never */
    struct pci_device last;
};

static bool visit(void *context, const struct pci_device *dev)
{
    struct visits *v = context;

    check(v->count < FAKE_PCI_MAX, "the walk does not end");
    v->bdf[v->count++] = dev->bdf;
    v->last = *dev;
    return v->count != v->stop_after;
}

static struct visits walk(void)
{
    struct visits v = { .count = 0 };

    unsigned count = pci_walk(&pci.access, visit, &v);
    assert_int_equal(count, v.count);
    assert_int_equal(pci.writes, 0); /* looking changes nothing */
    assert_int_equal(pci.misaligned, 0);
    for (unsigned i = 0; i < v.count; i++) {
        for (unsigned j = 0; j < i; j++)
            check(v.bdf[i] != v.bdf[j], "%04x visited twice", v.bdf[i]);
    }
    return v;
}

static bool was_visited(const struct visits *v, unsigned bus, unsigned dev, unsigned fn)
{
    for (unsigned i = 0; i < v->count; i++) {
        if (v->bdf[i] == (bus << 8 | dev << 3 | fn))
            return true;
    }
    return false;
}

static int set_up(void **state)
{
    (void)state;
    fake_pci_init(&pci);
    return 0;
}

static void test_nothing_there(void **state)
{
    (void)state;
    assert_int_equal(walk().count, 0);
}

static void test_header(void **state)
{
    struct fake_function *f = fake_pci_add(&pci, 0, 3, 0, 0x1af4, 0);

    (void)state;
    fake_pci_set(f, 0x02, 2, 0x1041, 0);
    fake_pci_set(f, 0x08, 4, 0x02000001, 0);
    fake_pci_set(f, 0x2c, 4, 0x1100abcd, 0);
    fake_pci_set(f, 0x3c, 2, 0x010b, 0);
    struct visits v = walk();
    assert_int_equal(v.count, 1);
    assert_int_equal(v.last.bdf, 3 << 3);
    assert_ptr_equal(v.last.access, &pci.access);
    assert_int_equal(v.last.vendor, 0x1af4);
    assert_int_equal(v.last.device, 0x1041);
    assert_int_equal(v.last.revision, 1);
    assert_int_equal(v.last.class_code, 0x020000);
    assert_int_equal(v.last.subsystem_vendor, 0xabcd);
    assert_int_equal(v.last.subsystem, 0x1100);
    assert_int_equal(v.last.irq_line, 11);
    assert_int_equal(v.last.irq_pin, 1);
    assert_int_equal(v.last.bar[0].size, 0);
}

/* Offset 0x2c is no subsystem in a bridge's header. */
static void test_bridge_has_no_subsystem(void **state)
{
    struct fake_function *f = fake_pci_bridge(&pci, 0, 1, 0, 1);

    (void)state;
    fake_pci_set(f, 0x2c, 4, 0xffffffff, 0);
    struct visits v = walk();
    assert_int_equal(v.last.subsystem_vendor, 0);
    assert_int_equal(v.last.class_code, 0x060400);
}

static void test_multifunction(void **state)
{
    (void)state;
    fake_pci_add(&pci, 0, 0, 0, 0x8086, 0);
    fake_pci_add(&pci, 0, 0, 1, 0x8086, 0); /* an alias: function 0 does not claim more functions */
    fake_pci_add(&pci, 0, 5, 0, 0x8086, MULTI);
    fake_pci_add(&pci, 0, 5, 3, 0x8086, 0); /* a gap is allowed */
    fake_pci_add(&pci, 0, 5, 7, 0x8086, MULTI);
    fake_pci_add(&pci, 0, 6, 1, 0x8086, MULTI); /* without function 0 there is no device */
    fake_pci_add(&pci, 0, 31, 0, 0x8086, MULTI);
    fake_pci_add(&pci, 0, 31, 7, 0x8086, 0);
    struct visits v = walk();
    assert_int_equal(v.count, 6);
    assert_false(was_visited(&v, 0, 0, 1));
    assert_false(was_visited(&v, 0, 6, 1));
    assert_true(was_visited(&v, 0, 5, 3) && was_visited(&v, 0, 5, 7) && was_visited(&v, 0, 31, 7));
}

static void test_dead_ids(void **state)
{
    (void)state;
    fake_pci_add(&pci, 0, 1, 0, 0xffff, 0);
    fake_pci_add(&pci, 0, 2, 0, 0x0000, 0);
    fake_pci_add(&pci, 0, 4, 0, 0x1af4, 0);
    assert_int_equal(walk().count, 1);
}

/* Root port, switch (one upstream port, two downstream ports), a device behind each, and a conventional bridge behind
 * one. */
static void test_nested_bridges(void **state)
{
    (void)state;
    fake_pci_add(&pci, 0, 0, 0, 0x8086, 0);
    fake_pci_bridge(&pci, 0, 1, 0, 1);
    fake_pci_bridge(&pci, 1, 0, 0, 2);
    fake_pci_bridge(&pci, 2, 0, 0, 3);
    fake_pci_bridge(&pci, 2, 1, 0, 4);
    fake_pci_add(&pci, 3, 0, 0, 0x1af4, 0);
    fake_pci_bridge(&pci, 4, 0, 0, 5);
    fake_pci_add(&pci, 5, 31, 0, 0x1af4, MULTI);
    fake_pci_add(&pci, 5, 31, 6, 0x1af4, 0);
    fake_pci_add(&pci, 6, 0, 0, 0x1af4, 0); /* no bridge leads there */
    struct visits v = walk();
    assert_int_equal(v.count, 9);
    assert_true(was_visited(&v, 3, 0, 0) && was_visited(&v, 5, 31, 6));
    assert_false(was_visited(&v, 6, 0, 0));
}

/* A chain through all 256 buses ends at the last one. */
static void test_deep(void **state)
{
    (void)state;
    for (unsigned bus = 0; bus < 255; bus++)
        fake_pci_bridge(&pci, bus, bus % 32, 0, (uint8_t)(bus + 1));
    fake_pci_add(&pci, 255, 0, 0, 0x1af4, 0);
    struct visits v = walk();
    assert_int_equal(v.count, 256);
    assert_true(was_visited(&v, 255, 0, 0));
}

/* Secondary buses need not be higher than the bridge's own. */
static void test_descending(void **state)
{
    (void)state;
    fake_pci_bridge(&pci, 0, 1, 0, 200);
    fake_pci_bridge(&pci, 200, 0, 0, 100);
    fake_pci_bridge(&pci, 100, 0, 0, 255);
    fake_pci_bridge(&pci, 255, 0, 0, 1);
    fake_pci_add(&pci, 1, 0, 0, 0x1af4, 0);
    assert_int_equal(walk().count, 5);
}

static void test_loops(void **state)
{
    (void)state;
    fake_pci_bridge(&pci, 0, 1, 0, 0); /* not configured: its secondary bus is 0 */
    fake_pci_bridge(&pci, 0, 2, 0, 1);
    fake_pci_bridge(&pci, 1, 0, 0, 1); /* its own bus */
    fake_pci_bridge(&pci, 1, 1, 0, 2);
    fake_pci_bridge(&pci, 2, 0, 0, 0); /* back to the root */
    fake_pci_bridge(&pci, 2, 1, 0, 1); /* back to its parent's bus */
    fake_pci_add(&pci, 2, 2, 0, 0x1af4, 0);
    assert_int_equal(walk().count, 7);
}

static void test_same_secondary_twice(void **state)
{
    (void)state;
    fake_pci_bridge(&pci, 0, 1, 0, 7);
    fake_pci_bridge(&pci, 0, 2, 0, 7);
    fake_pci_add(&pci, 7, 0, 0, 0x1af4, 0);
    struct visits v = walk();
    assert_int_equal(v.count, 3);
    assert_true(was_visited(&v, 7, 0, 0));
}

/* Every bridge may name any bus: each function is visited once, exactly if a chain of bridges leads to it. */
static void test_random_bridges(void **state)
{
    uint64_t seed = chance_seed(0xb4d6e);

    (void)state;
    for (unsigned n = 0; n < 200; n++) {
        bool reached[16] = { true };
        unsigned expected = 0;

        fake_pci_init(&pci);
        for (unsigned bus = 0; bus < 16; bus++) {
            for (unsigned dev = 0; dev < 2; dev++)
                fake_pci_bridge(&pci, bus, dev * 9, 0, (uint8_t)chance_below(&seed, 16));
        }
        for (unsigned round = 0; round < 16; round++) {
            for (unsigned i = 0; i < pci.count; i++) {
                if (reached[pci.function[i].bdf >> 8])
                    reached[pci.function[i].space[0x19]] = true;
            }
        }
        for (unsigned bus = 0; bus < 16; bus++)
            expected += reached[bus] ? 2 : 0;
        assert_int_equal(walk().count, expected);
    }
}

static void test_stops_early(void **state)
{
    (void)state;
    for (unsigned dev = 0; dev < 8; dev++)
        fake_pci_add(&pci, 0, dev, 0, 0x1af4, MULTI);
    struct visits v = { .stop_after = 3 };
    assert_int_equal(pci_walk(&pci.access, visit, &v), 3);
    assert_int_equal(v.bdf[2], 2 << 3);
}

/* One device with these BAR registers, sized. */
static struct pci_device sized(uint8_t type, const uint32_t value[6], const uint32_t writable[6], uint16_t command)
{
    fake_pci_init(&pci);
    struct fake_function *f = fake_pci_add(&pci, 0, 1, 0, 0x1af4, type);
    uint8_t before[256];

    fake_pci_set(f, PCI_COMMAND, 2, command, 0x0547);
    for (unsigned i = 0; i < 6; i++)
        fake_pci_set(f, 0x10 + 4 * i, 4, value[i], writable[i]);
    memcpy(before, f->space, sizeof(before));
    struct visits v = { .count = 0 };
    pci_walk(&pci.access, visit, &v);
    struct pci_device dev = v.last;
    memset(dev.bar, 0xa5, sizeof(dev.bar));
    pci_size_bars(&dev);
    assert_memory_equal(f->space, before, sizeof(before)); /* all put back; the status bits still stand */
    assert_int_equal(pci.bar_writes_decoding, 0);
    assert_int_equal(pci.status_writes, 0);
    assert_int_equal(pci.misaligned, 0);
    return dev;
}

static void check_bar(const struct pci_bar *bar, uint64_t addr, uint64_t size)
{
    check(bar->addr == addr && bar->size == size, "BAR at %llx size %llx, not %llx size %llx",
          (unsigned long long)bar->addr, (unsigned long long)bar->size, (unsigned long long)addr,
          (unsigned long long)size);
}

static void test_bars(void **state)
{
    static const uint32_t value[6] = { 0xfebd0000, 0x0000c041, 0x0000000c, 0x00000080, 0xfe000008, 0 };
    static const uint32_t writable[6] = { 0xfffff000, 0x0000ffe0, 0xffffc000, 0xffffffff, 0xff000000, 0 };
    struct pci_device dev = sized(0, value, writable, 0x0107);

    (void)state;
    assert_true(pci.bar_writes >= 10);
    check_bar(&dev.bar[0], 0xfebd0000, 0x1000);
    assert_false(dev.bar[0].io || dev.bar[0].is64 || dev.bar[0].prefetchable);
    check_bar(&dev.bar[1], 0xc040, 32); /* I/O whose upper half is wired to 0 */
    assert_true(dev.bar[1].io);
    check_bar(&dev.bar[2], 0x8000000000, 0x4000);
    assert_true(dev.bar[2].is64 && dev.bar[2].prefetchable && !dev.bar[2].io);
    check_bar(&dev.bar[3], 0, 0); /* the upper half of the one before */
    assert_false(dev.bar[3].is64);
    check_bar(&dev.bar[4], 0xfe000000, 0x1000000);
    assert_true(dev.bar[4].prefetchable && !dev.bar[4].is64);
    check_bar(&dev.bar[5], 0, 0);
}

static void test_bar_extremes(void **state)
{
    /* 16 bytes; 2 GiB; I/O of 4 bytes with all 32 bits; 64-bit of 8 GiB, of which the low register takes nothing;
     * unassigned */
    static const uint32_t value[6] = { 0x12345670, 0x80000000, 0xfffffffd, 0x00000004, 0x00000006, 0x0 };
    static const uint32_t writable[6] = { 0xfffffff0, 0x80000000, 0xfffffffc, 0, 0xfffffffe, 0xffffff00 };
    struct pci_device dev = sized(0, value, writable, 0x0003);

    (void)state;
    check_bar(&dev.bar[0], 0x12345670, 16);
    check_bar(&dev.bar[1], 0x80000000, 0x80000000);
    check_bar(&dev.bar[2], 0xfffffffc, 4);
    check_bar(&dev.bar[3], 0x600000000, 0x200000000);
    check_bar(&dev.bar[5], 0, 256);
}

static void test_bars_with_decode_off(void **state)
{
    static const uint32_t value[6] = { 0, 0, 0, 0, 0xfeb00004, 0 };
    static const uint32_t writable[6] = { 0, 0, 0, 0, 0xfff00000, 0xffffffff };
    struct pci_device dev = sized(0, value, writable, 0x0400);

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        check_bar(&dev.bar[i], 0, 0);
    check_bar(&dev.bar[4], 0xfeb00000, 0x100000);
    assert_true(dev.bar[4].is64);
}

static void test_bogus_bars(void **state)
{
    static const uint32_t value[6] = { 0x10000000, 0x00000006, 0x00001000, 0xffffffff, 0x0000c101, 0x00000004 };
    static const uint32_t writable[6] = { 0xfff0f000, 0xffff0000, 0xff000000, 0, 0x0000fa00, 0xffff0000 };
    struct pci_device dev = sized(0, value, writable, 0x0007);

    (void)state;
    check_bar(&dev.bar[0], 0, 0); /* no power of two */
    check_bar(&dev.bar[1], 0, 0); /* type 3 is reserved */
    check_bar(&dev.bar[2], 0, 0); /* a bit between address and size that cannot be written */
    check_bar(&dev.bar[3], 0, 0); /* all ones: nothing there */
    check_bar(&dev.bar[4], 0, 0); /* I/O, no power of two */
    check_bar(&dev.bar[5], 0, 0); /* 64 bits, but no register for the upper half */
    assert_false(dev.bar[1].is64);
}

/* A 64-bit BAR that cannot be true still takes two registers: its upper half is not read as a BAR of its own. */
static void test_bogus_64_bit_bar(void **state)
{
    static const uint32_t value[6] = { 0x00000004, 0xfe000000, 0xfd000000, 0, 0, 0 };
    static const uint32_t writable[6] = { 0xffff0000, 0xfe0fffff, 0xfffff000, 0, 0, 0 };
    struct pci_device dev = sized(0, value, writable, 0x0007);

    (void)state;
    check_bar(&dev.bar[0], 0, 0);
    check_bar(&dev.bar[1], 0, 0);
    check_bar(&dev.bar[2], 0xfd000000, 0x1000);
}

/* A bridge has two BARs; what follows them are bus numbers, which sizing must not write. */
static void test_bridge_bars(void **state)
{
    static const uint32_t value[6] = { 0xfe800000, 0, 0x00ff0100, 0x12345678, 0x9abcdef0, 0x55aa55aa };
    static const uint32_t writable[6] = { 0xfffff000, 0, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff };
    struct pci_device dev = sized(1, value, writable, 0x0007);

    (void)state;
    check_bar(&dev.bar[0], 0xfe800000, 0x1000);
    for (unsigned i = 1; i < 6; i++)
        check_bar(&dev.bar[i], 0, 0);
    assert_true(pci.bar_writes > 0 && pci.bar_writes <= 4);
    sized(2, value, writable, 0x0007); /* CardBus: another header */
    assert_int_equal(pci.bar_writes, 0);
}

/* A bridge whose second BAR register claims 64 bits: there is no third. */
static void test_bridge_64_bit_bar_in_last_register(void **state)
{
    static const uint32_t value[6] = { 0, 0x00000004, 0x00ff0100, 0, 0, 0 };
    static const uint32_t writable[6] = { 0, 0xfffff000, 0xffffffff, 0, 0, 0 };
    struct pci_device dev = sized(1, value, writable, 0x0007);

    (void)state;
    check_bar(&dev.bar[1], 0, 0);
}

/* A device with a capability list: at each offset an id and a next pointer. */
static struct fake_function *caps;

static struct pci_device cap_device(uint8_t first)
{
    fake_pci_init(&pci);
    caps = fake_pci_add(&pci, 0, 1, 0, 0x1af4, 0);
    fake_pci_set(caps, PCI_STATUS, 2, 0x0010, 0xf900);
    fake_pci_set(caps, 0x34, 1, first, 0);
    struct visits v = { .count = 0 };
    pci_walk(&pci.access, visit, &v);
    return v.last;
}

static void cap(uint8_t at, uint8_t id, uint8_t next)
{
    fake_pci_set(caps, at, 2, (uint32_t)next << 8 | id, 0);
}

static void test_capabilities(void **state)
{
    struct pci_device dev = cap_device(0x98);

    (void)state;
    cap(0x98, PCI_CAP_MSIX, 0x40);
    cap(0x40, PCI_CAP_VENDOR, 0xfc);
    cap(0xfc, PCI_CAP_VENDOR, 0x50);
    cap(0x50, 0x00, 0x60); /* an empty one */
    cap(0x60, PCI_CAP_VENDOR, 0);
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_MSIX, 0), 0x98);
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_MSIX, 0x98), 0);
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_VENDOR, 0), 0x40);
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_VENDOR, 0x40), 0xfc);
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_VENDOR, 0xfc), 0x60);
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_VENDOR, 0x60), 0);
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_VENDOR, 0x98), 0x40);
    assert_int_equal(pci_find_capability(&dev, 0x10, 0), 0);
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_VENDOR, 0x44), 0); /* not in the list */
    assert_int_equal(pci.writes, 0);
    fake_pci_set(caps, PCI_STATUS, 2, 0xffef, 0xf900); /* no list: the pointer means nothing */
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_MSIX, 0), 0);
}

static void test_capability_list_in_circles(void **state)
{
    struct pci_device dev = cap_device(0x40);
    unsigned found = 0;

    (void)state;
    cap(0x40, PCI_CAP_VENDOR, 0x50);
    cap(0x50, PCI_CAP_VENDOR, 0x60);
    cap(0x60, PCI_CAP_VENDOR, 0x50);
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_MSIX, 0), 0);
    for (uint8_t at = 0; (at = pci_find_capability(&dev, PCI_CAP_VENDOR, at)) != 0;) /* ends for the caller, too */
        check(++found <= 3, "round and round");
    assert_int_equal(found, 3);
    cap(0x40, PCI_CAP_VENDOR, 0x40); /* itself */
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_VENDOR, 0x40), 0);
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_MSIX, 0), 0);
}

/* As many entries as fit: the 48th is found. */
static void test_capability_list_full(void **state)
{
    struct pci_device dev = cap_device(0x40);

    (void)state;
    for (unsigned at = 0x40; at <= 0xfc; at += 4)
        cap((uint8_t)at, at == 0xfc ? PCI_CAP_MSIX : 0x01, (uint8_t)(at + 4));
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_MSIX, 0), 0xfc);
    assert_int_equal(pci_find_capability(&dev, PCI_CAP_MSIX, 0xfc), 0);
}

static void test_bad_capability_pointers(void **state)
{
    static const uint8_t bad[] = { 0x01, 0x04, 0x10, 0x34, 0x3c, 0x3f, 0x41, 0x42, 0x43, 0xfd, 0xfe, 0xff };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct pci_device dev = cap_device(bad[i]); /* as the first */
        for (unsigned at = 0x41; at < 0xfe; at++)
            fake_pci_set(caps, at, 1, PCI_CAP_MSIX, 0);
        fake_pci_set(caps, 0x10, 2, PCI_CAP_MSIX, 0xffff); /* the header may hold anything */
        fake_pci_set(caps, 0x3c, 2, PCI_CAP_MSIX, 0xffff);
        check(pci_find_capability(&dev, PCI_CAP_MSIX, 0) == 0, "pointer %02x", bad[i]);
        dev = cap_device(0x80); /* behind one that is good */
        cap(0x80, PCI_CAP_VENDOR, bad[i]);
        check(pci_find_capability(&dev, PCI_CAP_VENDOR, 0) == 0x80, "pointer %02x", bad[i]);
        check(pci_find_capability(&dev, PCI_CAP_VENDOR, 0x80) == 0, "pointer %02x", bad[i]);
        check(pci_find_capability(&dev, PCI_CAP_MSIX, 0) == 0, "pointer %02x", bad[i]);
        assert_int_equal(pci.misaligned, 0);
    }
}

/* A device that has gone reads as ones everywhere. */
static void test_device_gone(void **state)
{
    struct pci_device dev = cap_device(0x40);

    (void)state;
    pci.count = 0;
    assert_int_equal(pci_find_capability(&dev, 0xff, 0), 0);
    pci_size_bars(&dev);
    for (unsigned i = 0; i < 6; i++)
        check_bar(&dev.bar[i], 0, 0);
}

/* Random bytes as a list: it ends, in bounds, and what it returns carries the id asked for. */
static void test_random_capabilities(void **state)
{
    uint64_t seed = chance_seed(0xca9);

    (void)state;
    for (unsigned n = 0; n < 5000; n++) {
        struct pci_device dev = cap_device((uint8_t)(chance_below(&seed, 48) * 4 + 0x40));
        for (unsigned at = 0x40; at < 0x100; at += 4)
            cap((uint8_t)at, (uint8_t)chance_below(&seed, 4), (uint8_t)(chance_below(&seed, 52) * 4 + 0x30));
        unsigned found = 0;
        for (uint8_t at = 0; (at = pci_find_capability(&dev, 2, at)) != 0;) {
            assert_true(at >= 0x40 && at % 4 == 0 && caps->space[at] == 2);
            check(++found <= 48, "does not end");
        }
        assert_int_equal(pci.misaligned, 0);
    }
}

static void test_command(void **state)
{
    struct pci_device dev = cap_device(0);

    (void)state;
    fake_pci_set(caps, PCI_STATUS, 2, 0xf910, 0xf900);
    fake_pci_set(caps, PCI_COMMAND, 2, 0x0403, 0x0547);
    pci_command(&dev, PCI_COMMAND_MASTER | PCI_COMMAND_MEMORY, PCI_COMMAND_IO);
    assert_int_equal(fake_pci_get(caps, PCI_COMMAND, 2), 0x0406);
    pci_command(&dev, 0, PCI_COMMAND_INTX_DISABLE);
    assert_int_equal(fake_pci_get(caps, PCI_COMMAND, 2), 0x0006);
    pci_command(&dev, PCI_COMMAND_INTX_DISABLE, 0);
    assert_int_equal(fake_pci_get(caps, PCI_COMMAND, 2), 0x0406);
    assert_int_equal(fake_pci_get(caps, PCI_STATUS, 2), 0xf910);
    assert_int_equal(pci.status_writes, 0);
}

#define TEST(f) cmocka_unit_test_setup(f, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_nothing_there),
        TEST(test_header),
        TEST(test_bridge_has_no_subsystem),
        TEST(test_multifunction),
        TEST(test_dead_ids),
        TEST(test_nested_bridges),
        TEST(test_deep),
        TEST(test_descending),
        TEST(test_loops),
        TEST(test_same_secondary_twice),
        TEST(test_random_bridges),
        TEST(test_stops_early),
        TEST(test_bars),
        TEST(test_bar_extremes),
        TEST(test_bars_with_decode_off),
        TEST(test_bogus_bars),
        TEST(test_bogus_64_bit_bar),
        TEST(test_bridge_bars),
        TEST(test_bridge_64_bit_bar_in_last_register),
        TEST(test_capabilities),
        TEST(test_capability_list_in_circles),
        TEST(test_capability_list_full),
        TEST(test_bad_capability_pointers),
        TEST(test_device_gone),
        TEST(test_random_capabilities),
        TEST(test_command),
    };

    return cmocka_run_group_tests_name("pci", tests, NULL, NULL);
}

/* Setting a virtio-net device up, on the fake PCI function and registers of modern_rig: what of its configuration is
 * believed, which queues are used, how interrupts are given out, and what is said when it cannot be. */
#include "tests/unit/modern_rig.h"

#include <linux/virtio_config.h>
#include "drivers/virtio/net.h"
#include "kernel/apic.h"
#include "kernel/clock.h"
#include "kernel/memory.h"
#include "kernel/random.h"
#include "kernel/traps.h"

#define F(name)  FEATURE_BIT(VIRTIO_NET_F_##name)
#define VERSION1 FEATURE_BIT(VIRTIO_F_VERSION_1)
#define FAILED   0x80

static struct virtnet net;
static struct virtio_error error;
static struct virtio_net_config config;
static void *memory[32];
static unsigned memory_count;
static uint64_t now;

static struct {
    void (*handler)(void *argument);
    void *argument;
} irq[256];
static int pic_line;
static unsigned shared_interrupts;

/* ---- what the device's driver is linked with ---- */

uint64_t clock_ns(void)
{
    now += 1000000;
    return now;
}

uint64_t random_next(void)
{
    return 0xffffffffffffffff; /* so that bits that must be cleared are seen */
}

void irq_install(uint8_t vector, void (*handler)(void *argument), void *argument)
{
    irq[vector].handler = handler;
    irq[vector].argument = argument;
}

void pic_enable(uint8_t line)
{
    pic_line = line;
}

void *heap_alloc_aligned(size_t size, size_t align)
{
    void *p = NULL;

    check(memory_count < COUNT_OF(memory) && posix_memalign(&p, align, size ? size : 1) == 0, "no memory");
    memset(p, 0, size);
    memory[memory_count++] = p;
    return p;
}

struct heap_stats heap_stats(void)
{
    return (struct heap_stats){ .untouched = 1 << 20 };
}

/* ---- a device ---- */

static int set_up(void **state)
{
    modern_set_up(state);
    modern_add_all_good_but(0);
    memset(&net, 0x5a, sizeof(net));
    memset(&error, 0, sizeof(error));
    memset(&config, 0, sizeof(config));
    memcpy(config.mac, "\x52\x54\x00\x12\x34\x56", 6);
    config.mtu = 1500;
    config.status = VIRTIO_NET_S_LINK_UP;
    config.max_virtqueue_pairs = 1;
    modern.dev.config = (const uint8_t *)&config;
    modern.dev.offered = VERSION1 | F(MAC) | F(STATUS) | F(MRG_RXBUF);
    memset(irq, 0, sizeof(irq));
    pic_line = -1;
    shared_interrupts = 0;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    while (memory_count > 0)
        free(memory[--memory_count]);
    return 0;
}

/* MSI-X with so many vectors, its table at the beginning of BAR 0, all entries masked. */
static void add_msix(unsigned count)
{
    unsigned at = modern_add_cap(0x11, 12);

    fake_pci_set(modern.function, at + 2, 2, count - 1, 0xc000);
    memset(modern.bar[0], 0, BAR_SIZE);
    for (unsigned i = 0; i < count; i++)
        modern.bar[0][16 * i + 12] = 1;
}

static bool probe_asking(uint64_t off, uint64_t required, uint16_t ring_max, uint16_t want)
{
    struct feature_request request = { off, required };

    fake_console_clear();
    modern_find_device();
    return virtnet_probe(&net, &modern.device, &request, ring_max, want, &error);
}

static bool probe(void)
{
    return probe_asking(0, 0, 0, 1);
}

static void check_reason(const char *part, const char *another)
{
    check(strstr(error.text, part) && strstr(error.text, another), "\"%s\" does not say %s and %s", error.text, part,
          another);
}

static void check_warned(const char *part, const char *another)
{
    const char *line = fake_console_find(LOG_WARN, part);

    check(line && strstr(line, another), "%s", line ? line : "nothing said");
    assert_int_equal(fake_console_count(LOG_WARN), 1);
}

/* ---- probe ---- */

static void test_plain(void **state)
{
    (void)state;
    assert_true(probe());
    assert_int_equal(net.features, modern.dev.offered);
    assert_int_equal(modern.dev.accepted, modern.dev.offered);
    assert_int_equal(modern.dev.status, 0xb); /* features agreed on, not running */
    assert_memory_equal(net.mac, "\x52\x54\x00\x12\x34\x56", 6);
    assert_int_equal(net.mtu, 1500);
    assert_int_equal(net.max_pairs, 1);
    assert_int_equal(net.pairs, 1);
    assert_int_equal(net.ring_size[0][0], 256);
    assert_int_equal(net.ring_size[0][1], 256);
    assert_int_equal(fake_pci_get(modern.function, 0x04, 2) & 6, 6); /* memory decoding, bus mastering */
    assert_int_equal(fake_console_count(LOG_INFO), 0);
    assert_int_equal(modern.dev.misfits, 0);
}

static void test_not_to_be_had(void **state)
{
    (void)state;
    modern.dev.offered &= ~VERSION1;
    assert_false(probe());
    check_reason("version_1", "device_feature");
    assert_true(modern.dev.status & FAILED);
    set_up(state);
    assert_false(probe_asking(0, F(MQ), 0, 1));
    check_reason("+mq", "device_feature");
    assert_true(modern.dev.status & FAILED);
    modern_set_up(state);
    assert_false(probe());
    check_reason("common configuration", "legacy");
}

/* ---- MTU (5.1.4.2) ---- */

static void test_mtu(void **state)
{
    static const unsigned values[] = { 0, 1, 67, 68, 69, 576, 1280, 1499, 1501, 9000, 65534, 65535 };

    for (unsigned i = 0; i < COUNT_OF(values); i++) {
        bool good = values[i] >= 68;
        char text[8];
        set_up(state);
        modern.dev.offered |= F(MTU);
        config.mtu = (uint16_t)values[i];
        assert_true(probe());
        assert_int_equal(net.mtu, good ? values[i] : 1500);
        assert_int_equal(virtnet_has(&net, VIRTIO_NET_F_MTU), good); /* refused: not acknowledged */
        snprintf(text, sizeof(text), "%u,", values[i]);
        if (!good)
            check_warned("config mtu", text);
        assert_int_equal(fake_console_count(LOG_WARN), !good);
    }
}

static void test_mtu_not_negotiated(void **state)
{
    (void)state;
    config.mtu = 20;
    assert_true(probe()); /* the field is there, the feature is not */
    assert_int_equal(net.mtu, 1500);
    assert_int_equal(fake_console_count(LOG_WARN), 0);
    modern.dev.offered |= F(MTU);
    assert_true(probe_asking(F(MTU), 0, 0, 1));
    assert_int_equal(net.mtu, 1500);
    assert_false(virtnet_has(&net, VIRTIO_NET_F_MTU));
    assert_int_equal(fake_console_count(LOG_WARN), 0);
    assert_false(probe_asking(0, F(MTU), 0, 1)); /* insisted on, and impossible */
    check_reason("+mtu", "device_feature");
}

static void test_mtu_cannot_be_read(void **state)
{
    set_up(state);
    modern.next_cap = 0x40; /* a configuration that ends before it */
    fake_pci_set(modern.function, 0x34, 1, 0, 0);
    modern_add_all_good_but(CAP_DEVICE);
    modern_add_structure(CAP_DEVICE, 4, DEVICE_AT, 8);
    modern.dev.offered |= F(MTU);
    assert_true(probe());
    assert_int_equal(net.mtu, 1500);
    assert_false(virtnet_has(&net, VIRTIO_NET_F_MTU));
    check_warned("config mtu", "refused");
}

/* ---- MAC (5.1.5) ---- */

static void test_mac(void **state)
{
    static const struct {
        const char *mac;
        bool good;
    } rows[] = {
        { "\x52\x54\x00\x12\x34\x56", true },  { "\x00\x00\x00\x00\x00\x01", true },
        { "\xfe\xff\xff\xff\xff\xff", true },  { "\x00\x00\x00\x00\x00\x00", false },
        { "\x01\x00\x5e\x00\x00\x01", false }, { "\xff\xff\xff\xff\xff\xff", false },
        { "\x33\x33\x00\x00\x00\x01", false },
    };

    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        set_up(state);
        memcpy(config.mac, rows[i].mac, 6);
        assert_true(probe());
        if (rows[i].good) {
            assert_memory_equal(net.mac, rows[i].mac, 6);
            assert_int_equal(fake_console_count(LOG_WARN), 0);
            continue;
        }
        char text[20];
        const uint8_t *m = config.mac;
        snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5]);
        check_warned("config mac", text);
        assert_memory_equal(net.mac, "\xfe\xff\xff\xff\xff\xff", 6); /* random, a station's, locally administered */
    }
}

static void test_no_mac(void **state)
{
    (void)state;
    modern.dev.offered &= ~F(MAC);
    assert_true(probe());
    assert_memory_equal(net.mac, "\xfe\xff\xff\xff\xff\xff", 6);
    assert_int_equal(fake_console_count(LOG_WARN), 0);
}

/* ---- queues ---- */

static void test_queue_sizes(void **state)
{
    static const struct {
        uint16_t device, ring_max, expected;
    } rows[] = {
        { 256, 0, 256 },   { 256, 256, 256 },          { 256, 64, 64 },       { 256, 512, 256 },
        { 256, 2, 2 },     { 1000, 0, 512 },           { 1000, 1024, 512 },   { 3, 0, 2 },
        { 2, 0, 2 },       { 0x8000, 0, 0x8000 },      { 0xffff, 0, 0x8000 }, { 1023, 512, 512 },
        { 1025, 0, 1024 }, { 0x8000, 0x4000, 0x4000 },
    };

    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        set_up(state);
        modern.dev.queue[0].size = rows[i].device;
        modern.dev.queue[1].size = 4;
        assert_true(probe_asking(0, 0, rows[i].ring_max, 1));
        assert_int_equal(net.ring_size[0][0], rows[i].expected);
        assert_int_equal(net.ring_size[0][1], rows[i].ring_max == 2 ? 2 : 4);
    }
}

static void test_no_usable_queue(void **state)
{
    for (unsigned i = 0; i < 6; i++) {
        char which[20], value[8];
        unsigned queue = i % 2, size = i / 2;
        set_up(state);
        modern.dev.queue[queue].size = (uint16_t)size;
        if (size == 2) { /* not even a register for it */
            modern.dev.queue[queue].size = 256;
            modern.dev.queue_count = (uint16_t)queue;
        }
        snprintf(which, sizeof(which), "queue %u ", queue);
        snprintf(value, sizeof(value), "is %u:", size % 2);
        assert_false(probe());
        check_reason("no usable queue", "queue_size");
        check_reason(which, value);
        assert_true(modern.dev.status & FAILED);
    }
}

static void offer_pairs(uint16_t pairs)
{
    modern.dev.offered |= F(MQ) | F(CTRL_VQ);
    modern.dev.queue_count = MODERN_QUEUES;
    config.max_virtqueue_pairs = pairs;
}

static void test_pairs(void **state)
{
    static const struct {
        uint16_t device, want, max, pairs;
        unsigned warnings;
    } rows[] = {
        { 1, 1, 1, 1, 0 }, { 4, 1, 4, 1, 0 },      { 4, 3, 4, 3, 0 },      { 4, 9, 4, 4, 0 },
        { 0, 4, 1, 1, 1 }, { 0x8001, 4, 1, 1, 1 }, { 0xffff, 4, 1, 1, 1 }, { 0x8000, 4, 0x8000, 4, 0 },
    };

    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        set_up(state);
        offer_pairs(rows[i].device);
        assert_true(probe_asking(0, 0, 0, rows[i].want));
        assert_int_equal(net.max_pairs, rows[i].max);
        assert_int_equal(net.pairs, rows[i].pairs);
        assert_int_equal(fake_console_count(LOG_WARN), rows[i].warnings);
    }
    set_up(state); /* without the feature the field means nothing */
    config.max_virtqueue_pairs = 4;
    assert_true(probe_asking(0, 0, 0, 4));
    assert_int_equal(net.max_pairs, 1);
    assert_int_equal(net.pairs, 1);
}

static void test_pair_with_unusable_queue(void **state)
{
    for (unsigned queue = 2; queue < 8; queue++) {
        char text[20];
        set_up(state);
        offer_pairs(4);
        modern.dev.queue[queue].size = queue % 3 == 0;
        assert_true(probe_asking(0, 0, 0, 4));
        assert_int_equal(net.pairs, queue / 2);
        assert_int_equal(net.max_pairs, 4); /* where the control queue is does not change */
        snprintf(text, sizeof(text), "queue %u is %u", queue, queue % 3 == 0);
        check_warned("queue_size", text);
    }
}

static void test_link(void **state)
{
    (void)state;
    assert_true(probe());
    assert_true(virtnet_link_up(&net));
    config.status = VIRTIO_NET_S_ANNOUNCE;
    assert_false(virtnet_link_up(&net));
    config.status = 0xffff;
    assert_true(virtnet_link_up(&net));
    config.status = 0;
    modern.dev.offered &= ~F(STATUS);
    assert_true(probe());
    assert_true(virtnet_link_up(&net));
}

/* ---- interrupts ---- */

/* For so many MSI-X vectors and pairs. */
static void test_choice_of_interrupts(void **state)
{
    static const struct {
        unsigned vectors, pairs;
        enum virtnet_interrupts expected;
    } rows[] = {
        { 3, 1, VIRTNET_PER_QUEUE },    { 2, 1, VIRTNET_PER_PAIR },  { 1, 1, VIRTNET_ONE },
        { 2048, 1, VIRTNET_PER_QUEUE }, { 9, 4, VIRTNET_PER_QUEUE }, { 8, 4, VIRTNET_PER_PAIR },
        { 5, 4, VIRTNET_PER_PAIR },     { 4, 4, VIRTNET_TWO },       { 2, 4, VIRTNET_TWO },
        { 1, 4, VIRTNET_ONE },
    };

    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        set_up(state);
        add_msix(rows[i].vectors);
        offer_pairs(4);
        assert_true(probe_asking(0, 0, 0, 4));
        virtnet_plan(&net, (uint16_t)rows[i].pairs);
        assert_int_equal(net.interrupts, rows[i].expected);
        assert_int_equal(net.pairs, rows[i].pairs);
        assert_true(strlen(virtnet_interrupts_name(&net)) > 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        set_up(state);
        fake_pci_set(modern.function, 0x3c, 2, i == 0 ? 0x010b : i == 1 ? 0x000b : i == 2 ? 0x01ff : 0x0110, 0);
        assert_true(probe());
        virtnet_plan(&net, 1);
        assert_int_equal(net.interrupts, i == 0 ? VIRTNET_INTX : VIRTNET_POLLED);
    }
}

static uint32_t entry(unsigned i, unsigned word)
{
    uint32_t value;

    memcpy(&value, modern.bar[0] + 16 * i + 4 * word, 4);
    return value;
}

/* Sets everything up with MSI-X, with one pair per core: core i has APIC id 10 + i. */
static bool start_with_rings(unsigned vectors, uint16_t pairs, uint16_t ring_max)
{
    static struct virtnet core[4];
    struct virtnet_peer peer[4];
    static const uint8_t key[CONTROL_RSS_KEY], table[CONTROL_RSS_TABLE];

    set_up(NULL);
    if (vectors > 0)
        add_msix(vectors);
    if (pairs > 1)
        offer_pairs(4);
    assert_true(probe_asking(0, 0, ring_max, pairs));
    virtnet_plan(&net, pairs);
    for (uint16_t i = 0; i < pairs; i++) {
        struct virtnet *own = i == 0 ? &net : &core[i];
        if (i > 0)
            virtnet_attach(own, &net);
        assert_true(virtnet_layout(own, i, &error));
        peer[i] = (struct virtnet_peer){ &own->pair, 10u + i };
    }
    return virtnet_start(&net, peer, pairs, key, table, &error);
}

static bool start(unsigned vectors, uint16_t pairs)
{
    return start_with_rings(vectors, pairs, 16);
}

static void check_entry(unsigned i, uint32_t apic_id, uint8_t vector)
{
    assert_int_equal(entry(i, 0), 0xfee00000 | apic_id << 12);
    assert_int_equal(entry(i, 1), 0);
    assert_int_equal(entry(i, 2), vector);
    assert_int_equal(entry(i, 3) & 1, 0);
}

static void test_vectors(void **state)
{
    (void)state;
    for (unsigned vectors = 1; vectors <= 3; vectors++) {
        assert_true(start(vectors, 1));
        assert_int_equal(modern.dev.status, 0xf);
        check_entry(0, 10, VECTOR_CONFIG);
        assert_int_equal(modern.dev.config_vector, 0);
        if (vectors == 2)
            check_entry(1, 10, VECTOR_QUEUES);
        if (vectors == 3)
            check_entry(1, 10, VECTOR_RX);
        if (vectors == 3)
            check_entry(2, 10, VECTOR_TX);
        assert_int_equal(modern.dev.queue[0].vector, vectors == 1 ? 0 : 1);
        assert_int_equal(modern.dev.queue[1].vector, vectors == 1 ? 0 : vectors == 2 ? 1 : 2);
        assert_int_equal(fake_pci_get(modern.function, modern.next_cap - 12 + 2, 2), 0x8000u | (vectors - 1)); /* on */
        assert_int_equal(fake_pci_get(modern.function, 0x04, 2) & 0x400, 0x400); /* the pin is off */
        assert_true(modern.dev.queue[0].enabled && modern.dev.queue[1].enabled && !modern.dev.queue[2].enabled);
        assert_int_equal(modern.dev.queue[0].size, 16);
        assert_int_equal(modern.dev.misfits, 0);
        tear_down(NULL);
    }
}

/* Each core's queues interrupt their core. */
static void test_vectors_of_many(void **state)
{
    (void)state;
    for (unsigned vectors = 9; vectors > 4; vectors -= 4) {
        assert_true(start(vectors, 4));
        check_entry(0, 10, VECTOR_CONFIG);
        for (uint16_t i = 0; i < 8; i++) {
            unsigned own = vectors == 9 ? 1u + i : 1u + i / 2u;
            assert_int_equal(modern.dev.queue[i].vector, own);
            assert_true(modern.dev.queue[i].enabled);
            check_entry(own, 10 + i / 2, vectors == 5 ? VECTOR_QUEUES : i % 2 ? VECTOR_TX : VECTOR_RX);
        }
        assert_true(modern.dev.queue[8].enabled); /* the control queue, which has no vector */
        assert_int_equal(modern.dev.queue[8].vector, VIRTIO_NO_VECTOR);
        tear_down(NULL);
    }
}

static void raise(uint8_t vector)
{
    assert_non_null(irq[vector].handler);
    irq[vector].handler(irq[vector].argument);
}

static void on_shared(void)
{
    shared_interrupts++;
}

static void check_noted(unsigned rx, unsigned tx, bool changed)
{
    assert_int_equal(net.pair.rx_stats.interrupts, rx);
    assert_int_equal(net.pair.tx_stats.interrupts, tx);
    assert_int_equal(net.config_changed, changed);
    net.config_changed = false;
    net.pair.rx_stats.interrupts = net.pair.tx_stats.interrupts = 0;
}

static void test_handlers(void **state)
{
    (void)state;
    assert_true(start(3, 1));
    net.on_shared_interrupt = on_shared;
    raise(VECTOR_RX);
    check_noted(1, 0, false);
    raise(VECTOR_TX);
    check_noted(0, 1, false);
    raise(VECTOR_CONFIG);
    check_noted(0, 0, true);
    assert_int_equal(shared_interrupts, 0);
    tear_down(NULL);

    assert_true(start(2, 1));
    net.on_shared_interrupt = on_shared;
    raise(VECTOR_QUEUES);
    check_noted(1, 1, false);
    assert_int_equal(shared_interrupts, 0); /* the pair's own vector */
    tear_down(NULL);

    assert_true(start(1, 1));
    raise(VECTOR_CONFIG); /* the only one: it may be anything */
    check_noted(1, 1, true);
    net.on_shared_interrupt = on_shared;
    raise(VECTOR_CONFIG);
    assert_int_equal(shared_interrupts, 1);
    tear_down(NULL);
}

static void test_pin(void **state)
{
    struct virtnet_peer peer = { &net.pair, 10 };

    (void)state;
    fake_pci_set(modern.function, 0x3c, 2, 0x010b, 0);
    fake_pci_set(modern.function, 0x04, 2, 0x400, 0x0547); /* firmware has switched the pin off */
    assert_true(probe());
    virtnet_plan(&net, 1);
    assert_true(virtnet_layout(&net, 0, &error));
    assert_true(virtnet_start(&net, &peer, 1, NULL, NULL, &error));
    assert_int_equal(pic_line, 11);
    assert_int_equal(fake_pci_get(modern.function, 0x04, 2) & 0x400, 0);
    assert_int_equal(modern.dev.queue[0].vector, VIRTIO_NO_VECTOR);
    net.on_shared_interrupt = on_shared;
    modern.dev.isr = 0;
    raise(VECTOR_PIC + 11); /* another device's */
    check_noted(0, 0, false);
    assert_int_equal(shared_interrupts, 0);
    modern.dev.isr = 1;
    raise(VECTOR_PIC + 11);
    check_noted(1, 1, false);
    assert_int_equal(shared_interrupts, 1);
    modern.dev.isr = 2;
    raise(VECTOR_PIC + 11);
    check_noted(0, 0, true);
    assert_int_equal(modern.dev.isr, 0);
}

static void test_polled(void **state)
{
    (void)state;
    assert_true(start(0, 1));
    assert_int_equal(net.interrupts, VIRTNET_POLLED);
    check_warned("interrupt_line", "polled");
    assert_int_equal(modern.dev.queue[0].vector, VIRTIO_NO_VECTOR);
    assert_int_equal(modern.dev.status, 0xf);
}

/* ---- start ---- */

static void test_buffers_are_there_before_it_runs(void **state)
{
    const struct vring_avail *avail;

    (void)state;
    assert_true(start(3, 1));
    avail = (const struct vring_avail *)(uintptr_t)modern.dev.queue[0].area[1];
    assert_int_equal(avail->idx, 16);
    assert_ptr_equal(net.pair.rx.desc, (void *)(uintptr_t)modern.dev.queue[0].area[0]);
    assert_ptr_equal(net.pair.tx.used, (void *)(uintptr_t)modern.dev.queue[1].area[2]);
    assert_ptr_equal(net.pair.rx.notify, modern.bar[4] + NOTIFY_AT);
    assert_ptr_equal(net.pair.tx.notify, modern.bar[4] + NOTIFY_AT + 4);
}

/* What the device refuses of each queue: its number, size and vector are said, and the device knows that it is over. */
static void test_queue_refused(void **state)
{
    for (unsigned i = 0; i < 3; i++) {
        struct virtnet_peer peer = { &net.pair, 10 };

        tear_down(state);
        set_up(state);
        add_msix(3);
        assert_true(probe_asking(0, 0, 16, 1));
        virtnet_plan(&net, 1);
        assert_true(virtnet_layout(&net, 0, &error));
        modern.dev.loses_size = i == 0;
        modern.dev.loses_vector = i == 1;
        modern.dev.queue[1].notify_off = i == 2 ? 0xffff : 1;
        assert_false(virtnet_start(&net, &peer, 1, NULL, NULL, &error));
        check_reason(i == 2 ? "queue 1 (size 16, vector 0x2)" : "queue 0 (size 16, vector 0x1)",
                     i == 0   ? "queue_size"
                     : i == 1 ? "queue_msix_vector"
                              : "queue_notify_off");
        assert_int_equal(modern.dev.status, 0xb | FAILED);
    }
}

static void test_config_vector_lost(void **state)
{
    struct virtnet_peer peer = { &net.pair, 10 };

    (void)state;
    add_msix(3);
    assert_true(probe());
    virtnet_plan(&net, 1);
    assert_true(virtnet_layout(&net, 0, &error));
    modern.dev.loses_config_vector = true;
    assert_true(virtnet_start(&net, &peer, 1, NULL, NULL, &error)); /* it works without */
    check_warned("msix_config", "link");
    assert_int_equal(modern.dev.status, 0xf);
}

/* ---- the control queue ---- */

/* A device that does not answer: one pair is used, and that is said; a late answer could still change it. */
static void test_pairs_not_answered(void **state)
{
    (void)state;
    assert_true(start(9, 4));
    assert_int_equal(net.pairs, 1);
    assert_true(net.control_lost);
    assert_false(net.control.open);
    assert_non_null(fake_console_find(LOG_WARN, "4 queue pairs: timed out"));
    assert_int_equal(modern.dev.queue[8].size, 64);
    tear_down(state);
    assert_true(start_with_rings(5, 2, 0)); /* it is behind all the queues that the device has, not those in use */
    assert_true(modern.dev.queue[8].enabled && !modern.dev.queue[4].enabled);
    assert_int_equal(modern.dev.queue[8].size, 64); /* of which it needs few */
    assert_int_equal(modern.dev.queue[0].size, 256);
}

static void test_control_queue_unusable(void **state)
{
    (void)state;
    for (unsigned size = 0; size < 4; size++) {
        struct virtnet_peer peer[2] = { { &net.pair, 10 }, { NULL, 11 } };
        static struct virtnet second;

        tear_down(state);
        set_up(state);
        add_msix(5);
        offer_pairs(2);
        modern.dev.queue[4].size = (uint16_t)size;
        assert_true(probe_asking(0, 0, 16, 2));
        virtnet_plan(&net, 2);
        virtnet_attach(&second, &net);
        assert_true(virtnet_layout(&net, 0, &error) && virtnet_layout(&second, 1, &error));
        peer[1].pair = &second.pair;
        assert_true(virtnet_start(&net, peer, 2, NULL, NULL, &error));
        assert_int_equal(net.pairs, 1);
        assert_false(net.control_lost); /* nothing was asked */
        assert_non_null(fake_console_find(LOG_WARN, "control queue 4 of size"));
        assert_false(modern.dev.queue[4].enabled);
        assert_int_equal(modern.dev.status, 0xf);
    }
}

/* What another core takes over of the device, and what not. */
static void test_attach(void **state)
{
    struct virtnet other;

    (void)state;
    assert_true(probe());
    virtnet_plan(&net, 1);
    net.on_shared_interrupt = on_shared;
    net.control.open = true;
    net.pair.number = 3;
    memset(&other, 0x5a, sizeof(other));
    virtnet_attach(&other, &net);
    assert_memory_equal(other.mac, net.mac, 6);
    assert_int_equal(other.features, net.features);
    assert_int_equal(other.mtu, net.mtu);
    assert_memory_equal(other.ring_size, net.ring_size, sizeof(net.ring_size));
    assert_null(other.on_shared_interrupt);
    assert_null(other.transport.pci);
    assert_null(other.pci.access);
    assert_int_equal(other.pair.number, 0);
    assert_false(other.control.open);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_plain),
        TEST(test_not_to_be_had),
        TEST(test_mtu),
        TEST(test_mtu_not_negotiated),
        TEST(test_mtu_cannot_be_read),
        TEST(test_mac),
        TEST(test_no_mac),
        TEST(test_queue_sizes),
        TEST(test_no_usable_queue),
        TEST(test_pairs),
        TEST(test_pair_with_unusable_queue),
        TEST(test_link),
        TEST(test_choice_of_interrupts),
        TEST(test_vectors),
        TEST(test_vectors_of_many),
        TEST(test_handlers),
        TEST(test_pin),
        TEST(test_polled),
        TEST(test_buffers_are_there_before_it_runs),
        TEST(test_queue_refused),
        TEST(test_config_vector_lost),
        TEST(test_pairs_not_answered),
        TEST(test_control_queue_unusable),
        TEST(test_attach),
    };

    return cmocka_run_group_tests_name("net", tests, modern_make_bars, modern_free_bars);
}

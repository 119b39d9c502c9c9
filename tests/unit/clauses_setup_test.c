/* What the specification says of how a driver sets a device up (virtio 1.3, chapters 2, 3, 4.1 and 5.1.4 to 5.1.6),
 * seen from the device's end: every register that is written, in order, every field of the configuration that is read,
 * every command, every interrupt. The device is modern_rig's, with fake_device behind its control queue. */
#include "tests/unit/modern_rig.h"

#include <linux/virtio_config.h>
#include "drivers/virtio/net.h"
#include "kernel/apic.h"
#include "kernel/clock.h"
#include "kernel/memory.h"
#include "kernel/random.h"
#include "kernel/traps.h"
#include "tests/unit/fake_device.h"

#define F(name)  FEATURE_BIT(VIRTIO_NET_F_##name)
#define VERSION1 FEATURE_BIT(VIRTIO_F_VERSION_1)

/* device_status (2.1). */
#define DRIVER_OK   4
#define FEATURES_OK 8
#define FAILED      0x80

/* The common structure's registers (4.1.4.3). */
enum {
    OFFER_SELECT = 0,
    SELECT = 8,
    ACCEPT = 12,
    STATUS = 20,
    QUEUE = 22,
    SIZE = 24,
    VECTOR = 26,
    ENABLE = 28,
    AREAS = 32
};

static struct virtnet net, core[4];
static struct virtio_error error;
static struct virtio_net_config config;
static void *memory[64];
static unsigned memory_count;
static struct {
    void (*handler)(void *argument);
    void *argument;
} irq[256];

/* The control queue's device, and the commands it was given: class, command, first data word. */
static struct fake_device control;
static bool control_there;
static struct {
    uint8_t class, command;
    uint16_t word;
    uint8_t status;        /* of the device when it came */
    unsigned enabled;      /* queues enabled then */
    uint16_t transmitting; /* frames then in transmit queues */
} command[16];
static unsigned commands;

static unsigned early_bells; /* notifications before DRIVER_OK */

/* ---- what the driver is linked with ---- */

static void serve_control(void);

/* The driver looks at the clock while it waits for an answer: the device's turn. */
uint64_t clock_ns(void)
{
    static uint64_t now;

    serve_control();
    return now += 100000;
}

uint64_t random_next(void)
{
    return 0x0102030405060708;
}

void irq_install(uint8_t vector, void (*handler)(void *argument), void *argument)
{
    irq[vector].handler = handler;
    irq[vector].argument = argument;
}

void pic_enable(uint8_t line)
{
    (void)line;
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

/* ---- the device ---- */

static unsigned enabled_queues(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < MODERN_QUEUES; i++)
        n += modern.dev.queue[i].enabled;
    return n;
}

static const struct vring_avail *available(unsigned queue)
{
    return (const struct vring_avail *)(uintptr_t)modern.dev.queue[queue].area[1];
}

static uint16_t in_transmit_queues(void)
{
    uint16_t n = 0;

    for (unsigned i = 1; i < 2u * config.max_virtqueue_pairs && i < MODERN_QUEUES; i += 2)
        n = (uint16_t)(n + (modern.dev.queue[i].enabled ? available(i)->idx : 0));
    return n;
}

/* Takes a command, notes it, answers OK. */
static void serve_control(void)
{
    unsigned index = 2u * config.max_virtqueue_pairs;
    struct fake_chain chain;

    if (!(modern.dev.status & DRIVER_OK) || index >= MODERN_QUEUES || !modern.dev.queue[index].enabled)
        return;
    const struct modern_queue *q = &modern.dev.queue[index];
    if (!control_there)
        fake_device_init(&control, (void *)(uintptr_t)q->area[0], (void *)(uintptr_t)q->area[1],
                         (void *)(uintptr_t)q->area[2], q->size, false, false);
    if (!control_there)
        control.violation[0] = '\0'; /* it comes late: the indices are no longer 0 */
    control_there = true;
    if (!fake_device_take(&control, &chain))
        return;
    check(!control.violation[0] && commands < COUNT_OF(command), "%s", control.violation);
    const uint8_t *header = (const uint8_t *)(uintptr_t)chain.piece[0].addr;
    command[commands].class = header[0];
    command[commands].command = header[1];
    if (chain.pieces == 3)
        memcpy(&command[commands].word, (const void *)(uintptr_t)chain.piece[1].addr, 2);
    command[commands].status = modern.dev.status;
    command[commands].enabled = enabled_queues();
    command[commands++].transmitting = in_transmit_queues();
    *(uint8_t *)(uintptr_t)chain.piece[chain.pieces - 1].addr = VIRTIO_NET_OK;
    fake_device_return(&control, 0, 1);
    fake_device_publish(&control);
}

static void see_status(uint8_t status)
{
    if (!(status & DRIVER_OK) || (modern.dev.status & DRIVER_OK))
        return;
    for (unsigned i = 0; i < NOTIFY_LENGTH; i++)
        early_bells += (uint8_t)modern.bar[4][NOTIFY_AT + i] != 0xee;
}

static int tear_down(void **state)
{
    (void)state;
    while (memory_count > 0)
        free(memory[--memory_count]);
    if (control_there)
        fake_device_free(&control);
    control_there = false;
    return 0;
}

static int set_up(void **state)
{
    tear_down(state);
    modern_set_up(state);
    memset(&net, 0x5a, sizeof(net));
    memset(&error, 0, sizeof(error));
    memset(&config, 0, sizeof(config));
    memcpy(config.mac, "\x52\x54\x00\x12\x34\x56", 6);
    config.mtu = 1400;
    config.status = VIRTIO_NET_S_LINK_UP;
    config.max_virtqueue_pairs = 1;
    config.rss_max_key_size = 40;
    config.rss_max_indirection_table_length = 128;
    config.supported_hash_types = 0x1ff;
    modern.dev.config = (const uint8_t *)&config;
    modern.dev.offered = VERSION1 | F(MAC) | F(STATUS) | F(MRG_RXBUF);
    modern.dev.on_status = see_status;
    memset(modern.bar[4] + NOTIFY_AT, 0xee, NOTIFY_LENGTH);
    memset(irq, 0, sizeof(irq));
    memset(command, 0, sizeof(command));
    commands = early_bells = 0;
    return 0;
}

/* The same with the four structures and `vectors` MSI-X vectors (0: none). */
static void set_up_plain(unsigned vectors)
{
    set_up(NULL);
    modern_add_all_good_but(0);
    if (vectors == 0)
        return;
    unsigned at = modern_add_cap(0x11, 12);
    fake_pci_set(modern.function, at + 2, 2, vectors - 1, 0xc000);
    memset(modern.bar[0], 0, BAR_SIZE);
}

static void offer_pairs(uint16_t pairs)
{
    modern.dev.offered |= F(MQ) | F(CTRL_VQ);
    modern.dev.queue_count = MODERN_QUEUES;
    config.max_virtqueue_pairs = pairs;
}

/* Looks at the device with these features off, up to FEATURES_OK. */
static bool probe(uint64_t off, uint16_t ring_max, uint16_t pairs)
{
    struct feature_request request = { off, 0 };

    fake_console_clear();
    modern_find_device();
    return virtnet_probe(&net, &modern.device, &request, ring_max, pairs, &error);
}

/* All the rest, with one pair per core. */
static bool bring_up(uint16_t pairs)
{
    struct virtnet_peer peer[4];
    static uint8_t key[CONTROL_RSS_KEY], table[CONTROL_RSS_TABLE];

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

static void start(unsigned vectors, uint16_t pairs)
{
    set_up_plain(vectors);
    if (pairs > 1)
        offer_pairs(4);
    assert_true(probe(0, 16, pairs));
    check(bring_up(pairs), "%s", error.text);
}

/* ---- the order of steps ---- */

/* 3.1.1: reset, ACKNOWLEDGE, DRIVER, features, FEATURES_OK, queues (enabled when all else of them is set), DRIVER_OK;
 * no features after FEATURES_OK, nothing of queues before it or after DRIVER_OK, no notification before DRIVER_OK. What
 * is the device's own (4.1.4.3.2, 5.1.4.2) modern_rig does not let be written. */
static void test_order_of_all_steps(void **state)
{
    static const uint8_t order[] = { 0, 1, 3, 0xb, 0xf };

    (void)state;
    for (uint16_t pairs = 1; pairs <= 4; pairs += 3) {
        unsigned steps = 0, enabled = 0;
        uint8_t status = 0xff;
        bool set[3 + 6] = { false };

        start(9, pairs);
        for (unsigned i = 0; i < modern.dev.log_count; i++) {
            const struct modern_write *w = &modern.dev.log[i];
            if (w->at == STATUS) {
                check(steps < COUNT_OF(order) && w->value == order[steps], "status %x as step %u", w->value, steps);
                status = order[steps++];
            } else if (w->at == SELECT || w->at == ACCEPT) {
                check(status == 3, "features are written in status %x", status);
            } else if (w->at == ENABLE) {
                assert_int_equal(w->value, 1);
                assert_int_equal(status, 0xb);
                for (unsigned k = 0; k < COUNT_OF(set); k++)
                    check(k == 2 || set[k], "queue enabled without its register %u", k);
                enabled++;
            } else if (w->at >= SIZE) {
                check(status == 0xb, "the register of a queue at %u is written in status %x", w->at, status);
                set[w->at == SIZE ? 0 : w->at == VECTOR ? 1 : 3 + (w->at - AREAS) / 4] = true;
            } else if (w->at == QUEUE) {
                assert_int_equal(status, 0xb);
                memset(set, 0, sizeof(set));
            }
        }
        assert_int_equal(steps, COUNT_OF(order));
        assert_int_equal(enabled, pairs == 1 ? 2 : 9);
        assert_int_equal(early_bells, 0);
        assert_int_equal(modern.dev.misfits, 0);
    }
}

/* 2.1.1: each status that is written has the bits of the one before, but for the reset at the beginning; whatever goes
 * wrong on the way. */
static void test_status_only_grows(void **state)
{
    (void)state;
    for (unsigned what = 0; what < 6; what++) {
        uint8_t last = 0;

        set_up_plain(3);
        modern.dev.offered &= what == 1 ? ~VERSION1 : UINT64_MAX;
        modern.dev.queue[0].size = what == 2 ? 0 : 256;
        modern.dev.loses_size = what == 3;
        modern.dev.loses_vector = what == 4;
        modern.dev.queue[1].notify_off = what == 5 ? 0xffff : 1;
        bool good = probe(0, 16, 1) && bring_up(1);
        assert_int_equal(good, what == 0);
        for (unsigned i = 0; i < modern.dev.log_count; i++) {
            const struct modern_write *w = &modern.dev.log[i];
            if (w->at != STATUS)
                continue;
            check(w->value == 0 ? i == 0 : (w->value & last) == last, "status %x after %x", w->value, last);
            last = (uint8_t)w->value;
        }
        assert_int_equal(last & FAILED, good ? 0 : FAILED);
    }
}

/* ---- features ---- */

/* 2.2.1: a device that offers every bit, known or not: it works, with what is implemented, and nothing is written of
 * the bits from 64 on. */
static void test_everything_offered(void **state)
{
    size_t count;
    const struct feature *f = features_table(&count);
    uint64_t implemented = 0;

    (void)state;
    for (size_t i = 0; i < count; i++)
        implemented |= f[i].implemented ? FEATURE_BIT(f[i].bit) : 0;
    set_up_plain(3);
    modern.dev.offered = UINT64_MAX;
    modern.dev.offers_beyond = true;
    assert_true(probe(0, 16, 1));
    check(bring_up(1), "%s", error.text);
    assert_int_equal(modern.dev.accepted, implemented);
    assert_int_equal(modern.dev.status, 0xf);
    for (unsigned i = 0; i < modern.dev.log_count; i++)
        assert_true(modern.dev.log[i].at != SELECT || modern.dev.log[i].value < 2);
}

/* 6.1: VERSION_1 is accepted where it is offered; who switches it off gets no device. */
static void test_version_1_is_not_optional(void **state)
{
    (void)state;
    set_up_plain(3);
    assert_true(probe(~VERSION1, 16, 1));
    assert_int_equal(modern.dev.accepted, VERSION1);
    set_up_plain(3);
    assert_false(probe(VERSION1, 16, 1));
    assert_non_null(strstr(error.text, "version_1"));
    assert_true(modern.dev.status & FAILED);
    assert_false(modern.dev.status & FEATURES_OK);
}

/* 2.5.1: fields are read only when the features that they belong to (5.1.4) are offered, in every combination. */
static void test_fields_need_their_features(void **state)
{
    static const struct {
        uint64_t features; /* any of them */
        unsigned at, bytes;
    } field[] = {
        { F(MAC), 0, 6 },           { F(STATUS), 6, 2 },
        { F(MQ) | F(RSS), 8, 2 },   { F(MTU), 10, 2 },
        { F(SPEED_DUPLEX), 12, 5 }, { F(RSS) | F(HASH_REPORT), 17, 1 },
        { F(RSS), 18, 2 },          { F(RSS) | F(HASH_REPORT), 20, 4 },
        { FEATURE_BIT(51), 24, 4 }, /* hash_tunnel */
    };
    static const uint64_t bit[] = { F(MAC), F(STATUS),      F(MQ),           F(MTU),
                                    F(RSS), F(HASH_REPORT), F(SPEED_DUPLEX), F(CTRL_VQ) };

    (void)state;
    for (unsigned n = 0; n < 1u << COUNT_OF(bit); n++) {
        uint64_t allowed = 0;

        set_up_plain(0);
        modern.dev.offered = VERSION1;
        for (unsigned i = 0; i < COUNT_OF(bit); i++)
            modern.dev.offered |= n & 1u << i ? bit[i] : 0;
        for (unsigned i = 0; i < COUNT_OF(field); i++)
            if (modern.dev.offered & field[i].features)
                allowed |= ((1ull << field[i].bytes) - 1) << field[i].at;
        assert_true(probe(0, 16, 4));
        virtnet_link_up(&net);
        check(!(modern.dev.config_touched & ~allowed), "device_feature %llx: bytes %llx of the configuration are read",
              (unsigned long long)modern.dev.offered, (unsigned long long)(modern.dev.config_touched & ~allowed));
        assert_int_equal(modern.dev.misfits, 0);
    }
}

/* 4.1.3.1: a field of 8 bits by one access each, of 16 and 32 by one access. */
static void test_widths(void **state)
{
    (void)state;
    set_up_plain(0);
    modern.dev.offered |= F(MTU) | F(MQ) | F(CTRL_VQ) | F(RSS);
    assert_true(probe(0, 16, 1));
    /* mtu, then mac, max_virtqueue_pairs, rss_max_key_size, rss_max_indirection_table_length, supported_hash_types */
    assert_int_equal(modern.dev.config_reads, 1 + 6 + 1 + 1 + 1 + 1);
    virtnet_link_up(&net);
    assert_int_equal(modern.dev.config_reads, 12);
}

/* 5.1.4.2: who negotiates MAC uses the device's address; so it is not negotiated when that is no station's. */
static void test_bad_mac_is_not_acknowledged(void **state)
{
    static const char *const bad[] = { "\0\0\0\0\0\0", "\xff\xff\xff\xff\xff\xff", "\x01\0\x5e\0\0\x01" };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(bad); i++) {
        set_up_plain(0);
        memcpy(config.mac, bad[i], 6);
        assert_true(probe(0, 16, 1));
        assert_false(modern.dev.accepted & F(MAC));
        assert_false(virtnet_has(&net, VIRTIO_NET_F_MAC));
        assert_memory_equal(net.mac, "\x0a\x07\x06\x05\x04\x03", 6); /* random, locally administered */
    }
    set_up_plain(0);
    assert_true(probe(F(MAC), 16, 1));
    assert_memory_equal(net.mac, "\x0a\x07\x06\x05\x04\x03", 6);
    assert_int_equal(fake_console_count(LOG_WARN), 0);
}

/* ---- PCI ---- */

/* 2.5.1, 4.1.4.1: structures longer than what is known of them. */
static void test_long_structures(void **state)
{
    static const uint32_t lengths[TYPES + 1] = { 0, 0x1000, NOTIFY_LENGTH, 0x1000, BAR_SIZE - DEVICE_AT };

    (void)state;
    set_up(NULL);
    for (uint8_t type = 1; type <= TYPES; type++)
        modern_add_structure(type, 4, good[type].offset, lengths[type]);
    assert_true(probe(0, 16, 1));
    check(bring_up(1), "%s", error.text);
    assert_int_equal(net.transport.config_length, BAR_SIZE - DEVICE_AT);
}

/* 4.1.4.1: capabilities longer than described, each type by itself and all. */
static void test_longer_capabilities(void **state)
{
    (void)state;
    for (unsigned longer = 1; longer <= TYPES + 1; longer++) {
        set_up(NULL);
        for (uint8_t type = 1; type <= TYPES; type++) {
            unsigned at = modern_add_structure(type, 4, good[type].offset, good[type].length);
            if (longer == type || longer > TYPES) {
                uint8_t length = (uint8_t)(fake_pci_get(modern.function, at + 2, 1) + 12);
                fake_pci_set(modern.function, at + 2, 1, length, 0);
                modern.next_cap = at + length;
            }
        }
        assert_true(probe(0, 16, 1));
        assert_ptr_equal(net.transport.common, modern.bar[4]);
        assert_ptr_equal(net.transport.isr, modern.bar[4] + ISR_AT);
        assert_ptr_equal(net.transport.config, modern.bar[4] + DEVICE_AT);
        assert_ptr_equal(net.transport.notify, modern.bar[4] + NOTIFY_AT);
        check(bring_up(1), "%s", error.text);
    }
}

/* 4.1.4.1, 4.1.4.8.2, 4.1.4.9.2: of all capabilities, access through configuration space and vendor data among them,
 * nothing is written but MSI-X's control. */
static void test_capabilities_are_not_written(void **state)
{
    (void)state;
    for (unsigned vectors = 0; vectors <= 3; vectors += 3) {
        uint8_t before[256];
        set_up(NULL);
        modern_add_structure(CAP_PCI, 0, 0, 0);
        modern_add_structure(9, 4, 0, 0x1000); /* vendor data */
        modern_add_all_good_but(0);
        unsigned msix = modern_add_cap(0x11, 12);
        fake_pci_set(modern.function, msix + 2, 2, vectors ? vectors - 1 : 0, 0xc000);
        if (vectors == 0)
            fake_pci_set(modern.function, msix, 1, 0x0a, 0); /* something else */
        for (unsigned at = 0x40; at < 0x100; at++)           /* all could be written */
            modern.function->writable[at] = 0xff;
        memcpy(before, modern.function->space, sizeof(before));
        assert_true(probe(0, 16, 1));
        check(bring_up(1), "%s", error.text);
        virtnet_link_up(&net);
        for (unsigned at = 0x40; at < 0x100; at++)
            check(modern.function->space[at] == before[at] || (vectors && at - msix - 2 < 2), "byte %x is written", at);
    }
}

/* 4.1.4.3.2: every size written is a power of 2, whatever the device has and the user wants. */
static void test_sizes_are_powers_of_two(void **state)
{
    uint64_t seed = chance_seed(0x512e);

    (void)state;
    for (unsigned n = 0; n < 200; n++) {
        unsigned sizes = 0;

        set_up_plain(0);
        offer_pairs(1);
        for (unsigned i = 0; i < 3; i++)
            modern.dev.queue[i].size = (uint16_t)(2 + chance_below(&seed, n % 2 ? 2000 : 100));
        assert_true(probe(0, (uint16_t)(chance(&seed) & 1 ? 0 : 2u << chance_below(&seed, 10)), 1));
        check(bring_up(1), "%s", error.text);
        for (unsigned i = 0; i < modern.dev.log_count; i++) {
            uint32_t size = modern.dev.log[i].value;
            if (modern.dev.log[i].at == SIZE)
                check(size >= 2 && (size & (size - 1)) == 0 && ++sizes, "a size of %u", size);
        }
        assert_true(sizes >= 2);
    }
}

/* ---- interrupts ---- */

/* 4.1.5.1.2.2: MSI-X tables of any size: no vector is named that there is not. */
static void test_any_number_of_vectors(void **state)
{
    (void)state;
    for (unsigned vectors = 1; vectors <= 2048; vectors += vectors < 20 ? 1 : vectors < 1024 ? 97 : 256) {
        for (uint16_t pairs = 1; pairs <= 4; pairs++) {
            unsigned named = 0;
            start(vectors, pairs);
            assert_true(modern.dev.config_vector < vectors);
            for (unsigned i = 0; i < 2u * pairs; i++)
                assert_true(modern.dev.queue[i].enabled && modern.dev.queue[i].vector < vectors);
            for (unsigned i = 0; i < modern.dev.log_count; i++)
                named += modern.dev.log[i].at == VECTOR && modern.dev.log[i].value < vectors;
            assert_true(named >= 2u * pairs);
        }
    }
    start(2048, 1);
    assert_int_equal(modern.dev.status, 0xf);
}

static void raise(uint8_t vector)
{
    if (irq[vector].handler)
        irq[vector].handler(irq[vector].argument);
}

static const uint8_t vectors_in_use[] = { VECTOR_CONFIG, VECTOR_RX, VECTOR_TX, VECTOR_QUEUES };

/* 4.1.4.5.2: with MSI-X the ISR status is left alone. */
static void test_isr_is_left_alone(void **state)
{
    (void)state;
    for (unsigned vectors = 1; vectors <= 3; vectors++) {
        start(vectors, 1);
        modern.dev.isr = 3;
        for (unsigned i = 0; i < COUNT_OF(vectors_in_use); i++)
            raise(vectors_in_use[i]);
        assert_true(net.pair.rx_stats.interrupts > 0);
        assert_int_equal(modern.dev.isr_reads, 0);
        assert_int_equal(modern.dev.isr, 3);
    }
}

static void never_done(void *token)
{
    (void)token;
    fail_msg("a frame was sent that was not");
}

/* 2.7.7.1: interrupts without a reason, of every kind: nothing comes of them. */
static void test_needless_interrupts(void **state)
{
    (void)state;
    for (unsigned vectors = 1; vectors <= 3; vectors++) {
        struct virtnet_frame frame;
        start(vectors, 1);
        uint32_t free_count = net.pair.pool.free_count;
        for (unsigned n = 0; n < 100; n++) {
            for (unsigned i = 0; i < COUNT_OF(vectors_in_use); i++)
                raise(vectors_in_use[i]);
            assert_false(virtnet_receive(&net.pair, &frame));
            assert_int_equal(virtnet_reclaim(&net.pair, 64, never_done), 0);
            virtnet_flush(&net.pair);
            assert_true(virtnet_sleep(&net.pair, true));
            virtnet_awake(&net.pair);
        }
        virtnet_report_faults(&net.pair);
        assert_int_equal(net.pair.pool.free_count, free_count);
        assert_int_equal(net.pair.rx.stats.bad_used + net.pair.tx.stats.bad_used, 0);
        assert_int_equal(fake_console_count(LOG_ERROR), 0);
        assert_true(virtnet_link_up(&net));
    }
}

/* ---- queues and commands ---- */

/* 5.1.6.3.1: each receive queue in use has its buffers when the device begins to serve. */
static void test_each_pair_has_buffers(void **state)
{
    (void)state;
    for (uint16_t pairs = 1; pairs <= 4; pairs++) {
        start(9, pairs);
        for (unsigned i = 0; i < pairs; i++) {
            assert_int_equal(available(2 * i)->idx, 16);
            assert_int_equal(available(2 * i + 1)->idx, 0);
        }
        assert_int_equal(net.pairs, pairs);
    }
}

/* 5.1.6.5.6.1: the number of pairs is set when all their queues are enabled and the device runs, and nothing has been
 * sent by then. */
static void test_pairs_are_set_last(void **state)
{
    (void)state;
    for (uint16_t pairs = 2; pairs <= 4; pairs++) {
        start(9, pairs);
        assert_int_equal(commands, 1);
        assert_int_equal(command[0].class, VIRTIO_NET_CTRL_MQ);
        assert_int_equal(command[0].command, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET);
        assert_int_equal(command[0].word, pairs);
        assert_int_equal(command[0].status, 0xf);
        assert_int_equal(command[0].enabled, 2 * pairs + 1);
        assert_int_equal(command[0].transmitting, 0);
    }
}

/* Commands are sent only of features that were negotiated (5.1.6.5.1.2 and so on), whatever else is offered. */
static void test_commands_as_negotiated(void **state)
{
    static const uint64_t feature[] = { F(MQ), F(RSS), F(HASH_REPORT) };

    (void)state;
    for (unsigned n = 0; n < 32; n++) {
        uint64_t all = n & 16 ? UINT64_MAX : 0;
        set_up_plain(9);
        offer_pairs(4);
        modern.dev.offered = (modern.dev.offered | all) & ~(F(MQ) | F(RSS) | F(HASH_REPORT));
        for (unsigned i = 0; i < COUNT_OF(feature); i++)
            modern.dev.offered |= n & 1u << i ? feature[i] : 0;
        config.max_virtqueue_pairs = n & 3 ? 4 : 1; /* where the control queue is depends on it */
        uint16_t pairs = n & 3 && n & 8 ? 4 : 1;
        assert_true(probe(0, 16, pairs));
        check(bring_up(pairs), "%s", error.text);
        for (unsigned i = 0; i < commands; i++) {
            unsigned what = command[i].command;
            assert_int_equal(command[i].class, VIRTIO_NET_CTRL_MQ);
            check(what <= 2 && modern.dev.accepted & feature[what], "command %u with driver_feature %llx", what,
                  (unsigned long long)modern.dev.accepted);
        }
        assert_true(commands > 0 || pairs == 1);
        assert_true(net.pairs == pairs);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_order_of_all_steps),          TEST(test_status_only_grows),
        TEST(test_everything_offered),          TEST(test_version_1_is_not_optional),
        TEST(test_fields_need_their_features),  TEST(test_widths),
        TEST(test_bad_mac_is_not_acknowledged), TEST(test_long_structures),
        TEST(test_longer_capabilities),         TEST(test_capabilities_are_not_written),
        TEST(test_sizes_are_powers_of_two),     TEST(test_any_number_of_vectors),
        TEST(test_isr_is_left_alone),           TEST(test_needless_interrupts),
        TEST(test_each_pair_has_buffers),       TEST(test_pairs_are_set_last),
        TEST(test_commands_as_negotiated),
    };

    return cmocka_run_group_tests_name("clauses_setup", tests, modern_make_bars, modern_free_bars);
}

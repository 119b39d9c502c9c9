/* Finding out about a virtio-net device: what of its configuration is believed, which queues are used, and what is said
 * when it cannot be. */
#include "tests/unit/setup_rig.h"

/* ---- probe ---- */

static void test_plain(void **state)
{
    (void)state;
    assert_true(setup_probe());
    assert_int_equal(setup.net.features, modern.dev.offered);
    assert_int_equal(modern.dev.accepted, modern.dev.offered);
    assert_int_equal(modern.dev.status, 0xb); /* features agreed on, not running */
    assert_memory_equal(setup.net.mac, "\x52\x54\x00\x12\x34\x56", 6);
    assert_int_equal(setup.net.mtu, 1500);
    assert_int_equal(setup.net.max_pairs, 1);
    assert_int_equal(setup.net.pairs, 1);
    assert_int_equal(setup.net.ring_size[0][0], 256);
    assert_int_equal(setup.net.ring_size[0][1], 256);
    assert_int_equal(fake_pci_get(modern.function, 0x04, 2) & 6, 6); /* memory decoding, bus mastering */
    assert_int_equal(fake_console_count(LOG_INFO), 0);
    assert_int_equal(modern.dev.misfits, 0);
}

static void test_not_to_be_had(void **state)
{
    (void)state;
    modern.dev.offered &= ~VERSION1;
    assert_false(setup_probe());
    setup_check_reason("version_1", "device_feature");
    assert_true(modern.dev.status & FAILED);
    set_up(state);
    assert_false(setup_probe_asking(0, F(MQ), 0, 1));
    setup_check_reason("+mq", "device_feature");
    assert_true(modern.dev.status & FAILED);
    modern_set_up(state);
    assert_false(setup_probe());
    setup_check_reason("common configuration", "legacy");
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
        setup.config.mtu = (uint16_t)values[i];
        assert_true(setup_probe());
        assert_int_equal(setup.net.mtu, good ? values[i] : 1500);
        assert_int_equal(virtnet_has(&setup.net, VIRTIO_NET_F_MTU), good); /* refused: not acknowledged */
        snprintf(text, sizeof(text), "%u,", values[i]);
        if (!good)
            setup_check_warned("config mtu", text);
        assert_int_equal(fake_console_count(LOG_WARN), !good);
    }
}

static void test_mtu_not_negotiated(void **state)
{
    (void)state;
    setup.config.mtu = 20;
    assert_true(setup_probe()); /* the field is there, the feature is not */
    assert_int_equal(setup.net.mtu, 1500);
    assert_int_equal(fake_console_count(LOG_WARN), 0);
    modern.dev.offered |= F(MTU);
    assert_true(setup_probe_asking(F(MTU), 0, 0, 1));
    assert_int_equal(setup.net.mtu, 1500);
    assert_false(virtnet_has(&setup.net, VIRTIO_NET_F_MTU));
    assert_int_equal(fake_console_count(LOG_WARN), 0);
    assert_false(setup_probe_asking(0, F(MTU), 0, 1)); /* insisted on, and impossible */
    setup_check_reason("+mtu", "device_feature");
}

static void test_mtu_cannot_be_read(void **state)
{
    set_up(state);
    modern.next_cap = 0x40; /* a configuration that ends before it */
    fake_pci_set(modern.function, 0x34, 1, 0, 0);
    modern_add_all_good_but(CAP_DEVICE);
    modern_add_structure(CAP_DEVICE, 4, DEVICE_AT, 8);
    modern.dev.offered |= F(MTU);
    assert_true(setup_probe());
    assert_int_equal(setup.net.mtu, 1500);
    assert_false(virtnet_has(&setup.net, VIRTIO_NET_F_MTU));
    setup_check_warned("config mtu", "refused");
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
        memcpy(setup.config.mac, rows[i].mac, 6);
        assert_true(setup_probe());
        if (rows[i].good) {
            assert_memory_equal(setup.net.mac, rows[i].mac, 6);
            assert_int_equal(fake_console_count(LOG_WARN), 0);
            continue;
        }
        char text[20];
        const uint8_t *m = setup.config.mac;
        snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5]);
        setup_check_warned("config mac", text);
        assert_memory_equal(setup.net.mac, "\xfe\xff\xff\xff\xff\xff",
                            6); /* random, a station's, locally administered */
    }
}

static void test_no_mac(void **state)
{
    (void)state;
    modern.dev.offered &= ~F(MAC);
    assert_true(setup_probe());
    assert_memory_equal(setup.net.mac, "\xfe\xff\xff\xff\xff\xff", 6);
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
        assert_true(setup_probe_asking(0, 0, rows[i].ring_max, 1));
        assert_int_equal(setup.net.ring_size[0][0], rows[i].expected);
        assert_int_equal(setup.net.ring_size[0][1], rows[i].ring_max == 2 ? 2 : 4);
    }
}

/* Without mergeable buffers each receive buffer holds the largest packet: few of them are posted (5.1.6.3.1). */
static void test_large_buffers(void **state)
{
    static const uint16_t sizes[] = { 2, 16, 32, 64, 256, 1024, 0x8000 };

    for (unsigned i = 0; i < 4 * COUNT_OF(sizes); i++) {
        bool large = i & 1, merged = i & 2;
        set_up(state);
        if (!merged)
            modern.dev.offered &= ~F(MRG_RXBUF);
        if (large)
            modern.dev.offered |= F(GUEST_CSUM) | F(GUEST_TSO6);
        modern.dev.queue[0].size = modern.dev.queue[1].size = sizes[i / 4];
        assert_true(setup_probe());
        assert_int_equal(setup.net.ring_size[0][0], large && !merged && sizes[i / 4] > 32 ? 32 : sizes[i / 4]);
        assert_int_equal(setup.net.ring_size[0][1], sizes[i / 4]);
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
        assert_false(setup_probe());
        setup_check_reason("no usable queue", "queue_size");
        setup_check_reason(which, value);
        assert_true(modern.dev.status & FAILED);
    }
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
        setup_offer_pairs(rows[i].device);
        assert_true(setup_probe_asking(0, 0, 0, rows[i].want));
        assert_int_equal(setup.net.max_pairs, rows[i].max);
        assert_int_equal(setup.net.pairs, rows[i].pairs);
        assert_int_equal(fake_console_count(LOG_WARN), rows[i].warnings);
    }
    set_up(state); /* without the feature the field means nothing */
    setup.config.max_virtqueue_pairs = 4;
    assert_true(setup_probe_asking(0, 0, 0, 4));
    assert_int_equal(setup.net.max_pairs, 1);
    assert_int_equal(setup.net.pairs, 1);
}

static void test_pair_with_unusable_queue(void **state)
{
    for (unsigned queue = 2; queue < 8; queue++) {
        char text[20];
        set_up(state);
        setup_offer_pairs(4);
        modern.dev.queue[queue].size = queue % 3 == 0;
        assert_true(setup_probe_asking(0, 0, 0, 4));
        assert_int_equal(setup.net.pairs, queue / 2);
        assert_int_equal(setup.net.max_pairs, 4); /* where the control queue is does not change */
        snprintf(text, sizeof(text), "queue %u is %u", queue, queue % 3 == 0);
        setup_check_warned("queue_size", text);
    }
}

static void test_link(void **state)
{
    (void)state;
    assert_true(setup_probe());
    assert_true(virtnet_link_up(&setup.net));
    setup.config.status = VIRTIO_NET_S_ANNOUNCE;
    assert_false(virtnet_link_up(&setup.net));
    setup.config.status = 0xffff;
    assert_true(virtnet_link_up(&setup.net));
    setup.config.status = 0;
    modern.dev.offered &= ~F(STATUS);
    assert_true(setup_probe());
    assert_true(virtnet_link_up(&setup.net));
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
        TEST(test_large_buffers),
        TEST(test_no_usable_queue),
        TEST(test_pairs),
        TEST(test_pair_with_unusable_queue),
        TEST(test_link),
    };

    return cmocka_run_group_tests_name("net", tests, modern_make_bars, modern_free_bars);
}

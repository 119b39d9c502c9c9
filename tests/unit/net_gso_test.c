/* Received packets that stand for several (5.1.6.4.1): only of the kinds that were acknowledged, in as many buffers as
 * it takes, or in one large one. */
#include "tests/unit/net_rig.h"

#define TSO4 FEATURE_BIT(VIRTIO_NET_F_GUEST_TSO4)
#define TSO6 FEATURE_BIT(VIRTIO_NET_F_GUEST_TSO6)
#define ECN  FEATURE_BIT(VIRTIO_NET_F_GUEST_ECN)

static struct virtnet_frame frame;

static int close_rig(void **state)
{
    (void)state;
    if (net_rig.pair != NULL)
        net_rig_close();
    return 0;
}

static void give_back(void)
{
    net_rig_hold(&frame);
    net_rig_check_buffers();
    while (net_rig.held_count > 0)
        net_rig_release(0);
    virtnet_refill(net_rig.pair);
    net_rig_flush();
}

static bool expected(uint64_t features, unsigned type, unsigned size)
{
    if (type == VIRTIO_NET_HDR_GSO_NONE)
        return true; /* gso_size means nothing then */
    if (size == 0 || ((type & VIRTIO_NET_HDR_GSO_ECN) && !(features & ECN)))
        return false;
    unsigned kind = type & 0x7f;
    return (kind == VIRTIO_NET_HDR_GSO_TCPV4 && (features & TSO4)) ||
           (kind == VIRTIO_NET_HDR_GSO_TCPV6 && (features & TSO6));
}

/* Every gso_type with every set of features, and sizes; whatever else the header says. */
static void test_every_type(void **state)
{
    static const uint16_t sizes[] = { 0, 1, 1448, 65535 };

    for (unsigned set = 0; set < 16; set++) {
        uint64_t features =
            CSUM | (set & 1 ? TSO4 : 0) | (set & 2 ? TSO6 : 0) | (set & 4 ? ECN : 0) | (set & 8 ? MRG : 0);
        net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = features });
        uint64_t bad = 0, good = 0, large = 0;
        for (unsigned n = 0; n < 256 * COUNT_OF(sizes); n++) {
            unsigned type = n / COUNT_OF(sizes), size = sizes[n % COUNT_OF(sizes)];
            struct net_frame f = { .header.hdr = { .flags = n % 3 ? VIRTIO_NET_HDR_F_NEEDS_CSUM : 0,
                                                   .gso_type = (uint8_t)type,
                                                   .gso_size = (uint16_t)size,
                                                   .hdr_len = (uint16_t)(n * 77),
                                                   .csum_start = 34,
                                                   .csum_offset = 16 },
                                   .bytes = n % 5 ? 1000 : 60 };
            assert_true(net_rig_write(&f));
            fake_device_publish(&net_rig.rx);
            bool got = virtnet_receive(net_rig.pair, &frame);
            check(got == expected(features, type, size), "type %#x size %u with features %#x: %s", type, size, set,
                  got ? "taken" : "dropped");
            good += got;
            bad += !got;
            large += got && type != VIRTIO_NET_HDR_GSO_NONE;
            assert_int_equal(net_rig.pair->rx_stats.packets, good);
            assert_int_equal(net_rig.pair->rx_stats.bad_header, bad);
            assert_int_equal(net_rig.pair->rx_stats.gso, large);
            if (got)
                assert_int_equal(frame.flags & VIRTNET_FRAME_LARGE,
                                 type == VIRTIO_NET_HDR_GSO_NONE ? 0 : VIRTNET_FRAME_LARGE);
            else
                frame.count = 0;
            give_back();
        }
        close_rig(state);
    }
}

#define USO4   FEATURE_BIT(54) /* 5.1.3 */
#define USO6   FEATURE_BIT(55)
#define UDP_L4 5 /* 5.1.6 */

/* Datagrams: of the IP version that was acknowledged, with a size, and with checksums that the device vouches for or
 * leaves open in UDP's own place. */
static void test_datagrams(void **state)
{
    static const uint16_t types[] = { 0x0800, 0x86dd, 0x0806 };

    for (unsigned set = 0; set < 4; set++) {
        uint64_t features = CSUM | MRG | (set & 1 ? USO4 : 0) | (set & 2 ? USO6 : 0), bad = 0;
        net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = features });
        for (unsigned n = 0; n < COUNT_OF(types) * 4 * 2 * 2 * 2; n++) {
            unsigned type = types[n % 3], flags = n / 3 % 4, size = n / 12 % 2 ? 1400 : 0;
            unsigned at = n / 24 % 2 ? 6 : 16, ecn = n / 48 ? VIRTIO_NET_HDR_GSO_ECN : 0;
            struct virtio_net_hdr_v1 h = { .flags = (uint8_t)flags, /* NEEDS_CSUM, DATA_VALID */
                                           .gso_type = (uint8_t)(UDP_L4 | ecn),
                                           .gso_size = (uint16_t)size,
                                           .csum_start = 34,
                                           .csum_offset = (uint16_t)at,
                                           .num_buffers = 1 };
            uint8_t bytes[VIRTNET_HEADER + 100] = { 0 };
            memcpy(bytes, &h, sizeof h);
            bytes[VIRTNET_HEADER + 12] = (uint8_t)(type >> 8);
            bytes[VIRTNET_HEADER + 13] = (uint8_t)type;
            assert_true(net_rig_write_raw(bytes, sizeof bytes, sizeof bytes));
            fake_device_publish(&net_rig.rx);
            bool had = type == 0x0800 ? set & 1 : type == 0x86dd ? (set & 2) != 0 : false;
            bool want = had && size != 0 && !ecn && (flags & 1 ? at == 6 : flags == 2);
            bool taken = virtnet_receive(net_rig.pair, &frame);
            check(taken == want, "type %#x, flags %u, size %u, offset %u, ecn %#x, features %u: %s", type, flags, size,
                  at, ecn, set, taken ? "taken" : "dropped");
            bad += !taken;
            assert_int_equal(net_rig.pair->rx_stats.bad_header, bad);
            if (taken) {
                assert_int_equal(frame.flags, VIRTNET_FRAME_LARGE | VIRTNET_FRAME_UDP | flags);
                assert_int_equal(frame.gso_size, 1400);
            } else {
                frame.count = 0;
            }
            give_back();
        }
        close_rig(state);
    }
}

/* Every length up to the largest, in the buffers of rings of every size, and without mergeable buffers in one. */
static void test_every_length(void **state)
{
    for (unsigned set = 0; set < 20; set++) {
        bool merged = set < 18;
        uint16_t ring = merged ? (uint16_t)(2u << set / 2) : 32;
        net_rig_open(&(struct net_config){
            .rx_size = ring, .tx_size = 16, .features = CSUM | TSO4 | (merged ? MRG : 0) | (set % 2 ? HASH : 0) });
        uint32_t data = net_rig.pair->pool.data_size;
        check((merged ? ring : 1) * data >= 65550u + net_rig.pair->header, "%u buffers of %u", ring, data);
        if (merged && ring >= 32)
            assert_int_equal(data + sizeof(struct rx_buffer), 4096);
        for (uint32_t bytes = 14; bytes <= 65550; bytes += bytes < 65400 ? 997 : 1) {
            struct net_frame f = { .header.hdr = { .gso_type = VIRTIO_NET_HDR_GSO_TCPV4, .gso_size = 1448 },
                                   .bytes = bytes,
                                   .seed = (uint8_t)bytes };
            assert_true(net_rig_write(&f));
            fake_device_publish(&net_rig.rx);
            assert_true(virtnet_receive(net_rig.pair, &frame));
            assert_true(merged || frame.count == 1);
            uint32_t at = 0;
            for (unsigned i = 0; i < frame.count; i++)
                for (uint32_t k = i == 0 ? net_rig.pair->header : 0; k < frame.length[i]; k++, at++)
                    if (frame.buffer[i]->data[k] != net_rig_byte(f.seed, at))
                        check(false, "byte %u of %u", at, bytes);
            assert_int_equal(at, bytes);
            give_back();
        }
        close_rig(state);
    }
}

/* As many buffers as a frame may have, with little in each. */
static void test_num_buffers(void **state)
{
    net_rig_open(&(struct net_config){ .rx_size = 64, .tx_size = 16, .features = CSUM | MRG | TSO6 });
    uint64_t dropped = 0;
    for (unsigned n = 1; n <= 64; n++) {
        uint8_t bytes[64] = { 0, VIRTIO_NET_HDR_GSO_TCPV6, 0, 0, 100, 0 };
        bytes[10] = (uint8_t)n;
        for (unsigned i = 0; i < n; i++)
            assert_true(net_rig_write_raw(bytes, i == 0 ? 26 : 1, i == 0 ? 26 : 1));
        fake_device_publish(&net_rig.rx);
        bool got = virtnet_receive(net_rig.pair, &frame);
        assert_int_equal(got, n <= VIRTNET_FRAME_PIECES);
        dropped += !got;
        assert_int_equal(net_rig.pair->rx_stats.num_buffers, dropped);
        assert_true(!got || frame.count == n);
        if (!got)
            frame.count = 0;
        give_back();
    }
    close_rig(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_every_type, close_rig),
        cmocka_unit_test_teardown(test_datagrams, close_rig),
        cmocka_unit_test_teardown(test_every_length, close_rig),
        cmocka_unit_test_teardown(test_num_buffers, close_rig),
    };

    return cmocka_run_group_tests_name("net_gso", tests, NULL, NULL);
}

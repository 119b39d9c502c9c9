/* What the specification says of a network driver's frames (virtio 1.3, 5.1.6, and 1.4, 5.1.9) where the tests by area
 * do not show it: sizes of buffers, fields that must not be believed, packets of kinds that were not negotiated, and
 * the header of a segment that the device is to cut. */
#include "tests/unit/net_rig.h"

#include "net/offload.h"

#define TSO4 FEATURE_BIT(VIRTIO_NET_F_GUEST_TSO4)
#define TSO6 FEATURE_BIT(VIRTIO_NET_F_GUEST_TSO6)
#define USO4 FEATURE_BIT(VIRTIO_NET_F_GUEST_USO4_BIT)
#define USO6 FEATURE_BIT(VIRTIO_NET_F_GUEST_USO6_BIT)

static struct virtnet_frame frame;

static void open_rig(uint64_t features)
{
    net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 32, .features = features });
    net_rig_flush();
}

static void write_and_publish(struct net_frame *f)
{
    assert_true(net_rig_write(f));
    fake_device_publish(&net_rig.rx);
}

static void give_back(void)
{
    net_rig_hold(&frame);
    while (net_rig.held_count > 0)
        net_rig_release(0);
    virtnet_refill(net_rig.pair);
    net_rig_flush();
}

/* ---- receive buffers (5.1.6.3.1; 1.4: 5.1.9.3.1) ---- */

static void test_buffer_sizes(void **state)
{
    static const struct {
        uint64_t features;
        uint32_t least;
    } rows[] = {
        { 0, 1526 },
        { HASH, 1534 },
        { CSUM | TSO4, 65601 },
        { CSUM | TSO6, 65601 },
        { CSUM | USO4, 65601 },
        { CSUM | USO6, 65601 },
        { CSUM | TSO4 | TSO6 | HASH, 65609 },
        { MRG, 12 },
        { MRG | HASH, 20 },
        { MRG | HASH | CSUM | TSO4, 20 },
    };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        struct fake_chain chain;
        unsigned n = 0;

        open_rig(rows[i].features);
        while (fake_device_take(&net_rig.rx, &chain)) {
            check(chain.writable >= rows[i].least && chain.readable == 0, "row %u: a buffer of %llu bytes", i,
                  (unsigned long long)chain.writable);
            n++;
        }
        assert_int_equal(n, 16);
        net_rig_close();
    }
}

/* The header is of one size in both directions: 12 bytes, and 20 with the hash. */
static void test_header_sizes(void **state)
{
    (void)state;
    for (unsigned hash = 0; hash < 2; hash++) {
        uint32_t header = hash ? 20 : 12;
        struct net_frame f = { .bytes = 60, .seed = 9 };
        struct fake_chain chain;

        open_rig(hash ? MRG | HASH : MRG);
        write_and_publish(&f);
        assert_true(virtnet_receive(net_rig.pair, &frame));
        assert_int_equal(frame.length[0], header + 60);
        assert_int_equal(frame.buffer[0]->data[header], net_rig_byte(9, 0));
        give_back();
        struct tx_slot *slot = virtnet_slot(net_rig.pair);
        memset(slot->data + header, 0xaa, 60);
        assert_true(virtnet_send(net_rig.pair, slot, header + 60, NULL, 0));
        assert_int_equal(net_rig.pair->tx_stats.bytes, 60);
        net_rig_flush();
        assert_true(fake_device_take(&net_rig.tx, &chain));
        assert_int_equal(chain.readable, header + 60);
        for (uint32_t i = 0; i < header + 60; i++)
            assert_int_equal(((uint8_t *)(uintptr_t)chain.piece[0].addr)[i], i < header ? 0 : 0xaa);
        net_rig_close();
    }
}

/* ---- what is not believed ---- */

/* 2.7.8.3: the device has written more than it says, or old bytes lie there: only the first `len` are the frame. */
static void test_only_the_bytes_that_were_written(void **state)
{
    uint8_t bytes[1000];

    (void)state;
    open_rig(MRG | CSUM);
    memset(bytes, 0xa5, sizeof(bytes));
    memset(bytes, 0, 12);
    bytes[10] = 1;
    for (uint32_t said = 12 + 14; said < sizeof(bytes); said += 13) {
        assert_true(net_rig_write_raw(bytes, sizeof(bytes), said));
        fake_device_publish(&net_rig.rx);
        assert_true(virtnet_receive(net_rig.pair, &frame));
        assert_int_equal(frame.count, 1);
        assert_int_equal(frame.length[0], said);
        give_back();
        /* A checksum's place behind the frame's end is none, although there are bytes. */
        bytes[0] = VIRTIO_NET_HDR_F_NEEDS_CSUM;
        bytes[6] = 14;
        uint16_t offset = (uint16_t)(said - 12 - 14 - 1);
        memcpy(bytes + 8, &offset, 2);
        uint64_t bad = net_rig.pair->rx_stats.bad_header;
        assert_true(net_rig_write_raw(bytes, sizeof(bytes), said));
        fake_device_publish(&net_rig.rx);
        assert_false(virtnet_receive(net_rig.pair, &frame));
        assert_int_equal(net_rig.pair->rx_stats.bad_header, bad + 1);
        virtnet_refill(net_rig.pair);
        net_rig_flush();
        memset(bytes, 0, 10);
    }
    net_rig_close();
}

/* 5.1.6.4.2: without NEEDS_CSUM anything may stand where the checksum's place would. */
static void test_checksum_fields_without_flag(void **state)
{
    static const uint16_t values[] = { 0, 1, 13, 59, 60, 0x7fff, 0xffff };
    static const uint8_t flags[] = { 0, VIRTIO_NET_HDR_F_DATA_VALID };

    (void)state;
    for (unsigned i = 0; i < 2 * COUNT_OF(values) * COUNT_OF(values); i++) {
        struct net_frame f = { .header.hdr.flags = flags[i % 2],
                               .header.hdr.csum_start = values[i / 2 / COUNT_OF(values)],
                               .header.hdr.csum_offset = values[i / 2 % COUNT_OF(values)],
                               .bytes = 60 };
        open_rig(MRG | CSUM);
        write_and_publish(&f);
        assert_true(virtnet_receive(net_rig.pair, &frame));
        assert_int_equal(frame.flags, flags[i % 2]);
        give_back();
        net_rig_close();
    }
}

/* 5.1.6.4.2: hdr_len is not relied on, of one frame or of a packet that stands for many. */
static void test_header_length_is_ignored(void **state)
{
    static const uint16_t lengths[] = { 0, 1, 13, 14, 54, 66, 100, 999, 5000, 0xffff };

    (void)state;
    open_rig(MRG | CSUM | TSO4 | TSO6);
    for (unsigned i = 0; i < 3 * COUNT_OF(lengths); i++) {
        static const uint8_t types[] = { VIRTIO_NET_HDR_GSO_NONE, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6 };
        struct net_frame f = { .header.hdr.hdr_len = lengths[i / 3],
                               .header.hdr.gso_type = types[i % 3],
                               .header.hdr.gso_size = i % 3 ? 1448 : 0,
                               .header.hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                               .header.hdr.csum_start = 34,
                               .header.hdr.csum_offset = 16,
                               .bytes = i % 3 ? 9000 : 100 };
        write_and_publish(&f);
        assert_true(virtnet_receive(net_rig.pair, &frame));
        uint32_t bytes = 0;
        for (unsigned k = 0; k < frame.count; k++)
            bytes += frame.length[k];
        assert_int_equal(bytes, 12 + f.bytes);
        give_back();
    }
    net_rig_close();
}

/* 1.4, 5.1.9.4.2: packets in a UDP tunnel (gso_type with 0x20 or 0x40), which were not negotiated: both bits, or none
 * of the kinds of segment beside them, or a good kind. */
static void test_tunnel_packets_are_dropped(void **state)
{
    (void)state;
    open_rig(MRG | CSUM | TSO4 | TSO6);
    for (unsigned type = 0x20, n = 0; type < 0x80; type++) {
        struct net_frame f = { .header.hdr.gso_type = (uint8_t)type, .header.hdr.gso_size = 1448, .bytes = 3000 };
        write_and_publish(&f);
        assert_false(virtnet_receive(net_rig.pair, &frame));
        assert_int_equal(net_rig.pair->rx_stats.bad_header, ++n);
        virtnet_refill(net_rig.pair);
        net_rig_flush();
    }
    net_rig_close();
}

/* ---- sending ---- */

/* 2.7.5.2: as many pieces as a frame can have, each as long as a pbuf can say. */
static void test_longest_chain(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        static uint8_t somewhere;
        struct virtq_buf pieces[VIRTNET_TX_PIECES];
        struct fake_chain chain;

        open_rig(i ? INDIR : 0);
        for (unsigned k = 0; k < VIRTNET_TX_PIECES; k++)
            pieces[k] = (struct virtq_buf){ (uintptr_t)&somewhere, UINT16_MAX };
        assert_true(virtnet_send(net_rig.pair, virtnet_slot(net_rig.pair), VIRTNET_INLINE, pieces, VIRTNET_TX_PIECES));
        net_rig_flush();
        check(fake_device_take(&net_rig.tx, &chain), "%s", net_rig.tx.violation);
        assert_int_equal(chain.pieces, VIRTNET_TX_PIECES + 1);
        assert_true(chain.readable == VIRTNET_INLINE + VIRTNET_TX_PIECES * 65535ull && chain.readable < 1ull << 32);
        assert_int_equal(net_rig.tx.violation[0], 0);
        net_rig_close();
    }
}

/* 5.1.6.2.1: the header of a TCP segment that the device cuts, for both IP versions and all lengths of headers. */
static void test_segmentation_header(void **state)
{
    (void)state;
    for (unsigned v6 = 0; v6 < 2; v6++) {
        for (unsigned tcp = 20; tcp <= 60; tcp += 4) {
            uint8_t bytes[14 + 40 + 60] = { [12] = v6 ? 0x86 : 0x08, [13] = v6 ? 0xdd : 0x00 }, *ip = bytes + 14;
            struct virtio_net_hdr_v1 h = { 0 };
            uint16_t ip_bytes = v6 ? 40 : 20, total = (uint16_t)((v6 ? 0 : 20) + tcp + 30000);

            ip[0] = v6 ? 0x60 : 0x45;
            ip[v6 ? 4 : 2] = (uint8_t)(total >> 8);
            ip[v6 ? 5 : 3] = (uint8_t)total;
            ip[v6 ? 6 : 9] = 6;
            ip[ip_bytes + 12] = (uint8_t)(tcp / 4 << 4);
            assert_true(offload_checksum(&h, bytes, 14u + ip_bytes + tcp));
            offload_segmentation(&h, bytes, 1448);
            assert_int_equal(h.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM); /* and none of the device's own flags */
            assert_int_equal(h.gso_type, v6 ? VIRTIO_NET_HDR_GSO_TCPV6 : VIRTIO_NET_HDR_GSO_TCPV4);
            assert_int_equal(h.gso_size, 1448);
            assert_int_equal(h.hdr_len, 14 + ip_bytes + tcp);
            assert_int_equal(h.csum_start, 14 + ip_bytes);
            assert_int_equal(h.csum_offset, 16);
            assert_int_equal(h.num_buffers, 0);
        }
    }
}

/* The same of a packet of datagrams (VIRTIO_NET_HDR_GSO_UDP_L4 is 5). */
static void test_datagram_header(void **state)
{
    (void)state;
    for (unsigned v6 = 0; v6 < 2; v6++) {
        uint8_t bytes[14 + 40 + 8] = { [12] = v6 ? 0x86 : 0x08, [13] = v6 ? 0xdd : 0x00 }, *ip = bytes + 14;
        struct virtio_net_hdr_v1 h = { 0 };
        uint16_t ip_bytes = v6 ? 40 : 20, total = (uint16_t)((v6 ? 0 : 20) + 8 + 30000);

        ip[0] = v6 ? 0x60 : 0x45;
        ip[v6 ? 4 : 2] = (uint8_t)(total >> 8);
        ip[v6 ? 5 : 3] = (uint8_t)total;
        ip[v6 ? 6 : 9] = 17;
        assert_true(offload_checksum(&h, bytes, 14u + ip_bytes + 8));
        offload_segmentation(&h, bytes, 1472);
        assert_int_equal(h.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
        assert_int_equal(h.gso_type, 5);
        assert_int_equal(h.gso_size, 1472);
        assert_int_equal(h.hdr_len, 14 + ip_bytes + 8);
        assert_int_equal(h.csum_start, 14 + ip_bytes);
        assert_int_equal(h.csum_offset, 6);
        assert_int_equal(h.num_buffers, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffer_sizes),
        cmocka_unit_test(test_header_sizes),
        cmocka_unit_test(test_only_the_bytes_that_were_written),
        cmocka_unit_test(test_checksum_fields_without_flag),
        cmocka_unit_test(test_header_length_is_ignored),
        cmocka_unit_test(test_tunnel_packets_are_dropped),
        cmocka_unit_test(test_longest_chain),
        cmocka_unit_test(test_segmentation_header),
        cmocka_unit_test(test_datagram_header),
    };

    return cmocka_run_group_tests_name("clauses_net", tests, NULL, NULL);
}

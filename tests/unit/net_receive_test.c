/* Received frames: every header and every number of buffers that a device can write, and a pool that runs dry. */
#include "tests/unit/net_rig.h"

static struct virtnet_frame frame;

static const struct net_config plain = { .rx_size = 64, .tx_size = 64, .features = MRG | CSUM };

static int close_rig(void **state)
{
    (void)state;
    net_rig_close();
    return 0;
}

/* The next frame is this one, to the last byte; it is given back. */
static void check_received(const struct net_frame *f)
{
    uint32_t at = 0, header = net_rig.pair->header;

    memset(&frame, 0xee, sizeof(frame));
    assert_true(virtnet_receive(net_rig.pair, &frame));
    assert_true(frame.count >= 1 && frame.count <= VIRTNET_FRAME_PIECES);
    assert_int_equal(frame.count,
                     (header + f->bytes + net_rig.pair->pool.data_size - 1) / net_rig.pair->pool.data_size);
    for (unsigned i = 0; i < frame.count; i++) {
        for (uint32_t k = i == 0 ? header : 0; k < frame.length[i]; k++, at++)
            check(frame.buffer[i]->data[k] == net_rig_byte(f->seed, at), "byte %u of %u", at, f->bytes);
    }
    assert_int_equal(at, f->bytes);
    net_rig_hold(&frame);
    net_rig_check_buffers();
    while (net_rig.held_count > 0)
        net_rig_release(0);
}

/* Nothing comes of what was written, and all its buffers are back. */
static void check_dropped(const uint64_t *counter, uint64_t expected)
{
    uint64_t packets = net_rig.pair->rx_stats.packets;

    assert_false(virtnet_receive(net_rig.pair, &frame));
    assert_int_equal(*counter, expected);
    assert_int_equal(net_rig.pair->rx_stats.packets, packets);
    net_rig_check_buffers();
    virtnet_refill(net_rig.pair);
    net_rig_flush();
    assert_int_equal(net_rig_buffers(), net_rig.pair->rx.size);
}

/* And the next frame comes through. */
static void check_goes_on(void)
{
    struct net_frame f = { .bytes = 100, .seed = 77 };

    assert_true(net_rig_write(&f));
    fake_device_publish(&net_rig.rx);
    check_received(&f);
    virtnet_refill(net_rig.pair);
    net_rig_flush();
}

static void write_and_publish(struct net_frame *f)
{
    assert_true(net_rig_write(f));
    fake_device_publish(&net_rig.rx);
}

/* ---- set-up ---- */

static void test_buffers(void **state)
{
    static const struct {
        uint64_t features;
        uint16_t mtu;
        uint32_t least; /* bytes of a buffer's data */
    } rows[] = {
        { MRG, 1500, 1500 },     { 0, 1500, 1500 + 18 + 12 }, { HASH, 1500, 1500 + 18 + 20 },
        { MRG, 65535, 4096 },    { 0, 9000, 9000 + 18 + 12 }, { HASH, 65535, 65535 + 18 + 20 },
        { 0, 68, 68 + 18 + 12 },
    };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        net_rig_open(&(struct net_config){
            .rx_size = 16, .tx_size = 32, .features = rows[i].features, .mtu = rows[i].mtu, .number = (uint16_t)i });
        if (rows[i].features & MRG) /* a ring of them holds the largest frame */
            assert_true(net_rig.pair->pool.data_size * 16 >= rows[i].mtu + 18u + 12);
        if (rows[i].features & MRG && rows[i].mtu == 1500)
            assert_int_equal(net_rig.pair->pool.data_size + sizeof(struct rx_buffer), 2048);
        assert_int_equal(net_rig.pair->rx.size, 16);
        assert_int_equal(net_rig.pair->tx.size, 32);
        assert_true(net_rig.pair->pool.data_size >= rows[i].least);
        assert_int_equal(net_rig.pair->header, rows[i].features & HASH ? 20 : 12);
        assert_int_equal(net_rig.pair->rx.index, 2 * i);
        assert_int_equal(net_rig.pair->tx.index, 2 * i + 1);
        assert_int_equal(net_rig.pair->pool.home, i);
        assert_int_equal(net_rig_buffers(), 16); /* shown, although nobody was told yet */
        assert_int_equal(net_rig.rx_bells, 0);
        assert_true(net_rig.pair->pool.total > 16);
        net_rig_check_buffers();
        net_rig_check_slots();
        net_rig_close();
    }
}

static void test_no_memory(void **state)
{
    struct virtio_error error;

    (void)state;
    for (unsigned granted = 0; granted < 5; granted++) {
        net_rig.allocations_left = granted + 1;
        bool good = net_rig_try_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .number = 3 }, &error);
        assert_int_equal(good, granted == 4);
        if (!good)
            check(strstr(error.text, granted == 0   ? "queue 6"
                                     : granted == 1 ? "queue 7"
                                                    : "queue pair 3"),
                  "%s", error.text);
        net_rig_close();
    }
    net_rig.allocations_left = 0;
    struct net_config config = { .rx_size = 16, .tx_size = 16, .buffers = 1 };
    assert_true(net_rig_try_open(&config, &error));
    assert_int_equal(net_rig.pair->pool.total, 1);
    net_rig_close();
    config.no_room = true;
    assert_false(net_rig_try_open(&config, &error));
    assert_non_null(strstr(error.text, "buffers"));
    net_rig_close();
}

/* ---- good frames ---- */

static void test_every_size(void **state)
{
    static const uint64_t features[] = { MRG | CSUM, MRG | EVENT, MRG | HASH, 0 };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(features); i++) {
        net_rig_open(&(struct net_config){ .rx_size = 64, .tx_size = 2, .features = features[i] });
        uint32_t most = features[i] & MRG ? 65550 : 1518;
        uint64_t packets = 0, bytes = 0;
        for (uint32_t n = 14; n <= most; n += n < 2100 || n > 65545 ? 1 : 331) {
            struct net_frame f = { .bytes = n, .seed = (uint8_t)n };
            write_and_publish(&f);
            check_received(&f);
            assert_false(virtnet_receive(net_rig.pair, &frame));
            virtnet_refill(net_rig.pair);
            net_rig_flush();
            packets++;
            bytes += n;
        }
        assert_int_equal(net_rig.pair->rx_stats.packets, packets);
        assert_int_equal(net_rig.pair->rx_stats.bytes, bytes);
        assert_int_equal(net_rig.rx.violation[0], 0);
        net_rig_close();
    }
}

/* Many at once, of one buffer and of many, in order. */
static void test_many_frames(void **state)
{
    (void)state;
    net_rig_open(&plain);
    for (unsigned round = 0; round < 50; round++) {
        struct net_frame f[40];
        unsigned n = 0;
        for (; n < COUNT_OF(f); n++) {
            f[n] = (struct net_frame){ .bytes = 60 + (n + round) * 911 % 6000, .seed = (uint8_t)n };
            if (!net_rig_write(&f[n]))
                break;
        }
        assert_true(n > 10);
        fake_device_publish(&net_rig.rx);
        for (unsigned i = 0; i < n; i++)
            check_received(&f[i]);
        assert_false(virtnet_receive(net_rig.pair, &frame));
        virtnet_refill(net_rig.pair);
        net_rig_flush();
    }
    close_rig(state);
}

/* ---- short frames ---- */

static void test_short_frames(void **state)
{
    static const uint64_t features[] = { MRG | CSUM, HASH | MRG, 0, HASH };
    uint8_t zero[64] = { 0 };

    for (unsigned i = 0; i < COUNT_OF(features); i++) {
        net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = features[i] });
        zero[10] = 1; /* num_buffers */
        uint64_t shorts = 0;
        for (uint32_t n = 0; n < net_rig.pair->header + 14u; n++) {
            assert_true(net_rig_write_raw(zero, n, n));
            fake_device_publish(&net_rig.rx);
            check_dropped(&net_rig.pair->rx_stats.short_frame, ++shorts);
        }
        assert_true(net_rig_write_raw(zero, net_rig.pair->header + 14u, net_rig.pair->header + 14u));
        fake_device_publish(&net_rig.rx);
        assert_true(virtnet_receive(net_rig.pair, &frame));
        assert_int_equal(frame.length[0], net_rig.pair->header + 14);
        net_rig_hold(&frame);
        net_rig_release(0);
        close_rig(state);
    }
}

/* More bytes claimed than the buffer has: reported, and no frame. */
static void test_claimed_too_long(void **state)
{
    static const uint32_t by[] = { 1, 100, 0x7fffffff, 0xfffff000 };
    uint8_t zero[64] = { [10] = 1 };

    net_rig_open(&plain);
    for (unsigned i = 0; i < COUNT_OF(by); i++) {
        assert_true(net_rig_write_raw(zero, 64, net_rig.pair->pool.data_size + by[i]));
        fake_device_publish(&net_rig.rx);
        check_dropped(&net_rig.pair->rx_stats.short_frame, i + 1);
        assert_int_equal(net_rig.pair->rx.stats.bad_used, i + 1);
    }
    check_goes_on();
    close_rig(state);
}

/* ---- numbers of buffers ---- */

/* Writes `there` buffers of `each` bytes, the first with a header that says `said`. */
static void write_pieces(uint16_t said, unsigned there, uint32_t each)
{
    uint8_t bytes[2048] = { [10] = (uint8_t)said, [11] = (uint8_t)(said >> 8) };

    for (unsigned i = 0; i < there; i++)
        assert_true(net_rig_write_raw(i == 0 ? bytes : bytes + 12, each, each));
    fake_device_publish(&net_rig.rx);
}

static void test_num_buffers_0(void **state)
{
    net_rig_open(&plain);
    write_pieces(0, 1, 100);
    check_dropped(&net_rig.pair->rx_stats.num_buffers, 1);
    check_goes_on();
    close_rig(state);
}

static void test_num_buffers_up_to_the_limit(void **state)
{
    net_rig_open(&plain);
    for (uint16_t n = 1; n <= VIRTNET_FRAME_PIECES; n++) {
        write_pieces(n, n, 30);
        assert_true(virtnet_receive(net_rig.pair, &frame));
        assert_int_equal(frame.count, n);
        net_rig_hold(&frame);
        net_rig_check_buffers();
        while (net_rig.held_count > 0)
            net_rig_release(net_rig.held_count / 2);
        virtnet_refill(net_rig.pair);
        net_rig_flush();
    }
    close_rig(state);
}

/* More than fit into a frame, all of them there: all go back, and what follows is a frame again. */
static void test_too_many_buffers(void **state)
{
    net_rig_open(&plain);
    for (uint16_t n = VIRTNET_FRAME_PIECES + 1; n <= 64; n++) {
        write_pieces(n, n, 30);
        check_dropped(&net_rig.pair->rx_stats.num_buffers, n - VIRTNET_FRAME_PIECES);
        check_goes_on();
    }
    /* With a good frame behind it in the same batch. */
    struct net_frame f = { .bytes = 1000, .seed = 5 };
    write_pieces(40, 40, 30);
    write_and_publish(&f);
    check_received(&f);
    assert_int_equal(net_rig.pair->rx_stats.num_buffers, 64 - VIRTNET_FRAME_PIECES + 1);
    close_rig(state);
}

static void test_missing_buffers(void **state)
{
    static const uint16_t said[] = { 2, 3, 35, 36, 37, 64, 65, 255, 256, 257, 0x8000, 0xffff };
    uint64_t dropped = 0;

    net_rig_open(&plain);
    for (unsigned i = 0; i < COUNT_OF(said); i++) {
        for (unsigned there = 1; there < said[i] && there <= 64; there += there < 5 ? 1 : 7) {
            write_pieces(said[i], there, 30);
            check_dropped(&net_rig.pair->rx_stats.num_buffers, ++dropped);
            check_goes_on();
        }
    }
    close_rig(state);
}

/* Without mergeable buffers the field means nothing. */
static void test_num_buffers_not_negotiated(void **state)
{
    static const uint16_t said[] = { 0, 1, 2, 36, 0xffff };

    net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = CSUM });
    for (unsigned i = 0; i < COUNT_OF(said); i++) {
        write_pieces(said[i], 1, 100);
        assert_true(virtnet_receive(net_rig.pair, &frame));
        assert_int_equal(frame.count, 1);
        net_rig_hold(&frame);
        net_rig_release(0);
        virtnet_refill(net_rig.pair);
        net_rig_flush();
    }
    close_rig(state);
}

/* A frame with a hole, because a buffer came back empty or with an impossible length, is no frame; nor is one among
 * whose used entries there was a bad one. */
static void test_frame_with_a_hole(void **state)
{
    uint8_t bytes[200] = { [10] = 3 };

    net_rig_open(&plain);
    for (unsigned hole = 1; hole <= 2; hole++) {
        for (unsigned how = 0; how < 3; how++) {
            for (unsigned i = 0; i < 3; i++) {
                uint32_t claimed = i != hole || how == 2 ? 100 : how == 0 ? 0 : 100000;
                if (i == hole && how == 2)
                    fake_device_lie(&net_rig.rx, 9999, 100);
                assert_true(net_rig_write_raw(i == 0 ? bytes : bytes + 12, i == hole && how == 0 ? 0 : 100, claimed));
            }
            fake_device_publish(&net_rig.rx);
            check_dropped(&net_rig.pair->rx_stats.num_buffers, (hole - 1) * 3 + how + 1);
            check_goes_on();
        }
    }
    close_rig(state);
}

/* ---- headers ---- */

static void test_gso_not_negotiated(void **state)
{
    static const uint8_t types[] = { 1, 3, 4, 5, 0x80, 0x81, 0xff };

    net_rig_open(&plain);
    for (unsigned i = 0; i < 2 * COUNT_OF(types); i++) {
        struct net_frame f = { .header.hdr.gso_type = types[i / 2],
                               .header.hdr.gso_size = 1448,
                               .bytes = i % 2 ? 100 : 9000 };
        write_and_publish(&f);
        check_dropped(&net_rig.pair->rx_stats.bad_header, i + 1);
    }
    check_goes_on();
    close_rig(state);
}

/* The checksum's place must be within the frame, behind the Ethernet header. */
static void test_checksum_offsets(void **state)
{
    static const struct {
        uint16_t start, offset;
        uint32_t bytes;
        bool good;
    } rows[] = {
        { 34, 16, 60, true },        { 34, 16, 52, true },      { 34, 16, 51, false },    { 34, 6, 42, true },
        { 14, 0, 16, true },         { 14, 0, 15, false },      { 14, 1, 16, false },     { 13, 10, 60, false },
        { 0, 16, 60, false },        { 0xffff, 0, 60, false },  { 0, 0xffff, 60, false }, { 0xffff, 0xffff, 60, false },
        { 0xfff0, 0x20, 60, false }, { 34, 0xffde, 60, false }, { 4000, 16, 5000, true }, { 4000, 1000, 5000, false },
        { 4000, 998, 5000, true },
    };

    for (unsigned i = 0; i < 2 * COUNT_OF(rows); i++) {
        bool good = rows[i / 2].good && i % 2;
        net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = i % 2 ? MRG | CSUM : MRG });
        struct net_frame f = { .header.hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                               .header.hdr.csum_start = rows[i / 2].start,
                               .header.hdr.csum_offset = rows[i / 2].offset,
                               .bytes = rows[i / 2].bytes,
                               .seed = 3 };
        write_and_publish(&f);
        if (good) {
            check_received(&f);
            assert_int_equal(frame.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
        } else {
            check_dropped(&net_rig.pair->rx_stats.bad_header, 1); /* the feature is missing, or the offset is bad */
        }
        check_goes_on();
        close_rig(state);
    }
}

/* What the glue gets of the flags: of those it knows what a device may say, and its word on the checksum also where it
 * was not asked for it. */
static void test_flags(void **state)
{
    for (unsigned flags = 0; flags < 256; flags++) {
        for (unsigned csum = 0; csum < 2; csum++) {
            net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = csum ? CSUM : 0 });
            struct net_frame f = { .header.hdr.flags = (uint8_t)flags,
                                   .header.hdr.csum_start = 34,
                                   .header.hdr.csum_offset = 16,
                                   .bytes = 100 };
            write_and_publish(&f);
            if (!csum && (flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)) {
                check_dropped(&net_rig.pair->rx_stats.bad_header, 1);
            } else {
                check_received(&f);
                assert_int_equal(frame.flags, flags & (VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID));
            }
            close_rig(state);
        }
    }
}

static void test_hash(void **state)
{
    static const uint16_t reports[] = { 0, 1, 2, 5, 9, 255, 256, 0x1000, 0xffff };

    (void)state;
    for (unsigned i = 0; i < 2 * COUNT_OF(reports); i++) {
        bool negotiated = i % 2;
        net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = negotiated ? MRG | HASH : MRG });
        struct net_frame f = { .header.hash_value = 0x89abcdef, .header.hash_report = reports[i / 2], .bytes = 100 };
        write_and_publish(&f);
        check_received(&f);
        assert_int_equal(frame.hash_report, negotiated && reports[i / 2] < 256 ? reports[i / 2] : 0);
        if (frame.hash_report)
            assert_int_equal(frame.hash, 0x89abcdef);
        net_rig_close();
    }
}

/* ---- a pool that runs dry ---- */

static void test_empty_pool(void **state)
{
    net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = MRG, .buffers = 20 });
    assert_int_equal(net_rig.pair->pool.total, 20);
    for (unsigned round = 0; round < 20; round++) {
        struct net_frame f = { .bytes = 500 };
        uint64_t cut_short = net_rig.pair->rx_stats.no_buffer;
        for (unsigned i = 0; i < 20; i++) { /* nobody gives any back */
            write_and_publish(&f);
            assert_true(virtnet_receive(net_rig.pair, &frame));
            net_rig_hold(&frame);
            virtnet_refill(net_rig.pair);
            net_rig_flush();
        }
        assert_int_equal(net_rig_buffers(), 0);
        assert_false(net_rig_write(&f));
        assert_int_equal(net_rig.pair->pool.free_count, 0);
        assert_true(net_rig.pair->rx_stats.no_buffer > cut_short);
        virtnet_refill(net_rig.pair);
        net_rig_flush();
        net_rig_check_buffers();
        fake_device_sleep(&net_rig.rx, 0);
        net_rig_release(round); /* one is enough */
        virtnet_refill(net_rig.pair);
        net_rig_flush();
        assert_int_equal(net_rig.rx_bells, 1);
        assert_int_equal(net_rig_buffers(), 1);
        write_and_publish(&f);
        assert_true(virtnet_receive(net_rig.pair, &frame));
        net_rig_hold(&frame);
        while (net_rig.held_count > 0)
            net_rig_release(0);
        virtnet_refill(net_rig.pair);
        net_rig_flush();
        assert_int_equal(net_rig_buffers(), 16);
        net_rig_check_buffers();
    }
    close_rig(state);
}

/* No memory for as many buffers as the ring has: those there are go round. */
static void test_fewer_buffers_than_ring(void **state)
{
    net_rig_open(&(struct net_config){ .rx_size = 256, .tx_size = 16, .features = MRG, .buffers = 7 });
    for (unsigned i = 0; i < 1000; i++) {
        struct net_frame f = { .bytes = 60 + i % 1400, .seed = (uint8_t)i };
        assert_int_equal(net_rig_buffers(), 7);
        write_and_publish(&f);
        check_received(&f);
        virtnet_refill(net_rig.pair);
        net_rig_flush();
    }
    close_rig(state);
}

/* The buffer given back last is taken first: it is in the cache. */
static void test_warmest_first(void **state)
{
    net_rig_open(&plain);
    struct rx_buffer *top = net_rig.pair->pool.free;
    struct net_frame f = { .bytes = 100 };
    write_and_publish(&f);
    assert_true(virtnet_receive(net_rig.pair, &frame));
    assert_ptr_not_equal(frame.buffer[0], top);
    virtnet_release(frame.buffer[0]);
    assert_ptr_equal(net_rig.pair->pool.free, frame.buffer[0]);
    virtnet_refill(net_rig.pair);
    assert_ptr_equal(net_rig.pair->pool.free, top);
    close_rig(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_every_size),
        cmocka_unit_test(test_many_frames),
        cmocka_unit_test(test_short_frames),
        cmocka_unit_test(test_claimed_too_long),
        cmocka_unit_test(test_num_buffers_0),
        cmocka_unit_test(test_num_buffers_up_to_the_limit),
        cmocka_unit_test(test_too_many_buffers),
        cmocka_unit_test(test_missing_buffers),
        cmocka_unit_test(test_num_buffers_not_negotiated),
        cmocka_unit_test(test_frame_with_a_hole),
        cmocka_unit_test(test_gso_not_negotiated),
        cmocka_unit_test(test_checksum_offsets),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_empty_pool),
        cmocka_unit_test(test_fewer_buffers_than_ring),
        cmocka_unit_test(test_warmest_first),
    };

    return cmocka_run_group_tests_name("net_receive", tests, NULL, NULL);
}

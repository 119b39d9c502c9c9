/* Frames to send: slots, full rings, what is taken back; doorbells and interrupts of both queues; faults on the
 * console.
 */
#include "tests/unit/net_rig.h"

static const uint16_t sizes[] = { 2, 4, 8, 16, 64, 256, 1024 };
static uint8_t somewhere[VIRTNET_TX_PIECES][64]; /* what pieces point to; only addresses matter */
static uintptr_t done_token[4096];
static unsigned done_count;

static void done(void *token)
{
    done_token[done_count++ % COUNT_OF(done_token)] = (uintptr_t)token;
}

static void open_sized(uint16_t size, uint64_t features)
{
    net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = size, .features = features });
    net_rig_flush();
    done_count = 0;
}

static int close_rig(void **state)
{
    (void)state;
    check(!net_rig.tx.violation[0], "%s", net_rig.tx.violation);
    net_rig_close();
    return 0;
}

/* Fills a slot's first bytes, but for what the device alone writes of a header. */
static void fill(struct tx_slot *slot, int value, uint32_t n)
{
    memset(slot->data, value, n);
    memset(slot->data + VIRTNET_HEADER, 0, net_rig.pair->header - VIRTNET_HEADER);
}

/* Sends a frame of `inline_bytes` (header counted in) and `count` pieces; what it looks like follows from `token`. */
static bool send(void *token, uint32_t inline_bytes, uint16_t count)
{
    struct virtq_buf pieces[VIRTNET_TX_PIECES];
    struct tx_slot *slot = virtnet_slot(net_rig.pair);

    if (!slot)
        return false;
    assert_null(slot->token);
    for (uint32_t i = 0; i < net_rig.pair->header; i++)
        assert_int_equal(slot->data[i], 0);
    fill(slot, (int)(uintptr_t)token, inline_bytes);
    for (uint16_t i = 0; i < count; i++)
        pieces[i] = (struct virtq_buf){ (uintptr_t)somewhere[i], 1 + ((uint32_t)(uintptr_t)token + i) % 64 };
    slot->token = token;
    bool sent = virtnet_send(net_rig.pair, slot, inline_bytes, pieces, count);
    memset(pieces, 0xee, sizeof(pieces)); /* not needed any more */
    return sent;
}

/* The device takes the next frame and finds it as it was sent. */
static void take(void *token, uint32_t inline_bytes, uint16_t count)
{
    struct fake_chain chain;

    check(fake_device_take(&net_rig.tx, &chain), "%s", net_rig.tx.violation);
    assert_int_equal(chain.pieces, count + 1);
    assert_int_equal(chain.writable, 0);
    assert_int_equal(chain.piece[0].len, inline_bytes);
    for (uint32_t i = 0; i < inline_bytes; i++)
        assert_int_equal(((const uint8_t *)(uintptr_t)chain.piece[0].addr)[i],
                         i >= VIRTNET_HEADER && i < net_rig.pair->header ? 0 : (uint8_t)(uintptr_t)token);
    for (uint16_t i = 0; i < count; i++) {
        assert_int_equal(chain.piece[i + 1].addr, (uintptr_t)somewhere[i]);
        assert_int_equal(chain.piece[i + 1].len, 1 + ((uint32_t)(uintptr_t)token + i) % 64);
    }
}

static void return_all(uint64_t *seed)
{
    while (net_rig.tx.held_count > 0)
        fake_device_return(&net_rig.tx, (uint16_t)chance_below(seed, net_rig.tx.held_count), 0);
    fake_device_publish(&net_rig.tx);
}

/* ---- slots ---- */

static void test_slots(void **state)
{
    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        static struct tx_slot *slot[1024];
        open_sized(sizes[i], i % 2 ? HASH : 0);
        for (unsigned lap = 0; lap < 3; lap++) {
            for (unsigned n = 0; n < sizes[i]; n++) {
                slot[n] = virtnet_slot(net_rig.pair);
                assert_non_null(slot[n]);
                for (unsigned k = 0; k < net_rig.pair->header; k++)
                    assert_int_equal(slot[n]->data[k], 0);
                fill(slot[n], 0xff, net_rig.pair->slot_room);
            }
            assert_null(virtnet_slot(net_rig.pair));
            uint64_t seed = 1;
            for (unsigned n = 0; n < sizes[i]; n++)
                assert_true(virtnet_send(net_rig.pair, slot[n], 60, NULL, 0));
            net_rig_flush();
            for (unsigned n = 0; n < sizes[i]; n++)
                take((void *)0xffull, 60, 0);
            return_all(&seed);
            assert_int_equal(virtnet_reclaim(net_rig.pair, UINT32_MAX, done), sizes[i]);
            net_rig_check_slots();
        }
        assert_int_equal(done_count, 0); /* no token, nothing to give back */
        close_rig(state);
    }
}

/* ---- frames of every shape ---- */

static void test_shapes(void **state)
{
    uint64_t seed = chance_seed(0x7e4d);

    for (unsigned i = 0; i < 4 * COUNT_OF(sizes); i++) {
        uint16_t size = sizes[i / 4];
        open_sized(size, (i % 2 ? INDIR : 0) | (i % 4 / 2 ? EVENT | HASH : 0));
        for (uint16_t count = 0; count <= VIRTNET_TX_PIECES; count++) {
            uint32_t inline_bytes = net_rig.pair->header + 1u + chance_below(&seed, VIRTNET_INLINE - 20);
            uint64_t packets = net_rig.pair->tx_stats.packets;
            bool sent = send((void *)(uintptr_t)(count + 1), inline_bytes, count);
            assert_int_equal(sent, count + 1 <= size);
            assert_int_equal(net_rig.pair->tx_stats.packets, packets + sent);
            net_rig_check_slots();
            net_rig_flush();
            assert_int_equal(fake_device_available(&net_rig.tx), sent);
            if (!sent)
                continue;
            take((void *)(uintptr_t)(count + 1), inline_bytes, count);
            return_all(&seed);
            assert_int_equal(virtnet_reclaim(net_rig.pair, 1, done), 1);
        }
        close_rig(state);
    }
}

static void test_counts(void **state)
{
    open_sized(64, INDIR);
    assert_true(send((void *)1, 12 + 60, 0));
    assert_int_equal(net_rig.pair->tx_stats.bytes, 60);
    assert_true(send((void *)2, 12 + 144, 3)); /* pieces of 3, 4 and 5 bytes */
    assert_int_equal(net_rig.pair->tx_stats.bytes, 60 + 144 + 12);
    assert_int_equal(net_rig.pair->tx_stats.packets, 2);
    net_rig_flush();
    close_rig(state);
}

/* ---- a full ring ---- */

/* Filled up again and again, by frames of the same shape, until there is no room; taken back in any order, a few at a
 * time: each token comes back once, and the ring takes as many as at first. */
static void test_full_ring(void **state)
{
    uint64_t seed = chance_seed(0xf011);

    static const uint16_t counts[] = { 0, 3, VIRTNET_TX_PIECES };

    for (unsigned i = 0; i < 6 * COUNT_OF(sizes); i++) {
        uint16_t size = sizes[i / 6], count = counts[i % 3];
        bool indirect = i % 6 / 3;
        open_sized(size, indirect ? INDIR : 0);
        unsigned expected = count + 1 > size ? 0 : indirect ? size : size / (count + 1);
        for (unsigned lap = 0; lap < 5; lap++) {
            unsigned sent = 0, back = 0;
            while (send((void *)(uintptr_t)(sent + 1), 100, count))
                sent++;
            assert_int_equal(sent, expected);
            for (unsigned n = 0; n < 3; n++) /* refused for as long as it is full */
                assert_false(send((void *)1, 100, count));
            net_rig_check_slots();
            assert_int_equal(net_rig.pair->tx.in_flight, sent);
            net_rig_flush();
            for (unsigned n = 0; n < sent; n++)
                take((void *)(uintptr_t)(n + 1), 100, count);
            return_all(&seed);
            done_count = 0;
            while (back < sent) {
                unsigned budget = 1 + chance_below(&seed, 5);
                unsigned n = virtnet_reclaim(net_rig.pair, budget, done);
                assert_int_equal(n, sent - back < budget ? sent - back : budget);
                back += n;
                assert_int_equal(done_count, back);
                net_rig_check_slots();
            }
            assert_int_equal(virtnet_reclaim(net_rig.pair, 10, done), 0);
            uint64_t sum = 0;
            for (unsigned n = 0; n < sent; n++)
                sum += done_token[n];
            assert_int_equal(sum, (uint64_t)sent * (sent + 1) / 2);
        }
        close_rig(state);
    }
}

static void test_no_budget(void **state)
{
    uint64_t seed = 1;

    open_sized(16, 0);
    assert_true(send((void *)1, 100, 0));
    net_rig_flush();
    take((void *)1, 100, 0);
    return_all(&seed);
    assert_int_equal(virtnet_reclaim(net_rig.pair, 0, done), 0);
    assert_int_equal(done_count, 0);
    assert_int_equal(virtnet_reclaim(net_rig.pair, 1, done), 1);
    close_rig(state);
}

/* The device fills all 16 receive buffers, sleeps, and gets new ones. */
static void run_dry(void)
{
    struct virtnet_frame frame;

    for (unsigned n = 0; n < 16; n++) {
        struct net_frame f = { .bytes = 100 };
        assert_true(net_rig_write(&f));
    }
    fake_device_publish(&net_rig.rx);
    fake_device_sleep(&net_rig.rx, 0);
    while (virtnet_receive(net_rig.pair, &frame))
        virtnet_release(frame.buffer[0]);
    virtnet_refill(net_rig.pair);
    net_rig_flush();
}

/* ---- doorbells ---- */

static void test_one_doorbell(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        open_sized(64, MRG | (i ? EVENT : 0));
        fake_device_sleep(&net_rig.tx, 0);
        net_rig_flush();
        assert_int_equal(net_rig.tx_bells + net_rig.rx_bells, 0); /* nothing new, nobody is told */
        for (unsigned n = 0; n < 20; n++)
            assert_true(send((void *)1, 100, 1));
        net_rig_flush();
        assert_int_equal(net_rig.tx_bells, 1);
        assert_int_equal(net_rig.rx_bells, 0);
        net_rig_flush();
        assert_int_equal(net_rig.tx_bells, 0);
        for (unsigned n = 0; n < 20; n++)
            take((void *)1, 100, 1);
        fake_device_poll(&net_rig.tx); /* it looks by itself */
        assert_true(send((void *)1, 100, 1));
        net_rig_flush();
        assert_int_equal(net_rig.tx_bells, 0);
        take((void *)1, 100, 1);
        fake_device_poll(&net_rig.rx);
        run_dry();
        assert_int_equal(net_rig.rx_bells, 1);
        close_rig(state);
    }
}

/* Buffers shown before the device could be told: it is told with the next flush, whatever was shown since. */
static void test_kick_is_owed(void **state)
{
    for (unsigned shows = 1; shows <= 3; shows++) {
        net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = MRG });
        for (unsigned n = 1; n < shows; n++)
            virtnet_show(net_rig.pair); /* net_rig_open() did once */
        assert_int_equal(net_rig.rx_bells, 0);
        net_rig_flush();
        assert_int_equal(net_rig.rx_bells, 1);
        net_rig_flush();
        assert_int_equal(net_rig.rx_bells, 0);
        close_rig(state);
    }
    net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = MRG | EVENT });
    fake_device_poll(&net_rig.rx);
    virtnet_show(net_rig.pair);
    net_rig_flush();
    assert_int_equal(net_rig.rx_bells, 1); /* as it was when they were shown */
    close_rig(state);
}

/* Where the device steers, a receive queue that had run dry is a reason to tell it of all of them. */
static void test_others_are_told(void **state)
{
    struct virtnet_pair other[3] = { 0 };

    open_sized(16, MRG | EVENT);
    for (unsigned i = 0; i < 3; i++)
        net_rig.net.other[i] = &other[i];
    net_rig.net.others = 3;
    assert_true(send((void *)1, 100, 0));
    net_rig_flush();
    assert_int_equal(net_rig.other_bells, 0); /* transmit queues are no one else's concern */
    run_dry();
    assert_int_equal(net_rig.other_bells, 3);
    for (unsigned i = 0; i < 3; i++)
        assert_ptr_equal(net_rig.other_bell[i], &other[i].rx);
    net_rig_flush();
    assert_int_equal(net_rig.other_bells, 3);
    close_rig(state);
}

/* ---- interrupts ---- */

static void test_sleep(void **state)
{
    for (unsigned i = 0; i < 4; i++) {
        bool want_tx = i % 2;
        uint64_t seed = 1;
        open_sized(64, MRG | (i / 2 ? EVENT : 0));
        for (unsigned n = 0; n < 8; n++)
            assert_true(send((void *)1, 100, 0));
        net_rig_flush();
        for (unsigned n = 0; n < 8; n++)
            take((void *)1, 100, 0);
        assert_true(virtnet_sleep(net_rig.pair, want_tx, 1));
        struct net_frame f = { .bytes = 100 };
        assert_true(net_rig_write(&f));
        assert_true(fake_device_publish(&net_rig.rx)); /* a frame wakes */
        fake_device_return(&net_rig.tx, 0, 0);
        bool first = fake_device_publish(&net_rig.tx);
        assert_int_equal(first, want_tx && !(i / 2)); /* with an event index, only most of the frames do, */
        return_all(&seed);
        bool last = net_rig.tx.interrupts > 0;
        assert_int_equal(last, want_tx); /* and only if it was asked for */
        virtnet_awake(net_rig.pair);
        assert_false(virtnet_sleep(net_rig.pair, want_tx, 1)); /* there is something: no sleep */
        virtnet_awake(net_rig.pair);
        struct virtnet_frame frame;
        assert_true(virtnet_receive(net_rig.pair, &frame));
        virtnet_release(frame.buffer[0]);
        assert_int_equal(virtnet_sleep(net_rig.pair, want_tx, 1), !want_tx); /* so many sent frames are reason enough */
        virtnet_awake(net_rig.pair);
        assert_int_equal(virtnet_reclaim(net_rig.pair, 100, done), 8);
        for (unsigned n = 0; n < 4; n++)
            assert_true(send((void *)1, 100, 0));
        net_rig_flush();
        for (unsigned n = 0; n < 4; n++)
            take((void *)1, 100, 0);
        assert_true(virtnet_sleep(net_rig.pair, want_tx, 1));
        virtnet_awake(net_rig.pair);
        net_rig.rx.interrupts = net_rig.tx.interrupts = 0;
        for (unsigned n = 0; n < 5; n++)
            assert_true(net_rig_write(&f));
        fake_device_publish(&net_rig.rx);
        assert_false(virtnet_sleep(net_rig.pair, want_tx, 1)); /* frames came, whatever was sent */
        virtnet_awake(net_rig.pair);
        return_all(&seed);
        assert_int_equal(net_rig.rx.interrupts + net_rig.tx.interrupts, 0); /* who is awake is not interrupted */
        close_rig(state);
    }
}

/* A core that sleeps for bulk data is woken by the buffer that it asked for, not before. */
static void test_sleep_for_so_many(void **state)
{
    for (uint16_t after = 1; after <= 8; after++) {
        open_sized(64, MRG | EVENT); /* the device has 16 receive buffers */
        struct net_frame f = { .bytes = 100 };
        assert_true(virtnet_sleep(net_rig.pair, false, after));
        for (unsigned n = 1; n <= 10; n++) {
            assert_true(net_rig_write(&f));
            assert_int_equal(fake_device_publish(&net_rig.rx), n == after);
        }
        virtnet_awake(net_rig.pair);
        assert_false(virtnet_sleep(net_rig.pair, false, after)); /* there are more than that */
        close_rig(state);
    }
}

/* Who waits for room is woken when three quarters have been sent, or by the first of them if that was asked for. */
static void test_sleep_until_the_next(void **state)
{
    for (unsigned next = 0; next < 2; next++) {
        open_sized(64, MRG | EVENT);
        net_rig.pair->net->tx_next = next;
        for (unsigned n = 0; n < 8; n++)
            assert_true(send((void *)1, 100, 0));
        net_rig_flush();
        for (unsigned n = 0; n < 8; n++)
            take((void *)1, 100, 0);
        assert_true(virtnet_sleep(net_rig.pair, true, 1));
        for (unsigned n = 1; n <= 8; n++) {
            fake_device_return(&net_rig.tx, 0, 0);
            assert_int_equal(fake_device_publish(&net_rig.tx), n == (next ? 1 : 6));
        }
        close_rig(state);
    }
}

/* ---- faults ---- */

static void expect_line(unsigned count, const char *queue, const char *what, const char *value, const char *limit)
{
    for (unsigned n = 0; n < 3; n++)
        virtnet_report_faults(net_rig.pair);
    assert_int_equal(fake_console_count(LOG_ERROR), count);
    const char *line = fake_console_find(LOG_ERROR, queue);
    check(line && strstr(line, what) && strstr(line, value) && strstr(line, limit), "%s", line ? line : "nothing said");
    if (line)
        assert_int_equal(strncmp(line, "virtio: ", 8), 0);
}

static void test_faults_are_said_once(void **state)
{
    open_sized(16, MRG);
    virtnet_report_faults(net_rig.pair);
    assert_int_equal(fake_console_count(LOG_DEBUG), 0);

    struct virtnet_frame frame;
    fake_device_lie(&net_rig.rx, 4711, 0);
    fake_device_publish(&net_rig.rx);
    assert_false(virtnet_receive(net_rig.pair, &frame));
    expect_line(1, "queue 0", "used id 4711", "below 16", "skipped");
    fake_device_lie(&net_rig.rx, 4712, 0); /* the second one is counted only */
    fake_device_publish(&net_rig.rx);
    assert_false(virtnet_receive(net_rig.pair, &frame));
    expect_line(1, "queue 0", "used id 4711", "below 16", "skipped");

    assert_true(send((void *)1, 100, 0));
    net_rig_flush();
    take((void *)1, 100, 0);
    fake_device_return(&net_rig.tx, 0, 99);
    fake_device_publish(&net_rig.tx);
    assert_int_equal(virtnet_reclaim(net_rig.pair, 10, done), 1); /* it has been sent all the same */
    expect_line(2, "queue 1", "used length 99", "up to 0", "counted");
    close_rig(state);
}

static void test_broken_queue(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        struct virtnet_frame frame;
        open_sized(16, MRG);
        if (i == 1) { /* said although there was a smaller fault before */
            fake_device_lie(&net_rig.rx, 4711, 0);
            fake_device_publish(&net_rig.rx);
            assert_false(virtnet_receive(net_rig.pair, &frame));
            virtnet_report_faults(net_rig.pair);
            assert_int_equal(fake_console_count(LOG_ERROR), 1);
            assert_null(fake_console_find(LOG_ERROR, "broken"));
        }
        for (unsigned n = 0; n < 3; n++) { /* so that there is room in the ring */
            struct net_frame f = { .bytes = 100 };
            assert_true(net_rig_write(&f));
            fake_device_publish(&net_rig.rx);
            assert_true(virtnet_receive(net_rig.pair, &frame));
            virtnet_release(frame.buffer[0]);
        }
        fake_device_jump(&net_rig.rx, 1000);
        assert_false(virtnet_receive(net_rig.pair, &frame));
        assert_true(net_rig.pair->rx.broken);
        expect_line(i + 1, "broken", "queue 0", "used index 1000", "16");
        uint64_t no_buffer = net_rig.pair->rx_stats.no_buffer;
        virtnet_refill(net_rig.pair); /* nothing more can be done with it, and nothing gets lost */
        net_rig_flush();
        assert_false(virtnet_receive(net_rig.pair, &frame));
        assert_true(virtnet_sleep(net_rig.pair, false, 1));
        net_rig_check_buffers();
        assert_int_equal(net_rig.pair->rx_stats.no_buffer, no_buffer);
        close_rig(state);
    }
    open_sized(16, 0);
    fake_device_jump(&net_rig.tx, 7);
    assert_int_equal(virtnet_reclaim(net_rig.pair, 10, done), 0);
    assert_false(send((void *)1, 100, 0));
    net_rig_check_slots();
    expect_line(1, "queue 1", "used index 7", "broken", "0");
    close_rig(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_full_ring),
        cmocka_unit_test(test_no_budget),
        cmocka_unit_test(test_one_doorbell),
        cmocka_unit_test(test_kick_is_owed),
        cmocka_unit_test(test_others_are_told),
        cmocka_unit_test(test_sleep),
        cmocka_unit_test(test_sleep_until_the_next),
        cmocka_unit_test(test_sleep_for_so_many),
        cmocka_unit_test(test_faults_are_said_once),
        cmocka_unit_test(test_broken_queue),
    };

    return cmocka_run_group_tests_name("net_send", tests, NULL, NULL);
}

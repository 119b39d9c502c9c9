/* Large segments (net/segment.c) in the real lwIP, with its assertions, against a peer that has small windows, takes
 * them back, and loses any part of a segment that the device has cut. The peer compares every byte of every piece with
 * the stream, fresh or sent again; what the application is told to be acknowledged must be what it wrote. */
#include "tests/unit/segment_rig.h"

#include "lwip/nd6.h"
#include "lwip/priv/nd6_priv.h"

static const struct rig_options usual = {
    .scale = 7,
    .window = 256 * 1024,
    .ack_every = 2,
    .bytes = 400000,
    .least = 65535,
    .most = 65535,
};

/* With nothing in the way bulk data goes in large segments, without it is as before. */
static void test_bulk(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 16; i++) {
        struct rig_options o = usual;
        o.v6 = i & 1;
        o.timestamps = i & 2;
        o.copy = i & 4;
        o.no_offload = i & 8;
        o.seed = i + 1;
        rig_open(&o);
        rig_finish(20000);
        check(o.no_offload ? rig.large == 0 : rig.largest > 20000, "%s", rig_describe());
        check(rig.again == 0, "%s", rig_describe());
        rig_close();
    }
}

/* What a server writes as soon as it has a connection, before there is a congestion window to speak of, goes in large
 * segments, too: in half of the window that it begins with (ten packets: RFC 6928). */
static void test_short_stream(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        struct rig_options o = usual;
        o.v6 = i & 1;
        o.timestamps = i & 2;
        o.copy = i & 4;
        o.bytes = 140000;
        o.seed = i + 1;
        rig_open(&o);
        rig_finish(20000);
        check(rig.largest >= 5 * 1400 && rig.packets < rig.pieces / 3 + 4, "%s", rig_describe());
        check(rig.again == 0, "%s", rig_describe());
        rig_close();
    }
}

/* ---- loss of one piece, whichever it is ---- */

static uint32_t victim;
static unsigned times;

static bool drop_victim(const struct rig_piece *piece)
{
    uint32_t at = piece->seq - rig.irs - 1;
    if (rig.established && piece->len > 0 && at <= victim && victim < at + piece->len && times > 0) {
        times--;
        return true;
    }
    return false;
}

/* Lost once, it comes by fast retransmission; lost again and again, by the timer. */
static void test_any_piece_lost(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 400; i++) {
        struct rig_options o = usual;
        o.bytes = 700000 + i * 7; /* at first segments are small, as the congestion window is */
        o.copy = i % 2;
        o.v6 = i % 4 / 2;
        o.timestamps = i % 3 == 0;
        o.close_at_once = i % 5 < 2;
        o.seed = i + 1;
        victim = o.bytes - 1 - (399 - i) * 1000;
        times = 1 + i % 4;
        rig_open(&o);
        rig.drop = drop_victim;
        rig_finish(60000);
        check(times == 0, "nothing was lost; %s", rig_describe());
        rig_close();
    }
}

/* The same while the application has nothing more to send until later: what it writes then comes behind what is under
 * way, though that may just be sent again. */
static void test_loss_at_the_end_of_a_burst(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 300; i++) {
        struct rig_options o = usual;
        o.bytes = 600000;
        o.pace_ms = 1 + i % 9;
        o.burst = 100000;
        o.least = 1000 + 100 * (i % 30);
        o.most = o.least * 3;
        o.copy = i % 2;
        o.nodelay = i % 3 == 0;
        o.seed = i + 1;
        victim = 300000 + i * 997;
        times = 1 + i % 2;
        rig_open(&o);
        rig.drop = drop_victim;
        rig_finish(60000);
        rig_close();
    }
}

/* The peer shuts its window by surprise once a piece is lost, so that what is sent again fast waits to be sent while
 * what is behind it is under way. */
static bool drop_and_shut(const struct rig_piece *piece)
{
    if (!drop_victim(piece))
        return false;
    rig.shut_until = rig.now + 1200;
    rig.gap = 0;
    return true;
}

/* What the application writes then, or the end of the stream, belongs behind all of it. */
static void test_added_behind_what_is_sent_again(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        struct rig_options o = usual;
        o.kind = WINDOW_SHUTS;
        o.window = 16384;
        o.bytes = 1000 + 100 * i;
        o.pace_ms = 20;
        o.burst = 1000;
        o.least = o.most = 100; /* the first one of a burst is lost */
        o.nodelay = o.close_at_once = true;
        o.copy = i % 2;
        o.seed = i + 1;
        victim = o.bytes / 1000 * 1000 - 1000;
        times = 1;
        rig_open(&o);
        rig.drop = drop_and_shut;
        rig_finish(60000);
        rig_close();
    }
}

static bool drop_and_narrow(const struct rig_piece *piece)
{
    if (!drop_victim(piece))
        return false;
    rig.o.kind = WINDOW_SHUTS;
    rig.shut_until = rig.now + 5000;
    rig.gap = 6000;
    return true;
}

/* A piece of a large segment is lost, and the peer takes back most of its window: as much of the segment as fits is
 * sent again fast, though what is behind it is under way. No timer is waited for. */
static void test_fast_into_a_narrow_window(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        struct rig_options o = usual;
        o.bytes = 1000000;
        o.ack_every = 30; /* so that much can be sent at a time, */
        o.window = 65536; /* but not so much that what is lost with the window takes long */
        o.v6 = i & 1;
        o.copy = i & 2;
        o.seed = i + 1;
        rig_open(&o);
        while (rig.furthest < 500000)
            rig_run(1);
        victim = rig.furthest + 1 + i * 1000;
        times = 1;
        rig.drop = drop_and_narrow;
        while (times > 0)
            rig_run(1);
        check(rig.largest > 20000, "%s", rig_describe());
        rig_run(100);
        check(rig.rcv_nxt > victim, "%s", rig_describe());
        rig_finish(60000);
        rig_close();
    }
}

/* ---- peers with odd sizes ---- */

/* Segments smaller than their own options, among others. */
static void test_smallest_segments(void **state)
{
    static const uint16_t sizes[] = { 1, 2, 11, 12, 13, 14, 20, 64, 88, 536 };

    (void)state;
    for (unsigned i = 0; i < 4 * COUNT_OF(sizes); i++) {
        struct rig_options o = usual;
        o.mss = sizes[i / 4];
        o.timestamps = i & 1;
        o.v6 = i & 2;
        o.bytes = 200u * o.mss;
        o.loss = i % 3 * 10;
        o.seed = i + 1;
        rig_open(&o);
        rig_finish(2000000);
        rig_close();
    }
}

/* A router says that the path takes less than the interface: pieces get smaller, those of segments queued before as
 * well. */
static void test_path_mtu(void **state)
{
    static const uint16_t mtus[] = { 1499, 1400, 1300, 1281, 1280 };

    (void)state;
    for (unsigned i = 0; i < 4 * COUNT_OF(mtus); i++) {
        struct rig_options o = usual;
        o.v6 = true;
        o.timestamps = i & 1;
        o.mtu = i & 2 ? 9000 : 1500;
        o.mss = i & 2 ? 8940 : 0;
        o.bytes = 900000;
        o.seed = i + 1;
        rig_open(&o);
        rig_run(8);
        check(rig.rcv_nxt < 300000, "%s", rig_describe());
        ip6_addr_copy(destination_cache[0].destination_addr, *ip_2_ip6(&rig.pcb->remote_ip));
        destination_cache[0].pmtu = mtus[i / 4];
        rig.path_mtu = mtus[i / 4];
        rig_finish(60000);
        check(rig.large > 0, "%s", rig_describe());
        memset(destination_cache, 0, sizeof destination_cache[0]);
        rig_close();
    }
}

/* ---- receiving ---- */

/* A segment that stands for several is acknowledged at once, a single one with the next or when the timer says. */
static void test_acknowledged_at_once(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        struct rig_options o = usual;
        o.bytes = 2; /* of which the second is not written: the connection stays as it is */
        o.pace_ms = 1000000;
        o.burst = 1;
        o.v6 = i & 1;
        o.timestamps = i & 2;
        uint32_t mss = i & 4 ? 536 : 1400;
        o.mss = (uint16_t)mss;
        rig_open(&o);
        rig_run(300);
        rig_send(0, mss, 0);
        assert_int_equal(rig.guest_ack, 0);
        rig_run(300);
        assert_int_equal(rig.guest_ack, mss);
        uint64_t acks = rig.guest_acks;
        rig_send(mss, 2 * mss, (uint16_t)mss);
        assert_int_equal(rig.guest_ack, 3 * mss);
        rig_send(3 * mss, mss + 1, (uint16_t)mss);
        assert_int_equal(rig.guest_ack, 4 * mss + 1);
        rig_send(4 * mss + 1, 45 * mss, (uint16_t)mss);
        assert_int_equal(rig.guest_ack, 49 * mss + 1);
        assert_int_equal(rig.guest_acks, acks + 3);
        rig_run(1000);
        assert_int_equal(rig.guest_acks, acks + 3);
        rig_close();
    }
}

/* Sends bytes in one piece, in a turn of their own. */
static struct acks_rest send_turn(uint32_t *at, uint32_t n, uint32_t mss)
{
    rig_send(*at, n, (uint16_t)(n > mss ? mss : 0));
    *at += n;
    return acks_turn(0, rig.now * 1000000);
}

/* Sends `n` bytes more in large segments of 8 times `mss`, which go from *at on, each in a turn of its own. */
static void send_bulk(uint32_t *at, uint32_t n, uint32_t mss)
{
    for (uint32_t end = *at + n; *at + 8 * mss <= end;)
        send_turn(at, 8 * mss, mss);
}

/* Of bulk data acknowledgements are put together: one for 64 KiB or a quarter of a window that is smaller, and one for
 * the rest in the next millisecond; after which the peer, that had to wait, gets twice as many at once again. What is
 * small waits with the rest; what is out of order is acknowledged as ever. */
static void test_acknowledged_together(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        struct rig_options o = usual;
        o.bytes = 2;
        o.pace_ms = 1000000;
        o.burst = 1;
        o.v6 = i & 1;
        o.timestamps = i & 2;
        o.scale = i & 4 ? -1 : 7;
        const uint32_t mss = 1400, large = 8 * mss, most = o.scale < 0 ? 65535 / 4 : ACKS_HOLD_BYTES;
        uint32_t at = 0;
        rig_open(&o);
        rig_run(300);
        uint64_t acks = rig.guest_acks;
        send_bulk(&at, ACKS_QUICK_BYTES + large - 1, mss);
        assert_int_equal(rig.guest_ack, at);
        assert_int_equal(rig.guest_acks - acks, at / large);
        acks = rig.guest_acks;
        uint64_t held = acks_stats()->held, by_size = acks_stats()->by_size, by_time = acks_stats()->by_time;
        for (unsigned n = 0; n < 40; n++) {
            send_bulk(&at, large, mss);
            assert_in_range(at - rig.guest_ack, 0, most);
        }
        unsigned each = (most + large - 1) / large; /* segments for one acknowledgement */
        assert_int_equal(rig.guest_acks, acks + 40 / each);
        assert_int_equal(acks_stats()->by_size, by_size + 40 / each);
        assert_int_equal(acks_stats()->held, held + 40);
        if (at == rig.guest_ack)
            send_bulk(&at, large, mss);
        acks = rig.guest_acks;
        send_turn(&at, 100, mss); /* a small one waits with it */
        assert_int_equal(rig.guest_acks, acks);
        rig_run(ACKS_HOLD_NS / 1000000);
        assert_int_equal(rig.guest_ack, at);
        assert_int_equal(rig.guest_acks, acks + 1);
        assert_int_equal(acks_stats()->by_time, by_time + 1);
        send_bulk(&at, 2 * ACKS_QUICK_BYTES, mss);
        assert_int_equal(rig.guest_ack, at); /* at once */
        send_bulk(&at, large, mss);
        send_bulk(&at, large, mss);
        assert_in_range(at - rig.guest_ack, large, 2 * large); /* held again, */
        acks = rig.guest_acks;
        rig_send(at + mss, large, (uint16_t)mss); /* but not with a gap */
        assert_int_equal(rig.guest_ack, at);
        assert_int_equal(rig.guest_acks, acks + 1);
        rig_close();
        assert_int_equal(acks_waiting(), 0); /* a connection that is gone is forgotten */
    }
}

/* A packet that the device says stands for several and that has no data holds nothing, and leaves alone what is held:
 * when the connection ends, nothing is remembered of it. */
static void test_large_without_data(void **state)
{
    (void)state;
    struct rig_options o = usual;
    o.bytes = 2;
    o.pace_ms = 1000000;
    o.burst = 1;
    uint32_t mss = 1400, at = 0;
    rig_open(&o);
    rig_run(300);
    send_bulk(&at, ACKS_QUICK_BYTES + 8 * mss, mss); /* bulk from now on, nothing held */
    assert_int_equal(acks_waiting(), 0);
    for (unsigned i = 0; i < 20; i++)
        rig_send(at, 0, (uint16_t)mss);
    assert_int_equal(acks_waiting(), 0);
    send_bulk(&at, 8 * mss, mss);
    uint32_t acknowledged = rig.guest_ack;
    assert_true(acks_waiting() == 1 && acknowledged == at - 8 * mss);
    for (unsigned i = 0; i < 20; i++)
        rig_send(at, 0, (uint16_t)mss);
    assert_int_equal(acks_waiting(), 1);
    assert_int_equal(rig.guest_ack, acknowledged);
    rig_run(10);
    assert_int_equal(rig.guest_ack, at);
    rig_close();
    assert_int_equal(acks_waiting(), 0);
}

/* All that comes in one turn is acknowledged once, at its end. */
static void test_acknowledged_by_turn(void **state)
{
    (void)state;
    struct rig_options o = usual;
    o.bytes = 2;
    o.pace_ms = 1000000;
    o.burst = 1;
    const uint32_t mss = 1400, large = 8 * mss;
    uint32_t at = 0;
    rig_open(&o);
    rig_run(300);
    send_bulk(&at, ACKS_QUICK_BYTES + large - 1, mss);
    for (unsigned n = 0; n < 20; n++) {
        uint64_t acks = rig.guest_acks;
        for (unsigned k = 0; k < 2 * ACKS_HOLD_BYTES / large; k++, at += large)
            rig_send(at, large, (uint16_t)mss);
        assert_int_equal(rig.guest_acks, acks);
        acks_turn(0, rig.now * 1000000);
        assert_int_equal(rig.guest_acks, acks + 1);
        assert_int_equal(rig.guest_ack, at);
        assert_int_equal(acks_waiting(), 0);
    }
    rig_close();
}

/* Large requests that are answered are no bulk data, however many: each is acknowledged at once, and the core does not
 * sleep until there are more. */
static void test_requests_are_not_bulk(void **state)
{
    (void)state;
    struct rig_options o = usual;
    o.bytes = 100000;
    o.pace_ms = 20;
    o.burst = 10;
    const uint32_t mss = 1400, large = 8 * mss;
    uint32_t at = 0;
    rig_open(&o);
    rig_run(300);
    uint64_t held = acks_stats()->held;
    for (unsigned n = 0; n < 3 * ACKS_QUICK_BYTES / large; n++) {
        rig_send(at, large, (uint16_t)mss);
        at += large;
        assert_int_equal(rig.guest_ack, at);
        assert_false(acks_busy());
        rig_run(20); /* the answer */
    }
    assert_int_equal(acks_stats()->held, held);
    rig_close();
}

/* ---- the sleep ---- */

/* Whether the core sleeps until there is more: only when nothing but bulk data has come for a while, and for as long
 * as its pace makes it worth while. */
static void test_choice(void **state)
{
    (void)state;
    struct acks_past past = { 0 };
    uint64_t now = 5000000000, others = 0;
    const uint64_t much = 1u << 20, none = UINT64_MAX;
    struct acks_rest rest = acks_choose(&past, others, much, none, now);
    assert_int_equal(rest.rx_after, ACKS_BUFFERS);
    assert_int_equal(rest.ns, ACKS_SLEEP_LEAST_NS);

    rest = acks_choose(&past, ++others, much, none, now); /* something else came with it: */
    assert_int_equal(rest.rx_after, 1);
    assert_int_equal(rest.ns, none);
    rest = acks_choose(&past, others, much, 300000, now + ACKS_QUIET_NS - 1); /* not yet quiet */
    assert_int_equal(rest.rx_after, 1);
    assert_int_equal(rest.ns, 300000);
    now += ACKS_QUIET_NS;
    rest = acks_choose(&past, others, 0, 300000, now); /* nothing came: the wait is for the acknowledgement */
    assert_int_equal(rest.rx_after, 1);
    assert_int_equal(rest.ns, 300000);
    rest = acks_choose(&past, others, 1, 30000, now); /* never longer than that */
    assert_int_equal(rest.rx_after, ACKS_BUFFERS);
    assert_int_equal(rest.ns, 30000);

    for (uint64_t limit = 2 * ACKS_SLEEP_LEAST_NS; limit < 4 * ACKS_SLEEP_MOST_NS; limit *= 2) { /* fast */
        uint64_t pace = past.ns * ACKS_BUFFER_BYTES / ACKS_BUFFER_NS + 1;
        rest = acks_choose(&past, others, pace, none, now);
        assert_int_equal(rest.rx_after, ACKS_BUFFERS);
        assert_int_equal(rest.ns, limit < ACKS_SLEEP_MOST_NS ? limit : ACKS_SLEEP_MOST_NS);
    }
    for (uint64_t limit = ACKS_SLEEP_MOST_NS / 2; limit > ACKS_SLEEP_LEAST_NS / 4; limit /= 2) { /* slow */
        uint64_t pace = past.ns * ACKS_BUFFER_BYTES / ACKS_BUFFER_NS - 1;
        rest = acks_choose(&past, others, pace, none, now);
        assert_int_equal(rest.rx_after, ACKS_BUFFERS);
        assert_int_equal(rest.ns, limit > ACKS_SLEEP_LEAST_NS ? limit : ACKS_SLEEP_LEAST_NS);
    }
}

/* The same by connections: a stream brings the sleep about, other frames end it, and its end does. */
static void test_sleep_in_a_stream(void **state)
{
    (void)state;
    struct rig_options o = usual;
    o.bytes = 2;
    o.pace_ms = 1000000;
    o.burst = 1;
    const uint32_t mss = 1400, large = 8 * mss;
    uint32_t at = 0;
    uint64_t frames = 1000000;
    rig_open(&o);
    rig_run(300);
    send_bulk(&at, ACKS_QUICK_BYTES + large - 1, mss);
    assert_false(acks_busy());
    for (unsigned n = 0; n < 30; n++) {
        bool other = n == 10 || n == 11;
        for (unsigned k = 0; k < 3; k++, at += large) /* more than ACKS_HOLD_BYTES in a millisecond */
            rig_send(at, large, (uint16_t)mss);
        frames += 3 + other;
        assert_true(acks_busy());
        struct acks_rest rest = acks_turn(frames, rig.now * 1000000);
        assert_int_equal(rest.rx_after, n < 4 || (n >= 10 && n < 14) ? 1 : ACKS_BUFFERS);
        if (n % 2 == 1)
            rig.now++;
    }
    while (acks_busy()) {
        rig.now++;
        assert_int_equal(acks_turn(frames, rig.now * 1000000).rx_after, 1);
    }
    rig_close();
}

/* ---- random walks ---- */

static uint32_t pick(uint64_t *seed, const uint32_t *from, unsigned n)
{
    return from[chance_below(seed, n)];
}
#define PICK(seed, ...) pick(seed, (const uint32_t[]){ __VA_ARGS__ }, COUNT_OF(((const uint32_t[]){ __VA_ARGS__ })))

static struct rig_options random_options(uint64_t *seed)
{
    struct rig_options o = { .seed = chance(seed) | 1 };
    o.v6 = chance_below(seed, 2);
    o.no_offload = chance_below(seed, 12) == 0;
    o.timestamps = chance_below(seed, 2);
    o.mtu = (uint16_t)PICK(seed, 1500, 1500, 9000, 1280);
    o.mss = (uint16_t)PICK(seed, 0, 0, 536, 1220, 8960);
    o.scale = (int)PICK(seed, 0, 2, 7, 14, 255);
    if (o.scale == 255)
        o.scale = -1;
    o.kind = (enum rig_window)chance_below(seed, 4);
    o.window = PICK(seed, 2048, 4096, 16384, 65535, 65535, 256 * 1024, 1 << 20);
    if (o.scale == 14 && o.window < 65536)
        o.window = 65536;
    o.rate = PICK(seed, 100, 1000, 10000);
    o.ack_every = PICK(seed, 1, 2, 2, 10);
    o.loss = PICK(seed, 0, 0, 1, 10, 30, 50);
    o.reorder = PICK(seed, 0, 0, 10, 100);
    o.busy_ms = PICK(seed, 0, 0, 3, 20);
    o.no_memory = PICK(seed, 0, 0, 0, 5);
    o.copy = chance_below(seed, 2);
    o.mix = chance_below(seed, 3) == 0;
    o.nodelay = chance_below(seed, 3) == 0;
    o.bytes = PICK(seed, 1, 1000, 20000, 100000, 300000);
    o.least = PICK(seed, 1, 100, 1448, 30000);
    o.most = o.least + PICK(seed, 0, 100, 2000, 30000);
    if (o.least == 1)
        o.bytes = o.bytes < 20000 ? o.bytes : 20000;
    o.pace_ms = PICK(seed, 0, 0, 1, 7, 100);
    o.burst = PICK(seed, 10000, 70000);
    o.close_at_once = chance_below(seed, 2);
    return o;
}

static void test_random_walks(void **state)
{
    const char *count = getenv("UNIT_ROUNDS");
    unsigned rounds = count != NULL ? (unsigned)atoi(count) : 1500;
    (void)state;
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t seed = chance_seed(0x7e61) + i * 0xd1342543de82ef95ull;
        for (unsigned n = 0; n < 4; n++)
            chance(&seed);
        struct rig_options o = random_options(&seed);
        const char *only = getenv("UNIT_ONLY");
        if (only != NULL && (unsigned)atoi(only) != i)
            continue;
        if (getenv("UNIT_VERBOSE"))
            print_message("walk %u\n", i);
        rig_open(&o);
        rig_finish(3600000);
        rig_close();
    }
}

static int tear_down(void **state)
{
    (void)state;
    rig_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_bulk, tear_down),
        cmocka_unit_test_teardown(test_short_stream, tear_down),
        cmocka_unit_test_teardown(test_any_piece_lost, tear_down),
        cmocka_unit_test_teardown(test_loss_at_the_end_of_a_burst, tear_down),
        cmocka_unit_test_teardown(test_added_behind_what_is_sent_again, tear_down),
        cmocka_unit_test_teardown(test_fast_into_a_narrow_window, tear_down),
        cmocka_unit_test_teardown(test_smallest_segments, tear_down),
        cmocka_unit_test_teardown(test_path_mtu, tear_down),
        cmocka_unit_test_teardown(test_acknowledged_at_once, tear_down),
        cmocka_unit_test_teardown(test_acknowledged_together, tear_down),
        cmocka_unit_test_teardown(test_large_without_data, tear_down),
        cmocka_unit_test_teardown(test_acknowledged_by_turn, tear_down),
        cmocka_unit_test_teardown(test_requests_are_not_bulk, tear_down),
        cmocka_unit_test(test_choice),
        cmocka_unit_test_teardown(test_sleep_in_a_stream, tear_down),
        cmocka_unit_test_teardown(test_random_walks, tear_down),
    };

    return cmocka_run_group_tests_name("segment", tests, NULL, NULL);
}

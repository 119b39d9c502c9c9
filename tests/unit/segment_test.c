/* Large segments (net/segment.c) in the real lwIP, with its assertions, against a peer that has small windows, takes them back, and
 * loses any part of a segment that the device has cut. The peer compares every byte of every piece with the stream,
 * fresh or sent again; what the application is told to be acknowledged must be what it wrote. */
#include "tests/unit/lwip_rig.h"

#include "lwip/nd6.h"
#include "lwip/priv/nd6_priv.h"

static const struct rig_options usual = {
    .scale = 7, .window = 256 * 1024, .ack_every = 2, .bytes = 400000, .least = 65535, .most = 65535,
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
        uint64_t seed = chance_seed(0x7e61) + i * 0x9e3779b97f4a7c15ull;
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
        cmocka_unit_test_teardown(test_any_piece_lost, tear_down),
        cmocka_unit_test_teardown(test_loss_at_the_end_of_a_burst, tear_down),
        cmocka_unit_test_teardown(test_random_walks, tear_down),
    };

    return cmocka_run_group_tests_name("segment", tests, NULL, NULL);
}

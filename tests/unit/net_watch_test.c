/* Notifications that were lost: virtnet_watch() on a queue pair whose device sleeps. */
#include "tests/unit/net_rig.h"

#define MS     1000000ull
#define SECOND (1000 * MS)

static uint64_t now, look_at;

static void done(void *token)
{
    (void)token;
}

static void open_rig(uint64_t features)
{
    net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = features });
    net_rig_flush();
    fake_device_sleep(&net_rig.tx, 0);
    net_rig.rx_bells = net_rig.tx_bells = 0;
    now = look_at = 5 * SECOND;
}

static void close_rig(void)
{
    check(!net_rig.tx.violation[0], "%s", net_rig.tx.violation);
    net_rig_check_buffers();
    net_rig_check_slots();
    net_rig_close();
}

/* The core is idle for so long, and looks when it is time, in steps of `step`. */
static void idle(uint64_t ns, uint64_t step)
{
    for (uint64_t end = now + ns; now < end; now += step) {
        if (now < look_at)
            continue;
        look_at = now + VIRTNET_WATCH_NS;
        virtnet_watch(net_rig.pair, now);
    }
}

static void send(void)
{
    struct tx_slot *slot = virtnet_slot(net_rig.pair);

    assert_non_null(slot);
    assert_true(virtnet_send(net_rig.pair, slot, 100, NULL, 0));
}

static void device_returns(void)
{
    struct fake_chain chain;

    while (fake_device_take(&net_rig.tx, &chain))
        ;
    while (net_rig.tx.held_count > 0)
        fake_device_return(&net_rig.tx, 0, 0);
    fake_device_publish(&net_rig.tx);
    fake_device_sleep(&net_rig.tx, 0);
    virtnet_reclaim(net_rig.pair, UINT32_MAX, done);
}

/* The quiet life: nothing is with the device, or all comes back. */
static void test_nothing_owed(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        open_rig(MRG | (i ? EVENT : 0));
        net_rig.pair->watch.rx_told = false;
        idle(20 * SECOND, 10 * MS);
        for (unsigned n = 0; n < 40; n++) { /* a frame is on its way at nearly every look, but never the same */
            send();
            virtnet_flush(net_rig.pair);
            idle(450 * MS, 150 * MS);
            device_returns();
            idle(150 * MS, 150 * MS);
        }
        send(); /* after a long sleep: it is not this frame that is late */
        now += 3 * SECOND;
        virtnet_flush(net_rig.pair);
        net_rig.tx_bells = 0;
        virtnet_watch(net_rig.pair, now);
        device_returns();
        send(); /* not shown: the device cannot return it */
        idle(5 * SECOND, 100 * MS);
        assert_int_equal(net_rig.tx_bells + net_rig.rx_bells, 0);
        assert_int_equal(net_rig.pair->tx_stats.kicks_repeated + net_rig.pair->rx_stats.kicks_repeated, 0);
        assert_int_equal(fake_console_count(LOG_WARN), 0);
        virtnet_flush(net_rig.pair);
        close_rig();
    }
}

/* Frames are with the device, which was told and did not hear. */
static void test_transmit(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        open_rig(MRG | (i ? EVENT : 0));
        net_rig.pair->watch.rx_told = false;
        for (unsigned n = 0; n < 3; n++)
            send();
        virtnet_flush(net_rig.pair);
        assert_int_equal(net_rig.tx_bells, 1);
        idle(1000 * MS, 10 * MS);
        assert_int_equal(net_rig.tx_bells, 1);
        idle(500 * MS, 10 * MS);
        assert_int_equal(net_rig.tx_bells, 2); /* after a second, seen at the next look */
        idle(5 * SECOND, 10 * MS);
        assert_int_equal(net_rig.tx_bells, 12); /* at each look, */
        assert_int_equal(net_rig.pair->tx_stats.kicks_repeated, 11);
        assert_int_equal(fake_console_count(LOG_WARN), 1); /* said once */
        assert_non_null(fake_console_find(LOG_WARN, "queue 1: the device has 3 frames"));
        device_returns();
        idle(5 * SECOND, 10 * MS);
        assert_int_equal(net_rig.tx_bells, 12); /* and no longer than it has to be */
        send();
        virtnet_flush(net_rig.pair);
        idle(1500 * MS, 10 * MS);
        assert_int_equal(net_rig.pair->tx_stats.kicks_repeated, 12); /* again, but it is not said again */
        assert_int_equal(fake_console_count(LOG_WARN), 1);
        assert_int_equal(net_rig.rx_bells, 0);
        device_returns();
        close_rig();
    }
}

/* One that returns some every now and then is slow, not deaf. */
static void test_progress(void **state)
{
    struct fake_chain chain;

    (void)state;
    open_rig(MRG | EVENT);
    net_rig.pair->watch.rx_told = false;
    for (unsigned n = 0; n < 10; n++)
        send();
    virtnet_flush(net_rig.pair);
    net_rig.tx_bells = 0;
    while (fake_device_take(&net_rig.tx, &chain))
        ;
    for (unsigned n = 0; n < 9; n++) {
        idle(900 * MS, 10 * MS);
        fake_device_return(&net_rig.tx, 0, 0);
        fake_device_publish(&net_rig.tx);
        virtnet_reclaim(net_rig.pair, 10, done);
    }
    assert_int_equal(net_rig.tx_bells, 0);
    idle(1500 * MS, 10 * MS);
    assert_int_equal(net_rig.tx_bells, 1);
    device_returns();
    close_rig();
}

/* A frame that came back under a wrong id is lost, but nothing is waited for. */
static void test_lost_buffer(void **state)
{
    struct fake_chain chain;

    (void)state;
    open_rig(MRG | EVENT);
    net_rig.pair->watch.rx_told = false;
    send();
    virtnet_flush(net_rig.pair);
    net_rig.tx_bells = 0;
    assert_true(fake_device_take(&net_rig.tx, &chain));
    fake_device_lie(&net_rig.tx, 4711, 0);
    fake_device_publish(&net_rig.tx);
    assert_int_equal(virtnet_reclaim(net_rig.pair, 10, done), 0);
    idle(10 * SECOND, 10 * MS);
    assert_int_equal(net_rig.tx_bells, 0);
    close_rig();
}

/* Without an event index a device says plainly that it wants no notification: then it gets none (2.7.10.1). */
static void test_unwanted(void **state)
{
    (void)state;
    open_rig(MRG);
    fake_device_poll(&net_rig.tx);
    fake_device_poll(&net_rig.rx);
    send();
    virtnet_flush(net_rig.pair);
    idle(10 * SECOND, 10 * MS);
    assert_int_equal(net_rig.tx_bells + net_rig.rx_bells, 0);
    assert_int_equal(fake_console_count(LOG_WARN), 0);
    fake_device_sleep(&net_rig.tx, 0); /* it has found nothing, and sleeps: our notification is late */
    idle(500 * MS, 10 * MS);
    assert_int_equal(net_rig.tx_bells, 1);
    device_returns();
    close_rig();
}

static void device_writes(unsigned count)
{
    while (count-- > 0) {
        struct net_frame f = { .bytes = 100 };
        assert_true(net_rig_write(&f));
    }
    fake_device_publish(&net_rig.rx);
}

static void receive(unsigned count)
{
    struct virtnet_frame frame;

    while (count-- > 0) {
        assert_true(virtnet_receive(net_rig.pair, &frame));
        virtnet_release(frame.buffer[0]);
    }
    virtnet_refill(net_rig.pair);
    net_rig_flush();
}

/* Receive buffers that the device waited for: told again until it uses one of them. */
static void test_receive(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        open_rig(MRG | (i ? EVENT : 0)); /* it was told of the first ones */
        idle(1000 * MS, 10 * MS);
        assert_int_equal(net_rig.rx_bells, 0);
        idle(2000 * MS, 10 * MS);
        assert_int_equal(net_rig.pair->rx_stats.kicks_repeated, 4); /* at each look */
        assert_int_equal(net_rig.rx_bells, 4);
        device_writes(1); /* it has heard */
        fake_device_poll(&net_rig.rx);
        receive(1);
        idle(100 * SECOND, 10 * MS);
        assert_int_equal(net_rig.pair->rx_stats.kicks_repeated, 4);
        device_writes(15); /* all that it knew of, while the driver has seen but five of them */
        fake_device_sleep(&net_rig.rx, 1);
        receive(5);
        assert_int_equal(net_rig.rx_bells, 1);
        idle(500 * MS, 10 * MS);
        fake_device_poll(&net_rig.rx);
        receive(10); /* they say nothing of whether it has heard */
        idle(1000 * MS, 10 * MS);
        assert_int_equal(net_rig.pair->rx_stats.kicks_repeated, 4 + i); /* without the index, it wants none */
        assert_int_equal(fake_console_count(LOG_WARN), 0);
        assert_int_equal(net_rig.pair->tx_stats.kicks_repeated, 0);
        close_rig();
    }
}

static void device_takes(unsigned count)
{
    struct fake_chain chain;

    while (count-- > 0) {
        assert_true(fake_device_take(&net_rig.rx, &chain));
        memset((void *)(uintptr_t)chain.piece[0].addr, 0, 100);
    }
}

static void device_gives(unsigned count)
{
    while (count-- > 0)
        fake_device_return(&net_rig.rx, 0, 100);
    fake_device_publish(&net_rig.rx);
}

/* The device shows used entries of no buffer, so it seems to have used what it has not heard of when all it had before
 * has come back. */
static void test_receive_entries_of_no_buffer(void **state)
{
    (void)state;
    for (unsigned lies = 0; lies < 4; lies++) {
        open_rig(EVENT);
        device_takes(1);
        for (unsigned i = 0; i < lies; i++)
            fake_device_lie(&net_rig.rx, 4711, 100);
        device_gives(1);
        fake_device_poll(&net_rig.rx);
        receive(1);
        device_takes(16);
        assert_true(fake_device_sleep(&net_rig.rx, 0));
        device_gives(5);
        receive(5);
        assert_int_equal(net_rig.rx_bells, 1); /* which it does not hear */
        device_gives(11);
        fake_device_poll(&net_rig.rx); /* it asked before: no publish is a reason for a notification any more */
        receive(11);
        uint64_t before = net_rig.pair->rx_stats.kicks_repeated;
        idle(3 * SECOND, 10 * MS);
        check(net_rig.pair->rx_stats.kicks_repeated > before, "not told again after %u entries of no buffer", lies);
        device_takes(1); /* it has heard */
        device_gives(1);
        receive(1);
        before = net_rig.pair->rx_stats.kicks_repeated;
        idle(3 * SECOND, 10 * MS);
        assert_int_equal(net_rig.pair->rx_stats.kicks_repeated, before);
        close_rig();
    }
}

/* Buffers shown before the device could be told: it has used some by the time it is, so it knows of them. */
static void test_receive_before_told(void **state)
{
    struct virtnet_frame frame;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 16, .features = i ? EVENT : 0 });
        now = look_at = 5 * SECOND;
        device_takes(3);
        device_gives(3);
        for (unsigned n = 0; n < 3; n++) {
            assert_true(virtnet_receive(net_rig.pair, &frame));
            virtnet_release(frame.buffer[0]);
        }
        net_rig_flush();
        assert_int_equal(net_rig.rx_bells, 1);
        idle(5 * SECOND, 10 * MS);
        assert_int_equal(net_rig.pair->rx_stats.kicks_repeated, 0);
        close_rig();
    }
}

static void sent(struct virtnet_pair *pair, void *token)
{
    virtnet_finish(pair, token, done);
}

/* After a reset of the device the frame is nobody's, and its late return nothing to wait for. */
static void test_reset(void **state)
{
    (void)state;
    open_rig(MRG | EVENT);
    send();
    virtnet_flush(net_rig.pair);
    idle(900 * MS, 10 * MS);
    virtnet_take_back(net_rig.pair, sent);
    virtnet_relay(&net_rig.net);
    net_rig.rx_bells = net_rig.tx_bells = 0;
    send();
    virtnet_flush(net_rig.pair);
    assert_int_equal(net_rig.rx_bells + net_rig.tx_bells, 2);
    idle(900 * MS, 10 * MS); /* it counts from here */
    assert_int_equal(net_rig.rx_bells + net_rig.tx_bells, 2);
    idle(500 * MS, 10 * MS);
    assert_int_equal(net_rig.rx_bells + net_rig.tx_bells, 4);
    close_rig();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_owed),
        cmocka_unit_test(test_transmit),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_lost_buffer),
        cmocka_unit_test(test_unwanted),
        cmocka_unit_test(test_receive),
        cmocka_unit_test(test_receive_entries_of_no_buffer),
        cmocka_unit_test(test_receive_before_told),
        cmocka_unit_test(test_reset),
    };

    return cmocka_run_group_tests_name("net_watch", tests, NULL, NULL);
}

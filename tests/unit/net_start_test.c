/* Starting a virtio-net device: how interrupts are given out, what is there before it runs, the control queue. */
#include "tests/unit/setup_rig.h"

#include "kernel/apic.h"
#include "kernel/traps.h"

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
        setup_add_msix(rows[i].vectors);
        setup_offer_pairs(4);
        assert_true(setup_probe_asking(0, 0, 0, 4));
        virtnet_plan(&setup.net, (uint16_t)rows[i].pairs);
        assert_int_equal(setup.net.interrupts, rows[i].expected);
        assert_int_equal(setup.net.pairs, rows[i].pairs);
        assert_true(strlen(virtnet_interrupts_name(&setup.net)) > 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        set_up(state);
        fake_pci_set(modern.function, 0x3c, 2, i == 0 ? 0x010b : i == 1 ? 0x000b : i == 2 ? 0x01ff : 0x0110, 0);
        assert_true(setup_probe());
        virtnet_plan(&setup.net, 1);
        assert_int_equal(setup.net.interrupts, i == 0 ? VIRTNET_INTX : VIRTNET_POLLED);
    }
}

static void test_vectors(void **state)
{
    (void)state;
    for (unsigned vectors = 1; vectors <= 3; vectors++) {
        assert_true(setup_start(vectors, 1));
        assert_int_equal(modern.dev.status, 0xf);
        setup_check_entry(0, 10, VECTOR_CONFIG);
        assert_int_equal(modern.dev.config_vector, 0);
        if (vectors == 2)
            setup_check_entry(1, 10, VECTOR_QUEUES);
        if (vectors == 3)
            setup_check_entry(1, 10, VECTOR_RX);
        if (vectors == 3)
            setup_check_entry(2, 10, VECTOR_TX);
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
        assert_true(setup_start(vectors, 4));
        setup_check_entry(0, 10, VECTOR_CONFIG);
        for (uint16_t i = 0; i < 8; i++) {
            unsigned own = vectors == 9 ? 1u + i : 1u + i / 2u;
            assert_int_equal(modern.dev.queue[i].vector, own);
            assert_true(modern.dev.queue[i].enabled);
            setup_check_entry(own, 10 + i / 2, vectors == 5 ? VECTOR_QUEUES : i % 2 ? VECTOR_TX : VECTOR_RX);
        }
        assert_true(modern.dev.queue[8].enabled); /* the control queue, which has no vector */
        assert_int_equal(modern.dev.queue[8].vector, VIRTIO_NO_VECTOR);
        tear_down(NULL);
    }
}

static void raise(uint8_t vector)
{
    assert_non_null(setup.irq[vector].handler);
    setup.irq[vector].handler(setup.irq[vector].argument);
}

static void on_shared(void)
{
    setup.shared_interrupts++;
}

static void check_noted(unsigned rx, unsigned tx, bool changed)
{
    assert_int_equal(setup.net.pair.rx_stats.interrupts, rx);
    assert_int_equal(setup.net.pair.tx_stats.interrupts, tx);
    assert_int_equal(setup.net.config_changed, changed);
    setup.net.config_changed = false;
    setup.net.pair.rx_stats.interrupts = setup.net.pair.tx_stats.interrupts = 0;
}

static void test_handlers(void **state)
{
    (void)state;
    assert_true(setup_start(3, 1));
    setup.net.on_shared_interrupt = on_shared;
    raise(VECTOR_RX);
    check_noted(1, 0, false);
    raise(VECTOR_TX);
    check_noted(0, 1, false);
    raise(VECTOR_CONFIG);
    check_noted(0, 0, true);
    assert_int_equal(setup.shared_interrupts, 0);
    tear_down(NULL);

    assert_true(setup_start(2, 1));
    setup.net.on_shared_interrupt = on_shared;
    raise(VECTOR_QUEUES);
    check_noted(1, 1, false);
    assert_int_equal(setup.shared_interrupts, 0); /* the pair's own vector */
    tear_down(NULL);

    assert_true(setup_start(1, 1));
    raise(VECTOR_CONFIG); /* the only one: it may be anything */
    check_noted(1, 1, true);
    setup.net.on_shared_interrupt = on_shared;
    raise(VECTOR_CONFIG);
    assert_int_equal(setup.shared_interrupts, 1);
    tear_down(NULL);
}

static void test_pin(void **state)
{
    struct virtnet_peer peer = { &setup.net.pair, 10 };

    (void)state;
    fake_pci_set(modern.function, 0x3c, 2, 0x010b, 0);
    fake_pci_set(modern.function, 0x04, 2, 0x400, 0x0547); /* firmware has switched the pin off */
    assert_true(setup_probe());
    virtnet_plan(&setup.net, 1);
    assert_true(virtnet_layout(&setup.net, 0, &setup.error));
    assert_true(virtnet_start(&setup.net, &peer, 1, NULL, NULL, &setup.error));
    assert_int_equal(setup.pic_line, 11);
    assert_int_equal(fake_pci_get(modern.function, 0x04, 2) & 0x400, 0);
    assert_int_equal(modern.dev.queue[0].vector, VIRTIO_NO_VECTOR);
    setup.net.on_shared_interrupt = on_shared;
    modern.dev.isr = 0;
    raise(VECTOR_PIC + 11); /* another device's */
    check_noted(0, 0, false);
    assert_int_equal(setup.shared_interrupts, 0);
    modern.dev.isr = 1;
    raise(VECTOR_PIC + 11);
    check_noted(1, 1, false);
    assert_int_equal(setup.shared_interrupts, 1);
    modern.dev.isr = 2;
    raise(VECTOR_PIC + 11);
    check_noted(0, 0, true);
    assert_int_equal(modern.dev.isr, 0);
}

static void test_polled(void **state)
{
    (void)state;
    assert_true(setup_start(0, 1));
    assert_int_equal(setup.net.interrupts, VIRTNET_POLLED);
    setup_check_warned("interrupt_line", "polled");
    assert_int_equal(modern.dev.queue[0].vector, VIRTIO_NO_VECTOR);
    assert_int_equal(modern.dev.status, 0xf);
}

/* ---- start ---- */

static void test_buffers_are_there_before_it_runs(void **state)
{
    const struct vring_avail *avail;

    (void)state;
    assert_true(setup_start(3, 1));
    avail = (const struct vring_avail *)(uintptr_t)modern.dev.queue[0].area[1];
    assert_int_equal(avail->idx, 16);
    assert_ptr_equal(setup.net.pair.rx.desc, (void *)(uintptr_t)modern.dev.queue[0].area[0]);
    assert_ptr_equal(setup.net.pair.tx.used, (void *)(uintptr_t)modern.dev.queue[1].area[2]);
    assert_ptr_equal(setup.net.pair.rx.notify, modern.bar[4] + NOTIFY_AT);
    assert_ptr_equal(setup.net.pair.tx.notify, modern.bar[4] + NOTIFY_AT + 4);
}

/* What the device refuses of each queue: its number, size and vector are said, and the device knows that it is over. */
static void test_queue_refused(void **state)
{
    for (unsigned i = 0; i < 3; i++) {
        struct virtnet_peer peer = { &setup.net.pair, 10 };

        tear_down(state);
        set_up(state);
        setup_add_msix(3);
        assert_true(setup_probe_asking(0, 0, 16, 1));
        virtnet_plan(&setup.net, 1);
        assert_true(virtnet_layout(&setup.net, 0, &setup.error));
        modern.dev.loses_size = i == 0;
        modern.dev.loses_vector = i == 1;
        modern.dev.queue[1].notify_off = i == 2 ? 0xffff : 1;
        assert_false(virtnet_start(&setup.net, &peer, 1, NULL, NULL, &setup.error));
        setup_check_reason(i == 2 ? "queue 1 (size 16, vector 0x2)" : "queue 0 (size 16, vector 0x1)",
                           i == 0   ? "queue_size"
                           : i == 1 ? "queue_msix_vector"
                                    : "queue_notify_off");
        assert_int_equal(modern.dev.status, 0xb | FAILED);
    }
}

static void test_config_vector_lost(void **state)
{
    struct virtnet_peer peer = { &setup.net.pair, 10 };

    (void)state;
    setup_add_msix(3);
    assert_true(setup_probe());
    virtnet_plan(&setup.net, 1);
    assert_true(virtnet_layout(&setup.net, 0, &setup.error));
    modern.dev.loses_config_vector = true;
    assert_true(virtnet_start(&setup.net, &peer, 1, NULL, NULL, &setup.error)); /* it works without */
    setup_check_warned("msix_config", "link");
    assert_int_equal(modern.dev.status, 0xf);
}

/* ---- the control queue ---- */

/* A device that does not answer: one pair is used, and that is said; a late answer could still change it. */
static void test_pairs_not_answered(void **state)
{
    (void)state;
    assert_true(setup_start(9, 4));
    assert_int_equal(setup.net.pairs, 1);
    assert_true(setup.net.control_lost);
    assert_false(setup.net.control.open);
    assert_non_null(fake_console_find(LOG_WARN, "4 queue pairs: timed out"));
    assert_int_equal(modern.dev.queue[8].size, 64);
    tear_down(state);
    assert_true(
        setup_start_with_rings(5, 2, 0)); /* it is behind all the queues that the device has, not those in use */
    assert_true(modern.dev.queue[8].enabled && !modern.dev.queue[4].enabled);
    assert_int_equal(modern.dev.queue[8].size, 64); /* of which it needs few */
    assert_int_equal(modern.dev.queue[0].size, 256);
}

static void test_control_queue_unusable(void **state)
{
    (void)state;
    for (unsigned size = 0; size < 4; size++) {
        struct virtnet_peer peer[2] = { { &setup.net.pair, 10 }, { NULL, 11 } };
        static struct virtnet second;

        tear_down(state);
        set_up(state);
        setup_add_msix(5);
        setup_offer_pairs(2);
        modern.dev.queue[4].size = (uint16_t)size;
        assert_true(setup_probe_asking(0, 0, 16, 2));
        virtnet_plan(&setup.net, 2);
        virtnet_attach(&second, &setup.net);
        assert_true(virtnet_layout(&setup.net, 0, &setup.error) && virtnet_layout(&second, 1, &setup.error));
        peer[1].pair = &second.pair;
        assert_true(virtnet_start(&setup.net, peer, 2, NULL, NULL, &setup.error));
        assert_int_equal(setup.net.pairs, 1);
        assert_false(setup.net.control_lost); /* nothing was asked */
        assert_non_null(fake_console_find(LOG_WARN, "control queue 4 of size"));
        assert_false(modern.dev.queue[4].enabled);
        assert_int_equal(modern.dev.status, 0xf);
    }
}

/* Behind 32,768 pairs, which a device may have (5.1.4), there is no number left for the control queue: it is not taken
 * for queue 0. */
static void test_control_queue_beyond_all_numbers(void **state)
{
    struct virtnet_peer peer[1] = { { &setup.net.pair, 10 } };

    (void)state;
    setup_add_msix(3);
    setup_offer_pairs(0x8000);
    assert_true(setup_probe_asking(0, 0, 16, 1));
    assert_int_equal(setup.net.max_pairs, 0x8000);
    virtnet_plan(&setup.net, 1);
    assert_true(virtnet_layout(&setup.net, 0, &setup.error));
    assert_true(virtnet_start(&setup.net, peer, 1, NULL, NULL, &setup.error));
    assert_int_equal(modern.dev.queue[0].area[0], (uintptr_t)setup.net.pair.rx.desc);
    assert_non_null(fake_console_find(LOG_WARN, "control queue 65536 of size 0: not used"));
    assert_false(setup.net.control.open);
    assert_int_equal(modern.dev.status, 0xf);
}

/* What another core takes over of the device, and what not. */
static void test_attach(void **state)
{
    struct virtnet other;

    (void)state;
    assert_true(setup_probe());
    virtnet_plan(&setup.net, 1);
    setup.net.on_shared_interrupt = on_shared;
    setup.net.control.open = true;
    setup.net.pair.number = 3;
    memset(&other, 0x5a, sizeof(other));
    virtnet_attach(&other, &setup.net);
    assert_memory_equal(other.mac, setup.net.mac, 6);
    assert_int_equal(other.features, setup.net.features);
    assert_int_equal(other.mtu, setup.net.mtu);
    assert_memory_equal(other.ring_size, setup.net.ring_size, sizeof(setup.net.ring_size));
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
        TEST(test_control_queue_beyond_all_numbers),
        TEST(test_attach),
    };

    return cmocka_run_group_tests_name("net_start", tests, modern_make_bars, modern_free_bars);
}

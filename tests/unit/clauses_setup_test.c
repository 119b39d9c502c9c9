/* What the specification says of how a driver sets a device up (virtio 1.3, chapters 2, 3, 4.1 and 5.1.4 to 5.1.6),
 * seen from the device's end: every register that is written, in order, every field of the configuration that is read,
 * every command, every interrupt. The device is modern_rig's, with fake_device behind its control queue. */
#include "tests/unit/clauses_rig.h"

#include "kernel/traps.h"

/* The common structure's registers (4.1.4.3). */
enum { OFFER = 0, SELECT = 8, ACCEPT = 12, STATUS = 20, QUEUE = 22, SIZE = 24, VECTOR = 26, ENABLE = 28, AREAS = 32 };

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

        clauses_run(9, pairs);
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
        assert_int_equal(rig.early_bells, 0);
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

        clauses_plain(3);
        modern.dev.offered &= what == 1 ? ~VERSION1 : UINT64_MAX;
        modern.dev.queue[0].size = what == 2 ? 0 : 256;
        modern.dev.loses_size = what == 3;
        modern.dev.loses_vector = what == 4;
        modern.dev.queue[1].notify_off = what == 5 ? 0xffff : 1;
        bool good = clauses_probe(0, 16, 1) && clauses_bring_up(1);
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

/* A device that was reset is set up again in the same order (2.1.1, 2.4.2), and what it had is taken back between the
 * reset and the new rings (3.3.1): every buffer is there again, what was to be sent is accounted for. */
static unsigned taken_back;

static void not_sent(struct virtnet_pair *pair, void *token)
{
    (void)pair;
    assert_non_null(token);
    taken_back++;
}

static void test_reset_and_again(void **state)
{
    static const uint8_t order[] = { 0, 1, 3, 0xb, 0xf };

    (void)state;
    for (uint16_t pairs = 1; pairs <= 4; pairs += 3) {
        unsigned steps = 0;

        clauses_run(9, pairs);
        uint64_t features = modern.dev.accepted;
        uint32_t free_count = rig.net.pair.pool.free_count;
        for (unsigned n = 0; n < 3; n++)
            assert_true(virtnet_send(&rig.net.pair, virtnet_slot(&rig.net.pair), 100, NULL, 0));
        virtnet_flush(&rig.net.pair);
        modern.dev.status |= 0x40;
        uint8_t status = 0;
        assert_true(virtnet_needs_reset(&rig.net, &status));
        assert_int_equal(status, 0x4f);
        modern.dev.log_count = rig.commands = taken_back = 0;
        check(virtnet_reset(&rig.net, &rig.error), "%s", rig.error.text);
        assert_int_equal(modern.dev.status, 0xb);
        for (uint16_t i = 0; i < pairs; i++) {
            struct virtnet *own = i == 0 ? &rig.net : &rig.core[i];
            virtnet_take_back(&own->pair, not_sent);
            assert_int_equal(own->pair.rx.in_flight + own->pair.tx.in_flight, 0);
            virtnet_relay(own);
        }
        check(clauses_start(pairs), "%s", rig.error.text);
        for (unsigned i = 0; i < modern.dev.log_count; i++)
            if (modern.dev.log[i].at == STATUS)
                check(steps < COUNT_OF(order) && modern.dev.log[i].value == order[steps++], "status %x as step %u",
                      modern.dev.log[i].value, steps);
        assert_int_equal(steps, COUNT_OF(order));
        assert_int_equal(taken_back, 3);
        assert_int_equal(rig.early_bells, 0);
        assert_int_equal(modern.dev.accepted, features);
        assert_int_equal(rig.net.pair.pool.free_count, free_count);
        assert_int_equal(rig.commands, pairs > 1);
        for (unsigned i = 0; i < pairs; i++)
            assert_int_equal(clauses_available(2 * i)->idx, 16);
        assert_false(virtnet_needs_reset(&rig.net, &status));
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
    clauses_plain(3);
    modern.dev.offered = UINT64_MAX;
    modern.dev.offers_beyond = true;
    assert_true(clauses_probe(0, 16, 1));
    check(clauses_bring_up(1), "%s", rig.error.text);
    assert_int_equal(modern.dev.accepted, implemented);
    assert_int_equal(modern.dev.status, 0xf);
    for (unsigned i = 0; i < modern.dev.log_count; i++)
        assert_true((modern.dev.log[i].at != SELECT && modern.dev.log[i].at != OFFER) || modern.dev.log[i].value < 2);
}

/* 6.1: VERSION_1 is accepted where it is offered; who switches it off gets no device. */
static void test_version_1_is_not_optional(void **state)
{
    (void)state;
    clauses_plain(3);
    assert_true(clauses_probe(~VERSION1, 16, 1));
    assert_int_equal(modern.dev.accepted, VERSION1);
    clauses_plain(3);
    assert_false(clauses_probe(VERSION1, 16, 1));
    assert_non_null(strstr(rig.error.text, "version_1"));
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

        clauses_plain(0);
        modern.dev.offered = VERSION1;
        for (unsigned i = 0; i < COUNT_OF(bit); i++)
            modern.dev.offered |= n & 1u << i ? bit[i] : 0;
        for (unsigned i = 0; i < COUNT_OF(field); i++)
            if (modern.dev.offered & field[i].features)
                allowed |= ((1ull << field[i].bytes) - 1) << field[i].at;
        assert_true(clauses_probe(0, 16, 4));
        virtnet_link_up(&rig.net);
        check(!(modern.dev.config_touched & ~allowed), "device_feature %llx: bytes %llx of the configuration are read",
              (unsigned long long)modern.dev.offered, (unsigned long long)(modern.dev.config_touched & ~allowed));
        assert_int_equal(modern.dev.misfits, 0);
    }
}

/* 4.1.3.1: a field of 8 bits by one access each, of 16 and 32 by one access. */
static void test_widths(void **state)
{
    (void)state;
    clauses_plain(0);
    modern.dev.offered |= F(MTU) | F(MQ) | F(CTRL_VQ) | F(RSS);
    assert_true(clauses_probe(0, 16, 1));
    /* mtu, then mac, max_virtqueue_pairs, rss_max_key_size, rss_max_indirection_table_length, supported_hash_types */
    assert_int_equal(modern.dev.config_reads, 1 + 6 + 1 + 1 + 1 + 1);
    virtnet_link_up(&rig.net);
    assert_int_equal(modern.dev.config_reads, 12);
}

/* 5.1.4.2: who negotiates MAC uses the device's address; so it is not negotiated when that is no station's. */
static void test_bad_mac_is_not_acknowledged(void **state)
{
    static const char *const bad[] = { "\0\0\0\0\0\0", "\xff\xff\xff\xff\xff\xff", "\x01\0\x5e\0\0\x01" };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(bad); i++) {
        clauses_plain(0);
        memcpy(rig.config.mac, bad[i], 6);
        assert_true(clauses_probe(0, 16, 1));
        assert_false(modern.dev.accepted & F(MAC));
        assert_false(virtnet_has(&rig.net, VIRTIO_NET_F_MAC));
        assert_memory_equal(rig.net.mac, "\x0a\x07\x06\x05\x04\x03", 6); /* random, locally administered */
    }
    clauses_plain(0);
    assert_true(clauses_probe(F(MAC), 16, 1));
    assert_memory_equal(rig.net.mac, "\x0a\x07\x06\x05\x04\x03", 6);
    assert_int_equal(fake_console_count(LOG_WARN), 0);
}

/* ---- PCI ---- */

/* 2.5.1, 4.1.4.1: structures longer than what is known of them. */
static void test_long_structures(void **state)
{
    static const uint32_t lengths[TYPES + 1] = { 0, 0x1000, NOTIFY_LENGTH, 0x1000, BAR_SIZE - DEVICE_AT };

    (void)state;
    clauses_set_up(NULL);
    for (uint8_t type = 1; type <= TYPES; type++)
        modern_add_structure(type, 4, good[type].offset, lengths[type]);
    assert_true(clauses_probe(0, 16, 1));
    check(clauses_bring_up(1), "%s", rig.error.text);
    assert_int_equal(rig.net.transport.config_length, 0x1000);
    assert_true(modern_mapped(4, DEVICE_AT, 0x1000) && !modern_mapped(4, DEVICE_AT, 0x1001));
}

/* 4.1.4.1: capabilities longer than described, each type by itself and all. */
static void test_longer_capabilities(void **state)
{
    (void)state;
    for (unsigned longer = 1; longer <= TYPES + 1; longer++) {
        clauses_set_up(NULL);
        for (uint8_t type = 1; type <= TYPES; type++) {
            unsigned at = modern_add_structure(type, 4, good[type].offset, good[type].length);
            if (longer == type || longer > TYPES) {
                uint8_t length = (uint8_t)(fake_pci_get(modern.function, at + 2, 1) + 12);
                fake_pci_set(modern.function, at + 2, 1, length, 0);
                modern.next_cap = at + length;
            }
        }
        assert_true(clauses_probe(0, 16, 1));
        assert_ptr_equal(rig.net.transport.common, modern.bar[4]);
        assert_ptr_equal(rig.net.transport.isr, modern.bar[4] + ISR_AT);
        assert_ptr_equal(rig.net.transport.config, modern.bar[4] + DEVICE_AT);
        assert_ptr_equal(rig.net.transport.notify, modern.bar[4] + NOTIFY_AT);
        check(clauses_bring_up(1), "%s", rig.error.text);
    }
}

/* 4.1.4.1, 4.1.4.8.2, 4.1.4.9.2: of all capabilities, access through configuration space and vendor data among them,
 * nothing is written but MSI-X's control. */
static void test_capabilities_are_not_written(void **state)
{
    (void)state;
    for (unsigned vectors = 0; vectors <= 3; vectors += 3) {
        uint8_t before[256];
        clauses_set_up(NULL);
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
        assert_true(clauses_probe(0, 16, 1));
        check(clauses_bring_up(1), "%s", rig.error.text);
        virtnet_link_up(&rig.net);
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

        clauses_plain(0);
        clauses_offer_pairs(1);
        for (unsigned i = 0; i < 3; i++)
            modern.dev.queue[i].size = (uint16_t)(2 + chance_below(&seed, n % 2 ? 2000 : 100));
        assert_true(clauses_probe(0, (uint16_t)(chance(&seed) & 1 ? 0 : 2u << chance_below(&seed, 10)), 1));
        check(clauses_bring_up(1), "%s", rig.error.text);
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
            clauses_run(vectors, pairs);
            assert_true(modern.dev.config_vector < vectors);
            for (unsigned i = 0; i < 2u * pairs; i++)
                assert_true(modern.dev.queue[i].enabled && modern.dev.queue[i].vector < vectors);
            for (unsigned i = 0; i < modern.dev.log_count; i++)
                named += modern.dev.log[i].at == VECTOR && modern.dev.log[i].value < vectors;
            assert_true(named >= 2u * pairs);
        }
    }
    clauses_run(2048, 1);
    assert_int_equal(modern.dev.status, 0xf);
}

static const uint8_t vectors_in_use[] = { VECTOR_CONFIG, VECTOR_RX, VECTOR_TX, VECTOR_QUEUES };

/* 4.1.4.5.2: with MSI-X the ISR status is left alone. */
static void test_isr_is_left_alone(void **state)
{
    (void)state;
    for (unsigned vectors = 1; vectors <= 3; vectors++) {
        clauses_run(vectors, 1);
        modern.dev.isr = 3;
        for (unsigned i = 0; i < COUNT_OF(vectors_in_use); i++)
            clauses_raise(vectors_in_use[i]);
        assert_true(rig.net.pair.rx_stats.interrupts > 0);
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
        clauses_run(vectors, 1);
        uint32_t free_count = rig.net.pair.pool.free_count;
        for (unsigned n = 0; n < 100; n++) {
            for (unsigned i = 0; i < COUNT_OF(vectors_in_use); i++)
                clauses_raise(vectors_in_use[i]);
            assert_false(virtnet_receive(&rig.net.pair, &frame));
            assert_int_equal(virtnet_reclaim(&rig.net.pair, 64, never_done), 0);
            virtnet_flush(&rig.net.pair);
            assert_true(virtnet_sleep(&rig.net.pair, true, 1));
            virtnet_awake(&rig.net.pair);
        }
        virtnet_report_faults(&rig.net.pair);
        assert_int_equal(rig.net.pair.pool.free_count, free_count);
        assert_int_equal(rig.net.pair.rx.stats.bad_used + rig.net.pair.tx.stats.bad_used, 0);
        assert_int_equal(fake_console_count(LOG_ERROR), 0);
        assert_true(virtnet_link_up(&rig.net));
    }
}

/* ---- queues and commands ---- */

/* 5.1.6.3.1: each receive queue in use has its buffers when the device begins to serve. */
static void test_each_pair_has_buffers(void **state)
{
    (void)state;
    for (uint16_t pairs = 1; pairs <= 4; pairs++) {
        clauses_run(9, pairs);
        for (unsigned i = 0; i < pairs; i++) {
            assert_int_equal(clauses_available(2 * i)->idx, 16);
            assert_int_equal(clauses_available(2 * i + 1)->idx, 0);
        }
        assert_int_equal(rig.net.pairs, pairs);
    }
}

/* 5.1.6.5.6.1: the number of pairs is set when all their queues are enabled and the device runs, and nothing has been
 * sent by then. */
static void test_pairs_are_set_last(void **state)
{
    (void)state;
    for (uint16_t pairs = 2; pairs <= 4; pairs++) {
        clauses_run(9, pairs);
        assert_int_equal(rig.commands, 1);
        assert_int_equal(rig.command[0].class, VIRTIO_NET_CTRL_MQ);
        assert_int_equal(rig.command[0].command, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET);
        assert_int_equal(rig.command[0].word, pairs);
        assert_int_equal(rig.command[0].status, 0xf);
        assert_int_equal(rig.command[0].enabled, 2 * pairs + 1);
        assert_int_equal(rig.command[0].transmitting, 0);
    }
}

/* Commands are sent only of features that were negotiated (5.1.6.5.1.2 and so on), whatever else is offered. */
static void test_commands_as_negotiated(void **state)
{
    static const uint64_t feature[] = { F(MQ), F(RSS), F(HASH_REPORT) };

    (void)state;
    for (unsigned n = 0; n < 32; n++) {
        uint64_t all = n & 16 ? UINT64_MAX : 0;
        clauses_plain(9);
        clauses_offer_pairs(4);
        modern.dev.offered = (modern.dev.offered | all) & ~(F(MQ) | F(RSS) | F(HASH_REPORT));
        for (unsigned i = 0; i < COUNT_OF(feature); i++)
            modern.dev.offered |= n & 1u << i ? feature[i] : 0;
        rig.config.max_virtqueue_pairs = n & 3 ? 4 : 1; /* where the control queue is depends on it */
        uint16_t pairs = n & 3 && n & 8 ? 4 : 1;
        assert_true(clauses_probe(0, 16, pairs));
        check(clauses_bring_up(pairs), "%s", rig.error.text);
        for (unsigned i = 0; i < rig.commands; i++) {
            unsigned what = rig.command[i].command;
            assert_int_equal(rig.command[i].class, VIRTIO_NET_CTRL_MQ);
            check(what <= 2 && modern.dev.accepted & feature[what], "command %u with driver_feature %llx", what,
                  (unsigned long long)modern.dev.accepted);
        }
        assert_true(rig.commands > 0 || pairs == 1);
        assert_true(rig.net.pairs == pairs);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, clauses_set_up, clauses_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_order_of_all_steps),
        TEST(test_status_only_grows),
        TEST(test_reset_and_again),
        TEST(test_everything_offered),
        TEST(test_version_1_is_not_optional),
        TEST(test_fields_need_their_features),
        TEST(test_widths),
        TEST(test_bad_mac_is_not_acknowledged),
        TEST(test_long_structures),
        TEST(test_longer_capabilities),
        TEST(test_capabilities_are_not_written),
        TEST(test_sizes_are_powers_of_two),
        TEST(test_any_number_of_vectors),
        TEST(test_isr_is_left_alone),
        TEST(test_needless_interrupts),
        TEST(test_each_pair_has_buffers),
        TEST(test_pairs_are_set_last),
        TEST(test_commands_as_negotiated),
    };

    return cmocka_run_group_tests_name("clauses_setup", tests, modern_make_bars, modern_free_bars);
}

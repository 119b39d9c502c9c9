/* Features that the driver has not: whatever a device offers, their bits are not acknowledged, over the real
 * negotiation and the real registers. Numbers and names are the specification's (virtio 1.3 and 1.4, 5.1.3 and 6),
 * written down here once more. Who implements one takes its line out, and gives the rows of tests/conformance that name
 * it tests. */
#include "tests/unit/modern_rig.h"

#include "drivers/virtio/device.h"
#include "kernel/clock.h"

#define WORDS           4 /* of 32 feature bits: what there is room for in 1.4 */
#define FEATURES_OK     8
#define VERSION_1       FEATURE_BIT(32)
#define SELECT_REGISTER 8 /* driver_feature_select and driver_feature in the common structure (4.1.4.3) */
#define WRITE_REGISTER  12

uint64_t clock_ns(void)
{
    static uint64_t now;

    return now += 1000;
}

/* The words of feature bits as the device has got them, from what was written to its registers. */
static void accepted(uint32_t word[WORDS])
{
    uint32_t select = 0;

    memset(word, 0, WORDS * sizeof(word[0]));
    for (unsigned i = 0; i < modern.dev.log_count; i++) {
        const struct modern_write *w = &modern.dev.log[i];
        if (w->at == SELECT_REGISTER)
            select = w->value;
        check(w->at != WRITE_REGISTER || select < WORDS, "feature bits from %u on are written", 32 * select);
        if (w->at == WRITE_REGISTER)
            word[select] = w->value;
    }
}

/* Negotiates with a device that offers the bits; the bit, if it has one of the lower 64, and those at hand. */
static void check_not_acknowledged(unsigned bit, uint64_t offered, bool beyond)
{
    struct feature_request request = { 0, 0 };
    struct feature_choice choice;
    struct virtio_error error;
    uint32_t word[WORDS];

    assert_int_equal(modern_set_up(NULL), 0);
    modern_add_all_good_but(0);
    assert_null(modern_init());
    modern.dev.offered = offered;
    modern.dev.offers_beyond = beyond;
    assert_true(virtio_start(&modern.transport, &error));
    check(virtio_negotiate(&modern.transport, &request, &choice, &error), "%s", error.text);
    assert_true(modern.dev.status & FEATURES_OK);
    accepted(word);
    assert_true(word[1] & 1); /* VERSION_1: the log shows what is accepted */
    check(!(word[bit / 32] & 1u << bit % 32), "bit %u of %llx is acknowledged", bit, (unsigned long long)offered);
    assert_true(bit >= 64 || !(choice.acknowledged & FEATURE_BIT(bit)));
}

/* Everything is offered; the bit with VERSION_1 alone; the bit with all that the driver has; random offers. */
static void never(unsigned bit)
{
    uint64_t seed = chance_seed(bit + 1), own = bit < 64 ? FEATURE_BIT(bit) : 0;
    size_t count;
    const struct feature *f = features_table(&count);
    uint64_t implemented = 0;

    for (size_t i = 0; i < count; i++)
        implemented |= f[i].implemented ? FEATURE_BIT(f[i].bit) : 0;
    check_not_acknowledged(bit, UINT64_MAX, true);
    check_not_acknowledged(bit, VERSION_1 | own, bit >= 64);
    check_not_acknowledged(bit, implemented | own, bit >= 64);
    for (unsigned n = 0; n < 20; n++)
        check_not_acknowledged(bit, VERSION_1 | own | (chance(&seed) | chance(&seed)), bit >= 64);
}

#define NEVER(name, bit)                                                                                               \
    static void test_never_##name(void **state)                                                                        \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        never(bit);                                                                                                    \
    }

NEVER(ctrl_guest_offloads, 2)
NEVER(host_ecn, 13)
NEVER(host_ufo, 14)
NEVER(ctrl_rx, 18)
NEVER(ctrl_rx_extra, 20)
NEVER(guest_announce, 21)
NEVER(access_platform, 33)
NEVER(packed, 34)
NEVER(in_order, 35)
NEVER(order_platform, 36)
NEVER(sr_iov, 37)
NEVER(notification_data, 38)
NEVER(notif_config_data, 39)
NEVER(ring_reset, 40)
NEVER(admin_vq, 41)
NEVER(suspend, 43)
NEVER(device_stats, 50)
NEVER(hash_tunnel, 51)
NEVER(vq_notf_coal, 52)
NEVER(notf_coal, 53)
NEVER(standby, 62)
NEVER(speed_duplex, 63)
NEVER(rss_context, 64)
NEVER(guest_udp_tunnel_gso, 65)
NEVER(host_udp_tunnel_gso, 67)
NEVER(host_udp_tunnel_gso_csum, 68)
NEVER(out_net_header, 69)
NEVER(ipsec, 70)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_ctrl_guest_offloads),
        cmocka_unit_test(test_never_host_ecn),
        cmocka_unit_test(test_never_host_ufo),
        cmocka_unit_test(test_never_ctrl_rx),
        cmocka_unit_test(test_never_ctrl_rx_extra),
        cmocka_unit_test(test_never_guest_announce),
        cmocka_unit_test(test_never_access_platform),
        cmocka_unit_test(test_never_packed),
        cmocka_unit_test(test_never_in_order),
        cmocka_unit_test(test_never_order_platform),
        cmocka_unit_test(test_never_sr_iov),
        cmocka_unit_test(test_never_notification_data),
        cmocka_unit_test(test_never_notif_config_data),
        cmocka_unit_test(test_never_ring_reset),
        cmocka_unit_test(test_never_admin_vq),
        cmocka_unit_test(test_never_suspend),
        cmocka_unit_test(test_never_device_stats),
        cmocka_unit_test(test_never_hash_tunnel),
        cmocka_unit_test(test_never_vq_notf_coal),
        cmocka_unit_test(test_never_notf_coal),
        cmocka_unit_test(test_never_standby),
        cmocka_unit_test(test_never_speed_duplex),
        cmocka_unit_test(test_never_rss_context),
        cmocka_unit_test(test_never_guest_udp_tunnel_gso),
        cmocka_unit_test(test_never_host_udp_tunnel_gso),
        cmocka_unit_test(test_never_host_udp_tunnel_gso_csum),
        cmocka_unit_test(test_never_out_net_header),
        cmocka_unit_test(test_never_ipsec),
    };

    return cmocka_run_group_tests_name("clauses_never", tests, modern_make_bars, modern_free_bars);
}

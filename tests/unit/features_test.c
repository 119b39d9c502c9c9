/* The feature table against a list of dependencies written down here once more, and the choice: each feature off in
 * turn, orphans, what is required and cannot be had. */
#include "tests/unit/unit.h"

#include "drivers/virtio/features.h"

#define ALL UINT64_MAX

/* The specification's bits by number (virtio 1.3, 5.1.3 and 6), independent of the headers that the table is made from.
 */
static const struct {
    unsigned bit;
    const char *name;
    bool implemented;
} bits[] = {
    { 0, "csum", true },
    { 1, "guest_csum", true },
    { 2, "ctrl_guest_offloads", false },
    { 3, "mtu", true },
    { 5, "mac", true },
    { 6, "gso", false },
    { 7, "guest_tso4", true },
    { 8, "guest_tso6", true },
    { 9, "guest_ecn", true },
    { 10, "guest_ufo", false },
    { 11, "host_tso4", true },
    { 12, "host_tso6", true },
    { 13, "host_ecn", false },
    { 14, "host_ufo", false },
    { 15, "mrg_rxbuf", true },
    { 16, "status", true },
    { 17, "ctrl_vq", true },
    { 18, "ctrl_rx", false },
    { 19, "ctrl_vlan", false },
    { 20, "ctrl_rx_extra", false },
    { 21, "guest_announce", false },
    { 22, "mq", true },
    { 23, "ctrl_mac_addr", false },
    { 24, "notify_on_empty", false },
    { 27, "any_layout", false },
    { 28, "indirect_desc", true },
    { 29, "event_idx", true },
    { 32, "version_1", true },
    { 33, "access_platform", false },
    { 34, "packed", false },
    { 35, "in_order", false },
    { 36, "order_platform", false },
    { 37, "sr_iov", false },
    { 38, "notification_data", false },
    { 39, "notif_config_data", false },
    { 40, "ring_reset", false },
    { 41, "admin_vq", false },
    { 50, "device_stats", false },
    { 51, "hash_tunnel", false },
    { 52, "vq_notf_coal", false },
    { 53, "notf_coal", false },
    { 54, "guest_uso4", true },
    { 55, "guest_uso6", true },
    { 56, "host_uso", true },
    { 57, "hash_report", true },
    { 59, "guest_hdrlen", true },
    { 60, "rss", true },
    { 61, "rsc_ext", false },
    { 62, "standby", false },
    { 63, "speed_duplex", false },
};

/* `feature` needs `needs`, or `needs` or `otherwise` where there is one. Two rows: it needs both. */
static const struct {
    const char *feature, *needs, *otherwise;
} dependencies[] = {
    { "guest_tso4", "guest_csum", NULL },
    { "guest_tso6", "guest_csum", NULL },
    { "guest_ecn", "guest_tso4", "guest_tso6" },
    { "guest_ufo", "guest_csum", NULL },
    { "guest_uso4", "guest_csum", NULL },
    { "guest_uso6", "guest_csum", NULL },
    { "host_tso4", "csum", NULL },
    { "host_tso6", "csum", NULL },
    { "host_ecn", "host_tso4", "host_tso6" },
    { "host_ufo", "csum", NULL },
    { "host_uso", "csum", NULL },
    { "rsc_ext", "host_tso4", "host_tso6" },
    { "ctrl_guest_offloads", "ctrl_vq", NULL },
    { "ctrl_rx", "ctrl_vq", NULL },
    { "ctrl_rx_extra", "ctrl_vq", NULL },
    { "ctrl_vlan", "ctrl_vq", NULL },
    { "ctrl_mac_addr", "ctrl_vq", NULL },
    { "guest_announce", "ctrl_vq", NULL },
    { "mq", "ctrl_vq", NULL },
    { "rss", "ctrl_vq", NULL },
    { "hash_report", "ctrl_vq", NULL },
    { "notf_coal", "ctrl_vq", NULL },
    { "vq_notf_coal", "ctrl_vq", NULL },
    { "device_stats", "ctrl_vq", NULL },
    { "hash_tunnel", "ctrl_vq", NULL },
    { "hash_tunnel", "rss", "hash_report" },
};

static uint64_t bit_of(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(bits); i++) {
        if (!strcmp(bits[i].name, name))
            return FEATURE_BIT(bits[i].bit);
    }
    fail_msg("no bit %s", name);
    return 0;
}

/* The oracle: what is left of `set` when whatever lacks something has been taken out. */
static uint64_t expected_closed(uint64_t set)
{
    for (size_t i = 0; i < COUNT_OF(dependencies); i++) {
        uint64_t wanted = bit_of(dependencies[i].needs);

        if (dependencies[i].otherwise)
            wanted |= bit_of(dependencies[i].otherwise);
        if ((set & bit_of(dependencies[i].feature)) && !(set & wanted))
            return expected_closed(set & ~bit_of(dependencies[i].feature));
    }
    return set;
}

static uint64_t implemented(void)
{
    uint64_t set = 0;

    for (size_t i = 0; i < COUNT_OF(bits); i++)
        set |= bits[i].implemented ? FEATURE_BIT(bits[i].bit) : 0;
    return set;
}

static struct feature_choice choose(uint64_t offered, uint64_t off, uint64_t required)
{
    struct feature_request request = { off, required };

    return features_choose(offered, &request);
}

static void test_table(void **state)
{
    size_t count;
    const struct feature *table = features_table(&count);

    (void)state;
    assert_int_equal(count, COUNT_OF(bits));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(table[i].bit, bits[i].bit);
        assert_string_equal(table[i].name, bits[i].name);
        check(table[i].implemented == bits[i].implemented, "%s", bits[i].name);
        assert_ptr_equal(feature_by_name(bits[i].name, strlen(bits[i].name)), &table[i]);
    }
}

static void test_by_name(void **state)
{
    (void)state;
    assert_null(feature_by_name("", 0));
    assert_null(feature_by_name("csu", 3));
    assert_null(feature_by_name("csums", 5));
    assert_null(feature_by_name("CSUM", 4));
    assert_null(feature_by_name("csum\0", 5));
    assert_int_equal(feature_by_name("csum,mac", 4)->bit, 0); /* the length counts, not what follows */
    assert_int_equal(feature_by_name("mq+", 2)->bit, 22);
}

static void test_each_dependency(void **state)
{
    (void)state;
    assert_int_equal(features_closed(ALL), ALL);
    assert_int_equal(features_closed(0), 0);
    for (size_t i = 0; i < COUNT_OF(dependencies); i++) {
        uint64_t feature = bit_of(dependencies[i].feature), needs = bit_of(dependencies[i].needs);
        uint64_t otherwise = dependencies[i].otherwise ? bit_of(dependencies[i].otherwise) : 0;

        check(!(features_closed(ALL & ~needs & ~otherwise) & feature), "%s without %s", dependencies[i].feature,
              dependencies[i].needs);
        if (otherwise) {
            check(features_closed(ALL & ~needs) & feature, "%s with %s", dependencies[i].feature,
                  dependencies[i].otherwise);
            check(features_closed(ALL & ~otherwise) & feature, "%s with %s", dependencies[i].feature,
                  dependencies[i].needs);
        }
    }
}

/* Chains of dependencies: without csum there is no host_tso4 and host_tso6, hence no host_ecn and no rsc_ext. */
static void test_closed_is_the_largest(void **state)
{
    uint64_t seed = chance_seed(0xfea7);

    (void)state;
    for (unsigned bit = 0; bit < 64; bit++)
        assert_int_equal(features_closed(ALL & ~FEATURE_BIT(bit)), expected_closed(ALL & ~FEATURE_BIT(bit)));
    for (unsigned n = 0; n < 5000; n++) {
        uint64_t set = chance(&seed) | chance(&seed);
        assert_int_equal(features_closed(set), expected_closed(set));
    }
    assert_false(features_closed(ALL & ~bit_of("csum")) & (bit_of("host_ecn") | bit_of("rsc_ext")));
}

static void test_each_offered_alone(void **state)
{
    (void)state;
    for (unsigned bit = 0; bit < 64; bit++) {
        uint64_t set = FEATURE_BIT(bit);
        struct feature_choice c = choose(set, 0, 0);

        assert_int_equal(c.acknowledged, expected_closed(set & implemented()));
        assert_int_equal(c.orphans, set & ~expected_closed(set));
        assert_int_equal(c.missing, 0);
    }
}

static void test_each_off_in_turn(void **state)
{
    (void)state;
    assert_int_equal(choose(ALL, 0, 0).acknowledged, implemented());
    for (unsigned bit = 0; bit < 64; bit++) {
        uint64_t off = FEATURE_BIT(bit);
        struct feature_choice c = choose(ALL, off, 0);

        assert_int_equal(c.acknowledged, expected_closed(implemented() & ~off));
        assert_int_equal(c.orphans, 0); /* the device is not to blame for what the user switches off */
        assert_int_equal(c.missing, 0);
    }
    assert_int_equal(choose(ALL, ALL, 0).acknowledged, 0);
}

/* A device that leaves out one bit after the other: what depended on it is an orphan and is left alone. */
static void test_each_not_offered_in_turn(void **state)
{
    (void)state;
    for (unsigned bit = 0; bit < 64; bit++) {
        uint64_t offered = ALL & ~FEATURE_BIT(bit);
        struct feature_choice c = choose(offered, 0, 0);

        assert_int_equal(c.acknowledged, expected_closed(offered & implemented()));
        assert_int_equal(c.orphans, offered & ~expected_closed(offered));
        assert_false(c.acknowledged & c.orphans);
        assert_false(c.acknowledged & ~offered);
        assert_int_equal(c.missing, 0);
    }
}

static void test_required(void **state)
{
    (void)state;
    for (unsigned bit = 0; bit < 64; bit++) {
        uint64_t set = FEATURE_BIT(bit);
        bool have = implemented() & set;

        assert_int_equal(choose(ALL, 0, set).missing, have ? 0 : set);     /* offered */
        assert_int_equal(choose(ALL & ~set, 0, set).missing, set);         /* not offered */
        assert_int_equal(choose(ALL, set, set).missing, set);              /* switched off as well */
        assert_int_equal(choose(ALL, 0, set).acknowledged, implemented()); /* requiring changes nothing else */
    }
    assert_int_equal(choose(ALL, 0, ALL).missing, ~implemented());
}

static void test_random_choice(void **state)
{
    uint64_t seed = chance_seed(0xc401);

    (void)state;
    for (unsigned n = 0; n < 5000; n++) {
        uint64_t offered = chance(&seed) | chance(&seed), off = chance(&seed) & chance(&seed) & chance(&seed);
        uint64_t required = chance(&seed) & chance(&seed);
        struct feature_choice c = choose(offered, off, required);

        assert_int_equal(c.acknowledged, expected_closed(offered & implemented() & ~off));
        assert_int_equal(c.missing, required & ~c.acknowledged);
        assert_int_equal(c.orphans, offered & ~expected_closed(offered));
    }
}

static void test_format(void **state)
{
    char buf[1024], exact[9];

    (void)state;
    assert_int_equal(features_format(0, buf, sizeof(buf)), 4);
    assert_string_equal(buf, "none");
    assert_int_equal(features_format(FEATURE_BIT(0), buf, sizeof(buf)), 4);
    assert_string_equal(buf, "csum");
    features_format(bit_of("version_1") | bit_of("mac") | bit_of("event_idx"), buf, sizeof(buf));
    assert_string_equal(buf, "mac,event_idx,version_1");
    features_format(FEATURE_BIT(4) | FEATURE_BIT(58) | bit_of("rss"), buf, sizeof(buf));
    assert_string_equal(buf, "rss,bit4,bit58");

    /* Too small: cut, terminated, and the length is what it would have been. */
    memset(buf, 'x', sizeof(buf));
    assert_int_equal(features_format(bit_of("mac") | bit_of("status"), buf, 7), 10);
    assert_memory_equal(buf, "mac,st", 7);
    assert_int_equal(buf[7], 'x');
    assert_int_equal(features_format(bit_of("mac"), buf, 1), 3);
    assert_int_equal(buf[0], '\0');
    assert_int_equal(features_format(bit_of("mac"), NULL, 0), 3);
    assert_int_equal(features_format(0, buf, 3), 4);
    assert_string_equal(buf, "no");
    assert_int_equal(features_format(bit_of("mac") | bit_of("csum"), exact, sizeof(exact)), 8);
    assert_string_equal(exact, "csum,mac");
    size_t all = features_format(ALL, NULL, 0);
    assert_true(all > 500 && all < sizeof(buf));
    for (size_t size = 0; size <= all + 2; size++) { /* every size, in an allocation of just that size */
        char *tight = malloc(size ? size : 1);

        assert_int_equal(features_format(ALL, tight, size), all);
        assert_true(size == 0 || strlen(tight) == (size - 1 < all ? size - 1 : all));
        free(tight);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_by_name),
        cmocka_unit_test(test_each_dependency),
        cmocka_unit_test(test_closed_is_the_largest),
        cmocka_unit_test(test_each_offered_alone),
        cmocka_unit_test(test_each_off_in_turn),
        cmocka_unit_test(test_each_not_offered_in_turn),
        cmocka_unit_test(test_required),
        cmocka_unit_test(test_random_choice),
        cmocka_unit_test(test_format),
    };

    return cmocka_run_group_tests_name("features", tests, NULL, NULL);
}

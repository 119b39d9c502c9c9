/* Bringing a device up (virtio 1.3, 3.1.1) against a transport that writes down all that is done to it, on a clock that
 * moves only when someone looks: the order of steps, and every way in which the device can refuse. */
#include "tests/unit/unit.h"

#include "drivers/virtio/device.h"
#include "kernel/clock.h"
#include "tests/unit/fake_console.h"

/* device_status (2.1). */
#define ACKNOWLEDGE 1
#define DRIVER      2
#define DRIVER_OK   4
#define FEATURES_OK 8
#define NEEDS_RESET 0x40
#define FAILED      0x80

#define SECOND 1000000000ull
/* What was done, in `done`: a status that was written is itself. */
#define READ_OFFER   0x100
#define WROTE_CHOICE 0x101

static struct {
    struct virtio_transport transport;
    uint8_t status;
    uint8_t stuck;         /* status bits that no reset clears */
    uint64_t reset_at;     /* a reset takes until then */
    uint8_t before_reset;  /* what status reads as meanwhile */
    bool refuses_features; /* FEATURES_OK does not stand */
    bool breaks_down;      /* NEEDS_RESET as soon as it is to serve */
    uint8_t floats;        /* bits that always read as one */
    uint64_t offered, chosen;
    unsigned done[64], done_count, status_reads;
} dev;

static uint64_t now, step; /* the clock, and what one look at it takes; the same for the status */
static uint64_t status_step;
static struct virtio_error *error;

uint64_t clock_ns(void)
{
    now += step;
    return now;
}

static void note(unsigned what)
{
    check(dev.done_count < COUNT_OF(dev.done), "more and more is written");
    dev.done[dev.done_count++] = what;
}

static uint8_t read_status(struct virtio_transport *t)
{
    assert_ptr_equal(t, &dev.transport);
    now += status_step;
    check(++dev.status_reads < 100000, "status is read without end");
    if (dev.reset_at != 0 && now < dev.reset_at)
        return dev.before_reset;
    return dev.status | dev.floats;
}

static void write_status(struct virtio_transport *t, uint8_t status)
{
    assert_ptr_equal(t, &dev.transport);
    note(status);
    if (status == 0) {
        dev.before_reset = dev.status;
        dev.status = dev.stuck;
        return;
    }
    if (dev.refuses_features)
        status &= (uint8_t)~FEATURES_OK;
    if (dev.breaks_down && (status & DRIVER_OK))
        status |= NEEDS_RESET;
    dev.status = status;
}

static uint64_t read_features(struct virtio_transport *t)
{
    assert_ptr_equal(t, &dev.transport);
    note(READ_OFFER);
    return dev.offered;
}

static void write_features(struct virtio_transport *t, uint64_t features)
{
    assert_ptr_equal(t, &dev.transport);
    note(WROTE_CHOICE);
    dev.chosen = features;
}

/* Everything else is left out: whoever calls it crashes. */
static const struct virtio_transport_ops fake_ops = {
    .name = "fake",
    .status = read_status,
    .set_status = write_status,
    .features = read_features,
    .set_features = write_features,
};

#define NET_OFFER (FEATURE_BIT(0) | FEATURE_BIT(1) | FEATURE_BIT(5) | FEATURE_BIT(15) | FEATURE_BIT(16))

static int set_up(void **state)
{
    (void)state;
    memset(&dev, 0, sizeof(dev));
    dev.transport.ops = &fake_ops;
    dev.status = 0xf; /* firmware has used it */
    dev.offered = NET_OFFER | FEATURE_BIT(32);
    now = 5 * SECOND;
    step = status_step = 1000;
    fake_console_clear();
    error = malloc(sizeof(*error)); /* AddressSanitizer sees a text that is too long */
    memset(error, 'x', sizeof(*error));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(error);
    return 0;
}

static void check_done(const unsigned *expected, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        check(i < dev.done_count && dev.done[i] == expected[i], "step %u: %x, not %x", i,
              i < dev.done_count ? dev.done[i] : 0xffff, expected[i]);
    assert_int_equal(dev.done_count, count);
}

#define DONE(...) check_done((const unsigned[]){ __VA_ARGS__ }, COUNT_OF(((const unsigned[]){ __VA_ARGS__ })))

/* The reason is one short sentence that names all of these. */
static void check_reason(const char *const *parts, unsigned count)
{
    assert_non_null(memchr(error->text, 0, sizeof(error->text)));
    assert_null(strpbrk(error->text, "\r\n"));
    for (unsigned i = 0; i < count; i++)
        check(strstr(error->text, parts[i]), "\"%s\" does not say %s", error->text, parts[i]);
}

#define REASON(...) check_reason((const char *const[]){ __VA_ARGS__ }, COUNT_OF(((const char *const[]){ __VA_ARGS__ })))

static bool negotiate(uint64_t off, uint64_t required, struct feature_choice *choice)
{
    struct feature_request request = { off, required };

    memset(choice, 0xee, sizeof(*choice));
    return virtio_negotiate(&dev.transport, &request, choice, error);
}

/* ---- all is well ---- */

static void test_order(void **state)
{
    struct feature_choice choice;

    (void)state;
    assert_true(virtio_start(&dev.transport, error));
    DONE(0, 1, 3);
    assert_true(negotiate(0, 0, &choice));
    DONE(0, 1, 3, READ_OFFER, WROTE_CHOICE, 0xb);
    assert_true(virtio_go(&dev.transport, error));
    DONE(0, 1, 3, READ_OFFER, WROTE_CHOICE, 0xb, 0xf);
    assert_int_equal(dev.status, 0xf);
    assert_int_equal(dev.chosen, dev.offered);
    assert_int_equal(choice.acknowledged, dev.offered);
    assert_int_equal(fake_console_count(LOG_INFO), 0);
    assert_int_equal(error->text[0], 'x'); /* nothing to say */
}

static void test_order_from_every_status(void **state)
{
    for (unsigned status = 0; status < 256; status++) {
        struct feature_choice choice;

        memset(dev.done, 0, sizeof(dev.done));
        dev.done_count = 0;
        dev.status = (uint8_t)status;
        assert_true(virtio_start(&dev.transport, error) && negotiate(0, 0, &choice));
        assert_true(virtio_go(&dev.transport, error));
        DONE(0, 1, 3, READ_OFFER, WROTE_CHOICE, 0xb, 0xf);
    }
    (void)state;
}

/* What is written is what was chosen, whatever is offered and asked for; an offer is read once, after DRIVER. */
static void test_choice_is_written(void **state)
{
    uint64_t seed = chance_seed(0xde7);

    (void)state;
    for (unsigned n = 0; n < 3000; n++) {
        struct feature_request request = { chance(&seed) & chance(&seed) & ~FEATURE_BIT(32), 0 };
        struct feature_choice choice;

        dev.done_count = dev.status_reads = 0;
        dev.offered = (chance(&seed) | chance(&seed)) | FEATURE_BIT(32);
        struct feature_choice expected = features_choose(dev.offered, &request);
        assert_true(virtio_start(&dev.transport, error));
        assert_true(virtio_negotiate(&dev.transport, &request, &choice, error));
        assert_int_equal(dev.chosen, expected.acknowledged);
        assert_int_equal(choice.acknowledged, expected.acknowledged);
        assert_int_equal(choice.orphans, expected.orphans);
        DONE(0, 1, 3, READ_OFFER, WROTE_CHOICE, 0xb);
    }
}

/* ---- reset ---- */

static void test_slow_reset(void **state)
{
    (void)state;
    dev.reset_at = now + 9 * SECOND / 10;
    step = status_step = SECOND / 100000;
    assert_true(virtio_start(&dev.transport, error));
    assert_true(now >= dev.reset_at && now < dev.reset_at + SECOND / 100);
    DONE(0, 1, 3); /* nothing before the reset is done */
}

/* The guest stood still for seconds between a look at the status and one at the clock; the device went on. */
static void test_stopped_meanwhile(void **state)
{
    (void)state;
    step = 3 * SECOND;
    status_step = 0;
    dev.reset_at = now + 5 * SECOND;
    assert_true(virtio_start(&dev.transport, error));
    DONE(0, 1, 3);
}

static void test_no_reset(void **state)
{
    static const uint8_t stuck[] = { 0x01, 0x0f, 0x40, 0x80, 0xff };

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(stuck); i++) {
        char value[8];
        uint64_t began = now;

        dev.done_count = dev.status_reads = 0;
        dev.stuck = stuck[i];
        step = status_step = SECOND / 10000;
        assert_false(virtio_start(&dev.transport, error));
        check(now - began >= SECOND && now - began < SECOND + SECOND / 100, "given up after %llu ns",
              (unsigned long long)(now - began));
        snprintf(value, sizeof(value), "0x%x ", stuck[i]);
        REASON("reset", "device_status", value);
        DONE(0); /* a device in an unknown state is left alone */
    }
    assert_int_equal(fake_console_count(LOG_DEBUG), 0); /* the caller says it, once */
}

/* ---- features ---- */

static void test_features_refused(void **state)
{
    struct feature_choice choice;

    (void)state;
    assert_true(virtio_start(&dev.transport, error));
    dev.refuses_features = true;
    assert_false(negotiate(0, 0, &choice));
    REASON("device_status is 0x3 ", "FEATURES_OK", "driver_feature 0x100018023");
    DONE(0, 1, 3, READ_OFFER, WROTE_CHOICE, 0xb, 0x83);
}

static void test_no_version_1(void **state)
{
    struct feature_choice choice;

    (void)state;
    assert_true(virtio_start(&dev.transport, error));
    dev.offered = NET_OFFER;
    assert_false(negotiate(0, 0, &choice));
    REASON("device_feature 0x18023", "version_1");
    DONE(0, 1, 3, READ_OFFER, 0x83); /* no features written, FEATURES_OK not tried */
}

/* Who switches it off gets no device either (6.1). */
static void test_version_1_switched_off(void **state)
{
    struct feature_choice choice;

    (void)state;
    assert_true(virtio_start(&dev.transport, error));
    assert_false(negotiate(FEATURE_BIT(32), 0, &choice));
    REASON("features=-version_1");
    DONE(0, 1, 3, READ_OFFER, 0x83);
}

static void test_required_missing(void **state)
{
    struct feature_choice choice;

    (void)state;
    assert_true(virtio_start(&dev.transport, error));
    assert_false(negotiate(0, FEATURE_BIT(5) | FEATURE_BIT(28) | FEATURE_BIT(29), &choice));
    REASON("+indirect_desc,event_idx ", "device_feature is 0x100018023");
    assert_null(strstr(error->text, "mac"));
    DONE(0, 1, 3, READ_OFFER, 0x83);
    assert_int_equal(dev.chosen, 0);
}

static void test_required_and_had(void **state)
{
    struct feature_choice choice;

    (void)state;
    assert_true(virtio_start(&dev.transport, error));
    assert_true(negotiate(FEATURE_BIT(0), FEATURE_BIT(5) | FEATURE_BIT(15), &choice));
    assert_int_equal(dev.chosen, dev.offered & ~FEATURE_BIT(0));
    assert_int_equal(choice.missing, 0);
}

/* Every set of missing features gives a text that fits and ends. */
static void test_much_missing(void **state)
{
    struct feature_choice choice;

    (void)state;
    for (unsigned n = 1; n <= 64; n++) {
        dev.done_count = 0;
        dev.offered = UINT64_MAX;
        assert_true(virtio_start(&dev.transport, error));
        assert_false(negotiate(UINT64_MAX, UINT64_MAX >> (64 - n), &choice));
        REASON("features=+csum", "device_feature is 0xffffffffffffffff");
        DONE(0, 1, 3, READ_OFFER, 0x83);
    }
}

static void test_orphans(void **state)
{
    struct feature_choice choice;
    uint64_t orphans = FEATURE_BIT(7) | FEATURE_BIT(22); /* guest_tso4 without guest_csum, mq without ctrl_vq */

    (void)state;
    dev.offered = (dev.offered & ~FEATURE_BIT(1)) | orphans;
    assert_true(virtio_start(&dev.transport, error));
    assert_true(negotiate(0, 0, &choice)); /* the device's fault, but no reason not to use it */
    assert_int_equal(choice.orphans, orphans);
    assert_int_equal(dev.chosen, dev.offered & ~orphans);
    assert_int_equal(fake_console_count(LOG_WARN), 1);
    const char *line = fake_console_find(LOG_WARN, "guest_tso4,mq ");
    check(line && strstr(line, "device_feature 0x1004180a1"), "%s", line ? line : "nothing said");
    assert_true(virtio_go(&dev.transport, error));
    DONE(0, 1, 3, READ_OFFER, WROTE_CHOICE, 0xb, 0xf);
}

/* ---- at work ---- */

static void test_needs_reset(void **state)
{
    struct feature_choice choice;

    (void)state;
    assert_true(virtio_start(&dev.transport, error) && negotiate(0, 0, &choice));
    dev.breaks_down = true;
    assert_false(virtio_go(&dev.transport, error));
    REASON("device_status is 0x4f ", "DRIVER_OK", "reset");
    DONE(0, 1, 3, READ_OFFER, WROTE_CHOICE, 0xb, 0xf, 0xcf);
}

/* Pulled out: every register reads as ones. Seen at the latest when it is to serve, at whatever step it went. */
static void test_device_gone(void **state)
{
    struct feature_choice choice;

    (void)state;
    for (unsigned step_gone = 0; step_gone < 3; step_gone++) {
        tear_down(state);
        set_up(state);
        step = status_step = SECOND / 1000;
        dev.floats = step_gone == 0 ? 0xff : 0;
        bool started = virtio_start(&dev.transport, error);
        assert_int_equal(started, step_gone > 0);
        if (started) {
            dev.floats = step_gone == 1 ? 0xff : 0;
            dev.offered = step_gone == 1 ? UINT64_MAX : dev.offered;
            negotiate(0, 0, &choice);
            dev.floats = 0xff;
            assert_false(virtio_go(&dev.transport, error));
        }
        REASON("device_status is 0xff ");
    }
}

static void test_fail(void **state)
{
    char *longer = malloc(1000);

    (void)state;
    dev.status = 0xb;
    assert_false(virtio_fail(&dev.transport, error, "queue_size of queue %u is %u", 1, 0));
    assert_string_equal(error->text, "queue_size of queue 1 is 0");
    DONE(0x8b);
    memset(longer, 'y', 999);
    longer[999] = '\0';
    assert_false(virtio_fail(&dev.transport, error, "%s", longer));
    assert_int_equal(strlen(error->text), sizeof(error->text) - 1);
    free(longer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_order_from_every_status, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_choice_is_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_slow_reset, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stopped_meanwhile, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_reset, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_features_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_version_1, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_version_1_switched_off, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_required_missing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_required_and_had, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_much_missing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_orphans, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_needs_reset, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_device_gone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fail, set_up, tear_down),
    };

    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}

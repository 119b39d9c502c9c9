/* The modern transport's registers: each is reached by its own width (virtio 1.3, 4.1.3.1), what the device does not
 * keep is refused, notifications go where they are to go, and the configuration is of one generation. And where the
 * MSI-X table lies. */
#include "tests/unit/modern_rig.h"

#include "kernel/pci_host.h"

static struct virtio_transport *const t = &modern.transport;

static void start(void)
{
    modern_add_all_good_but(0);
    assert_null(modern_init());
    modern_check_good();
}

/* ---- registers ---- */

static void test_status_and_features(void **state)
{
    (void)state;
    start();
    modern.dev.status = 0x4b;
    assert_int_equal(t->ops->status(t), 0x4b);
    t->ops->set_status(t, 0x8f);
    assert_int_equal(modern.dev.status, 0x8f);
    modern.dev.offered = 0x89abcdef01234567;
    modern.dev.offer_select = modern.dev.accept_select = 1;
    assert_int_equal(t->ops->features(t), modern.dev.offered);
    t->ops->set_features(t, 0xfedcba9876543210);
    assert_int_equal(modern.dev.accepted, 0xfedcba9876543210);
    modern.dev.isr = 3;
    assert_int_equal(t->ops->isr(t), 3);
    assert_int_equal(t->ops->isr(t), 0);
    assert_int_equal(modern.dev.misfits, 0);
}

static void test_config_vector(void **state)
{
    (void)state;
    start();
    assert_true(t->ops->config_vector(t, 2));
    assert_int_equal(modern.dev.config_vector, 2);
    assert_true(t->ops->config_vector(t, VIRTIO_NO_VECTOR));
    modern.dev.loses_config_vector = true;
    assert_false(t->ops->config_vector(t, 2));
    assert_int_equal(modern.dev.misfits, 0);
}

static void test_queue_size(void **state)
{
    (void)state;
    start();
    for (unsigned i = 0; i < MODERN_QUEUES; i++)
        modern.dev.queue[i].size = (uint16_t)(16 << i);
    assert_int_equal(t->ops->queue_size(t, 2), 64);
    assert_int_equal(t->ops->queue_size(t, 0), 16);
    assert_int_equal(t->ops->queue_size(t, 1), 32);
    assert_int_equal(t->ops->queue_size(t, 3), 0); /* beyond num_queues */
    assert_int_equal(t->ops->queue_size(t, 0xffff), 0);
    assert_int_equal(modern.dev.queue_select, 1); /* the register was not asked for them */
    assert_int_equal(modern.dev.misfits, 0);
}

/* ---- queues ---- */

static void check_enabled(uint16_t index, uint16_t size, uint16_t vector)
{
    for (unsigned i = 0; i < MODERN_QUEUES; i++)
        assert_int_equal(modern.dev.queue[i].enabled, i == index);
    assert_int_equal(modern.dev.queue[index].size, size);
    assert_int_equal(modern.dev.queue[index].vector, vector);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(modern.dev.queue[index].area[i], modern_area(i));
}

static void test_queue_enable(void **state)
{
    static const uint16_t vectors[] = { 0, 1, 2047, VIRTIO_NO_VECTOR };

    for (uint16_t index = 0; index < 3; index++) {
        for (unsigned i = 0; i < COUNT_OF(vectors); i++) {
            modern_set_up(state);
            start();
            struct virtqueue vq = modern_ring(index, (uint16_t)(2 << index));
            assert_null(t->ops->queue_enable(t, &vq, vectors[i]));
            check_enabled(index, (uint16_t)(2 << index), vectors[i]);
            assert_int_equal(modern.dev.misfits, 0);
        }
    }
}

/* What the device does not keep, it is not made to work with. */
static void check_refused(struct virtqueue *vq, const char *part)
{
    const char *wrong = t->ops->queue_enable(t, vq, 1);

    check(wrong && strstr(wrong, part), "%s", wrong ? wrong : "no error");
    for (unsigned i = 0; i < MODERN_QUEUES; i++)
        assert_false(modern.dev.queue[i].enabled);
}

static void test_queue_refused(void **state)
{
    struct virtqueue vq = modern_ring(1, 128);

    (void)state;
    start();
    modern.dev.loses_size = true;
    check_refused(&vq, "queue_size");
    modern.dev.loses_size = false;
    modern.dev.loses_vector = true;
    check_refused(&vq, "queue_msix_vector");
    modern.dev.loses_vector = false;
    assert_null(t->ops->queue_enable(t, &vq, 1));
    check_enabled(1, 128, 1);
}

/* ---- notifications ---- */

static void ring_bell(struct virtqueue *vq)
{
    t->ops->notify(t, vq);
}

/* The notification goes to queue_notify_off * notify_off_multiplier, if that lies within the structure (4.1.4.4). */
static void test_bells(void **state)
{
    static const uint32_t multipliers[] = { 0, 2, 4, 8, 1024, 4096, 0x10000, 0x80000000 };
    static const uint16_t offs[] = { 0, 1, 2, 3, 511, 512, 1023, 1024, 2047, 2048, 4096, 0xffff };
    static const uint32_t lengths[] = { 2, 3, 4, 5, 6, 0x1000, 0x8000 };

    for (unsigned m = 0; m < COUNT_OF(multipliers); m++) {
        for (unsigned n = 0; n < COUNT_OF(offs) * COUNT_OF(lengths); n++) {
            uint32_t length = lengths[n / COUNT_OF(offs)];
            uint64_t at = (uint64_t)multipliers[m] * offs[n % COUNT_OF(offs)];

            modern_set_up(state);
            modern_add_all_good_but(CAP_NOTIFY);
            unsigned cap = modern_add_structure(CAP_NOTIFY, 4, NOTIFY_AT, length);
            fake_pci_set(modern.function, cap + 16, 4, multipliers[m], 0);
            assert_null(modern_init());
            modern.dev.queue[1].notify_off = offs[n % COUNT_OF(offs)];
            struct virtqueue vq = modern_ring(1, 64);
            if (at + 2 > length) {
                check_refused(&vq, "queue_notify_off");
                continue;
            }
            assert_null(t->ops->queue_enable(t, &vq, 1));
            memset(modern.bar[4] + NOTIFY_AT, 0xee, 0x8000);
            ring_bell(&vq);
            assert_memory_equal(modern.bar[4] + NOTIFY_AT + at, "\1\0", 2);
            memset(modern.bar[4] + NOTIFY_AT + at, 0xee, 2); /* and nowhere else */
            for (unsigned i = 0; i < 0x8000; i++)
                assert_int_equal((uint8_t)modern.bar[4][NOTIFY_AT + i], 0xee);
        }
    }
}

/* Multipliers are 0 or even (4.1.4.4.1): an odd address is refused. */
static void test_odd_multiplier(void **state)
{
    for (uint32_t multiplier = 1; multiplier < 8; multiplier += 2) {
        for (uint16_t off = 0; off < 4; off++) {
            modern_set_up(state);
            modern_add_all_good_but(CAP_NOTIFY);
            fake_pci_set(modern.function, modern_add_structure(CAP_NOTIFY, 4, NOTIFY_AT, 64) + 16, 4, multiplier, 0);
            assert_null(modern_init());
            modern.dev.queue[0].notify_off = off;
            struct virtqueue vq = modern_ring(0, 64);
            if (off % 2)
                check_refused(&vq, "queue_notify_off");
            else
                assert_null(t->ops->queue_enable(t, &vq, 1));
        }
    }
}

/* Each queue has its own place; the value is the queue's number. */
static void test_bell_per_queue(void **state)
{
    struct virtqueue vq[3];

    (void)state;
    start();
    for (uint16_t i = 0; i < 3; i++) {
        modern.dev.queue[i].notify_off = (uint16_t)(7 - i);
        vq[i] = modern_ring(i, 64);
        assert_null(t->ops->queue_enable(t, &vq[i], i));
    }
    memset(modern.bar[4] + NOTIFY_AT, 0xee, NOTIFY_LENGTH);
    for (uint16_t i = 0; i < 3; i++)
        ring_bell(&vq[i]);
    for (uint16_t i = 0; i < 3; i++) {
        uint16_t value;
        memcpy(&value, modern.bar[4] + NOTIFY_AT + 4 * (7 - i), 2);
        assert_int_equal(value, i);
    }
}

/* ---- the device's configuration ---- */

static void check_config(uint32_t offset, uint32_t n)
{
    uint8_t *to = malloc(n ? n : 1);

    assert_true(t->ops->config_read(t, offset, to, n));
    for (uint32_t i = 0; i < n; i++)
        check(to[i] == modern_config_byte(offset + i), "byte %u of %u at %u is not of the last generation", i, n,
              offset);
    free(to);
}

static void test_config_read(void **state)
{
    (void)state;
    start();
    check_config(0, 6);
    check_config(0, 0x1000);
    check_config(0xffe, 2);
    check_config(0x1000, 0);
    assert_int_equal(modern.dev.misfits, 0);
    modern.dev.config_reads = 0;
    check_config(6, 2); /* a field of 16 bits is read at once, */
    check_config(8, 2);
    assert_int_equal(modern.dev.config_reads, 2);
    check_config(20, 4); /* and so is one of 32 (4.1.3.1) */
    assert_int_equal(modern.dev.config_reads, 3);
    assert_int_equal(fake_console_count(LOG_DEBUG), 0);
}

static void test_config_bounds(void **state)
{
    static const uint32_t beyond[][2] = {
        { 0, 0x1001 },     { 0xfff, 2 }, { 0x1000, 1 }, { 0x1001, 0 }, { UINT32_MAX, 1 }, { UINT32_MAX, UINT32_MAX },
        { 1, UINT32_MAX },
    };
    uint8_t to[8];

    (void)state;
    start();
    for (unsigned i = 0; i < COUNT_OF(beyond); i++)
        assert_false(t->ops->config_read(t, beyond[i][0], to, beyond[i][1]));
    assert_int_equal(modern.dev.config_reads, 0);
}

/* The configuration changes n times while it is read, between any two accesses: what is read is of one generation. */
static void test_config_changes(void **state)
{
    static const uint32_t sizes[] = { 2, 4, 6, 17 };

    (void)state;
    start();
    for (uint32_t changes = 0; changes < 300; changes++) {
        for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
            modern.dev.changes_left = changes;
            check_config(8, sizes[i]);
            assert_int_equal(modern.dev.changes_left, 0);
        }
    }
    assert_int_equal(fake_console_count(LOG_DEBUG), 0);
}

static void test_config_never_stands_still(void **state)
{
    uint8_t to[6];

    (void)state;
    start();
    modern.dev.changes_left = UINT32_MAX;
    for (unsigned n = 1; n <= 3; n++) {
        modern.dev.generation_reads = 0;
        assert_false(t->ops->config_read(t, 0, to, sizeof(to)));
        check(modern.dev.generation_reads >= 100 && modern.dev.generation_reads <= 10000, "%u readings",
              modern.dev.generation_reads);
        assert_int_equal(fake_console_count(LOG_WARN), n);
        assert_non_null(fake_console_find(LOG_WARN, "config_generation"));
    }
    modern.dev.changes_left = 0;
    check_config(0, 6); /* and when it does, it is read again */
}

/* ---- MSI-X: where the table is (PCI 3.0, 6.8.2) ---- */

static struct msix find_msix(unsigned entries, uint32_t where)
{
    struct msix msix;
    unsigned at = modern_add_cap(0x11, 12);

    fake_pci_set(modern.function, at + 2, 2, 0xc000u | (entries - 1), 0xc000);
    fake_pci_set(modern.function, at + 4, 4, where, 0);
    modern_find_device();
    msix_init(&msix, &modern.device);
    return msix;
}

static void test_msix(void **state)
{
    static const struct {
        unsigned entries;
        uint32_t where;
        bool usable;
    } rows[] = {
        { 1, 0, true },           { 2048, 0, true },          { 2048, 0x8000, true },
        { 2048, 0x8008, false },  { 1, BAR_SIZE - 16, true }, { 1, BAR_SIZE - 8, false },
        { 1, BAR_SIZE, false },   { 1, 0xfffffff8, false },   { 3, 0x4000 | 1, false }, /* BARs that there are not */
        { 3, 0x4000 | 2, false }, { 3, 0x4000 | 3, false },   { 3, 0x4000 | 4, true },
        { 3, 0x4000 | 5, false }, { 3, 0x4000 | 6, false },   { 3, 0x4000 | 7, false },
    };

    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        modern_set_up(state);
        struct msix msix = find_msix(rows[i].entries, rows[i].where);
        check(msix.count == (rows[i].usable ? rows[i].entries : 0), "row %u: %u entries", i, msix.count);
        assert_int_equal(fake_console_count(LOG_WARN), !rows[i].usable);
        if (!rows[i].usable) {
            assert_non_null(fake_console_find(LOG_WARN, "INTx"));
            continue;
        }
        assert_ptr_equal(msix.table, modern.bar[rows[i].where & 7] + (rows[i].where & ~7u));
        assert_int_equal(fake_pci_get(modern.function, 0x42, 2), rows[i].entries - 1); /* off until it is switched on */
        msix_enable(&msix, true);
        assert_int_equal(fake_pci_get(modern.function, 0x42, 2), 0x8000u | (rows[i].entries - 1));
        msix_enable(&msix, false);
        assert_int_equal(fake_pci_get(modern.function, 0x42, 2), rows[i].entries - 1);
    }
}

static void test_no_msix(void **state)
{
    struct msix msix;

    (void)state;
    modern_add_all_good_but(0);
    assert_null(modern_init());
    msix_init(&msix, &modern.device);
    assert_int_equal(msix.count, 0);
    assert_int_equal(fake_console_count(LOG_WARN), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_status_and_features, modern_set_up),
        cmocka_unit_test_setup(test_config_vector, modern_set_up),
        cmocka_unit_test_setup(test_queue_size, modern_set_up),
        cmocka_unit_test_setup(test_queue_enable, modern_set_up),
        cmocka_unit_test_setup(test_queue_refused, modern_set_up),
        cmocka_unit_test_setup(test_bells, modern_set_up),
        cmocka_unit_test_setup(test_odd_multiplier, modern_set_up),
        cmocka_unit_test_setup(test_bell_per_queue, modern_set_up),
        cmocka_unit_test_setup(test_config_read, modern_set_up),
        cmocka_unit_test_setup(test_config_bounds, modern_set_up),
        cmocka_unit_test_setup(test_config_changes, modern_set_up),
        cmocka_unit_test_setup(test_config_never_stands_still, modern_set_up),
        cmocka_unit_test_setup(test_msix, modern_set_up),
        cmocka_unit_test_setup(test_no_msix, modern_set_up),
    };

    return cmocka_run_group_tests_name("modern_registers", tests, modern_make_bars, modern_free_bars);
}

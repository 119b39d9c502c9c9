/* The split virtqueue against an independent device: set-up, capacity, chains of every length, 70,000 buffers with all
 * indices going round, order of return, taking buffers back after a reset. */
#include "tests/unit/rig.h"

static struct rig rig;

static void test_init(void **state)
{
    (void)state;
    for (uint32_t size = 0; size <= UINT16_MAX; size++) {
        bool valid = size >= 1 && size <= 32768 && (size & (size - 1)) == 0;
        struct virtqueue_config config = {
            .index = 5, .size = (uint16_t)size, .event_idx = size & 2, .indirect_max = 2
        };
        struct virtqueue vq;
        void *mem = NULL;

        if (!valid) {
            assert_int_equal(virtqueue_split_init(&vq, &config, &vq), VIRTQ_INVALID);
            continue;
        }
        size_t bytes = virtqueue_split_bytes((uint16_t)size, 2);
        assert_int_equal(posix_memalign(&mem, 4096, bytes), 0);
        memset(mem, 0xff, bytes);
        assert_int_equal(virtqueue_split_init(&vq, &config, mem), VIRTQ_OK);
        assert_int_equal(vq.index, 5);
        assert_int_equal(virtqueue_capacity(&vq), size);
        assert_int_equal(virtqueue_max_pieces(&vq), size);
        assert_false(virtqueue_pending(&vq));
        assert_false(virtqueue_publish(&vq));
        free(mem);
    }
}

/* The three areas lie within the memory, apart from each other and from the driver's own tables, of the specification's
 * sizes (2.7). */
static void test_areas(void **state)
{
    static const uint16_t indirect[] = { 0, 1, 2, 17, 64 };

    (void)state;
    for (uint32_t size = 1; size <= 32768; size *= 2) {
        for (size_t i = 0; i < COUNT_OF(indirect); i++) {
            if (size > 1024 && indirect[i] > 2)
                continue;
            rig_open(&rig, (uint16_t)size, true, indirect[i], 1);
            struct {
                uintptr_t at;
                size_t size;
            } area[] = {
                { (uintptr_t)rig.vq.desc, 16 * size },
                { (uintptr_t)rig.vq.avail, 6 + 2 * size },
                { (uintptr_t)rig.vq.used, 6 + 8 * size },
                { (uintptr_t)rig.vq.state, sizeof(struct virtq_desc_state) * size },
                { (uintptr_t)rig.vq.indirect,
                  rig.vq.indirect ? sizeof(struct vring_desc) * size * rig.vq.indirect_max : 0 },
            };
            uintptr_t mem = (uintptr_t)rig.mem, end = mem + virtqueue_split_bytes((uint16_t)size, indirect[i]);
            for (size_t a = 0; a < COUNT_OF(area); a++) {
                assert_true(area[a].size == 0 || (area[a].at >= mem && area[a].at + area[a].size <= end));
                for (size_t b = 0; b < a; b++)
                    assert_true(area[a].at + area[a].size <= area[b].at || area[b].at + area[b].size <= area[a].at);
            }
            assert_int_equal(area[3].at % _Alignof(struct virtq_desc_state), 0);
            assert_int_equal(area[4].at % 16, 0);
            rig_check_clean(&rig); /* the device has looked at alignment and first values */
            rig_close(&rig);
        }
    }
}

static void test_arguments(void **state)
{
    struct virtq_buf buf = { 0x1000, 64 }, *many = calloc(2 * UINT16_MAX, sizeof(*many));

    (void)state;
    rig_open(&rig, 8, true, 4, 1);
    struct virtqueue before = rig.vq;
    assert_int_equal(virtqueue_add(&rig.vq, &buf, 0, 0, &rig), VIRTQ_INVALID);
    assert_int_equal(virtqueue_add(&rig.vq, &buf, 1, 0, NULL), VIRTQ_INVALID);
    assert_int_equal(virtqueue_add(&rig.vq, many, 9, 0, &rig), VIRTQ_TOO_LONG);
    assert_int_equal(virtqueue_add(&rig.vq, many, 4, 5, &rig), VIRTQ_TOO_LONG);
    assert_int_equal(virtqueue_add(&rig.vq, many, UINT16_MAX, UINT16_MAX, &rig), VIRTQ_TOO_LONG);
    assert_int_equal(virtqueue_add(&rig.vq, many, UINT16_MAX, 2, &rig), VIRTQ_TOO_LONG); /* 1 in 16 bits */
    assert_memory_equal(&rig.vq, &before, sizeof(before));
    assert_int_equal(rig.dev.avail->idx, 0);
    rig_close(&rig);
    free(many);
}

/* What is added shows only with publish. */
static void test_visible_with_publish(void **state)
{
    (void)state;
    rig_open(&rig, 8, false, 0, 16);
    assert_int_equal(rig_add(&rig, (struct rig_shape){ 1, 0 }), VIRTQ_OK);
    assert_int_equal(rig_add(&rig, (struct rig_shape){ 1, 1 }), VIRTQ_OK);
    assert_false(rig_take(&rig));
    assert_true(virtqueue_publish(&rig.vq));
    assert_false(virtqueue_publish(&rig.vq)); /* nothing new, so nothing to tell */
    assert_true(rig_take(&rig) && rig_take(&rig) && !rig_take(&rig));
    rig_close(&rig);
}

/* Whatever is held or visible goes through the device and back. */
static void drain(void)
{
    virtqueue_publish(&rig.vq);
    while (rig_take(&rig))
        ;
    while (rig.dev.held_count)
        rig_return(&rig, (uint16_t)chance_below(&rig.seed, rig.dev.held_count));
    fake_device_publish(&rig.dev);
    while (rig_pop(&rig))
        ;
    assert_int_equal(rig.back, rig.next);
    assert_int_equal(virtqueue_capacity(&rig.vq), rig.vq.size);
    assert_int_equal(rig.vq.in_flight, 0);
    rig_check_clean(&rig);
}

/* Chains of each length that the queue takes, in every division into readable and writable pieces (at the larger sizes:
 * some), by themselves and with others in flight, then one that is too long. */
static void chains(uint16_t size, uint16_t indirect_max, bool scribble)
{
    rig_open(&rig, size, true, indirect_max, 200000);
    rig.dev.scribble = scribble;
    uint32_t step = size > 64 ? size / 16 : 1;
    for (uint32_t pieces = 1; pieces <= size; pieces += pieces + step > size && pieces < size ? size - pieces : step) {
        for (uint32_t out = 0; out <= pieces; out += pieces > 16 ? pieces / 4 : 1) {
            assert_int_equal(rig_add(&rig, (struct rig_shape){ (uint16_t)out, (uint16_t)(pieces - out) }), VIRTQ_OK);
            while (rig_add(&rig, rig_shape(rig.next, size < 4 ? size : 4, pieces)) == VIRTQ_OK)
                ; /* until one does not fit; rig_add() has checked that it could not */
            drain();
        }
    }
    assert_int_equal(rig_add(&rig, (struct rig_shape){ size, 1 }), VIRTQ_TOO_LONG);
    assert_int_equal(rig_add(&rig, (struct rig_shape){ 0, (uint16_t)(size + 1) }), VIRTQ_TOO_LONG);
    assert_int_equal(rig.vq.stats.added, rig.next);
    assert_int_equal(rig.vq.stats.popped, rig.back);
    assert_true(!scribble || rig.dev.scribbles >= rig.next);
    rig_close(&rig);
}

static void test_chains(void **state)
{
    static const uint16_t sizes[] = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        chains(sizes[i], 0, false);
        chains(sizes[i], 0, true);
        chains(sizes[i], 3, true);
        chains(sizes[i], 64, true);
        chains(sizes[i], sizes[i], true);
    }
}

static void test_chains_in_the_largest_queue(void **state)
{
    (void)state;
    rig_open(&rig, 32768, true, 2, 400000);
    rig.dev.scribble = true;
    for (unsigned round = 0; round < 3; round++) {
        assert_int_equal(rig_add(&rig, (struct rig_shape){ 16384, 16384 }), VIRTQ_OK);
        assert_int_equal(rig_add(&rig, (struct rig_shape){ 1, 0 }), VIRTQ_FULL);
        drain();
        while (rig_add(&rig, rig_shape(rig.next, 3, round)) == VIRTQ_OK)
            ;
        drain();
        while (rig_add(&rig, (struct rig_shape){ round % 2, 1 - round % 2 }) == VIRTQ_OK)
            ;
        assert_int_equal(rig.vq.in_flight, 32768);
        drain();
    }
    rig_close(&rig);
}

/* Indirect tables make room: a queue of N takes N chains of many pieces; what is too long for a table takes
 * descriptors. */
static void test_capacity_arithmetic(void **state)
{
    (void)state;
    rig_open(&rig, 16, true, 8, 100);
    assert_int_equal(virtqueue_need(&rig.vq, 1), 1);
    assert_int_equal(virtqueue_need(&rig.vq, 2), 1);
    assert_int_equal(virtqueue_need(&rig.vq, 8), 1);
    assert_int_equal(virtqueue_need(&rig.vq, 9), 9);
    assert_int_equal(virtqueue_need(&rig.vq, 16), 16);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(rig_add(&rig, (struct rig_shape){ 4, 4 }), VIRTQ_OK);
    assert_int_equal(virtqueue_capacity(&rig.vq), 0);
    assert_int_equal(rig_add(&rig, (struct rig_shape){ 1, 0 }), VIRTQ_FULL);
    drain();
    assert_int_equal(rig_add(&rig, (struct rig_shape){ 9, 0 }), VIRTQ_OK);
    assert_int_equal(virtqueue_capacity(&rig.vq), 7);
    assert_int_equal(rig_add(&rig, (struct rig_shape){ 9, 0 }), VIRTQ_FULL);
    assert_int_equal(rig_add(&rig, (struct rig_shape){ 0, 8 }), VIRTQ_OK);
    assert_int_equal(virtqueue_capacity(&rig.vq), 6);
    assert_int_equal(rig.vq.stats.full, 2);
    drain();
    rig_close(&rig);

    /* More than a chain may have is never written into a table, whatever was configured. */
    rig_open(&rig, 4, true, 100, 100);
    assert_int_equal(rig_add(&rig, (struct rig_shape){ 2, 3 }), VIRTQ_TOO_LONG);
    assert_int_equal(rig_add(&rig, (struct rig_shape){ 2, 2 }), VIRTQ_OK);
    assert_int_equal(virtqueue_capacity(&rig.vq), 3);
    drain();
    rig_close(&rig);
    /* No tables at all. */
    rig_open(&rig, 4, true, 0, 100);
    assert_int_equal(virtqueue_need(&rig.vq, 4), 4);
    assert_int_equal(rig_add(&rig, (struct rig_shape){ 2, 2 }), VIRTQ_OK);
    assert_int_equal(virtqueue_capacity(&rig.vq), 0);
    drain();
    rig_close(&rig);
}

/* A full ring, one buffer given back at a time: always room for exactly one more. */
static void test_full(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= 32768; size *= size >= 1024 ? 32 : 2) {
        rig_open(&rig, (uint16_t)size, size % 3 == 1, 0, 3 * size);
        for (uint32_t i = 0; i < size; i++)
            assert_int_equal(rig_add(&rig, (struct rig_shape){ 1, 0 }), VIRTQ_OK);
        virtqueue_publish(&rig.vq);
        while (rig_take(&rig))
            ;
        for (uint32_t i = 0; i < size; i++) {
            assert_int_equal(rig_add(&rig, (struct rig_shape){ 0, 1 }), VIRTQ_FULL);
            rig_return(&rig, (uint16_t)chance_below(&rig.seed, rig.dev.held_count));
            fake_device_publish(&rig.dev);
            assert_true(rig_pop(&rig) && !rig_pop(&rig));
            assert_int_equal(virtqueue_capacity(&rig.vq), 1);
            assert_int_equal(rig_add(&rig, (struct rig_shape){ 0, 1 }), VIRTQ_OK);
            virtqueue_publish(&rig.vq);
            assert_true(rig_take(&rig));
        }
        assert_int_equal(rig.vq.stats.full, size);
        drain();
        rig_close(&rig);
    }
}

/* How the device of a run works. */
enum pace { IN_ORDER, OUT_OF_ORDER, SLOW };

/* One turn of the device: takes, returns, and sleeps if nothing is visible. It wakes by a notification only, but goes
 * on with what it holds. */
static void device_turn(enum pace pace, bool awake)
{
    if (awake) {
        while (rig_take(&rig)) {
            if (pace == SLOW && chance_below(&rig.seed, 4) == 0)
                break;
        }
    }
    uint16_t held = rig.dev.held_count;
    uint16_t count = pace == SLOW ? (uint16_t)chance_below(&rig.seed, held + 1u) : held;
    while (count--)
        rig_return(&rig, pace == IN_ORDER ? 0 : (uint16_t)chance_below(&rig.seed, rig.dev.held_count));
    if (fake_device_publish(&rig.dev))
        rig.driver_asleep = false;
    if (awake)
        fake_device_sleep(&rig.dev, 0);
}

/* The driver adds `k` buffers (or as many as fit), publishes, and kicks if asked to. Returns how many were added. */
static unsigned driver_adds(unsigned k, uint64_t total, uint16_t pieces)
{
    unsigned added = 0;

    while (added < k && rig.next < total && rig_add(&rig, rig_shape(rig.next, pieces, 0)) == VIRTQ_OK)
        added++;
    if (virtqueue_publish(&rig.vq))
        rig.dev.asleep = false;
    return added;
}

/* `total` buffers through the queue with a publish after each k. Driver and device sleep whenever they may; nobody but
 * the other wakes them. Should both sleep with work left, a notification was lost. */
static void run(uint16_t size, bool event_idx, uint16_t indirect_max, unsigned k, enum pace pace, uint64_t total)
{
    rig_open(&rig, size, event_idx, indirect_max, total);
    rig.dev.scribble = k % 2;
    uint16_t pieces = size < 5 ? size : 5;
    while (rig.back < total) {
        bool moved = false;
        if (!rig.driver_asleep) {
            while (rig_pop(&rig))
                moved = true;
        }
        if (!rig.driver_asleep || chance_below(&rig.seed, 2)) /* who sleeps until a buffer returns may still send */
            moved |= driver_adds(k, total, pieces) > 0;
        rig_check_no_one_sleeps_on_work(&rig);
        if (!rig.driver_asleep && (!moved || chance_below(&rig.seed, 2)))
            rig_driver_sleep(&rig, chance_below(&rig.seed, 2));
        else if (!rig.driver_asleep)
            virtqueue_disable_callbacks(&rig.vq);
        bool device_can = !rig.dev.asleep || rig.dev.held_count,
             driver_can = !rig.driver_asleep || rig.vq.in_flight == 0;
        check(device_can || driver_can || virtqueue_capacity(&rig.vq) >= pieces, "both sleep; %llu of %llu are back",
              (unsigned long long)rig.back, (unsigned long long)rig.next);
        if (device_can && (pace != SLOW || chance_below(&rig.seed, 3)))
            device_turn(pace, !rig.dev.asleep);
        rig_check_no_one_sleeps_on_work(&rig);
        rig_check_clean(&rig);
    }
    assert_int_equal(rig.vq.stats.popped, total);
    assert_int_equal(rig.vq.in_flight, 0);
    assert_int_equal(virtqueue_capacity(&rig.vq), size);
    rig_close(&rig);
}

static void kick_after_each(unsigned k)
{
    for (unsigned variant = 0; variant < 8; variant++)
        run(256, variant & 1, variant & 2 ? 4 : 0, k, variant & 4 ? IN_ORDER : OUT_OF_ORDER, 70000);
    run(256, true, 4, k, SLOW, 70000);
    run(16, false, 0, k, SLOW, 70000);
}

#define KICK_TEST(k)                                                                                                   \
    static void test_kick_after_each_##k(void **state)                                                                 \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        kick_after_each(k);                                                                                            \
    }

KICK_TEST(1)
KICK_TEST(2)
KICK_TEST(3)
KICK_TEST(7)
KICK_TEST(64)
KICK_TEST(256) /* the queue's size */

static void test_every_size(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= 1024; size *= 2) {
        for (unsigned variant = 0; variant < 12; variant++)
            run((uint16_t)size, variant & 1, variant & 2 ? 3 : 0, 1 + variant, (enum pace)(variant % 3), 3000);
        run((uint16_t)size, true, 3, size, OUT_OF_ORDER, 70000);
    }
    run(32768, true, 2, 32768, OUT_OF_ORDER, 140000);
    run(32768, false, 0, 1000, SLOW, 140000);
}

/* After a reset: each buffer that has not come back is handed out once, published or not. */
static void test_detach(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= 1024; size *= 4) {
        rig_open(&rig, (uint16_t)size, true, 3, 10000);
        for (unsigned round = 0; round < 40; round++) {
            while (rig.vq.free > size / 4 &&
                   rig_add(&rig, rig_shape(rig.next, size < 6 ? (uint16_t)size : 6, round)) == VIRTQ_OK) {
                if (chance_below(&rig.seed, 2))
                    virtqueue_publish(&rig.vq);
            }
            while (chance_below(&rig.seed, 8) && rig_take(&rig))
                ;
            while (rig.dev.held_count && chance_below(&rig.seed, 4))
                rig_return(&rig, (uint16_t)chance_below(&rig.seed, rig.dev.held_count));
            fake_device_publish(&rig.dev);
            while (rig_pop(&rig))
                ;
        }
        uint64_t left = rig.next - rig.back;
        assert_int_equal(rig.vq.in_flight, left);
        for (uint64_t i = 0; i < left; i++) {
            uint64_t n = (uint64_t)(uintptr_t)virtqueue_detach(&rig.vq) - 1;
            check(n < rig.next && rig.buffer[n].state != RIG_BACK, "buffer %llu detached", (unsigned long long)n);
            rig.buffer[n].state = RIG_BACK;
        }
        assert_null(virtqueue_detach(&rig.vq));
        assert_int_equal(rig.vq.in_flight, 0);
        assert_int_equal(virtqueue_capacity(&rig.vq), size);
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_areas),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_visible_with_publish),
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_chains_in_the_largest_queue),
        cmocka_unit_test(test_capacity_arithmetic),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_kick_after_each_1),
        cmocka_unit_test(test_kick_after_each_2),
        cmocka_unit_test(test_kick_after_each_3),
        cmocka_unit_test(test_kick_after_each_7),
        cmocka_unit_test(test_kick_after_each_64),
        cmocka_unit_test(test_kick_after_each_256),
        cmocka_unit_test(test_every_size),
        cmocka_unit_test(test_detach),
    };

    return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}

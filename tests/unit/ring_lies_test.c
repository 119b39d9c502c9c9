/* The split virtqueue and a device that lies: wrong, free, inner and repeated ids, impossible lengths, an index that
 * runs ahead or back. Whatever it writes: no buffer comes back twice, none that was not given, nothing is touched
 * outside the queue, and it is counted. */
#include "tests/unit/rig.h"

static struct rig rig;

static const struct rig_shape two_and_two = { 2, 2 };

/* Adds n buffers of two readable and two writable pieces, and lets the device take them. */
static void give(unsigned n)
{
    while (n--)
        assert_int_equal(rig_add(&rig, two_and_two), VIRTQ_OK);
    virtqueue_publish(&rig.vq);
    while (rig_take(&rig))
        ;
}

static uint32_t head_of(uint16_t i)
{
    return fake_device_held(&rig.dev, i)->head;
}

/* The device writes one lie; the driver finds nothing in it, and counts it as that kind of fault. */
static void lie(uint32_t id, enum virtq_fault_kind kind, uint64_t count)
{
    uint32_t len = 77;
    struct virtq_fault first = rig.vq.fault;
    uint16_t capacity = virtqueue_capacity(&rig.vq), in_flight = rig.vq.in_flight;

    fake_device_lie(&rig.dev, id, 8);
    fake_device_publish(&rig.dev);
    assert_true(virtqueue_pending(&rig.vq));
    check(virtqueue_pop(&rig.vq, &len) == NULL, "id %u gave a buffer", id);
    assert_int_equal(rig.vq.stats.bad_used, count);
    if (first.kind == VIRTQ_FAULT_NONE) {
        assert_int_equal(rig.vq.fault.kind, kind);
        assert_int_equal(rig.vq.fault.value, id);
        assert_int_equal(rig.vq.fault.limit, rig.vq.size);
    } else {
        assert_memory_equal(&rig.vq.fault, &first, sizeof(first)); /* the first finding is kept */
    }
    assert_false(rig.vq.broken);
    assert_int_equal(virtqueue_capacity(&rig.vq), capacity);
    assert_int_equal(rig.vq.in_flight, in_flight);
}

/* After a wrong id the next right one counts. */
static void still_works(void)
{
    uint64_t back = rig.back;

    rig_return(&rig, 0);
    fake_device_publish(&rig.dev);
    uint32_t len;
    uint64_t n = (uint64_t)(uintptr_t)virtqueue_pop(&rig.vq, &len) - 1;
    check(n < rig.next && rig.buffer[n].state == RIG_TAKEN && len == rig.buffer[n].written, "buffer %llu",
          (unsigned long long)n);
    rig.buffer[n].state = RIG_BACK;
    rig.back = back + 1;
}

static void test_ids_out_of_range(void **state)
{
    static const uint32_t ids[] = { 16,    17,         31,         32767,      32768,     65535,
                                    65536, 0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        for (uint16_t indirect = 0; indirect <= 4; indirect += 4) {
            rig_open(&rig, 16, true, indirect, 100);
            give(4);
            lie(ids[i], VIRTQ_FAULT_ID, 1);
            still_works();
            lie(0x10000u | head_of(0), VIRTQ_FAULT_ID, 2); /* right in its lower 16 bits */
            still_works();
            rig_close(&rig);
        }
    }
}

static void test_ids_of_no_chain(void **state)
{
    (void)state;
    rig_open(&rig, 64, true, 0, 100);
    give(3);
    lie(63, VIRTQ_FAULT_ID, 1);                       /* a free descriptor */
    lie(rig.dev.next[head_of(1)], VIRTQ_FAULT_ID, 2); /* the second of a chain */
    still_works();
    rig_close(&rig);

    /* Without any buffer out, an entry is one too many: no id can be right. */
    rig_open(&rig, 8, true, 0, 100);
    fake_device_lie(&rig.dev, 0, 0);
    fake_device_publish(&rig.dev);
    uint32_t len;
    assert_null(virtqueue_pop(&rig.vq, &len));
    assert_int_equal(rig.vq.fault.kind, VIRTQ_FAULT_INDEX);
    assert_true(rig.vq.broken);
    rig_close(&rig);
}

static void test_repeated_id(void **state)
{
    (void)state;
    rig_open(&rig, 64, true, 0, 100);
    give(5);
    uint32_t first = head_of(0), second = head_of(1);
    still_works();
    lie(first, VIRTQ_FAULT_ID, 1); /* at once */
    still_works();
    lie(first, VIRTQ_FAULT_ID, 2); /* and later */
    (void)second;
    rig_close(&rig);

    /* Twice within one publish. */
    rig_open(&rig, 64, true, 4, 100);
    give(3);
    first = head_of(0);
    rig_return(&rig, 0);
    fake_device_lie(&rig.dev, first, 0);
    fake_device_publish(&rig.dev);
    assert_true(rig_pop(&rig));
    uint32_t len;
    assert_null(virtqueue_pop(&rig.vq, &len));
    assert_int_equal(rig.vq.stats.bad_used, 1);
    rig_close(&rig);
}

/* Returns held buffer 0 with `written` bytes claimed; gives what pop says of it. */
static uint32_t returned_len(uint32_t written)
{
    uint32_t len = 0xdddddddd;

    fake_device_return(&rig.dev, 0, written);
    fake_device_publish(&rig.dev);
    assert_non_null(virtqueue_pop(&rig.vq, &len));
    return len;
}

static void test_lengths(void **state)
{
    (void)state;
    for (uint16_t indirect = 0; indirect <= 4; indirect += 4) {
        rig_open(&rig, 64, false, indirect, 100);
        give(8);
        uint32_t most = rig.buffer[0].writable;
        assert_int_equal(returned_len(most), most);
        assert_int_equal(returned_len(0), 0);
        assert_int_equal(rig.vq.fault.kind, VIRTQ_FAULT_NONE);
        most = rig.buffer[2].writable;
        assert_int_equal(returned_len(most + 1), 0);
        assert_int_equal(rig.vq.fault.kind, VIRTQ_FAULT_LENGTH);
        assert_int_equal(rig.vq.fault.value, most + 1);
        assert_int_equal(rig.vq.fault.limit, most);
        assert_int_equal(returned_len(UINT32_MAX), 0);
        assert_int_equal(returned_len(0x80000000), 0);
        assert_int_equal(rig.vq.stats.bad_used, 3);
        assert_int_equal(rig.vq.stats.popped, 5); /* the buffers themselves are back */
        assert_int_equal(rig.vq.fault.value, most + 1);
        assert_int_equal(rig.vq.in_flight, 3);
        rig_close(&rig);
    }
    /* A buffer that the device only reads: no byte may be claimed. */
    rig_open(&rig, 4, false, 0, 100);
    assert_int_equal(rig_add(&rig, (struct rig_shape){ 2, 0 }), VIRTQ_OK);
    virtqueue_publish(&rig.vq);
    assert_true(rig_take(&rig));
    assert_int_equal(returned_len(1), 0);
    assert_int_equal(rig.vq.fault.kind, VIRTQ_FAULT_LENGTH);
    assert_int_equal(rig.vq.fault.limit, 0);
    rig_close(&rig);
}

/* The used index jumps by `by` with `published` buffers made available and more added: broken, and stays so. */
static void jump(uint16_t start, unsigned published, unsigned unpublished, uint16_t by)
{
    uint32_t len = 0xdddddddd;
    struct virtq_buf buf = { 0x1000, 1 };

    rig_open(&rig, 64, true, 2, 100);
    rig_start_at(&rig, start);
    for (unsigned n = 0; n < published + unpublished; n++) {
        if (n == published)
            virtqueue_publish(&rig.vq);
        assert_int_equal(rig_add(&rig, two_and_two), VIRTQ_OK);
    }
    if (!unpublished)
        virtqueue_publish(&rig.vq);
    /* All that is published is returned, and the index says more than that. */
    while (rig_take(&rig))
        ;
    while (rig.dev.held_count)
        rig_return(&rig, 0);
    fake_device_jump(&rig.dev, (uint16_t)(start + by));
    check(virtqueue_pop(&rig.vq, &len) == NULL, "from %u, %u published, index + %u", start, published, by);
    assert_true(rig.vq.broken);
    assert_int_equal(rig.vq.fault.kind, VIRTQ_FAULT_INDEX);
    assert_int_equal(rig.vq.fault.value, (uint16_t)(start + by));
    assert_int_equal(rig.vq.fault.limit, (uint16_t)(start + published));
    assert_int_equal(rig.vq.stats.bad_used, 1);
    /* From here on nothing moves, and nothing is lost. */
    assert_false(virtqueue_pending(&rig.vq));
    assert_null(virtqueue_pop(&rig.vq, &len));
    assert_int_equal(len, 0xdddddddd);
    assert_int_equal(virtqueue_add(&rig.vq, &buf, 1, 0, &buf), VIRTQ_BROKEN);
    assert_false(virtqueue_publish(&rig.vq));
    assert_int_equal(rig.dev.avail->idx, (uint16_t)(start + published));
    assert_true(virtqueue_enable_callbacks(&rig.vq));
    assert_true(virtqueue_enable_callbacks_late(&rig.vq));
    assert_int_equal(rig.vq.stats.bad_used, 1);
    for (unsigned n = 0; n < published + unpublished; n++)
        assert_non_null(virtqueue_detach(&rig.vq));
    assert_null(virtqueue_detach(&rig.vq));
    assert_int_equal(virtqueue_capacity(&rig.vq), 64);
    rig_close(&rig);
}

static void test_index_runs_ahead(void **state)
{
    static const uint16_t starts[] = { 0, 5, 32765, 65533, 65535 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(starts); i++) {
        for (unsigned published = 0; published <= 16; published += 4) {
            jump(starts[i], published, 0, (uint16_t)(published + 1));
            jump(starts[i], published, 0, 32767);
            jump(starts[i], published, 0, 32768);
            jump(starts[i], published, 0, 65535); /* one back */
        }
    }
}

/* Buffers that were added but not published are none that the device can have returned. */
static void test_index_reaches_into_unpublished(void **state)
{
    (void)state;
    jump(0, 3, 5, 4);
    jump(65534, 3, 5, 8);
    jump(7, 0, 1, 1);
}

/* An index within bounds that covers entries which were never written. */
static void test_index_over_unwritten_entries(void **state)
{
    uint32_t len;

    (void)state;
    rig_open(&rig, 64, true, 0, 100);
    give(4);
    fake_device_jump(&rig.dev, 4);
    /* Zeroes: buffer 0, no bytes, and three times again the same. */
    assert_ptr_equal(virtqueue_pop(&rig.vq, &len), (void *)1);
    assert_int_equal(len, 0);
    assert_null(virtqueue_pop(&rig.vq, &len));
    assert_int_equal(rig.vq.stats.bad_used, 3);
    assert_int_equal(rig.vq.in_flight, 3);
    assert_false(rig.vq.broken);
    rig_close(&rig);
}

/* One lie, or the truth, at random. */
static void device_says_anything(void)
{
    uint32_t id = chance_below(&rig.seed, rig.vq.size + 3u);
    /* Mostly no more entries than buffers taken: one more, and the queue is broken, which ends the game. */
    bool in_bounds = rig.dev.used_idx != rig.dev.last_avail || chance_below(&rig.seed, 200) == 0;

    switch (in_bounds ? chance_below(&rig.seed, 24) : 3 + chance_below(&rig.seed, 3)) {
    case 0:
        fake_device_lie(&rig.dev, id, chance_below(&rig.seed, 10000));
        break;
    case 1:
        fake_device_lie(&rig.dev, (uint32_t)chance(&rig.seed), (uint32_t)chance(&rig.seed));
        break;
    case 2:
        if (chance_below(&rig.seed, 8) == 0)
            fake_device_jump(&rig.dev, (uint16_t)(rig.dev.used_idx + chance_below(&rig.seed, 6)));
        break;
    case 3:
        rig.dev.used->ring[chance_below(&rig.seed, rig.vq.size)] =
            (struct vring_used_elem){ id, (uint32_t)chance(&rig.seed) };
        break;
    case 4:
        memset(rig.dev.desc, (int)chance(&rig.seed),
               sizeof(*rig.dev.desc) * rig.vq.size); /* the device can write that, too */
        break;
    case 5:
        rig.dev.used->flags = (uint16_t)chance(&rig.seed);
        *(uint16_t *)&rig.dev.used->ring[rig.vq.size] = (uint16_t)chance(&rig.seed);
        break;
    default:
        if (rig.dev.held_count)
            fake_device_return(&rig.dev, (uint16_t)chance_below(&rig.seed, rig.dev.held_count),
                               (uint32_t)chance(&rig.seed) % 8000);
        break;
    }
}

/* Each buffer comes back at most once; together with what is detached, exactly once. */
static void take_back(uintptr_t token)
{
    check(token >= 1 && token <= rig.next, "token %llu", (unsigned long long)token);
    enum rig_state *state = &rig.buffer[token - 1].state;
    check(*state == RIG_ADDED || *state == RIG_TAKEN, "buffer %llu came back in state %d",
          (unsigned long long)token - 1, *state);
    *state = RIG_BACK;
    rig.back++;
}

static uint64_t came_back, found;

static void lie_at_random(uint16_t size, bool event_idx, uint16_t indirect_max, uint64_t salt)
{
    uintptr_t token;
    struct fake_chain chain;
    uint32_t len;

    rig_open(&rig, size, event_idx, indirect_max, 20000);
    rig.seed += salt;
    rig_start_at(&rig, (uint16_t)chance(&rig.seed));
    for (unsigned n = 0; n < 3000 && !rig.vq.broken; n++) {
        while (chance_below(&rig.seed, 4) && rig_add(&rig, rig_shape(rig.next, size < 4 ? size : 4, 0)) == VIRTQ_OK)
            ;
        virtqueue_publish(&rig.vq);
        while (chance_below(&rig.seed, 8) && rig.dev.held_count < size && fake_device_take(&rig.dev, &chain))
            ;
        device_says_anything();
        fake_device_publish(&rig.dev);
        while (chance_below(&rig.seed, 4) && (token = (uintptr_t)virtqueue_pop(&rig.vq, &len)) != 0) {
            take_back(token);
            check(len <= rig.buffer[token - 1].writable, "length %u", len);
        }
        if (chance_below(&rig.seed, 4) == 0)
            virtqueue_enable_callbacks_late(&rig.vq);
        check(rig.vq.in_flight == rig.next - rig.back && rig.vq.free <= size, "count");
    }
    while ((token = (uintptr_t)virtqueue_detach(&rig.vq)) != 0)
        take_back(token);
    assert_int_equal(rig.back, rig.next);
    assert_int_equal(virtqueue_capacity(&rig.vq), size);
    came_back += rig.vq.stats.popped;
    found += rig.vq.stats.bad_used;
    rig_close(&rig);
}

static void test_lies_at_random(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 400; n++)
        lie_at_random((uint16_t)(1 << n % 8), n & 1, n & 2 ? 3 : 0, n);
    check(came_back > 20000 && found > 5000, "%llu came back, %llu lies found: this tests little",
          (unsigned long long)came_back, (unsigned long long)found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_out_of_range),
        cmocka_unit_test(test_ids_of_no_chain),
        cmocka_unit_test(test_repeated_id),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_index_runs_ahead),
        cmocka_unit_test(test_index_reaches_into_unpublished),
        cmocka_unit_test(test_index_over_unwritten_entries),
        cmocka_unit_test(test_lies_at_random),
    };

    return cmocka_run_group_tests_name("ring_lies", tests, NULL, NULL);
}

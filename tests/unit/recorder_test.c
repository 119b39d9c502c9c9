/* The flight recorder: each operation is in the record as it happened, what the device wrote wrongly too; the last 256
 * are kept; without a record the rings' own entries are shown. Whatever lies in the rings, nothing is touched outside.
 */
#include "tests/unit/rig.h"

static struct rig rig;
static uint64_t now_us; /* goes forward by 1 us with each look */

uint64_t clock_ns(void)
{
    return now_us++ * 1000;
}

/* ---- what is printed ---- */

static char line[RECORDER_LINES][RECORDER_LINE];
static unsigned lines;

static void keep(void *context, const char *text)
{
    assert_ptr_equal(context, &rig);
    check(lines < RECORDER_LINES, "more than %u lines", RECORDER_LINES);
    check(strlen(text) < RECORDER_LINE && !strchr(text, '\n') && !strncmp(text, "q1 ", 3), "a line: %s", text);
    strcpy(line[lines++], text);
}

static void print(void)
{
    lines = 0;
    recorder_print(&rig.vq, keep, &rig);
    check(lines >= 3, "%u lines", lines);
}

/* Line i, blanks in a row taken as one, is `text`. */
static void check_line(unsigned i, const char *text)
{
    char got[RECORDER_LINE];
    size_t n = 0;

    check(i < lines, "there are %u lines, none is number %u: %s", lines, i, text);
    for (const char *c = line[i]; *c; c++)
        if (*c != ' ' || n == 0 || got[n - 1] != ' ')
            got[n++] = *c;
    while (n > 0 && got[n - 1] == ' ')
        n--;
    got[n] = '\0';
    check(strcmp(got, text) == 0, "line %u is \"%s\", not \"%s\"", i, got, text);
}

#define CHECK_LINES(first, ...)                                                                                        \
    do {                                                                                                               \
        static const char *const expected[] = { __VA_ARGS__ };                                                         \
        for (unsigned k = 0; k < COUNT_OF(expected); k++)                                                              \
            check_line((first) + k, expected[k]);                                                                      \
        assert_int_equal(lines, (first) + COUNT_OF(expected));                                                         \
    } while (0)

static void record(void)
{
    recorder_attach(&rig.vq, &rig.recorder);
}

static void add(uint32_t len, bool in)
{
    struct virtq_buf buf = { 0x1000, len };

    assert_int_equal(virtqueue_add_one(&rig.vq, buf, in, &rig), VIRTQ_OK);
}

static void add_two(uint32_t first, uint32_t second)
{
    struct virtq_buf bufs[] = { { 0x1000, first }, { 0x2000, second } };

    assert_int_equal(virtqueue_add(&rig.vq, bufs, 2, 0, &rig), VIRTQ_OK);
}

static void *pop(void)
{
    uint32_t len;

    return virtqueue_pop(&rig.vq, &len);
}

static void use(uint32_t id, uint32_t len)
{
    fake_device_lie(&rig.dev, id, len);
    fake_device_publish(&rig.dev);
}

/* ---- a record ---- */

static void test_operations(void **state)
{
    (void)state;
    now_us = 7000000;
    rig_open(&rig, 8, true, 4, 1);
    record();
    fake_device_sleep(&rig.dev, 0);
    add(60, false);
    add_two(14, 1500);
    assert_true(virtqueue_publish(&rig.vq));
    fake_device_poll(&rig.dev);
    add(70, false);
    assert_false(virtqueue_publish(&rig.vq));
    assert_true(virtqueue_enable_callbacks(&rig.vq));
    recorder_note(&rig.vq, RECORDER_INTERRUPT);
    use(1, 0);
    assert_false(virtqueue_enable_callbacks(&rig.vq));
    virtqueue_disable_callbacks(&rig.vq);
    assert_non_null(pop());
    recorder_note(&rig.vq, RECORDER_KICK_AGAIN);
    assert_null(pop());
    print();
    CHECK_LINES(3, "q1 7.000000 laid out avail 0 used 0 taken back: 0 buffers",
                "q1 7.000001 add avail 1 used 0 60 bytes, head 0, pieces 1",
                "q1 7.000002 add avail 2 used 0 1514 bytes, head 1, pieces 2",
                "q1 7.000003 publish, kick avail 2 used 0 2 entries, their event 0",
                "q1 7.000004 add avail 3 used 0 70 bytes, head 2, pieces 1",
                "q1 7.000005 publish avail 3 used 0 1 entries, their event 65535",
                "q1 7.000006 arm avail 3 used 0 our event 0", "q1 7.000007 interrupt avail 3 used 0",
                "q1 7.000008 arm: too late avail 3 used 0 our event 0", "q1 7.000009 disarm avail 3 used 0",
                "q1 7.000010 pop avail 3 used 1 0 bytes, head 1", "q1 7.000011 kick again avail 3 used 1");
    check_line(0, "q1 split ring of 8, event index; buffers with the device: 2; free descriptors: 6");
    check_line(1, "q1 driver: avail 3 filled, 3 shown; used 1 taken; wants an interrupt: no");
    check_line(2, "q1 device: used 1; wants a kick: at avail 0");
    rig_close(&rig);
}

/* What the device wrote wrongly, each with its value; the good entry behind them. */
static void test_bad_entries(void **state)
{
    (void)state;
    now_us = 0;
    rig_open(&rig, 4, false, 0, 1);
    record();
    add(100, true);
    add(100, true);
    add(100, true);
    add(100, true);
    assert_int_equal(virtqueue_add_one(&rig.vq, (struct virtq_buf){ 0, 9 }, true, &rig), VIRTQ_FULL);
    virtqueue_publish(&rig.vq);
    use(0x10001, 5);
    use(2, 100);
    use(7, 5);
    use(1, 101);
    assert_non_null(pop());
    assert_non_null(pop());
    use(3, 1);
    assert_null(pop());
    assert_true(rig.vq.broken);
    assert_null(pop());
    print();
    CHECK_LINES(9, "q1 0.000005 add: no room avail 4 used 0 9 bytes, free 0, pieces 1",
                "q1 0.000006 publish, kick avail 4 used 0 4 entries, their event 0",
                "q1 0.000007 BAD USED ID avail 4 used 2 65537", "q1 0.000008 pop avail 4 used 2 100 bytes, head 2",
                "q1 0.000009 BAD USED ID avail 4 used 4 7", "q1 0.000010 BAD LENGTH avail 4 used 4 101 bytes, head 1",
                "q1 0.000011 BAD INDEX avail 4 used 4 5, shown to the device 4",
                "q1 used[4] id 3, 1 bytes, for no buffer");
    check_line(0, "q1 split ring of 4, flags; buffers with the device: 2; free descriptors: 2");
    check_line(2, "q1 device: used 5; wants a kick: yes");
    check_line(3, "q1 wrong used entries: 4; first: id 65537, valid is below 4; the queue is broken");
    rig_close(&rig);
}

static uint64_t time_of(unsigned i)
{
    unsigned long long seconds;
    unsigned us;

    assert_int_equal(sscanf(line[i], "q1 %llu.%6u ", &seconds, &us), 2);
    return seconds * 1000000 + us;
}

/* The last 256, oldest first, also where the 38 bits of the time go round, and 32 bits of their number would. */
static void test_last_ones(void **state)
{
    uint64_t first = (1ull << 38) - 800;

    (void)state;
    for (unsigned turn = 0; turn < 2; turn++) {
        now_us = first;
        rig_open(&rig, 8, true, 0, 1);
        rig.recorder.count = turn ? UINT32_MAX - 1400ull : 0;
        record();
        for (unsigned i = 0; i < 500; i++) {
            add(i, false);
            virtqueue_publish(&rig.vq);
            use(0, 0);
            assert_non_null(pop());
        }
        print();
        assert_int_equal(lines, 3 + RECORDER_OPERATIONS);
        for (unsigned i = 0; i < RECORDER_OPERATIONS; i++)
            check(time_of(3 + i) == first + 1501 - RECORDER_OPERATIONS + i, "%s", line[3 + i]);
        rig_close(&rig);
    }
}

static void keep_and_go_on(void *context, const char *text)
{
    keep(context, text);
    recorder_note(&rig.vq, RECORDER_INTERRUPT);
    recorder_note(&rig.vq, RECORDER_INTERRUPT);
}

/* Its owner goes on while it is read, faster than it is read: what has been overwritten meanwhile is left out, not
 * shown in its place. */
static void test_goes_on(void **state)
{
    (void)state;
    now_us = 0;
    rig_open(&rig, 8, true, 0, 1);
    record();
    for (unsigned i = 0; i < 1000; i++)
        recorder_note(&rig.vq, RECORDER_KICK_AGAIN);
    lines = 0;
    recorder_print(&rig.vq, keep_and_go_on, &rig);
    assert_int_equal(lines, 3 + RECORDER_OPERATIONS / 2);
    for (unsigned i = 3; i < lines; i++)
        check(time_of(i) <= 1006 && (i == 3 || time_of(i) > time_of(i - 1)), "%s", line[i]);
    rig_close(&rig);
}

/* The record stays when the ring is laid out anew; the buffers taken back are counted. */
static void test_reset(void **state)
{
    struct virtqueue_config config = { .index = 1, .size = 8, .event_idx = true };

    (void)state;
    now_us = 0;
    rig_open(&rig, 8, true, 0, 1);
    record();
    add(1, false);
    add(2, false);
    while (virtqueue_detach(&rig.vq))
        ;
    assert_int_equal(virtqueue_split_init(&rig.vq, &config, rig.mem), VIRTQ_OK);
    assert_null(rig.vq.recorder);
    record();
    add(3, false);
    print();
    CHECK_LINES(3, "q1 0.000000 laid out avail 0 used 0 taken back: 0 buffers",
                "q1 0.000001 add avail 1 used 0 1 bytes, head 0, pieces 1",
                "q1 0.000002 add avail 2 used 0 2 bytes, head 1, pieces 1",
                "q1 0.000003 laid out avail 0 used 0 taken back: 2 buffers",
                "q1 0.000004 add avail 1 used 0 3 bytes, head 0, pieces 1");
    rig_close(&rig);
}

/* ---- what the rings hold ---- */

static void test_rings(void **state)
{
    for (uint16_t indirect = 0; indirect <= 4; indirect += 4) {
        (void)state;
        rig_open(&rig, 8, true, indirect, 1);
        recorder_note(&rig.vq, RECORDER_INTERRUPT); /* nothing: there is no record */
        add(60, false);
        virtqueue_publish(&rig.vq);
        use(0, 0);
        assert_non_null(pop());
        add_two(14, 1500);
        add(1984, true);
        virtqueue_publish(&rig.vq);
        use(9, 7);
        add(71, false);
        print();
        if (indirect == 0)
            CHECK_LINES(3, "q1 avail[0] head 0", "q1 avail[1] head 0, 1514 bytes, pieces 2, with the device",
                        "q1 avail[2] head 2, 1984 bytes, pieces 1, with the device",
                        "q1 avail[3] head 3, 71 bytes, pieces 1, not shown yet", "q1 used[0] id 0, 0 bytes",
                        "q1 used[1] id 9, 7 bytes, BAD ID, not taken yet");
        else
            CHECK_LINES(3, "q1 avail[0] head 0", "q1 avail[1] head 0, 1514 bytes, pieces 2, with the device",
                        "q1 avail[2] head 1, 1984 bytes, pieces 1, with the device",
                        "q1 avail[3] head 2, 71 bytes, pieces 1, not shown yet", "q1 used[0] id 0, 0 bytes",
                        "q1 used[1] id 9, 7 bytes, BAD ID, not taken yet");
        assert_null(pop()); /* the wrong id is skipped */
        assert_true(virtqueue_enable_callbacks(&rig.vq));
        print();
        check_line(1, "q1 driver: avail 4 filled, 3 shown; used 2 taken; wants an interrupt: at used 3");
        rig_close(&rig);
    }
}

/* As many as the ring still holds: a small one all, a large one the last 128 of each side, and also when the indices
 * have just gone round. */
static void test_rings_go_round(void **state)
{
    static const uint32_t buffers[] = { 1, 7, 8, 9, 200, 65535, 65536, 65538, 66000 };

    (void)state;
    for (uint16_t size = 8; size <= 512; size *= 8) {
        for (unsigned k = 0; k < COUNT_OF(buffers); k++) {
            uint32_t n = buffers[k], expected = n < size ? n : size;
            char text[RECORDER_LINE];

            expected = expected < 128 ? expected : 128;
            rig_open(&rig, size, true, 0, 1);
            for (uint32_t i = 0; i < n; i++) {
                add(1, false);
                virtqueue_publish(&rig.vq);
                use(0, 3);
                assert_non_null(pop());
            }
            print();
            assert_int_equal(lines, 4 + 2 * expected); /* the lengths were wrong, too: a line for that */
            snprintf(text, sizeof(text), "q1 avail[%u] head 0", (uint16_t)(n - 1));
            check_line(3 + expected, text);
            snprintf(text, sizeof(text), "q1 used[%u] id 0, 3 bytes", (uint16_t)(n - 1));
            check_line(3 + 2 * expected, text);
            rig_close(&rig);
        }
    }
}

/* Everything that the device can write is garbage, and what another core reads in the middle of a change may be: each
 * line stays a line, and AddressSanitizer sees no step outside. */
static void test_garbage(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 3000; n++) {
        uint64_t seed = chance_seed(n + 1);
        uint16_t size = (uint16_t)(1 << n % 10), indirect = n & 16 ? 3 : 0;

        rig_open(&rig, size, n & 32, indirect, 1);
        if (n & 64)
            record();
        unsigned used = chance_below(&seed, 2u * size);
        for (unsigned i = 0; i < used && virtqueue_capacity(&rig.vq) >= 2; i++)
            add_two(chance_below(&seed, 2000), 1);
        virtqueue_publish(&rig.vq);
        uint8_t *bytes = rig.mem;
        size_t end = (size_t)((uint8_t *)rig.vq.state - bytes);
        for (size_t i = 0; i < end; i++)
            bytes[i] = (uint8_t)chance(&seed);
        for (uint8_t *i = (uint8_t *)rig.vq.indirect; indirect && i < bytes + virtqueue_split_bytes(size, indirect);
             i++)
            *i = (uint8_t)chance(&seed);
        for (uint16_t i = 0; i < size; i++) {
            rig.vq.state[i].next = (uint16_t)chance(&seed);
            rig.vq.state[i].count = (uint16_t)chance(&seed);
        }
        rig.vq.avail_idx = (uint16_t)chance(&seed);
        rig.vq.published = (uint16_t)chance(&seed);
        rig.vq.last_used = (uint16_t)chance(&seed);
        rig.vq.fault = (struct virtq_fault){ n % 4, UINT32_MAX, UINT32_MAX };
        rig.vq.stats.bad_used = rig.vq.stats.added = UINT64_MAX;
        rig.recorder.count = chance(&seed);
        for (unsigned i = 0; i < sizeof(rig.recorder.entry); i++)
            ((uint8_t *)rig.recorder.entry)[i] = (uint8_t)chance(&seed);
        print();
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),     cmocka_unit_test(test_bad_entries), cmocka_unit_test(test_last_ones),
        cmocka_unit_test(test_goes_on),        cmocka_unit_test(test_reset),       cmocka_unit_test(test_rings),
        cmocka_unit_test(test_rings_go_round), cmocka_unit_test(test_garbage),
    };

    return cmocka_run_group_tests_name("recorder", tests, NULL, NULL);
}

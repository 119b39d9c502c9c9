/* The control queue against a device that obeys, refuses, dawdles, lies or says nothing. Time is a counter: every look
 * at the clock lets it go on and gives the device its turn. */
#include "tests/unit/unit.h"

#include "drivers/virtio/control.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "tests/unit/fake_device.h"

#define TICK_NS 1000000ull /* a millisecond for every look at the clock */

/* What the device does with a command. */
struct behaviour {
    uint8_t answer;       /* written into the answer's byte, unless `silent` */
    bool silent;          /* the byte is left as it was */
    uint32_t used_length; /* what the used entry says */
    uint64_t delay_ns;    /* from notification to used entry */
    bool never;           /* nothing is ever returned */
    uint32_t lie_id;      /* used entries with this id come first, */
    uint32_t lies;        /* so many */
    uint16_t jump;        /* the used index goes so far ahead */
};

static const struct behaviour good = { .answer = 0, .used_length = 1 };

/* A machine: driver's end, device, clock, console. */
static struct rig {
    struct control control;
    struct virtio_transport transport;
    void *ring, *memory;
    struct fake_device dev;
    struct behaviour behaviour;
    bool notified, busy;
    uint64_t now, due, step, notifications;
    uint8_t *answer_at; /* the command that the device works on */
    uint32_t pieces;
    bool indirect;
    uint8_t command[1024]; /* all that it read */
    uint32_t command_bytes;
    uint64_t looks; /* at the clock */
    unsigned lines;
    char line[400]; /* the last one */
} rig;

/* ---- what the code under test calls ---- */

static void device_turn(void);

uint64_t clock_ns(void)
{
    rig.looks++;
    rig.now += rig.step;
    device_turn();
    return rig.now;
}

void log_line(enum log_level level, const char *area, const char *format, ...)
{
    va_list args;

    assert_int_equal(level, LOG_WARN);
    assert_string_equal(area, "virtio");
    va_start(args, format);
    vsnprintf(rig.line, sizeof(rig.line), format, args);
    va_end(args);
    assert_memory_equal(rig.line, "control queue: ", 15);
    rig.lines++;
}

static void notify(struct virtio_transport *t, const struct virtqueue *vq)
{
    assert_ptr_equal(t, &rig.transport);
    assert_ptr_equal(vq, &rig.control.vq);
    rig.notified = true;
    rig.notifications++;
}

/* ---- the device ---- */

static void take_command(void)
{
    struct fake_chain chain;

    assert_true(fake_device_take(&rig.dev, &chain));
    rig.busy = true;
    rig.due = rig.now + rig.behaviour.delay_ns;
    rig.command_bytes = 0;
    rig.pieces = chain.pieces;
    rig.indirect = chain.indirect;
    for (uint32_t i = 0; i < chain.pieces; i++) {
        const struct fake_piece *piece = &chain.piece[i];
        uint8_t *at = (uint8_t *)(uintptr_t)piece->addr;

        if (piece->writable) {
            assert_int_equal(i, chain.pieces - 1);
            assert_int_equal(piece->len, 1);
            rig.answer_at = at;
            continue;
        }
        assert_true(rig.command_bytes + piece->len <= sizeof(rig.command));
        memcpy(rig.command + rig.command_bytes, at, piece->len);
        rig.command_bytes += piece->len;
        if (i == 0 && chain.pieces == 3) /* class and command are apart from the data, as older devices want them */
            assert_int_equal(piece->len, 2);
    }
    assert_true(*rig.answer_at != 0 && *rig.answer_at != 1);
    if (rig.dev.event_idx) /* asks to be notified of the next one */
        fake_device_sleep(&rig.dev, 0);
}

static void answer_command(void)
{
    const struct behaviour *b = &rig.behaviour;

    rig.busy = false;
    if (!b->silent)
        *rig.answer_at = b->answer;
    for (uint32_t i = 0; i < b->lies; i++)
        fake_device_lie(&rig.dev, b->lie_id, 1);
    if (b->lies == 0)
        fake_device_return(&rig.dev, 0, b->used_length);
    fake_device_publish(&rig.dev);
    if (b->jump)
        fake_device_jump(&rig.dev, (uint16_t)(rig.dev.used_idx + b->jump));
}

/* A device that is not notified sleeps, unless it polls. */
static void device_turn(void)
{
    if (!rig.busy && (rig.notified || !rig.dev.asleep) && fake_device_available(&rig.dev) > 0) {
        rig.notified = false;
        take_command();
    }
    if (rig.busy && !rig.behaviour.never && (int64_t)(rig.now - rig.due) >= 0)
        answer_command();
    assert_string_equal(rig.dev.violation, "");
}

/* ---- opening and closing ---- */

static void rig_open(uint16_t size, bool event_idx, uint16_t indirect_max)
{
    static const struct virtio_transport_ops ops = { .name = "fake", .notify = notify };
    struct virtqueue_config config = { 7, size, event_idx, indirect_max };

    memset(&rig, 0, sizeof(rig));
    rig.step = TICK_NS;
    rig.now = UINT64_MAX - 500 * TICK_NS; /* the clock may wrap: differences count */
    rig.behaviour = good;
    rig.transport.ops = &ops;
    rig.ring = aligned_alloc(4096, (virtqueue_split_bytes(size, indirect_max) + 4095) / 4096 * 4096);
    rig.memory = aligned_alloc(64, control_bytes());
    assert_int_equal(virtqueue_split_init(&rig.control.vq, &config, rig.ring), VIRTQ_OK);
    fake_device_init(&rig.dev, rig.control.vq.desc, rig.control.vq.avail, rig.control.vq.used, size, event_idx,
                     indirect_max > 0);
    fake_device_sleep(&rig.dev, 0);
    control_init(&rig.control, &rig.transport, rig.memory);
}

static void rig_close(void)
{
    assert_string_equal(rig.dev.violation, "");
    fake_device_free(&rig.dev);
    free(rig.ring);
    free(rig.memory);
}

static void assert_command(uint8_t class, uint8_t command, const void *data, uint32_t n)
{
    assert_int_equal(rig.command_bytes, n + 2);
    assert_int_equal(rig.command[0], class);
    assert_int_equal(rig.command[1], command);
    assert_memory_equal(rig.command + 2, data, n);
}

static enum control_result run(uint32_t n)
{
    static uint8_t data[CONTROL_DATA_MAX + 1];

    for (uint32_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 7 + n);
    enum control_result result = control_run(&rig.control, 9, 3, data, n);

    if (result != CONTROL_CLOSED && result != CONTROL_TOO_LONG)
        assert_command(9, 3, data, n);
    return result;
}

/* ---- commands that reach the device ---- */

static void test_every_length_in_every_ring(void **state)
{
    static const struct {
        uint16_t size, indirect_max, pieces;
        bool event_idx, indirect;
    } rings[] = { { 2, 0, 2, false, false },  { 4, 0, 3, false, false }, { 64, 0, 3, true, false },
                  { 2, 3, 2, true, true },    { 4, 3, 3, true, true },   { 64, 3, 3, false, true },
                  { 64, 2, 3, false, false }, { 256, 8, 3, true, true } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rings); i++) {
        rig_open(rings[i].size, rings[i].event_idx, rings[i].indirect_max);
        for (uint32_t n = 0; n <= CONTROL_DATA_MAX; n++) {
            assert_int_equal(run(n), CONTROL_OK);
            assert_int_equal(rig.pieces, n ? rings[i].pieces : 2);
            assert_int_equal(rig.indirect, n ? rings[i].indirect : rings[i].indirect_max >= 2);
        }
        assert_int_equal(run(CONTROL_DATA_MAX + 1), CONTROL_TOO_LONG);
        assert_int_equal(run(UINT32_MAX), CONTROL_TOO_LONG);
        assert_int_equal(rig.lines, 1);
        assert_int_equal(run(1), CONTROL_OK);
        assert_int_equal(rig.control.commands, CONTROL_DATA_MAX + 4);
        assert_int_equal(rig.control.failures, 2);
        assert_int_equal(rig.dev.taken, CONTROL_DATA_MAX + 2);
        rig_close();
    }
}

static void test_ring_of_one(void **state)
{
    (void)state;
    rig_open(1, false, 3);
    assert_int_equal(run(0), CONTROL_TOO_LONG);
    assert_int_equal(run(2), CONTROL_TOO_LONG);
    assert_int_equal(rig.dev.taken, 0);
    rig_close();
}

/* The indices of the ring wrap at 65,536. */
static void test_seventy_thousand(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < 4; kind++) {
        rig_open(kind < 2 ? 4 : 64, kind & 1, kind & 2 ? 3 : 0);
        for (uint32_t n = 0; n < 70000; n++) {
            assert_int_equal(control_set_pairs(&rig.control, (uint16_t)(n % 0x8000 + 1)), CONTROL_OK);
            assert_int_equal(rig.command[2] | rig.command[3] << 8, n % 0x8000 + 1);
        }
        assert_int_equal(rig.dev.taken, 70000);
        assert_int_equal(rig.notifications, 70000);
        assert_int_equal(rig.control.commands, 70000);
        assert_int_equal(rig.control.failures, 0);
        assert_true(rig.dev.interrupts <= 1); /* none is asked for; the event index comes round once */
        assert_int_equal(rig.lines, 0);
        rig_close();
    }
}

static void test_device_that_polls_is_not_notified(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        rig_open(16, event_idx, 0);
        if (event_idx)
            rig.dev.event_idx = false; /* which it then does not look after: its field stays behind */
        fake_device_poll(&rig.dev);
        rig.dev.used->flags = event_idx ? 0 : VRING_USED_F_NO_NOTIFY;
        for (unsigned n = 0; n < 100; n++)
            assert_int_equal(run(n), CONTROL_OK);
        assert_int_equal(rig.notifications, event_idx ? 1 : 0); /* entry 0 is the one that the field asks for */
        rig_close();
    }
}

/* ---- answers ---- */

static void test_refused(void **state)
{
    (void)state;
    rig_open(64, true, 3);
    rig.behaviour.answer = 1;
    assert_int_equal(run(4), CONTROL_REFUSED);
    assert_int_equal(rig.control.answer, 1);
    assert_int_equal(rig.lines, 1);
    assert_non_null(strstr(rig.line, "refused"));
    assert_int_equal(run(4), CONTROL_REFUSED); /* said once */
    assert_int_equal(rig.lines, 1);
    assert_int_equal(control_set_pairs(&rig.control, 2), CONTROL_REFUSED); /* another command: said */
    assert_int_equal(rig.lines, 2);
    assert_non_null(strstr(rig.line, "VQ_PAIRS_SET"));
    rig.behaviour = good;
    assert_int_equal(run(4), CONTROL_OK);
    assert_int_equal(rig.control.answer, 0);
    assert_int_equal(rig.control.commands, 4);
    assert_int_equal(rig.control.failures, 3);
    rig_close();
}

static void test_every_answer(void **state)
{
    (void)state;
    rig_open(4, false, 0);
    for (unsigned answer = 0; answer < 256; answer++) {
        rig.behaviour.answer = (uint8_t)answer;
        assert_int_equal(run(2), answer == 0 ? CONTROL_OK : answer == 1 ? CONTROL_REFUSED : CONTROL_NONSENSE);
        assert_int_equal(rig.control.answer, answer);
        assert_true(rig.control.open);
    }
    assert_int_equal(rig.lines, 2);
    assert_int_equal(rig.control.failures, 255);
    rig_close();
}

/* The answer of the command before it is none. */
static void test_silent(void **state)
{
    (void)state;
    rig_open(4, false, 0);
    for (unsigned answer = 0; answer < 2; answer++) {
        rig.behaviour = good;
        rig.behaviour.answer = (uint8_t)answer;
        run(2);
        rig.behaviour.silent = true;
        assert_int_equal(run(2), CONTROL_NONSENSE);
        assert_int_equal(rig.control.answer, CONTROL_NO_ANSWER);
    }
    rig_close();
}

/* A used length of 0 means that the byte was not written, whatever is in it (2.7.8.2); one beyond the byte includes
 * it. */
static void test_used_length(void **state)
{
    static const uint32_t lengths[] = { 2, 3, 309, 0x10000, UINT32_MAX };

    (void)state;
    rig_open(64, true, 3);
    rig.behaviour.used_length = 0;
    assert_int_equal(run(2), CONTROL_NONSENSE);
    assert_int_equal(rig.lines, 1);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        rig.behaviour.used_length = lengths[i];
        rig.behaviour.answer = 0;
        assert_int_equal(run(2), CONTROL_OK);
        assert_int_equal(rig.lines, 2); /* said once */
        rig.behaviour.answer = 1;
        assert_int_equal(control_announce_ack(&rig.control), CONTROL_REFUSED);
        rig.lines = 2;
    }
    assert_int_equal(rig.control.vq.stats.bad_used, 2 * COUNT_OF(lengths));
    rig.behaviour = good;
    rig.behaviour.used_length = 0;
    assert_int_equal(run(2), CONTROL_NONSENSE); /* not excused by what came before */
    rig_close();
}

/* ---- time ---- */

static void test_delays(void **state)
{
    (void)state;
    for (uint64_t ms = 0; ms<2000; ms += ms> 990 && ms < 1010 ? 1 : 30) {
        uint64_t begin, took;

        rig_open(4, ms & 1, 0);
        rig.behaviour.delay_ns = ms * TICK_NS;
        begin = rig.now;
        enum control_result result = run(2);
        took = rig.now - begin;
        if (ms < 995)
            assert_int_equal(result, CONTROL_OK);
        if (ms > 1005)
            assert_int_equal(result, CONTROL_TIMEOUT);
        assert_int_equal(rig.control.open, result == CONTROL_OK);
        assert_true(took <= CONTROL_DEADLINE_NS + 5 * TICK_NS);
        if (result == CONTROL_TIMEOUT)
            assert_true(took >= CONTROL_DEADLINE_NS);
        assert_int_equal(rig.lines, result == CONTROL_TIMEOUT);
        rig_close();
    }
}

static void test_never(void **state)
{
    (void)state;
    rig_open(64, true, 3);
    assert_int_equal(run(2), CONTROL_OK);
    rig.behaviour.never = true;
    assert_int_equal(run(2), CONTROL_TIMEOUT);
    assert_int_equal(rig.lines, 1);
    assert_non_null(strstr(rig.line, "1000 ms"));
    assert_false(rig.control.open);
    /* Given up for good: nothing more reaches the device, even if it answers after all. */
    uint64_t looks = rig.looks;
    assert_int_equal(run(2), CONTROL_CLOSED);
    rig.behaviour.never = false;
    device_turn();
    assert_int_equal(rig.dev.returned, 2);
    for (unsigned n = 0; n < 3; n++)
        assert_int_equal(run(2), CONTROL_CLOSED);
    assert_int_equal(control_set_pairs(&rig.control, 4), CONTROL_CLOSED);
    assert_int_equal(rig.dev.taken, 2);
    assert_int_equal(rig.looks, looks);
    assert_int_equal(rig.lines, 3); /* the time-out, then "no queue" for each command */
    assert_int_equal(rig.control.failures, 6);
    rig_close();
}

/* A command that came too late must not be taken for a later one's: its memory is left alone after the time-out. */
static void test_memory_is_left_alone(void **state)
{
    uint8_t before[sizeof(rig.command)], *memory = NULL;

    (void)state;
    rig_open(4, false, 0);
    rig.behaviour.never = true;
    assert_int_equal(run(100), CONTROL_TIMEOUT);
    memory = rig.memory;
    assert_true(control_bytes() <= sizeof(before));
    memcpy(before, memory, control_bytes());
    assert_int_equal(run(50), CONTROL_CLOSED);
    assert_memory_equal(memory, before, control_bytes());
    rig_close();
}

/* The whole guest was stopped: the clock leaps, and the answer is there when it looks again. */
static void test_clock_leaps(void **state)
{
    (void)state;
    rig_open(4, true, 0);
    rig.step = 5 * CONTROL_DEADLINE_NS;
    for (unsigned n = 0; n < 10; n++)
        assert_int_equal(run(2), CONTROL_OK);
    rig.behaviour.delay_ns = 4 * CONTROL_DEADLINE_NS; /* between two looks */
    assert_int_equal(run(2), CONTROL_OK);
    rig_close();
}

/* ---- lies ---- */

static void test_wrong_id(void **state)
{
    static const uint32_t ids[] = { 4, 63, 64, 65535, 65536, UINT32_MAX };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        for (unsigned before = 0; before < 2; before++) {
            rig_open(64, before, 0);
            if (before)
                assert_int_equal(run(2), CONTROL_OK);
            rig.behaviour.lies = 1;
            rig.behaviour.lie_id = ids[i];
            rig.now = 0;
            assert_int_equal(run(2), CONTROL_NONSENSE);
            assert_true(rig.now < 10 * TICK_NS); /* at once: nothing true can follow */
            assert_false(rig.control.open);
            assert_int_equal(rig.lines, 1);
            assert_non_null(strstr(rig.line, "used id"));
            assert_int_equal(run(2), CONTROL_CLOSED);
            rig_close();
        }
    }
}

static void test_index_runs_ahead(void **state)
{
    static const uint16_t jumps[] = { 1, 2, 100, 0x7fff, 0x8000, 0xfffe };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(jumps); i++) {
        rig_open(64, true, 0);
        assert_int_equal(run(2), CONTROL_OK);
        rig.behaviour.jump = jumps[i];
        assert_int_equal(run(2), CONTROL_NONSENSE);
        assert_false(rig.control.open);
        assert_non_null(strstr(rig.line, "used index"));
        assert_int_equal(run(2), CONTROL_CLOSED);
        rig_close();
    }
}

/* ---- layouts ---- */

static const uint8_t any_key[CONTROL_RSS_KEY] = "0123456789abcdefghijklmnopqrstuvwxyzABCD";
static const struct rss_limits generous = { 40, 128, 0x1ff };

static void test_set_pairs(void **state)
{
    (void)state;
    rig_open(64, true, 3);
    assert_int_equal(control_set_pairs(&rig.control, 1), CONTROL_OK);
    assert_command(4, 0, "\x01\x00", 2);
    assert_int_equal(control_set_pairs(&rig.control, 0x1234), CONTROL_OK);
    assert_command(4, 0, "\x34\x12", 2);
    assert_int_equal(control_set_pairs(&rig.control, 0x8000), CONTROL_OK);
    assert_command(4, 0, "\x00\x80", 2);
    assert_int_equal(rig.dev.taken, 3);
    assert_int_equal(control_set_pairs(&rig.control, 0), CONTROL_REFUSED);
    assert_int_equal(control_set_pairs(&rig.control, 0x8001), CONTROL_REFUSED);
    assert_int_equal(control_set_pairs(&rig.control, 0xffff), CONTROL_REFUSED);
    assert_int_equal(rig.dev.taken, 3);
    assert_int_equal(rig.control.failures, 3);
    rig_close();
}

static void test_announce_ack(void **state)
{
    (void)state;
    rig_open(64, true, 3);
    assert_int_equal(control_announce_ack(&rig.control), CONTROL_OK);
    assert_command(3, 0, "", 0);
    assert_int_equal(rig.pieces, 2); /* there is no piece of no bytes */
    rig_close();
}

/* Appends a little-endian number. */
static uint8_t *put(uint8_t *to, uint32_t value, unsigned bytes)
{
    for (; bytes > 0; bytes--, value >>= 8)
        *to++ = (uint8_t)value;
    return to;
}

/* hash_types, indirection_table_mask, unclassified_queue, the table, max_tx_vq, hash_key_length, the key. */
static void test_set_rss(void **state)
{
    uint8_t table[CONTROL_RSS_TABLE], expected[600], *end = expected;

    (void)state;
    rig_open(64, true, 3);
    for (unsigned i = 0; i < CONTROL_RSS_TABLE; i++)
        table[i] = (uint8_t)(i * i % 200);
    end = put(end, 0x12f, 4);
    end = put(end, 127, 2);
    end = put(end, 0, 2);
    for (unsigned i = 0; i < CONTROL_RSS_TABLE; i++)
        end = put(end, table[i], 2);
    end = put(end, 0x234, 2);
    end = put(end, 40, 1);
    memcpy(end, any_key, 40);
    assert_int_equal(control_set_rss(&rig.control, &generous, any_key, table, 0x234, 0x12f), CONTROL_OK);
    assert_command(4, 1, expected, 8 + 256 + 3 + 40);
    rig_close();
}

/* hash_types, four reserved words, hash_key_length, the key: the same place for the key as with a table of one. */
static void test_set_hash(void **state)
{
    uint8_t expected[600], *end = expected;
    struct rss_limits no_table = { 40, 0, 0x3f }; /* a device without RSS has no such field */

    (void)state;
    rig_open(64, true, 3);
    end = put(end, 0x3f, 4);
    end = put(end, 0, 4);
    end = put(end, 0, 4);
    end = put(end, 40, 1);
    memcpy(end, any_key, 40);
    assert_int_equal(control_set_hash(&rig.control, &no_table, any_key, 0x3f), CONTROL_OK);
    assert_command(4, 2, expected, 53);
    rig_close();
}

static void test_limits(void **state)
{
    static const struct {
        struct rss_limits limits;
        uint32_t types;
        bool rss, hash;
        const char *text;
    } rows[] = {
        { { 40, 128, 0x3f }, 0x3f, true, true, NULL },
        { { 255, 65535, UINT32_MAX }, 0x1ff, true, true, NULL },
        { { 40, 128, 0 }, 0, true, true, NULL },
        { { 39, 128, 0x3f }, 0x3f, false, false, "at most 39 bytes" },
        { { 0, 128, 0x3f }, 0x3f, false, false, "at most 0 bytes" },
        { { 40, 127, 0x3f }, 0x3f, false, true, "at most 127 entries" },
        { { 40, 0, 0x3f }, 0x3f, false, true, "at most 0 entries" },
        { { 40, 128, 0x3e }, 0x3f, false, false, "types 3e" },
        { { 40, 128, 0x3f }, 0x40, false, false, "types 3f" },
    };
    uint8_t table[CONTROL_RSS_TABLE] = { 0 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        enum control_result rss, hash;

        rig_open(64, true, 3);
        rss = control_set_rss(&rig.control, &rows[i].limits, any_key, table, 1, rows[i].types);
        assert_int_equal(rss, rows[i].rss ? CONTROL_OK : CONTROL_REFUSED);
        if (rows[i].text)
            assert_non_null(strstr(rig.line, rows[i].text));
        hash = control_set_hash(&rig.control, &rows[i].limits, any_key, rows[i].types);
        assert_int_equal(hash, rows[i].hash ? CONTROL_OK : CONTROL_REFUSED);
        assert_int_equal(rig.dev.taken, rows[i].rss + rows[i].hash); /* what is refused here, the device is not asked */
        assert_int_equal(rig.control.failures, !rows[i].rss + !rows[i].hash);
        rig_close();
    }
}

/* Every entry of the table must be an enabled pair. */
static void test_table_entries(void **state)
{
    uint8_t table[CONTROL_RSS_TABLE];

    (void)state;
    rig_open(64, true, 3);
    for (unsigned i = 0; i < CONTROL_RSS_TABLE; i++) {
        memset(table, 3, sizeof(table));
        assert_int_equal(control_set_rss(&rig.control, &generous, any_key, table, 4, 1), CONTROL_OK);
        table[i] = 4;
        assert_int_equal(control_set_rss(&rig.control, &generous, any_key, table, 4, 1), CONTROL_REFUSED);
        assert_int_equal(control_set_rss(&rig.control, &generous, any_key, table, 5, 1), CONTROL_OK);
    }
    assert_int_equal(rig.dev.taken, 2 * CONTROL_RSS_TABLE);
    memset(table, 0, sizeof(table));
    assert_int_equal(control_set_rss(&rig.control, &generous, any_key, table, 0, 1), CONTROL_REFUSED);
    assert_int_equal(control_set_rss(&rig.control, &generous, any_key, table, 0x8000, 1), CONTROL_OK);
    assert_int_equal(control_set_rss(&rig.control, &generous, any_key, table, 0x8001, 1), CONTROL_REFUSED);
    rig_close();
}

/* ---- the rest ---- */

static void test_no_queue(void **state)
{
    struct control none = { 0 };

    (void)state;
    memset(&rig, 0, sizeof(rig));
    assert_int_equal(control_set_pairs(&none, 2), CONTROL_CLOSED);
    assert_int_equal(control_announce_ack(&none), CONTROL_CLOSED);
    assert_int_equal(rig.looks, 0);
    assert_int_equal(rig.lines, 2);
}

static void test_texts(void **state)
{
    const char *seen[CONTROL_TOO_LONG + 1];

    (void)state;
    for (unsigned i = 0; i <= CONTROL_TOO_LONG; i++) {
        seen[i] = control_result_text((enum control_result)i);
        assert_true(strlen(seen[i]) > 3 && strcmp(seen[i], "unknown") != 0);
        for (unsigned j = 0; j < i; j++)
            assert_string_not_equal(seen[i], seen[j]);
    }
    assert_string_equal(control_result_text((enum control_result)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length_in_every_ring),
        cmocka_unit_test(test_ring_of_one),
        cmocka_unit_test(test_seventy_thousand),
        cmocka_unit_test(test_device_that_polls_is_not_notified),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_every_answer),
        cmocka_unit_test(test_silent),
        cmocka_unit_test(test_used_length),
        cmocka_unit_test(test_delays),
        cmocka_unit_test(test_never),
        cmocka_unit_test(test_memory_is_left_alone),
        cmocka_unit_test(test_clock_leaps),
        cmocka_unit_test(test_wrong_id),
        cmocka_unit_test(test_index_runs_ahead),
        cmocka_unit_test(test_set_pairs),
        cmocka_unit_test(test_announce_ack),
        cmocka_unit_test(test_set_rss),
        cmocka_unit_test(test_set_hash),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_table_entries),
        cmocka_unit_test(test_no_queue),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}

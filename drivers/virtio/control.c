/* The control virtqueue. See control.h. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <linux/virtio_net.h>
#include "drivers/virtio/control.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/x86.h"

/* One command's memory: there is one command at a time. Header and data lie together so that they can be one piece.
 * What the device writes has a cache line of its own. */
struct control_memory {
    struct virtio_net_ctrl_hdr header;
    uint8_t data[CONTROL_DATA_MAX];
    _Alignas(64) virtio_net_ctrl_ack answer;
};
_Static_assert(sizeof(struct virtio_net_ctrl_hdr) == 2 && offsetof(struct control_memory, data) == 2,
               "no gap between header and data");

/* The layout of VIRTIO_NET_CTRL_MQ_RSS_CONFIG's data for our table and key, all little-endian (5.1.6.5.7.1). */
struct rss_config {
    uint32_t hash_types;
    uint16_t table_mask;
    uint16_t unclassified_queue; /* queues are receive queues by number of their pair */
    uint16_t table[CONTROL_RSS_TABLE];
    uint16_t max_tx_vq; /* how many transmit queues, and so pairs, are in use */
    uint8_t key_length;
    uint8_t key[CONTROL_RSS_KEY];
} __attribute__((packed));
_Static_assert(sizeof(struct rss_config) == 8 + 2 * CONTROL_RSS_TABLE + 3 + CONTROL_RSS_KEY, "as on the wire");
_Static_assert(sizeof(struct rss_config) <= CONTROL_DATA_MAX, "fits");

/* Of VIRTIO_NET_CTRL_MQ_HASH_CONFIG's (5.1.6.5.6.4). */
struct hash_config {
    uint32_t hash_types;
    uint16_t reserved[4];
    uint8_t key_length;
    uint8_t key[CONTROL_RSS_KEY];
} __attribute__((packed));
_Static_assert(sizeof(struct hash_config) == 13 + CONTROL_RSS_KEY, "as on the wire");

const char *control_result_text(enum control_result result)
{
    switch (result) {
    case CONTROL_OK:
        return "done";
    case CONTROL_REFUSED:
        return "refused";
    case CONTROL_NONSENSE:
        return "answered with nonsense";
    case CONTROL_TIMEOUT:
        return "timed out";
    case CONTROL_CLOSED:
        return "no control queue";
    case CONTROL_TOO_LONG:
        return "too long";
    }
    return "unknown";
}

size_t control_bytes(void)
{
    return sizeof(struct control_memory);
}

void control_init(struct control *control, struct virtio_transport *transport, void *memory)
{
    control->transport = transport;
    control->memory = memory;
    control->open = true;
    control->commands = control->failures = 0;
    control->reported = 0;
    control->answer = CONTROL_NO_ANSWER;
    memset(memory, 0, sizeof(struct control_memory));
}

/* The commands by name, for the console; any other is the first one. */
enum command { OTHER_COMMAND, PAIRS_SET, RSS_CONFIG, HASH_CONFIG, ANNOUNCE_ACK };

static const char *const command_text[] = { "a command", "VQ_PAIRS_SET", "RSS_CONFIG", "HASH_CONFIG", "ANNOUNCE_ACK" };

static enum command command_of(uint8_t class, uint8_t command)
{
    if (class == VIRTIO_NET_CTRL_MQ && command <= VIRTIO_NET_CTRL_MQ_HASH_CONFIG)
        return (enum command)(PAIRS_SET + command); /* 0 to 2, in this order */
    return class == VIRTIO_NET_CTRL_ANNOUNCE ? ANNOUNCE_ACK : OTHER_COMMAND;
}

/* A bit of control->reported: true the first time. */
static bool first_time(struct control *control, unsigned kind)
{
    bool first = !(control->reported & 1ull << kind);
    control->reported |= 1ull << kind;
    return first;
}

#define KIND_LENGTH 63 /* no command's: those take result + 8 * command */

/* Counts a command that failed, and says why: once per command and kind of failure. Returns `result`. */
__attribute__((format(printf, 4, 5))) static enum control_result
fail(struct control *control, enum command command, enum control_result result, const char *format, ...)
{
    char reason[128];
    va_list args;
    control->failures++;
    if (first_time(control, (unsigned)result + 8u * command)) {
        va_start(args, format);
        vsnprintf(reason, sizeof(reason), format, args);
        va_end(args);
        log_warn("virtio", "control queue: %s: %s", command_text[command], reason);
    }
    return result;
}

/* Makes the command that lies in the memory available to the device. False: the ring is broken. */
static bool submit(struct control *control, uint32_t n)
{
    struct control_memory *memory = control->memory;
    struct virtq_buf piece[3] = { { (uint64_t)(uintptr_t)&memory->header, sizeof(memory->header) } };
    uint16_t out = 1;
    if (n > 0 && virtqueue_max_pieces(&control->vq) >= 3)
        piece[out++] = (struct virtq_buf){ (uint64_t)(uintptr_t)memory->data, n };
    else
        piece[0].len += n; /* how a message is cut into pieces is the driver's choice (2.6.4) */
    piece[out] = (struct virtq_buf){ (uint64_t)(uintptr_t)&memory->answer, sizeof(memory->answer) };
    if (virtqueue_add(&control->vq, piece, out, 1, memory) != VIRTQ_OK)
        return false;
    if (virtqueue_publish(&control->vq))
        control->transport->ops->notify(control->transport, &control->vq);
    return true;
}

/* Waits for the command to come back. CONTROL_OK: it has, *written as the device says. */
static enum control_result await(struct control *control, uint32_t *written)
{
    uint64_t start = clock_ns(), bad_used = control->vq.stats.bad_used;
    for (;;) {
        /* The time first, then the queue: a guest that was stopped for long still finds an answer that is there. */
        bool late = clock_ns() - start >= CONTROL_DEADLINE_NS;
        if (virtqueue_pop(&control->vq, written) != NULL)
            return CONTROL_OK;
        if (control->vq.stats.bad_used != bad_used)
            return CONTROL_NONSENSE; /* what it returned is not the command, the only thing it has */
        if (late)
            return CONTROL_TIMEOUT;
        cpu_relax();
    }
}

/* What the answer is worth, once the command is back. */
static enum control_result judge(struct control *control, enum command command, uint32_t written, bool length_fault)
{
    uint8_t answer = *(volatile uint8_t *)&control->memory->answer;
    control->answer = answer;
    if (length_fault) {
        /* Some devices count descriptors here, or what they read. More than the answer's byte includes it. */
        if (first_time(control, KIND_LENGTH))
            log_warn("virtio", "control queue: the device says it wrote %u bytes where there is room for 1: ignored",
                     control->vq.fault.value);
    } else if (written == 0) {
        return fail(control, command, CONTROL_NONSENSE, "the device wrote no answer (used length 0)");
    }
    if (answer == VIRTIO_NET_OK)
        return CONTROL_OK;
    if (answer == VIRTIO_NET_ERR)
        return fail(control, command, CONTROL_REFUSED, "refused by the device");
    return fail(control, command, CONTROL_NONSENSE, "the device answered %u, valid are 0 (OK) and 1 (ERR)", answer);
}

/* No answer, or a ring broken. The command may still be with the device, which may write its answer at any time: the
 * memory is not used again. */
static enum control_result give_up(struct control *control, enum command command, enum control_result result)
{
    const struct virtq_fault *fault = &control->vq.fault;
    control->open = false;
    if (result == CONTROL_TIMEOUT)
        return fail(control, command, result, "no answer within %u ms: the queue is given up",
                    (unsigned)(CONTROL_DEADLINE_NS / 1000000));
    return fail(control, command, result, "the device wrote used %s %u, valid is up to %u: the queue is given up",
                fault->kind == VIRTQ_FAULT_ID ? "id" : "index", fault->value, fault->limit);
}

enum control_result control_run(struct control *control, uint8_t class, uint8_t command, const void *data, uint32_t n)
{
    struct control_memory *memory = control->memory;
    enum command known = command_of(class, command);
    uint32_t written = 0;
    control->commands++;
    if (!control->open)
        return fail(control, known, CONTROL_CLOSED, "there is no control queue, or it was given up");
    if (n > CONTROL_DATA_MAX || virtqueue_max_pieces(&control->vq) < 2)
        return fail(control, known, CONTROL_TOO_LONG, "%u bytes in a ring of %u; valid are %u bytes, a ring of 2", n,
                    control->vq.size, CONTROL_DATA_MAX);
    memory->header = (struct virtio_net_ctrl_hdr){ .class = class, .cmd = command };
    if (n > 0)
        memcpy(memory->data, data, n);
    memory->answer = CONTROL_NO_ANSWER;
    uint64_t bad_used = control->vq.stats.bad_used;
    enum control_result result = submit(control, n) ? await(control, &written) : CONTROL_NONSENSE;
    if (result != CONTROL_OK)
        return give_up(control, known, result);
    return judge(control, known, written, control->vq.stats.bad_used != bad_used);
}

enum control_result control_set_pairs(struct control *control, uint16_t pairs)
{
    struct virtio_net_ctrl_mq set = { .virtqueue_pairs = pairs };
    if (pairs < VIRTIO_NET_CTRL_MQ_VQ_PAIRS_MIN || pairs > VIRTIO_NET_CTRL_MQ_VQ_PAIRS_MAX)
        return fail(control, PAIRS_SET, CONTROL_REFUSED, "%u queue pairs; valid are 1 to %u", pairs,
                    VIRTIO_NET_CTRL_MQ_VQ_PAIRS_MAX);
    return control_run(control, VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &set, sizeof(set));
}

/* What a driver must not ask for (5.1.6.5.7.1, 5.1.4): a longer key or other hash types than the device has. */
static bool hash_allowed(struct control *control, enum command command, const struct rss_limits *limits,
                         uint32_t hash_types)
{
    if (limits->max_key_size < CONTROL_RSS_KEY) {
        fail(control, command, CONTROL_REFUSED, "the device takes hash keys of at most %u bytes, ours has %u",
             limits->max_key_size, CONTROL_RSS_KEY);
        return false;
    }
    if (hash_types & ~limits->hash_types) {
        fail(control, command, CONTROL_REFUSED, "the device hashes by types %x, asked for were %x", limits->hash_types,
             hash_types);
        return false;
    }
    return true;
}

/* Copies the table, whose entries must be enabled pairs. */
static bool fill_table(struct control *control, struct rss_config *config, const uint8_t *table, uint16_t pairs)
{
    for (unsigned i = 0; i < CONTROL_RSS_TABLE; i++) {
        if (table[i] >= pairs || pairs > VIRTIO_NET_CTRL_MQ_VQ_PAIRS_MAX) {
            fail(control, RSS_CONFIG, CONTROL_REFUSED, "indirection table entry %u is pair %u, of %u", i, table[i],
                 pairs);
            return false;
        }
        config->table[i] = table[i];
    }
    return true;
}

enum control_result control_set_rss(struct control *control, const struct rss_limits *limits,
                                    const uint8_t key[CONTROL_RSS_KEY], const uint8_t table[CONTROL_RSS_TABLE],
                                    uint16_t pairs, uint32_t hash_types)
{
    struct rss_config config = {
        .hash_types = hash_types,
        .table_mask = CONTROL_RSS_TABLE - 1,
        .max_tx_vq = pairs,
        .key_length = CONTROL_RSS_KEY,
    };
    if (!hash_allowed(control, RSS_CONFIG, limits, hash_types) || !fill_table(control, &config, table, pairs))
        return CONTROL_REFUSED;
    if (limits->max_table_length < CONTROL_RSS_TABLE)
        return fail(control, RSS_CONFIG, CONTROL_REFUSED,
                    "the device takes indirection tables of at most %u entries, ours has %u", limits->max_table_length,
                    CONTROL_RSS_TABLE);
    memcpy(config.key, key, CONTROL_RSS_KEY);
    return control_run(control, VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_RSS_CONFIG, &config, sizeof(config));
}

enum control_result control_set_hash(struct control *control, const struct rss_limits *limits,
                                     const uint8_t key[CONTROL_RSS_KEY], uint32_t hash_types)
{
    struct hash_config config = { .hash_types = hash_types, .key_length = CONTROL_RSS_KEY };
    if (!hash_allowed(control, HASH_CONFIG, limits, hash_types))
        return CONTROL_REFUSED;
    memcpy(config.key, key, CONTROL_RSS_KEY);
    return control_run(control, VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_HASH_CONFIG, &config, sizeof(config));
}

enum control_result control_announce_ack(struct control *control)
{
    return control_run(control, VIRTIO_NET_CTRL_ANNOUNCE, VIRTIO_NET_CTRL_ANNOUNCE_ACK, NULL, 0);
}

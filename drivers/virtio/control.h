/* The control virtqueue (virtio 1.3, 5.1.6.5): commands, each with a deadline, each reply checked. Core 0 only.
 * Compiles on the host. */
#ifndef RINGSIDE_VIRTIO_CONTROL_H
#define RINGSIDE_VIRTIO_CONTROL_H
#include <stdbool.h>
#include <stdint.h>
#include "drivers/virtio/transport.h"

#define CONTROL_DATA_MAX    512           /* bytes of a command's data: an RSS configuration has 8 + 256 + 3 + 40 */
#define CONTROL_DEADLINE_NS 1000000000ull /* a device that has not answered by then does not */
#define CONTROL_RSS_TABLE   128
#define CONTROL_RSS_KEY     40
#define CONTROL_NO_ANSWER   0xa5 /* in the answer's place before the device writes it: neither OK nor ERR */

enum control_result {
    CONTROL_OK,
    CONTROL_REFUSED,  /* the device answered VIRTIO_NET_ERR */
    CONTROL_NONSENSE, /* it answered neither OK nor ERR, wrote no answer, or broke the ring's rules (given up) */
    CONTROL_TIMEOUT,  /* no answer in time: the queue is given up, every later command gets CONTROL_CLOSED */
    CONTROL_CLOSED,   /* no control queue, or given up */
    CONTROL_TOO_LONG, /* more data than CONTROL_DATA_MAX, or a ring of less than two descriptors */
};

struct control {
    struct virtio_transport *transport;
    struct virtqueue vq;
    bool open;
    uint64_t commands, failures;
    uint8_t answer;                /* what was found where the last one belongs; CONTROL_NO_ANSWER before any */
    uint64_t reported;             /* a bit per command and kind of failure that is on the console */
    struct control_memory *memory; /* what the device reads and writes: header, data, answer */
};

/* Bytes that control_init() wants for the command's memory, beside the ring's virtqueue_split_bytes(). */
size_t control_bytes(void);

/* Takes over a control queue whose ring is set up in control->vq; `memory` is control_bytes() long, 64-byte aligned,
 * and stays where the device can reach it. */
void control_init(struct control *control, struct virtio_transport *transport, void *memory);

/* Runs one command to its end: class, command, `n` bytes of data. On anything but CONTROL_OK the reason is on the
 * console, once per command and kind of failure. It goes to the device as three pieces (header, data, answer), which
 * take three descriptors or one with an indirect table; in a ring of two, header and data are one piece. (5.1.6.5) */
enum control_result control_run(struct control *control, uint8_t class, uint8_t command, const void *data, uint32_t n);

/* VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET: use `pairs` queue pairs (1..0x8000; else CONTROL_REFUSED without asking), with
 * automatic receive steering. (5.1.6.5.6) */
enum control_result control_set_pairs(struct control *control, uint16_t pairs);

/* What a device with VIRTIO_NET_F_RSS or HASH_REPORT can do (its configuration space; 5.1.4). */
struct rss_limits {
    uint8_t max_key_size;
    uint16_t max_table_length;
    uint32_t hash_types;
};

/* VIRTIO_NET_CTRL_MQ_RSS_CONFIG: key, indirection table over queue pairs 0..pairs-1 (table[i] is the pair's number),
 * hash types (VIRTIO_NET_RSS_HASH_TYPE_*); the number of pairs is part of it, and what cannot be hashed goes to pair 0.
 * Returns CONTROL_REFUSED without asking when the device's limits do not allow the key, the table or a hash type, or
 * the table names a pair that is not enabled. (5.1.6.5.7.1) */
enum control_result control_set_rss(struct control *control, const struct rss_limits *limits,
                                    const uint8_t key[CONTROL_RSS_KEY], const uint8_t table[CONTROL_RSS_TABLE],
                                    uint16_t pairs, uint32_t hash_types);

/* VIRTIO_NET_CTRL_MQ_HASH_CONFIG: hash reporting without steering. (5.1.6.5.6.4) */
enum control_result control_set_hash(struct control *control, const struct rss_limits *limits,
                                     const uint8_t key[CONTROL_RSS_KEY], uint32_t hash_types);

/* VIRTIO_NET_CTRL_ANNOUNCE_ACK. (5.1.6.5.4) */
enum control_result control_announce_ack(struct control *control);

/* "refused", "timed out", ... for the console. */
const char *control_result_text(enum control_result result);
#endif

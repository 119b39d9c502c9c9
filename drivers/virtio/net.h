/* The virtio network device (virtio 1.3, 5.1): headers, receive buffers, transmit slots, link status. Knows no lwIP:
 * the netif glue (net/netif.c) sits on top.
 *
 * One queue pair belongs to one core, with everything it needs: its two virtqueues, its receive buffers, its transmit
 * slots. */
#ifndef RINGSIDE_VIRTIO_NET_H
#define RINGSIDE_VIRTIO_NET_H
#include <stdbool.h>
#include <stdint.h>
#include <linux/virtio_net.h>
#include "drivers/virtio/control.h"
#include "drivers/virtio/device.h"
#include "kernel/pci_host.h"

#define VIRTNET_HEADER      12 /* bytes of the header of a VERSION_1 device (5.1.6), */
#define VIRTNET_HEADER_HASH 20 /* and with VIRTIO_NET_F_HASH_REPORT */
#define VIRTNET_MAX_PAIRS   64 /* one per core */
#define VIRTNET_MTU_MIN     68 /* RFC 791: no IPv4 below */
#define VIRTNET_MTU_DEFAULT 1500
#define VIRTNET_GSO_FRAME                                                                                              \
    65589 /* bytes of the largest frame with GUEST_TSO or USO (1.4, 5.1.9.3.1: 65,601 with the header) */
#define VIRTNET_GSO_UDP_L4   5  /* a gso_type that the uapi headers of linux-libc-dev 6.1 do not name (5.1.6) */
#define VIRTNET_RX_HUGE      32 /* so many of them at most are posted where each needs a buffer of its own */
#define VIRTNET_FRAME_PIECES 35 /* receive buffers in one frame: 65,609 bytes over buffers of 1,984, and one more */
#define VIRTNET_TX_PIECES    20 /* pieces of a frame to send; longer chains are copied together by the caller */
#define VIRTNET_WATCH_NS     500000000u /* how often virtnet_watch() is to be called */
#define VIRTNET_INLINE       288 /* bytes in a transmit slot: header and the start of the frame, or all of a short one */
#define VIRTNET_INLINE_WHOLE                                                                                           \
    1552 /* without VIRTIO_F_INDIRECT_DESC: or all of one of up to 1,532 bytes, not segmented */

/* A receive buffer. The device writes into data[]; the glue keeps its own state of the buffer in owner[]. */
struct rx_buffer {
    struct rx_pool *pool;
    struct rx_buffer *next;         /* while free */
    _Alignas(16) uint8_t owner[48]; /* with the two pointers: one cache line */
    _Alignas(16) uint8_t data[];
};

/* The receive buffers of a queue pair: those not with the device and not with the stack, last in first out. */
struct rx_pool {
    struct rx_buffer *free;
    uint32_t free_count, total;
    uint32_t low;               /* with fewer free ones than that, what the stack would keep for long is copied */
    uint32_t data_size;         /* bytes of data[] */
    _Alignas(64) uint16_t home; /* the core it belongs to; on a line of its own, since other cores read it */
};

/* A received frame: its buffers, in order. The first one's data begins with the header. */
struct virtnet_frame {
    uint16_t count;
    uint32_t bytes; /* without the header; as virtnet_receive() counted them */
    struct rx_buffer *buffer[VIRTNET_FRAME_PIECES];
    uint32_t length[VIRTNET_FRAME_PIECES]; /* bytes written into each, the first one's header included */
    uint8_t flags;               /* VIRTIO_NET_HDR_F_*, checked against the frame and what was negotiated, and */
#define VIRTNET_FRAME_LARGE 0x80 /* none of the header's: the frame stands for several (gso_type) */
#define VIRTNET_FRAME_UDP   0x40 /* nor this: and those are datagrams, with gso_size bytes of data each */
    uint8_t hash_report;         /* VIRTIO_NET_HASH_REPORT_*; 0: the device gives no hash */
    uint32_t hash;
    uint16_t gso_size; /* with VIRTNET_FRAME_LARGE only; not 0 */
};

/* Room for one frame that is being sent: the header, and what the driver changes of the frame or copies. */
struct tx_slot {
    void *token;                 /* the glue's, given back on completion; NULL: nothing to give back */
    struct tx_slot *next;        /* while free */
    _Alignas(16) uint8_t data[]; /* of the pair's slot_room */
};

struct virtnet_rx_stats {
    uint64_t packets, bytes;
    uint64_t gso;         /* packets that stand for several (GUEST_TSO, GUEST_USO) */
    uint64_t no_buffer;   /* refills cut short because the pool was empty */
    uint64_t short_frame; /* dropped: shorter than header and Ethernet header */
    uint64_t num_buffers; /* dropped: num_buffers is 0, too large, or its buffers are missing */
    uint64_t bad_header;  /* dropped: flags or gso_type not negotiated, or checksum offsets outside the frame */
    uint64_t interrupts;
    uint64_t nudges;         /* notifications of other pairs' receive queues: see virtnet_meet() */
    uint64_t kicks_repeated; /* see virtnet_watch() */
};

struct virtnet_tx_stats {
    uint64_t packets, bytes, interrupts;
    uint64_t gso;            /* packets that the device cuts into several (HOST_TSO, HOST_USO) */
    uint64_t no_room;        /* frames dropped because the ring was full (applications without a stack) */
    uint64_t kicks_repeated; /* see virtnet_watch() */
};

/* Where interrupts come from. */
enum virtnet_interrupts {
    VIRTNET_PER_QUEUE, /* a vector per queue, sent to its core */
    VIRTNET_PER_PAIR,  /* a vector per pair */
    VIRTNET_TWO,       /* one for all queues, one for the configuration; core 0 wakes the others */
    VIRTNET_ONE,       /* one for everything */
    VIRTNET_INTX,      /* the pin's, through the 8259 */
    VIRTNET_POLLED,    /* none */
};

struct virtnet_pair {
    struct virtnet *net;
    uint16_t number;
    uint16_t header;      /* bytes of the virtio-net header */
    uint16_t refill_from; /* receive buffers are posted when the ring has room for so many */
    uint16_t slot_room;   /* bytes in a transmit slot: VIRTNET_INLINE or VIRTNET_INLINE_WHOLE */
    struct virtqueue rx, tx;
    struct rx_pool pool;
    struct tx_slot *free_slot;
    struct virtnet_rx_stats rx_stats;
    struct virtnet_tx_stats tx_stats;
    bool fault_reported[2];  /* of rx, tx: a ring's fault goes to the console once, */
    bool broken_reported[2]; /* and so does its end */
    bool kick_owed;          /* buffers were shown before the device could be told */
    struct {                 /* virtnet_watch()'s; times in ns */
        uint64_t tx_since;   /* since when tx.last_used is tx_last and something is owed; 0: nothing is */
        uint64_t rx_since;   /* the first look since the device was told of buffers that it waited for; 0: none yet */
        uint16_t tx_last;
        uint64_t rx_from; /* with more buffers popped than this the device has used one of those, */
        bool rx_told;     /* and until then this is true */
        bool reported;
    } watch;
};

/* The device as one core sees it. What core 0 finds out by virtnet_probe() the others copy (virtnet_attach()); `pair`
 * is the core's own. */
struct virtnet {
    struct virtio_transport transport;
    struct pci_device pci;
    struct msix msix;
    uint64_t features; /* acknowledged */
    uint8_t mac[6];
    uint16_t mtu;
    uint16_t ring_max;  /* ring= of the boot line, 0: the device's */
    bool tx_next;       /* see virtnet_sleep() */
    bool trace;         /* the queues' operations are recorded (drivers/virtio/recorder.h) */
    uint16_t max_pairs; /* the device's: its control queue has index 2 * max_pairs (5.1.2) */
    uint16_t pairs;     /* in use */
    bool rss_on;        /* the device steers by our key and table */
    bool control_lost;  /* a command was not answered in time: it may still take effect */
    const struct virtnet_pair *other[VIRTNET_MAX_PAIRS]; /* see virtnet_meet() */
    uint16_t others;
    struct rss_limits rss;
    uint16_t ring_size[VIRTNET_MAX_PAIRS][2]; /* of each pair's receive and transmit queue, as chosen */
    struct control control;                   /* core 0's, */
    void *control_ring, *control_memory;      /* and its memory, made once */
    enum virtnet_interrupts interrupts;
    volatile bool config_changed; /* set by the interrupt; cleared by who looks (net/loop.c) */
    volatile uint64_t config_interrupts;
    void (*on_shared_interrupt)(void); /* called when an interrupt may be about other cores' queues */
    struct virtnet_pair pair;
};

/* Finds the structures of `pci`, resets the device, negotiates and reads its configuration, up to FEATURES_OK (3.1.1,
 * steps 1 to 6); chooses the ring sizes of at most `want` pairs; net->max_pairs says how many there can be. On false
 * *error says what is wrong, with register and value. Core 0 only. */
bool virtnet_probe(struct virtnet *net, const struct pci_device *pci, const struct feature_request *request,
                   uint16_t ring_max, uint16_t want, struct virtio_error *error);

/* Core 0, before the others attach: `pairs` (1..net->pairs) are going to be used; how interrupts are given out follows
 * from it. */
void virtnet_plan(struct virtnet *net, uint16_t pairs);

/* On another core: takes over what core 0 found out. */
void virtnet_attach(struct virtnet *net, const struct virtnet *probed);

/* Makes the core's own pair: rings, buffers, slots, posted receive buffers, which the device finds there when it is let
 * go; installs its interrupt handlers. */
bool virtnet_layout(struct virtnet *net, uint16_t number, struct virtio_error *error);

/* What virtnet_start() gets to know of each pair. */
struct virtnet_peer {
    const struct virtnet_pair *pair;
    uint32_t apic_id;
};

/* Tells the device of all pairs' queues, in the order of `peer`, and of the control queue, and lets it go (steps 7 and
 * 8). Then sets the number of pairs, or RSS with `key` and `table`; if the device refuses, one pair is used, and the
 * console says so: see net->pairs. Core 0 only. */
bool virtnet_start(struct virtnet *net, const struct virtnet_peer *peer, uint16_t pairs, const uint8_t *key,
                   const uint8_t *table, struct virtio_error *error);

/* On every core once the device runs, where it steers (rss_on): the `count` pairs of the other cores, whose receive
 * queues the device is told of too whenever this core's had run dry. Frames come to QEMU by the queues of the host's
 * tap; one that its RSS moves to a queue without buffers stops the tap queue it came by, which goes on only at a
 * notification of the receive queue with that tap queue's number. */
void virtnet_meet(struct virtnet *net, const struct virtnet_pair *const other[], uint16_t count);

/* For the console: "msix per queue", ... */
const char *virtnet_interrupts_name(const struct virtnet *net);

static inline bool virtnet_has(const struct virtnet *net, unsigned bit)
{
    return (net->features & FEATURE_BIT(bit)) != 0;
}

/* True if packets of up to 64 KiB may come in. */
static inline bool virtnet_gets_gso(const struct virtnet *net)
{
    return (net->features & (FEATURE_BIT(VIRTIO_NET_F_GUEST_TSO4) | FEATURE_BIT(VIRTIO_NET_F_GUEST_TSO6) |
                             FEATURE_BIT(VIRTIO_NET_F_GUEST_USO4_BIT) | FEATURE_BIT(VIRTIO_NET_F_GUEST_USO6_BIT))) != 0;
}

/* Link state as the device says it; up when the device has no VIRTIO_NET_F_STATUS (5.1.4). */
bool virtnet_link_up(struct virtnet *net);

/* Takes the next frame. Returns false when there is none; frames that fail a check are dropped and counted on the way.
 * The frame's buffers are the caller's until virtnet_release(). (5.1.6.4) */
bool virtnet_receive(struct virtnet_pair *pair, struct virtnet_frame *frame);

/* Gives a buffer back to its pool. */
void virtnet_release(struct rx_buffer *buffer);

/* Posts free buffers until the ring is full or the pool is empty; the device sees them with the next virtnet_flush().
 */
void virtnet_refill(struct virtnet_pair *pair);

/* Makes the posted buffers visible before the device runs, when it must not be told yet (3.1.1): the first
 * virtnet_flush() tells it. A device that steers needs them from the start: a frame for a queue without buffers can
 * hold up the frames for all others. */
void virtnet_show(struct virtnet_pair *pair);

/* A slot to build a frame in, with its header cleared, of which nothing behind struct virtio_net_hdr_v1 is to be
 * written; NULL: all are in use (the ring is full). */
struct tx_slot *virtnet_slot(struct virtnet_pair *pair);

/* The header at the start of a slot's data. */
static inline struct virtio_net_hdr_v1 *virtnet_header(struct tx_slot *slot)
{
    return (struct virtio_net_hdr_v1 *)slot->data;
}

/* Queues the frame: `inline_bytes` of the slot (the header counted in), then `count` pieces. slot->token is handed to
 * done() of virtnet_reclaim() when the device has it no longer. False: no room (the slot is free again, nothing was
 * queued). (5.1.6.2) */
bool virtnet_send(struct virtnet_pair *pair, struct tx_slot *slot, uint32_t inline_bytes,
                  const struct virtq_buf *pieces, uint16_t count);

/* Takes back at most `budget` frames that the device has sent; calls done(token) for each that has one. Returns how
 * many. */
unsigned virtnet_reclaim(struct virtnet_pair *pair, unsigned budget, void (*done)(void *token));

/* Makes all that was queued visible; at most one doorbell per queue. */
void virtnet_flush(struct virtnet_pair *pair);

/* Before sleeping: asks for interrupts: of receive when `rx_after` buffers have been used (1 or more; at most 3/4 of
 * those that the device has), of transmit only if `want_tx` (something waits for room), and then when 3/4 of what is
 * under way has been sent, or with net->tx_next when the next frame has. True: nothing (not so much) arrived meanwhile,
 * it is safe to sleep. After waking: virtnet_awake(). */
bool virtnet_sleep(struct virtnet_pair *pair, bool want_tx, uint16_t rx_after);
void virtnet_awake(struct virtnet_pair *pair);

/* To be called every VIRTNET_WATCH_NS, `now` in ns: a notification may have been lost. Frames to send of which none has
 * come back for a second are a reason to notify the device again, each time until one does; so are receive buffers that
 * it waited for and was told of a second ago, until it uses one of them (mostly there is just nothing to receive). Not
 * where the device wants no notifications at all (2.7.10.1). */
void virtnet_watch(struct virtnet_pair *pair, uint64_t now);

/* A token of virtqueue_pop() or virtqueue_detach() of the transmit queue: the slot is free again, after done() if there
 * is a token in it. */
void virtnet_finish(struct virtnet_pair *pair, void *token, void (*done)(void *token));

/* Reset, in three steps (2.4, 3.1.1). First, on core 0 when no core touches its rings any more: resets the device and
 * negotiates the same features again; false: *error says what it refused. Then, on every core, once the device is
 * reset: takes back what it had (received buffers go to the pool, for what was to be sent sent() is called), and lays
 * the rings out anew, filled. Then virtnet_start() on core 0. */
bool virtnet_reset(struct virtnet *net, struct virtio_error *error);
void virtnet_take_back(struct virtnet_pair *pair, void (*sent)(struct virtnet_pair *pair, void *token));
void virtnet_relay(struct virtnet *net);

/* True if the device says that it needs a reset; *status is its device_status then. Reads a register. (2.1.2) */
bool virtnet_needs_reset(struct virtnet *net, uint8_t *status);

/* Reports a ring's first fault on the console, once, with register and value; and that it is broken, if it is. */
void virtnet_report_faults(struct virtnet_pair *pair);
#endif

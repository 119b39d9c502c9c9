/* The bench on which the checks of a device stand: the driver's own layers below the network device (transport, device,
 * ring, control), so that one boot can reset the device and bring it up again many times with chosen features, ring
 * sizes, pairs and vectors. Core 0 only, no stack, nothing happens by itself: what a check does not do is not done.
 *
 *     if (!rig_up(&(struct rig_options){ .features = rig_bit(VIRTIO_NET_F_MRG_RXBUF), .ring = 16 }))
 *         return rig_failed();
 *     ... rig_send(0, ...), rig_receive(&frame, 100), rig_take(rig_tx(0), &used) ...
 *
 * Memory for rings and buffers comes from one arena, taken once and started anew by each rig_up(). */
#ifndef RINGSIDE_CONFORM_RIG_H
#define RINGSIDE_CONFORM_RIG_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>
#include "apps/conform/tap.h"
#include "drivers/virtio/control.h"
#include "drivers/virtio/device.h"
#include "drivers/virtio/features.h"
#include <linux/virtio_pci.h>
#include "kernel/pci_host.h"
#include "kernel/x86.h"

#define RIG_MAX_PAIRS  16
#define RIG_MAX_QUEUES (2 * RIG_MAX_PAIRS)
#define RIG_PIECES     64 /* the most pieces of a buffer */
#define RIG_GAP        16 /* bytes between two pieces, and behind the last: nobody may write there */
#define RIG_FRAME_MAX  65600
#define rig_bit(bit)   FEATURE_BIT(bit)

/* Address of a field of the common configuration structure (4.1.4.3), for mmio_read16() and the like. */
#define RIG_COMMON(field) (rig.transport.common + offsetof(struct virtio_pci_common_cfg, field))

/* How to bring the device up. All zero: VERSION_1 alone, one pair, rings of 256, MSI-X as far as it goes, 32 buffers.
 */
struct rig_options {
    uint64_t features; /* to accept, as far as offered and with what they depend on; VERSION_1 always is */
    uint16_t ring;     /* descriptors of each receive and transmit queue; 0: 256; at most the device's */
    uint16_t pairs;    /* queue pairs to set up; 0: 1; at most the device's and RIG_MAX_PAIRS */
    bool pairs_unset;  /* leaves out VQ_PAIRS_SET, which comes with more than one pair otherwise */
    uint16_t indirect; /* the most pieces of an indirect table; 0: none are used. Needs the feature. */
    uint16_t post;     /* receive buffers per pair; 0: 32 or what the ring takes; RIG_POST_NONE: none */
    uint32_t buffer;   /* bytes of each, with the header; 0: 2,048; at most RIG_FRAME_MAX */
    uint16_t pieces;   /* of each; 0: 1 */
    bool no_vectors;   /* MSI-X is on, every queue has NO_VECTOR */
    bool intx;         /* MSI-X is off */
    bool not_ok;       /* stops before DRIVER_OK; rig_go() does that */
};
#define RIG_POST_NONE 0xffff

/* A buffer that is, or was, with the device: pieces of `length` bytes (the last may be shorter), each followed by a
 * gap. */
struct rig_buffer {
    struct rig_buffer *next; /* while free */
    uint32_t bytes;          /* of all pieces: room of a receive buffer, header and frame of one that was sent */
    uint32_t length;         /* of a piece */
    uint32_t capacity;       /* bytes of data[] */
    uint32_t number;         /* 0, 1, 2, ... in the order in which its queue got them */
    uint16_t pieces;
    _Alignas(16) uint8_t data[];
};

/* A used entry as it lies in the ring. */
struct rig_used {
    uint32_t id, len;          /* what the device wrote */
    uint32_t room;             /* bytes that it may have written into this buffer */
    struct rig_buffer *buffer; /* NULL: the id is none of a buffer that is with the device */
};

/* What the entries of one queue had wrong since rig_up(); the values are the first ones'. */
struct rig_facts {
    uint32_t taken;
    uint32_t bad_id, bad_id_value;
    uint32_t bad_length, bad_length_value, bad_length_room;
    uint32_t out_of_order, order_got, order_expected; /* numbers of buffers; wrong only with IN_ORDER */
    uint32_t index_jump, index_value, index_limit;    /* used idx beyond what was made available: the queue is dead */
    uint32_t overrun;                                 /* gaps that were written to */
};

struct rig_queue {
    struct virtqueue vq;  /* stats.kicks: publishes after which the device wanted a kick; kicks_suppressed: did not */
    uint16_t max;         /* the device's largest size */
    uint16_t entry;       /* of interrupts: see rig_interrupts() */
    uint32_t given, back; /* buffers: given to the device, and the number of the next one back if it is in order */
    uint32_t batches;     /* used entries that stood for several buffers (IN_ORDER) */
    struct rig_facts facts;
    struct rig_buffer *free;
};

/* A received frame, put together from its buffers. */
struct rig_frame {
    uint16_t pair, buffers;
    uint32_t bytes;                       /* without the header */
    const uint8_t *data;                  /* valid until the next rig_receive() */
    struct virtio_net_hdr_v1_hash header; /* the hash is 0 without HASH_REPORT */
    uint32_t first;                       /* used length of the first buffer */
    bool torn;                            /* fewer buffers came than num_buffers says, within 100 ms */
    bool late;                            /* not all were used at once */
    bool gaps;                            /* a buffer before the last was not full */
};

/* How to send; all zero: one piece, header all zero, told to the device if it wants that. */
struct rig_sending {
    uint16_t pieces;                        /* 0: 1. The header is cut like everything else */
    const struct virtio_net_hdr_v1 *header; /* NULL: zeros */
    bool quiet;                             /* not published: rig_publish() does that for many */
};

enum rig_kick { RIG_KICK_WANTED, RIG_KICK_NEVER, RIG_KICK_ALWAYS };

struct rig {
    struct virtio_transport transport;
    struct pci_device pci;
    struct msix msix;
    uint64_t offered;    /* device_feature, as read at rig_open() */
    uint64_t off;        /* features=-x of the boot line: not accepted by rig_up(), not among rig_usable() */
    uint64_t features;   /* accepted at the last rig_up() */
    uint16_t num_queues; /* of the common configuration */
    uint16_t max_pairs;  /* 1 without MQ and RSS */
    uint16_t pairs;      /* set up at the last rig_up() */
    uint16_t header;     /* bytes: 12, or 20 with HASH_REPORT */
    uint8_t mac[6];      /* the device's, or one of ours */
    uint16_t mtu;        /* the device's, or 1,500 */
    bool up, intx;
    bool shared;               /* interrupts of different queues cannot be told apart (INTx, too few vectors) */
    bool keep;                 /* rig_receive() does not give buffers back to the device */
    struct rig_queue *queue;   /* [2 * pairs], in the arena; use rig_rx() and rig_tx() */
    struct control control;    /* open: there is a control queue */
    uint8_t *linear;           /* where frames are put together, */
    uint8_t *scratch;          /* and where a check makes one: RIG_FRAME_MAX bytes */
    struct virtio_error error; /* of the last rig_up() or rig_open() that failed */
};
extern struct rig rig;

static inline struct rig_queue *rig_rx(uint16_t pair)
{
    return &rig.queue[2 * pair];
}

static inline struct rig_queue *rig_tx(uint16_t pair)
{
    return &rig.queue[2 * pair + 1];
}

static inline bool rig_has(unsigned bit)
{
    return (rig.features & rig_bit(bit)) != 0;
}

static inline bool rig_offers(unsigned bit)
{
    return (rig.offered & rig_bit(bit)) != 0;
}

/* ---- the device (rig.c) ---- */

/* Finds the device's structures, takes the arena, reads what is offered. False: rig.error. */
bool rig_open(const struct pci_device *pci);

/* All features that the rig can work with, of those offered: no packed ring, no in-order use, nothing that needs more
 * of a driver than to leave it alone. */
uint64_t rig_usable(void);

/* What is accepted always, as far as offered: VERSION_1, and what a platform cannot do without. */
uint64_t rig_always(void);

/* Reset, negotiation, queues, vectors, DRIVER_OK, pairs, receive buffers. False: rig.error says what the device
 * refused. Whatever was up before is down. */
bool rig_up(const struct rig_options *options);

/* Sets DRIVER_OK after .not_ok, and the number of pairs. */
bool rig_go(const struct rig_options *options);

/* Resets the device (waits at most a second). False: rig.error. */
bool rig_down(void);

/* What happened lately to each queue that was used since the last rig_up(), as lines `# trace: ...` on the console: its
 * state and its last operations (docs/trace.md). */
void rig_trace(void);

/* FAIL, with rig.error as evidence. */
enum verdict rig_failed(void);

/* Reset, then only the feature negotiation: writes `features` as they are. True: FEATURES_OK stands. */
bool rig_negotiate(uint64_t features);

/* Memory of the arena, cleared, for what is to live until the next rig_up(). NULL: it is used up. */
void *rig_alloc(size_t size, size_t align);

/* A sum over all that was taken from the arena: rings and buffers among it. Another one: something has changed. */
uint32_t rig_memory_sum(void);

/* Interrupts of the queue so far (those that share its vector included), and of the configuration. Interrupts come in
 * only while a rig function waits, or at rig_look(); several of one vector may come as one. */
uint32_t rig_interrupts(const struct rig_queue *q);
uint32_t rig_config_interrupts(void);

/* ---- waiting (rig.c) ---- */

/* for (struct rig_wait w = rig_for(100); !condition && rig_waiting(&w);) ; looks once more after the time is up. */
struct rig_wait {
    uint64_t until;
    bool late;
};
struct rig_wait rig_for(unsigned ms);
bool rig_waiting(struct rig_wait *wait);

/* Lets interrupts in that are pending. */
void rig_look(void);

/* Waits without doing anything but that. */
void rig_sleep(unsigned ms);

/* ---- traffic (traffic.c) ---- */

/* Makes `count` receive buffers of `bytes` (with the header) in `pieces` available, published and told. Returns how
 * many there was room for. */
uint16_t rig_post(uint16_t pair, uint16_t count, uint32_t bytes, uint16_t pieces);

/* Sends a frame (without virtio-net header, at most RIG_FRAME_MAX). False: no room in the ring or the arena. The caller
 * takes it back, by rig_take() or rig_reclaim(). */
bool rig_send(uint16_t pair, const void *frame, uint32_t n, const struct rig_sending *how);

/* Makes all that was added visible. True: the device wanted to be told. */
bool rig_publish(struct rig_queue *q, enum rig_kick kick);

/* Takes the next used entry, raw; what is wrong with it goes into q->facts too. False: there is none. The buffer is the
 * caller's: rig_free(), or rig_again() for a receive buffer. */
bool rig_take(struct rig_queue *q, struct rig_used *used);

void rig_free(struct rig_queue *q, struct rig_buffer *buffer);
bool rig_again(struct rig_queue *q, struct rig_buffer *buffer);

/* Takes and frees all that was sent and is back. Returns how many. Waits at most `ms` until nothing is under way. */
unsigned rig_reclaim(uint16_t pair, unsigned ms);

/* Waits at most `ms` for a frame on any pair that is set up, and gives its buffers back to the device, unless rig.keep
 * says otherwise. */
bool rig_receive(struct rig_frame *frame, unsigned ms);

/* Copies a buffer's first n bytes out of its pieces. */
void rig_copy(const struct rig_buffer *buffer, void *to, uint32_t n);

/* PASS if the facts of all queues that are set up are without fault (order counts with IN_ORDER only), else FAIL with
 * the evidence. */
enum verdict rig_faultless(void);
#endif

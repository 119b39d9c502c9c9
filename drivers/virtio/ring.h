/* A virtqueue: the ring of buffers that driver and device pass to each other (virtio 1.3, 2.6 and 2.7).
 *
 * This layer knows no network and no PCI, and compiles on the host. The split layout is split.c; every layout fills in
 * the same operation table. Bus address = address: the buffers' and the ring's memory is identity-mapped (on the host,
 * a fake device reads the same pointers).
 *
 * Indices are free-running 16-bit counters, masked only where memory is accessed. Whatever the device wrote is read
 * once, checked, then used; what fails a check is counted in `stats` and the first such finding is kept in `fault` for
 * the owner to report. */
#ifndef RINGSIDE_VIRTIO_RING_H
#define RINGSIDE_VIRTIO_RING_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <linux/virtio_ring.h>

#define VIRTQUEUE_MAX_SIZE 32768 /* 2.6: the largest queue size */

/* One piece of memory of a buffer: bus address and length in bytes. */
struct virtq_buf {
    uint64_t addr;
    uint32_t len;
};

enum virtq_error {
    VIRTQ_OK = 0,
    VIRTQ_FULL = -1,     /* fewer free descriptors than the buffer needs: nothing was added, try after a pop */
    VIRTQ_TOO_LONG = -2, /* more pieces than the queue can ever take in one chain */
    VIRTQ_BROKEN = -3,   /* the device broke the ring's rules; only a reset helps */
    VIRTQ_INVALID = -4,  /* an argument is out of range */
};

/* What the device wrote wrongly. */
enum virtq_fault_kind {
    VIRTQ_FAULT_NONE = 0,
    VIRTQ_FAULT_ID,     /* used id not below the queue size, or no chain with that head is with the device */
    VIRTQ_FAULT_LENGTH, /* used length above the chain's device-writable bytes */
    VIRTQ_FAULT_INDEX,  /* used index ran ahead of what was made available: the queue is broken */
};

struct virtq_fault {
    enum virtq_fault_kind kind;
    uint32_t value; /* what the device wrote */
    uint32_t limit; /* what it had to stay below, or at most be */
};

/* All counters are totals since virtqueue_init(). */
struct virtq_stats {
    uint64_t added;            /* buffers made available */
    uint64_t popped;           /* buffers the device returned */
    uint64_t kicks;            /* publishes after which the device wanted a notification */
    uint64_t kicks_suppressed; /* publishes after which it did not */
    uint64_t full;             /* adds refused for lack of descriptors */
    uint64_t callbacks_armed;  /* times an interrupt was asked for */
    uint64_t bad_used;         /* used entries that failed a check */
};

/* State of one descriptor, kept in the driver's own memory: the device can write the descriptor table, so nothing is
 * read back from it. */
struct virtq_desc_state {
    void *token;       /* of a chain's head that is with the device; NULL: not a head in flight */
    uint32_t writable; /* bytes of the chain that the device may write */
    uint16_t next;     /* the next free descriptor, or the next one of the chain */
    uint16_t count;    /* descriptors of the chain, in its head */
};

struct virtqueue;
struct recorder;

/* One ring layout. Every operation's contract is that of the virtqueue_*() function of the same name below. */
struct virtqueue_ops {
    int (*add)(struct virtqueue *vq, const struct virtq_buf *bufs, uint16_t out, uint16_t in, void *token);
    bool (*publish)(struct virtqueue *vq);
    void *(*pop)(struct virtqueue *vq, uint32_t *len);
    bool (*pending)(const struct virtqueue *vq);
    void (*disable_callbacks)(struct virtqueue *vq);
    bool (*enable_callbacks)(struct virtqueue *vq, uint16_t after);
    void *(*detach)(struct virtqueue *vq);
};

struct virtqueue {
    const struct virtqueue_ops *ops;
    struct vring_desc *desc;
    struct vring_avail *avail;
    struct vring_used *used;
    struct virtq_desc_state *state; /* [size] */
    struct vring_desc *indirect;    /* [size][indirect_max]: the table of each head, or NULL */
    uint16_t size, mask;
    uint16_t free_head; /* first free descriptor: last in, first out, so that the warmest is taken */
    uint16_t free;      /* number of free descriptors */
    uint16_t in_flight; /* buffers that are with the device */
    uint16_t avail_idx; /* next avail entry to write; what lies from `published` to here the device does not see yet */
    uint16_t published; /* avail->idx as the device sees it, */
    uint16_t before;    /* and before that */
    uint16_t last_used; /* next used entry to read */
    uint16_t indirect_max;
    uint16_t index;            /* queue index on the device */
    volatile uint16_t *notify; /* the transport's: where the device is told */
    bool split; /* the layout: its hot operations are called directly, and so come into their callers when linked */
    bool event_idx;
    bool callbacks; /* an interrupt is asked for */
    bool broken;
    struct virtq_fault fault;
    struct virtq_stats stats;
    uint64_t earlier;          /* of stats.added: before the ring was laid out in its memory last */
    struct recorder *recorder; /* drivers/virtio/recorder.h; NULL: none */
};

/* What virtqueue_init() needs to know. */
struct virtqueue_config {
    uint16_t index; /* queue index on the device */
    uint16_t size;  /* descriptors: a power of two, 1..VIRTQUEUE_MAX_SIZE */
    bool event_idx; /* VIRTIO_F_EVENT_IDX was negotiated */
    /* VIRTIO_F_INDIRECT_DESC was negotiated: the most pieces in an indirect table; 0: none are used */
    uint16_t indirect_max;
};

/* Bytes of memory that virtqueue_init() wants for a split queue of `size` descriptors (its three areas, the state and
 * the indirect tables). */
size_t virtqueue_split_bytes(uint16_t size, uint16_t indirect_max);

/* Sets up a split virtqueue in `mem` (virtqueue_split_bytes() long, 4096-byte aligned; cleared here). Callbacks start
 * disabled. Returns VIRTQ_OK, or VIRTQ_INVALID when size is no power of two or out of range. (2.7) */
int virtqueue_split_init(struct virtqueue *vq, const struct virtqueue_config *config, void *mem);

/* The split layout's operations that run for each packet (split.c). For the functions below alone. */
int virtqueue_split_add(struct virtqueue *vq, const struct virtq_buf *bufs, uint16_t out, uint16_t in, void *token);
int virtqueue_split_add_one(struct virtqueue *vq, struct virtq_buf buf, bool in, void *token);
bool virtqueue_split_publish(struct virtqueue *vq);
void *virtqueue_split_pop(struct virtqueue *vq, uint32_t *len);
void virtqueue_split_disable_callbacks(struct virtqueue *vq);
bool virtqueue_split_enable_callbacks(struct virtqueue *vq, uint16_t after);

/* Free descriptors: a buffer that needs at most this many can be added now. */
static inline uint16_t virtqueue_capacity(const struct virtqueue *vq)
{
    return vq->free;
}

/* Descriptors that a buffer of `pieces` pieces takes: one when it goes into an indirect table, else one each. */
static inline uint16_t virtqueue_need(const struct virtqueue *vq, uint16_t pieces)
{
    return pieces > 1 && pieces <= vq->indirect_max ? 1 : pieces;
}

/* The most pieces one buffer may have: a chain, indirect or not, never exceeds the queue size (2.7.5.3.1). */
static inline uint16_t virtqueue_max_pieces(const struct virtqueue *vq)
{
    return vq->size;
}

/* Queues a buffer of `out` pieces that the device reads, followed by `in` pieces that it writes. The device sees it
 * with the next virtqueue_publish(). `token` (not NULL) comes back from virtqueue_pop(). Returns VIRTQ_OK, VIRTQ_FULL,
 * VIRTQ_TOO_LONG, VIRTQ_BROKEN or VIRTQ_INVALID; unless VIRTQ_OK nothing has changed. (2.7.13) */
static inline int virtqueue_add(struct virtqueue *vq, const struct virtq_buf *bufs, uint16_t out, uint16_t in,
                                void *token)
{
    return __builtin_expect(vq->split, 1) ? virtqueue_split_add(vq, bufs, out, in, token)
                                          : vq->ops->add(vq, bufs, out, in, token);
}

/* The same for a buffer of one piece, which the device writes if `in`, else reads. */
static inline int virtqueue_add_one(struct virtqueue *vq, struct virtq_buf buf, bool in, void *token)
{
    return __builtin_expect(vq->split, 1) ? virtqueue_split_add_one(vq, buf, in, token)
                                          : vq->ops->add(vq, &buf, !in, in, token);
}

/* Makes all that was added visible to the device. Returns true if the device wants to be notified of it: the one place
 * where that is decided. (2.7.13.3, 2.7.13.4.1, 2.7.10) */
static inline bool virtqueue_publish(struct virtqueue *vq)
{
    if (vq->avail_idx == vq->published)
        return false;
    return __builtin_expect(vq->split, 1) ? virtqueue_split_publish(vq) : vq->ops->publish(vq);
}

/* True if virtqueue_pop() would find an entry of the device's. */
static inline bool virtqueue_pending(const struct virtqueue *vq)
{
    if (__builtin_expect(vq->split, 1))
        return __atomic_load_n(&vq->used->idx, __ATOMIC_RELAXED) != vq->last_used && !vq->broken;
    return vq->ops->pending(vq);
}

/* Takes the next buffer the device has returned: its token, and in *len the bytes the device wrote. NULL: none (or the
 * queue is broken). A used entry with an unknown id is skipped and counted; one whose length exceeds what the device
 * may have written is counted and returned with *len = 0, so that the buffer is not lost. (2.7.14) */
static inline void *virtqueue_pop(struct virtqueue *vq, uint32_t *len)
{
    if (!__builtin_expect(vq->split, 1))
        return vq->ops->pop(vq, len);
    return virtqueue_pending(vq) ? virtqueue_split_pop(vq, len) : NULL;
}

/* Asks the device not to interrupt; a hint only, late interrupts can still come. (2.7.7) */
static inline void virtqueue_disable_callbacks(struct virtqueue *vq)
{
    if (!vq->callbacks)
        return;
    if (__builtin_expect(vq->split, 1))
        virtqueue_split_disable_callbacks(vq);
    else
        vq->ops->disable_callbacks(vq);
}

/* Asks for an interrupt at the next returned buffer. Returns true if it is safe to sleep: nothing has been returned
 * meanwhile. False: there is something to pop, look again. (2.7.7) */
static inline bool virtqueue_enable_callbacks(struct virtqueue *vq)
{
    return __builtin_expect(vq->split, 1) ? virtqueue_split_enable_callbacks(vq, 1) : vq->ops->enable_callbacks(vq, 1);
}

/* The same, but the interrupt may wait until `after` buffers have been returned; never for more than 3/4 of what is
 * outstanding: a buffer that has not been published cannot come back, and waiting for it would be for ever. Without
 * VIRTIO_F_EVENT_IDX it is the same as virtqueue_enable_callbacks(). Returns false if that much has been returned
 * already. (2.7.7.1) */
static inline bool virtqueue_enable_callbacks_after(struct virtqueue *vq, uint16_t after)
{
    uint16_t outstanding = (uint16_t)(vq->published - vq->last_used);
    uint16_t most = (uint16_t)((outstanding * 3u + 3u) / 4u);
    return vq->ops->enable_callbacks(vq, after < most ? after : most);
}

/* The same for 3/4 of what is outstanding. */
static inline bool virtqueue_enable_callbacks_late(struct virtqueue *vq)
{
    return virtqueue_enable_callbacks_after(vq, UINT16_MAX);
}

/* After a reset of the device or the queue: takes back one buffer that the device never returned; NULL when there is
 * none left. */
static inline void *virtqueue_detach(struct virtqueue *vq)
{
    return vq->ops->detach(vq);
}
#endif

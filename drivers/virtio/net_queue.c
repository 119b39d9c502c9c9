/* A queue pair of a virtio-net device: receive buffers, transmit slots, and the way of a frame through them. */
#include <stdio.h>
#include <string.h>
#include <linux/if_ether.h>
#include <linux/virtio_config.h>
#include "drivers/virtio/net.h"
#include "drivers/virtio/net_private.h"
#include "drivers/virtio/recorder.h"
#include "kernel/console.h"
#include "kernel/memory.h"

#define RX_BUFFER     2048u      /* bytes of a receive buffer, struct and all, */
#define RX_BUFFER_GSO 4096u      /* and where packets of up to 64 KiB may come in several */
#define RX_SPARE_MAX  512u       /* buffers beyond the ring's, for what the stack holds, */
#define RX_SPARE_ROOM (2u << 20) /* and the bytes they may take */
#define RX_LOW_MAX    64u        /* see struct rx_pool */
#define REFILL_BATCH  16u        /* a publish and its fence for so many buffers; small rings are refilled at once */
#define VLAN_TAG      4u
#define STALL_NS      1000000000u /* a queue that stands still for so long is told again */
#define CSUM_FLAGS    (VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID)
#define UDP_CSUM_AT   6 /* in its header */
#define RX_DATA_MIN   (VIRTNET_HEADER_HASH + ETH_HLEN + VLAN_TAG)

/* ---- set-up ---- */

/* Says what failed. Only the text: the device's status is core 0's. */
static bool no_memory(struct virtio_error *error, const char *what, unsigned number)
{
    snprintf(error->text, sizeof error->text, "no memory for %s %u", what, number);
    return false;
}

static bool make_queue(struct virtnet *net, struct virtqueue *vq, uint16_t index, uint16_t size, uint16_t indirect,
                       struct virtio_error *error)
{
    if (!virtnet_has(net, VIRTIO_RING_F_INDIRECT_DESC))
        indirect = 0;
    void *mem = heap_alloc_aligned(virtqueue_split_bytes(size, indirect), 4096);
    if (mem == NULL)
        return no_memory(error, "the ring of queue", index);
    struct virtqueue_config config = { index, size, virtnet_has(net, VIRTIO_RING_F_EVENT_IDX), indirect };
    return virtqueue_split_init(vq, &config, mem) == VIRTQ_OK && (!net->trace || virtnet_record(vq, error));
}

bool virtnet_record(struct virtqueue *vq, struct virtio_error *error)
{
    struct recorder *recorder = heap_alloc_aligned(sizeof *recorder, 64);
    if (recorder == NULL)
        return no_memory(error, "the record of queue", vq->index);
    recorder_attach(vq, recorder);
    return true;
}

/* Bytes of the largest frame that may come in, header and all (5.1.6.3.1). */
static uint32_t largest_frame(const struct virtnet *net)
{
    return virtnet_gets_gso(net) ? VIRTNET_HEADER_HASH + VIRTNET_GSO_FRAME : RX_DATA_MIN + net->mtu;
}

/* Bytes for a frame in a buffer. With mergeable buffers 2 or 4 KiB, struct and all, but never so few that a whole ring
 * of them is too small for the largest frame; without, that must fit into one. */
static uint32_t buffer_data(const struct virtnet *net, uint16_t ring)
{
    uint32_t own = (uint32_t)sizeof(struct rx_buffer), usual = RX_BUFFER - own, least = largest_frame(net);
    if (virtnet_has(net, VIRTIO_NET_F_MRG_RXBUF)) {
        usual = virtnet_gets_gso(net) ? RX_BUFFER_GSO - own : usual;
        least = (least + ring - 1) / ring;
    }
    return least > usual ? (least + 63u) & ~63u : usual;
}

static bool make_pool(struct virtnet_pair *pair)
{
    uint32_t data = buffer_data(pair->net, pair->rx.size), each = data + (uint32_t)sizeof(struct rx_buffer);
    uint32_t want = pair->rx.size + (RX_SPARE_ROOM / each < RX_SPARE_MAX ? RX_SPARE_ROOM / each : RX_SPARE_MAX);
    pair->pool.data_size = data;
    pair->pool.home = pair->number;
    uint64_t room = heap_stats().untouched / 2;
    uint32_t count = room / each < want ? (uint32_t)(room / each) : want;
    char *mem = heap_alloc_aligned((size_t)count * each, 64);
    if (mem == NULL || (uint64_t)count * data < largest_frame(pair->net)) /* else the device waits for more, for ever */
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct rx_buffer *b = (struct rx_buffer *)(mem + (size_t)i * each);
        b->pool = &pair->pool;
        virtnet_release(b);
    }
    pair->pool.total = count;
    pair->pool.low = count / 8 < RX_LOW_MAX ? count / 8 : RX_LOW_MAX;
    return true;
}

/* Where every piece takes a descriptor of the ring, a frame of usual length is copied and takes one: so the ring holds
 * twice as many, and a backend that copes with frames in one descriptor alone (passt) gets no others. Unless that takes
 * too much of the memory. */
static bool make_slots(struct virtnet_pair *pair)
{
    bool whole = !virtnet_has(pair->net, VIRTIO_RING_F_INDIRECT_DESC) &&
                 (uint64_t)VIRTNET_INLINE_WHOLE * pair->tx.size <= heap_stats().untouched / 4;
    pair->slot_room = whole ? VIRTNET_INLINE_WHOLE : VIRTNET_INLINE;
    size_t each = sizeof(struct tx_slot) + pair->slot_room;
    char *mem = heap_alloc_aligned(each * pair->tx.size, 64);
    if (mem == NULL)
        return false;
    for (uint16_t i = 0; i < pair->tx.size; i++) {
        struct tx_slot *slot = (struct tx_slot *)(mem + each * i);
        slot->next = pair->free_slot;
        pair->free_slot = slot;
    }
    return true;
}

bool virtnet_pair_init(struct virtnet_pair *pair, uint16_t number, struct virtio_error *error)
{
    struct virtnet *net = pair->net;
    const uint16_t *size = net->ring_size[number];
    pair->number = number;
    pair->header = virtnet_has(net, VIRTIO_NET_F_HASH_REPORT) ? VIRTNET_HEADER_HASH : VIRTNET_HEADER;
    if (!make_queue(net, &pair->rx, (uint16_t)(2 * number), size[0], 0, error) ||
        !make_queue(net, &pair->tx, (uint16_t)(2 * number + 1), size[1], VIRTNET_TX_PIECES + 1, error))
        return false;
    pair->refill_from = pair->rx.size >= 8 * REFILL_BATCH ? REFILL_BATCH : 1;
    return (make_pool(pair) && make_slots(pair)) || no_memory(error, "the buffers of queue pair", number);
}

/* ---- receive ---- */

void virtnet_release(struct rx_buffer *buffer)
{
    struct rx_pool *pool = buffer->pool;
    buffer->next = pool->free;
    pool->free = buffer;
    pool->free_count++;
}

void virtnet_refill(struct virtnet_pair *pair)
{
    struct rx_pool *pool = &pair->pool;
    while (virtqueue_capacity(&pair->rx) > 0) {
        struct rx_buffer *b = pool->free;
        if (b == NULL) {
            pair->rx_stats.no_buffer++;
            return;
        }
        struct virtq_buf piece = { (uint64_t)(uintptr_t)b->data, pool->data_size };
        if (virtqueue_add_one(&pair->rx, piece, true, b) != VIRTQ_OK)
            return;
        pool->free = b->next;
        pool->free_count--;
    }
}

static __attribute__((noinline)) void drop(const struct virtnet_frame *frame)
{
    for (uint16_t i = 0; i < frame->count; i++)
        virtnet_release(frame->buffer[i]);
}

/* Takes the rest of a frame that spans several buffers. They are returned together (5.1.6.4.1), so they are there now
 * or never. A frame with a hole is none: a buffer without bytes, a bad used entry among them. */
static __attribute__((noinline)) bool gather(struct virtnet_pair *pair, struct virtnet_frame *frame, uint16_t count)
{
    uint64_t bad_used = pair->rx.stats.bad_used;
    bool fits = count <= VIRTNET_FRAME_PIECES, whole = true;
    for (uint16_t taken = 1; taken < count; taken++) {
        uint32_t length;
        struct rx_buffer *b = virtqueue_pop(&pair->rx, &length);
        if (b == NULL)
            return false;
        if (!fits) { /* too many to keep: they go back at once */
            virtnet_release(b);
            continue;
        }
        frame->buffer[frame->count] = b;
        frame->length[frame->count++] = length;
        whole = whole && length > 0;
    }
    return fits && whole && pair->rx.stats.bad_used == bad_used;
}

static uint32_t frame_bytes(const struct virtnet_frame *frame, uint32_t header)
{
    uint32_t n = 0;
    for (uint16_t i = 0; i < frame->count; i++)
        n += frame->length[i];
    return n - header;
}

/* Datagrams of the IP version that was acknowledged. Their checksums are the device's word or yet to be made: that of
 * the whole, which is in the UDP header, is nobody's. (5.1.6.4.1) */
static bool uso_ok(const struct virtnet *net, const struct virtio_net_hdr_v1 *h, const uint8_t *frame)
{
    uint16_t type = (uint16_t)(frame[12] << 8 | frame[13]);
    bool sums = h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM ? h->csum_offset == UDP_CSUM_AT
                                                       : (h->flags & VIRTIO_NET_HDR_F_DATA_VALID) != 0;
    return sums && !(h->gso_type & VIRTIO_NET_HDR_GSO_ECN) &&
           ((type == ETH_P_IP && virtnet_has(net, VIRTIO_NET_F_GUEST_USO4_BIT)) ||
            (type == ETH_P_IPV6 && virtnet_has(net, VIRTIO_NET_F_GUEST_USO6_BIT)));
}

/* A packet that stands for several, of a kind that was acknowledged (5.1.6.4.1). By value, so that the caller may keep
 * it in registers. */
static __attribute__((noinline)) bool gso_ok(const struct virtnet_pair *pair, struct virtio_net_hdr_v1 h,
                                             const struct rx_buffer *first)
{
    const struct virtnet *net = pair->net;
    if (h.gso_size == 0 || ((h.gso_type & VIRTIO_NET_HDR_GSO_ECN) && !virtnet_has(net, VIRTIO_NET_F_GUEST_ECN)))
        return false;
    switch (h.gso_type & ~VIRTIO_NET_HDR_GSO_ECN) {
    case VIRTIO_NET_HDR_GSO_TCPV4:
        return virtnet_has(net, VIRTIO_NET_F_GUEST_TSO4);
    case VIRTIO_NET_HDR_GSO_TCPV6:
        return virtnet_has(net, VIRTIO_NET_F_GUEST_TSO6);
    case VIRTNET_GSO_UDP_L4:
        return uso_ok(net, &h, first->data + pair->header);
    default:
        return false;
    }
}

/* Checks the header against what was negotiated and against the frame, which has 14 bytes in its first buffer at least
 * (5.1.6.4.2). */
static bool header_ok(const struct virtnet_pair *pair, const struct virtio_net_hdr_v1 *h, uint32_t bytes,
                      const struct rx_buffer *first)
{
    if (h->gso_type != VIRTIO_NET_HDR_GSO_NONE && !gso_ok(pair, *h, first))
        return false;
    if (!(h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM))
        return true;
    return virtnet_has(pair->net, VIRTIO_NET_F_GUEST_CSUM) && h->csum_start >= ETH_HLEN &&
           (uint32_t)h->csum_start + h->csum_offset + 2 <= bytes;
}

/* The hash that the device worked out, where it could (5.1.6.4.3). */
static void read_hash(struct virtnet_frame *frame)
{
    const struct virtio_net_hdr_v1_hash *h = (const struct virtio_net_hdr_v1_hash *)frame->buffer[0]->data;
    frame->hash = h->hash_value;
    frame->hash_report = h->hash_report <= UINT8_MAX ? (uint8_t)h->hash_report : 0;
}

bool virtnet_receive(struct virtnet_pair *pair, struct virtnet_frame *frame)
{
    const struct virtnet *net = pair->net;
    struct rx_buffer *first;
    while ((first = virtqueue_pop(&pair->rx, &frame->length[0])) != NULL) {
        frame->buffer[0] = first;
        frame->count = 1;
        if (frame->length[0] < (uint32_t)pair->header + ETH_HLEN) {
            pair->rx_stats.short_frame++;
            drop(frame);
            continue;
        }
        struct virtio_net_hdr_v1 h; /* a copy: what has been checked stays as it is */
        memcpy(&h, first->data, sizeof h);
        uint16_t count = virtnet_has(net, VIRTIO_NET_F_MRG_RXBUF) ? h.num_buffers : 1;
        if (count == 0 || (count > 1 && !gather(pair, frame, count))) {
            pair->rx_stats.num_buffers++;
            drop(frame);
            continue;
        }
        uint32_t bytes = count == 1 ? frame->length[0] - pair->header : frame_bytes(frame, pair->header);
        if (!header_ok(pair, &h, bytes, first)) {
            pair->rx_stats.bad_header++;
            drop(frame);
            continue;
        }
        frame->flags = h.flags & CSUM_FLAGS; /* a device that vouches without GUEST_CSUM (passt) is believed too */
        frame->hash_report = 0;
        if (pair->header == VIRTNET_HEADER_HASH)
            read_hash(frame);
        frame->bytes = bytes;
        pair->rx_stats.packets++;
        if (h.gso_type != VIRTIO_NET_HDR_GSO_NONE) {
            frame->flags |=
                h.gso_type == VIRTNET_GSO_UDP_L4 ? VIRTNET_FRAME_LARGE | VIRTNET_FRAME_UDP : VIRTNET_FRAME_LARGE;
            frame->gso_size = h.gso_size;
            pair->rx_stats.gso++;
        }
        pair->rx_stats.bytes += bytes;
        return true;
    }
    return false;
}

/* ---- transmit ---- */

struct tx_slot *virtnet_slot(struct virtnet_pair *pair)
{
    struct tx_slot *slot = pair->free_slot;
    if (slot == NULL)
        return NULL;
    pair->free_slot = slot->next;
    slot->token = NULL;
    memset(slot->data, 0, VIRTNET_HEADER); /* behind it the longer one has what a device says: never written, so 0 */
    return slot;
}

static void release_slot(struct virtnet_pair *pair, struct tx_slot *slot)
{
    slot->next = pair->free_slot;
    pair->free_slot = slot;
}

/* Adds the slot's bytes and the pieces behind them; adds the pieces' bytes up. */
static __attribute__((noinline)) int add_pieces(struct virtqueue *tx, struct virtq_buf first,
                                                const struct virtq_buf *pieces, uint16_t count, struct tx_slot *slot,
                                                uint32_t *bytes)
{
    struct virtq_buf all[VIRTNET_TX_PIECES + 1];
    all[0] = first;
    for (uint16_t i = 0; i < count; i++) {
        all[i + 1] = pieces[i];
        *bytes += pieces[i].len;
    }
    return virtqueue_add(tx, all, (uint16_t)(count + 1), 0, slot);
}

bool virtnet_send(struct virtnet_pair *pair, struct tx_slot *slot, uint32_t inline_bytes,
                  const struct virtq_buf *pieces, uint16_t count)
{
    struct virtq_buf first = { (uint64_t)(uintptr_t)slot->data, inline_bytes };
    uint32_t bytes = inline_bytes - pair->header;
    int error = count == 0 ? virtqueue_add_one(&pair->tx, first, false, slot)
                           : add_pieces(&pair->tx, first, pieces, count, slot, &bytes);
    if (error != VIRTQ_OK) {
        release_slot(pair, slot);
        return false;
    }
    pair->tx_stats.packets++;
    pair->tx_stats.gso += virtnet_header(slot)->gso_type != VIRTIO_NET_HDR_GSO_NONE;
    pair->tx_stats.bytes += bytes;
    return true;
}

void virtnet_finish(struct virtnet_pair *pair, void *token, void (*done)(void *token))
{
    struct tx_slot *slot = token;
    if (slot->token != NULL)
        done(slot->token);
    release_slot(pair, slot);
}

unsigned virtnet_reclaim(struct virtnet_pair *pair, unsigned budget, void (*done)(void *token))
{
    unsigned n = 0;
    uint32_t length;
    struct tx_slot *slot;
    while (n < budget && (slot = virtqueue_pop(&pair->tx, &length)) != NULL) {
        virtnet_finish(pair, slot, done);
        n++;
    }
    return n;
}

/* ---- both ---- */

void virtnet_show(struct virtnet_pair *pair)
{
    if (virtqueue_publish(&pair->rx))
        pair->kick_owed = true; /* until it has been done */
}

/* Buffers are what counts for the watch, not used entries: some of those may have been of none, and then the device
 * seems to have used more than it has. */
static void rx_told(struct virtnet_pair *pair)
{
    const struct virtqueue *rx = &pair->rx;
    pair->watch.rx_since = 0;
    pair->watch.rx_told = true;
    /* Those that it had before; some of the new ones may have come back already. */
    pair->watch.rx_from = rx->stats.popped + rx->in_flight - (uint16_t)(rx->published - rx->before);
}

void virtnet_flush(struct virtnet_pair *pair)
{
    struct virtnet *net = pair->net;
    struct virtio_transport *t = &net->transport;
    bool dry = virtqueue_publish(&pair->rx); /* a device wants to be told when it has no buffer left */
    if (dry || pair->kick_owed) {
        t->ops->notify(t, &pair->rx);
        rx_told(pair);
    }
    for (uint16_t i = 0; dry && i < net->others; i++, pair->rx_stats.nudges++)
        t->ops->notify(t, &net->other[i]->rx);
    pair->kick_owed = false;
    if (virtqueue_publish(&pair->tx))
        t->ops->notify(t, &pair->tx);
}

bool virtnet_sleep(struct virtnet_pair *pair, bool want_tx, uint16_t rx_after)
{
    bool quiet =
        rx_after > 1 ? virtqueue_enable_callbacks_after(&pair->rx, rx_after) : virtqueue_enable_callbacks(&pair->rx);
    if (want_tx)
        quiet = (pair->net->tx_next ? virtqueue_enable_callbacks : virtqueue_enable_callbacks_late)(&pair->tx) && quiet;
    return quiet;
}

void virtnet_awake(struct virtnet_pair *pair)
{
    virtqueue_disable_callbacks(&pair->rx);
    virtqueue_disable_callbacks(&pair->tx);
}

/* ---- notifications that were lost ---- */

static bool wants_none(const struct virtqueue *vq)
{
    return !vq->event_idx && (__atomic_load_n(&vq->used->flags, __ATOMIC_RELAXED) & VRING_USED_F_NO_NOTIFY);
}

static void repeat(struct virtnet_pair *pair, struct virtqueue *vq, uint64_t *count)
{
    struct virtio_transport *t = &pair->net->transport;
    t->ops->notify(t, vq);
    recorder_note(vq, RECORDER_KICK_AGAIN);
    (*count)++;
}

/* What the device had before it was told it may return without having heard. */
static void watch_rx(struct virtnet_pair *pair, uint64_t now)
{
    if (!pair->watch.rx_told)
        return;
    if (pair->rx.stats.popped > pair->watch.rx_from)
        pair->watch.rx_told = false;
    else if (pair->watch.rx_since == 0)
        pair->watch.rx_since = now;
    else if (now - pair->watch.rx_since >= STALL_NS && !wants_none(&pair->rx))
        repeat(pair, &pair->rx, &pair->rx_stats.kicks_repeated);
}

static void say_stalled(struct virtnet_pair *pair)
{
    if (!pair->watch.reported)
        log_warn("virtio",
                 "queue %u: the device has %u frames to send and returned none for a second: notified again, and "
                 "counted from now on",
                 pair->tx.index, (uint16_t)(pair->tx.published - pair->tx.last_used));
    pair->watch.reported = true;
}

/* Entries are what counts, not buffers: one that came back under a wrong id is lost, but no longer waited for. */
static void watch_tx(struct virtnet_pair *pair, uint64_t now)
{
    struct virtqueue *vq = &pair->tx;
    if (vq->published == vq->last_used || vq->broken) {
        pair->watch.tx_since = 0;
    } else if (pair->watch.tx_since == 0 || pair->watch.tx_last != vq->last_used) {
        pair->watch.tx_since = now;
        pair->watch.tx_last = vq->last_used;
    } else if (now - pair->watch.tx_since >= STALL_NS && !wants_none(vq)) {
        say_stalled(pair);
        repeat(pair, vq, &pair->tx_stats.kicks_repeated);
    }
}

void virtnet_watch(struct virtnet_pair *pair, uint64_t now)
{
    watch_rx(pair, now);
    watch_tx(pair, now);
}

/* ---- what the device wrote wrongly ---- */

static void say_fault(const struct virtqueue *vq)
{
    if (vq->fault.kind == VIRTQ_FAULT_ID)
        log_error("virtio",
                  "queue %u: the device wrote used id %u, no buffer's that it has (ids are below %u): skipped, and "
                  "counted from now on",
                  vq->index, vq->fault.value, vq->fault.limit);
    else
        log_error("virtio",
                  "queue %u: the device wrote used length %u, valid is up to %u: taken as 0, and counted from now on",
                  vq->index, vq->fault.value, vq->fault.limit);
}

static void say_broken(const struct virtqueue *vq)
{
    log_error("virtio", "queue %u: the device wrote used index %u, valid is up to %u: the queue is broken", vq->index,
              (uint16_t)vq->used->idx, vq->published);
}

/* The first fault, and that the queue is broken, which may come of a later one. */
static void report_fault(const struct virtqueue *vq, bool *reported, bool *broken_reported)
{
    if (vq->broken && !*broken_reported)
        say_broken(vq);
    else if (!vq->broken && vq->fault.kind != VIRTQ_FAULT_NONE && !*reported)
        say_fault(vq);
    *reported = vq->fault.kind != VIRTQ_FAULT_NONE;
    *broken_reported = vq->broken;
}

void virtnet_report_faults(struct virtnet_pair *pair)
{
    report_fault(&pair->rx, &pair->fault_reported[0], &pair->broken_reported[0]);
    report_fault(&pair->tx, &pair->fault_reported[1], &pair->broken_reported[1]);
}

/* ---- after a reset of the device ---- */

void virtnet_take_back(struct virtnet_pair *pair, void (*sent)(struct virtnet_pair *pair, void *token))
{
    void *token;
    while ((token = virtqueue_detach(&pair->rx)) != NULL)
        virtnet_release(token);
    while ((token = virtqueue_detach(&pair->tx)) != NULL)
        sent(pair, token);
}

/* As new, in the same memory; what was counted and recorded stays. */
static void remake(struct virtqueue *vq)
{
    struct virtq_stats stats = vq->stats;
    struct recorder *recorder = vq->recorder;
    struct virtqueue_config config = { vq->index, vq->size, vq->event_idx, vq->indirect_max };
    virtqueue_split_init(vq, &config, vq->desc); /* a size that was good before */
    vq->stats = stats;
    vq->earlier = stats.added;
    if (recorder != NULL)
        recorder_attach(vq, recorder);
}

void virtnet_relay(struct virtnet *net)
{
    struct virtnet_pair *pair = &net->pair;
    remake(&pair->rx);
    remake(&pair->tx);
    memset(pair->fault_reported, 0, sizeof pair->fault_reported);
    memset(pair->broken_reported, 0, sizeof pair->broken_reported);
    pair->watch.tx_since = 0;
    pair->watch.rx_told = false;
    virtnet_refill(pair);
    virtnet_show(pair);
}

/* Area ring: the split virtqueue as the device uses it. */
#include <string.h>
#include "apps/conform/areas.h"
#include "apps/conform/peer.h"

#define SESSION   200   /* questions in one session */
#define WRAP      65800 /* frames that take 16-bit indices round */
#define BATCH     32
#define WRAP_MS   20000
#define BACK_MS   5000
#define LOST_MOST 20

/* A frame that nobody wants, to a station that is not there. */
static const uint8_t idle_frame[60] = { 2, 0x52, 0x53, 0, 0, 2, 2, 0x52, 0x53, 0, 0, 1, 0x88, 0xb5 };

static bool up(uint64_t features, uint16_t ring)
{
    return rig_up(&(struct rig_options){ .features = features, .ring = ring });
}

static void drop_received(void)
{
    struct rig_frame frame;
    while (rig_receive(&frame, 0))
        peer_other(&frame);
}

/* Sends `count` idle frames, all published at once, and takes them back. */
static bool idle_frames(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (!rig_send(0, idle_frame, sizeof idle_frame, &(struct rig_sending){ .quiet = true }))
            break;
    rig_publish(rig_tx(0), RIG_KICK_WANTED);
    rig_reclaim(0, BACK_MS);
    drop_received();
    return rig_tx(0)->vq.in_flight == 0;
}

static enum verdict not_back(void)
{
    const struct rig_queue *q = rig_tx(0);
    tap_note("kicks", "wanted %u, not wanted %u", (unsigned)q->vq.stats.kicks, (unsigned)q->vq.stats.kicks_suppressed);
    rig_faultless();
    return tap_fail("all come back", "%u of %u frames not used within %u ms", q->vq.in_flight, q->given, BACK_MS);
}

/* ---- used entries ---- */

/* What a session of traffic left in the facts. Questions are asked if somebody answers. */
static bool session(uint64_t features)
{
    if (!up(features, 64))
        return false;
    for (unsigned i = 0; i < SESSION; i++) {
        if (!idle_frames(1 + i % 8))
            break;
        if (peer.kind != PEER_NONE && i % 4 == 0)
            peer_ask(&(struct peer_question){ .bytes = PEER_PAYLOAD + i }, NULL);
    }
    return true;
}

static enum verdict used_ids(void)
{
    if (!session(rig_usable()))
        return rig_failed();
    for (unsigned i = 0; i < 2; i++) {
        const struct rig_facts *f = &rig.queue[i].facts;
        if (f->bad_id != 0)
            return tap_fail("the head of a chain that is with the device", "queue %u: id %u, size %u; %u of %u entries",
                            i, f->bad_id_value, rig.queue[i].vq.size, f->bad_id, f->taken);
    }
    return rig_tx(0)->facts.taken > 0 ? PASS : not_back();
}

static enum verdict used_lengths(void)
{
    if (!session(rig_usable()))
        return rig_failed();
    for (unsigned i = 0; i < 2; i++) {
        const struct rig_facts *f = &rig.queue[i].facts;
        if (f->bad_length != 0)
            return tap_fail("at most the bytes that the device may write",
                            "queue %u: length %u, room %u; %u of %u entries", i, f->bad_length_value,
                            f->bad_length_room, f->bad_length, f->taken);
    }
    return rig_tx(0)->facts.taken > 0 ? PASS : not_back();
}

static enum verdict used_index(void)
{
    if (!session(0))
        return rig_failed();
    for (unsigned i = 0; i < 2; i++) {
        const struct rig_facts *f = &rig.queue[i].facts;
        if (f->index_jump != 0)
            return tap_fail("at most what was made available", "queue %u: used idx %u, avail idx %u", i, f->index_value,
                            f->index_limit);
    }
    return rig_tx(0)->facts.taken > 0 ? PASS : not_back();
}

static enum verdict each_once(void)
{
    if (!up(0, 16))
        return rig_failed();
    for (unsigned i = 0; i < SESSION; i++)
        if (!idle_frames(1 + i % 16))
            return not_back();
    const struct rig_queue *q = rig_tx(0);
    rig_sleep(20);
    uint16_t idx = q->vq.used->idx;
    return idx == (uint16_t)q->given ? rig_faultless()
                                     : tap_fail("one for each frame", "used idx %u, %u frames", idx, q->given);
}

/* The device may write nothing but the used ring and receive buffers. */
static enum verdict readable_kept(void)
{
    uint8_t desc[16 * 64];
    if (!up(0, 64))
        return rig_failed();
    struct virtqueue *vq = &rig_tx(0)->vq;
    for (unsigned i = 0; i < BATCH; i++)
        rig_send(0, idle_frame, sizeof idle_frame, &(struct rig_sending){ .quiet = true, .pieces = 2 });
    memcpy(desc, vq->desc, sizeof desc);
    struct rig_buffer *b = vq->state[vq->avail->ring[0]].token;
    uint8_t sent[72], now[72];
    rig_copy(b, sent, sizeof sent);
    rig_publish(rig_tx(0), RIG_KICK_WANTED);
    rig_reclaim(0, BACK_MS);
    rig_copy(b, now, sizeof now);
    if (memcmp(desc, vq->desc, sizeof desc) != 0)
        return tap_fail("as the driver wrote it", "the descriptor table has changed");
    if (memcmp(sent, now, sizeof sent) != 0)
        return tap_fail("as the driver wrote it", "a frame that was sent has changed in memory");
    return vq->in_flight == 0 ? rig_faultless() : not_back();
}

/* ---- sizes and wrap ---- */

static enum verdict all_sizes(void)
{
    for (uint32_t size = 1; size <= VIRTQUEUE_MAX_SIZE; size *= 2) {
        if (!up(rig_usable(), (uint16_t)size))
            return rig_failed();
        if (rig_rx(0)->max < size && rig_tx(0)->max < size)
            break;
        for (unsigned i = 0; i < 3; i++)
            if (peer_works(PEER_PAYLOAD + 100 * i) != PASS)
                return FAIL;
        if (!idle_frames(size))
            return not_back();
        if (rig_faultless() != PASS)
            return FAIL;
    }
    tap_note("sizes", "1 to %u and %u", rig_rx(0)->max, rig_tx(0)->max);
    return PASS;
}

static enum verdict full_ring(void)
{
    if (!up(0, VIRTQUEUE_MAX_SIZE))
        return rig_failed();
    for (unsigned i = 0; i < 8; i++)
        if (!idle_frames(rig_tx(0)->vq.size))
            return not_back();
    tap_note("frames", "8 times %u at once", rig_tx(0)->vq.size);
    return rig_faultless();
}

static enum verdict transmit_wraps(void)
{
    if (!up(rig_usable(), 256))
        return rig_failed();
    while (rig_tx(0)->given < WRAP)
        if (!idle_frames(4 * BATCH))
            return not_back();
    tap_note("frames", "%u, used idx %u", rig_tx(0)->given, rig_tx(0)->vq.used->idx);
    return rig_faultless();
}

/* Questions, many under way at a time, until as many frames have come. Some may be lost on the way. */
static enum verdict receive_wraps(void)
{
    struct rig_frame frame;
    if (!up(rig_usable(), 256))
        return rig_failed();
    unsigned lost = 0;
    struct rig_wait total = rig_for(WRAP_MS);
    while (rig_rx(0)->facts.taken < WRAP && lost < LOST_MOST) {
        uint32_t want = rig_rx(0)->facts.taken + BATCH;
        for (unsigned i = 0; i < BATCH; i++)
            peer_send(&(struct peer_question){ .bytes = 2, .how.quiet = true });
        rig_publish(rig_tx(0), RIG_KICK_WANTED);
        while (rig_rx(0)->facts.taken < want && rig_receive(&frame, PEER_WAIT))
            peer_other(&frame);
        lost += rig_rx(0)->facts.taken < want;
        rig_reclaim(0, BACK_MS);
        if (rig_tx(0)->vq.in_flight != 0)
            return not_back();
        if (!rig_waiting(&total))
            return tap_skip("too slow: %u of %u frames in %u s", rig_rx(0)->facts.taken, WRAP, WRAP_MS / 1000);
    }
    tap_note("frames", "%u, used idx %u, waits in vain %u", rig_rx(0)->facts.taken, rig_rx(0)->vq.used->idx, lost);
    return lost < LOST_MOST ? peer_works(PEER_PAYLOAD) : FAIL;
}

/* ---- pieces ---- */

static const uint8_t pieces[] = { 2, 3, 7, 16, RIG_PIECES };

/* Frames to send in so many pieces, chained or in indirect tables. */
static enum verdict send_pieces(uint16_t indirect)
{
    for (unsigned i = 0; i < sizeof pieces; i++) {
        if (!rig_up(&(struct rig_options){ .features = rig_usable(), .ring = 128, .indirect = indirect }))
            return rig_failed();
        for (unsigned n = 0; n < 3; n++) {
            struct peer_question q = { .bytes = 64 + 600 * n, .how.pieces = pieces[i] };
            if (!peer_ask(&q, NULL)) {
                rig_faultless();
                return tap_fail("an answer", "none to a frame of %u bytes in %u pieces", 42 + q.bytes, pieces[i]);
            }
        }
        if (rig_faultless() != PASS)
            return FAIL;
    }
    return PASS;
}

static enum verdict receive_pieces(uint16_t indirect)
{
    for (unsigned i = 0; i < sizeof pieces; i++) {
        struct rig_options o = { .features = rig_usable(), .ring = 256, .indirect = indirect };
        o.pieces = pieces[i];
        if (!rig_up(&o))
            return rig_failed();
        for (unsigned n = 0; n < 3; n++)
            if (peer_works(64 + 600 * n) != PASS) {
                tap_note("pieces", "%u in each receive buffer", pieces[i]);
                return FAIL;
            }
    }
    return PASS;
}

static enum verdict send_chains(void)
{
    return send_pieces(0);
}

static enum verdict send_tables(void)
{
    return send_pieces(RIG_PIECES);
}

static enum verdict receive_chains(void)
{
    return receive_pieces(0);
}

static enum verdict receive_tables(void)
{
    return receive_pieces(RIG_PIECES);
}

/* Sends one question in an indirect table whose descriptors `change` has altered. */
static enum verdict odd_table(void (*change)(struct virtqueue *vq, uint16_t head))
{
    struct rig_frame frame;
    if (!rig_up(&(struct rig_options){ .features = rig_usable(), .indirect = 8 }))
        return rig_failed();
    struct rig_queue *q = rig_tx(0);
    for (unsigned tries = 0; tries < PEER_TRIES && !q->vq.broken; tries++) {
        uint16_t number = peer_send(&(struct peer_question){ .bytes = PEER_PAYLOAD, .how = { 4, NULL, true } });
        change(&q->vq, q->vq.avail->ring[(q->vq.avail_idx - 1) & q->vq.mask]);
        rig_publish(q, RIG_KICK_WANTED);
        for (struct rig_wait w = rig_for(PEER_WAIT); number != 0 && rig_waiting(&w);)
            while (rig_receive(&frame, 0))
                if (peer_is_answer(&frame, number, PEER_PAYLOAD))
                    return PASS;
                else
                    peer_other(&frame);
        rig_reclaim(0, PEER_WAIT);
    }
    tap_note("device_status", "0x%x", rig.transport.ops->status(&rig.transport));
    return tap_fail("an answer to the frame", "none; %u of %u frames used", q->facts.taken, q->given);
}

static void mark_writable(struct virtqueue *vq, uint16_t head)
{
    vq->desc[head].flags |= VRING_DESC_F_WRITE;
}

static enum verdict table_writable(void)
{
    return odd_table(mark_writable);
}

/* The first piece goes into the descriptor itself, and the table with the rest into another behind it. */
static void mix(struct virtqueue *vq, uint16_t head)
{
    struct vring_desc *table = (struct vring_desc *)(uintptr_t)vq->desc[head].addr;
    uint16_t other = (uint16_t)((head + vq->size / 2) & vq->mask); /* not in use: few are under way */
    uint32_t rest = vq->desc[head].len - (uint32_t)sizeof *table;
    vq->desc[other] = (struct vring_desc){ (uint64_t)(uintptr_t)(table + 1), rest, VRING_DESC_F_INDIRECT, 0 };
    vq->desc[head] = (struct vring_desc){ table[0].addr, table[0].len, VRING_DESC_F_NEXT, other };
    for (unsigned i = 1; i <= rest / sizeof *table; i++)
        table[i].next = (uint16_t)i; /* counted from the table's new start */
}

static enum verdict chain_and_table(void)
{
    return odd_table(mix);
}

/* ---- order ---- */

static enum verdict in_order(void)
{
    if (!up(rig_usable() | rig_bit(VIRTIO_F_IN_ORDER), 64))
        return rig_failed();
    for (unsigned i = 0; i < SESSION; i++) {
        if (!idle_frames(1 + i % BATCH))
            return not_back();
        if (peer.kind != PEER_NONE && i % 8 == 0 && peer_works(PEER_PAYLOAD) != PASS)
            return FAIL;
    }
    tap_note("entries for several buffers", "%u sent, %u received", rig_tx(0)->batches, rig_rx(0)->batches);
    return rig_faultless();
}

static const struct check checks[] = {
    { "2.7.8.2", "used ids are of buffers that were made available", false, 0, used_ids },
    { "2.7.8.2", "used lengths do not exceed what the buffers have room for", false, 0, used_lengths },
    { "2.7.8", "the used index does not run ahead of the available index", false, 0, used_index },
    { "2.7.8", "each buffer is used once", false, 0, each_once },
    { "2.7.5.1", "descriptors and buffers to be read are not written to", false, 0, readable_kept },
    { "2.7", "rings of each size carry frames, from 1 to the largest", true, 0, all_sizes },
    { "2.7", "a ring may be filled to its last descriptor", false, 0, full_ring },
    { "2.7.8", "the transmit ring's indices go round at 65,536", false, 0, transmit_wraps },
    { "2.7.8", "the receive ring's indices go round at 65,536", true, 0, receive_wraps },
    { "2.7.4.1", "a frame is sent from any number of pieces", true, 0, send_chains },
    { "2.7.4.1", "a frame is received into any number of pieces", true, 0, receive_chains },
    { "2.7.5.3.2", "a frame is sent from an indirect table", true, NEEDS(VIRTIO_RING_F_INDIRECT_DESC), send_tables },
    { "2.7.5.3.2", "a frame is received into an indirect table", true, NEEDS(VIRTIO_RING_F_INDIRECT_DESC),
      receive_tables },
    { "2.7.5.3.2", "the write flag of a descriptor of a table is ignored", true, NEEDS(VIRTIO_RING_F_INDIRECT_DESC),
      table_writable },
    { "2.7.5.3.2", "a chain may end in an indirect table", true, NEEDS(VIRTIO_RING_F_INDIRECT_DESC), chain_and_table },
    { "6.2", "buffers are used in the order in which they were made available", false, NEEDS(VIRTIO_F_IN_ORDER),
      in_order },
};

const struct area area_ring = AREA("ring", checks);

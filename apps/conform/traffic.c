/* The bench's traffic: buffers, used entries, frames. See rig.h. */
#include <string.h>
#include "apps/conform/rig.h"

#define CANARY    0xc5 /* what the gaps are filled with */
#define PARTS_MS  100  /* the other buffers of a frame may come so late before it counts as torn */
#define SEND_ROOM 2560 /* bytes of a buffer for sending, unless the frame needs more */

/* ---- buffers ---- */

static uint32_t capacity_for(uint32_t bytes, uint16_t pieces)
{
    return bytes + pieces * (RIG_GAP + 1u);
}

/* A free buffer of the queue that is large enough, or a new one of at least `least`. */
static struct rig_buffer *get_buffer(struct rig_queue *q, uint32_t capacity, uint32_t least)
{
    struct rig_buffer *b = q->free;
    if (b != NULL && b->capacity >= capacity) {
        q->free = b->next;
        return b;
    }
    if (capacity < least)
        capacity = least;
    b = rig_alloc(sizeof *b + capacity, 64);
    if (b != NULL)
        b->capacity = capacity;
    return b;
}

/* Cuts the buffer into pieces as equal as can be, with gaps. */
static void cut(struct rig_buffer *b, uint32_t bytes, uint16_t pieces)
{
    b->bytes = bytes;
    b->length = (bytes + pieces - 1) / pieces;
    b->pieces = (uint16_t)((bytes + b->length - 1) / b->length);
    memset(b->data, CANARY, capacity_for(bytes, b->pieces));
}

static uint8_t *piece_at(const struct rig_buffer *b, uint16_t i, uint32_t *length)
{
    uint32_t start = i * b->length;
    *length = b->bytes - start < b->length ? b->bytes - start : b->length;
    return (uint8_t *)b->data + start + i * RIG_GAP;
}

static bool give(struct rig_queue *q, struct rig_buffer *b, bool in)
{
    struct virtq_buf piece[RIG_PIECES];
    for (uint16_t i = 0; i < b->pieces; i++)
        piece[i].addr = (uint64_t)(uintptr_t)piece_at(b, i, &piece[i].len);
    if (virtqueue_add(&q->vq, piece, in ? 0 : b->pieces, in ? b->pieces : 0, b) != VIRTQ_OK)
        return false;
    b->number = q->given++;
    return true;
}

void rig_free(struct rig_queue *q, struct rig_buffer *b)
{
    b->next = q->free;
    q->free = b;
}

bool rig_again(struct rig_queue *q, struct rig_buffer *b)
{
    cut(b, b->bytes, b->pieces);
    return give(q, b, true);
}

uint16_t rig_post(uint16_t pair, uint16_t count, uint32_t bytes, uint16_t pieces)
{
    struct rig_queue *q = rig_rx(pair);
    uint16_t n = 0;
    pieces = pieces < 1 ? 1 : pieces < RIG_PIECES ? pieces : RIG_PIECES;
    for (; n < count && virtqueue_capacity(&q->vq) >= virtqueue_need(&q->vq, pieces); n++) {
        struct rig_buffer *b = get_buffer(q, capacity_for(bytes, pieces), 0);
        if (b == NULL)
            break;
        cut(b, bytes, pieces);
        if (!give(q, b, true)) {
            rig_free(q, b);
            break;
        }
    }
    rig_publish(q, RIG_KICK_WANTED);
    return n;
}

/* Copies between a buffer's pieces and memory. */
static void spread(const struct rig_buffer *b, uint32_t at, void *memory, uint32_t n, bool out)
{
    for (uint8_t *m = memory; n > 0;) {
        uint32_t length, in_piece = at % b->length;
        uint8_t *p = piece_at(b, (uint16_t)(at / b->length), &length) + in_piece;
        uint32_t part = length - in_piece < n ? length - in_piece : n;
        memcpy(out ? m : p, out ? p : m, part);
        m += part, at += part, n -= part;
    }
}

void rig_copy(const struct rig_buffer *b, void *to, uint32_t n)
{
    spread(b, 0, to, n < b->bytes ? n : b->bytes, true);
}

/* ---- sending ---- */

bool rig_publish(struct rig_queue *q, enum rig_kick kick)
{
    bool wanted = virtqueue_publish(&q->vq);
    if (kick == RIG_KICK_ALWAYS || (wanted && kick == RIG_KICK_WANTED))
        rig.transport.ops->notify(&rig.transport, &q->vq);
    return wanted;
}

bool rig_send(uint16_t pair, const void *frame, uint32_t n, const struct rig_sending *how)
{
    static const struct rig_sending plain;
    struct rig_queue *q = rig_tx(pair);
    how = how != NULL ? how : &plain;
    uint16_t pieces = how->pieces < 1 ? 1 : how->pieces < RIG_PIECES ? how->pieces : RIG_PIECES;
    uint8_t header[20] = { 0 };
    if (how->header != NULL)
        memcpy(header, how->header, sizeof *how->header);
    if (virtqueue_capacity(&q->vq) < virtqueue_need(&q->vq, pieces))
        return false;
    struct rig_buffer *b = get_buffer(q, capacity_for(rig.header + n, pieces), SEND_ROOM);
    if (b == NULL)
        return false;
    cut(b, rig.header + n, pieces);
    spread(b, 0, header, rig.header, false);
    spread(b, rig.header, (void *)frame, n, false);
    if (!give(q, b, false)) {
        rig_free(q, b);
        return false;
    }
    if (!how->quiet)
        rig_publish(q, RIG_KICK_WANTED);
    return true;
}

unsigned rig_reclaim(uint16_t pair, unsigned ms)
{
    struct rig_queue *q = rig_tx(pair);
    struct rig_used used;
    unsigned n = 0;
    for (struct rig_wait w = rig_for(ms); q->vq.in_flight > 0 && !q->vq.broken && rig_waiting(&w);)
        while (rig_take(q, &used)) {
            n++;
            if (used.buffer != NULL)
                rig_free(q, used.buffer);
        }
    return n;
}

/* ---- used entries ---- */

static bool gaps_whole(const struct rig_buffer *b)
{
    for (uint16_t i = 0; i < b->pieces; i++) {
        uint32_t length;
        const uint8_t *gap = piece_at(b, i, &length) + length;
        for (unsigned k = 0; k < RIG_GAP; k++)
            if (gap[k] != CANARY)
                return false;
    }
    return true;
}

/* What can be held against an entry whose id is good. */
static void judge(struct rig_queue *q, const struct rig_used *u)
{
    struct rig_facts *f = &q->facts;
    if (u->len > u->room && f->bad_length++ == 0) {
        f->bad_length_value = u->len;
        f->bad_length_room = u->room;
    }
    if (u->buffer->number != q->back && f->out_of_order++ == 0) {
        f->order_got = u->buffer->number;
        f->order_expected = q->back;
    }
    q->back = u->buffer->number + 1;
    f->overrun += !gaps_whole(u->buffer);
}

/* With IN_ORDER one entry may stand for several buffers, itself the last's (2.7.9): the entries that were left out are
 * written here in the device's place, as used completely, and the one that is there moves behind them. */
static void fill_batch(struct rig_queue *q, uint16_t ahead)
{
    struct virtqueue *vq = &q->vq;
    struct vring_used_elem *ring = vq->used->ring, last = ring[vq->last_used & vq->mask];
    const struct rig_buffer *b = last.id < vq->size ? vq->state[last.id].token : NULL;
    uint32_t left_out = b != NULL ? b->number - q->back : 0;
    if (left_out == 0 || left_out >= ahead)
        return;
    for (uint16_t head = 0; head < vq->size; head++) {
        const struct rig_buffer *other = vq->state[head].token;
        if (other != NULL && other->number - q->back < left_out)
            ring[(vq->last_used + other->number - q->back) & vq->mask] =
                (struct vring_used_elem){ head, vq->state[head].writable };
    }
    ring[(vq->last_used + left_out) & vq->mask] = last;
    q->batches++;
}

/* The entry is looked at before the driver's own checks, which skip what is wrong. */
bool rig_take(struct rig_queue *q, struct rig_used *u)
{
    struct virtqueue *vq = &q->vq;
    uint16_t idx = __atomic_load_n(&vq->used->idx, __ATOMIC_ACQUIRE), ahead = (uint16_t)(idx - vq->last_used);
    if (ahead == 0 || vq->broken)
        return false;
    if (ahead > (uint16_t)(vq->published - vq->last_used)) {
        q->facts.index_jump++;
        q->facts.index_value = idx;
        q->facts.index_limit = vq->published;
        vq->broken = true;
        return false;
    }
    if (rig_has(VIRTIO_F_IN_ORDER))
        fill_batch(q, ahead);
    const volatile struct vring_used_elem *entry = &vq->used->ring[vq->last_used & vq->mask];
    *u = (struct rig_used){ .id = entry->id, .len = entry->len };
    q->facts.taken++;
    if (u->id >= vq->size || vq->state[u->id].token == NULL) {
        if (q->facts.bad_id++ == 0)
            q->facts.bad_id_value = u->id;
        vq->last_used++;
        return true;
    }
    uint32_t ignored;
    u->room = vq->state[u->id].writable;
    u->buffer = virtqueue_pop(vq, &ignored);
    if (u->buffer != NULL)
        judge(q, u);
    return true;
}

static enum verdict fact(uint16_t queue, const char *what, uint32_t times, uint32_t value, uint32_t limit)
{
    if (times == 0)
        return PASS;
    tap_note("got", "queue %u: %s %u, %u times", queue, what, value, times);
    tap_note("expected", "%u", limit);
    return FAIL;
}

enum verdict rig_faultless(void)
{
    enum verdict v = PASS;
    for (uint16_t i = 0; i < 2 * rig.pairs; i++) {
        const struct rig_facts *f = &rig.queue[i].facts;
        bool bad = fact(i, "used id", f->bad_id, f->bad_id_value, rig.queue[i].vq.size) == FAIL;
        bad |= fact(i, "used length", f->bad_length, f->bad_length_value, f->bad_length_room) == FAIL;
        bad |= fact(i, "used idx ran ahead:", f->index_jump, f->index_value, f->index_limit) == FAIL;
        bad |= fact(i, "bytes written beyond a buffer, buffers", f->overrun, f->overrun, 0) == FAIL;
        if (rig_has(VIRTIO_F_IN_ORDER))
            bad |= fact(i, "buffer out of order:", f->out_of_order, f->order_got, f->order_expected) == FAIL;
        v = bad ? FAIL : v;
    }
    return v;
}

/* ---- receiving ---- */

/* Adds one buffer's bytes to the frame, header included. */
static void gather(struct rig_frame *frame, uint32_t *at, const struct rig_used *u)
{
    uint32_t n = u->len < u->buffer->bytes ? u->len : u->buffer->bytes;
    if (n > RIG_FRAME_MAX - *at)
        n = RIG_FRAME_MAX - *at;
    spread(u->buffer, 0, rig.linear + *at, n, true);
    *at += n;
    frame->buffers++;
}

static void back_to_device(struct rig_queue *q, struct rig_buffer *b)
{
    if (rig.keep)
        rig_free(q, b);
    else if (!rig_again(q, b))
        rig_free(q, b);
}

/* The frame whose first entry is `u`. */
static void assemble(struct rig_queue *q, struct rig_frame *frame, struct rig_used *u)
{
    uint32_t at = 0;
    frame->first = u->len;
    gather(frame, &at, u);
    uint32_t last = u->len, room = u->room;
    memcpy(&frame->header, rig.linear, at < rig.header ? at : rig.header);
    back_to_device(q, u->buffer);
    uint16_t count = rig_has(VIRTIO_NET_F_MRG_RXBUF) ? frame->header.hdr.num_buffers : 1;
    for (struct rig_wait w = rig_for(PARTS_MS); frame->buffers < count;) {
        if (!rig_take(q, u)) {
            frame->late = true;
            if (rig_waiting(&w))
                continue;
            frame->torn = true;
            break;
        }
        if (u->buffer == NULL)
            continue;
        frame->gaps |= last != room;
        last = u->len, room = u->room;
        gather(frame, &at, u);
        back_to_device(q, u->buffer);
    }
    frame->bytes = at > rig.header ? at - rig.header : 0;
    frame->data = rig.linear + rig.header;
    rig_publish(q, RIG_KICK_WANTED);
}

bool rig_receive(struct rig_frame *frame, unsigned ms)
{
    struct rig_used u;
    for (struct rig_wait w = rig_for(ms); rig_waiting(&w);)
        for (uint16_t i = 0; i < rig.pairs; i++)
            while (rig_take(rig_rx(i), &u)) {
                if (u.buffer == NULL)
                    continue;
                *frame = (struct rig_frame){ .pair = i };
                assemble(rig_rx(i), frame, &u);
                return true;
            }
    return false;
}

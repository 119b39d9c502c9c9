/* The split virtqueue (virtio 1.3, 2.7): descriptor table, available ring, used ring. */
#include <stdatomic.h>
#include <string.h>
#include "drivers/virtio/ring.h"

/* Loads and stores of memory that the device touches too: done once, never torn or repeated by the compiler. Real
 * atomics, not volatile: the fences below order them by the rules of C, and ThreadSanitizer knows what they mean. */
#define READ_ONCE(x)     __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_RELAXED)

/* used_event is the field behind avail->ring[], avail_event the one behind used->ring[] (2.7.6, 2.7.8). */
static uint16_t *used_event(const struct virtqueue *vq)
{
    return (uint16_t *)&vq->avail->ring[vq->size];
}

static const uint16_t *avail_event(const struct virtqueue *vq)
{
    return (const uint16_t *)&vq->used->ring[vq->size];
}

/* The areas in one allocation, each at its alignment (2.7: 16, 2, 4), the used ring on its own cache line so that the
 * two sides' stores do not share one. */
struct layout {
    size_t avail, used, state, indirect, end;
};

static size_t align_up(size_t n, size_t to)
{
    return (n + to - 1) & ~(to - 1);
}

static struct layout split_layout(uint16_t size, uint16_t indirect_max)
{
    struct layout at;
    at.avail = sizeof(struct vring_desc) * size;
    at.used = align_up(at.avail + sizeof(uint16_t) * (3u + size), 64);
    at.state = align_up(at.used + sizeof(uint16_t) * 3u + sizeof(struct vring_used_elem) * size, 64);
    at.indirect = align_up(at.state + sizeof(struct virtq_desc_state) * size, 64);
    at.end = at.indirect + sizeof(struct vring_desc) * indirect_max * size;
    return at;
}

size_t virtqueue_split_bytes(uint16_t size, uint16_t indirect_max)
{
    return split_layout(size, indirect_max).end;
}

/* Writes the pieces into an indirect table; returns the bytes that the device may write. (2.7.5.3) */
static uint32_t fill_indirect(struct vring_desc *table, const struct virtq_buf *bufs, uint16_t out, uint16_t in)
{
    uint32_t writable = 0;
    uint16_t count = (uint16_t)(out + in);
    for (uint16_t i = 0; i < count; i++) {
        table[i].addr = bufs[i].addr;
        table[i].len = bufs[i].len;
        table[i].flags = (uint16_t)((i + 1 < count ? VRING_DESC_F_NEXT : 0) | (i >= out ? VRING_DESC_F_WRITE : 0));
        table[i].next = (uint16_t)(i + 1);
        writable += i >= out ? bufs[i].len : 0;
    }
    return writable;
}

/* Writes the pieces into a chain of descriptors from the free list; returns the bytes that the device may write.
 * (2.7.5) */
static uint32_t fill_chain(struct virtqueue *vq, const struct virtq_buf *bufs, uint16_t out, uint16_t in)
{
    uint32_t writable = 0;
    uint16_t count = (uint16_t)(out + in), at = vq->free_head;
    for (uint16_t i = 0; i < count; i++) {
        struct vring_desc *d = &vq->desc[at];
        uint16_t next = vq->state[at].next;
        d->addr = bufs[i].addr;
        d->len = bufs[i].len;
        d->flags = (uint16_t)((i + 1 < count ? VRING_DESC_F_NEXT : 0) | (i >= out ? VRING_DESC_F_WRITE : 0));
        d->next = next;
        writable += i >= out ? bufs[i].len : 0;
        at = next;
    }
    vq->free_head = at;
    return writable;
}

/* Enters the chain at `head` into the available ring. */
static void make_available(struct virtqueue *vq, uint16_t head, void *token, uint16_t count)
{
    vq->state[head].token = token;
    vq->state[head].count = count;
    vq->free = (uint16_t)(vq->free - count);
    vq->in_flight++;
    vq->stats.added++;
    vq->avail->ring[vq->avail_idx & vq->mask] = head;
    vq->avail_idx++;
}

int virtqueue_split_add_one(struct virtqueue *vq, struct virtq_buf buf, bool in, void *token)
{
    if (vq->broken)
        return VIRTQ_BROKEN;
    if (token == NULL)
        return VIRTQ_INVALID;
    if (vq->free == 0) {
        vq->stats.full++;
        return VIRTQ_FULL;
    }
    uint16_t head = vq->free_head;
    struct virtq_desc_state *state = &vq->state[head];
    vq->desc[head] = (struct vring_desc){ buf.addr, buf.len, in ? VRING_DESC_F_WRITE : 0, 0 };
    vq->free_head = state->next;
    state->writable = in ? buf.len : 0;
    make_available(vq, head, token, 1);
    return VIRTQ_OK;
}

int virtqueue_split_add(struct virtqueue *vq, const struct virtq_buf *bufs, uint16_t out, uint16_t in, void *token)
{
    uint32_t pieces = (uint32_t)out + in;
    if (pieces == 1)
        return virtqueue_split_add_one(vq, *bufs, in != 0, token);
    if (vq->broken)
        return VIRTQ_BROKEN;
    if (pieces == 0 || token == NULL)
        return VIRTQ_INVALID;
    if (pieces > vq->size)
        return VIRTQ_TOO_LONG;
    uint16_t need = virtqueue_need(vq, (uint16_t)pieces);
    if (need > vq->free) {
        vq->stats.full++;
        return VIRTQ_FULL;
    }
    uint16_t head = vq->free_head;
    struct virtq_desc_state *state = &vq->state[head];
    if (need < pieces) {
        struct vring_desc *table = &vq->indirect[(size_t)head * vq->indirect_max];
        state->writable = fill_indirect(table, bufs, out, in);
        vq->free_head = state->next;
        vq->desc[head].addr = (uint64_t)(uintptr_t)table;
        vq->desc[head].len = pieces * (uint32_t)sizeof(struct vring_desc);
        vq->desc[head].flags = VRING_DESC_F_INDIRECT;
    } else {
        state->writable = fill_chain(vq, bufs, out, in);
    }
    make_available(vq, head, token, need);
    return VIRTQ_OK;
}

/* The kick decision. `old` to `now` are the entries made visible by this publish; with the event index the device wants
 * to be told if its avail_event lies among them (2.7.10), without it unless it set VRING_USED_F_NO_NOTIFY (2.7.10.1).
 */
static bool split_wants_kick(const struct virtqueue *vq, uint16_t old, uint16_t now)
{
    if (!vq->event_idx)
        return !(READ_ONCE(vq->used->flags) & VRING_USED_F_NO_NOTIFY);
    uint16_t event = READ_ONCE(*avail_event(vq));
    uint16_t behind = (uint16_t)(now - event - 1);
    uint16_t fresh = (uint16_t)(now - old);
    return behind < fresh;
}

bool virtqueue_split_publish(struct virtqueue *vq)
{
    uint16_t old = vq->published, now = vq->avail_idx;
    if (old == now || vq->broken)
        return false;
    /* Race: the device may read avail->idx at once. The ring entries and descriptors must be visible before the index
     * that covers them (2.7.13.3.1): a release store. */
    __atomic_store_n(&vq->avail->idx, now, __ATOMIC_RELEASE);
    vq->published = now;
    vq->before = old;
    /* Race: the device stores "notify me" (avail_event or flags) and then looks at avail->idx once more before it
     * sleeps; we store avail->idx and then look at "notify me". Without a full fence our load may be done before our
     * store is visible: each side would see the other's old value, the device sleeps and is not told (2.7.13.4.1). */
    atomic_thread_fence(memory_order_seq_cst);
    bool kick = split_wants_kick(vq, old, now);
    vq->stats.kicks += kick;
    vq->stats.kicks_suppressed += !kick;
    return kick;
}

/* Counts what the device wrote wrongly, and keeps the first finding for the owner's report. */
static void split_fault(struct virtqueue *vq, enum virtq_fault_kind kind, uint32_t value, uint32_t limit)
{
    vq->stats.bad_used++;
    if (vq->fault.kind == VIRTQ_FAULT_NONE)
        vq->fault = (struct virtq_fault){ kind, value, limit };
}

/* Gives a chain's descriptors back to the free list, its head on top. */
static inline void split_free_chain(struct virtqueue *vq, uint16_t head)
{
    struct virtq_desc_state *state = &vq->state[head], *last = state;
    for (uint16_t n = state->count; n > 1; n--)
        last = &vq->state[last->next];
    last->next = vq->free_head;
    vq->free_head = head;
    vq->free = (uint16_t)(vq->free + state->count);
    vq->in_flight--;
    state->token = NULL;
}

void *virtqueue_split_pop(struct virtqueue *vq, uint32_t *len)
{
    while (!vq->broken) {
        /* Race: the device writes the entry (and the buffer), then used->idx. Our loads of the entry must not be done
         * before our load of the index that covers it (2.7.14): an acquire load. */
        uint16_t ahead = (uint16_t)(__atomic_load_n(&vq->used->idx, __ATOMIC_ACQUIRE) - vq->last_used);
        if (ahead == 0)
            return NULL;
        /* The used index can never pass the available index. Buffers that were added but not published count for
         * nothing here: the device cannot have seen them. */
        if (ahead > (uint16_t)(vq->published - vq->last_used)) {
            split_fault(vq, VIRTQ_FAULT_INDEX, (uint16_t)(vq->last_used + ahead), vq->published);
            vq->broken = true;
            return NULL;
        }
        const struct vring_used_elem *entry = &vq->used->ring[vq->last_used & vq->mask];
        uint32_t id = READ_ONCE(entry->id), written = READ_ONCE(entry->len);
        vq->last_used++;
        if (id >= vq->size || vq->state[id].token == NULL) {
            split_fault(vq, VIRTQ_FAULT_ID, id, vq->size);
            continue;
        }
        struct virtq_desc_state *state = &vq->state[id];
        if (written > state->writable) {
            split_fault(vq, VIRTQ_FAULT_LENGTH, written, state->writable);
            written = 0;
        }
        void *token = state->token;
        split_free_chain(vq, (uint16_t)id);
        vq->stats.popped++;
        *len = written;
        return token;
    }
    return NULL;
}

static bool split_pending(const struct virtqueue *vq)
{
    return !vq->broken && READ_ONCE(vq->used->idx) != vq->last_used;
}

void virtqueue_split_disable_callbacks(struct virtqueue *vq)
{
    vq->callbacks = false;
    if (vq->event_idx)
        /* flags must stay 0 (2.7.7.1): an event index that the device has passed already asks for nothing (it comes
         * round once in 65,536 entries: one needless interrupt). */
        WRITE_ONCE(*used_event(vq), (uint16_t)(vq->last_used - 1));
    else
        WRITE_ONCE(vq->avail->flags, VRING_AVAIL_F_NO_INTERRUPT);
}

/* Arms the callback for the moment when the used index passes `event`; true if it has not done so yet. */
static bool split_arm(struct virtqueue *vq, uint16_t event)
{
    vq->callbacks = true;
    vq->stats.callbacks_armed++;
    if (vq->event_idx)
        WRITE_ONCE(*used_event(vq), event);
    else
        WRITE_ONCE(vq->avail->flags, 0);
    /* Race: the device adds a used entry and looks whether we want an interrupt; we ask for one and look for entries.
     * With no full fence both may look before the other's store is visible: the entry lies there and no interrupt comes
     * (2.7.7). */
    atomic_thread_fence(memory_order_seq_cst);
    uint16_t returned = (uint16_t)(READ_ONCE(vq->used->idx) - vq->last_used);
    return returned <= (uint16_t)(event - vq->last_used);
}

bool virtqueue_split_enable_callbacks(struct virtqueue *vq, uint16_t after)
{
    /* The event is the entry that completes so many: the first of them is last_used itself. */
    uint16_t ahead = after > 0 && vq->event_idx ? (uint16_t)(after - 1) : 0;
    return vq->broken || split_arm(vq, (uint16_t)(vq->last_used + ahead));
}

static void *split_detach(struct virtqueue *vq)
{
    for (uint16_t head = 0; vq->in_flight > 0 && head < vq->size; head++) {
        void *token = vq->state[head].token;
        if (token != NULL) {
            split_free_chain(vq, head);
            return token;
        }
    }
    return NULL;
}

static const struct virtqueue_ops split_ops = {
    .add = virtqueue_split_add,
    .publish = virtqueue_split_publish,
    .pop = virtqueue_split_pop,
    .pending = split_pending,
    .disable_callbacks = virtqueue_split_disable_callbacks,
    .enable_callbacks = virtqueue_split_enable_callbacks,
    .detach = split_detach,
};

int virtqueue_split_init(struct virtqueue *vq, const struct virtqueue_config *config, void *mem)
{
    uint16_t size = config->size;
    if (size == 0 || size > VIRTQUEUE_MAX_SIZE || (size & (size - 1)) != 0)
        return VIRTQ_INVALID;
    uint16_t indirect_max = config->indirect_max < size ? config->indirect_max : size;
    struct layout at = split_layout(size, indirect_max);
    char *base = mem;
    memset(mem, 0, at.end);
    *vq = (struct virtqueue){
        .ops = &split_ops,
        .desc = (struct vring_desc *)base,
        .avail = (struct vring_avail *)(base + at.avail),
        .used = (struct vring_used *)(base + at.used),
        .state = (struct virtq_desc_state *)(base + at.state),
        .indirect = indirect_max > 0 ? (struct vring_desc *)(base + at.indirect) : NULL,
        .size = size,
        .mask = (uint16_t)(size - 1),
        .free = size,
        .indirect_max = indirect_max,
        .index = config->index,
        .split = true,
        .event_idx = config->event_idx,
        .callbacks = true, /* as zeroed memory says; switched off below */
    };
    for (uint16_t i = 0; i < size; i++)
        vq->state[i].next = (uint16_t)(i + 1);
    virtqueue_disable_callbacks(vq);
    return VIRTQ_OK;
}

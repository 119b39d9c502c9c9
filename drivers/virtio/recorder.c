/* See recorder.h. */
#include <stdarg.h>
#include <stdio.h>
#include "drivers/virtio/recorder.h"
#include "kernel/clock.h"

#define READ_ONCE(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define TIME_MASK    ((1ull << 38) - 1)

static uint64_t time_us(void)
{
    return clock_ns() / 1000;
}

/* ---- recording ---- */

static __attribute__((noinline)) void note(const struct virtqueue *vq, enum recorder_kind kind, uint16_t head,
                                           uint32_t value, uint32_t pieces)
{
    struct recorder *r = vq->recorder;
    r->entry[r->count % RECORDER_OPERATIONS] = (struct recorder_entry){
        .us = time_us() & TIME_MASK,
        .kind = kind,
        .pieces = pieces < 31 ? pieces : 31,
        .head = head,
        .value = value,
        .avail = vq->avail_idx,
        .used = vq->last_used,
    };
    __atomic_store_n(&r->count, r->count + 1, __ATOMIC_RELEASE); /* for other cores that read */
}

void recorder_note(const struct virtqueue *vq, enum recorder_kind kind)
{
    if (vq->recorder != NULL)
        note(vq, kind, 0, 0, 0);
}

static int record_add(struct virtqueue *vq, const struct virtq_buf *bufs, uint16_t out, uint16_t in, void *token)
{
    uint16_t head = vq->free_head;
    uint32_t bytes = 0, pieces = (uint32_t)out + in;
    int result = vq->recorder->ops->add(vq, bufs, out, in, token);
    if (result != VIRTQ_OK && result != VIRTQ_FULL)
        return result;
    for (uint32_t i = 0; i < pieces; i++)
        bytes += bufs[i].len;
    if (result == VIRTQ_OK)
        note(vq, RECORDER_ADD, head, bytes, pieces);
    else
        note(vq, RECORDER_FULL, vq->free, bytes, pieces);
    return result;
}

/* At what avail index the device wants a kick; without the event index, its flags. (2.7.10) */
static uint16_t kick_event(const struct virtqueue *vq)
{
    const uint16_t *event = (const uint16_t *)&vq->used->ring[vq->size];
    return vq->event_idx ? READ_ONCE(*event) : READ_ONCE(vq->used->flags);
}

static uint16_t interrupt_event(const struct virtqueue *vq)
{
    return vq->event_idx ? READ_ONCE(*(const uint16_t *)&vq->avail->ring[vq->size]) : vq->last_used;
}

static bool record_publish(struct virtqueue *vq)
{
    uint16_t old = vq->published;
    bool kick = vq->recorder->ops->publish(vq);
    if (vq->published != old)
        note(vq, kick ? RECORDER_KICK : RECORDER_PUBLISH, kick_event(vq), (uint16_t)(vq->published - old), 0);
    return kick;
}

/* What the layout took or skipped is read once more: a device that changes an entry afterwards is recorded with that.
 */
static void *record_pop(struct virtqueue *vq, uint32_t *len)
{
    uint16_t at = vq->last_used;
    uint64_t bad = vq->stats.bad_used;
    bool was_broken = vq->broken;
    void *token = vq->recorder->ops->pop(vq, len);
    uint64_t found = vq->stats.bad_used - bad;
    for (uint16_t end = (uint16_t)(vq->last_used - (token != NULL)); at != end; at++, found--)
        note(vq, RECORDER_BAD_ID, 0, READ_ONCE(vq->used->ring[at & vq->mask].id), 0);
    if (token != NULL) {
        const struct vring_used_elem *entry = &vq->used->ring[at & vq->mask];
        note(vq, found > 0 ? RECORDER_BAD_LENGTH : RECORDER_POP, (uint16_t)READ_ONCE(entry->id), READ_ONCE(entry->len),
             0);
    } else if (vq->broken && !was_broken) {
        note(vq, RECORDER_BAD_INDEX, vq->published, READ_ONCE(vq->used->idx), 0);
    }
    return token;
}

static bool record_pending(const struct virtqueue *vq)
{
    return vq->recorder->ops->pending(vq);
}

static void record_disable_callbacks(struct virtqueue *vq)
{
    vq->recorder->ops->disable_callbacks(vq);
    note(vq, RECORDER_DISARM, 0, 0, 0);
}

static bool record_enable_callbacks(struct virtqueue *vq, uint16_t after)
{
    bool quiet = vq->recorder->ops->enable_callbacks(vq, after);
    note(vq, quiet ? RECORDER_ARM : RECORDER_ARM_LATE, 0, interrupt_event(vq), 0);
    return quiet;
}

/* Counted, not noted: the buffers of a whole ring would push out what led to the reset. */
static void *record_detach(struct virtqueue *vq)
{
    void *token = vq->recorder->ops->detach(vq);
    vq->recorder->detached += token != NULL;
    return token;
}

__attribute__((noinline)) void recorder_attach(struct virtqueue *vq, struct recorder *recorder)
{
    static const struct virtqueue_ops record_ops = {
        .add = record_add,
        .publish = record_publish,
        .pop = record_pop,
        .pending = record_pending,
        .disable_callbacks = record_disable_callbacks,
        .enable_callbacks = record_enable_callbacks,
        .detach = record_detach,
    };
    recorder->ops = vq->ops;
    vq->recorder = recorder;
    vq->ops = &record_ops;
    vq->split = false;
    note(vq, RECORDER_LAID_OUT, 0, recorder->detached, 0);
    recorder->detached = 0;
}

/* ---- printing ---- */

struct printer {
    const struct virtqueue *vq;
    recorder_print_fn print;
    void *context;
};

__attribute__((format(printf, 2, 3))) static void say(const struct printer *to, const char *format, ...)
{
    char line[RECORDER_LINE];
    va_list args;
    int n = snprintf(line, sizeof line, "q%u ", to->vq->index);
    va_start(args, format);
    vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    to->print(to->context, line);
}

static void say_state(const struct printer *to)
{
    const struct virtqueue *vq = to->vq;
    static const char *const fault[] = { "", "id %u, valid is below %u", "length %u, valid is up to %u",
                                         "index %u, valid is up to %u" };
    char text[48], event[32];
    say(to, "split ring of %u, %s; buffers with the device: %u; free descriptors: %u", vq->size,
        vq->event_idx ? "event index" : "flags", vq->in_flight, vq->free);
    snprintf(event, sizeof event, vq->callbacks ? "at used %u" : "no", (uint16_t)(interrupt_event(vq) + 1));
    say(to, "driver: avail %u filled, %u shown; used %u taken; wants an interrupt: %s", vq->avail_idx, vq->published,
        vq->last_used, event);
    snprintf(event, sizeof event,
             vq->event_idx                             ? "at avail %u"
             : kick_event(vq) & VRING_USED_F_NO_NOTIFY ? "no"
                                                       : "yes",
             (uint16_t)(kick_event(vq) + 1));
    say(to, "device: used %u; wants a kick: %s", READ_ONCE(vq->used->idx), event);
    if (vq->fault.kind == VIRTQ_FAULT_NONE)
        return;
    snprintf(text, sizeof text, fault[vq->fault.kind & 3], vq->fault.value, vq->fault.limit);
    say(to, "wrong used entries: %llu; first: %s%s", (unsigned long long)vq->stats.bad_used, text,
        vq->broken ? "; the queue is broken" : "");
}

/* The lower bits of a time in the last 76 hours. */
static uint64_t whole_time(uint64_t us, uint64_t now)
{
    return now - ((now - us) & TIME_MASK);
}

static void say_entry(const struct printer *to, const struct recorder_entry *e, uint64_t now)
{
    /* The arguments are value, head, pieces; a format takes the first ones. */
    static const struct {
        char name[14], format[30];
    } kinds[] = {
        [RECORDER_LAID_OUT] = { "laid out", " taken back: %u buffers" },
        [RECORDER_ADD] = { "add", " %u bytes, head %u, pieces %u" },
        [RECORDER_FULL] = { "add: no room", " %u bytes, free %u, pieces %u" },
        [RECORDER_PUBLISH] = { "publish", " %u entries, their event %u" },
        [RECORDER_KICK] = { "publish, kick", " %u entries, their event %u" },
        [RECORDER_KICK_AGAIN] = { "kick again", "" },
        [RECORDER_POP] = { "pop", " %u bytes, head %u" },
        [RECORDER_ARM] = { "arm", " our event %u" },
        [RECORDER_ARM_LATE] = { "arm: too late", " our event %u" },
        [RECORDER_DISARM] = { "disarm", "" },
        [RECORDER_INTERRUPT] = { "interrupt", "" },
        [RECORDER_BAD_ID] = { "BAD USED ID", " %u" },
        [RECORDER_BAD_LENGTH] = { "BAD LENGTH", " %u bytes, head %u" },
        [RECORDER_BAD_INDEX] = { "BAD INDEX", " %u, shown to the device %u" },
    };
    unsigned kind = e->kind < sizeof kinds / sizeof *kinds ? e->kind : 0;
    uint64_t us = whole_time(e->us, now);
    char detail[56];
    snprintf(detail, sizeof detail, kinds[kind].format, e->value, (unsigned)e->head, (unsigned)e->pieces);
    say(to, "%llu.%06llu %-13s avail %5u used %5u%s", (unsigned long long)(us / 1000000),
        (unsigned long long)(us % 1000000), kinds[kind].name, e->avail, e->used, detail);
}

static void say_record(const struct printer *to)
{
    const struct recorder *r = to->vq->recorder;
    uint64_t now = time_us();
    uint64_t count = __atomic_load_n(&r->count, __ATOMIC_ACQUIRE);
    for (uint64_t i = count < RECORDER_OPERATIONS ? 0 : count - RECORDER_OPERATIONS; i != count; i++) {
        struct recorder_entry e = r->entry[i % RECORDER_OPERATIONS];
        /* The owner goes on, perhaps: then this is not the entry any more. */
        if (__atomic_load_n(&r->count, __ATOMIC_ACQUIRE) - i <= RECORDER_OPERATIONS)
            say_entry(to, &e, now);
    }
}

/* Bytes and pieces of a buffer that is with the device, as the descriptors say. */
static uint32_t chain_bytes(const struct virtqueue *vq, uint16_t head, uint32_t *pieces)
{
    const struct vring_desc *d = &vq->desc[head];
    bool indirect = vq->indirect != NULL && (READ_ONCE(d->flags) & VRING_DESC_F_INDIRECT);
    uint32_t n = indirect ? READ_ONCE(d->len) / (uint32_t)sizeof *d : vq->state[head].count, bytes = 0;
    uint32_t most = indirect ? vq->indirect_max : vq->size;
    *pieces = n = n < most ? n : most;
    for (uint32_t i = 0, at = head; i < n && at < vq->size; i++) {
        bytes +=
            indirect ? READ_ONCE(vq->indirect[(size_t)head * vq->indirect_max + i].len) : READ_ONCE(vq->desc[at].len);
        at = indirect ? at : vq->state[at].next;
    }
    return bytes;
}

/* True if no entry after `at` has that head: what is known of the head now is of this entry. */
static bool is_last_of(const struct virtqueue *vq, uint16_t at, uint16_t head)
{
    while (++at != vq->avail_idx)
        if (READ_ONCE(vq->avail->ring[at & vq->mask]) == head)
            return false;
    return true;
}

static void say_avail(const struct printer *to, uint16_t at)
{
    const struct virtqueue *vq = to->vq;
    uint16_t head = READ_ONCE(vq->avail->ring[at & vq->mask]);
    uint32_t pieces;
    if (head >= vq->size || vq->state[head].token == NULL || !is_last_of(vq, at, head)) {
        say(to, "avail[%u] head %u", at, head);
        return;
    }
    uint32_t bytes = chain_bytes(vq, head, &pieces);
    say(to, "avail[%u] head %u, %u bytes, pieces %u, %s", at, head, bytes, pieces,
        (int16_t)(at - vq->published) < 0 ? "with the device" : "not shown yet");
}

static void say_used(const struct printer *to, uint16_t at)
{
    const struct virtqueue *vq = to->vq;
    const struct vring_used_elem *entry = &vq->used->ring[at & vq->mask];
    uint32_t id = READ_ONCE(entry->id);
    const char *state = (int16_t)(at - vq->last_used) < 0   ? ""
                        : (int16_t)(at - vq->published) < 0 ? ", not taken yet"
                                                            : ", for no buffer";
    say(to, "used[%u] id %u, %u bytes%s%s", at, id, READ_ONCE(entry->len), id < vq->size ? "" : ", BAD ID", state);
}

/* How many of the entries up to `index` the ring still holds, at most `most`. */
static uint16_t held(const struct virtqueue *vq, uint16_t index, uint16_t most)
{
    bool wrapped = vq->stats.added - vq->earlier > UINT16_MAX;
    uint16_t n = wrapped || index > vq->size ? vq->size : index;
    return n < most ? n : most;
}

/* Printed with a record, too: what the device has returned and nobody has looked at. */
static void say_untaken(const struct printer *to)
{
    const struct virtqueue *vq = to->vq;
    uint16_t from = vq->last_used, n = (uint16_t)(READ_ONCE(vq->used->idx) - from);
    uint16_t most = vq->size < RECORDER_UNTAKEN ? vq->size : RECORDER_UNTAKEN;
    for (uint16_t i = 0; i < n && i < most; i++)
        say_used(to, (uint16_t)(from + i));
}

static void say_rings(const struct printer *to)
{
    const struct virtqueue *vq = to->vq;
    uint16_t avail = vq->avail_idx, used = vq->last_used;
    for (uint16_t i = held(vq, avail, RECORDER_OPERATIONS / 2); i > 0; i--)
        say_avail(to, (uint16_t)(avail - i));
    for (uint16_t i = held(vq, used, RECORDER_OPERATIONS / 2); i > 0; i--)
        say_used(to, (uint16_t)(used - i));
}

void recorder_print(const struct virtqueue *vq, recorder_print_fn print, void *context)
{
    struct printer to = { vq, print, context };
    say_state(&to);
    if (vq->recorder != NULL)
        say_record(&to);
    else
        say_rings(&to);
    say_untaken(&to);
}

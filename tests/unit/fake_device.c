/* The device's side of a split virtqueue. See fake_device.h. */
#include "tests/unit/fake_device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_NEXT     UINT16_MAX /* no index: a queue has at most 32,768 descriptors */
#define KNOWN_FLAGS (VRING_DESC_F_NEXT | VRING_DESC_F_WRITE | VRING_DESC_F_INDIRECT)

__attribute__((format(printf, 2, 3))) static void violation(struct fake_device *dev, const char *format, ...)
{
    va_list args;

    if (dev->violation[0])
        return;
    va_start(args, format);
    vsnprintf(dev->violation, sizeof(dev->violation), format, args);
    va_end(args);
}

/* The field behind the available ring's entries, and the one behind the used ring's (2.7.6, 2.7.8). */
static uint16_t *used_event(struct fake_device *dev)
{
    return &dev->avail->ring[dev->size];
}

static uint16_t *avail_event(struct fake_device *dev)
{
    return (uint16_t *)&dev->used->ring[dev->size];
}

void fake_device_init(struct fake_device *dev, struct vring_desc *desc, struct vring_avail *avail,
                      struct vring_used *used, uint16_t size, bool event_idx, bool indirect)
{
    memset(dev, 0, sizeof(*dev));
    dev->desc = desc;
    dev->avail = avail;
    dev->used = used;
    dev->size = size;
    dev->event_idx = event_idx;
    dev->indirect = indirect;
    dev->held = calloc(size, sizeof(*dev->held));
    dev->owner = calloc(size, sizeof(*dev->owner));
    dev->next = calloc(size, sizeof(*dev->next));
    dev->piece = calloc(size, sizeof(*dev->piece));
    if ((uintptr_t)desc % 16 || (uintptr_t)avail % 2 || (uintptr_t)used % 4)
        violation(dev, "an area is not aligned (2.7)");
    if (used->flags != 0 || used->idx != 0 || avail->idx != 0)
        violation(dev, "the rings do not start at zero");
}

void fake_device_free(struct fake_device *dev)
{
    free(dev->held);
    free(dev->owner);
    free(dev->next);
    free(dev->piece);
}

void fake_device_start_at(struct fake_device *dev, uint16_t index)
{
    dev->last_avail = dev->used_idx = dev->told = index;
    dev->used->idx = index;
}

uint16_t fake_device_available(struct fake_device *dev)
{
    uint16_t count = (uint16_t)(__atomic_load_n(&dev->avail->idx, __ATOMIC_ACQUIRE) - dev->last_avail);

    if (count > dev->size)
        violation(dev, "available index %u ahead of what was taken, in a queue of %u", count, dev->size);
    if (dev->event_idx && __atomic_load_n(&dev->avail->flags, __ATOMIC_RELAXED) != 0)
        violation(dev, "available flags not 0 although the event index is negotiated (2.7.7.1)");
    return count;
}

/* Reads one descriptor of a chain into dev->piece; returns its flags. */
static uint16_t read_piece(struct fake_device *dev, struct fake_chain *chain, struct vring_desc *d)
{
    struct fake_piece *p = &dev->piece[chain->pieces++];

    *p = (struct fake_piece){ d->addr, d->len, d->flags & VRING_DESC_F_WRITE };
    if (d->flags & ~KNOWN_FLAGS)
        violation(dev, "descriptor flags %04x", d->flags);
    if (p->len == 0)
        violation(dev, "a piece of no bytes");
    if (!p->writable && chain->writable)
        violation(dev, "a device-readable piece behind a device-writable one (2.6.4.2)");
    *(p->writable ? &chain->writable : &chain->readable) += p->len;
    return d->flags;
}

/* Overwrites what has been read: the driver must never use it again. */
static void scribble_over(struct fake_device *dev, struct vring_desc *d, uint64_t salt)
{
    if (!dev->scribble)
        return;
    memset(d, (int)(0xd0 + salt % 16), sizeof(*d));
    dev->scribbles++;
}

/* Remembers whose a descriptor is, and which one follows it. */
static void own(struct fake_device *dev, const struct fake_chain *chain, uint32_t at, uint16_t next)
{
    if (dev->owner[at])
        violation(dev, "descriptor %u is in use by the chain of head %u", at, dev->owner[at] - 1);
    dev->owner[at] = (uint16_t)(chain->head + 1);
    dev->next[at] = next < dev->size ? next : NO_NEXT;
}

/* Follows a table of `count` descriptors from `at` by their next fields. Returns false where the device cannot go on.
 */
static bool read_chain(struct fake_device *dev, struct fake_chain *chain, struct vring_desc *table, uint32_t count,
                       uint32_t at, bool within_indirect)
{
    for (;;) {
        if (at >= count || chain->pieces == dev->size) {
            violation(dev, "chain of head %u: index %u of %u, piece %u in a queue of %u", chain->head, at, count,
                      chain->pieces + 1, dev->size);
            return false;
        }
        struct vring_desc *d = &table[at];
        uint16_t flags = d->flags, next = d->next;
        if (!within_indirect)
            own(dev, chain, at, flags & VRING_DESC_F_NEXT ? next : NO_NEXT);
        if (flags & VRING_DESC_F_INDIRECT) {
            uint32_t len = d->len;
            struct vring_desc *inner = (struct vring_desc *)(uintptr_t)d->addr;
            if (!dev->indirect || within_indirect || (flags & VRING_DESC_F_NEXT) || len == 0 || len % sizeof(*d)) {
                violation(dev, "an indirect descriptor that must not be: flags %04x, length %u (2.7.5.3.1)", flags,
                          len);
                return false;
            }
            chain->indirect = true;
            scribble_over(dev, d, at);
            uint32_t before = chain->pieces, entries = len / (uint32_t)sizeof(*d);
            if (!read_chain(dev, chain, inner, entries, 0, true))
                return false;
            if (chain->pieces - before != entries) /* allowed, but what for? */
                violation(dev, "an indirect table of %u entries with a chain of %u", entries, chain->pieces - before);
            return true;
        }
        read_piece(dev, chain, d);
        scribble_over(dev, d, at);
        if (!(flags & VRING_DESC_F_NEXT))
            return true;
        at = next;
    }
}

bool fake_device_take(struct fake_device *dev, struct fake_chain *chain)
{
    if (fake_device_available(dev) == 0)
        return false;
    uint16_t slot = dev->last_avail % dev->size, head = dev->avail->ring[slot];

    *chain = (struct fake_chain){ .head = head, .piece = dev->piece };
    if (head >= dev->size || dev->held_count == dev->size) {
        violation(dev, "head %u with %u buffers in a queue of %u", head, dev->held_count, dev->size);
        return false;
    }
    if (dev->scribble)
        dev->avail->ring[slot] = 0xdead;
    dev->last_avail++;
    dev->taken++;
    if (!read_chain(dev, chain, dev->desc, dev->size, head, false))
        return false;
    if (chain->readable + chain->writable > UINT32_MAX)
        violation(dev, "a chain of more than 2^32 bytes (2.7.5.2)");
    dev->held[(dev->held_first + dev->held_count++) % dev->size] =
        (struct fake_held){ .tag = dev->piece[0].addr, .writable = chain->writable, .head = head };
    return true;
}

const struct fake_held *fake_device_held(const struct fake_device *dev, uint16_t i)
{
    return &dev->held[(dev->held_first + i) % dev->size];
}

void fake_device_lie(struct fake_device *dev, uint32_t id, uint32_t len)
{
    dev->used->ring[dev->used_idx % dev->size] = (struct vring_used_elem){ .id = id, .len = len };
    dev->used_idx++;
}

void fake_device_return(struct fake_device *dev, uint16_t i, uint32_t written)
{
    struct fake_held *held = (struct fake_held *)fake_device_held(dev, i), done = *held;

    *held = *fake_device_held(dev, 0); /* the oldest takes its place in the row */
    dev->held_first = (uint16_t)((dev->held_first + 1) % dev->size);
    dev->held_count--;
    for (uint32_t at = done.head; at != NO_NEXT; at = dev->next[at])
        dev->owner[at] = 0;
    dev->returned++;
    fake_device_lie(dev, done.head, written);
}

bool fake_device_publish(struct fake_device *dev)
{
    uint16_t event;
    bool wanted = false;

    __atomic_store_n(&dev->used->idx, dev->used_idx, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (dev->event_idx) {
        event = __atomic_load_n(used_event(dev), __ATOMIC_RELAXED);
        /* The rule as it is written: an entry whose index equals used_event. */
        for (uint16_t entry = dev->told; entry != dev->used_idx; entry++)
            wanted = wanted || entry == event;
    } else if (dev->told != dev->used_idx) {
        wanted = !(__atomic_load_n(&dev->avail->flags, __ATOMIC_RELAXED) & VRING_AVAIL_F_NO_INTERRUPT);
    }
    dev->told = dev->used_idx;
    dev->interrupts += wanted;
    return wanted;
}

bool fake_device_sleep(struct fake_device *dev, uint16_t ahead)
{
    if (!dev->event_idx)
        ahead = 0;
    if (dev->event_idx)
        __atomic_store_n(avail_event(dev), (uint16_t)(dev->last_avail + ahead), __ATOMIC_RELAXED);
    else
        __atomic_store_n(&dev->used->flags, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    dev->asleep = fake_device_available(dev) <= ahead;
    return dev->asleep;
}

void fake_device_poll(struct fake_device *dev)
{
    dev->asleep = false;
    if (dev->event_idx)
        __atomic_store_n(avail_event(dev), (uint16_t)(dev->last_avail - 1), __ATOMIC_RELAXED);
    else
        __atomic_store_n(&dev->used->flags, VRING_USED_F_NO_NOTIFY, __ATOMIC_RELAXED);
}

void fake_device_jump(struct fake_device *dev, uint16_t used_idx)
{
    dev->used_idx = used_idx;
    __atomic_store_n(&dev->used->idx, used_idx, __ATOMIC_RELEASE);
}

/* Area queues: sizes, places, vectors and notification addresses. */
#include <stddef.h>
#include "apps/conform/areas.h"
#include "apps/conform/rig.h"

static uint16_t select_size(uint32_t queue)
{
    mmio_write16(RIG_COMMON(queue_select), (uint16_t)queue);
    return mmio_read16(RIG_COMMON(queue_size));
}

/* All features, so that all queues are there. */
static bool all_queues(uint16_t *count)
{
    bool good = rig_negotiate(rig_usable() | rig_always());
    *count = mmio_read16(RIG_COMMON(num_queues));
    return good;
}

static enum verdict enough(void)
{
    uint16_t count, pairs = 1;
    if (!all_queues(&count))
        return rig_failed();
    if (rig_offers(VIRTIO_NET_F_MQ) || rig_offers(VIRTIO_NET_F_RSS))
        rig.transport.ops->config_read(&rig.transport, offsetof(struct virtio_net_config, max_virtqueue_pairs), &pairs,
                                       2);
    uint32_t need = 2u * pairs + (rig_offers(VIRTIO_NET_F_CTRL_VQ) ? 1 : 0);
    tap_note("num_queues", "%u, for %u pairs and %s control queue", count, pairs,
             rig_offers(VIRTIO_NET_F_CTRL_VQ) ? "a" : "no");
    for (uint32_t i = 0; i < need && i < count; i++)
        if (select_size(i) == 0)
            return tap_fail("a size", "queue_size 0 of queue %u", i);
    return count >= need ? PASS : FAIL;
}

static enum verdict powers_of_two(void)
{
    uint16_t count;
    if (!all_queues(&count))
        return rig_failed();
    for (uint32_t i = 0; i < count; i++) {
        uint16_t size = select_size(i);
        if ((size & (size - 1)) != 0 || size > VIRTQUEUE_MAX_SIZE)
            return tap_fail("0 or a power of two up to 32768", "queue_size %u of queue %u", size, i);
    }
    return PASS;
}

static enum verdict none_beyond(void)
{
    uint16_t count;
    if (!all_queues(&count))
        return rig_failed();
    const uint32_t beyond[] = { count, count + 1u, 0x8000, 0xffff };
    for (unsigned i = 0; i < 4; i++)
        if (beyond[i] >= count && beyond[i] <= 0xffff && select_size(beyond[i]) != 0)
            return tap_fail("0", "queue_size %u of queue %u, num_queues is %u", select_size(beyond[i]), beyond[i],
                            count);
    return PASS;
}

static enum verdict offsets(void)
{
    uint16_t count;
    if (!all_queues(&count))
        return rig_failed();
    for (uint32_t i = 0; i < count; i++) {
        select_size(i);
        uint64_t at = (uint64_t)mmio_read16(RIG_COMMON(queue_notify_off)) * rig.transport.notify_multiplier;
        if (at + 2 > rig.transport.notify_length)
            return tap_fail("within the notification structure", "queue %u at 0x%llx, its length is 0x%x", i,
                            (unsigned long long)at, rig.transport.notify_length);
    }
    return PASS;
}

static enum verdict sizes_kept(void)
{
    uint16_t count;
    if (!all_queues(&count))
        return rig_failed();
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t max = select_size(i);
        for (uint32_t size = 1; size <= max; size *= 2) {
            mmio_write16(RIG_COMMON(queue_size), (uint16_t)size);
            uint16_t got = mmio_read16(RIG_COMMON(queue_size));
            if (got != size)
                return tap_fail("what was written", "queue_size %u of queue %u after %u was written", got, i, size);
        }
        tap_note("sizes", "queue %u: 1 to %u", i, max);
    }
    return PASS;
}

static enum verdict places_kept(void)
{
    if (!rig_up(&(struct rig_options){ .post = RIG_POST_NONE }))
        return rig_failed();
    for (uint16_t i = 0; i < 2; i++) {
        const struct virtqueue *vq = &rig.queue[i].vq;
        select_size(i);
        uint32_t got[3] = { mmio_read32(RIG_COMMON(queue_desc_lo)), mmio_read32(RIG_COMMON(queue_avail_lo)),
                            mmio_read32(RIG_COMMON(queue_used_lo)) };
        const void *put[3] = { vq->desc, vq->avail, vq->used };
        for (unsigned k = 0; k < 3; k++)
            if (got[k] != (uint32_t)(uintptr_t)put[k])
                return tap_fail("what was written", "queue %u, area %u: 0x%x instead of 0x%x", i, k, got[k],
                                (uint32_t)(uintptr_t)put[k]);
    }
    return PASS;
}

static enum verdict enabled(void)
{
    if (!rig_up(&(struct rig_options){ .post = RIG_POST_NONE }))
        return rig_failed();
    for (uint16_t i = 0; i < 2; i++) {
        select_size(i);
        uint16_t on = mmio_read16(RIG_COMMON(queue_enable));
        if (on != 1)
            return tap_fail("1", "queue_enable %u of queue %u", on, i);
    }
    return PASS;
}

/* Writes a vector to both registers; returns what they show: alike, or 0xfffe. */
static uint16_t map(uint16_t vector)
{
    mmio_write16(RIG_COMMON(msix_config), vector);
    uint16_t config = mmio_read16(RIG_COMMON(msix_config));
    select_size(0);
    mmio_write16(RIG_COMMON(queue_msix_vector), vector);
    return mmio_read16(RIG_COMMON(queue_msix_vector)) == config ? config : 0xfffe;
}

static enum verdict vectors(void)
{
    uint16_t count;
    if (rig.msix.count == 0)
        return tap_skip("not offered: msix");
    if (!all_queues(&count))
        return rig_failed();
    msix_enable(&rig.msix, true);
    for (uint16_t v = 0; v < rig.msix.count; v++) {
        uint16_t got = map(v);
        if (got != v)
            return tap_fail("the vector that was written", "0x%x for vector %u of %u", got, v, rig.msix.count);
    }
    return PASS;
}

static enum verdict no_such_vector(void)
{
    uint16_t count;
    if (rig.msix.count == 0)
        return tap_skip("not offered: msix");
    if (!all_queues(&count))
        return rig_failed();
    msix_enable(&rig.msix, true);
    uint16_t got = map(rig.msix.count);
    return got == VIRTIO_NO_VECTOR
               ? PASS
               : tap_fail("0xffff", "0x%x for vector %u, which does not exist", got, rig.msix.count);
}

static const struct check checks[] = {
    { "5.1.2", "there is a queue for each half of each pair, and for control", false, 0, enough },
    { "4.1.4.3.1", "queue_size is a power of two", false, 0, powers_of_two },
    { "4.1.4.3.1", "queue_size is 0 for a queue that is not there", false, 0, none_beyond },
    { "4.1.4.4.1", "each queue's notification address lies within the structure", false, 0, offsets },
    { "4.1.4.3", "queue_size keeps each power of two up to the largest", false, 0, sizes_kept },
    { "4.1.4.3", "the areas' addresses can be read back", false, 0, places_kept },
    { "4.1.4.3", "queue_enable reads 1 once a queue is enabled", false, 0, enabled },
    { "4.1.5.1.2.1", "each vector can be mapped, and reads as mapped", false, 0, vectors },
    { "4.1.5.1.2.1", "a vector that does not exist reads as NO_VECTOR", false, 0, no_such_vector },
};

const struct area area_queues = AREA("queues", checks);

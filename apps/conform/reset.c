/* Area reset: what a reset ends, and what begins again after it. */
#include <stddef.h>
#include "apps/conform/areas.h"
#include "apps/conform/peer.h"

#define TIMES     10
#define UNDER_WAY 16 /* frames that are being sent when the reset comes */
#define QUIET_MS  150

/* A device that has carried traffic, if somebody answers, and has buffers. */
static bool running(void)
{
    if (!rig_up(&(struct rig_options){ .features = rig_usable() }))
        return false;
    if (peer.kind != PEER_NONE)
        peer_ask(&(struct peer_question){ .bytes = PEER_PAYLOAD }, NULL);
    return true;
}

static enum verdict status_zero(void)
{
    if (!running())
        return rig_failed();
    rig.transport.ops->set_status(&rig.transport, 0);
    uint8_t status = 0xff;
    for (struct rig_wait w = rig_for(1000); status != 0 && rig_waiting(&w);)
        status = rig.transport.ops->status(&rig.transport);
    return status == 0 ? PASS : tap_fail("0 within a second", "device_status 0x%x", status);
}

static enum verdict status_kept(void)
{
    static const uint8_t steps[] = { 1, 3 };
    rig_down();
    for (unsigned i = 0; i < sizeof steps; i++) {
        rig.transport.ops->set_status(&rig.transport, steps[i]);
        uint8_t status = rig.transport.ops->status(&rig.transport);
        if (status != steps[i])
            return tap_fail("what was written", "device_status 0x%x after 0x%x was written", status, steps[i]);
    }
    return PASS;
}

/* Buffers lie in both rings, and the device is told: it may not touch them yet. */
static enum verdict before_driver_ok(void)
{
    static const struct rig_options options = { .not_ok = true };
    static const uint8_t frame[60] = { 255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 9, 0x88, 0xb5 };
    if (!rig_up(&options))
        return rig_failed();
    rig_send(0, frame, sizeof frame, NULL);
    for (unsigned i = 0; i < 2; i++)
        rig.transport.ops->notify(&rig.transport, &rig.queue[i].vq);
    rig_sleep(QUIET_MS);
    for (unsigned i = 0; i < 2; i++)
        if (rig.queue[i].vq.used->idx != 0)
            return tap_fail("no used buffer before DRIVER_OK", "queue %u: used idx %u", i, rig.queue[i].vq.used->idx);
    if (rig_interrupts(rig_rx(0)) != 0 || rig_interrupts(rig_tx(0)) != 0)
        return tap_fail("no notification before DRIVER_OK", "%u",
                        rig_interrupts(rig_rx(0)) + rig_interrupts(rig_tx(0)));
    if (!rig_go(&options))
        return rig_failed();
    return PASS;
}

/* Buffers that were there before DRIVER_OK are good buffers afterwards. */
static enum verdict after_driver_ok(void)
{
    static const struct rig_options options = { .not_ok = true };
    if (!rig_up(&options) || !rig_go(&options))
        return rig_failed();
    for (unsigned i = 0; i < 2; i++)
        rig.transport.ops->notify(&rig.transport, &rig.queue[i].vq);
    return peer_works(PEER_PAYLOAD);
}

/* Frames are under way, and answers to them, when the reset comes. */
static enum verdict quiet_after(void)
{
    if (!running())
        return rig_failed();
    for (unsigned i = 0; i < UNDER_WAY; i++)
        peer_send(&(struct peer_question){ .bytes = 256 });
    if (!rig_down())
        return rig_failed();
    uint32_t sum = rig_memory_sum(), interrupts = rig_interrupts(rig_rx(0)) + rig_interrupts(rig_tx(0));
    rig_sleep(QUIET_MS);
    if (rig_memory_sum() != sum)
        return tap_fail("rings and buffers stay as they are after the reset", "they changed within %u ms", QUIET_MS);
    /* One that was sent before may have waited in the interrupt controller: it is let in by the first look. */
    uint32_t more = rig_interrupts(rig_rx(0)) + rig_interrupts(rig_tx(0)) - interrupts;
    return more <= 2 ? PASS : tap_fail("no notifications after the reset", "%u", more);
}

static enum verdict queues_off(void)
{
    if (!running())
        return rig_failed();
    uint16_t size = rig_rx(0)->vq.size;
    rig_down();
    for (uint16_t i = 0; i < rig.num_queues; i++) {
        mmio_write16(RIG_COMMON(queue_select), i);
        uint16_t on = mmio_read16(RIG_COMMON(queue_enable));
        if (on != 0)
            return tap_fail("0", "queue_enable %u of queue %u, which had size %u", on, i, size);
    }
    return PASS;
}

static enum verdict sizes_back(void)
{
    if (!rig_up(&(struct rig_options){ .ring = 8 }))
        return rig_failed();
    uint16_t max[2] = { rig_rx(0)->max, rig_tx(0)->max };
    rig_down();
    for (uint16_t i = 0; i < 2; i++) {
        uint16_t size = rig.transport.ops->queue_size(&rig.transport, i);
        if (size != max[i])
            return tap_fail("the device's largest again", "queue_size %u of queue %u, before %u", size, i, max[i]);
    }
    return PASS;
}

static enum verdict vectors_off(void)
{
    if (rig.msix.count == 0)
        return tap_skip("not offered: msix");
    if (!running())
        return rig_failed();
    rig_down();
    uint16_t vector = mmio_read16(RIG_COMMON(msix_config));
    if (vector != VIRTIO_NO_VECTOR)
        return tap_fail("0xffff", "msix_config 0x%x", vector);
    for (uint16_t i = 0; i < 2; i++) {
        mmio_write16(RIG_COMMON(queue_select), i);
        vector = mmio_read16(RIG_COMMON(queue_msix_vector));
        if (vector != VIRTIO_NO_VECTOR)
            return tap_fail("0xffff", "queue_msix_vector 0x%x of queue %u", vector, i);
    }
    return PASS;
}

static enum verdict same_features(void)
{
    for (unsigned i = 0; i < 3; i++)
        if (!rig_up(&(struct rig_options){ .features = rig_usable() }))
            return rig_failed();
    return PASS;
}

static enum verdict many_times(void)
{
    for (unsigned i = 0; i < TIMES; i++) {
        if (!rig_up(&(struct rig_options){ .features = i % 2 ? rig_usable() : 0, .ring = (uint16_t)(8 << i % 5) }))
            return rig_failed();
        if (peer_works(PEER_PAYLOAD) != PASS) {
            tap_note("reset", "number %u of %u", i + 1, TIMES);
            return FAIL;
        }
    }
    return PASS;
}

static const struct check checks[] = {
    { "2.4.1", "device_status is 0 within a second after a reset", false, 0, status_zero },
    { "2.1.2", "device_status keeps what a driver sets", false, 0, status_kept },
    { "2.1.2", "no buffer is used and nothing is notified before DRIVER_OK", false, 0, before_driver_ok },
    { "3.1.1", "buffers from before DRIVER_OK serve after it", true, 0, after_driver_ok },
    { "2.4.1", "queues and buffers are left alone after a reset", false, 0, quiet_after },
    { "4.1.4.3.1", "queue_enable is 0 after a reset", false, 0, queues_off },
    { "4.1.4.3", "queue_size is the largest again after a reset", false, 0, sizes_back },
    { "4.1.5.1.2.1", "no event has a vector after a reset", false, 0, vectors_off },
    { "2.2.2", "the same features are accepted after a reset", false, 0, same_features },
    { "2.4.1", "the device serves after each of ten resets", true, 0, many_times },
};

const struct area area_reset = AREA("reset", checks);

/* Area events: notifications both ways, and their suppression. Interrupts of different queues may share a vector (few
 * vectors, INTx): a check asks for those of one queue alone, or for none. */
#include "apps/conform/areas.h"
#include "apps/conform/peer.h"
#include "kernel/clock.h"

#define FRAMES               20
#define LATER                8    /* of so many frames the last one's interrupt is asked for */
#define SOON_MS              2000 /* an interrupt that was asked for comes within */
#define SETTLE_MS            20   /* one that was not asked for would have come by then */
#define BACK_MS              5000
#define BURSTS               200
#define SPURIOUS             300
#define ISR_QUEUE            1u
#define PCI_STATUS_INTERRUPT 8u

static const uint8_t idle_frame[60] = { 2, 0x52, 0x53, 0, 0, 2, 2, 0x52, 0x53, 0, 0, 1, 0x88, 0xb5 };

static bool up(bool event_idx, uint16_t ring)
{
    uint64_t without = event_idx ? 0 : rig_bit(VIRTIO_RING_F_EVENT_IDX);
    return rig_up(&(struct rig_options){ .features = rig_usable() & ~without, .ring = ring });
}

static volatile uint16_t *used_event(struct rig_queue *q)
{
    return &q->vq.avail->ring[q->vq.size];
}

/* Asks for the interrupt of the `after`th buffer from now. */
static void arm(struct rig_queue *q, uint16_t after)
{
    virtqueue_enable_callbacks(&q->vq);
    if (q->vq.event_idx)
        *used_event(q) = (uint16_t)(q->vq.last_used + after - 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Nothing is answered here: an ARP answer would be one more frame that is sent, and counted. */
static void drop_received(void)
{
    struct rig_frame frame;
    while (rig_receive(&frame, 0))
        ;
}

static uint32_t all_interrupts(void)
{
    return rig_interrupts(rig_tx(0)) + (rig.shared ? 0 : rig_interrupts(rig_rx(0)));
}

/* Sends `count` idle frames, one after the other; false if one is not used in time. */
static bool one_by_one(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        rig_send(0, idle_frame, sizeof idle_frame, NULL);
        rig_reclaim(0, BACK_MS);
        drop_received();
        if (rig_tx(0)->vq.in_flight != 0)
            return false;
    }
    return true;
}

static enum verdict not_used(void)
{
    return tap_fail("frames are used", "%u of %u not within %u ms", rig_tx(0)->vq.in_flight, rig_tx(0)->given, BACK_MS);
}

/* Waits for more interrupts of the queue than `before`. */
static bool interrupted(const struct rig_queue *q, uint32_t before, unsigned ms)
{
    for (struct rig_wait w = rig_for(ms); rig_interrupts(q) == before && rig_waiting(&w);)
        ;
    return rig_interrupts(q) != before;
}

/* The first used buffer of each queue, which does not count: QEMU and Linux's vhost do not know yet of what they have
 * told, and interrupt. */
static bool first_ones(void)
{
    bool used = one_by_one(1);
    if (peer.kind != PEER_NONE)
        peer_ask(&(struct peer_question){ .bytes = PEER_PAYLOAD }, NULL);
    rig_sleep(SETTLE_MS);
    return used;
}

static bool has_interrupts(void)
{
    return rig.msix.count != 0 || (rig.pci.irq_pin != 0 && rig.pci.irq_line <= 15);
}

/* ---- interrupts ---- */

/* Nobody asks for any, as the rings are after rig_up(). */
static enum verdict none_come(bool event_idx)
{
    if (!up(event_idx, 64))
        return rig_failed();
    if (!first_ones())
        return not_used();
    uint32_t before = all_interrupts();
    if (!one_by_one(FRAMES))
        return not_used();
    for (unsigned i = 0; i < FRAMES / 4 && peer.kind != PEER_NONE; i++)
        peer_ask(&(struct peer_question){ .bytes = PEER_PAYLOAD }, NULL);
    rig_sleep(SETTLE_MS);
    uint32_t got = all_interrupts() - before;
    if (before != 0)
        tap_note("first", "%u for the first used buffers, not counted", before);
    return got == 0 ? PASS
                    : tap_fail("none", "%u for %u used buffers", got, rig_tx(0)->facts.taken + rig_rx(0)->facts.taken);
}

static enum verdict none_by_flag(void)
{
    return none_come(false);
}

static enum verdict none_by_event(void)
{
    return none_come(true);
}

/* Each frame's own interrupt is asked for, and the next is sent when it has come. */
static enum verdict each_comes(bool event_idx)
{
    if (!has_interrupts())
        return tap_skip("not offered: interrupts");
    if (!up(event_idx, 64))
        return rig_failed();
    for (unsigned i = 0; i < FRAMES; i++) {
        uint32_t before = rig_interrupts(rig_tx(0));
        arm(rig_tx(0), 1);
        rig_send(0, idle_frame, sizeof idle_frame, NULL);
        if (!interrupted(rig_tx(0), before, SOON_MS)) {
            rig_reclaim(0, 0);
            return tap_fail("an interrupt", "none within %u ms for frame %u, which is %s", SOON_MS, i,
                            rig_tx(0)->vq.in_flight != 0 ? "not used" : "used");
        }
        rig_reclaim(0, BACK_MS);
        drop_received();
    }
    return PASS;
}

static enum verdict each_by_flag(void)
{
    return each_comes(false);
}

static enum verdict each_by_event(void)
{
    return each_comes(true);
}

static enum verdict for_received(void)
{
    if (!has_interrupts())
        return tap_skip("not offered: interrupts");
    if (!up(true, 64))
        return rig_failed();
    for (unsigned i = 0; i < FRAMES / 4; i++) {
        bool came = false;
        for (unsigned tries = 0; tries < PEER_TRIES && !came; tries++) {
            uint32_t before = rig_interrupts(rig_rx(0));
            arm(rig_rx(0), 1);
            peer_send(&(struct peer_question){ .bytes = PEER_PAYLOAD });
            came = interrupted(rig_rx(0), before, PEER_WAIT);
            if (!came && virtqueue_pending(&rig_rx(0)->vq))
                return tap_fail("an interrupt", "none within %u ms for a received frame that lies there", PEER_WAIT);
            rig_reclaim(0, BACK_MS);
            drop_received();
        }
        if (!came)
            return tap_fail("an answer", "none in %u tries", PEER_TRIES);
    }
    return PASS;
}

/* The interrupt of the eighth frame is asked for; they are sent one by one. */
static enum verdict late(void)
{
    if (!has_interrupts())
        return tap_skip("not offered: interrupts");
    if (!up(true, 64))
        return rig_failed();
    if (!first_ones())
        return not_used();
    for (unsigned round = 0; round < 4; round++) {
        uint32_t before = rig_interrupts(rig_tx(0));
        arm(rig_tx(0), LATER);
        if (!one_by_one(LATER - 1))
            return not_used();
        rig_sleep(SETTLE_MS);
        if (rig_interrupts(rig_tx(0)) != before)
            return tap_fail("none before it", "an interrupt among the first %u of %u frames", LATER - 1, LATER);
        if (!one_by_one(1))
            return not_used();
        if (!interrupted(rig_tx(0), before, SOON_MS))
            return tap_fail("an interrupt", "none within %u ms for frame %u, as asked", SOON_MS, LATER);
    }
    return PASS;
}

/* With the event index the flag says nothing, and without it used_event does not. */
static enum verdict other_ignored(bool event_idx)
{
    if (!has_interrupts())
        return tap_skip("not offered: interrupts");
    if (!up(event_idx, 64))
        return rig_failed();
    for (unsigned i = 0; i < FRAMES; i++) {
        uint32_t before = rig_interrupts(rig_tx(0));
        arm(rig_tx(0), 1);
        if (event_idx)
            rig_tx(0)->vq.avail->flags = VRING_AVAIL_F_NO_INTERRUPT;
        else
            *used_event(rig_tx(0)) = (uint16_t)(rig_tx(0)->vq.last_used + 1000);
        rig_send(0, idle_frame, sizeof idle_frame, NULL);
        if (!interrupted(rig_tx(0), before, SOON_MS))
            return tap_fail("an interrupt", "none within %u ms", SOON_MS);
        rig_reclaim(0, BACK_MS);
        drop_received();
    }
    return PASS;
}

static enum verdict flag_ignored(void)
{
    return other_ignored(true);
}

static enum verdict event_ignored(void)
{
    return other_ignored(false);
}

static enum verdict no_vector(void)
{
    if (rig.msix.count == 0)
        return tap_skip("not offered: msix");
    if (!rig_up(&(struct rig_options){ .features = rig_usable(), .no_vectors = true }))
        return rig_failed();
    for (unsigned i = 0; i < FRAMES; i++) {
        arm(rig_tx(0), 1);
        if (!one_by_one(1))
            return not_used();
    }
    rig_sleep(SETTLE_MS);
    uint32_t got = rig_interrupts(rig_tx(0)) + rig_interrupts(rig_rx(0)) + rig_config_interrupts();
    return got == 0 ? PASS : tap_fail("none", "%u with NO_VECTOR for all queues", got);
}

/* Reads ISR status until it is 0 and the interrupt gone, a few times: one more may come meanwhile, for a buffer of
 * another queue. Returns what ISR status was last; *status: PCI status after it. */
static uint8_t isr_rest(uint16_t *status)
{
    uint8_t left;
    struct rig_wait w = rig_for(SETTLE_MS);
    do {
        left = rig.transport.ops->isr(&rig.transport);
        *status = (uint16_t)pci_read(&rig.pci, PCI_STATUS, 2);
    } while ((left != 0 || *status & PCI_STATUS_INTERRUPT) && clock_ns() < w.until);
    return left;
}

/* INTx, looked at without taking the interrupt: no function is called that lets it in. */
static enum verdict isr(void)
{
    struct virtio_transport *t = &rig.transport;
    if (rig.pci.irq_pin == 0)
        return tap_skip("not offered: intx");
    if (!rig_up(&(struct rig_options){ .features = rig_usable(), .intx = true }))
        return rig_failed();
    t->ops->isr(t);
    arm(rig_tx(0), 1);
    rig_send(0, idle_frame, sizeof idle_frame, NULL);
    uint16_t status = 0;
    struct rig_wait w = rig_for(SOON_MS);
    while (clock_ns() < w.until && !(status & PCI_STATUS_INTERRUPT))
        status = (uint16_t)pci_read(&rig.pci, PCI_STATUS, 2);
    uint16_t after;
    uint8_t first = t->ops->isr(t), rest = isr_rest(&after);
    tap_note("isr", "0x%x, in the end 0x%x; PCI status 0x%x, in the end 0x%x", first, rest, status, after);
    if (!(first & ISR_QUEUE))
        return tap_fail("the queue bit", "ISR status 0x%x after a used buffer", first);
    if (!(status & PCI_STATUS_INTERRUPT) || after & PCI_STATUS_INTERRUPT)
        return tap_fail("the interrupt bit while ISR status is not 0", "PCI status 0x%x, then 0x%x", status, after);
    return rest == 0 ? PASS : tap_fail("0 once it was read", "ISR status 0x%x", rest);
}

/* ---- kicks ---- */

/* Bursts of frames of which the device is told only when it says that it wants to be. */
static enum verdict kicks(bool event_idx)
{
    if (!up(event_idx, 128))
        return rig_failed();
    struct rig_queue *q = rig_tx(0);
    for (unsigned i = 0; i < BURSTS; i++) {
        for (unsigned n = 0; n < 1 + i % 16; n++)
            rig_send(0, idle_frame, sizeof idle_frame, NULL);
        rig_reclaim(0, i % 4 == 0 ? BACK_MS : 0);
        drop_received();
        if (i % 4 == 0 && q->vq.in_flight != 0)
            break;
    }
    rig_reclaim(0, BACK_MS);
    tap_note("kicks", "%u wanted, %u not wanted, %u frames", (unsigned)q->vq.stats.kicks,
             (unsigned)q->vq.stats.kicks_suppressed, q->given);
    return q->vq.in_flight == 0 ? PASS : not_used();
}

static enum verdict kicks_by_flag(void)
{
    return kicks(false);
}

static enum verdict kicks_by_event(void)
{
    return kicks(true);
}

/* A kick that the device wanted and did not get: the next one is for all that lies there. */
static enum verdict lost_kick(void)
{
    if (!up(true, 64))
        return rig_failed();
    struct rig_queue *q = rig_tx(0);
    unsigned waited = 0;
    for (unsigned i = 0; i < FRAMES; i++) {
        rig_send(0, idle_frame, sizeof idle_frame, &(struct rig_sending){ .quiet = true });
        bool wanted = rig_publish(q, RIG_KICK_NEVER);
        rig_sleep(1);
        rig_reclaim(0, 0);
        waited += wanted && q->vq.in_flight != 0;
        rig_send(0, idle_frame, sizeof idle_frame, &(struct rig_sending){ .quiet = true });
        rig_publish(q, RIG_KICK_ALWAYS);
        rig_reclaim(0, BACK_MS);
        drop_received();
        if (q->vq.in_flight != 0)
            return not_used();
    }
    tap_note("left out", "%u kicks, after which %u times nothing happened", FRAMES, waited);
    return PASS;
}

static enum verdict spurious_kicks(void)
{
    if (!up(true, 64))
        return rig_failed();
    for (unsigned i = 0; i < SPURIOUS; i++)
        for (unsigned k = 0; k < 2; k++)
            rig.transport.ops->notify(&rig.transport, &rig.queue[k].vq);
    if (!one_by_one(FRAMES))
        return not_used();
    return rig_faultless();
}

static enum verdict used_flags(bool event_idx, uint16_t most)
{
    if (!up(event_idx, 64))
        return rig_failed();
    for (unsigned i = 0; i < FRAMES; i++) {
        for (unsigned n = 0; n < 8; n++) {
            rig_send(0, idle_frame, sizeof idle_frame, NULL);
            for (unsigned k = 0; k < 2; k++) {
                uint16_t flags = *(volatile uint16_t *)&rig.queue[k].vq.used->flags;
                if (flags > most)
                    return tap_fail(most ? "0 or 1" : "0", "used flags 0x%x of queue %u", flags, k);
            }
        }
        rig_reclaim(0, BACK_MS);
        drop_received();
    }
    return rig_tx(0)->vq.in_flight == 0 ? PASS : not_used();
}

static enum verdict flags_without(void)
{
    return used_flags(false, 1);
}

static enum verdict flags_with(void)
{
    return used_flags(true, 0);
}

#define EVENT NEEDS(VIRTIO_RING_F_EVENT_IDX)

static const struct check checks[] = {
    { "2.7.7.2", "no interrupt comes while the flag says none (no event index)", false, 0, none_by_flag },
    { "2.7.7.2", "each used buffer's interrupt comes (no event index)", false, 0, each_by_flag },
    { "2.7.7.2", "used_event says nothing without the event index", false, 0, event_ignored },
    { "2.7.7.2", "no interrupt comes while used_event asks for none", false, EVENT, none_by_event },
    { "2.7.7.2", "the interrupt that used_event asks for comes", false, EVENT, each_by_event },
    { "2.7.7.2", "the interrupt of a received frame comes", true, EVENT, for_received },
    { "2.7.7.2", "an interrupt asked for late comes then and not before", false, EVENT, late },
    { "2.7.7.2", "the flag says nothing with the event index", false, EVENT, flag_ignored },
    { "4.1.5.3.1", "a queue without a vector does not interrupt", false, 0, no_vector },
    { "4.1.4.5.1", "INTx: ISR status tells of a used buffer, and is 0 once read", false, 0, isr },
    { "2.7.10.2", "a kick that is not wanted is not needed (no event index)", false, 0, kicks_by_flag },
    { "2.7.10.2", "a kick that avail_event does not want is not needed", false, EVENT, kicks_by_event },
    { "2.7.10.2", "the next kick makes up for one that was left out", false, 0, lost_kick },
    { "2.7.10.2", "kicks for nothing do no harm", false, 0, spurious_kicks },
    { "2.7.10.2", "used flags are 0 or 1 (no event index)", false, 0, flags_without },
    { "2.7.10.2", "used flags are 0 with the event index", false, EVENT, flags_with },
};

const struct area area_events = AREA("events", checks);

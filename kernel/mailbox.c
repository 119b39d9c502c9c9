/* Messages between cores. See mailbox.h.
 *
 * Who writes what: a ring's head and slots, its sender; its tail, its receiver; a bell's `senders`, all senders (set)
 * and the receiver (take all); `halted`, the receiver (set, clear) and a sender that will wake it (clear).
 *
 * Two races are closed here, and nothing else has to be:
 *
 * 1. Contents. The sender writes slots, then the head that covers them (release); the receiver reads the head
 *    (acquire), then slots. Back the same way with the tail, so that a slot is not overwritten while it is read.
 *
 * 2. Sleep. The sender publishes the head, sets its bit in the bell, then looks whether the receiver is halted. The
 *    receiver says that it is halted, then looks for bits. Were one of the two looks done before the store in front of
 *    it is visible (as processors do with a load after a store), both could miss: the sender finds nobody to wake, the
 *    receiver finds nothing to do and sleeps on a message. So both stores and both loads are sequentially consistent
 *    (on x86 the stores are locked instructions, which are full fences): in their one order, either the bit comes
 *    before the receiver's look, or `halted` before the sender's.
 *
 * A sender that finds the receiver halted takes the duty to wake it by exchanging `halted` for 0; later senders find 0
 * and send no interrupt. They lose nothing: the receiver is going to run, and looks at all bits once more before it
 * sleeps again, after having said again that it is halted. */
#include <string.h>
#include "kernel/mailbox.h"

#define load_acquire(p)     __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define load_relaxed(p)     __atomic_load_n(p, __ATOMIC_RELAXED)
#define store_release(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

static uint64_t bit(uint32_t core)
{
    return 1ull << core;
}

static size_t ring_bytes(uint32_t slots)
{
    size_t n = sizeof(struct mailbox_ring) + (size_t)slots * sizeof(struct message);
    return (n + CACHE_LINE - 1) & ~(size_t)(CACHE_LINE - 1);
}

size_t mailbox_bytes(uint32_t cores, uint32_t slots)
{
    if (cores == 0 || cores > MAILBOX_MAX_CORES || slots == 0 || (slots & (slots - 1)) != 0)
        return 0;
    return sizeof(struct mailbox_system) + ring_bytes(slots) * cores * cores;
}

struct mailbox_system *mailbox_system_init(void *memory, uint32_t cores, uint32_t slots)
{
    struct mailbox_system *system = memory;
    memset(memory, 0, mailbox_bytes(cores, slots));
    system->cores = cores;
    system->slots = slots;
    system->ring_bytes = ring_bytes(slots);
    return system;
}

void mailbox_open(struct mailbox *box, struct mailbox_system *system, uint32_t core)
{
    *box = (struct mailbox){ .system = system, .bell = &system->bell[core], .core = core };
    for (uint32_t other = 0; other < system->cores; other++) {
        const struct mailbox_ring *to = mailbox_ring_between(system, core, other);
        box->head[other] = load_relaxed(&to->head);
        box->tail[other] = load_acquire(&to->tail);
        box->pending |= bit(other); /* whose bell was heard, but whose ring not emptied, is not known any more */
    }
}

bool mailbox_post(struct mailbox *box, uint32_t to, const struct message *message)
{
    struct mailbox_ring *ring = mailbox_ring_between(box->system, box->core, to);
    uint32_t head = box->head[to], slots = box->system->slots;
    if (head - box->tail[to] >= slots) {
        /* Only now: the receiver writes its tail with every message, and each look takes the cache line from it. */
        box->tail[to] = load_acquire(&ring->tail);
        if (head - box->tail[to] >= slots) {
            box->stats.overflow++;
            return false;
        }
    }
    ring->slot[head & (slots - 1)] = *message;
    box->head[to] = head + 1;
    box->unrung |= bit(to);
    box->stats.sent++;
    return true;
}

uint64_t mailbox_ring(struct mailbox *box)
{
    uint64_t wake = 0, left = box->unrung;
    for (; left != 0; left &= left - 1) {
        uint32_t to = (uint32_t)__builtin_ctzll(left);
        struct mailbox_bell *bell = &box->system->bell[to];
        store_release(&mailbox_ring_between(box->system, box->core, to)->head, box->head[to]);
        /* Race 2 of the file's head: the bit, fully visible, before the look at `halted`. */
        __atomic_fetch_or(&bell->senders, bit(box->core), __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&bell->halted, __ATOMIC_SEQ_CST) != 0 &&
            __atomic_exchange_n(&bell->halted, 0, __ATOMIC_SEQ_CST) != 0) {
            wake |= bit(to);
            box->stats.wakes++;
        }
    }
    box->unrung = 0;
    return wake;
}

/* The first core with a bit in `cores` (not 0), from `turn` on and round. */
static uint32_t first_from(uint64_t cores, uint32_t turn)
{
    uint64_t later = cores & ~(bit(turn) - 1);
    return (uint32_t)__builtin_ctzll(later != 0 ? later : cores);
}

bool mailbox_take(struct mailbox *box, uint32_t *from, struct message *message)
{
    struct mailbox_bell *bell = box->bell;
    /* Look before exchanging: without news the cache line stays shared. The bits are taken before the rings are looked
     * at: whoever posts after a ring was found empty sets its bit anew. */
    if (load_relaxed(&bell->senders) != 0)
        box->pending |= __atomic_exchange_n(&bell->senders, 0, __ATOMIC_SEQ_CST);
    while (box->pending != 0) {
        uint32_t sender = first_from(box->pending, box->turn);
        struct mailbox_ring *ring = mailbox_ring_between(box->system, sender, box->core);
        uint32_t tail = load_relaxed(&ring->tail);
        if (load_acquire(&ring->head) == tail) {
            box->pending &= ~bit(sender);
            continue;
        }
        *message = ring->slot[tail & (box->system->slots - 1)];
        *from = sender;
        store_release(&ring->tail, tail + 1);
        box->turn = (sender + 1) % MAILBOX_MAX_CORES;
        box->stats.received++;
        return true;
    }
    return false;
}

bool mailbox_sleep(struct mailbox *box)
{
    struct mailbox_bell *bell = box->bell;
    if (box->pending != 0 || box->unrung != 0)
        return false;
    /* Race 2 of the file's head: `halted`, fully visible, before the look for bits. */
    __atomic_exchange_n(&bell->halted, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&bell->senders, __ATOMIC_SEQ_CST) == 0)
        return true;
    mailbox_awake(box);
    return false;
}

void mailbox_awake(struct mailbox *box)
{
    struct mailbox_bell *bell = box->bell;
    /* A sender that is late in seeing this sends an interrupt to a core that runs: needless, and harmless. */
    if (load_relaxed(&bell->halted) != 0)
        __atomic_store_n(&bell->halted, 0, __ATOMIC_RELAXED);
}

/* Messages between cores: data only (a kind and a few words), since another core's functions and variables are another
 * copy's.
 *
 * For every ordered pair of cores there is one single-producer single-consumer ring, so nobody takes a lock. Each core
 * has a bell: a bitmap with a bit for every core that has sent something since it last looked, and a word that says
 * whether it is halted. A sender wakes a core with an interrupt only when it is. Compiles on the host.
 *
 * This memory is shared by design: it is the one thing, beside packet buffers and public counters, that a core writes
 * and another reads while packets flow. */
#ifndef RINGSIDE_MAILBOX_H
#define RINGSIDE_MAILBOX_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAILBOX_MAX_CORES 64
#define CACHE_LINE        64

/* One message; what a, b, c and d mean, the kind says (net/messages.h). */
struct message {
    uint16_t kind;
    uint16_t a;
    uint32_t b;
    uint64_t c, d;
    uint64_t e;
};
_Static_assert(sizeof(struct message) == 32, "two messages to a cache line");

/* The ring from one core to another. */
struct mailbox_ring {
    _Alignas(CACHE_LINE) uint32_t head; /* next to write, published by the sender */
    _Alignas(CACHE_LINE) uint32_t tail; /* next to read, published by the receiver */
    _Alignas(CACHE_LINE) struct message slot[];
};

/* What a core's senders touch. */
struct mailbox_bell {
    _Alignas(CACHE_LINE) uint64_t senders; /* bit per core with something unseen */
    uint32_t
        halted; /* the core sleeps, or is about to, and nobody has undertaken to wake it yet: it wants an interrupt */
};

/* All rings and bells of a machine; one for all cores, made by core 0. */
struct mailbox_system {
    uint32_t cores, slots; /* slots per ring: a power of two */
    size_t ring_bytes;
    struct mailbox_bell bell[MAILBOX_MAX_CORES];
    _Alignas(CACHE_LINE) char rings[];
};

/* A core's own end: private to it. */
struct mailbox {
    struct mailbox_system *system;
    struct mailbox_bell *bell; /* this core's */
    uint32_t core;
    uint32_t head[MAILBOX_MAX_CORES]; /* next slot to write of the ring to each core; what was posted but not rung is
                                         not seen */
    uint32_t tail[MAILBOX_MAX_CORES]; /* how far that ring's receiver had read when it last seemed full */
    uint64_t unrung;                  /* cores with messages posted since the last mailbox_ring() */
    uint64_t pending;                 /* senders that rang, and whose rings have not been found empty since */
    uint32_t turn;                    /* the first core whose ring is looked at next */
    struct {
        uint64_t sent, received, overflow, wakes;
    } stats;
};

/* Bytes that a system of `cores` cores (1..MAILBOX_MAX_CORES) with `slots` messages per ring (a power of two) takes; 0:
 * one of the two is out of range. */
size_t mailbox_bytes(uint32_t cores, uint32_t slots);

/* Sets a system up in `memory` (mailbox_bytes() long, at a multiple of CACHE_LINE; cleared here). */
struct mailbox_system *mailbox_system_init(void *memory, uint32_t cores, uint32_t slots);

/* The ring from core `from` to core `to`. */
static inline struct mailbox_ring *mailbox_ring_between(struct mailbox_system *system, uint32_t from, uint32_t to)
{
    return (struct mailbox_ring *)(system->rings + ((size_t)from * system->cores + to) * system->ring_bytes);
}

/* Opens core `core`'s end, going on where the rings are: what lies in them is kept. */
void mailbox_open(struct mailbox *box, struct mailbox_system *system, uint32_t core);

/* Puts a message into the ring to core `to` (itself, too); it is seen after mailbox_ring(). False: the ring is full
 * (counted; never waited for) and the message was not taken. */
bool mailbox_post(struct mailbox *box, uint32_t to, const struct message *message);

/* Makes what was posted visible. Returns the cores (a bit each) that are halted and so need an interrupt: the caller
 * must send it, because nobody else will be asked to. */
uint64_t mailbox_ring(struct mailbox *box);

/* Takes the next message from any core; false: there is none. *from is its sender. Senders are served in turn. */
bool mailbox_take(struct mailbox *box, uint32_t *from, struct message *message);

/* True if mailbox_take() may find something. */
static inline bool mailbox_pending(const struct mailbox *box)
{
    return box->pending != 0 || __atomic_load_n(&box->bell->senders, __ATOMIC_RELAXED) != 0;
}

/* Before halting: says that this core will need an interrupt. True: nothing has come meanwhile, it is safe to halt.
 * False: there is something to take, or to ring; look again (and the core counts as awake). After waking, by whatever:
 * mailbox_awake(). Interrupts are off from before this call until the instruction that halts (sti; hlt), or the
 * interrupt may come between the two and wake nobody. */
bool mailbox_sleep(struct mailbox *box);
void mailbox_awake(struct mailbox *box);
#endif

/* The public area: what cores write while others read it. Every field says who writes it and why it cannot be private.
 * Packets travel by mailbox (kernel/mailbox.h); buffers go home by `returned`. */
#ifndef RINGSIDE_PUBLIC_H
#define RINGSIDE_PUBLIC_H
#include <stdint.h>
#include "kernel/mailbox.h"
#include "kernel/shared.h"

enum core_state {
    CORE_ABSENT,
    CORE_STARTED, /* it runs its copy of the program */
    CORE_READY,   /* its rings are laid out, its buffers posted */
    CORE_FAILED,  /* it has no memory for its queues */
    CORE_STOPPED, /* it leaves its rings alone until the device has been reset (kernel/recover.h) */
};

enum phase {
    PHASE_START, /* cores come up and lay out their queues */
    PHASE_RUN,   /* the device runs */
    PHASE_STOP,  /* it is about to be reset: every core leaves its rings alone */
    PHASE_CLEAR, /* it was reset: every core makes its rings anew */
};

/* A core's public part, on cache lines of its own. */
struct public_core {
    _Alignas(CACHE_LINE) uint32_t state; /* enum core_state; by the core, for core 0 at start-up */
    const void *pair; /* by the core, for core 0, which alone may tell the device of its queues (struct virtnet_pair) */
    const void *counters; /* by the core: where its counters are, for whoever serves them (struct net_counters) */
    uint32_t starved;     /* by the core: it has no receive buffer left; whoever returns one wakes it */
    _Alignas(CACHE_LINE) void
        *returned; /* by others: buffers of this core that they are done with, a list of which this core takes all
                      at once. A list and not a mailbox, because it can never be full. */
};

struct public_area {
    _Alignas(CACHE_LINE) uint32_t console_lock; /* by whoever prints: a line is not to be torn */
    _Alignas(CACHE_LINE) uint32_t phase;        /* enum phase; by core 0, for all at start-up */
    uint32_t reset_wanted; /* 1: by any core, which found the device unusable; 0: by core 0, when it has been reset */
    uint32_t pairs;        /* by core 0: queue pairs in use */
    const void *net;       /* by core 0: the device as negotiated (drivers/virtio/net.h) */
    struct mailbox_system *mailboxes;
    struct public_core core[MAX_CORES];
};
#endif

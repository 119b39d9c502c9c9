/* A device that is no longer usable is reset under the running stacks: it asked for it (DEVICE_NEEDS_RESET), or it
 * broke a ring's rules. Connections and listeners stay; what was in the rings is lost as on a wire, and TCP sends it
 * again.
 *
 * With many cores it is a rendezvous. Any core may ask; core 0 leads: it tells all to stop, and when the last has
 * stopped it resets the device; each clears its own rings and fills them anew; core 0 tells the device of all of them
 * and lets it go; all go on. (virtio 1.3, 2.1.2, 2.4, 3.1.1) */
#ifndef RINGSIDE_RECOVER_H
#define RINGSIDE_RECOVER_H
#include <stdbool.h>
#include <stdint.h>
#include "drivers/virtio/net.h"
#include "lwip/netif.h"

struct recover_stats {
    uint64_t resets;  /* by core 0: times that the device was reset */
    uint64_t ns_down; /* from the request seen to the device running again, added up */
};

/* On every core, before its loop. */
void recover_init(struct netif *netif, struct virtnet *net);

/* Asks for a reset; the console says why. Any core; asking twice is asking once. */
void recover_ask(const char *why);

/* What recover_turn() does when there is something to do. */
void recover_now(void);

/* The word that says so, on this core, and its value while all is well. */
struct recover_watch {
    const uint32_t *word;
    uint32_t calm;
};
extern struct recover_watch recover_watch;

/* In each turn of the loop: takes part in a reset if there is one. */
static inline void recover_turn(void)
{
    if (__builtin_expect(__atomic_load_n(recover_watch.word, __ATOMIC_RELAXED) != recover_watch.calm, 0))
        recover_now();
}

const struct recover_stats *recover_stats(void);
#endif

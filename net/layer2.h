/* Frames without a stack: an application that takes every frame of its core's queue pair, and sends its own
 * (apps=macswap, rxonly, txonly). lwIP is there but gets nothing and sends nothing. */
#ifndef RINGSIDE_NET_LAYER2_H
#define RINGSIDE_NET_LAYER2_H
#include <stdbool.h>
#include <stdint.h>
#include "drivers/virtio/net.h"

/* What such an application is. Both are called from the core's loop (net/loop.c). */
struct layer2 {
    /* Takes a received frame; its buffers are the application's. */
    void (*frame)(struct virtnet_pair *pair, const struct virtnet_frame *frame);
    /* Once before a turn's frames: takes back what was sent, queues what is to be sent, about `budget` of each. The
     * loop makes it visible and rings the doorbell. Returns how much there was to do; NULL: there is nothing. */
    unsigned (*turn)(struct virtnet_pair *pair, unsigned budget);
    /* True if it has something to send and waits for room in the ring. */
    bool (*waiting)(const struct virtnet_pair *pair);
    /* Takes back what it queued itself in the transmit ring (struct rx_buffer); NULL: it sends by slots. */
    void (*sent)(struct virtnet_pair *pair, void *token);
    /* Before the first turn, on core `core` of `cores`; NULL: there is nothing to prepare. */
    void (*begin)(unsigned core, unsigned cores);
};

/* Features that such an application does not want: what comes in goes out again as it is, so it must be whole frames
 * with whole checksums. */
#define LAYER2_WITHOUT                                                                                                 \
    (FEATURE_BIT(VIRTIO_NET_F_CSUM) | FEATURE_BIT(VIRTIO_NET_F_GUEST_CSUM) | FEATURE_BIT(VIRTIO_NET_F_HASH_REPORT))
#endif

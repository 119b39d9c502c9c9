/* The core's loop: receive, work, send, sleep. */
#ifndef RINGSIDE_NET_LOOP_H
#define RINGSIDE_NET_LOOP_H
#include <stdint.h>
#include "drivers/virtio/net.h"
#include "lwip/netif.h"

struct loop_stats {
    uint64_t turns, frames, sleeps;
    uint64_t batches;   /* turns in which there was something to do */
    uint64_t spurious;  /* sleeps that an interrupt of the queues ended without anything in them */
    uint64_t halted_ns; /* time asleep */
    uint64_t polled_ns; /* time looking for work before sleeping, in vain or not */
};

/* Runs until the machine is asked to end (ACPI power button). poll_us: how long to look for work before sleeping;
 * POLL_AUTO adapts. */
void net_loop(struct netif *netif, struct virtnet *dev, uint32_t poll_us);

const struct loop_stats *net_loop_stats(void);
#endif

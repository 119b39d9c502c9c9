/* What the cores count, readable by every core. A core counts in its own memory, with plain stores, and publishes where
 * that is; whoever serves the numbers (apps/http.c) reads them there. They are aligned words, which a processor never
 * reads half old and half new; numbers that belong together may be a moment apart. */
#ifndef RINGSIDE_NET_COUNTERS_H
#define RINGSIDE_NET_COUNTERS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "drivers/virtio/net.h"
#include "kernel/mailbox.h"
#include "kernel/memory.h"
#include "lwip/netif.h"
#include "lwip/stats.h"
#include "net/acks.h"
#include "net/loop.h"
#include "net/netif.h"
#include "net/pcb_hash.h"
#include "net/steer.h"
#include "net/timewait.h"

/* Where a core's counters are (public_core.counters). */
struct net_counters {
    const struct virtnet *net;
    const struct netif_stats *netif;
    const struct steer_stats *steer;
    const struct mailbox *mailbox;
    const struct loop_stats *loop;
    const struct heap_stats *heap;
    const struct pcb_hash_stats *connections;
    const struct timewait_stats *timewait;
    const struct acks_stats *acks;
    const struct stats_ *lwip;
    const struct recover_stats *recover;
};

/* Publishes this core's. */
void counters_publish(const struct virtnet *net, const struct netif *netif);

/* Those of core `core`; NULL: it has none, or there is no such core. */
const struct net_counters *counters_of(unsigned core);

enum metric_kind {
    METRIC_COUNTER,
    METRIC_SECONDS, /* a counter of nanoseconds, shown in seconds */
    METRIC_GAUGE,
};

/* One number that every core has. Rows of the same name, which differ in `reason`, follow each other. */
struct metric {
    char name[24];   /* without "ringside_" and "_total" */
    char reason[16]; /* of several counters of one name; "": it is the only one */
    char help[88];
    uint8_t per_queue; /* it is the queue pair's; 0: the core's */
    uint8_t kind;      /* enum metric_kind */
    uint8_t part;      /* where: offset of a pointer in struct net_counters, */
    uint8_t size;      /* bytes of the number, */
    uint16_t field;    /* and its offset behind that pointer */
};

/* The table; *count rows. */
const struct metric *counters_table(size_t *count);

uint64_t counters_read(const struct net_counters *of, const struct metric *metric);

/* lwIP's statistics: a row is one kind of event, which each protocol counts. */
struct lwip_metric {
    char name[24];
    char help[48];
    uint8_t field, mld_field; /* offset in struct stats_proto, and in MLD's struct stats_igmp; 255: it has none */
};
struct lwip_protocol {
    char name[10];
    bool is_mld;
    uint16_t at; /* offset in struct stats_ */
};

const struct lwip_metric *counters_lwip_table(size_t *count);
const struct lwip_protocol *counters_lwip_protocols(size_t *count);

/* The sum over all cores. False: this protocol does not count that. */
bool counters_lwip_sum(const struct lwip_metric *metric, const struct lwip_protocol *protocol, uint64_t *sum);
#endif

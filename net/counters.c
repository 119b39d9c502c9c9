#include "kernel/recover.h"
#include "net/counters.h"
#include "kernel/core.h"
#include "kernel/public.h"

static struct net_counters mine;

void counters_publish(const struct virtnet *net, const struct netif *netif)
{
    mine = (struct net_counters){
        .net = net,
        .netif = net_netif_stats(netif),
        .steer = steer_stats(),
        .mailbox = steer_mailbox(),
        .loop = net_loop_stats(),
        .heap = heap_counters(),
        .connections = pcb_hash_stats(),
        .timewait = timewait_stats(),
        .lwip = &lwip_stats,
        .recover = recover_stats(),
    };
    __atomic_store_n(&core_shared()->public_area->core[core_number()].counters, &mine, __ATOMIC_RELEASE);
}

const struct net_counters *counters_of(unsigned core)
{
    const struct public_area *area = core_shared()->public_area;
    if (core >= __atomic_load_n(&area->pairs, __ATOMIC_RELAXED))
        return NULL;
    return __atomic_load_n(&area->core[core].counters, __ATOMIC_ACQUIRE);
}

/* ---- the table ---- */

#define AT(pointer, type, field_)                                                                                      \
    .part = offsetof(struct net_counters, pointer), .size = sizeof((type *)0)->field_, .field = offsetof(type, field_)
#define RX(field)    .per_queue = 1, AT(net, struct virtnet, pair.rx_stats.field)
#define RXQ(field)   .per_queue = 1, AT(net, struct virtnet, pair.rx.field)
#define TX(field)    .per_queue = 1, AT(net, struct virtnet, pair.tx_stats.field)
#define TXQ(field)   .per_queue = 1, AT(net, struct virtnet, pair.tx.field)
#define POOL(field)  .per_queue = 1, AT(net, struct virtnet, pair.pool.field)
#define NETIF(field) .per_queue = 1, AT(netif, struct netif_stats, field)
#define STEER(field) AT(steer, struct steer_stats, field)
#define MAIL(field)  AT(mailbox, struct mailbox, stats.field)
#define LOOP(field)  AT(loop, struct loop_stats, field)
#define HEAP(field)  AT(heap, struct heap_stats, field)
#define CONN(field)  AT(connections, struct pcb_hash_stats, field)
#define TWAIT(field) AT(timewait, struct timewait_stats, field)
#define GAUGE        .kind = METRIC_GAUGE
#define SECONDS      .kind = METRIC_SECONDS

// clang-format off
static const struct metric table[] = {
    { "rx_packets", "", "Frames received", RX(packets) },
    { "rx_bytes", "", "Bytes of frames received, from the Ethernet header on", RX(bytes) },
    { "rx_gso", "", "Frames received that stand for several (segmentation offload)", RX(gso) },
    { "rx_datagrams", "", "Datagrams that came in frames that stand for several", NETIF(rx_datagrams) },
    { "rx_buffers_posted", "", "Buffers made available to the device", RXQ(stats.added) },
    { "rx_buffers_returned", "", "Buffers that the device returned", RXQ(stats.popped) },
    { "rx_kicks", "", "Notifications of the receive queue to the device", RXQ(stats.kicks) },
    { "rx_kicks_suppressed", "", "Times buffers were made available and no notification was wanted",
      RXQ(stats.kicks_suppressed) },
    { "rx_kicks_repeated", "", "Notifications repeated because no buffer has been used since",
      RX(kicks_repeated) },
    { "rx_nudges", "", "Notifications of other pairs' receive queues, because this one had run dry", RX(nudges) },
    { "rx_callbacks_armed", "", "Times an interrupt was asked for", RXQ(stats.callbacks_armed) },
    { "rx_interrupts", "", "Interrupts of the receive queue", RX(interrupts) },
    { "rx_no_buffer", "", "Times the ring could not be filled up because no buffer was free", RX(no_buffer) },
    { "rx_copied", "", "Frames copied out of their buffers because free ones ran low", NETIF(rx_copied) },
    { "rx_bad_used", "", "Entries of the used ring that failed a check", RXQ(stats.bad_used) },
    { "rx_dropped", "short_frame", "Frames received and dropped, by reason", RX(short_frame) },
    { "rx_dropped", "num_buffers", "", RX(num_buffers) },
    { "rx_dropped", "bad_header", "", RX(bad_header) },
    { "rx_dropped", "too_long", "", NETIF(rx_too_long) },
    { "rx_dropped", "bad_datagrams", "", NETIF(rx_bad_datagrams) },
    { "rx_dropped", "no_memory", "", NETIF(rx_no_memory) },
    { "rx_dropped", "refused", "", NETIF(rx_refused) },
    { "rx_ring_size", "", "Descriptors of the receive ring", GAUGE, RXQ(size) },
    { "rx_pool_size", "", "Receive buffers in all", GAUGE, POOL(total) },
    { "rx_pool_free", "", "Receive buffers neither with the device nor with the stack", GAUGE, POOL(free_count) },

    { "tx_packets", "", "Frames queued for the device", TX(packets) },
    { "tx_bytes", "", "Bytes of these frames, from the Ethernet header on", TX(bytes) },
    { "tx_gso", "", "Frames that the device was asked to cut into several", TX(gso) },
    { "tx_datagrams", "", "Datagrams in such frames", NETIF(tx_datagrams) },
    { "tx_completed", "", "Frames that the device returned as sent", TXQ(stats.popped) },
    { "tx_kicks", "", "Notifications of the transmit queue to the device", TXQ(stats.kicks) },
    { "tx_kicks_suppressed", "", "Times frames were made available and no notification was wanted",
      TXQ(stats.kicks_suppressed) },
    { "tx_kicks_repeated", "", "Notifications repeated because no frame was returned for a second", TX(kicks_repeated) },
    { "tx_callbacks_armed", "", "Times an interrupt was asked for, because frames waited for room",
      TXQ(stats.callbacks_armed) },
    { "tx_interrupts", "", "Interrupts of the transmit queue", TX(interrupts) },
    { "tx_full", "", "Times the ring had no room and frames began to wait", NETIF(tx_full) },
    { "tx_waited", "", "Frames that waited for room", NETIF(tx_waited) },
    { "tx_restarts", "", "Times that waiting frames began to be sent again", NETIF(tx_restarts) },
    { "tx_restart_free", "", "Free descriptors at these restarts, added up", NETIF(tx_restart_free) },
    { "tx_linearized", "", "Frames copied together because they had too many pieces", NETIF(tx_linearized) },
    { "tx_bad_used", "", "Entries of the used ring that failed a check", TXQ(stats.bad_used) },
    { "tx_dropped", "no_room", "Frames to send that were dropped: too many waited, or no memory for a copy",
      NETIF(tx_dropped) },
    { "tx_dropped", "too_long", "", NETIF(tx_too_long) },
    { "tx_dropped", "ring_full", "", TX(no_room) },
    { "tx_ring_size", "", "Descriptors of the transmit ring", GAUGE, TXQ(size) },
    { "tx_ring_free", "", "Descriptors that are free", GAUGE, TXQ(free) },

    { "spurious_interrupts", "", "Halts that an interrupt of the queues ended without anything in them",
      .per_queue = 1, LOOP(spurious) },
    { "config_interrupts", "", "Interrupts for a change of configuration", AT(net, struct virtnet, config_interrupts) },

    { "resets", "", "Times the device was reset because it was no longer usable; counted on core 0",
      AT(recover, struct recover_stats, resets) },
    { "reset_down", "", "Time from the reset's beginning until the device ran again", SECONDS,
      AT(recover, struct recover_stats, ns_down) },

    { "loop_turns", "", "Turns of the loop", LOOP(turns) },
    { "batches", "", "Turns of the loop that found something to do", LOOP(batches) },
    { "batch_items", "", "What they found: frames received or sent, messages, buffers returned", LOOP(frames) },
    { "halts", "", "Times the core was halted", LOOP(sleeps) },
    { "halted", "", "Time halted", SECONDS, LOOP(halted_ns) },
    { "polled", "", "Time spent looking for work before a halt", SECONDS, LOOP(polled_ns) },

    { "handed_over", "", "Frames received here that are another core's", STEER(handed_over) },
    { "taken_over", "", "Frames received elsewhere that are this core's", STEER(taken_over) },
    { "spread", "", "Frames passed to all cores", STEER(spread) },
    { "swallowed", "", "Frames not sent because core 0 sends them for all", STEER(swallowed) },
    { "steer_dropped", "mailbox_full", "Frames for other cores that were dropped, by reason", STEER(dropped_mail) },
    { "steer_dropped", "no_memory", "", STEER(dropped_memory) },
    { "buffers_come_home", "", "Receive buffers that other cores gave back", STEER(returned) },
    { "hash_mismatches", "", "Frames whose hash by the device is not ours", STEER(hash_differs) },
    { "woken", "", "Interrupts from other cores", STEER(woken) },
    { "mailbox_sent", "", "Messages to other cores", MAIL(sent) },
    { "mailbox_received", "", "Messages from other cores", MAIL(received) },
    { "mailbox_overflows", "", "Messages that the receiver's full mailbox did not take", MAIL(overflow) },
    { "mailbox_wakes", "", "Halted cores that a message made this core wake", MAIL(wakes) },

    { "tcp_active", "", "TCP connections that are not in TIME_WAIT", GAUGE, CONN(active) },
    { "tcp_time_wait", "", "TCP connections in TIME_WAIT", GAUGE, CONN(time_wait) },
    { "tcp_reopened", "", "Connections in TIME_WAIT that a new one from the same port ended", TWAIT(reopened) },
    { "tcp_evicted", "", "Connections in TIME_WAIT that ended early, because there were too many", TWAIT(evicted) },

    { "heap_size_bytes", "", "Bytes of the heap", GAUGE, HEAP(size) },
    { "heap_used_bytes", "", "Bytes handed out", GAUGE, HEAP(used) },
    { "heap_lasting_bytes", "", "Bytes never given back: rings, buffers", GAUGE, HEAP(lasting) },
    { "heap_untouched_bytes", "", "Bytes never handed out", GAUGE, HEAP(untouched) },
    { "heap_failures", "", "Requests for memory that could not be met", HEAP(failures) },
};
// clang-format on

const struct metric *counters_table(size_t *count)
{
    *count = sizeof table / sizeof *table;
    return table;
}

uint64_t counters_read(const struct net_counters *of, const struct metric *metric)
{
    const char *part = *(const char *const *)((const char *)of + metric->part), *at = part + metric->field;
    switch (metric->size) {
    case 2:
        return __atomic_load_n((const uint16_t *)at, __ATOMIC_RELAXED);
    case 4:
        return __atomic_load_n((const uint32_t *)at, __ATOMIC_RELAXED);
    default:
        return __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
    }
}

/* ---- lwIP's ---- */

#define BOTH(field) offsetof(struct stats_proto, field), offsetof(struct stats_igmp, field)
#define ONE(field)  offsetof(struct stats_proto, field), UINT8_MAX

static const struct lwip_metric lwip_table[] = {
    { "received", "Packets received", BOTH(recv) },
    { "sent", "Packets sent", BOTH(xmit) },
    { "dropped", "Packets dropped", BOTH(drop) },
    { "checksum_errors", "Packets with a wrong checksum", BOTH(chkerr) },
    { "length_errors", "Packets with a wrong length", BOTH(lenerr) },
    { "memory_errors", "Packets for which there was no memory", BOTH(memerr) },
    { "routing_errors", "Packets without a route", ONE(rterr) },
    { "protocol_errors", "Packets of a wrong or unknown protocol", BOTH(proterr) },
    { "option_errors", "Packets with a wrong option", ONE(opterr) },
    { "errors", "Other errors", ONE(err) },
    { "cache_hits", "Addresses found in the cache", ONE(cachehit) },
};

#define PROTOCOL(field) offsetof(struct stats_, field)

static const struct lwip_protocol lwip_protocols[] = {
    { "link", false, PROTOCOL(link) },      { "arp", false, PROTOCOL(etharp) },  { "ip", false, PROTOCOL(ip) },
    { "frag", false, PROTOCOL(ip_frag) },   { "icmp", false, PROTOCOL(icmp) },   { "ip6", false, PROTOCOL(ip6) },
    { "frag6", false, PROTOCOL(ip6_frag) }, { "icmp6", false, PROTOCOL(icmp6) }, { "nd6", false, PROTOCOL(nd6) },
    { "mld6", true, PROTOCOL(mld6) },       { "udp", false, PROTOCOL(udp) },     { "tcp", false, PROTOCOL(tcp) },
};

const struct lwip_metric *counters_lwip_table(size_t *count)
{
    *count = sizeof lwip_table / sizeof *lwip_table;
    return lwip_table;
}

const struct lwip_protocol *counters_lwip_protocols(size_t *count)
{
    *count = sizeof lwip_protocols / sizeof *lwip_protocols;
    return lwip_protocols;
}

bool counters_lwip_sum(const struct lwip_metric *metric, const struct lwip_protocol *protocol, uint64_t *sum)
{
    uint8_t field = protocol->is_mld ? metric->mld_field : metric->field;
    if (field == UINT8_MAX)
        return false;
    *sum = 0;
    for (unsigned core = 0; core < MAX_CORES; core++) {
        const struct net_counters *of = counters_of(core);
        if (of != NULL)
            *sum += __atomic_load_n((const u32_t *)((const char *)of->lwip + protocol->at + field), __ATOMIC_RELAXED);
    }
    return true;
}

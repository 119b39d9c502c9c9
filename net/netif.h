/* lwIP's network interface over a virtio-net queue pair. */
#ifndef RINGSIDE_NET_NETIF_H
#define RINGSIDE_NET_NETIF_H
#include <stdbool.h>
#include "drivers/virtio/net.h"
#include "lwip/netif.h"
#include "lwip/udp.h"
#include "net/layer2.h"

struct netif_stats {
    uint64_t rx_no_memory;     /* dropped: the buffers ran low and there was no memory for a copy */
    uint64_t rx_copied;        /* copied out of the ring's buffers because those ran low */
    uint64_t rx_too_long;      /* dropped: longer than 65,535 bytes */
    uint64_t rx_refused;       /* dropped by the stack at once */
    uint64_t rx_datagrams;     /* datagrams that came in packets of several */
    uint64_t rx_bad_datagrams; /* dropped: such packets that are no datagrams, or tell lengths that cannot be */
    uint64_t tx_full;          /* times the ring had no room and frames began to wait */
    uint64_t tx_restarts;      /* times that waiting frames began to be sent again, */
    uint64_t tx_restart_free;  /* and the free descriptors that there were then, added up */
    uint64_t tx_waited;        /* frames that waited for room in the ring */
    uint64_t tx_dropped;       /* frames dropped because too many waited, or for lack of memory */
    uint64_t tx_too_long;      /* dropped: longer than the MTU allows, and nothing for the device to cut */
    uint64_t tx_datagrams;     /* datagrams that were joined, for the device to cut */
    uint64_t tx_linearized;    /* frames copied together because they had too many pieces */
};

/* Adds the core's interface (name "en", default route) over `pair`; its link follows the device. */
struct netif *net_netif_add(struct virtnet_pair *pair);

/* From now on `app` takes every frame of this core's pair, and lwIP sends none; `pairs` are in use. */
void net_netif_layer2(struct netif *netif, const struct layer2 *app, unsigned pairs);

/* After a reset of the device: takes back what was in this core's rings. Frames that were to be sent are lost; received
 * ones that the stack has stay with it. */
void net_netif_forget(struct netif *netif);

/* Hands received frames to lwIP, at most `budget` of them; refills the ring. Returns how many. */
unsigned net_netif_receive(struct netif *netif, unsigned budget);

/* Hands a frame of this core's flows to lwIP, without the `header` bytes at its start. Its buffers are lwIP's then. */
void net_netif_input(struct netif *netif, const struct virtnet_frame *frame, uint32_t header);

/* Hands a frame in a pbuf (Ethernet header first) to lwIP: a TCP segment that stands for several marked so (gso_size
 * not 0), a packet of several datagrams as so many. `flags` and `gso_size` (read only with VIRTNET_FRAME_LARGE) are
 * struct virtnet_frame's. */
void net_netif_pass(struct netif *netif, struct pbuf *p, uint8_t flags, uint16_t gso_size);

/* Before a packet goes to lwIP: sets which checksums lwIP verifies. lwIP's flags are the interface's, the device's word
 * is the frame's: a packet whose checksum the device has verified, or that never left the host (its checksum is yet to
 * be filled in), is not checked. `flags` are struct virtnet_frame's. (virtio 1.3, 5.1.6.4.2) */
void net_netif_trust(struct netif *netif, uint8_t flags);

/* Takes back what has been sent and sends what waited. Returns how many frames were moved. */
unsigned net_netif_reclaim(struct netif *netif);

/* At the end of a turn of the loop, before virtnet_flush(): queues datagrams that were held back for others to join. */
void net_netif_flush(struct netif *netif);

/* True if the receive ring wants buffers and there are none. */
bool net_netif_starved(const struct netif *netif);

/* True while frames wait for room in the transmit ring. */
bool net_netif_waiting(const struct netif *netif);

/* Tells lwIP the link's state. */
void net_netif_set_link(struct netif *netif, bool up);

/* Core 0: reads the device's link state and tells lwIP and the other cores; says so on the console when it changed. */
void net_netif_check_link(struct netif *netif);

const struct netif_stats *net_netif_stats(const struct netif *netif);

/* udp_sendto() for applications. Where the device makes UDP checksums, lwIP leaves them out; but a datagram that goes
 * out in fragments needs its own, which this sees to. Where the device cuts datagrams (HOST_USO), those of one flow and
 * size that follow one another within a turn of the loop are joined into one packet (the first as well where there were
 * several the last time); so `p` and what it refers to must not be changed afterwards. */
err_t net_udp_sendto(struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *to, u16_t port);
#endif

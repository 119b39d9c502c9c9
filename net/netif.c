/* lwIP's network interface over a virtio-net queue pair.
 *
 * Receive: a frame's buffers become one pbuf chain, without a copy; a buffer goes back to its pool when lwIP frees its
 * pbuf. Only when the pool runs low are frames copied to the heap, so that a slow reader cannot make the guest deaf.
 *
 * Transmit: short frames are copied into a slot beside the virtio-net header: one descriptor, and the pbuf is free at
 * once. Of longer ones the headers are copied and the rest is sent from where it lies; the pbuf is kept until the
 * device has read it. What the driver changes (the checksum's field) is changed in the copy: lwIP may send its own
 * bytes again. */
#include <string.h>
#include <linux/if_ether.h>
#include "drivers/virtio/net.h"
#include "kernel/console.h"
#include "lwip/ethip6.h"
#include "lwip/prot/ip4.h"
#include "lwip/prot/ip6.h"
#include "lwip/stats.h"
#include "net/buffer.h"
#include "net/datagrams.h"
#include "net/ether.h"
#include "net/hooks.h"
#include "net/join.h"
#include "net/netif.h"
#include "net/offload.h"
#include "net/segment.h"
#include "net/steer.h"
#include "net/timewait.h"

#define WAITING_MAX   1024u /* frames that may wait for room in the ring */
#define RECLAIM_BATCH 64u
#define HEADERS_MAX   144u /* Ethernet, IPv4 or IPv6, TCP, with all options */

struct interface {
    struct virtnet_pair *pair;
    struct netif netif;
    struct pbuf *waiting[WAITING_MAX]; /* free-running indices, masked */
    uint32_t waiting_head, waiting_tail;
    const struct layer2 *layer2; /* takes all frames; NULL: lwIP does */
    struct join join;            /* datagrams of this turn that are not queued yet */
    bool joins;                  /* the device cuts what was joined */
    bool several, had_several;   /* more than one datagram was sent in the last turn that sent any, in the one before */
    uint64_t datagram_at;        /* when that turn began */
    uint16_t checks;             /* lwIP's checksum flags when the device vouches for nothing */
    struct netif_stats stats;
};

static struct interface the_interface;

static struct interface *interface_of(const struct netif *netif)
{
    return netif->state;
}

/* ---- receive ---- */

/* TCP right behind the IP header. */
static bool carries_tcp(const uint8_t *frame, uint32_t n)
{
    if (n < ETH_HLEN + IP_HLEN)
        return false;
    uint16_t type = (uint16_t)(frame[12] << 8 | frame[13]);
    return (type == ETH_P_IP && frame[ETH_HLEN + 9] == IP_PROTO_TCP) ||
           (type == ETH_P_IPV6 && frame[ETH_HLEN + 6] == IP6_NEXTH_TCP);
}

void net_netif_trust(struct netif *netif, uint8_t flags)
{
    const struct interface *in = interface_of(netif);
    bool trusted = (flags & (VIRTIO_NET_HDR_F_DATA_VALID | VIRTIO_NET_HDR_F_NEEDS_CSUM)) != 0;
    netif->chksum_flags = trusted ? in->checks & ~(NETIF_CHECKSUM_CHECK_TCP | NETIF_CHECKSUM_CHECK_UDP) : in->checks;
}

static void pass(struct interface *in, struct pbuf *p)
{
    if (ether_input(p, &in->netif) == ERR_OK)
        return;
    in->stats.rx_refused++;
    pbuf_free(p);
}

/* One by one, as datagrams do not come together for who waits for them. */
static void pass_datagrams(struct interface *in, struct pbuf *p, uint16_t size)
{
    struct datagrams cut;
    if (!datagrams_begin(&cut, p, size)) {
        in->stats.rx_bad_datagrams++;
        pbuf_free(p);
        return;
    }
    for (struct pbuf *q; (q = datagrams_next(&cut)) != NULL; in->stats.rx_datagrams++)
        pass(in, q);
    in->stats.rx_no_memory += cut.rest != NULL;
    datagrams_end(&cut);
}

/* Only TCP's is marked, whatever the device says of others: those may be sent again as they are (echoes), where the
 * mark would mean something else. */
static __attribute__((noinline)) void pass_large(struct interface *in, struct pbuf *p, uint8_t flags, uint16_t gso_size)
{
    if (flags & VIRTNET_FRAME_UDP) {
        pass_datagrams(in, p, gso_size);
        return;
    }
    if (carries_tcp(p->payload, p->len))
        p->gso_size = gso_size;
    pass(in, p);
}

void net_netif_pass(struct netif *netif, struct pbuf *p, uint8_t flags, uint16_t gso_size)
{
    net_netif_trust(netif, flags);
    if (flags & VIRTNET_FRAME_LARGE)
        pass_large(interface_of(netif), p, flags, gso_size);
    else
        pass(interface_of(netif), p);
}

void net_netif_input(struct netif *netif, const struct virtnet_frame *frame, uint32_t header)
{
    struct interface *in = interface_of(netif);
    timewait_make_way(frame->buffer[0]->data + header, frame->length[0] - header);
    bool low = buffers_low(frame);
    struct pbuf *p = low ? buffers_copy(frame, header) : buffers_wrap(frame, header);
    in->stats.rx_copied += low;
    if (p == NULL) {
        in->stats.rx_no_memory++;
        return;
    }
    net_netif_pass(netif, p, frame->flags, frame->gso_size);
}

unsigned net_netif_receive(struct netif *netif, unsigned budget)
{
    struct interface *in = interface_of(netif);
    struct virtnet_frame frame;
    unsigned n = 0, others = 0;
    if (__builtin_expect(in->layer2 != NULL, 0) && in->layer2->turn != NULL)
        others = in->layer2->turn(in->pair, budget);
    while (n < budget && virtqueue_pending(&in->pair->rx) && virtnet_receive(in->pair, &frame)) {
        if (__builtin_expect(in->layer2 != NULL, 0)) {
            in->layer2->frame(in->pair, &frame);
        } else if (frame.bytes >
                   UINT16_MAX) { /* longer than a pbuf can say: not to be copied, handed over or given to lwIP */
            in->stats.rx_too_long++;
            buffers_release(&frame);
        } else if (!steer_frame(&frame, in->pair->header))
            net_netif_input(netif, &frame, in->pair->header);
        n++;
    }
    if (virtqueue_capacity(&in->pair->rx) >= in->pair->refill_from)
        virtnet_refill(in->pair);
    return n + others;
}

/* ---- transmit ---- */

static bool has_room(const struct interface *in, uint16_t pieces)
{
    return virtqueue_need(&in->pair->tx, (uint16_t)(pieces + 1)) <= virtqueue_capacity(&in->pair->tx);
}

static uint16_t pieces_of(const struct pbuf *p)
{
    uint16_t n = 0;
    for (; p != NULL; p = p->next)
        n++;
    return n;
}

/* Fills in the virtio-net header of a frame whose first `copied` bytes are in the slot, all headers among them: so that
 * is what hdr_len says, but for what is segmented (virtio 1.3, 5.1.6.2.1). */
static void finish_header(struct interface *in, struct tx_slot *slot, uint32_t copied, uint16_t gso_size)
{
    virtnet_header(slot)->hdr_len = (uint16_t)copied;
    if (virtnet_has(in->pair->net, VIRTIO_NET_F_CSUM) &&
        offload_checksum(virtnet_header(slot), slot->data + in->pair->header, copied) && gso_size != 0)
        offload_segmentation(virtnet_header(slot), slot->data + in->pair->header, gso_size);
}

/* A short frame: all of it into the slot. */
static inline __attribute__((always_inline)) bool send_short(struct interface *in, const struct pbuf *p)
{
    if (!has_room(in, 0))
        return false;
    struct tx_slot *slot = virtnet_slot(in->pair);
    if (slot == NULL)
        return false;
    if (p->next == NULL)
        memcpy(slot->data + in->pair->header, p->payload, p->len);
    else
        pbuf_copy_partial(p, slot->data + in->pair->header, p->tot_len, 0);
    finish_header(in, slot, p->tot_len, 0);
    return virtnet_send(in->pair, slot, in->pair->header + p->tot_len, NULL, 0);
}

/* The same for one that is as long as slots have room for. */
static __attribute__((noinline)) bool send_whole(struct interface *in, const struct pbuf *p)
{
    return send_short(in, p);
}

/* A longer frame: its first bytes into the slot, the rest from where it lies. Takes a reference of its own. */
static __attribute__((noinline)) bool send_long(struct interface *in, struct pbuf *p)
{
    struct virtq_buf pieces[VIRTNET_TX_PIECES];
    uint16_t count = 0, copied = p->len < HEADERS_MAX ? p->len : HEADERS_MAX, skip = copied;
    for (const struct pbuf *q = p; q != NULL; q = q->next, skip = 0)
        if (q->len > skip)
            pieces[count++] = (struct virtq_buf){ (uint64_t)(uintptr_t)q->payload + skip, (uint32_t)(q->len - skip) };
    if (!has_room(in, count))
        return false;
    struct tx_slot *slot = virtnet_slot(in->pair);
    if (slot == NULL)
        return false;
    memcpy(slot->data + in->pair->header, p->payload, copied);
    finish_header(in, slot, copied, p->gso_size);
    slot->token = p;
    if (!virtnet_send(in->pair, slot, (uint32_t)in->pair->header + copied, pieces, count))
        return false;
    pbuf_ref(p);
    return true;
}

/* A frame in more pieces than the ring takes, in two. */
static __attribute__((noinline)) bool send_copy(struct interface *in, const struct pbuf *p)
{
    struct pbuf *whole = pbuf_clone(PBUF_RAW, PBUF_RAM, (struct pbuf *)p);
    if (whole == NULL) {
        in->stats.tx_dropped++;
        return true;
    }
    whole->gso_size = p->gso_size;
    bool sent = send_long(in, whole);
    in->stats.tx_linearized += sent;
    pbuf_free(whole);
    return sent;
}

static __attribute__((noinline)) bool send_pieces(struct interface *in, struct pbuf *p)
{
    if (p->gso_size == 0 && p->tot_len <= in->pair->slot_room - VIRTNET_HEADER_HASH)
        return send_whole(in, p);
    uint16_t pieces = pieces_of(p);
    if (pieces > VIRTNET_TX_PIECES || pieces + 1 > virtqueue_max_pieces(&in->pair->tx))
        return send_copy(in, p);
    return send_long(in, p);
}

/* Queues a frame; false: there is no room for it now. Part of link_output(), whoever calls it besides. */
static inline __attribute__((always_inline)) bool send_frame(struct interface *in, struct pbuf *p)
{
    return p->tot_len <= VIRTNET_INLINE - VIRTNET_HEADER_HASH ? send_short(in, p) : send_pieces(in, p);
}

static __attribute__((noinline)) void wait_for_room(struct interface *in, struct pbuf *p)
{
    virtnet_flush(in->pair); /* the ring is full: let the device begin */
    if (in->waiting_tail - in->waiting_head == WAITING_MAX) {
        in->stats.tx_dropped++;
        return;
    }
    in->stats.tx_full += in->waiting_head == in->waiting_tail;
    pbuf_ref(p);
    in->waiting[in->waiting_tail++ % WAITING_MAX] = p;
    in->stats.tx_waited++;
}

/* lwIP's linkoutput. Always ERR_OK: a frame without room waits in order, and what cannot wait is dropped and counted;
 * lwIP's own way with ERR_MEM is slower than a retransmission. */
static __attribute__((noinline)) err_t link_output(struct netif *netif, struct pbuf *p)
{
    struct interface *in = interface_of(netif);
    if (in->layer2 != NULL || steer_swallows(p))
        return ERR_OK;
    if (p->tot_len > netif->mtu + ETH_HLEN && p->gso_size == 0) { /* it lost its mark in a copy: TCP sends it again */
        in->stats.tx_too_long++;
        return ERR_OK;
    }
    if (in->waiting_head == in->waiting_tail && send_frame(in, p))
        return ERR_OK;
    wait_for_room(in, p);
    return ERR_OK;
}

static void on_sent(void *token)
{
    pbuf_free(token);
}

/* Sends what waits, as far as there is room. Returns how many frames. */
static __attribute__((noinline)) unsigned send_waiting(struct interface *in)
{
    uint16_t room = virtqueue_capacity(&in->pair->tx);
    unsigned n = 0;
    while (in->waiting_head != in->waiting_tail) {
        struct pbuf *p = in->waiting[in->waiting_head % WAITING_MAX];
        if (!(p->gso_size != 0 ? send_pieces(in, p) : send_frame(in, p))) /* joined ones are cut, however short */
            break;
        in->waiting_head++;
        pbuf_free(p);
        n++;
    }
    if (n == 0)
        return 0;
    in->stats.tx_restarts++;
    in->stats.tx_restart_free += room;
    in->stats.tx_full += in->waiting_head != in->waiting_tail;
    return n;
}

unsigned net_netif_reclaim(struct netif *netif)
{
    struct interface *in = interface_of(netif);
    if (__builtin_expect(in->layer2 != NULL, 0))
        return 0;
    unsigned n = virtnet_reclaim(in->pair, RECLAIM_BATCH, on_sent);
    if (in->waiting_head != in->waiting_tail)
        n += send_waiting(in);
    return n;
}

bool net_netif_starved(const struct netif *netif)
{
    const struct virtnet_pair *pair = interface_of(netif)->pair;
    return pair->pool.free == NULL && virtqueue_capacity(&pair->rx) > 0;
}

bool net_netif_waiting(const struct netif *netif)
{
    const struct interface *in = interface_of(netif);
    return in->layer2 != NULL ? in->layer2->waiting(in->pair) : in->waiting_head != in->waiting_tail;
}

/* ---- datagrams that are joined ----
 *
 * lwIP's linkoutput is link_output() where nothing is held back, so nobody else pays for it; while an application sends
 * a datagram it is join_output(); and while some are held it is behind_output(), which lets nothing pass them. */

static void flush_join(struct interface *in)
{
    struct pbuf *p = join_take(&in->join);
    in->stats.tx_datagrams += p != NULL && p->gso_size != 0 ? in->join.count : 0;
    in->netif.linkoutput = link_output;
    if (p == NULL)
        return;
    if (p->gso_size == 0)
        link_output(&in->netif, p);
    else if (in->waiting_head != in->waiting_tail || !send_pieces(in, p))
        wait_for_room(in, p);
    pbuf_free(p);
}

static err_t behind_output(struct netif *netif, struct pbuf *p)
{
    flush_join(interface_of(netif));
    return link_output(netif, p);
}

static err_t join_output(struct netif *netif, struct pbuf *p)
{
    struct interface *in = interface_of(netif);
    uint16_t ring = virtqueue_max_pieces(&in->pair->tx), most = ring > VIRTNET_TX_PIECES ? VIRTNET_TX_PIECES : ring - 1;
    if (join_add(&in->join, p, most))
        return ERR_OK;
    flush_join(in);
    return join_add(&in->join, p, most) ? ERR_OK : link_output(netif, p);
}

void net_netif_flush(struct netif *netif)
{
    struct interface *in = interface_of(netif);
    if (__builtin_expect(in->join.first != NULL, 0))
        flush_join(in);
}

/* True if the datagram that is to be sent may well not be alone in this turn: it is not the first, or there were
 * several the last time. So an answer here and there is not held back, which costs more than it takes to send it. */
static inline bool in_company(struct interface *in)
{
    uint64_t now = net_time(); /* stands still within a turn */
    bool first = now != in->datagram_at;
    in->had_several = first ? in->several : in->had_several;
    in->several = !first;
    in->datagram_at = now;
    return !first || in->had_several;
}

static __attribute__((noinline)) err_t send_joined(struct interface *in, struct udp_pcb *pcb, struct pbuf *p,
                                                   const ip_addr_t *to, u16_t port)
{
    in->netif.linkoutput = join_output;
    err_t err = udp_sendto(pcb, p, to, port);
    in->netif.linkoutput = in->join.first != NULL ? behind_output : link_output;
    return err;
}

err_t net_udp_sendto(struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *to, u16_t port)
{
    struct netif *netif = &the_interface.netif;
    uint16_t flags = netif->chksum_flags;
    unsigned headers = 8 + (IP_IS_V6(to) ? 40 : 20);
    if (p->tot_len + headers > netif->mtu)
        netif->chksum_flags |= NETIF_CHECKSUM_GEN_UDP;
    err_t err = the_interface.joins && in_company(&the_interface) ? send_joined(&the_interface, pcb, p, to, port)
                                                                  : udp_sendto(pcb, p, to, port);
    netif->chksum_flags = flags;
    return err;
}

/* ---- the interface ---- */

void net_netif_set_link(struct netif *netif, bool up)
{
    if (up)
        netif_set_link_up(netif);
    else
        netif_set_link_down(netif);
}

void net_netif_check_link(struct netif *netif)
{
    static bool said;
    bool up = virtnet_link_up(interface_of(netif)->pair->net);
    if (said && up == (netif_is_link_up(netif) != 0))
        return;
    said = true;
    log_info("net", "link %s", up ? "up" : "down");
    net_netif_set_link(netif, up);
    steer_tell_link(up);
}

static err_t interface_init(struct netif *netif)
{
    struct interface *in = interface_of(netif);
    const struct virtnet *dev = in->pair->net;
    netif->name[0] = 'e';
    netif->name[1] = 'n';
    netif->mtu = dev->mtu;
    netif->hwaddr_len = ETH_ALEN;
    memcpy(netif->hwaddr, dev->mac, ETH_ALEN);
    netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET | NETIF_FLAG_MLD6;
    netif->output = ether_output4;
    netif->output_ip6 = ethip6_output;
    netif->linkoutput = link_output;
    in->checks = NETIF_CHECKSUM_ENABLE_ALL;
    if (virtnet_has(dev, VIRTIO_NET_F_CSUM))
        in->checks &= (uint16_t) ~(NETIF_CHECKSUM_GEN_TCP | NETIF_CHECKSUM_GEN_UDP);
    NETIF_SET_CHECKSUM_CTRL(netif, in->checks);
    in->joins = virtnet_has(dev, VIRTIO_NET_F_HOST_USO_BIT);
    segment_init(virtnet_has(dev, VIRTIO_NET_F_HOST_TSO4), virtnet_has(dev, VIRTIO_NET_F_HOST_TSO6));
    return ERR_OK;
}

struct netif *net_netif_add(struct virtnet_pair *pair)
{
    struct interface *in = &the_interface;
    in->pair = pair;
    buffers_init(&pair->pool);
    if (netif_add_noaddr(&in->netif, in, interface_init, ether_input) == NULL)
        return NULL;
    netif_set_default(&in->netif);
    netif_set_hostname(&in->netif, "ringside");
    return &in->netif;
}

static void finish(struct virtnet_pair *pair, void *token)
{
    virtnet_finish(pair, token, on_sent);
}

void net_netif_forget(struct netif *netif)
{
    struct interface *in = interface_of(netif);
    struct pbuf *held = join_take(&in->join); /* lost with the others */
    if (held != NULL)
        pbuf_free(held);
    netif->linkoutput = link_output;
    virtnet_take_back(in->pair, in->layer2 != NULL && in->layer2->sent != NULL ? in->layer2->sent : finish);
}

void net_netif_layer2(struct netif *netif, const struct layer2 *app, unsigned pairs)
{
    struct interface *in = interface_of(netif);
    in->layer2 = app;
    if (app->begin != NULL)
        app->begin(in->pair->number, pairs);
}

const struct netif_stats *net_netif_stats(const struct netif *netif)
{
    return &interface_of(netif)->stats;
}

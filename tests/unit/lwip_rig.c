#include "tests/unit/unit.h"
#include "tests/unit/lwip_rig.h"
#include "kernel/memory.h"
#include "kernel/random.h"
#include "lwip/init.h"
#include "lwip/ip.h"
#include "lwip/netif.h"
#include "lwip/prot/ip4.h"
#include "lwip/prot/ip6.h"
#include "lwip/prot/tcp.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/timeouts.h"
#include "net/hooks.h"

bool rig_heap_low;
uint64_t rig_chance = 1;
static struct netif netif;
static struct sent last;
static bool answered;
static u32_t now_ms;

/* ---- what lwIP asks of its surroundings ---- */

uint64_t net_time(void)
{
    return (uint64_t)now_ms * 1000000;
}

u32_t sys_now(void)
{
    return now_ms;
}

uint32_t net_random(void)
{
    return (uint32_t)chance(&rig_chance);
}

uint64_t random_next(void)
{
    return chance(&rig_chance);
}

void net_assert(const char *message, const char *file, int line)
{
    print_error("lwIP: %s (%s:%d)\n", message, file, line);
    abort();
}

u32_t net_tcp_isn(const ip_addr_t *local_ip, u16_t local_port, const ip_addr_t *remote_ip, u16_t remote_port)
{
    (void)local_ip, (void)local_port, (void)remote_ip, (void)remote_port;
    return net_random();
}

const ip6_addr_t *net_nd6_gateway(struct netif *of, const ip6_addr_t *dest)
{
    (void)of, (void)dest;
    return NULL;
}

bool heap_low(void)
{
    return rig_heap_low;
}

/* ---- the interface ---- */

static void note(const struct pbuf *p, uint32_t header)
{
    const struct tcp_hdr *tcp = (const struct tcp_hdr *)((const uint8_t *)p->payload + header);
    check(p->len >= header + TCP_HLEN, "headers in pieces");
    last = (struct sent){
        .port = lwip_ntohs(tcp->dest),
        .guest_port = lwip_ntohs(tcp->src),
        .flags = (uint8_t)TCPH_FLAGS(tcp),
        .seq = lwip_ntohl(tcp->seqno),
        .ack = lwip_ntohl(tcp->ackno),
        .bytes = p->tot_len - header - TCPH_HDRLEN_BYTES(tcp),
    };
    answered = true;
}

static err_t on_ip4(struct netif *of, struct pbuf *p, const ip4_addr_t *to)
{
    (void)of, (void)to;
    if (IPH_PROTO((const struct ip_hdr *)p->payload) == IP_PROTO_TCP)
        note(p, IP_HLEN);
    return ERR_OK;
}

static err_t on_ip6(struct netif *of, struct pbuf *p, const ip6_addr_t *to)
{
    (void)of, (void)to;
    if (IP6H_NEXTH((const struct ip6_hdr *)p->payload) == IP6_NEXTH_TCP)
        note(p, IP6_HLEN);
    return ERR_OK;
}

static err_t init(struct netif *of)
{
    of->mtu = 1500;
    of->output = on_ip4;
    of->output_ip6 = on_ip6;
    NETIF_SET_CHECKSUM_CTRL(of, 0);
    return ERR_OK;
}

void rig_start(void)
{
    ip4_addr_t address, mask, gateway;
    ip6_addr_t address6;
    IP4_ADDR(&address, 198, 18, 0, 2);
    IP4_ADDR(&mask, 255, 254, 0, 0);
    IP4_ADDR(&gateway, 198, 18, 0, 1);
    lwip_init();
    netif_add(&netif, &address, &mask, &gateway, NULL, init, ip_input);
    netif_set_default(&netif);
    netif_set_link_up(&netif);
    netif_set_up(&netif);
    IP6_ADDR(&address6, lwip_htonl(0xfd000000), 0, 0, lwip_htonl(2));
    netif_ip6_addr_set(&netif, 0, &address6);
    netif_ip6_addr_set_state(&netif, 0, IP6_ADDR_PREFERRED);
}

/* ---- the peers ---- */

struct peer rig_peer(unsigned n, uint16_t guest_port)
{
    struct peer peer = { .port = (uint16_t)(1024 + n * 7), .guest_port = guest_port, .seq = n * 1000003u };
    if (n & 1) {
        IP_ADDR6(&peer.address, lwip_htonl(0xfd000000), 0, lwip_htonl(n / 5), lwip_htonl(0x100 + n % 5));
        IP_ADDR6(&peer.guest, lwip_htonl(0xfd000000), 0, 0, lwip_htonl(2));
    } else {
        IP_ADDR4(&peer.address, 198, 18, 1 + n / 1000, 1 + n % 5);
        IP_ADDR4(&peer.guest, 198, 18, 0, 2);
    }
    return peer;
}

void rig_send(struct peer *peer, uint8_t flags, uint32_t bytes)
{
    struct pbuf *p = pbuf_alloc(PBUF_IP, (u16_t)(TCP_HLEN + bytes), PBUF_RAM);
    struct tcp_hdr *tcp = p->payload;
    memset(tcp, 0, TCP_HLEN + bytes);
    tcp->src = lwip_htons(peer->port);
    tcp->dest = lwip_htons(peer->guest_port);
    tcp->seqno = lwip_htonl(peer->seq);
    tcp->ackno = lwip_htonl(peer->ack);
    tcp->wnd = lwip_htons(60000);
    TCPH_HDRLEN_FLAGS_SET(tcp, 5, flags);
    ip_data = (struct ip_globals){ .current_netif = &netif, .current_input_netif = &netif };
    ip_addr_copy(*ip_current_src_addr(), peer->address);
    ip_addr_copy(*ip_current_dest_addr(), peer->guest);
    answered = false;
    peer->seq += bytes + ((flags & (TCP_SYN | TCP_FIN)) != 0);
    tcp_input(p, &netif);
    if (answered && last.port == peer->port && (last.flags & TCP_RST) == 0)
        peer->ack = last.seq + last.bytes + ((last.flags & (TCP_SYN | TCP_FIN)) != 0);
}

const struct sent *rig_answer(void)
{
    return answered ? &last : NULL;
}

bool rig_connect(struct peer *peer)
{
    rig_send(peer, TCP_SYN, 0);
    if (!answered || last.port != peer->port || last.flags != (TCP_SYN | TCP_ACK) || last.ack != peer->seq)
        return false;
    rig_send(peer, TCP_ACK, 0);
    return true;
}

void rig_pass(uint32_t ms)
{
    for (uint32_t i = 0; i < ms; i += 50) {
        now_ms += 50;
        sys_check_timeouts();
    }
}

#include <stdbool.h>
#include <string.h>
#include <linux/if_ether.h>
#include "lwip/etharp.h"
#include "lwip/ip4.h"
#include "lwip/prot/icmp.h"
#include "lwip/stats.h"
#include "netif/ethernet.h"
#include "net/ether.h"
#include "net/hooks.h"
#include "net/port/chksum.h"

#define HOSTS      64u         /* a power of two */
#define VALID_NS   1000000000u /* lwIP counts a neighbour's age in seconds */
#define IP4_BYTES  20u
#define ECHO_BYTES 8u /* of an echo request, without its data */
#define GROUP_BIT  1  /* of an Ethernet address's first byte: multicast or broadcast */

/* The Ethernet header that lwIP gave a frame for this host. */
struct host {
    uint32_t address;
    uint8_t header[ETH_HLEN];
    uint64_t until; /* ns */
};

/* By the address's last byte. */
static struct host hosts[HOSTS];

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static struct host *host_of(uint32_t address)
{
    return &hosts[address >> 24 & (HOSTS - 1)];
}

static bool is_known(const struct host *host, uint32_t address)
{
    return host->address == address && net_time() < host->until;
}

/* A whole echo request for `netif`, undamaged, in one piece and of `total` bytes from the IP header on, that has an
 * answer which fits into a frame. */
static inline bool is_echo_request(const struct pbuf *p, const struct netif *netif, const uint8_t *ip, uint32_t total)
{
    uint32_t to;
    memcpy(&to, ip + 16, 4);
    return p->next == NULL && ip[0] == 0x45 && total >= IP4_BYTES + ECHO_BYTES && ETH_HLEN + total <= p->len &&
           total <= netif->mtu && (get16(ip + 6) & (IP_MF | IP_OFFMASK)) == 0 && ip[IP4_BYTES] == ICMP_ECHO &&
           to == ip4_addr_get_u32(netif_ip4_addr(netif)) && netif_is_up(netif) && net_chksum(ip, IP4_BYTES) == 0xffff &&
           net_chksum_any(ip + IP4_BYTES, (int)(total - IP4_BYTES)) == 0xffff;
}

/* Answers an echo request over what came in, as icmp_input() does (RFC 1122, 3.2.2.6), and counts as lwIP would. Only
 * for hosts that lwIP has lately sent to: so it knows their station, and that they are no group. False: it is for lwIP.
 */
static __attribute__((noinline)) bool answer_echo(struct pbuf *p, struct netif *netif)
{
    uint8_t *frame = p->payload, *ip = frame + ETH_HLEN, *icmp = ip + IP4_BYTES;
    uint32_t total = get16(ip + 2), from;
    memcpy(&from, ip + 12, 4);
    const struct host *host = host_of(from);
    if (!is_known(host, from) || !is_echo_request(p, netif, ip, total))
        return false;
    IP_STATS_INC(ip.recv);
    ICMP_STATS_INC(icmp.recv);
    p->len = p->tot_len = (u16_t)(ETH_HLEN + total); /* what is behind is padding */
    memcpy(frame, host->header, ETH_HLEN);
    memcpy(ip + 12, ip + 16, 4);
    memcpy(ip + 16, &from, 4);
    ip[8] = ICMP_TTL;
    memset(ip + 10, 0, 2);
    uint16_t sum = (uint16_t)~net_chksum(ip, IP4_BYTES), echo;
    memcpy(ip + 10, &sum, 2);
    icmp[0] = ICMP_ER; /* 8 becomes 0 (RFC 1624): the sum's complement grows by it */
    memcpy(&echo, icmp + 2, 2);
    echo = chksum_fold((uint64_t)echo + ICMP_ECHO);
    memcpy(icmp + 2, &echo, 2);
    ICMP_STATS_INC(icmp.xmit);
    IP_STATS_INC(ip.xmit);
    netif->linkoutput(netif, p);
    pbuf_free(p);
    return true;
}

err_t ether_input(struct pbuf *p, struct netif *netif)
{
    const uint8_t *frame = p->payload;
    if (p->len < ETH_HLEN + IP4_BYTES || get16(frame + 12) != ETH_P_IP || (frame[0] & GROUP_BIT)) {
        if (p->len >= ETH_HLEN && get16(frame + 12) == ETH_P_ARP)
            memset(hosts, 0, sizeof hosts); /* it may be about any of them */
        return ethernet_input(p, netif);
    }
    if (__builtin_expect(frame[ETH_HLEN + 9] == IP_PROTO_ICMP, 0) && answer_echo(p, netif))
        return ERR_OK;
    p->if_idx = netif_get_index(netif);
    pbuf_remove_header(p, ETH_HLEN);
    return ip4_input(p, netif);
}

/* A frame that went out has its header in front of the packet; one that waits for ARP's answer, or could not go, has
 * not. */
static void learn(struct host *host, const struct pbuf *p, const uint8_t *packet, uint32_t address)
{
    const uint8_t *frame = p->payload;
    if (frame != packet - ETH_HLEN || get16(frame + 12) != ETH_P_IP || (frame[0] & GROUP_BIT))
        return;
    host->address = address;
    host->until = net_time() + VALID_NS;
    memcpy(host->header, frame, ETH_HLEN);
}

/* As pbuf_add_header() for ETH_HLEN bytes, where the pbuf lies in front of its bytes. */
static inline bool add_header(struct pbuf *p)
{
    uint8_t *to = (uint8_t *)p->payload - ETH_HLEN;
    if (!(p->type_internal & PBUF_TYPE_FLAG_STRUCT_DATA_CONTIGUOUS) || to < (uint8_t *)(p + 1) ||
        p->tot_len > UINT16_MAX - ETH_HLEN)
        return false;
    p->payload = to;
    p->len = (u16_t)(p->len + ETH_HLEN);
    p->tot_len = (u16_t)(p->tot_len + ETH_HLEN);
    return true;
}

/* By lwIP's table of neighbours. Not taken into the short way, which would save registers for it. */
static __attribute__((noinline)) err_t ask_arp(struct netif *netif, struct pbuf *p, const ip4_addr_t *to,
                                               struct host *host)
{
    const uint8_t *packet = p->payload;
    uint32_t address = ip4_addr_get_u32(to);
    err_t err = etharp_output(netif, p, to);
    if (err == ERR_OK)
        learn(host, p, packet, address);
    return err;
}

err_t ether_output4(struct netif *netif, struct pbuf *p, const ip4_addr_t *to)
{
    uint32_t address = ip4_addr_get_u32(to);
    struct host *host = host_of(address);
    if (!is_known(host, address) || !add_header(p))
        return ask_arp(netif, p, to, host);
    memcpy(p->payload, host->header, ETH_HLEN);
    return netif->linkoutput(netif, p);
}

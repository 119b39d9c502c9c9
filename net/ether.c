#include <stdbool.h>
#include <string.h>
#include <linux/if_ether.h>
#include "lwip/etharp.h"
#include "lwip/ip4.h"
#include "netif/ethernet.h"
#include "net/ether.h"
#include "net/hooks.h"

#define HOSTS     64u         /* a power of two */
#define VALID_NS  1000000000u /* lwIP counts a neighbour's age in seconds */
#define IP4_BYTES 20u
#define GROUP_BIT 1 /* of an Ethernet address's first byte: multicast or broadcast */

/* The Ethernet header that lwIP gave a frame for this host. */
struct host {
    uint32_t address;
    uint8_t header[ETH_HLEN];
    uint64_t until; /* ns */
};

/* By the address's last byte. */
static struct host hosts[HOSTS];

static uint16_t type_of(const uint8_t *frame)
{
    return (uint16_t)(frame[12] << 8 | frame[13]);
}

err_t ether_input(struct pbuf *p, struct netif *netif)
{
    const uint8_t *frame = p->payload;
    if (p->len < ETH_HLEN + IP4_BYTES || type_of(frame) != ETH_P_IP || (frame[0] & GROUP_BIT)) {
        if (p->len >= ETH_HLEN && type_of(frame) == ETH_P_ARP)
            memset(hosts, 0, sizeof hosts); /* it may be about any of them */
        return ethernet_input(p, netif);
    }
    p->if_idx = netif_get_index(netif);
    pbuf_remove_header(p, ETH_HLEN);
    return ip4_input(p, netif);
}

/* A frame that went out has its header in front of the packet; one that waits for ARP's answer, or could not go, has
 * not. */
static void learn(struct host *host, const struct pbuf *p, const uint8_t *packet, uint32_t address)
{
    const uint8_t *frame = p->payload;
    if (frame != packet - ETH_HLEN || type_of(frame) != ETH_P_IP || (frame[0] & GROUP_BIT))
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
    struct host *host = &hosts[address >> 24 & (HOSTS - 1)];
    if (host->address != address || net_time() >= host->until || !add_header(p))
        return ask_arp(netif, p, to, host);
    memcpy(p->payload, host->header, ETH_HLEN);
    return netif->linkoutput(netif, p);
}

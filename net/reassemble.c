#include <string.h>
#include <linux/if_ether.h>
#include "lwip/inet_chksum.h"
#include "lwip/ip.h"
#include "lwip/ip4_frag.h"
#include "lwip/ip6_frag.h"
#include "lwip/prot/ip4.h"
#include "lwip/prot/ip6.h"
#include "net/reassemble.h"

#define IP6_FRAGMENT_HEADER 8

static uint16_t type_of(const uint8_t *frame)
{
    return (uint16_t)(frame[12] << 8 | frame[13]);
}

bool net_can_reassemble(const struct netif *netif, const uint8_t *frame)
{
    if (type_of(frame) == ETH_P_IP)
        return true;
    const struct ip6_hdr *ip = (const struct ip6_hdr *)(frame + ETH_HLEN);
    ip6_addr_t to;
    memcpy(to.addr, &ip->dest, sizeof to.addr);
    return type_of(frame) == ETH_P_IPV6 && IP6H_NEXTH(ip) == IP6_NEXTH_FRAGMENT &&
           netif_get_ip6_addr_match((struct netif *)netif, &to) >= 0;
}

static struct pbuf *reassemble_ip4(const struct netif *netif, struct pbuf *p)
{
    const struct ip_hdr *ip = p->payload;
    uint16_t length = p->len >= IP_HLEN ? lwip_ntohs(IPH_LEN(ip)) : 0, hlen = p->len >= IP_HLEN ? IPH_HL_BYTES(ip) : 0;
    if (hlen < IP_HLEN || hlen > p->len || length < hlen || length > p->tot_len || inet_chksum(ip, hlen) != 0 ||
        ip->dest.addr != netif_ip4_addr(netif)->addr) {
        IP_STATS_INC(ip.drop);
        pbuf_free(p);
        return NULL;
    }
    pbuf_realloc(p, length);
    return ip4_reass(p);
}

/* lwIP's function takes the addresses, and where the header is, from the state that ip6_input() keeps meanwhile. */
static struct pbuf *reassemble_ip6(struct netif *netif, struct pbuf *p)
{
    struct ip6_hdr *ip = p->payload;
    if (p->len < IP6_HLEN + IP6_FRAGMENT_HEADER || IP6H_PLEN(ip) < IP6_FRAGMENT_HEADER ||
        IP6_HLEN + (uint32_t)IP6H_PLEN(ip) > p->tot_len) {
        IP6_STATS_INC(ip6.lenerr);
        IP6_STATS_INC(ip6.drop);
        pbuf_free(p);
        return NULL;
    }
    pbuf_realloc(p, (u16_t)(IP6_HLEN + IP6H_PLEN(ip)));
    ip_data.current_netif = ip_data.current_input_netif = netif;
    ip_data.current_ip6_header = ip;
    ip_addr_copy_from_ip6_packed(ip_data.current_iphdr_src, ip->src);
    ip_addr_copy_from_ip6_packed(ip_data.current_iphdr_dest, ip->dest);
    pbuf_remove_header(p, IP6_HLEN);
    p = ip6_reass(p);
    if (p !=
        NULL) /* lwIP leaves a length behind that lacks the fragment header's 8 bytes; it does not look there again */
        IP6H_PLEN_SET((struct ip6_hdr *)p->payload, (u16_t)(p->tot_len - IP6_HLEN));
    ip_data.current_netif = ip_data.current_input_netif = NULL;
    ip_data.current_ip6_header = NULL;
    ip6_addr_set_zero(ip6_current_src_addr());
    ip6_addr_set_zero(ip6_current_dest_addr());
    return p;
}

struct pbuf *net_reassemble(struct netif *netif, struct pbuf *p)
{
    uint8_t head[ETH_HLEN];
    bool whole = pbuf_copy_partial(p, head, sizeof head, 0) == sizeof head && pbuf_remove_header(p, ETH_HLEN) == 0;
    if (!whole) {
        LINK_STATS_INC(link.lenerr);
        LINK_STATS_INC(link.drop);
        pbuf_free(p);
        return NULL;
    }
    return type_of(head) == ETH_P_IP ? reassemble_ip4(netif, p) : reassemble_ip6(netif, p);
}

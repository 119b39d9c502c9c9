/* Between IPv4 and the interface: short ways for nearly all frames; lwIP's own for the rest. */
#ifndef RINGSIDE_NET_ETHER_H
#define RINGSIDE_NET_ETHER_H
#include "lwip/netif.h"

/* As ethernet_input(): an IPv4 frame that is not for a group goes to lwIP's IPv4 at once. An echo request of a host
 * that frames were sent to lately (see ether_output4()) is answered here, over its own bytes; one that is damaged, in
 * several pieces, or anything else than an echo request for this address is lwIP's. */
err_t ether_input(struct pbuf *p, struct netif *netif);

/* As etharp_output(), which it asks for each host once a second, and again after any ARP frame has come in: in between,
 * frames for that host get the same Ethernet header. So lwIP's table of neighbours ages as it would. */
err_t ether_output4(struct netif *netif, struct pbuf *p, const ip4_addr_t *to);
#endif

/* Fragments are put together before the datagram is steered: only the first one has the ports. */
#ifndef RINGSIDE_NET_REASSEMBLE_H
#define RINGSIDE_NET_REASSEMBLE_H
#include <stdbool.h>
#include <stdint.h>
#include "lwip/netif.h"
#include "lwip/pbuf.h"

/* True if the fragment in the Ethernet frame at `frame` (its IP header checked for length: see rss_parse()) is one for
 * net_reassemble(): IPv4, or IPv6 to an address of ours with the fragment header right behind the IPv6 header. Others
 * are lwIP's own business. */
bool net_can_reassemble(const struct netif *netif, const uint8_t *frame);

/* Takes an Ethernet frame with such a fragment. Returns the whole datagram, its IP header first, when this was the last
 * of its fragments; NULL while some are missing, or when it was dropped (counted in lwIP's statistics). (RFC 791, 3.2;
 * RFC 8200, 4.5) */
struct pbuf *net_reassemble(struct netif *netif, struct pbuf *p);
#endif

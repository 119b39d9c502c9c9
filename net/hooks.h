/* The places where lwIP asks us. */
#ifndef RINGSIDE_NET_HOOKS_H
#define RINGSIDE_NET_HOOKS_H
#include "lwip/arch.h"
#include "lwip/ip_addr.h"
#include "net/segment.h"

struct netif;

/* Sets lwIP's clock (sys_now()), which stands still within a turn of the loop: that calls this once each turn. Returns
 * the time as clock_ns() does. */
uint64_t net_clock(void);

/* The time of the last net_clock(). */
uint64_t net_time(void);

/* Initial sequence number of a connection (RFC 6528): a clock of 4 microseconds plus a keyed hash of the addresses and
 * ports. */
u32_t net_tcp_isn(const ip_addr_t *local_ip, u16_t local_port, const ip_addr_t *remote_ip, u16_t remote_port);

/* The next hop to an IPv6 address that is not on the link, when the boot line names one; NULL: as router advertisements
 * say. */
const ip6_addr_t *net_nd6_gateway(struct netif *netif, const ip6_addr_t *dest);
#endif

/* The interface's addresses as the boot line asks, and the `ringside: ready` line. */
#ifndef RINGSIDE_NET_ADDRESS_H
#define RINGSIDE_NET_ADDRESS_H
#include "drivers/virtio/net.h"
#include "kernel/bootline.h"
#include "lwip/netif.h"

/* Sets the addresses, starts DHCP and IPv6 autoconfiguration, and brings the interface up. Prints the ready line as
 * soon as an address serves: at once when static and the link is up, with the lease, or after 10 s without one.
 * `boot` NULL: there are no addresses, and it is printed at once. */
void net_address_start(struct netif *netif, const struct virtnet *dev, const struct bootline *boot);
#endif

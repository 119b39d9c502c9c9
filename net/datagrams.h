/* UDP datagrams that come in together, as one packet (VIRTIO_NET_F_GUEST_USO4, 6; virtio 1.3, 5.1.6.4). */
#ifndef RINGSIDE_NET_DATAGRAMS_H
#define RINGSIDE_NET_DATAGRAMS_H
#include <stdbool.h>
#include <stdint.h>
#include "lwip/pbuf.h"

#define DATAGRAMS_HEADERS 144u /* Ethernet, IP with options or extension headers, UDP */

/* A packet that is being cut. */
struct datagrams {
    struct pbuf *rest;       /* the data left */
    uint16_t size;           /* bytes of data in each datagram; the last may have fewer */
    uint16_t ip, udp, bytes; /* where the IP and the UDP header begin in front of each, and the data */
    uint16_t told;           /* the length that they tell at present */
    bool is_ip6;
    uint8_t headers[DATAGRAMS_HEADERS];
};

/* Begins to cut packet `p` (Ethernet header first) into datagrams of `size` bytes of data. Then it is taken over;
 * false, and it stays the caller's: it is no UDP over IPv4 or IPv6, a fragment, its headers lie in several buffers, or
 * its lengths contradict each other. */
bool datagrams_begin(struct datagrams *d, struct pbuf *p, uint16_t size);

/* The next datagram, Ethernet header first, in a pbuf chain of its own: headers, and the data where it lies. A short
 * one is copied. NULL: that was all, or there is no memory, and the rest is gone; then d->rest is not NULL. */
struct pbuf *datagrams_next(struct datagrams *d);

/* Gives back what has not been cut. */
void datagrams_end(struct datagrams *d);
#endif

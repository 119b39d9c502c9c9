/* Datagrams to be sent, joined into one packet that the device cuts again (VIRTIO_NET_F_HOST_USO; virtio 1.3, 5.1.6.2).
 */
#ifndef RINGSIDE_NET_JOIN_H
#define RINGSIDE_NET_JOIN_H
#include <stdbool.h>
#include <stdint.h>
#include "lwip/pbuf.h"

#define JOIN_BYTES 65000u /* of a joined packet, at most */
#define JOIN_COUNT 64u    /* datagrams in it, at most */

/* Datagrams of one flow, each of the same size, in order. */
struct join {
    struct pbuf *first; /* headers and data of the first, the others' data behind it; NULL: there are none */
    uint16_t size;      /* bytes of data in each; the last may have had fewer, then none may follow */
    uint16_t count;     /* datagrams, */
    uint16_t pieces;    /* and the pbufs that they lie in */
    uint16_t bytes;     /* of the headers: Ethernet, IP, UDP */
};

/* Takes a reference to frame `p` (Ethernet header first) and adds it, or begins with it where there is none; in no more
 * than `pieces` pbufs in all. False, and nothing was done: it does not belong to these, does not fit, or is nothing to
 * be joined: not UDP, a fragment, without data, with IP options, or with its checksum made already. */
bool join_add(struct join *join, struct pbuf *p, uint16_t pieces);

/* True if nothing can follow. */
bool join_full(const struct join *join);

/* Ends it: the packet is the caller's, p->gso_size says what the device is to cut it into (0: it is one datagram).
 * NULL: there was none. */
struct pbuf *join_take(struct join *join);
#endif

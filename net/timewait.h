/* Connections in TIME_WAIT give way to new ones. A server that closes first keeps each connection for minutes, in which
 * lwIP refuses a new one from the same port; at thousands a second they would take all memory. */
#ifndef RINGSIDE_NET_TIMEWAIT_H
#define RINGSIDE_NET_TIMEWAIT_H
#include <stdint.h>

struct timewait_stats {
    uint64_t reopened; /* ended by a new connection of the same addresses and ports */
    uint64_t evicted;  /* ended early because there were too many */
};

/* Looks at a received Ethernet frame, of which the first `length` bytes are at `frame`, before lwIP does. If it opens a
 * connection (a SYN) that is in TIME_WAIT, and is newer than what that one has seen (its sequence number, or its
 * timestamp: RFC 1122, 4.2.2.13; RFC 6191), the old one is ended, so that the listener gets the SYN. */
void timewait_make_way(const uint8_t *frame, uint32_t length);

/* A connection has entered TIME_WAIT: ends the oldest when there are too many. */
void timewait_entered(void);

const struct timewait_stats *timewait_stats(void);
#endif

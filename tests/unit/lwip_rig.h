/* The real lwIP on the host, configured as in the guest, with one interface whose other side is the test: it hands
 * segments to tcp_input() and reads what comes out. One packet at a time, no checksums, a clock that the test moves. */
#ifndef RINGSIDE_UNIT_LWIP_RIG_H
#define RINGSIDE_UNIT_LWIP_RIG_H
#include <stdbool.h>
#include <stdint.h>
#include "lwip/ip_addr.h"

/* One end of a connection that the test plays. */
struct peer {
    ip_addr_t address, guest; /* its own, and the guest's: both IPv4 or both IPv6 */
    uint16_t port, guest_port;
    uint32_t seq, ack; /* what it sends next, and acknowledges */
};

/* A segment that lwIP sent. */
struct sent {
    uint16_t port, guest_port; /* to this port of the peer, from this one */
    uint8_t flags;
    uint32_t seq, ack;
    uint32_t bytes; /* of data */
};

/* Starts lwIP (once in a program) and the interface, 198.18.0.2 and fd00::2. */
void rig_start(void);

/* The peer with number `n` of some thousands: addresses and port, odd numbers by IPv6. */
struct peer rig_peer(unsigned n, uint16_t guest_port);

/* Hands lwIP a segment of the peer. Its sequence numbers move by what was sent. */
void rig_send(struct peer *peer, uint8_t flags, uint32_t bytes);

/* The last segment that lwIP sent since the last rig_send(); NULL: none. */
const struct sent *rig_answer(void);

/* Makes a connection: SYN, its answer, ACK. False: the SYN was not answered with SYN and ACK. */
bool rig_connect(struct peer *peer);

/* Lets so much time go by, timers and all. */
void rig_pass(uint32_t ms);

extern bool rig_heap_low;   /* what heap_low() says */
extern uint64_t rig_chance; /* where net_random() and random_next() take their numbers from */
#endif

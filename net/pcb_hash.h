/* TCP connections by their addresses and ports.
 *
 * lwIP keeps connections in two lists, the active ones and those in TIME_WAIT, and walks them: for each segment to find
 * its connection, and to find what stands before a connection that ends. With ten thousand connections a transaction
 * costs thirty times as much as with ten. So connections are in a hash table too, and know what points to them in their
 * list. net/patches puts the calls of the first three functions into lwIP, and `hash`, `hash_next` and `link` into
 * struct tcp_pcb. Listeners and bound pcbs stay as they were: there are few, and wildcards are matched among them.
 *
 * The hash is keyed, with a key that is new at every start and that each core makes for itself: nobody outside can
 * choose ports so that connections share a bucket. */
#ifndef RINGSIDE_NET_PCB_HASH_H
#define RINGSIDE_NET_PCB_HASH_H
#include <stdbool.h>
#include <stdint.h>
#include "lwip/ip_addr.h"

struct tcp_pcb;

struct pcb_hash_stats {
    uint32_t active;    /* connections that are not in TIME_WAIT */
    uint32_t time_wait; /* and those that are */
    uint32_t buckets;
};

/* Makes the key. Before lwIP has connections. */
void pcb_hash_init(void);

/* lwIP has put `pcb` in front of `list`. If that is one of the two lists, the pcb has its addresses and ports, which
 * stay as they are while it is there. */
void pcb_hash_add(struct tcp_pcb **list, struct tcp_pcb *pcb);

/* lwIP is about to take `pcb` off `list`. If that is one of the two, returns what points to it, and is to point to
 * `pcb->next`, which has been told. That a pcb is taken off twice is lwIP's way (tcp_input_delayed_close) and does no
 * harm. NULL: another list, which has no links. */
struct tcp_pcb **pcb_hash_remove(struct tcp_pcb **list, struct tcp_pcb *pcb);

/* The first of the connections among which the one with these addresses and ports is, if there is one; the others come
 * by `hash_next`. In no order, and in whatever state. */
struct tcp_pcb *pcb_hash_first(const ip_addr_t *remote, uint16_t remote_port, const ip_addr_t *local,
                               uint16_t local_port);

/* The connection that has been in TIME_WAIT for longest (a FIN that is repeated does not make it younger); NULL: none.
 */
struct tcp_pcb *pcb_hash_oldest(void);

const struct pcb_hash_stats *pcb_hash_stats(void);
#endif

/* Acknowledgements of bulk data, put together.
 *
 * A large segment (the device's GUEST_TSO: several packets in one) is acknowledged at once, so that a peer whose window
 * is small does not wait. A core that is quicker than its peer then answers each one: an interrupt, a halt, a frame out
 * and the peer's work with it, for some 8 KiB. So once a connection has carried QUICK_BYTES of them in a row, they are
 * acknowledged together: after HOLD_BYTES, or a quarter of the window if that is less, and after HOLD_NS at the latest
 * (RFC 9293, 3.8.6.3 allows 500 ms; RFC 5681, 4.2 wants one for each two full segments, as any receiver that puts
 * segments together has had to read it). Whatever else is sent takes the acknowledgement along; a small segment, one
 * out of order, a FIN are acknowledged as ever. A hold that ends by time says that the peer had no more to send or was
 * waiting: the next QUICK_BYTES are acknowledged at once again. The window is announced in the same steps
 * (TCP_WND_UPDATE_THRESHOLD in lwipopts.h), or each read would send a segment of its own. `bulk` and `held` in struct
 * tcp_pcb are ours (net/patches). */
#ifndef RINGSIDE_NET_ACKS_H
#define RINGSIDE_NET_ACKS_H
#include <stdbool.h>
#include <stdint.h>

struct tcp_pcb;

#define ACKS_QUICK_BYTES (256u * 1024)
#define ACKS_HOLD_BYTES  (64u * 1024)
#define ACKS_HOLD_NS     500000u

struct acks_stats {
    uint64_t held;    /* large segments whose acknowledgement was held back */
    uint64_t by_size; /* acknowledgements that went when enough had come, */
    uint64_t by_time; /* and when the time was up */
};

/* A large segment of `bytes` has come in for the established `pcb`, at `now` (ns). True: its acknowledgement waits,
 * and acks_turn() will see to it. False: it is to be sent at once. */
bool acks_hold(struct tcp_pcb *pcb, uint32_t bytes, uint64_t now);

/* The connection is no longer among the active ones. */
void acks_forget(const struct tcp_pcb *pcb);

/* How many connections' acknowledgements wait. */
unsigned acks_waiting(void);

/* Sends the acknowledgements whose time is up. Returns in how many ns the next one's is; UINT64_MAX: none waits. */
uint64_t acks_turn(uint64_t now);

const struct acks_stats *acks_stats(void);
#endif

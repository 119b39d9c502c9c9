/* Acknowledgements of bulk data, put together, and the sleep until there is enough to acknowledge.
 *
 * A large segment (the device's GUEST_TSO: several packets in one) is acknowledged at once, so that a peer whose window
 * is small does not wait. A core that is quicker than its peer then answers each one: an interrupt, a halt, a frame out
 * and the peer's work with it, for some 8 KiB. So once a connection has carried QUICK_BYTES of them in a row, and sent
 * nothing meanwhile, all its segments are acknowledged together: at the end of a turn in which HOLD_BYTES, or a quarter
 * of the window if that is less, have come, and after HOLD_NS at the latest (RFC 9293, 3.8.6.3 allows 500 ms; RFC 5681,
 * 4.2 wants one for each two full segments, as any receiver that puts segments together has had to read it). Whatever
 * else is sent takes the acknowledgement along; a segment out of order and a FIN are acknowledged as ever. A hold that
 * ends by time says that the peer had no more to send or was waiting: the next QUICK_BYTES are acknowledged at once
 * again, and twice as many after each further one. What waits announces the window, too (TCP_WND_UPDATE_THRESHOLD
 * in lwipopts.h), or reads would send segments of their own. `bulk`, `held`, `said` and `quick` in struct tcp_pcb
 * are ours (net/patches). */
#ifndef RINGSIDE_NET_ACKS_H
#define RINGSIDE_NET_ACKS_H
#include <stdbool.h>
#include <stdint.h>

struct tcp_pcb;

#define ACKS_QUICK_BYTES (256u * 1024)
#define ACKS_QUICK_MOST  (64u * 1024 * 1024)
#define ACKS_HOLD_BYTES  (64u * 1024)
#define ACKS_HOLD_NS     1000000u

/* The sleep. It ends when ACKS_BUFFERS receive buffers (of 4,032 bytes: about the window of 256 KiB that one connection
 * has) are used, and after SLEEP_LEAST at the latest, or up to SLEEP_MOST while data comes as fast as a buffer each
 * BUFFER_NS: what comes slower costs little as it is, and waits less. While anything else comes there is none, nor
 * for QUIET after it: a session of requests beside the stream does not wait. */
#define ACKS_BUFFERS        64u
#define ACKS_BUFFER_BYTES   4032u
#define ACKS_BUFFER_NS      40000u
#define ACKS_SLEEP_LEAST_NS 200000u
#define ACKS_SLEEP_MOST_NS  1000000u
#define ACKS_QUIET_NS       2000000u

struct acks_stats {
    uint64_t held;    /* segments whose acknowledgement was held back */
    uint64_t by_size; /* acknowledgements that went when enough had come, */
    uint64_t by_time; /* and when the time was up */
};

/* True if the connection has carried so much, and sent nothing meanwhile, that acknowledgements may wait. */
bool acks_is_bulk(struct tcp_pcb *pcb);

/* A segment of `bytes` has come in for the established `pcb`, at `now` (ns). True: its acknowledgement waits, and
 * acks_turn() will see to it. False: it is to be acknowledged as if this were not here. */
bool acks_hold(struct tcp_pcb *pcb, uint32_t bytes, uint64_t now);

/* The connection is no longer among the active ones. */
void acks_forget(const struct tcp_pcb *pcb);

/* How many connections' acknowledgements wait. */
unsigned acks_waiting(void);

/* How a core sleeps after a turn: at most so long, and until so many receive buffers are used. */
struct acks_rest {
    uint64_t ns;
    uint16_t rx_after; /* 1: nothing is to wait; else it is not worth while to look for packets before sleeping, too */
};

/* What the choice of it rests on, besides the turn itself; all 0 to begin with. */
struct acks_past {
    uint64_t others; /* frames so far that were not bulk data, */
    uint64_t at;     /* and when it was seen that there were more of them */
    uint64_t ns;     /* the last sleep's limit */
};

/* The choice, after a turn that began at `now` (ns). others: frames so far that were not bulk data; bytes: of bulk data
 * in this turn; wait: ns until an acknowledgement is due (UINT64_MAX: none waits). */
struct acks_rest acks_choose(struct acks_past *past, uint64_t others, uint64_t bytes, uint64_t wait, uint64_t now);

/* True if the turn that ends had to do with bulk data: then acks_turn() is to be called. */
bool acks_busy(void);

/* The end of such a turn, which began at `now`: sends the acknowledgements that are due. frames: those received by this
 * core so far. Returns how to sleep. */
struct acks_rest acks_turn(uint64_t frames, uint64_t now);

const struct acks_stats *acks_stats(void);
#endif

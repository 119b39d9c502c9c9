/* The real lwIP with our configuration and hooks on the host, between an application that writes and a scripted peer
 * that reads. Between them are a device that cuts large segments as virtio-net's do, and a wire that loses, delays and
 * reorders what comes of it. Time is a number. */
#ifndef RINGSIDE_SEGMENT_RIG_H
#define RINGSIDE_SEGMENT_RIG_H
#include "lwip/priv/tcp_priv.h"
#include "net/acks.h"
#include "tests/unit/unit.h"

#define RIG_BYTES (1u << 21) /* the longest stream */

/* How the peer offers its window. */
enum rig_window {
    WINDOW_FIXED,  /* always so much */
    WINDOW_READER, /* so much buffer, of which `rate` bytes per ms are read; now and then it pauses */
    WINDOW_WILD,   /* anything from 0 to so much, taking back what it has offered */
    WINDOW_SHUTS,  /* always so much, but now and then it is shut by surprise, for up to 3 s, with duplicate
                      acknowledgements that  say so; or opened by a part only */
};

struct rig_options {
    bool v6, no_offload, timestamps;
    uint16_t mtu; /* of the guest's interface; 0: 1500 */
    uint16_t mss; /* the peer's; 0: by its MTU of 1500 */
    int scale;    /* the peer's window scale, -1: none */
    enum rig_window kind;
    uint32_t window, rate;
    unsigned ack_every;     /* segments */
    unsigned loss, reorder; /* of 1,000 pieces; acknowledgements are lost half as often */
    unsigned busy_ms;       /* the device keeps a packet for up to so long */
    unsigned no_memory;     /* of 1,000 allocations */
    bool copy, mix;         /* tcp_write() copies; or does so now and then */
    bool nodelay;
    uint32_t bytes;       /* of the stream, */
    uint32_t least, most; /* in writes of so many */
    unsigned pace_ms;     /* the application writes `burst` bytes each so often; 0: whenever there is room */
    uint32_t burst;
    bool close_at_once; /* after the last write, not when all is acknowledged */
    uint64_t seed;
};

/* A piece of a segment, as it is on the wire. */
struct rig_piece {
    struct rig_piece *next;
    uint64_t at; /* when it arrives */
    uint32_t seq, len, window, ack;
    uint8_t flags;
    bool again; /* data that was sent before */
    uint8_t data[];
};

struct rig {
    struct rig_options o;
    uint64_t now; /* ms */
    uint64_t seed;
    struct netif netif;
    struct tcp_pcb *listener, *pcb;
    /* the application */
    uint32_t written, acknowledged;
    uint32_t allowed; /* may be written by now */
    uint64_t burst_at;
    bool closed, aborted;
    /* the peer */
    uint32_t iss, irs, rcv_nxt; /* rcv_nxt: offset in the stream */
    uint32_t right;             /* the furthest byte offered */
    uint32_t unread, window;
    unsigned unacked; /* segments */
    uint64_t ack_at, pause_until, shut_until;
    uint32_t gap; /* the window while it is shut */
    bool syn_received, established, fin_received, fin_acked, wild_dirty;
    int64_t fin_at;
    uint8_t *have;
    uint32_t echo_time;
    /* what was seen */
    uint32_t furthest; /* stream bytes sent at least once */
    uint64_t packets, pieces, large, lost, again, acks;
    unsigned largest;
    uint32_t guest_ack;  /* the last acknowledgement of the peer's data, as an offset, */
    uint64_t guest_acks; /* and how many segments carried one */
    uint16_t path_mtu;   /* 0: the interface's */
    uint16_t next_id;    /* of IPv4: the first identification that is not used up */
    struct rig_piece *wire;
    bool (*drop)(const struct rig_piece *piece); /* beyond chance */
    unsigned memory_in_use;
};
extern struct rig rig;

uint8_t rig_pattern(uint32_t at);

/* Opens the connection. */
void rig_open(const struct rig_options *options);
/* Goes on by `ms`, 1 at a time. */
void rig_run(uint64_t ms);
/* Goes on until the peer has the whole stream and its end, at most `limit_ms`; checks all that there is to check. */
void rig_finish(uint64_t limit_ms);
/* Ends everything; nothing must be left. */
void rig_close(void);

/* A segment from the peer: `n` bytes of its own data from its offset `at`; gso_size as the device would say it. */
void rig_send(uint32_t at, uint32_t n, uint16_t gso_size);
void rig_ack(void);
const char *rig_describe(void);
#endif

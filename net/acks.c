#include <string.h>
#include "lwip/priv/tcp_priv.h"
#include "net/acks.h"

#define HOLDS 16u /* connections at a time; of further ones each segment is acknowledged at once */

/* Those that wait. */
static struct {
    struct tcp_pcb *pcb;
    uint64_t due; /* 0: at the end of this turn */
} holds[HOLDS];
static unsigned count;
static bool busy;
static uint64_t segments; /* of bulk data, so far */
static uint32_t bytes;    /* of bulk data, in this turn */
static struct acks_stats stats;

const struct acks_stats *acks_stats(void)
{
    return &stats;
}

unsigned acks_waiting(void)
{
    return count;
}

bool acks_busy(void)
{
    return busy;
}

static unsigned find(const struct tcp_pcb *pcb)
{
    unsigned i = 0;
    while (i < count && holds[i].pcb != pcb)
        i++;
    return i;
}

void acks_forget(const struct tcp_pcb *pcb)
{
    unsigned i = find(pcb);
    if (i < count)
        holds[i] = holds[--count];
}

/* So many bytes may wait: never so many that the peer has used up its window. */
static uint32_t most(const struct tcp_pcb *pcb)
{
    uint32_t quarter = TCP_WND_MAX(pcb) / 4;
    return quarter < ACKS_HOLD_BYTES ? quarter : ACKS_HOLD_BYTES;
}

static uint32_t quick_bytes(const struct tcp_pcb *pcb)
{
    return pcb->quick == 0 ? ACKS_QUICK_BYTES : pcb->quick;
}

bool acks_is_bulk(struct tcp_pcb *pcb)
{
    if (pcb->said != pcb->snd_lbb) { /* the application sends, too: what came in may have been a request */
        pcb->said = pcb->snd_lbb;
        pcb->bulk = 0;
    }
    return pcb->bulk >= quick_bytes(pcb);
}

bool acks_hold(struct tcp_pcb *pcb, uint32_t n, uint64_t now)
{
    if (!acks_is_bulk(pcb)) {
        pcb->bulk += n;
        return false;
    }
    busy = true;
    segments++;
    bytes += n;
    if (!(pcb->flags & TF_ACK_DELAY)) { /* something that was sent took the acknowledgement along */
        if (pcb->held > 0)
            acks_forget(pcb);
        pcb->held = 0;
    }
    if (pcb->held == 0) {
        if (count == HOLDS)
            return false;
        holds[count].pcb = pcb;
        holds[count++].due = now + ACKS_HOLD_NS;
    }
    pcb->held += n;
    if (pcb->held >= most(pcb))
        holds[find(pcb)].due = 0;
    stats.held++;
    return true;
}

/* Sends what is due of what waits; the caller goes on with the next one. */
static void release(struct tcp_pcb *pcb, bool by_time)
{
    acks_forget(pcb);
    pcb->held = 0;
    if (!(pcb->flags & TF_ACK_DELAY))
        return;
    if (by_time) {
        uint32_t quick = quick_bytes(pcb);
        pcb->quick = quick < ACKS_QUICK_MOST ? 2 * quick : quick;
        pcb->bulk = 0;
    }
    stats.by_time += by_time;
    stats.by_size += !by_time;
    tcp_ack_now(pcb);
    tcp_output(pcb);
}

struct acks_rest acks_choose(struct acks_past *past, uint64_t others, uint64_t n, uint64_t wait, uint64_t now)
{
    if (past->others != others) {
        past->others = others;
        past->at = now;
    }
    if (n == 0 || now - past->at < ACKS_QUIET_NS)
        return (struct acks_rest){ wait, 1 };
    bool fast = n * ACKS_BUFFER_NS >= past->ns * ACKS_BUFFER_BYTES;
    past->ns = fast ? 2 * past->ns : past->ns / 2;
    if (past->ns < ACKS_SLEEP_LEAST_NS)
        past->ns = ACKS_SLEEP_LEAST_NS;
    if (past->ns > ACKS_SLEEP_MOST_NS)
        past->ns = ACKS_SLEEP_MOST_NS;
    return (struct acks_rest){ wait < past->ns ? wait : past->ns, ACKS_BUFFERS };
}

struct acks_rest acks_turn(uint64_t frames, uint64_t now)
{
    static struct acks_past past;
    uint64_t wait = UINT64_MAX, n = bytes;
    for (unsigned i = count; i-- > 0;) { /* backwards: the last one takes the place of one that goes */
        uint64_t due = holds[i].due;
        if (due <= now)
            release(holds[i].pcb, due != 0);
        else if (due - now < wait)
            wait = due - now;
    }
    bytes = 0;
    busy = count > 0;
    return acks_choose(&past, frames - segments, n, wait, now);
}

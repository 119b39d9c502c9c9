#include <string.h>
#include "lwip/priv/tcp_priv.h"
#include "net/acks.h"

#define HOLDS 16u /* connections at a time; of further ones each segment is acknowledged at once */

/* Those that wait, in the order of their time. */
static struct {
    struct tcp_pcb *pcb;
    uint64_t due;
} holds[HOLDS];
static unsigned count;
static struct acks_stats stats;

const struct acks_stats *acks_stats(void)
{
    return &stats;
}

unsigned acks_waiting(void)
{
    return count;
}

void acks_forget(const struct tcp_pcb *pcb)
{
    for (unsigned i = 0; i < count; i++) {
        if (holds[i].pcb != pcb)
            continue;
        count--;
        memmove(&holds[i], &holds[i + 1], (count - i) * sizeof holds[0]);
        return;
    }
}

/* So many bytes may wait: never so many that the peer has used up its window. */
static uint32_t most(const struct tcp_pcb *pcb)
{
    uint32_t quarter = TCP_WND_MAX(pcb) / 4;
    return quarter < ACKS_HOLD_BYTES ? quarter : ACKS_HOLD_BYTES;
}

bool acks_hold(struct tcp_pcb *pcb, uint32_t bytes, uint64_t now)
{
    if (pcb->bulk < ACKS_QUICK_BYTES) {
        pcb->bulk += bytes;
        return false;
    }
    if (!(pcb->flags & TF_ACK_DELAY)) { /* something that was sent took the acknowledgement along */
        if (pcb->held > 0)
            acks_forget(pcb);
        pcb->held = 0;
    }
    if (pcb->held + bytes >= most(pcb) || (pcb->held == 0 && count == HOLDS)) {
        stats.by_size += pcb->held > 0;
        acks_forget(pcb);
        pcb->held = 0;
        return false;
    }
    if (pcb->held == 0) {
        holds[count].pcb = pcb;
        holds[count++].due = now + ACKS_HOLD_NS;
    }
    pcb->held += bytes;
    stats.held++;
    return true;
}

uint64_t acks_turn(uint64_t now)
{
    while (count > 0 && holds[0].due <= now) {
        struct tcp_pcb *pcb = holds[0].pcb;
        acks_forget(pcb);
        pcb->held = 0;
        if (pcb->flags & TF_ACK_DELAY) {
            pcb->bulk = 0;
            stats.by_time++;
            tcp_ack_now(pcb);
            tcp_output(pcb);
        }
    }
    return count > 0 ? holds[0].due - now : UINT64_MAX;
}

#include "lwip/priv/tcp_priv.h"
#include "net/segment.h"

/* An IP packet has at most 65,535 bytes, and so has a pbuf, with the headers in front of it; lwIP rounds up. */
#define SEGMENT_MAX 65000u

static bool cuts_ip4, cuts_ip6;

void segment_init(bool ip4, bool ip6)
{
    cuts_ip4 = ip4;
    cuts_ip6 = ip6;
}

static u32_t options_of(const struct tcp_pcb *pcb)
{
    return (pcb->flags & TF_TIMESTAMP) != 0 ? LWIP_TCP_OPT_LEN_TS_OUT : 0;
}

/* A multiple of what fits into a frame. At most half of the congestion window: a segment that fills it would wait for
 * all that is under way. Never less than the last segment queued has and may still take: tcp_write() counts on it. */
u16_t net_tcp_segment_larger(const struct tcp_pcb *pcb, u16_t usual)
{
    u32_t max = usual, options = options_of(pcb), unit = pcb->mss - options;
    if (IP_IS_V6_VAL(pcb->remote_ip) ? cuts_ip6 : cuts_ip4) {
        u32_t most = LWIP_MIN(pcb->cwnd, pcb->snd_wnd_max) / 2;
        most = LWIP_MIN(most, SEGMENT_MAX - options) / unit * unit + options;
        max = LWIP_MAX(max, most);
    }
    const struct tcp_seg *last = pcb->unsent;
    if (last == NULL)
        return (u16_t)max;
    while (last->next != NULL)
        last = last->next;
    u32_t has = last->len + LWIP_TCP_OPT_LENGTH(last->flags) + pcb->unsent_oversize;
    return (u16_t)LWIP_MAX(max, has);
}

struct tcp_seg *net_tcp_fit_first(struct tcp_pcb *pcb, u32_t wnd)
{
    struct tcp_seg *seg = pcb->unsent;
    u32_t unit = pcb->mss - options_of(pcb);
    if (seg->len <= unit)
        return seg;
    u32_t before = lwip_ntohl(seg->tcphdr->seqno) - pcb->lastack;
    if (before + seg->len <= wnd || before >= wnd)
        return seg;
    u32_t fits = (wnd - before) / unit * unit;
    /* Cutting copies the rest. While more is under way its acknowledgements make room, so small parts can wait. */
    if (fits > 0 && (pcb->unacked == NULL || fits >= seg->len / 2u))
        tcp_split_unsent_seg(pcb, (u16_t)fits); /* without memory for it the segment waits as it is */
    return pcb->unsent;
}

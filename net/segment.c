#include <string.h>
#include "lwip/nd6.h"
#include "lwip/priv/tcp_priv.h"
#include "net/acks.h"
#include "net/hooks.h"
#include "net/segment.h"

/* An IP packet has at most 65,535 bytes, and so has a pbuf, with the headers in front of it; lwIP rounds up. */
#define SEGMENT_MAX 65000u
/* Pieces that the device is to make of one: a peer that asks for segments of a few bytes gets them, but not by the ten
 * thousand at once. */
#define PIECES_MAX     128u
#define INITIAL_WINDOW 10u /* pieces */

static bool cuts_ip4, cuts_ip6;

void segment_init(bool ip4, bool ip6)
{
    cuts_ip4 = ip4;
    cuts_ip6 = ip6;
}

static bool cuts(const struct tcp_pcb *pcb)
{
    return IP_IS_V6_VAL(pcb->remote_ip) ? cuts_ip6 : cuts_ip4;
}

static u32_t options_of(const struct tcp_pcb *pcb)
{
    return (pcb->flags & TF_TIMESTAMP) != 0 ? LWIP_TCP_OPT_LEN_TS_OUT : 0;
}

/* A multiple of what fits into a frame. At most half of the congestion window: a segment that fills it would wait for
 * all that is under way. A new connection's first writes often come before it has that window, and may fill the whole
 * send buffer: half of the window that it will have (RFC 6928) then, and also after a timeout, where the segment is cut
 * if it must be. Never less than the last segment queued has and may still take: tcp_write() counts on it. */
u16_t net_tcp_segment_larger(const struct tcp_pcb *pcb, u16_t usual)
{
    u32_t max = usual, options = options_of(pcb), unit = net_tcp_unit(pcb, options);
    if (cuts(pcb)) {
        u32_t most = LWIP_MIN(LWIP_MAX(pcb->cwnd, INITIAL_WINDOW * unit), pcb->snd_wnd_max) / 2;
        most = LWIP_MIN(most, LWIP_MIN(SEGMENT_MAX - options, PIECES_MAX * unit)) / unit * unit + options;
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

/* Takes `n` bytes from the start of a segment that is not on its way: the peer has them. They stay counted
 * (seg->p->acked) until the whole segment is acknowledged, which is when the application hears of it. */
static void trim(struct tcp_pcb *pcb, struct tcp_seg *seg, u32_t n)
{
    struct pbuf *p = seg->p, *q;
    u8_t *header = (u8_t *)seg->tcphdr, bytes = TCPH_HDRLEN_BYTES(seg->tcphdr);
    u32_t first = (u32_t)((u8_t *)p->payload + p->len - header) - bytes, left = n; /* data in the first pbuf */
    if (n < first) { /* the header moves up to the rest, wherever that is: lwIP's headers need no alignment */
        memmove(header + n, header, bytes);
        seg->tcphdr = (struct tcp_hdr *)(header + n);
        p->len = (u16_t)(p->len - (header + n - (u8_t *)p->payload));
        p->tot_len = (u16_t)(p->tot_len - (header + n - (u8_t *)p->payload));
        p->payload = header + n;
    } else {
        p->len = (u16_t)(p->len - first);
        p->tot_len = (u16_t)(p->tot_len - n);
        for (left -= first; left > 0 && left >= (q = p->next)->len; pcb->snd_queuelen--) {
            left -= q->len;
            p->next = q->next;
            q->next = NULL;
            pbuf_free(q);
        }
        if (left > 0) {
            q->payload = (u8_t *)q->payload + left;
            q->len = (u16_t)(q->len - left);
            q->tot_len = (u16_t)(q->tot_len - left);
        }
    }
    seg->len = (u16_t)(seg->len - n);
    seg->tcphdr->seqno = lwip_htonl(lwip_ntohl(seg->tcphdr->seqno) + n);
    p->acked = (u16_t)(p->acked + n);
}

static s32_t before(const struct tcp_pcb *pcb, const struct tcp_seg *seg)
{
    return (s32_t)(lwip_ntohl(seg->tcphdr->seqno) - pcb->lastack);
}

/* A segment that is sent again may have been received in part: the window can be too small for the whole of it, and for
 * what the peer has there is no need. */
struct tcp_seg *net_tcp_fit_first(struct tcp_pcb *pcb, u32_t wnd)
{
    struct tcp_seg *seg = pcb->unsent;
    if (before(pcb, seg) < 0 && seg->p->ref == 1)
        trim(pcb, seg, (u32_t)-before(pcb, seg));
    s32_t room = (s32_t)wnd - before(pcb, seg);
    u32_t unit = net_tcp_unit(pcb, options_of(pcb));
    if (seg->len <= room || room <= 0 || seg->len <= unit || seg->p->ref != 1)
        return seg;
    u32_t fits = (u32_t)room / unit * unit;
    /* Cutting copies the rest. While what precedes it is under way its acknowledgements make room, so small parts can
     * wait. */
    bool first = pcb->unacked == NULL || before(pcb, seg) < before(pcb, pcb->unacked);
    if (fits == 0 || (!first && fits < seg->len / 2u))
        return seg;
    tcp_split_unsent_seg(pcb,
                         (u16_t)fits); /* without memory for it the segment waits as it is, for tcp_poll()'s turn */
    return pcb->unsent;
}

bool net_tcp_is_end(const struct tcp_pcb *pcb, const struct tcp_seg *seg)
{
    return lwip_ntohl(seg->tcphdr->seqno) + TCP_TCPLEN(seg) == pcb->snd_lbb;
}

u16_t net_tcp_path_unit(const struct tcp_pcb *pcb, u16_t bytes, u16_t unit)
{
    if (!cuts_ip6)
        return unit; /* IP makes fragments of it */
    u16_t mtu = nd6_get_destination_mtu(ip_2_ip6(&pcb->remote_ip), netif_default);
    return LWIP_MIN(unit, (u16_t)(LWIP_MAX(mtu, IP6_MIN_MTU_LENGTH) - IP6_HLEN - bytes));
}

/* Small ones alone make no stream: they count once it is one. */
__attribute__((noinline)) void net_tcp_arrived_large(struct tcp_pcb *pcb, const struct pbuf *p)
{
    bool large = p->gso_size != 0;
    if (p->tot_len == 0 || (!large && !acks_is_bulk(pcb)))
        return;
    if (acks_hold(pcb, p->tot_len, net_time()))
        tcp_clear_flags(pcb, TF_ACK_DELAY);
    else if (large)
        tcp_set_flags(pcb, TF_ACK_NOW);
}

/* Its sequence number is in the processor's order already. FIN comes behind the data. (RFC 9293, 3.10.7.4) Cold: the
 * way that leads here lies beside the usual one then, which is 7 instructions shorter. */
__attribute__((noinline, cold)) u16_t net_tcp_trim(struct tcp_seg *seg, u32_t end)
{
    u32_t seqno = seg->tcphdr->seqno;
    if (TCP_SEQ_GT(seqno + TCP_TCPLEN(seg), end)) {
        TCPH_UNSET_FLAG(seg->tcphdr, TCP_FIN);
        seg->len = (u16_t)(end - seqno);
        pbuf_realloc(seg->p, seg->len);
    }
    return (u16_t)TCP_TCPLEN(seg);
}

__attribute__((noinline, cold)) void net_tcp_unread(struct pbuf *data)
{
    if (data != NULL)
        pbuf_free(data);
}

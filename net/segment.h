/* Segments larger than a frame: lwIP makes one of what would be up to 45, and the device cuts it (virtio 1.3, 5.1.6.2:
 * TCP segmentation offload). pcb->mss stays the peer's, so congestion control and windows are what they are without;
 * only tcp_write() may fill a larger segment, and tcp_output() may cut one in two to fit a window (net/patches). */
#ifndef RINGSIDE_NET_SEGMENT_H
#define RINGSIDE_NET_SEGMENT_H
#include <stdbool.h>
#include "lwip/pbuf.h"
#include "lwip/prot/tcp.h"
#include "lwip/tcp.h"

struct tcp_seg;

/* Which IP versions' TCP the device segments (VIRTIO_NET_F_HOST_TSO4, 6). Before the first connection. */
void segment_init(bool ip4, bool ip6);

/* Bytes of data in a frame with `options` bytes of TCP options. A peer may ask for segments smaller than its options;
 * lwIP puts one byte into each then. */
static inline u16_t net_tcp_unit(const struct tcp_pcb *pcb, u32_t options)
{
    return pcb->mss > options ? (u16_t)(pcb->mss - options) : 1;
}

/* net_tcp_segment_max() for more than a small write: `usual` bytes, or a multiple of what fits into a frame, up to
 * 65,000 bytes, where the device cuts segments. */
u16_t net_tcp_segment_larger(const struct tcp_pcb *pcb, u16_t usual);

/* How many bytes, options counted in, tcp_write() may put into a segment when it is to queue `len` more. */
static inline u16_t net_tcp_segment_max(const struct tcp_pcb *pcb, u16_t len)
{
    u32_t half = pcb->snd_wnd_max / 2; /* lwIP's rule: at most half of the largest window ever seen */
    u16_t usual = half == 0 || half > pcb->mss ? pcb->mss : (u16_t)half;
    if (pcb->unsent == NULL && len < usual / 2)
        return usual;
    return net_tcp_segment_larger(pcb, usual);
}

/* The first segment to send, without what the peer has of it already, and cut in two if it is a large one that does not
 * fit into the window `wnd` (bytes from pcb->lastack on) but a good part of it would. */
struct tcp_seg *net_tcp_fit_first(struct tcp_pcb *pcb, u32_t wnd);

/* Nearly always there is nothing to do: it fits into a frame, with whatever options, and the peer has nothing of it
 * yet. A macro, since lwIP's segments are known where it is used, and not here. */
#define net_tcp_fit(pcb, wnd)                                                                                          \
    ((pcb)->unsent == NULL || ((pcb)->unsent->len + LWIP_TCP_OPT_LEN_TS_OUT <= (pcb)->mss &&                           \
                               (s32_t)(lwip_ntohl((pcb)->unsent->tcphdr->seqno) - (pcb)->lastack) >= 0)                \
         ? (pcb)->unsent                                                                                               \
         : net_tcp_fit_first(pcb, wnd))

/* True if nothing was queued behind the segment: then data or FIN may be added to it. The last one that waits to be
 * sent may be one that was lost, with later ones under way. */
bool net_tcp_is_end(const struct tcp_pcb *pcb, const struct tcp_seg *seg);

/* `unit`, or less where the path to the peer has a smaller MTU than the interface (RFC 8201); `bytes`: of the TCP
 * header. IPv6 only: IPv4 packets may be fragmented on their way. */
u16_t net_tcp_path_unit(const struct tcp_pcb *pcb, u16_t bytes, u16_t unit);

/* Notes on a segment that is about to be sent, its TCP header first in `p`, what the device must cut it into. */
static inline void net_tcp_mark(struct pbuf *p, const struct tcp_hdr *header, const struct tcp_pcb *pcb)
{
    if (pcb == NULL) /* a reset of nobody's */
        return;
    u16_t bytes = TCPH_HDRLEN_BYTES(header), data = (u16_t)(p->tot_len - bytes);
    u16_t unit = net_tcp_unit(pcb, bytes - TCP_HLEN);
    if (data > 1280 - 60 - 40 && IP_IS_V6_VAL(pcb->remote_ip))
        unit = net_tcp_path_unit(pcb, bytes, unit);
    p->gso_size = data > unit ? unit : 0;
}

/* How many packets are made of `p`, at most: so many IPv4 identifications are used up. */
static inline u16_t net_ip_packets(const struct pbuf *p)
{
    return p->gso_size == 0 ? 1 : (u16_t)(p->tot_len / p->gso_size + 1);
}

/* lwIP queues a received segment that is out of sequence: what of it lies beyond `end` of the window is cut off,
 * wherever in the queue the segment goes. Returns its length in the sequence. */
u16_t net_tcp_trim(struct tcp_seg *seg, u32_t end);

/* lwIP gives up data that has come for a connection which ended before it could be told of them; NULL: there are none.
 */
void net_tcp_unread(struct pbuf *data);

/* A segment with `p` has come in for `pcb`, which is large or in a stream of large ones; see net_tcp_arrived(). */
void net_tcp_arrived_large(struct tcp_pcb *pcb, const struct pbuf *p);

/* A segment with `p` has come in for `pcb`. What stands for several is acknowledged at once (RFC 9293, 3.8.6.3): lwIP
 * would wait for a second one, which a peer with a small window does not send. Of bulk data the acknowledgements are
 * put together (net/acks.h): lwIP is made to believe that this is the first of its two segments. */
static inline err_t net_tcp_arrived(struct tcp_pcb *pcb, const struct pbuf *p)
{
    if (__builtin_expect((p->gso_size | pcb->bulk) != 0, 0) && pcb->state >= ESTABLISHED) /* a listening one has none */
        net_tcp_arrived_large(pcb, p);
    return ERR_OK;
}
#endif

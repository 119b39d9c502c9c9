#include "tests/unit/segment_rig.h"

#include <stdlib.h>
#include "kernel/memory.h"
#include "kernel/random.h"
#include "lwip/init.h"
#include "lwip/ip.h"
#include "lwip/nd6.h"
#include "lwip/prot/ip4.h"
#include "lwip/prot/ip6.h"
#include "lwip/timeouts.h"
#include "net/hooks.h"
#include "kernel/memory.h"

#define PORT      19
#define PEER_PORT 40000
#define DELAY_MS  2 /* one way */

struct rig rig;
static uint8_t pattern[RIG_BYTES];

struct held {
    struct pbuf *p;
    uint64_t until;
};
static struct held held[4096];
static unsigned held_count;

/* ---- what lwIP asks of its surroundings ---- */

void *heap_take(size_t n)
{
    if (rig.o.no_memory != 0 && rig.established && chance_below(&rig.seed, 1000) < rig.o.no_memory)
        return NULL;
    rig.memory_in_use++;
    return malloc(n);
}

void *heap_take_cleared(size_t n, size_t each)
{
    void *p = heap_take(n * each);
    if (p != NULL)
        memset(p, 0, n * each);
    return p;
}

void heap_give(void *p)
{
    rig.memory_in_use -= p != NULL;
    free(p);
}

uint64_t net_time(void)
{
    return rig.now * 1000000;
}

u32_t sys_now(void)
{
    return (u32_t)rig.now;
}

bool heap_low(void)
{
    return false;
}

uint64_t random_next(void)
{
    return 4;
}

uint32_t net_random(void)
{
    return (uint32_t)chance(&rig.seed);
}

void net_assert(const char *message, const char *file, int line)
{
    print_error("lwIP: %s (%s:%d)\n%s\n", message, file, line, rig_describe());
    abort();
}

u32_t net_tcp_isn(const ip_addr_t *local_ip, u16_t local_port, const ip_addr_t *remote_ip, u16_t remote_port)
{
    (void)local_ip, (void)local_port, (void)remote_ip, (void)remote_port;
    return net_random();
}

const ip6_addr_t *net_nd6_gateway(struct netif *netif, const ip6_addr_t *dest)
{
    (void)netif, (void)dest;
    return NULL;
}

uint8_t rig_pattern(uint32_t at)
{
    return pattern[at];
}

const char *rig_describe(void)
{
    static char text[600];
    const struct tcp_pcb *pcb = rig.pcb;
    int n = snprintf(text, sizeof text,
                     "at %llu ms: written %u, acknowledged %u; peer has %u, window %u, fin %lld; %llu packets (%llu "
                     "large, up to %u), "
                     "%llu pieces (%llu lost, %llu again)",
                     (unsigned long long)rig.now, rig.written, rig.acknowledged, rig.rcv_nxt, rig.window,
                     (long long)rig.fin_at, (unsigned long long)rig.packets, (unsigned long long)rig.large, rig.largest,
                     (unsigned long long)rig.pieces, (unsigned long long)rig.lost, (unsigned long long)rig.again);
    if (pcb != NULL)
        snprintf(
            text + n, sizeof text - (size_t)n,
            "; pcb: state %d mss %u cwnd %u snd_wnd %u lastack %u nxt %u, unacked %d:%d unsent %d:%d rtime %d rto %d "
            "nrtx %u persist %u",
            pcb->state, pcb->mss, pcb->cwnd, pcb->snd_wnd, pcb->lastack - rig.irs - 1, pcb->snd_nxt - rig.irs - 1,
            pcb->unacked ? (int)(lwip_ntohl(pcb->unacked->tcphdr->seqno) - rig.irs - 1) : -1,
            pcb->unacked ? pcb->unacked->len : 0,
            pcb->unsent ? (int)(lwip_ntohl(pcb->unsent->tcphdr->seqno) - rig.irs - 1) : -1,
            pcb->unsent ? pcb->unsent->len : 0, pcb->rtime, pcb->rto, pcb->nrtx, pcb->persist_backoff);
    return text;
}

/* ---- the device and the wire ---- */

static bool happens(unsigned of_1000)
{
    return of_1000 != 0 && chance_below(&rig.seed, 1000) < of_1000;
}

/* In order of arrival; what was sent later comes later when it arrives at the same time. */
static void put_on_wire(struct rig_piece *piece)
{
    struct rig_piece **at = &rig.wire;
    while (*at != NULL && (*at)->at <= piece->at)
        at = &(*at)->next;
    piece->next = *at;
    *at = piece;
}

static void send_piece(const struct rig_piece *like, const uint8_t *data)
{
    struct rig_piece *piece = malloc(sizeof *piece + like->len);
    *piece = *like;
    memcpy(piece->data, data, like->len);
    rig.pieces++;
    rig.again += piece->again;
    if (happens(rig.o.loss) || (rig.drop != NULL && rig.drop(piece))) {
        rig.lost++;
        free(piece);
        return;
    }
    piece->at = rig.now + DELAY_MS + (happens(rig.o.reorder) ? 1 + chance_below(&rig.seed, 6) : 0);
    put_on_wire(piece);
}

/* The bytes of a segment are those of the stream, they were written, and fresh ones follow those sent before. */
static void check_data(const struct rig_piece *s, const uint8_t *data)
{
    uint32_t at = s->seq - rig.irs - 1;
    if (s->len == 0 && !(s->flags & TCP_FIN))
        return;
    check(at <= rig.furthest && at + s->len <= rig.written, "data %u+%u, sent so far %u; %s", at, s->len, rig.furthest,
          rig_describe());
    check(memcmp(data, pattern + at, s->len) == 0, "data %u+%u is not the stream's; %s", at, s->len, rig_describe());
    if (at + s->len > rig.furthest)
        rig.furthest = at + s->len;
    if (s->flags & TCP_FIN)
        check(rig.closed && at + s->len == rig.o.bytes, "FIN at %u of %u; %s", at + s->len, rig.o.bytes,
              rig_describe());
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* virtio 1.3, 5.1.6.2: pieces of gso_size bytes, each with the headers; FIN and PSH stay with the last. */
static void cut(const uint8_t *tcp, uint32_t n, uint16_t gso_size)
{
    uint32_t header = (tcp[12] >> 4) * 4u, left = n - header, options = header - 20;
    struct rig_piece s = { .seq = get32(tcp + 4), .ack = get32(tcp + 8), .flags = tcp[13] };
    const uint8_t *data = tcp + header;
    rig.guest_ack = s.ack - rig.iss - 1;
    rig.guest_acks++;
    uint32_t sent_before = rig.furthest;
    uint32_t unit = rig.pcb != NULL && rig.established ? net_tcp_unit(rig.pcb, options) : left;
    if (gso_size != 0)
        check(left > gso_size && gso_size <= unit && !rig.o.no_offload, "gso_size %u for %u bytes, MSS %u", gso_size,
              left, unit);
    else
        check(left <= unit, "%u bytes at once, MSS %u; %s", left, unit, rig_describe());
    rig.large += gso_size != 0;
    rig.largest = left > rig.largest ? left : rig.largest;
    if (s.flags & TCP_SYN) {
        rig.irs = s.seq;
        rig.syn_received = true;
    } else if (!(s.flags & TCP_RST)) {
        s.len = left;
        check_data(&s, data);
    }
    do {
        s.len = gso_size != 0 && left > gso_size ? gso_size : left;
        left -= s.len;
        uint8_t flags = s.flags;
        if (left > 0)
            s.flags &= (uint8_t) ~(TCP_FIN | TCP_PSH);
        s.again = s.len > 0 && s.seq - rig.irs - 1 < sent_before;
        send_piece(&s, data);
        s.flags = flags;
        s.seq += s.len;
        data += s.len;
    } while (left > 0);
}

static err_t output(struct netif *netif, struct pbuf *p)
{
    const uint8_t *first = p->payload;
    if (first[0] >> 4 == 4 ? first[9] != IP_PROTO_TCP : first[6] != IP6_NEXTH_TCP)
        return ERR_OK; /* a router solicitation */
    static uint8_t bytes[65536];
    pbuf_copy_partial(p, bytes, p->tot_len, 0);
    uint32_t ip = bytes[0] >> 4 == 4 ? (bytes[0] & 15) * 4u : 40;
    check(p->tot_len <= netif->mtu || p->gso_size != 0, "%u bytes on an MTU of %u", p->tot_len, netif->mtu);
    if (rig.path_mtu != 0) { /* what IP makes fragments of has none of its header's 8 bytes here */
        uint32_t most = p->gso_size != 0 ? p->gso_size + ip + ((bytes[ip + 12] >> 4) * 4u) : p->tot_len;
        check(most <= rig.path_mtu, "%u bytes on a path of %u", most, rig.path_mtu);
    }
    check(p->gso_size == 0 || p->gso_size + ip + 20 <= netif->mtu, "gso_size %u", p->gso_size);
    if (ip == 20) { /* RFC 6864: fragments of different packets must not be taken for one another's */
        uint16_t id = (uint16_t)(bytes[4] << 8 | bytes[5]), left = (uint16_t)(p->tot_len - ip - 20);
        check(rig.packets == 0 || (int16_t)(id - rig.next_id) >= 0, "identification %u, used up to %u", id,
              rig.next_id);
        rig.next_id = (uint16_t)(id + (p->gso_size != 0 ? (left + p->gso_size - 1) / p->gso_size : 1));
    }
    rig.packets++;
    cut(bytes + ip, p->tot_len - ip, p->gso_size);
    if (rig.o.busy_ms != 0 && held_count < COUNT_OF(held)) {
        pbuf_ref(p);
        held[held_count++] = (struct held){ p, rig.now + chance_below(&rig.seed, rig.o.busy_ms + 1) };
    }
    return ERR_OK;
}

static err_t output4(struct netif *netif, struct pbuf *p, const ip4_addr_t *to)
{
    (void)to;
    return output(netif, p);
}

static err_t output6(struct netif *netif, struct pbuf *p, const ip6_addr_t *to)
{
    (void)to;
    return output(netif, p);
}

static void let_go(bool all)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < held_count; i++) {
        if (all || held[i].until <= rig.now)
            pbuf_free(held[i].p);
        else
            held[kept++] = held[i];
    }
    held_count = kept;
}

/* ---- the application ---- */

static uint32_t next_write(void)
{
    uint32_t left = rig.o.bytes - rig.written, n = rig.o.least + chance_below(&rig.seed, rig.o.most - rig.o.least + 1);
    return n < left ? n : left;
}

static void pump(struct tcp_pcb *pcb)
{
    bool later = rig.o.pace_ms != 0 && rig.written < rig.o.bytes; /* the end comes with the next burst */
    while (rig.written < rig.o.bytes) {
        uint32_t n = next_write(), room = tcp_sndbuf(pcb);
        if (rig.o.pace_ms != 0 && n > rig.allowed - rig.written)
            n = rig.allowed - rig.written;
        if (n > room && room < 2000)
            break;
        n = n < room ? n : room;
        n = n < 65535 ? n : 65535;
        bool copy = rig.o.copy || (rig.o.mix && happens(300));
        uint8_t flags = (uint8_t)((copy ? TCP_WRITE_FLAG_COPY : 0) | (happens(200) ? TCP_WRITE_FLAG_MORE : 0));
        if (n == 0 || tcp_write(pcb, pattern + rig.written, (u16_t)n, flags) != ERR_OK)
            break;
        rig.written += n;
        if (happens(300))
            tcp_output(pcb);
    }
    if (!rig.closed && !later && rig.written == rig.o.bytes &&
        (rig.o.close_at_once || rig.acknowledged == rig.o.bytes)) {
        rig.closed = true;
        rig.closed = tcp_shutdown(pcb, 0, 1) == ERR_OK;
    } else if (!rig.closed) {
        tcp_output(pcb);
    }
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t n)
{
    (void)arg;
    rig.acknowledged += n;
    check(rig.acknowledged <= rig.written, "%s", rig_describe());
    pump(pcb);
    return ERR_OK;
}

static err_t on_poll(void *arg, struct tcp_pcb *pcb)
{
    (void)arg;
    if (!rig.closed)
        pump(pcb);
    return ERR_OK;
}

static err_t on_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    (void)arg, (void)err;
    if (p == NULL)
        return ERR_OK;
    tcp_recved(pcb, p->tot_len);
    pbuf_free(p);
    return ERR_OK;
}

static void on_error(void *arg, err_t err)
{
    (void)arg, (void)err;
    rig.pcb = NULL;
    rig.aborted = true;
}

static err_t on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    (void)arg, (void)err;
    rig.pcb = pcb;
    rig.established = true;
    tcp_sent(pcb, on_sent);
    tcp_poll(pcb, on_poll, 1);
    tcp_err(pcb, on_error);
    tcp_recv(pcb, on_receive);
    if (rig.o.nodelay)
        tcp_nagle_disable(pcb);
    pump(pcb);
    return ERR_OK;
}

/* ---- the peer ---- */

static void put32(uint8_t *p, uint32_t v)
{
    v = lwip_htonl(v);
    memcpy(p, &v, 4);
}

static unsigned options_of(uint8_t flags, uint8_t *at)
{
    unsigned n = 0;
    if (flags & TCP_SYN) {
        uint16_t mss = rig.o.mss != 0 ? rig.o.mss : rig.o.v6 ? 1440 : 1460;
        memcpy(at, (uint8_t[]){ 2, 4, (uint8_t)(mss >> 8), (uint8_t)mss }, 4);
        n = 4;
        if (rig.o.scale >= 0) {
            memcpy(at + n, (uint8_t[]){ 1, 3, 3, (uint8_t)rig.o.scale }, 4);
            n += 4;
        }
    }
    if (rig.o.timestamps) {
        memcpy(at + n, (uint8_t[]){ 1, 1, 8, 10 }, 4);
        put32(at + n + 4, (uint32_t)rig.now + 1);
        put32(at + n + 8, rig.echo_time);
        n += 12;
    }
    return n;
}

static void transmit(uint8_t flags, uint32_t seq, uint32_t bytes, uint16_t gso_size)
{
    uint8_t options[40];
    unsigned optlen = options_of(flags, options), ip = rig.o.v6 ? 40 : 20;
    struct pbuf *p;
    unsigned rate = rig.o.no_memory;
    rig.o.no_memory = 0;
    p = pbuf_alloc(PBUF_RAW, (u16_t)(ip + 20 + optlen + bytes), PBUF_RAM);
    rig.o.no_memory = rate;
    uint8_t *b = p->payload, *tcp = b + ip;
    memset(b, 0, p->len);
    uint32_t shown = rig.window >> (rig.o.scale > 0 && !(flags & TCP_SYN) ? rig.o.scale : 0);
    if (shown > 65535)
        shown = 65535;
    if (rig.o.v6) {
        struct ip6_hdr *h = (struct ip6_hdr *)b;
        IP6H_VTCFL_SET(h, 6, 0, 0);
        IP6H_PLEN_SET(h, (u16_t)(p->len - 40));
        IP6H_NEXTH_SET(h, IP6_NEXTH_TCP);
        IP6H_HOPLIM_SET(h, 64);
        h->src.addr[0] = h->dest.addr[0] = PP_HTONL(0xfd000000u);
        h->src.addr[3] = PP_HTONL(2);
        h->dest.addr[3] = PP_HTONL(1);
    } else {
        struct ip_hdr *h = (struct ip_hdr *)b;
        IPH_VHL_SET(h, 4, 5);
        IPH_LEN_SET(h, lwip_htons(p->len));
        IPH_TTL_SET(h, 64);
        IPH_PROTO_SET(h, IP_PROTO_TCP);
        h->src.addr = PP_HTONL(0xc6120002u);
        h->dest.addr = PP_HTONL(0xc6120001u);
    }
    memcpy(tcp, (uint8_t[]){ PEER_PORT >> 8, PEER_PORT & 255, 0, PORT }, 4);
    put32(tcp + 4, seq);
    uint32_t offset = rig.rcv_nxt + (rig.fin_received ? 1 : 0);
    put32(tcp + 8, flags & TCP_ACK ? rig.irs + 1 + offset : 0);
    tcp[12] = (uint8_t)((5 + optlen / 4) << 4);
    tcp[13] = flags;
    tcp[14] = (uint8_t)(shown >> 8);
    tcp[15] = (uint8_t)shown;
    memcpy(tcp + 20, options, optlen);
    p->gso_size = gso_size;
    rig.acks++;
    if (rig.netif.input(p, &rig.netif) != ERR_OK)
        pbuf_free(p);
}

void rig_send(uint32_t at, uint32_t n, uint16_t gso_size)
{
    transmit(TCP_ACK, rig.iss + 1 + at, n, gso_size);
}

/* What the peer offers now. A peer that keeps to the rules never takes back what it has offered. */
static uint32_t choose_window(void)
{
    uint32_t unit = rig.o.scale > 0 ? 1u << rig.o.scale : 1, w = rig.o.window;
    if (rig.o.kind == WINDOW_READER)
        w = w > rig.unread ? w - rig.unread : 0;
    if (rig.o.kind == WINDOW_WILD)
        w = happens(200) ? 0 : chance_below(&rig.seed, w + 1);
    if (rig.now < rig.shut_until)
        w = rig.gap;
    w = w / unit * unit;
    if (w > 65535u * unit)
        w = 65535u * unit;
    if (rig.o.kind < WINDOW_WILD && (int32_t)(rig.right - (rig.rcv_nxt + w)) > 0)
        w = (rig.right - rig.rcv_nxt) / unit * unit;
    return w;
}

void rig_ack(void)
{
    rig.window = choose_window();
    rig.right = rig.rcv_nxt + rig.window;
    rig.unacked = 0;
    rig.ack_at = UINT64_MAX;
    if (!happens(rig.o.loss / 2))
        transmit(TCP_ACK, rig.iss + 1, 0, 0);
    else if (rig.o.kind != WINDOW_FIXED)
        rig.ack_at = rig.now + 300; /* it says it again: this is no test of lost window updates alone */
    rig.fin_acked = rig.fin_received;
}

static void arrive(const struct rig_piece *piece)
{
    uint32_t at = piece->seq - rig.irs - 1, before = rig.rcv_nxt;
    if (piece->flags & TCP_RST)
        return;
    if (piece->flags & TCP_FIN)
        rig.fin_at = at + piece->len;
    for (uint32_t i = 0; i < piece->len; i++)
        if (at + i < rig.right) /* beyond its window it keeps nothing */
            rig.have[at + i] = 1;
    while (rig.rcv_nxt < RIG_BYTES && rig.have[rig.rcv_nxt]) {
        rig.rcv_nxt++;
        rig.unread++;
    }
    if (rig.fin_at == rig.rcv_nxt)
        rig.fin_received = true;
    if (piece->len == 0 && !(piece->flags & TCP_FIN))
        return;
    bool hole = rig.rcv_nxt == before || at > before;
    if (hole || rig.fin_received || ++rig.unacked >= rig.o.ack_every)
        rig_ack();
    else if (rig.ack_at == UINT64_MAX)
        rig.ack_at = rig.now + 40;
}

static void shut(void)
{
    rig.shut_until = rig.now + 1 + chance_below(&rig.seed, happens(500) ? 30 : 3000);
    rig.gap = happens(300) ? chance_below(&rig.seed, rig.o.window / 4) : 0;
    for (unsigned i = 0; i < 4; i++)
        rig_ack();
    rig.ack_at = rig.shut_until;
}

static void read_some(void)
{
    if (rig.o.kind == WINDOW_SHUTS && rig.established && rig.wire != NULL && rig.now > rig.shut_until && happens(20))
        shut();
    if (rig.now < rig.pause_until)
        return;
    if (rig.o.kind == WINDOW_READER && happens(3))
        rig.pause_until = rig.now + chance_below(&rig.seed, 3000);
    uint32_t n = rig.o.kind == WINDOW_READER ? rig.o.rate : rig.unread;
    uint32_t offered = rig.right - rig.rcv_nxt;
    rig.unread -= n < rig.unread ? n : rig.unread;
    if (rig.o.kind == WINDOW_READER && rig.established) { /* says so when it is worth it (RFC 9293, 3.8.6.2.2) */
        uint32_t could = rig.o.window - (rig.unread < rig.o.window ? rig.unread : rig.o.window);
        uint32_t worth = rig.o.window / 2 < 1460 ? rig.o.window / 2 : 1460;
        if (could >= offered + worth && rig.ack_at == UINT64_MAX)
            rig.ack_at = rig.now;
    }
    if (rig.o.kind == WINDOW_WILD && rig.ack_at == UINT64_MAX)
        rig.ack_at = rig.now + 50 + chance_below(&rig.seed, 400);
}

void rig_run(uint64_t ms)
{
    for (; ms > 0; ms--) {
        rig.now++;
        let_go(false);
        while (rig.wire != NULL && rig.wire->at <= rig.now) {
            struct rig_piece *piece = rig.wire;
            rig.wire = piece->next;
            arrive(piece);
            free(piece);
        }
        read_some();
        if (rig.o.pace_ms != 0 && rig.pcb != NULL && rig.now >= rig.burst_at) {
            rig.burst_at = rig.now + rig.o.pace_ms;
            rig.allowed += rig.o.burst;
            if (!rig.closed)
                pump(rig.pcb);
        }
        if (rig.established && rig.ack_at <= rig.now)
            rig_ack();
        if (rig.ack_at == UINT64_MAX && rig.now < rig.shut_until)
            rig.ack_at = rig.shut_until;
        sys_check_timeouts();
        acks_turn(0, net_time());
    }
}

void rig_finish(uint64_t limit_ms)
{
    uint64_t end = rig.now + limit_ms;
    while (rig.now < end && !rig.aborted && !(rig.fin_received && rig.acknowledged == rig.o.bytes))
        rig_run(1);
    check(!rig.aborted, "the connection was given up; %s", rig_describe());
    check(rig.rcv_nxt == rig.o.bytes && rig.fin_received, "not all has arrived; %s", rig_describe());
    check(rig.acknowledged == rig.o.bytes, "not all was told to be sent; %s", rig_describe());
}

/* ---- from beginning to end ---- */

static void set_addresses(void)
{
    ip4_addr_t ip = { PP_HTONL(0xc6120001u) }, mask = { PP_HTONL(0xffffff00u) }, none = { 0 };
    netif_set_addr(&rig.netif, &ip, &mask, &none);
    ip6_addr_t six = { .addr = { PP_HTONL(0xfd000000u), 0, 0, PP_HTONL(1) } };
    netif_ip6_addr_set(&rig.netif, 0, &six);
    netif_ip6_addr_set_state(&rig.netif, 0, IP6_ADDR_PREFERRED);
}

static err_t netif_init_rig(struct netif *netif)
{
    netif->mtu = rig.o.mtu != 0 ? rig.o.mtu : 1500;
    netif->mtu6 = netif->mtu;
    netif->output = output4;
    netif->output_ip6 = output6;
    netif->name[0] = 'e';
    netif->name[1] = 'n';
    NETIF_SET_CHECKSUM_CTRL(netif, 0);
    return ERR_OK;
}

static void start_lwip(void)
{
    static bool done;
    if (!done) {
        lwip_init();
        uint64_t seed = 0x5eed;
        for (uint32_t i = 0; i < RIG_BYTES; i++)
            pattern[i] = (uint8_t)(chance(&seed) >> 16);
    }
    done = true;
}

void rig_open(const struct rig_options *options)
{
    static uint64_t time = 1000; /* lwIP's timers do not go back */
    start_lwip();
    memset(&rig, 0, sizeof rig);
    rig.o = *options;
    rig.now = time += 10000000;
    rig.seed = options->seed != 0 ? options->seed : 1;
    rig.have = calloc(RIG_BYTES, 1);
    rig.fin_at = -1;
    rig.ack_at = UINT64_MAX;
    sys_restart_timeouts();
    netif_add_noaddr(&rig.netif, NULL, netif_init_rig, ip_input);
    netif_set_default(&rig.netif);
    netif_set_up(&rig.netif);
    netif_set_link_up(&rig.netif);
    set_addresses();
    segment_init(!options->no_offload, !options->no_offload);
    struct tcp_pcb *pcb = tcp_new_ip_type(IPADDR_TYPE_ANY);
    tcp_bind(pcb, IP_ANY_TYPE, PORT);
    rig.listener = tcp_listen(pcb);
    tcp_accept(rig.listener, on_accept);
    rig.iss = (uint32_t)chance(&rig.seed);
    rig.window = choose_window();
    rig.right = rig.window;
    transmit(TCP_SYN, rig.iss, 0, 0);
    check(rig.syn_received, "no answer to the SYN");
    while (rig.wire != NULL) {
        struct rig_piece *piece = rig.wire;
        rig.wire = piece->next;
        free(piece);
    }
    rig.rcv_nxt = 0;
    transmit(TCP_ACK, rig.iss + 1, 0, 0);
    check(rig.established || rig.o.no_memory, "not established");
}

void rig_close(void)
{
    if (rig.listener == NULL)
        return;
    rig.o.no_memory = 0;
    let_go(true);
    if (rig.pcb != NULL) {
        tcp_err(rig.pcb, NULL);
        tcp_abort(rig.pcb);
    }
    while (rig.wire != NULL) {
        struct rig_piece *piece = rig.wire;
        rig.wire = piece->next;
        free(piece);
    }
    while (tcp_tw_pcbs != NULL)
        tcp_abort(tcp_tw_pcbs);
    tcp_close(rig.listener);
    rig.listener = NULL;
    netif_remove(&rig.netif);
    free(rig.have);
}

/* UDP streams. Each is a socket of the client's, known by its address and port; it says hello with four bytes and is
 * answered with four. Datagrams begin with the sender's clock (seconds, microseconds: only differences mean anything)
 * and a number that counts from 1. */
#include <string.h>
#include "apps/iperf3/iperf3.h"
#include "apps/tcp_server.h"
#include "kernel/clock.h"
#include "net/netif.h"

#define SLOTS     256u
#define HELLO     4u
#define HEADER    12u
#define HEADER64  16u
#define AT_ONCE   16 /* datagrams of a stream that are sent in one turn of the loop */
#define REST_NS   1000000u
#define SECOND_NS 1000000000ull

static struct stream *table[SLOTS];
static struct udp_pcb *socket_; /* the port's */

static struct stream **slot_of(const ip_addr_t *peer, u16_t port)
{
    const u32_t *word = (const u32_t *)peer;
    u32_t hash = (IP_IS_V6(peer) ? word[0] ^ word[1] ^ word[2] ^ word[3] : word[0]) ^ port;
    return &table[(hash ^ hash >> 8 ^ hash >> 16 ^ hash >> 24) % SLOTS];
}

static struct stream *find(const ip_addr_t *peer, u16_t port)
{
    struct stream *s = *slot_of(peer, port);
    while (s != NULL && (s->port != port || !ip_addr_zoneless_eq(&s->peer, peer)))
        s = s->chain;
    return s;
}

/* ---- hello ---- */

/* What clients say: since 3.11 "9876" (a number in the client's byte order), before that another number. */
static bool is_hello(const uint8_t hello[HELLO], bool *big_endian)
{
    static const uint8_t known[][HELLO] = {
        { 0x39, 0x38, 0x37, 0x36 },
        { 0x15, 0xcd, 0x5b, 0x07 },
        { 0x36, 0x37, 0x38, 0x39 },
        { 0x07, 0x5b, 0xcd, 0x15 },
    };
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        *big_endian = i >= 2;
        if (memcmp(hello, known[i], HELLO) == 0)
            return true;
    }
    return false;
}

static void greet(struct udp_pcb *pcb, const ip_addr_t *to, u16_t port, bool big_endian)
{
    struct pbuf *p = pbuf_alloc(PBUF_TRANSPORT, HELLO, PBUF_RAM);
    if (p == NULL)
        return;
    memcpy(p->payload, big_endian ? "9876" : "6789", HELLO);
    net_udp_sendto(pcb, p, to, port);
    pbuf_free(p);
}

static bool adopt(const ip_addr_t *from, u16_t port)
{
    struct leg *leg = i3_leg_of_peer(from);
    struct stream *s = leg != NULL ? i3_leg_add(leg, clock_ns()) : NULL, **slot = slot_of(from, port);
    if (s == NULL)
        return false;
    ip_addr_copy(s->peer, *from);
    s->port = port;
    s->chain = *slot;
    *slot = s;
    return true;
}

/* Four bytes: of a stream that is there they are answered again, for the answer may have been lost. */
static void on_hello(struct udp_pcb *pcb, const struct pbuf *p, const ip_addr_t *from, u16_t port)
{
    uint8_t hello[HELLO];
    bool big_endian;
    pbuf_copy_partial(p, hello, HELLO, 0);
    struct stream *s = find(from, port);
    if (is_hello(hello, &big_endian) && ((s != NULL && !s->leg->running) || adopt(from, port) || s != NULL))
        greet(pcb, from, port, big_endian);
    else
        i3_stats()->stray++;
}

/* ---- receiving ---- */

static uint32_t get32(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static void count(struct stream *s, const struct pbuf *p)
{
    uint8_t header[HEADER64];
    bool wide = s->leg->spec->counters64;
    u16_t size = wide ? HEADER64 : HEADER;
    if (pbuf_copy_partial(p, header, size, 0) < size)
        return;
    s->bytes += p->tot_len;
    s->leg->line->bytes += p->tot_len;
    uint64_t number = wide ? (uint64_t)get32(header + 8) << 32 | get32(header + 12) : get32(header + 8);
    if (number > s->packets) {
        s->errors += number - 1 - s->packets;
        s->packets = number;
    } else if (s->errors > 0) {
        s->errors--; /* it had been taken for lost */
    }
    int64_t sent = (int64_t)(get32(header) * SECOND_NS + get32(header + 4) * 1000ull);
    int64_t transit = (int64_t)clock_ns() - sent, change = transit - s->transit;
    uint64_t by = (uint64_t)(change < 0 ? -change : change);
    if (s->timed)
        s->jitter += by - (s->jitter + 8) / 16;
    s->transit = transit;
    s->timed = true;
}

void i3_udp_receive(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *from, u16_t port)
{
    (void)arg;
    socket_ = pcb;
    if (p->tot_len == HELLO) {
        on_hello(pcb, p, from, port);
    } else {
        struct stream *s = find(from, port);
        if (s != NULL && !s->sender)
            count(s, p);
        i3_stats()->stray += s == NULL;
    }
    pbuf_free(p);
}

/* ---- sending ---- */

static void put32(uint8_t *b, uint32_t n)
{
    b[0] = (uint8_t)(n >> 24);
    b[1] = (uint8_t)(n >> 16);
    b[2] = (uint8_t)(n >> 8);
    b[3] = (uint8_t)n;
}

/* A datagram of `len` bytes: a header of its own, the rest by reference. NULL: no memory. */
static struct pbuf *make(u16_t header, uint32_t len)
{
    struct pbuf *p = pbuf_alloc(PBUF_TRANSPORT, header, PBUF_RAM);
    for (uint32_t left = len - header; p != NULL && left > 0;) {
        u16_t piece = left < APP_DATA ? (u16_t)left : APP_DATA;
        struct pbuf *q = pbuf_alloc(PBUF_RAW, piece, PBUF_ROM);
        if (q == NULL) {
            pbuf_free(p);
            return NULL;
        }
        q->payload = app_data;
        pbuf_cat(p, q);
        left -= piece;
    }
    return p;
}

static bool send_one(struct stream *s)
{
    const struct i3_spec *spec = s->leg->spec;
    struct pbuf *p = make(spec->counters64 ? HEADER64 : HEADER, spec->len);
    if (p == NULL)
        return false;
    uint64_t us = clock_ns() / 1000, number = s->packets + 1;
    uint8_t *header = p->payload;
    put32(header, (uint32_t)(us / 1000000));
    put32(header + 4, (uint32_t)(us % 1000000));
    if (spec->counters64) {
        put32(header + 8, (uint32_t)(number >> 32));
        put32(header + 12, (uint32_t)number);
    } else {
        put32(header + 8, (uint32_t)number);
    }
    socket_->tos = spec->tos;
    bool sent = net_udp_sendto(socket_, p, &s->peer, s->port) == ERR_OK;
    socket_->tos = 0;
    pbuf_free(p);
    if (sent) {
        s->packets = number;
        s->bytes += spec->len;
    }
    return sent;
}

/* As much as the ring takes: when frames wait for room, or nothing could be sent, the loop gets a rest. */
void i3_udp_send(struct stream *s)
{
    uint64_t now = clock_ns();
    unsigned n = 0;
    for (; n < AT_ONCE; n++) {
        if (s->bytes >= i3_stream_allowed(s, now)) {
            i3_leg_wake_at(s->leg, i3_stream_due(s));
            return;
        }
        if (net_netif_waiting(netif_default) || !send_one(s))
            break;
    }
    if (n > 0)
        i3_leg_want_turn(s->leg);
    else
        i3_leg_wake_at(s->leg, now + REST_NS);
}

void i3_udp_stop(struct stream *s)
{
    struct stream **at = slot_of(&s->peer, s->port);
    while (*at != NULL && *at != s)
        at = &(*at)->chain;
    if (*at == s)
        *at = s->chain;
    s->open = false;
}

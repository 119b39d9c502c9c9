/* iperf 2: TCP and UDP sink on port 5001, with the report that ends a UDP test; -R and --full-duplex over TCP. Each
 * connection, and each UDP socket of a client, is a test by itself on the core that owns its flow: there is no control
 * connection. The protocol has no specification; versions 2.0.5 to 2.2.1 were listened to. */
#include <stdlib.h>
#include <string.h>
#include "apps/app.h"
#include "apps/tcp_server.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/memory.h"
#include "lwip/timeouts.h"
#include "net/netif.h"

#define PORT         5001
#define POLL_HALF_S  1
#define HELLO        24u /* bytes: the client's header as the first versions had it; later ones have more behind it */
#define EXTENDED     0x40000000u /* in its flags: there is more; */
#define TWO_WAYS     0x04000000u /* send on this connection, too; */
#define ANSWER       0x80000000u /* connect back: not done */
#define TICK_NS      10000000u
#define FLOWS_MAX    1024u
#define SLOTS        256u
#define LOOK_MS      1000u
#define IDLE_NS      30000000000ull /* after which a UDP test is forgotten that did not end, */
#define ANSWER_NS    5000000000ull  /* and one that did: its end is repeated until the client has the report */
#define HEADER       12u            /* bytes of a datagram before what does not matter */
#define ECHO         16u            /* ... that come back in the report */
#define REPORT       (ECHO + 40u)
#define REPORT_FLAGS 0x80000000u
#define SECOND_US    1000000u
#define SECOND_NS    1000000000u

static struct {
    uint64_t connections, flows, reports, stray, full; /* full: no room for another UDP test */
} stats;
static unsigned connections, flow_count;

static void log_end(const char *what, uint64_t bytes)
{
    log_debug("iperf2",
              "%s after %llu bytes; now %u connections, %u flows; heap %llu; so far %llu connections, "
              "%llu flows, %llu reports, %llu stray, %llu without room",
              what, (unsigned long long)bytes, connections, flow_count, (unsigned long long)heap_stats().used,
              (unsigned long long)stats.connections, (unsigned long long)stats.flows, (unsigned long long)stats.reports,
              (unsigned long long)stats.stray, (unsigned long long)stats.full);
}

static uint32_t get32(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static void put32(uint8_t *b, uint32_t n)
{
    b[0] = (uint8_t)(n >> 24);
    b[1] = (uint8_t)(n >> 16);
    b[2] = (uint8_t)(n >> 8);
    b[3] = (uint8_t)n;
}

/* ---- TCP ---- */

struct connection {
    uint64_t bytes;        /* received */
    uint8_t header[HELLO]; /* the client's, as far as it has come */
    bool sends;            /* until `limit` bytes are sent or `until` is past, then it is shut */
    uint64_t sent, limit;
    uint64_t until; /* ns */
};

static void forget(struct connection *c)
{
    connections--;
    log_end("a connection ends", c->bytes);
    free(c);
}

/* Sends what there is room for; at the end shuts this direction. */
static void fill(struct connection *c, struct tcp_pcb *pcb)
{
    bool over = clock_ns() >= c->until;
    while (c->sends && !over) {
        uint64_t left = c->limit - c->sent;
        uint32_t n = left < APP_DATA ? (uint32_t)left : APP_DATA, room = tcp_sndbuf(pcb);
        over = left == 0;
        n = n < room ? n : room;
        if (n == 0 || tcp_write(pcb, app_data, (u16_t)n, 0) != ERR_OK)
            break; /* enough is queued: again when some was acknowledged */
        c->sent += n;
    }
    if (over && tcp_shutdown(pcb, 0, 1) == ERR_OK)
        c->sends = false;
    tcp_output(pcb);
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t n)
{
    struct connection *c = arg;
    (void)n;
    if (c->sends)
        fill(c, pcb);
    return ERR_OK;
}

static err_t on_poll(void *arg, struct tcp_pcb *pcb)
{
    return on_sent(arg, pcb, 0);
}

/* The client's header is there: its first word has flags, its sixth an amount of bytes or (negative) of 10 ms. */
static void on_header(struct connection *c, struct tcp_pcb *pcb)
{
    uint32_t flags = get32(c->header);
    int32_t amount = (int32_t)get32(c->header + 20);
    if ((flags & (EXTENDED | TWO_WAYS | ANSWER)) != (EXTENDED | TWO_WAYS))
        return;
    c->sends = true;
    c->limit = amount > 0 ? (uint64_t)amount : UINT64_MAX;
    c->until = amount < 0 ? clock_ns() + (uint64_t) - (int64_t)amount * TICK_NS : UINT64_MAX;
    fill(c, pcb);
}

static err_t on_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    struct connection *c = arg;
    (void)err;
    if (p == NULL) {
        forget(c);
        return tcp_finish(pcb);
    }
    u16_t n = p->tot_len;
    bool early = c->bytes < HELLO;
    if (early)
        pbuf_copy_partial(p, c->header + c->bytes, (u16_t)(HELLO - c->bytes), 0);
    c->bytes += n;
    pbuf_free(p);
    tcp_recved(pcb, n);
    if (early && c->bytes >= HELLO)
        on_header(c, pcb);
    return ERR_OK;
}

static void on_error(void *arg, err_t err)
{
    (void)err;
    forget(arg);
}

static err_t on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    (void)arg;
    struct connection *c = err == ERR_OK && pcb != NULL ? calloc(1, sizeof *c) : NULL;
    if (c == NULL)
        return ERR_MEM;
    connections++;
    stats.connections++;
    tcp_arg(pcb, c);
    tcp_recv(pcb, on_receive);
    tcp_sent(pcb, on_sent);
    tcp_err(pcb, on_error);
    tcp_poll(pcb, on_poll, POLL_HALF_S);
    return ERR_OK;
}

/* ---- UDP ---- */

struct flow {
    struct flow *next;
    ip_addr_t peer;
    uint16_t port;
    bool ended;
    int32_t first, highest; /* numbers of datagrams */
    uint32_t lost, late;
    uint64_t bytes;
    uint64_t began, last; /* ns; `last` of any datagram, for forgetting it */
    uint64_t took;        /* ns from the first to the last that counts */
    int64_t transit;      /* ns, by both clocks */
    uint64_t jitter;      /* ns, 16 times (RFC 3550, A.8) */
};

static struct flow *table[SLOTS];

static struct flow **slot_of(const ip_addr_t *peer, u16_t port)
{
    const u32_t *word = (const u32_t *)peer;
    u32_t hash = (IP_IS_V6(peer) ? word[0] ^ word[1] ^ word[2] ^ word[3] : word[0]) ^ port;
    return &table[(hash ^ hash >> 8 ^ hash >> 16 ^ hash >> 24) % SLOTS];
}

static void on_look(void *arg)
{
    uint64_t now = clock_ns(), bytes = 0;
    unsigned before = flow_count;
    (void)arg;
    for (unsigned i = 0; i < SLOTS; i++) {
        for (struct flow **at = &table[i], *f; (f = *at) != NULL;) {
            if (now - f->last < (f->ended ? ANSWER_NS : IDLE_NS)) {
                at = &f->next;
                continue;
            }
            *at = f->next;
            flow_count--;
            bytes += f->bytes;
            free(f);
        }
    }
    if (flow_count < before)
        log_end("UDP tests are forgotten", bytes);
    if (flow_count > 0)
        sys_timeout(LOOK_MS, on_look, NULL);
}

static struct flow *find(const ip_addr_t *peer, u16_t port)
{
    struct flow *f = *slot_of(peer, port);
    while (f != NULL && (f->port != port || !ip_addr_zoneless_eq(&f->peer, peer)))
        f = f->next;
    return f;
}

static struct flow *add(const ip_addr_t *peer, u16_t port)
{
    struct flow *f = flow_count < FLOWS_MAX && !heap_low() ? calloc(1, sizeof *f) : NULL, **slot = slot_of(peer, port);
    if (f == NULL) {
        stats.full++;
        return NULL;
    }
    if (flow_count++ == 0)
        sys_timeout(LOOK_MS, on_look, NULL);
    stats.flows++;
    ip_addr_copy(f->peer, *peer);
    f->port = port;
    f->next = *slot;
    *slot = f;
    return f;
}

/* A test begins with the first datagram, whose number is the base: 1, or 0 with the older versions. */
static void begin(struct flow *f, int32_t number, uint64_t now)
{
    struct flow fresh = { .next = f->next, .port = f->port, .first = number, .highest = number - 1, .began = now };
    ip_addr_copy(fresh.peer, f->peer);
    *f = fresh;
}

static void count(struct flow *f, const uint8_t header[HEADER], int32_t number, uint32_t bytes, uint64_t now)
{
    int64_t sent = (int64_t)(get32(header + 4) * 1000000000ull + get32(header + 8) * 1000ull);
    int64_t transit = (int64_t)now - sent, change = transit - f->transit;
    f->bytes += bytes;
    if (number > f->highest) {
        f->lost += (uint32_t)(number - f->highest - 1);
        f->highest = number;
    } else {
        f->late++;
        f->lost -= f->lost > 0;
    }
    if (f->took > 0)
        f->jitter += (uint64_t)(change < 0 ? -change : change) - (f->jitter + 8) / 16;
    f->transit = transit;
    f->took = now - f->began + (now == f->began);
}

/* What the client shows as the server's report, in the datagram that ended the test. */
static void report(const struct flow *f, struct udp_pcb *pcb, struct pbuf *p)
{
    uint8_t words[REPORT - ECHO];
    uint64_t took = f->took / 1000, jitter = f->jitter / 16 / 1000;
    const uint32_t value[] = {
        REPORT_FLAGS,
        (uint32_t)(f->bytes >> 32),
        (uint32_t)f->bytes,
        (uint32_t)(took / SECOND_US),
        (uint32_t)(took % SECOND_US),
        f->lost,
        f->late,
        (uint32_t)(f->highest - f->first + 1),
        (uint32_t)(jitter / SECOND_US),
        (uint32_t)(jitter % SECOND_US),
    };
    for (unsigned i = 0; i < sizeof value / sizeof *value; i++)
        put32(words + 4 * i, value[i]);
    if (pbuf_take_at(p, words, sizeof words, ECHO) == ERR_OK && net_udp_sendto(pcb, p, &f->peer, f->port) == ERR_OK)
        stats.reports++;
}

static void on_datagram(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *from, u16_t port)
{
    uint8_t header[HEADER];
    uint64_t now = clock_ns();
    (void)arg;
    if (pbuf_copy_partial(p, header, HEADER, 0) < HEADER) {
        stats.stray++;
        pbuf_free(p);
        return;
    }
    int32_t number = (int32_t)get32(header);
    bool end = number < 0 && number != INT32_MIN;
    struct flow *f = find(from, port);
    if (f == NULL && number >= 0)
        f = add(from, port);
    if (f == NULL) {
        stats.stray += number < 0; /* not of a test that is known */
        pbuf_free(p);
        return;
    }
    /* After the end: one that was overtaken by it, or a new test from the same port. */
    if (number >= 0 && (f->last == 0 || (f->ended && (number <= f->first || now - f->last > SECOND_NS))))
        begin(f, number, now);
    f->last = now;
    if (!f->ended && (number >= 0 || end)) /* the one that ends it counts, too; not those that repeat it */
        count(f, header, end ? -number : number, p->tot_len, now);
    if (end) {
        if (!f->ended)
            log_debug("iperf2", "a UDP test: %llu bytes, %d datagrams, %u lost, %u late", (unsigned long long)f->bytes,
                      (int)(f->highest - f->first + 1), (unsigned)f->lost, (unsigned)f->late);
        f->ended = true;
        report(f, pcb, p);
    }
    pbuf_free(p);
}

static bool start(void)
{
    return tcp_serve("iperf2", PORT, on_accept) && udp_serve("iperf2", PORT, on_datagram);
}

APP(iperf2, .ports = "tcp/5001 udp/5001", .by_default = true, .start = start);

/* UDP data sockets: datagrams in, datagrams out, or an answer for each request. */
#include "apps/netserver/netserver.h"
#include "apps/tcp_server.h"
#include "kernel/clock.h"
#include "lwip/timeouts.h"
#include "net/netif.h"

#define AT_ONCE 16 /* datagrams sent in one turn of the loop */
#define ENDINGS 3  /* empty datagrams that end a test: some may be lost */

/* A datagram of `n` bytes, by reference; NULL: no memory. */
static struct pbuf *make(uint32_t n)
{
    struct pbuf *p = pbuf_alloc(PBUF_TRANSPORT, 0, PBUF_RAM);
    while (p != NULL && n > 0) {
        u16_t piece = n < APP_DATA ? (u16_t)n : APP_DATA;
        struct pbuf *q = pbuf_alloc(PBUF_RAW, piece, PBUF_ROM);
        if (q == NULL) {
            pbuf_free(p);
            return NULL;
        }
        q->payload = app_data;
        pbuf_cat(p, q);
        n -= piece;
    }
    return p;
}

/* Answers a request. Its own buffer takes the response when that fits: what is in it does not matter. */
static void respond(struct leg *leg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *to, u16_t port)
{
    uint32_t size = leg->spec->response_size;
    if (p->next == NULL && p->len >= size) {
        pbuf_realloc(p, (u16_t)size);
    } else {
        pbuf_free(p);
        p = make(size);
    }
    if (p == NULL)
        return;
    if (net_udp_sendto(pcb, p, to, port) == ERR_OK) {
        leg->counts->tx_calls++;
        leg->counts->tx_bytes += size;
    }
    pbuf_free(p);
    leg->counts->transactions++;
    if (leg_reached(leg, leg->counts->transactions))
        leg_done(leg);
}

static void on_stream(struct leg *leg, uint32_t n)
{
    const struct np_spec *spec = leg->spec;
    if (spec->message_size != 0 && n != spec->message_size) {
        leg_done(leg);
        return;
    }
    leg->counts->rx_calls++;
    leg->counts->rx_bytes += n < spec->receive_size ? n : spec->receive_size;
    if (leg_reached(leg, leg->counts->rx_bytes))
        leg_done(leg);
}

static void on_datagram(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *from, u16_t port)
{
    struct leg *leg = arg;
    uint32_t n = p->tot_len;
    if (leg->stopped || leg->done || !leg->spec->rx) {
        pbuf_free(p);
        return;
    }
    leg_began(leg);
    if (n == 0) {
        pbuf_free(p);
        leg_done(leg);
    } else if (!leg->spec->tx) {
        pbuf_free(p);
        on_stream(leg, n);
    } else {
        uint32_t left = leg->spec->request_size - (uint32_t)leg->got;
        n = n < left ? n : left; /* a longer datagram is read as far as it was wanted */
        leg->counts->rx_calls++;
        leg->counts->rx_bytes += n;
        leg->got = n == left ? 0 : leg->got + n;
        if (n == left)
            respond(leg, pcb, p, from, port);
        else
            pbuf_free(p);
    }
}

uint32_t leg_udp_open(struct leg *leg)
{
    struct udp_pcb *pcb = udp_new_ip_type(IPADDR_TYPE_ANY);
    if (pcb == NULL)
        return NP_ENOMEM;
    err_t err = udp_bind(pcb, IP_ANY_TYPE, leg->record->port);
    if (err != ERR_OK) {
        udp_remove(pcb);
        return err == ERR_USE ? NP_EADDRINUSE : NP_ENOMEM;
    }
    udp_recv(pcb, on_datagram, leg);
    leg->udp = pcb;
    return 0;
}

/* ---- sending only ---- */

static bool only_sends(const struct leg *leg)
{
    return leg->spec->tx && !leg->spec->rx;
}

static bool send_one(struct leg *leg, uint32_t n)
{
    const struct np_record *record = leg->record;
    struct pbuf *p = make(n);
    bool sent = p != NULL && net_udp_sendto(leg->udp, p, &record->peer, record->spec.peer_port) == ERR_OK;
    if (p != NULL)
        pbuf_free(p);
    return sent;
}

static void after_a_rest(void *arg)
{
    struct leg *leg = arg;
    leg->resting = false;
    leg_want_turn(leg);
}

/* As much as the ring takes: when frames wait for room, or nothing could be sent, the loop gets a rest. */
void leg_udp_turn(struct leg *leg)
{
    if (leg->stopped || leg->done || leg->resting || !only_sends(leg))
        return;
    unsigned n = 0;
    for (; n < AT_ONCE && !net_netif_waiting(netif_default) && send_one(leg, leg->spec->send_size); n++) {
        leg->counts->tx_calls++;
        leg->counts->tx_bytes += leg->spec->send_size;
        if (leg_reached(leg, leg->counts->tx_bytes)) {
            leg_done(leg);
            return;
        }
    }
    if (n > 0) {
        leg_want_turn(leg);
    } else {
        leg->resting = true;
        sys_timeout(1, after_a_rest, leg);
    }
}

void leg_udp_stop(struct leg *leg)
{
    if (leg->resting)
        sys_untimeout(after_a_rest, leg);
    leg->resting = false;
    for (int i = 0; i < ENDINGS && only_sends(leg) && leg->began; i++)
        send_one(leg, 0);
}

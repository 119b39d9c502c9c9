/* TCP data connections: one at a time in turn with requests and responses, or a stream either way; what they carry is
 * never looked at, and what they send is not copied, small pieces aside. */
#include <stdlib.h>
#include "apps/netserver/netserver.h"
#include "apps/tcp_server.h"

#define BACKLOG     5
#define WINDOW_STEP 16384u /* the window is given back in steps of so much: less than a quarter of the smallest */
#define COPIED_MAX  128u   /* up to here a copy behind the headers costs less than a pbuf of its own */
#define POLL_HALF_S 1 /* tcp_poll's unit: look every 500 ms whether a write that failed for lack of memory goes now */

struct connection {
    struct connection *next, **at;
    struct leg *leg;
    struct tcp_pcb *pcb;
    uint64_t owed;        /* responses to send */
    uint32_t got;         /* bytes of the present request */
    uint32_t sent;        /* bytes of the present response or message */
    uint32_t unconfirmed; /* bytes received whose window the peer gets back when the responses have gone */
    bool closing;         /* to be closed when nothing is owed */
    bool late;            /* to be closed by leg_tcp_turn() */
};

/* ---- life and end of a connection ---- */

static void forget(struct connection *c)
{
    *c->at = c->next;
    if (c->next != NULL)
        c->next->at = c->at;
    free(c);
}

/* Gives the peer back the window of what has come. */
static void confirm(struct connection *c)
{
    while (c->unconfirmed > 0) {
        u16_t n = c->unconfirmed < 0xffff ? (u16_t)c->unconfirmed : 0xffff;
        tcp_recved(c->pcb, n);
        c->unconfirmed -= n;
    }
}

/* Closes in order; what the callback must return. */
static err_t finish(struct connection *c)
{
    struct tcp_pcb *pcb = c->pcb;
    confirm(c); /* or lwIP would reset it, for data that nobody has read */
    forget(c);
    return tcp_finish(pcb);
}

/* Closes with a reset. Not from within the connection's own callbacks. */
static void cut(struct connection *c)
{
    struct tcp_pcb *pcb = c->pcb;
    forget(c);
    tcp_arg(pcb, NULL);
    tcp_err(pcb, NULL);
    tcp_abort(pcb);
}

static void on_error(void *arg, err_t err)
{
    struct connection *c = arg;
    struct leg *leg = c->leg;
    (void)err;
    forget(c);
    if (!leg->stopped && !leg->spec->conn)
        leg_done(leg); /* with what was counted so far */
}

/* ---- requests and responses ---- */

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t n);

/* Writes at most `left` bytes; returns how many. */
static uint32_t write_some(struct tcp_pcb *pcb, uint32_t left)
{
    uint32_t n = left, room = tcp_sndbuf(pcb);
    if (n > room)
        n = room;
    if (n > APP_DATA)
        n = APP_DATA;
    if (n == 0 || tcp_write(pcb, app_data, (u16_t)n, n <= COPIED_MAX ? TCP_WRITE_FLAG_COPY : 0) != ERR_OK)
        return 0; /* again when something was acknowledged, or at the next poll */
    return n;
}

/* Sends what is owed as far as there is room. True: the connection is to be closed. */
static bool respond(struct connection *c)
{
    struct leg *leg = c->leg;
    const struct np_spec *spec = leg->spec;
    struct np_counts *counts = leg->counts;
    while (c->owed > 0) {
        uint32_t n = write_some(c->pcb, spec->response_size - c->sent);
        if (n == 0) {
            tcp_sent(c->pcb, on_sent); /* only now: most responses fit */
            return false;
        }
        counts->tx_bytes += n;
        c->sent += n;
        if (c->sent < spec->response_size)
            continue;
        c->sent = 0;
        c->owed--;
        counts->tx_calls++;
        counts->transactions++;
        if (leg_reached(leg, counts->transactions)) {
            c->owed = 0; /* a request too many is not answered */
            leg_done(leg);
        } else if (spec->conn) {
            c->owed = 0;
        }
    }
    if (c->unconfirmed >= WINDOW_STEP)
        confirm(c);
    return spec->conn;
}

static err_t on_requests(struct connection *c, uint32_t n)
{
    struct leg *leg = c->leg;
    uint32_t size = leg->spec->request_size;
    leg->counts->rx_bytes += n;
    leg->counts->rx_calls++;
    c->unconfirmed += n;
    uint64_t got = (uint64_t)c->got + n;
    if (got < size) {
        c->got = (uint32_t)got;
        confirm(c);
        return ERR_OK;
    }
    uint64_t requests = got == size ? 1 : got / size;
    c->got = (uint32_t)(got - requests * size);
    c->owed += requests;
    return respond(c) ? finish(c) : ERR_OK;
}

/* ---- streams ---- */

static err_t on_stream(struct connection *c, uint32_t n)
{
    struct leg *leg = c->leg;
    const struct np_spec *spec = leg->spec;
    leg->counts->rx_bytes += n;
    leg->counts->rx_calls += n <= spec->receive_size ? 1 : (n + spec->receive_size - 1) / spec->receive_size;
    c->unconfirmed = n;
    confirm(c);
    if (leg_reached(leg, leg->counts->rx_bytes))
        leg_done(leg);
    return spec->conn ? finish(c) : ERR_OK;
}

/* Sends messages while there is room. True: the connection is to be closed. */
static bool stream(struct connection *c)
{
    struct leg *leg = c->leg;
    const struct np_spec *spec = leg->spec;
    while (!leg->done) {
        uint32_t n = write_some(c->pcb, spec->send_size - c->sent);
        if (n == 0)
            return false;
        leg->counts->tx_bytes += n;
        c->sent += n;
        if (c->sent < spec->send_size)
            continue;
        c->sent = 0;
        leg->counts->tx_calls++;
        if (leg_reached(leg, leg->counts->tx_bytes))
            leg_done(leg);
        if (spec->conn)
            return true;
    }
    return spec->conn;
}

static bool send_more(struct connection *c)
{
    return c->leg->spec->rx ? respond(c) : stream(c);
}

/* ---- callbacks ---- */

static err_t on_end(struct connection *c)
{
    struct leg *leg = c->leg;
    if (leg->stopped)
        return finish(c);
    if (!leg->spec->conn) {
        leg_done(leg);
        /* One that reads no more may leave our data where it is: then the connection is kept, to be cut later. */
        return leg->spec->rx ? finish(c) : ERR_OK;
    }
    if (!leg->spec->tx || c->closing)
        return finish(c);
    c->closing = true; /* closed by the client without a request: it is answered all the same, once */
    c->owed = leg->spec->rx ? 1 : 0;
    return send_more(c) ? finish(c) : ERR_OK;
}

static err_t on_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    struct connection *c = arg;
    (void)err;
    if (p == NULL)
        return on_end(c);
    uint32_t n = p->tot_len;
    pbuf_free(p);
    if (c->leg->stopped || c->leg->done || !c->leg->spec->rx) {
        tcp_recved(pcb, (u16_t)n);
        return ERR_OK;
    }
    return c->leg->spec->tx ? on_requests(c, n) : on_stream(c, n);
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t n)
{
    struct connection *c = arg;
    (void)pcb, (void)n;
    if (c->leg->stopped || !c->leg->spec->tx || (c->leg->spec->rx && c->owed == 0))
        return ERR_OK;
    return send_more(c) ? finish(c) : ERR_OK;
}

static err_t on_poll(void *arg, struct tcp_pcb *pcb)
{
    err_t err = on_sent(arg, pcb, 0);
    if (err == ERR_OK)
        tcp_output(pcb);
    return err;
}

/* The handshake's end. Here the connection cannot be closed: lwIP goes on with the segment afterwards, and a FIN in it
 * would undo the close. */
static err_t on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    struct leg *leg = arg;
    if (err != ERR_OK || pcb == NULL)
        return ERR_VAL;
    if (leg->stopped || (leg->began && !leg->spec->conn))
        return ERR_USE; /* one more than the test has: lwIP resets it */
    struct connection *c = calloc(1, sizeof *c);
    if (c == NULL)
        return ERR_MEM;
    *c = (struct connection){ .next = leg->connections, .at = &leg->connections, .leg = leg, .pcb = pcb };
    if (c->next != NULL)
        c->next->at = &c->next;
    leg->connections = c;
    tcp_arg(pcb, c);
    tcp_recv(pcb, on_receive);
    if (!leg->spec->rx)
        tcp_sent(pcb, on_sent);
    tcp_err(pcb, on_error);
    tcp_poll(pcb, on_poll, POLL_HALF_S);
    if (leg->spec->nodelay)
        tcp_nagle_disable(pcb);
    leg_began(leg);
    if (leg->spec->rx)
        return ERR_OK;
    c->late = leg->spec->tx ? stream(c) : true;
    if (c->late)
        leg_want_turn(leg);
    return ERR_OK;
}

/* ---- the leg's side ---- */

void leg_tcp_turn(struct leg *leg)
{
    for (struct connection *c = leg->connections, *next; c != NULL; c = next) {
        next = c->next;
        if (!c->late)
            continue;
        if (!leg->stopped && !leg->spec->tx) { /* a connection is all there is to a transaction */
            leg->counts->transactions++;
            if (leg_reached(leg, leg->counts->transactions))
                leg_done(leg);
        }
        finish(c);
    }
}

uint32_t leg_tcp_open(struct leg *leg)
{
    struct tcp_pcb *pcb = tcp_new_ip_type(IPADDR_TYPE_ANY);
    err_t err;
    if (pcb == NULL)
        return NP_ENOMEM;
    ip_set_option(pcb, SOF_REUSEADDR); /* connections of earlier tests may still be in TIME_WAIT */
    if (leg->spec->keepalive)
        ip_set_option(pcb, SOF_KEEPALIVE);
    err = tcp_bind(pcb, IP_ANY_TYPE, leg->record->port);
    if (err == ERR_OK)
        leg->listener = tcp_listen_with_backlog_and_err(pcb, BACKLOG, &err);
    if (leg->listener == NULL) {
        tcp_abort(pcb);
        return err == ERR_USE ? NP_EADDRINUSE : NP_ENOMEM;
    }
    tcp_arg(leg->listener, leg);
    tcp_accept(leg->listener, on_accept);
    return 0;
}

/* Connections that are open get a FIN and stay: what the peer still sends is read, so that it sees an end and no reset,
 * and it may leave our data where it is until the control connection ends. */
void leg_tcp_stop(struct leg *leg)
{
    if (leg->listener != NULL)
        tcp_close(leg->listener);
    leg->listener = NULL;
    for (struct connection *c = leg->connections, *next; c != NULL; c = next) {
        next = c->next;
        confirm(c);
        if (tcp_shutdown(c->pcb, 0, 1) != ERR_OK)
            cut(c);
    }
}

void leg_tcp_release(struct leg *leg)
{
    while (leg->connections != NULL)
        cut(leg->connections);
}

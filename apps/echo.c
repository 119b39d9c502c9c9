/* Echo (RFC 862): TCP and UDP port 7.
 *
 * TCP: what comes in is copied into the connection's send buffer as far as that has room; the rest waits, and the
 * window stays closed by as much, so a peer that does not read is not read from either. After the peer's FIN everything
 * is still sent before the connection is closed. */
#include <stddef.h>
#include <stdlib.h>
#include "apps/app.h"
#include "apps/tcp_server.h"
#include "kernel/memory.h"
#include "net/netif.h"

#define PORT        7
#define POLL_HALF_S 4   /* tcp_poll counts in units of 500 ms: look every 2 s */
#define PATIENCE    300 /* looks (10 minutes) without any progress after which a peer counts as gone */

struct connection {
    struct pbuf *waiting; /* received, not yet in the send buffer */
    unsigned idle;        /* looks since something moved */
    bool finished;        /* the peer has sent its FIN */
};

static void forget(struct connection *c)
{
    if (c->waiting != NULL)
        pbuf_free(c->waiting);
    free(c);
}

static err_t end(struct connection *c, struct tcp_pcb *pcb)
{
    forget(c);
    return tcp_finish(pcb);
}

/* Moves as much as fits from c->waiting into the send buffer. */
static err_t pump(struct connection *c, struct tcp_pcb *pcb)
{
    while (c->waiting != NULL) {
        struct pbuf *p = c->waiting;
        u16_t n = p->len;
        if (n > tcp_sndbuf(pcb))
            n = (u16_t)tcp_sndbuf(pcb);
        if (heap_low())
            n = 0; /* a peer that does not read must not take what receiving needs; again when some was acknowledged */
        if (n > 0 && tcp_write(pcb, p->payload, n, TCP_WRITE_FLAG_COPY) != ERR_OK)
            n = 0; /* no memory or too many segments queued: again when some were acknowledged */
        if (n == 0 && p->len > 0)
            break;
        c->idle = 0;
        if (n > 0)
            tcp_recved(pcb, n);
        c->waiting = tcp_consumed(p, n);
    }
    tcp_output(pcb);
    return c->finished && c->waiting == NULL ? end(c, pcb) : ERR_OK;
}

static err_t on_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    struct connection *c = arg;
    (void)err;
    c->idle = 0;
    if (p == NULL)
        c->finished = true;
    else if (c->waiting == NULL)
        c->waiting = p;
    else
        pbuf_cat(c->waiting, p); /* tot_len has 16 bits and may wrap: pump() goes by len */
    return pump(c, pcb);
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t n)
{
    struct connection *c = arg;
    (void)n;
    c->idle = 0;
    return c->waiting != NULL || c->finished ? pump(c, pcb) : ERR_OK;
}

static err_t on_poll(void *arg, struct tcp_pcb *pcb)
{
    struct connection *c = arg;
    if (c->waiting == NULL && !c->finished)
        return ERR_OK; /* the peer is just quiet */
    if (++c->idle <= PATIENCE)
        return pump(c, pcb);
    forget(c);
    tcp_arg(pcb, NULL);
    tcp_err(pcb, NULL);
    tcp_abort(pcb);
    return ERR_ABRT;
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
        return ERR_MEM; /* lwIP aborts the connection */
    tcp_arg(pcb, c);
    tcp_recv(pcb, on_receive);
    tcp_sent(pcb, on_sent);
    tcp_err(pcb, on_error);
    tcp_poll(pcb, on_poll, POLL_HALF_S);
    return ERR_OK;
}

static void on_datagram(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *from, u16_t port)
{
    (void)arg;
    if (!udp_would_loop(port))
        net_udp_sendto(pcb, p, from,
                       port); /* an answer that cannot be sent is lost, as datagrams are; lwIP counts it */
    pbuf_free(p);
}

static bool start(void)
{
    return tcp_serve("echo", PORT, on_accept) && udp_serve("echo", PORT, on_datagram);
}

APP(echo, .ports = "tcp/7 udp/7", .by_default = true, .start = start);

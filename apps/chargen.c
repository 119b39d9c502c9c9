/* Character generator (RFC 864): TCP port 19 streams until the peer closes, UDP port 19 answers each datagram with one.
 *
 * The stream repeats the 95 lines that the RFC shows. They lie in memory once and are sent by reference: nothing is
 * copied. The memory is that which others send from, too: to them any data will do. */
#include <stddef.h>
#include <stdlib.h>
#include "apps/app.h"
#include "apps/tcp_server.h"
#include "net/netif.h"

#define PORT       19
#define CHARACTERS 95 /* ' ' to '~' */
#define COLUMNS    72
#define LINE       (COLUMNS + 2)
#define PATTERN    (CHARACTERS * LINE)
#define AT_ONCE    (APP_DATA - PATTERN) /* any place of the first lines is followed by so much */

struct connection {
    u32_t at; /* place in the pattern */
};

static void write_lines(void)
{
    for (size_t i = 0; i < sizeof app_data; i++) {
        size_t line = i / LINE % CHARACTERS, column = i % LINE;
        app_data[i] = column == COLUMNS       ? '\r'
                      : column == COLUMNS + 1 ? '\n'
                                              : (uint8_t)(' ' + (line + column) % CHARACTERS);
    }
}

static void fill(struct connection *c, struct tcp_pcb *pcb)
{
    for (u32_t room; (room = tcp_sndbuf(pcb)) > 0;) {
        u16_t n = room < AT_ONCE ? (u16_t)room : AT_ONCE;
        if (tcp_write(pcb, app_data + c->at, n, 0) != ERR_OK)
            break; /* enough segments are queued: again when some were acknowledged */
        c->at = (c->at + n) % PATTERN;
    }
    tcp_output(pcb);
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t n)
{
    (void)n;
    fill(arg, pcb);
    return ERR_OK;
}

static err_t on_poll(void *arg, struct tcp_pcb *pcb)
{
    fill(arg, pcb);
    return ERR_OK;
}

/* What the peer sends is read and forgotten. It need not wait to be closed in turn: after its FIN nobody reads the
 * stream's end. */
static err_t on_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    (void)err;
    if (p == NULL) {
        free(arg);
        return tcp_finish(pcb);
    }
    tcp_recved(pcb, p->tot_len);
    pbuf_free(p);
    return ERR_OK;
}

static void on_error(void *arg, err_t err)
{
    (void)err;
    free(arg);
}

static err_t on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    (void)arg;
    struct connection *c = err == ERR_OK && pcb != NULL ? calloc(1, sizeof *c) : NULL;
    if (c == NULL)
        return ERR_MEM;
    tcp_arg(pcb, c);
    tcp_recv(pcb, on_receive);
    tcp_sent(pcb, on_sent);
    tcp_err(pcb, on_error);
    tcp_poll(pcb, on_poll, 1);
    fill(c, pcb);
    return ERR_OK;
}

/* One datagram of 0 to 512 characters for each that comes (RFC 864). */
static void on_datagram(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *from, u16_t port)
{
    (void)arg;
    pbuf_free(p);
    if (udp_would_loop(port))
        return;
    u16_t n = (u16_t)(net_random() % 513);
    p = pbuf_alloc(PBUF_TRANSPORT, n, PBUF_RAM);
    if (p == NULL)
        return;
    pbuf_take(p, app_data + net_random() % PATTERN, n);
    net_udp_sendto(pcb, p, from, port);
    pbuf_free(p);
}

static bool start(void)
{
    write_lines();
    return tcp_serve("chargen", PORT, on_accept) && udp_serve("chargen", PORT, on_datagram);
}

APP(chargen, .ports = "tcp/19 udp/19", .by_default = true, .start = start);

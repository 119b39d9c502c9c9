/* What the simple TCP servers have in common: a listener for both IP versions, and connections that take care of their
 * own end. */
#ifndef RINGSIDE_APPS_TCP_SERVER_H
#define RINGSIDE_APPS_TCP_SERVER_H
#include <stdbool.h>
#include <stdint.h>
#include "lwip/tcp.h"
#include "lwip/udp.h"

/* Listens on `port`, IPv4 and IPv6; `accept` as in tcp_accept(). False: no memory or the port is taken; said on the
 * console. */
bool tcp_serve(const char *name, u16_t port, tcp_accept_fn accept);

/* Receives datagrams on `port`, IPv4 and IPv6; `receive` as in udp_recv(). */
bool udp_serve(const char *name, u16_t port, udp_recv_fn receive);

/* What is sent where any data will do, from where it lies: chargen's lines, or zeros where that is not started. Nobody
 * changes it later. */
#define APP_DATA 32768u
extern uint8_t app_data[APP_DATA];

/* True for the ports of servers that answer whatever comes: answering a datagram from there could go on for ever. */
static inline bool udp_would_loop(u16_t port)
{
    return port == 7 || port == 19;
}

/* Received data of which `n` bytes, at most those of the first pbuf, are done with: returns what is left. A pbuf
 * without bytes goes too, even for n = 0: what a peer has sent twice lwIP leaves in front of new data as such. */
static inline struct pbuf *tcp_consumed(struct pbuf *p, u16_t n)
{
    struct pbuf *rest = p->next;
    if (n < p->len) {
        pbuf_remove_header(p, n);
        return p;
    }
    p->next = NULL;
    pbuf_free(p);
    return rest;
}

/* Closes a connection, or aborts it when there is no memory to close it in order. Returns what a tcp callback must
 * return: ERR_ABRT after an abort. The pcb is gone for the application either way. */
err_t tcp_finish(struct tcp_pcb *pcb);
#endif

/* Discard (RFC 863): TCP and UDP port 9. Reads and forgets. */
#include <stddef.h>
#include "apps/app.h"
#include "apps/tcp_server.h"

#define PORT 9

static err_t on_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    (void)arg, (void)err;
    if (p == NULL)
        return tcp_finish(pcb);
    tcp_recved(pcb, p->tot_len);
    pbuf_free(p);
    return ERR_OK;
}

static err_t on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    (void)arg;
    if (err != ERR_OK || pcb == NULL)
        return ERR_VAL;
    tcp_recv(pcb, on_receive);
    return ERR_OK;
}

static void on_datagram(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *from, u16_t port)
{
    (void)arg, (void)pcb, (void)from, (void)port;
    pbuf_free(p);
}

static bool start(void)
{
    return tcp_serve("discard", PORT, on_accept) && udp_serve("discard", PORT, on_datagram);
}

APP(discard, .ports = "tcp/9 udp/9", .by_default = true, .start = start);

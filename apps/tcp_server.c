#include <stddef.h>
#include "apps/tcp_server.h"
#include "kernel/console.h"

uint8_t app_data[APP_DATA];

bool tcp_serve(const char *name, u16_t port, tcp_accept_fn accept)
{
    struct tcp_pcb *pcb = tcp_new_ip_type(IPADDR_TYPE_ANY), *listener = NULL;
    if (pcb != NULL && tcp_bind(pcb, IP_ANY_TYPE, port) == ERR_OK)
        listener = tcp_listen_with_backlog(pcb, TCP_DEFAULT_LISTEN_BACKLOG);
    if (listener == NULL) {
        log_error("app", "%s: cannot listen on TCP port %u", name, port);
        if (pcb != NULL)
            tcp_abort(pcb);
        return false;
    }
    tcp_accept(listener, accept);
    return true;
}

bool udp_serve(const char *name, u16_t port, udp_recv_fn receive)
{
    struct udp_pcb *pcb = udp_new_ip_type(IPADDR_TYPE_ANY);
    if (pcb == NULL || udp_bind(pcb, IP_ANY_TYPE, port) != ERR_OK) {
        log_error("app", "%s: cannot bind UDP port %u", name, port);
        if (pcb != NULL)
            udp_remove(pcb);
        return false;
    }
    udp_recv(pcb, receive, NULL);
    return true;
}

err_t tcp_finish(struct tcp_pcb *pcb)
{
    tcp_arg(pcb, NULL);
    tcp_recv(pcb, NULL);
    tcp_sent(pcb, NULL);
    tcp_err(pcb, NULL);
    tcp_poll(pcb, NULL, 0);
    if (tcp_close(pcb) == ERR_OK)
        return ERR_OK;
    tcp_abort(pcb);
    return ERR_ABRT;
}

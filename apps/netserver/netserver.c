/* netserver: what unmodified netperf clients (2.6.0 to 2.7.1, classic tests and omni) expect to talk to. The protocol
 * has no specification; what is served here was learnt from what real clients and servers send each other. */
#include <stddef.h>
#include "apps/app.h"
#include "apps/netserver/netserver.h"
#include "apps/tcp_server.h"
#include "kernel/core.h"
#include "net/steer.h"

static struct np_server server;
extern const struct app app_netserver;

const struct np_server *np_server(void)
{
    server.cores = steer_cores(); /* known only when the device runs */
    return &server;
}

void np_post(unsigned core, enum np_message kind, const void *a, uint64_t b, uint64_t c)
{
    struct app_message m = { kind, (uint64_t)(uintptr_t)a, b, c };
    steer_post_app(core, app_number(&app_netserver), &m);
}

static void on_message(unsigned from, const struct app_message *m)
{
    void *a = (void *)(uintptr_t)m->a;
    switch ((enum np_message)m->kind) {
    case NP_OPEN:
        np_leg_open(a);
        break;
    case NP_OPENED:
        np_test_opened(a, from, (void *)(uintptr_t)m->b, (uint32_t)m->c);
        break;
    case NP_BEGIN:
        np_leg_begin(a);
        break;
    case NP_BEGAN:
        np_test_began(a, from, m->b);
        break;
    case NP_DONE:
        np_test_done(a, from, m->b);
        break;
    case NP_REFUSE:
        np_leg_refuse(a);
        break;
    case NP_STOP:
        np_leg_stop(a);
        break;
    case NP_FINAL:
        np_test_final(a, from);
        break;
    case NP_RELEASE:
        np_leg_release(a);
        break;
    case NP_TURN:
        np_leg_turn(a);
        break;
    }
}

static bool start(void)
{
    server = (struct np_server){
        .tcp_receive_buffer = TCP_WND,
        .tcp_send_buffer = TCP_SND_BUF,
        .udp_receive_buffer = TCP_WND, /* there is no buffer: datagrams are read as they come; what the ring holds is of
                                          this order */
        .udp_send_buffer = TCP_SND_BUF,
        .ipv6 = core_shared()->boot.ip6 != IP_OFF,
    };
    return tcp_serve("netserver", NP_PORT, np_control_accept);
}

APP(netserver, .ports = "tcp/12865", .by_default = true, .start = start, .message = on_message);

/* iperf3: what unmodified iperf3 clients expect to talk to. Here connections say what they are. */
#include <stdlib.h>
#include <string.h>
#include "apps/app.h"
#include "apps/iperf3/iperf3.h"
#include "apps/tcp_server.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/memory.h"
#include "net/hooks.h"
#include "net/steer.h"

#define POLL_HALF_S  4  /* look every 2 s */
#define SILENT_LOOKS 15 /* looks after which a connection without a cookie is closed */
#define ISN_UNIT_NS  4000

/* A connection that has not said yet what it is. */
struct newcomer {
    struct tcp_pcb *pcb;
    uint64_t when; /* its SYN came, in units of 4 microseconds */
    uint8_t got, looks;
    char cookie[I3_COOKIE];
};

static struct i3_stats stats;
static unsigned newcomers;
extern const struct app app_iperf3;

struct i3_stats *i3_stats(void)
{
    return &stats;
}

void i3_log_end(const char *what)
{
    log_debug(
        "iperf3",
        "%s ends; now %u newcomers, %u tests, %u legs; heap %llu; so far %llu tests, %llu ended well, %llu errors, "
        "%llu refused, %llu silent, %llu stray",
        what, newcomers, i3_tests(), i3_legs(), (unsigned long long)heap_stats().used, (unsigned long long)stats.tests,
        (unsigned long long)stats.ended_well, (unsigned long long)stats.errors, (unsigned long long)stats.refused,
        (unsigned long long)stats.silent, (unsigned long long)stats.stray);
}

/* ---- newcomers ---- */

static void forget(struct newcomer *n)
{
    free(n);
    newcomers--;
}

static err_t send_away(struct newcomer *n)
{
    static const uint8_t denied = 0xff;
    struct tcp_pcb *pcb = n->pcb;
    forget(n);
    stats.refused++;
    tcp_write(pcb, &denied, 1, TCP_WRITE_FLAG_COPY);
    i3_log_end("a connection that was refused");
    return tcp_finish(pcb);
}

static bool is_cookie(const char cookie[I3_COOKIE])
{
    for (unsigned i = 0; i < I3_COOKIE - 1; i++)
        if (cookie[i] <= ' ' || cookie[i] > '~')
            return false;
    return cookie[I3_COOKIE - 1] == '\0';
}

/* The cookie is there, and `rest` behind it (or NULL). */
static err_t settle(struct newcomer *n, struct pbuf *rest)
{
    struct tcp_pcb *pcb = n->pcb;
    uint64_t when = n->when;
    struct leg *leg = is_cookie(n->cookie) ? i3_leg_of_cookie(n->cookie) : NULL;
    u16_t left = rest != NULL ? rest->tot_len : 0;
    bool stream = leg != NULL, done;
    if (stream)
        done = !leg->running && !leg->spec->udp && i3_tcp_adopt(leg, pcb, when);
    else
        done = is_cookie(n->cookie) && !heap_low() && i3_test_start(pcb, n->cookie);
    if (!done || stream) {
        if (rest != NULL)
            pbuf_free(rest);
        tcp_recved(pcb, left);
    }
    if (!done)
        return send_away(n);
    forget(n);
    if (stream)
        i3_tcp_count(pcb, left);
    else if (rest != NULL)
        return i3_test_receive(pcb->callback_arg, pcb, rest, ERR_OK);
    return ERR_OK;
}

static err_t on_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    struct newcomer *n = arg;
    (void)err;
    if (p == NULL) {
        forget(n);
        stats.silent++;
        i3_log_end("a connection without a cookie");
        return tcp_finish(pcb);
    }
    u16_t want = (u16_t)(I3_COOKIE - n->got), got = pbuf_copy_partial(p, n->cookie + n->got, want, 0);
    n->got = (uint8_t)(n->got + got);
    tcp_recved(pcb, got);
    p = pbuf_free_header(p, got);
    return n->got == I3_COOKIE ? settle(n, p) : ERR_OK;
}

static err_t on_poll(void *arg, struct tcp_pcb *pcb)
{
    struct newcomer *n = arg;
    if (++n->looks < SILENT_LOOKS)
        return ERR_OK;
    forget(n);
    stats.silent++;
    i3_log_end("a silent connection");
    return tcp_finish(pcb);
}

static void on_error(void *arg, err_t err)
{
    (void)err;
    forget(arg);
    stats.silent++;
    i3_log_end("a connection without a cookie");
}

/* When the connection's SYN came, in units of 4 microseconds. The client opens its streams one after the other, each
 * when the one before has been answered; so by their SYNs they have an order, whichever core got which, and it is the
 * protocol's. Of the handshake's end the same cannot be said: one core may be slower than another to see it. lwIP does
 * not keep the SYN's time, but the connection's first sequence number has it (RFC 6528). */
static uint64_t time_of_syn(const struct tcp_pcb *pcb)
{
    u32_t isn = pcb->snd_lbb - 1; /* nothing has been written yet but the SYN */
    u32_t now = net_tcp_isn(&pcb->local_ip, pcb->local_port, &pcb->remote_ip, pcb->remote_port);
    return clock_ns() / ISN_UNIT_NS - (u32_t)(now - isn);
}

static err_t on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    (void)arg;
    struct newcomer *n = err == ERR_OK && pcb != NULL ? calloc(1, sizeof *n) : NULL;
    if (n == NULL)
        return ERR_MEM;
    n->pcb = pcb;
    n->when = time_of_syn(pcb);
    newcomers++;
    tcp_arg(pcb, n);
    tcp_recv(pcb, on_receive);
    tcp_err(pcb, on_error);
    tcp_poll(pcb, on_poll, POLL_HALF_S);
    return ERR_OK;
}

/* ---- messages ---- */

void i3_post(unsigned core, enum i3_message kind, const void *a, uint64_t b, uint64_t c)
{
    struct app_message m = { kind, (uint64_t)(uintptr_t)a, b, c };
    steer_post_app(core, app_number(&app_iperf3), &m);
}

static void on_message(unsigned from, const struct app_message *m)
{
    void *a = (void *)(uintptr_t)m->a, *b = (void *)(uintptr_t)m->b;
    switch ((enum i3_message)m->kind) {
    case I3_CLAIM:
        i3_turn_claim(a, from);
        break;
    case I3_GRANT:
        i3_test_granted(a);
        break;
    case I3_DISCLAIM:
        i3_turn_disclaim(a);
        break;
    case I3_OPEN:
        i3_leg_open(a);
        break;
    case I3_OPENED:
        i3_test_opened(a, from, b);
        break;
    case I3_STREAM:
        i3_test_stream(a, from, b, m->c);
        break;
    case I3_ROLE:
        i3_leg_role(a, (unsigned)m->b, m->c != 0);
        break;
    case I3_BEGIN:
        i3_leg_begin(a);
        break;
    case I3_STOP:
        i3_leg_stop(a);
        break;
    case I3_FINAL:
        i3_test_final(a);
        break;
    case I3_RELEASE:
        i3_leg_release(a);
        break;
    case I3_TURN:
        i3_leg_turn(a);
        break;
    }
}

static bool start(void)
{
    return tcp_serve("iperf3", I3_PORT, on_accept) && udp_serve("iperf3", I3_PORT, i3_udp_receive);
}

APP(iperf3, .ports = "tcp/5201 udp/5201", .by_default = true, .start = start, .message = on_message);

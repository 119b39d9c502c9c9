/* TCP streams: what they carry is never looked at, and what they send is never copied. */
#include "apps/iperf3/iperf3.h"
#include "apps/tcp_server.h"
#include "kernel/clock.h"

#define POLL_HALF_S 1 /* tcp_poll's unit: look every 500 ms whether a write that failed for lack of memory goes now */

static void count(struct stream *s, uint32_t n)
{
    if (s->leg->stopped)
        return;
    s->bytes += n;
    s->leg->line->bytes += n;
}

/* The connection is no more the stream's. */
static struct tcp_pcb *let_go(struct stream *s)
{
    struct tcp_pcb *pcb = s->pcb;
    s->pcb = NULL;
    s->open = false;
    return pcb;
}

static err_t on_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    struct stream *s = arg;
    (void)err;
    if (p == NULL)
        return tcp_finish(let_go(s));
    u16_t n = p->tot_len;
    pbuf_free(p);
    tcp_recved(pcb, n);
    if (!s->sender)
        count(s, n);
    return ERR_OK;
}

void i3_tcp_send(struct stream *s)
{
    struct tcp_pcb *pcb = s->pcb;
    uint32_t len = s->leg->spec->len;
    uint64_t now = clock_ns();
    bool wrote = false;
    for (;;) {
        if (s->left == 0) {
            if (s->bytes >= i3_stream_allowed(s, now))
                break;
            s->left = s->limit - s->bytes < len ? s->limit - s->bytes : len;
        }
        uint32_t n = s->left < APP_DATA ? (uint32_t)s->left : APP_DATA, room = tcp_sndbuf(pcb);
        n = n < room ? n : room;
        if (n == 0 || tcp_write(pcb, app_data, (u16_t)n, 0) != ERR_OK) {
            if (wrote)
                tcp_output(pcb);
            return; /* again when something was acknowledged, or at the next poll */
        }
        s->left -= n;
        s->bytes += n;
        wrote = true;
    }
    if (wrote)
        tcp_output(pcb);
    if (s->bytes < s->limit)
        i3_leg_wake_at(s->leg, i3_stream_due(s));
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t n)
{
    struct stream *s = arg;
    (void)pcb, (void)n;
    if (s->sender && s->leg->running && !s->leg->stopped)
        i3_tcp_send(s);
    return ERR_OK;
}

static err_t on_poll(void *arg, struct tcp_pcb *pcb)
{
    return on_sent(arg, pcb, 0);
}

static void on_error(void *arg, err_t err)
{
    (void)err;
    let_go(arg);
}

bool i3_tcp_adopt(struct leg *leg, struct tcp_pcb *pcb, uint64_t when)
{
    struct stream *s = i3_leg_add(leg, when);
    if (s == NULL)
        return false;
    s->pcb = pcb;
    if (leg->spec->nodelay)
        tcp_nagle_disable(pcb);
    pcb->tos = leg->spec->tos;
    tcp_arg(pcb, s);
    tcp_recv(pcb, on_receive);
    tcp_sent(pcb, on_sent);
    tcp_err(pcb, on_error);
    tcp_poll(pcb, on_poll, POLL_HALF_S);
    return true;
}

void i3_tcp_count(struct tcp_pcb *pcb, uint32_t n)
{
    count(pcb->callback_arg, n);
}

/* A client that receives reads to the end of its streams before it reads that the test is over, and must not meet a
 * reset there. One that sends has sent; what of it is still on its way is refused. */
void i3_tcp_stop(struct stream *s)
{
    if (s->pcb == NULL)
        return;
    s->open = false;
    if (!s->sender)
        tcp_finish(let_go(s));
    else if (tcp_shutdown(s->pcb, 0, 1) != ERR_OK)
        i3_tcp_release(s);
}

void i3_tcp_release(struct stream *s)
{
    if (s->pcb == NULL)
        return;
    struct tcp_pcb *pcb = let_go(s);
    tcp_arg(pcb, NULL);
    tcp_err(pcb, NULL);
    tcp_abort(pcb);
}

/* Control connections: records in, records out, one request at a time. While a test runs what the client sends waits in
 * its window; its FIN then means that it has died. */
#include <stdlib.h>
#include <string.h>
#include "apps/netserver/netserver.h"
#include "apps/tcp_server.h"
#include "kernel/console.h"
#include "kernel/memory.h"

#define POLL_HALF_S  4      /* look every 2 s */
#define OLD_LOOKS    2      /* looks after which a record of 256 bytes will not get longer */
#define KEEP_IDLE_MS 60000u /* clients that vanish are found out */
#define SEGMENTS_MAX (TCP_SND_QUEUELEN / 2)
/* Of the memory that tests do not get (heap_low) connections get one half, so that each hears why; the other half is
 * for being connected at all: who cannot be served is told so by a reset. */
#define RESERVE 16

struct control {
    struct tcp_pcb *pcb;
    struct test *test;    /* runs, or is over and holds its sockets open */
    struct pbuf *waiting; /* received, not read yet */
    uint16_t have;        /* bytes of the present record */
    uint16_t had;         /* at the last look */
    uint8_t looks;        /* looks at which there was no more */
    bool to_send;         /* `out` waits for room */
    uint8_t record[NP_RECORD], out[NP_RECORD];
};

static unsigned controls;

unsigned np_controls(void)
{
    return controls;
}

static void forget(struct control *c)
{
    if (c->waiting != NULL)
        pbuf_free(c->waiting);
    if (c->test != NULL)
        np_test_leave(c->test);
    free(c);
    controls--;
    log_debug("netserver", "control connection ends; now %u of them, %u tests, %u legs; heap %llu", controls,
              np_tests(), np_legs(), (unsigned long long)heap_stats().used);
}

static err_t finish(struct control *c)
{
    struct tcp_pcb *pcb = c->pcb;
    forget(c);
    return tcp_finish(pcb);
}

/* ---- sending ---- */

static bool flush(struct control *c)
{
    if (!c->to_send)
        return true;
    if (tcp_sndbuf(c->pcb) < NP_RECORD || tcp_sndqueuelen(c->pcb) > SEGMENTS_MAX ||
        tcp_write(c->pcb, c->out, NP_RECORD, TCP_WRITE_FLAG_COPY) != ERR_OK)
        return false;
    c->to_send = false;
    tcp_output(c->pcb);
    return true;
}

static bool is_busy(const struct control *c)
{
    return c->to_send || (c->test != NULL && !np_test_over(c->test));
}

static void queue(struct control *c, const uint8_t record[NP_RECORD])
{
    if (c->to_send && !flush(c))
        log_warn("netserver", "a client does not read its answers: one is lost");
    memcpy(c->out, record, NP_RECORD);
    c->to_send = true;
    flush(c);
}

/* ---- requests ---- */

static void start_test(struct control *c, const struct np_request *request)
{
    uint8_t record[NP_RECORD];
    if (c->test != NULL)
        np_test_leave(c->test);
    c->test = heap_low() ? NULL : np_test_start(c, &request->spec, &c->pcb->remote_ip);
    if (c->test != NULL)
        return;
    np_error(request->type, NP_ENOBUFS, record);
    queue(c, record);
}

static void serve(struct control *c)
{
    struct np_request request;
    uint8_t record[NP_RECORD];
    np_parse(c->record, np_server(), &request);
    switch (request.kind) {
    case NP_IS_TEST:
        start_test(c, &request);
        break;
    case NP_IS_ANSWERED:
        np_answer_simple(request.type, np_server(), record);
        queue(c, record);
        break;
    case NP_IS_UNANSWERED: /* a pass phrase: this server wants none */
        break;
    default:
        np_error(request.type, request.error, record);
        queue(c, record);
    }
}

/* Reads what has come, as long as requests can be served. */
static void read_on(struct control *c)
{
    while (c->waiting != NULL && !is_busy(c)) {
        struct pbuf *p = c->waiting;
        uint16_t n = (uint16_t)(NP_RECORD - c->have);
        if (n > p->len)
            n = p->len;
        memcpy(c->record + c->have, p->payload, n);
        c->have = (uint16_t)(c->have + n);
        c->waiting = tcp_consumed(p, n);
        if (n > 0)
            tcp_recved(c->pcb, n);
        if (c->have < NP_RECORD)
            continue;
        c->have = 0;
        serve(c);
    }
}

void np_control_send(struct control *c, const uint8_t record[NP_RECORD])
{
    queue(c, record);
    read_on(c);
}

/* ---- callbacks ---- */

static err_t on_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    struct control *c = arg;
    (void)pcb, (void)err;
    if (p == NULL) /* after its results: a client's normal end; before: it has died, and its test with it */
        return finish(c);
    if (c->waiting == NULL)
        c->waiting = p;
    else
        pbuf_cat(c->waiting, p); /* tot_len has 16 bits and may wrap: read_on() goes by len */
    read_on(c);
    return ERR_OK;
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t n)
{
    struct control *c = arg;
    (void)pcb, (void)n;
    if (c->to_send && flush(c))
        read_on(c);
    return ERR_OK;
}

static err_t on_poll(void *arg, struct tcp_pcb *pcb)
{
    struct control *c = arg;
    on_sent(c, pcb, 0);
    c->looks = c->have == c->had ? c->looks + (c->looks < UINT8_MAX) : 0;
    c->had = c->have;
    if (c->have != NP_RECORD_OLD || c->looks < OLD_LOOKS)
        return ERR_OK;
    log_info("netserver", "a netperf of 2.5.0 or older: its records are not served");
    return finish(c);
}

static void on_error(void *arg, err_t err)
{
    (void)err;
    forget(arg);
}

err_t np_control_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    (void)arg;
    bool room = err == ERR_OK && pcb != NULL && !heap_below(RESERVE);
    struct control *c = room ? calloc(1, sizeof *c) : NULL;
    if (c == NULL)
        return ERR_MEM; /* lwIP resets it */
    c->pcb = pcb;
    controls++;
    ip_set_option(pcb, SOF_KEEPALIVE);
    pcb->keep_idle = KEEP_IDLE_MS;
    tcp_nagle_disable(pcb);
    tcp_arg(pcb, c);
    tcp_recv(pcb, on_receive);
    tcp_sent(pcb, on_sent);
    tcp_err(pcb, on_error);
    tcp_poll(pcb, on_poll, POLL_HALF_S);
    return ERR_OK;
}

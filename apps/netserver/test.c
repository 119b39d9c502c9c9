/* Tests, on the core of their control connection: the data port is opened on every core, the client answered, the end
 * found, the counts added up.
 *
 * The port is opened on core 0 first, and on the others when core 0 has it: so of two that wish for the same port one
 * gets it, and the other another, as with the real server. */
#include <stdlib.h>
#include <string.h>
#include "apps/netserver/netserver.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "lwip/timeouts.h"
#include "net/steer.h"

#define PORT_FIRST   20000u
#define PORT_COUNT   24000u /* divided among the cores, so that they need not ask each other */
#define PORT_TRIES   50u
#define WISH_TRIES   4u /* the port may be on its way out with a test before */
#define WISH_WAIT_MS 10u
#define PAD_MS       4000u /* how much longer than its time a test may take that is ended by the client */
#define LOOK_MS      100u  /* ... looked at this often */
#define QUIET_LOOKS  5u    /* ... and ended when so many looks in turn found nothing new */
#define NO_DATA_MS                                                                                                     \
    30000u /* a client that never begins: five SYNs of it were lost, or it has given up and waits for results */
#define TIME_MAX_S 2000000 /* a longer test is one without limit */
#define LINE       64u

enum state {
    OPENING,  /* legs are to say OPENED */
    RUNNING,  /* the client has its answer */
    STOPPING, /* legs are to say FINAL */
    PAUSING,  /* a moment before the port is tried again */
    OVER,     /* results sent; sockets stay open until the control connection ends or wants another test */
};

struct test {
    struct np_record record; /* first: legs name a test by it */
    struct control *control; /* NULL: it is gone, nobody waits for results */
    enum state state;
    unsigned waiting; /* answers that are to come */
    unsigned tries;   /* ports */
    uint32_t error;   /* of opening */
    bool answered;    /* the client has its answer */
    bool data;        /* there is data: `began` is set */
    uint64_t began, ended;
    unsigned data_core;
    uint64_t seen;  /* what had been counted at the last look */
    unsigned quiet; /* looks that found nothing new */
    void *leg[];    /* each core's, NULL: not open */
};

static unsigned tests;

unsigned np_tests(void)
{
    return tests;
}

static struct test *test_of(struct np_record *record)
{
    return (struct test *)record;
}

/* ---- ports ---- */

static uint16_t next_port(void)
{
    static unsigned turn;
    unsigned cores = steer_cores();
    return (uint16_t)(PORT_FIRST + core_number() + cores * (turn++ % (PORT_COUNT / cores)));
}

static void open_on(struct test *t, unsigned from, unsigned to)
{
    for (unsigned core = from; core < to; core++) {
        t->waiting++;
        np_post(core, NP_OPEN, &t->record, 0, 0);
    }
}

static void try_port(struct test *t)
{
    bool wish = t->record.spec.port != 0 && t->tries < WISH_TRIES;
    t->record.port = wish ? t->record.spec.port : next_port();
    t->tries++;
    t->error = 0;
    t->state = OPENING;
    open_on(t, 0, 1);
}

/* ---- making and unmaking ---- */

struct test *np_test_start(struct control *control, const struct np_spec *spec, const ip_addr_t *peer)
{
    unsigned cores = steer_cores();
    size_t head = (sizeof(struct test) + cores * sizeof(void *) + LINE - 1) & ~(size_t)(LINE - 1);
    struct test *t = calloc(1, head + cores * sizeof(struct np_counts) + LINE);
    if (t == NULL)
        return NULL;
    t->record.spec = *spec;
    ip_addr_copy(t->record.peer, *peer);
    t->record.control = core_number();
    t->record.cores = cores;
    t->record.counts = (struct np_counts *)(((uintptr_t)t + head + LINE - 1) & ~(uintptr_t)(LINE - 1));
    t->control = control;
    tests++;
    try_port(t);
    return t;
}

static void on_timer(void *arg);

static void timer(struct test *t, uint64_t ms)
{
    sys_untimeout(on_timer, t);
    if (ms != 0)
        sys_timeout((u32_t)ms, on_timer, t);
}

static void tell_all(struct test *t, enum np_message kind)
{
    for (unsigned core = 0; core < t->record.cores; core++)
        if (t->leg[core] != NULL)
            np_post(core, kind, t->leg[core], 0, 0);
}

static void release(struct test *t)
{
    tell_all(t, NP_RELEASE);
    memset(t->leg, 0, t->record.cores * sizeof t->leg[0]);
}

static void unmake(struct test *t)
{
    timer(t, 0);
    release(t);
    free(t);
    tests--;
}

bool np_test_over(const struct test *t)
{
    return t->state == OVER;
}

/* ---- stopping ---- */

static void after_final(struct test *t);

static void stop(struct test *t)
{
    timer(t, 0);
    t->state = STOPPING;
    for (unsigned core = 0; core < t->record.cores; core++)
        t->waiting += t->leg[core] != NULL;
    tell_all(t, NP_STOP);
    if (t->waiting == 0)
        after_final(t);
}

static uint64_t limit_ms(const struct test *t)
{
    int32_t s = t->record.spec.test_length;
    return s > 0 && s <= TIME_MAX_S ? (uint64_t)s * 1000 : 0;
}

static void add_load(const struct test *t, struct np_outcome *o)
{
    float sum = 0, spin = 0;
    o->cpu = t->record.spec.cpu;
    for (unsigned i = 0; o->cpu && i < t->record.cores; i++) {
        const struct np_counts *c = &t->record.counts[i];
        if (c->window_ns == 0)
            continue;
        uint64_t idle = c->idle_ns < c->window_ns ? c->idle_ns : c->window_ns;
        float busy = 100.0f * (float)(c->window_ns - idle) / (float)c->window_ns;
        sum += busy;
        spin += 100.0f * (float)c->spin_ns / (float)c->window_ns;
        if (busy > o->peak_busy) {
            o->peak_busy = busy;
            o->peak_core = i;
        }
    }
    o->busy = sum / (float)t->record.cores;
    o->spinning = spin / (float)t->record.cores;
}

static void send_results(struct test *t)
{
    struct np_outcome o = { 0 };
    uint8_t record[NP_RECORD];
    for (unsigned i = 0; i < t->record.cores; i++) {
        const struct np_counts *c = &t->record.counts[i];
        o.rx_bytes += c->rx_bytes;
        o.tx_bytes += c->tx_bytes;
        o.rx_calls += c->rx_calls;
        o.tx_calls += c->tx_calls;
        o.transactions += c->transactions;
    }
    o.elapsed = t->data && t->ended > t->began ? (float)(t->ended - t->began) / 1e9f : 0;
    add_load(t, &o);
    np_results(&t->record.spec, np_server(), &o, record);
    np_control_send(t->control, record);
}

static void send_error(struct test *t)
{
    uint8_t record[NP_RECORD];
    np_error(t->record.spec.type, t->error, record);
    np_control_send(t->control, record);
}

/* No leg looks at the record any more. */
static void after_final(struct test *t)
{
    if (t->control == NULL) {
        unmake(t);
        return;
    }
    if (t->answered) {
        t->state = OVER;
        send_results(t);
        return;
    }
    release(t);
    if (t->error == NP_EADDRINUSE && t->tries < PORT_TRIES) {
        t->state = PAUSING;
        timer(t, t->record.spec.port != 0 && t->tries < WISH_TRIES ? WISH_WAIT_MS : 1);
        return;
    }
    t->state = OVER;
    send_error(t);
}

void np_test_leave(struct test *t)
{
    t->control = NULL;
    if (t->state == OVER || t->state == PAUSING)
        unmake(t);
    else if (t->state == RUNNING)
        stop(t);
}

/* ---- running ---- */

static uint64_t activity(const struct test *t)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < t->record.cores; i++) {
        const struct np_counts *c = &t->record.counts[i];
        n += __atomic_load_n(&c->rx_calls, __ATOMIC_RELAXED) + __atomic_load_n(&c->transactions, __ATOMIC_RELAXED);
    }
    return n;
}

/* Whether only silence says that the client has come to its end: it just makes no more connections; its empty datagrams
 * may all be lost. */
static bool ends_in_silence(const struct np_spec *s)
{
    return s->conn || (s->udp && s->rx);
}

static void end_by_time(struct test *t)
{
    t->ended = t->began + limit_ms(t) * 1000000;
    stop(t);
}

static void look(struct test *t, uint64_t late_ms)
{
    const struct np_spec *s = &t->record.spec;
    uint64_t now = activity(t);
    t->quiet = now == t->seen ? t->quiet + 1 : 0;
    t->seen = now;
    if ((s->tx && !s->rx) || late_ms >= PAD_MS || (ends_in_silence(s) && t->quiet > QUIET_LOOKS))
        end_by_time(t);
    else
        timer(t, LOOK_MS);
}

static void on_timer(void *arg)
{
    struct test *t = arg;
    uint64_t now = clock_ns();
    if (t->state == PAUSING) {
        try_port(t);
    } else if (t->state == RUNNING && t->data) {
        uint64_t past = (now - t->began) / 1000000, limit = limit_ms(t);
        if (past < limit)
            timer(t, limit - past);
        else
            look(t, past - limit);
    } else if (t->state == RUNNING) {
        t->ended = t->began;
        stop(t);
    }
}

static void arm(struct test *t)
{
    uint64_t limit = limit_ms(t), past = t->data ? (clock_ns() - t->began) / 1000000 : 0;
    if (!t->data)
        timer(t, limit + NO_DATA_MS);
    else if (limit != 0)
        timer(t, past < limit ? limit - past : 1);
    else
        timer(t, 0);
}

static void answer(struct test *t)
{
    uint8_t record[NP_RECORD];
    t->state = RUNNING;
    t->answered = true;
    np_answer(&t->record.spec, np_server(), t->record.port, record);
    arm(t);
    tell_all(t, NP_BEGIN);
    np_control_send(t->control, record);
    if (t->ended != 0) /* somebody has come and gone on core 0 while the others were not open yet */
        stop(t);
}

/* ---- messages of legs ---- */

/* A second data connection: most tests have one, and each leg sees to it for itself that it has no more. */
static bool is_second(const struct test *t, unsigned core)
{
    return t->data && core != t->data_core && core < t->record.cores && !t->record.spec.conn && !t->record.spec.udp;
}

void np_test_opened(struct np_record *record, unsigned core, void *leg, uint32_t error)
{
    struct test *t = test_of(record);
    t->leg[core] = leg;
    if (error != 0)
        t->error = error;
    if (--t->waiting > 0)
        return;
    if (t->error != 0 || t->control == NULL)
        stop(t);
    else if (core == 0 && t->record.cores > 1)
        open_on(t, 1, t->record.cores);
    else
        answer(t);
}

void np_test_began(struct np_record *record, unsigned core, uint64_t when)
{
    struct test *t = test_of(record);
    if (is_second(t, core) && t->leg[core] != NULL) {
        np_post(core, NP_REFUSE, t->leg[core], 0, 0);
        return;
    }
    if (!t->data || when < t->began) {
        t->began = when;
        t->data_core = core;
    }
    t->data = true;
    if (t->state == RUNNING)
        arm(t);
}

void np_test_done(struct np_record *record, unsigned core, uint64_t when)
{
    struct test *t = test_of(record);
    if (is_second(t, core))
        return;
    t->ended = when;
    if (t->state == RUNNING)
        stop(t);
}

void np_test_final(struct np_record *record, unsigned core)
{
    struct test *t = test_of(record);
    (void)core;
    if (--t->waiting == 0)
        after_final(t);
}

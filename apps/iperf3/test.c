/* Tests, on the core of their control connection: what the client is told, and when; its streams numbered; the results
 * put together. */
#include <stdlib.h>
#include <string.h>
#include "apps/iperf3/iperf3.h"
#include "apps/tcp_server.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/memory.h"
#include "lwip/timeouts.h"
#include "net/steer.h"

/* What is said: one byte each. */
#define TEST_START       1
#define TEST_RUNNING     2
#define TEST_END         4
#define PARAM_EXCHANGE   9
#define CREATE_STREAMS   10
#define CLIENT_TERMINATE 12
#define EXCHANGE_RESULTS 13
#define DISPLAY_RESULTS  14
#define IPERF_DONE       16
#define SERVER_ERROR     0xfe

#define TEXT_MAX      8192u      /* bytes of wishes */
#define RESULTS_MAX   (4u << 20) /* bytes of the client's results, which are skipped */
#define PATIENCE_MS   30000u     /* for what a client has ready */
#define STREAM_MS     15000u     /* for its next stream */
#define UDP_STREAM_MS 5000u      /* ... while others wait; it does not say hello twice */
#define LOOK_MS       1000u
#define GRACE_MS      40000u  /* that the real server gives beyond the test's time */
#define NO_DATA_MS    120000u /* a client that is to send and does not */
#define DRAIN_MS      10u     /* looks at what is still on its way, */
#define QUIET_LOOKS   20u     /* until so many in turn found nothing new */
#define KEEP_IDLE_MS  60000u  /* clients that vanish are found out */
#define LINE          64u

enum state {
    WISHES,   /* the client is to say what it wants */
    CLAIMING, /* it is not its turn to open UDP streams */
    OPENING,  /* legs are to say OPENED */
    STREAMS,  /* streams are to come */
    RUNNING,
    DRAINING, /* over; an amount was to be sent, and some of it is on its way */
    STOPPING, /* legs are to say FINAL */
    RESULTS,  /* the client is to send its results */
    SHOWING,  /* ... and to say that it is done */
};

/* A stream that has come. */
struct arrival {
    void *stream;
    unsigned core;
    uint64_t when;
};

struct test {
    struct i3_record record; /* first: others name a test by it */
    struct tcp_pcb *pcb;     /* NULL: the client is gone */
    enum state state;
    unsigned waiting; /* answers of legs that are to come */
    bool claimed;     /* it has the turn, or waits for it */
    bool no_leg;      /* a core had no memory */
    struct arrival *arrival;
    unsigned arrived;
    uint64_t began, looked, seen; /* ns; ns and bytes at the last look that found something new */
    unsigned quiet;

    uint8_t head[4]; /* a text's length */
    unsigned have;   /* bytes of it */
    uint32_t length, got;
    char *text;

    char *out; /* to be sent */
    size_t out_size, out_sent;
    void *memory; /* what the record points to */
    void *leg[];  /* each core's, NULL: not open */
};

static unsigned tests;

/* The connection whose callback runs: it is closed at the callback's end. */
static struct tcp_pcb *inside;

unsigned i3_tests(void)
{
    return tests;
}

static struct test *test_of(struct i3_record *record)
{
    return (struct test *)record;
}

/* ---- the end of a test ---- */

static void on_timer(void *arg);

static void timer(struct test *t, uint32_t ms)
{
    sys_untimeout(on_timer, t);
    if (ms != 0)
        sys_timeout(ms, on_timer, t);
}

static void tell_all(struct test *t, enum i3_message kind)
{
    for (unsigned core = 0; core < t->record.cores; core++)
        if (t->leg[core] != NULL)
            i3_post(core, kind, t->leg[core], 0, 0);
}

static void disclaim(struct test *t)
{
    if (t->claimed)
        i3_post(0, I3_DISCLAIM, &t->record, 0, 0);
    t->claimed = false;
}

static void unmake(struct test *t)
{
    timer(t, 0);
    disclaim(t);
    tell_all(t, I3_RELEASE);
    free(t->text);
    free(t->out);
    free(t->arrival);
    free(t->memory);
    free(t);
    tests--;
    i3_log_end("a test");
}

static void stop(struct test *t)
{
    timer(t, 0);
    disclaim(t);
    t->state = STOPPING;
    for (unsigned core = 0; core < t->record.cores; core++)
        t->waiting += t->leg[core] != NULL;
    if (t->waiting == 0)
        unmake(t); /* before any leg was open */
    else
        tell_all(t, I3_STOP);
}

/* The client is gone. The test may be gone after this. */
static void leave(struct test *t)
{
    t->pcb = NULL;
    timer(t, 0);
    switch (t->state) {
    case CLAIMING: /* the turn must come, to be given back */
    case OPENING:
    case STOPPING:
        break;
    case STREAMS:
    case RUNNING:
    case DRAINING:
        stop(t);
        break;
    default:
        unmake(t);
    }
}

/* Closes the control connection. The test may be gone after this. */
static void hang_up(struct test *t)
{
    struct tcp_pcb *pcb = t->pcb;
    leave(t);
    if (pcb == inside)
        inside = NULL;
    else
        tcp_finish(pcb);
}

/* ---- sending ---- */

static void flush(struct test *t)
{
    while (t->out_sent < t->out_size) {
        size_t n = t->out_size - t->out_sent, room = tcp_sndbuf(t->pcb);
        n = n < room ? n : room;
        n = n < TCP_MSS ? n : TCP_MSS;
        if (n == 0 || tcp_write(t->pcb, t->out + t->out_sent, (u16_t)n, TCP_WRITE_FLAG_COPY) != ERR_OK)
            break; /* again when something was acknowledged, or at the next poll */
        t->out_sent += n;
    }
    if (t->out_sent == t->out_size) {
        free(t->out);
        t->out = NULL;
        t->out_size = t->out_sent = 0;
    }
    tcp_output(t->pcb);
}

/* False: no memory. */
static bool say(struct test *t, const void *bytes, size_t n)
{
    char *out = realloc(t->out, t->out_size + n);
    if (out == NULL)
        return false;
    memcpy(out + t->out_size, bytes, n);
    t->out = out;
    t->out_size += n;
    flush(t);
    return true;
}

static void put32(uint8_t *b, uint32_t n)
{
    b[0] = (uint8_t)(n >> 24);
    b[1] = (uint8_t)(n >> 16);
    b[2] = (uint8_t)(n >> 8);
    b[3] = (uint8_t)n;
}

/* Ends a test with a sentence of the client's own, and for the log with one of ours. */
static void fail(struct test *t, enum i3_error error, const char *why)
{
    uint8_t said[9] = { SERVER_ERROR };
    put32(said + 1, error);
    put32(said + 5, 0); /* no errno */
    log_debug("iperf3", "a test fails: %s (client's error %d)", why, error);
    i3_stats()->errors++;
    say(t, said, sizeof said);
    hang_up(t);
}

static void say_states(struct test *t, uint8_t first, uint8_t second)
{
    uint8_t states[2] = { first, second };
    if (!say(t, states, second != 0 ? 2 : 1))
        hang_up(t);
}

/* ---- wishes, legs, streams ---- */

static bool make_room(struct test *t)
{
    unsigned streams = i3_streams(&t->record.spec);
    size_t lines = t->record.cores * sizeof(struct i3_line);
    /* Whole cache lines for each outcome would be more, and they are written once. */
    t->memory = calloc(1, LINE + lines + streams * sizeof(struct i3_outcome));
    t->arrival = calloc(streams, sizeof *t->arrival);
    if (t->memory == NULL || t->arrival == NULL)
        return false;
    t->record.line = (struct i3_line *)(((uintptr_t)t->memory + LINE - 1) & ~(uintptr_t)(LINE - 1));
    t->record.outcome = (struct i3_outcome *)((char *)t->record.line + lines);
    return true;
}

static void open_legs(struct test *t)
{
    t->state = OPENING;
    t->waiting = t->record.cores;
    for (unsigned core = 0; core < t->record.cores; core++)
        i3_post(core, I3_OPEN, &t->record, 0, 0);
}

static void on_wishes(struct test *t)
{
    const struct i3_spec *spec = &t->record.spec;
    enum i3_error error = i3_parse(t->text, t->length, &t->record.spec);
    timer(t, 0);
    if (error != I3_OK) {
        fail(t, error, "wishes that cannot be had");
        return;
    }
    log_debug("iperf3", "a test: %s%s%s, %u streams, len %u, time %u, omit %u, amount %llu, rate %llu",
              spec->udp ? "UDP" : "TCP", spec->reverse ? ", reverse" : "", spec->bidirectional ? ", both ways" : "",
              i3_streams(spec), spec->len, spec->time, spec->omit, (unsigned long long)spec->amount,
              (unsigned long long)spec->rate);
    if (!make_room(t)) {
        fail(t, I3_NEW_TEST, "no memory");
    } else if (spec->udp) {
        t->state = CLAIMING;
        t->claimed = true;
        i3_post(0, I3_CLAIM, &t->record, 0, 0);
    } else {
        open_legs(t);
    }
}

void i3_test_granted(struct i3_record *record)
{
    struct test *t = test_of(record);
    if (t->pcb == NULL)
        unmake(t);
    else
        open_legs(t);
}

static uint32_t stream_patience(const struct test *t)
{
    return t->record.spec.udp ? UDP_STREAM_MS : STREAM_MS;
}

void i3_test_opened(struct i3_record *record, unsigned core, void *leg)
{
    struct test *t = test_of(record);
    t->leg[core] = leg;
    t->no_leg = t->no_leg || leg == NULL;
    if (--t->waiting > 0)
        return;
    t->state = STREAMS;
    if (t->pcb == NULL) {
        stop(t);
    } else if (t->no_leg) {
        fail(t, I3_NEW_TEST, "no memory");
    } else {
        timer(t, stream_patience(t));
        say_states(t, CREATE_STREAMS, 0);
    }
}

/* By insertion: there are few, and nearly in order. */
static void sort_by_time(struct arrival *arrival, unsigned n)
{
    for (unsigned i = 1; i < n; i++) {
        struct arrival a = arrival[i];
        unsigned at = i;
        for (; at > 0 && arrival[at - 1].when > a.when; at--)
            arrival[at] = arrival[at - 1];
        arrival[at] = a;
    }
}

/* All streams are there: numbers in the order in which they came, of which the client keeps count too; roles; go. */
static void begin(struct test *t)
{
    const struct i3_spec *spec = &t->record.spec;
    sort_by_time(t->arrival, t->arrived);
    for (unsigned i = 0; i < t->arrived; i++) {
        bool sender = spec->bidirectional ? i >= spec->parallel : spec->reverse;
        i3_post(t->arrival[i].core, I3_ROLE, t->arrival[i].stream, i, sender);
    }
    disclaim(t);
    tell_all(t, I3_BEGIN);
    t->state = RUNNING;
    t->began = t->looked = clock_ns();
    timer(t, LOOK_MS);
    say_states(t, TEST_START, TEST_RUNNING);
}

void i3_test_stream(struct i3_record *record, unsigned core, void *stream, uint64_t when)
{
    struct test *t = test_of(record);
    if (t->state != STREAMS || t->arrived == i3_streams(&record->spec))
        return; /* one too many: it is closed with the others */
    t->arrival[t->arrived++] = (struct arrival){ stream, core, when };
    if (t->arrived == i3_streams(&record->spec))
        begin(t);
    else
        timer(t, stream_patience(t));
}

/* ---- running ---- */

static uint64_t bytes_received(const struct test *t)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < t->record.cores; i++)
        n += __atomic_load_n(&t->record.line[i].bytes, __ATOMIC_RELAXED);
    return n;
}

/* True: something has come since the last time. */
static bool look(struct test *t)
{
    uint64_t now = bytes_received(t);
    if (now == t->seen)
        return false;
    t->seen = now;
    t->looked = clock_ns();
    return true;
}

static void watch(struct test *t)
{
    const struct i3_spec *spec = &t->record.spec;
    look(t);
    uint64_t now = clock_ns(), limit = (uint64_t)(spec->time + spec->omit) * 1000 + GRACE_MS;
    bool late = spec->time != 0 && now - t->began > limit * 1000000;
    if (i3_receives(spec) && now - t->looked > (uint64_t)NO_DATA_MS * 1000000)
        late = true;
    if (late) {
        log_debug("iperf3", "a test's client neither ends it nor sends");
        i3_stats()->errors++;
        hang_up(t);
    } else {
        timer(t, LOOK_MS);
    }
}

/* The real server would count only what it has read by now. */
static void drain(struct test *t)
{
    t->quiet = look(t) ? 0 : t->quiet + 1;
    if (t->seen >= t->record.spec.amount || t->quiet > QUIET_LOOKS)
        stop(t);
    else
        timer(t, DRAIN_MS);
}

static void on_end(struct test *t)
{
    const struct i3_spec *spec = &t->record.spec;
    if (spec->amount == 0 || !i3_receives(spec)) {
        stop(t);
        return;
    }
    t->state = DRAINING;
    t->quiet = 0;
    drain(t);
}

static void on_timer(void *arg)
{
    struct test *t = arg;
    switch (t->state) {
    case RUNNING:
        watch(t);
        break;
    case DRAINING:
        drain(t);
        break;
    case STREAMS:
        fail(t, I3_CREATE_STREAM, "streams that do not come");
        break;
    default:
        log_debug("iperf3", "a test's client says nothing");
        i3_stats()->errors++;
        hang_up(t);
    }
}

/* ---- results ---- */

void i3_test_final(struct i3_record *record)
{
    struct test *t = test_of(record);
    if (--t->waiting > 0)
        return;
    if (t->pcb == NULL) {
        unmake(t);
        return;
    }
    t->state = RESULTS;
    t->have = 0;
    timer(t, PATIENCE_MS);
    say_states(t, EXCHANGE_RESULTS, 0);
}

static uint32_t share(uint64_t part, uint64_t whole)
{
    return whole == 0 ? 0 : part >= whole ? 10000 : (uint32_t)(part * 10000 / whole);
}

static struct i3_load load_of(const struct test *t)
{
    struct i3_load load = { .cores = t->record.cores };
    for (unsigned i = 0; i < t->record.cores; i++) {
        const struct i3_line *line = &t->record.line[i];
        load.busy += share(line->window_ns, line->window_ns) - share(line->idle_ns, line->window_ns);
        load.spinning += share(line->spin_ns, line->window_ns);
    }
    return load;
}

/* The client's have come; ours, and that it may show them. */
static void on_results(struct test *t)
{
    unsigned count = i3_streams(&t->record.spec);
    size_t size = i3_results_size(count) + 5;
    struct i3_load load = load_of(t);
    char *text = malloc(size);
    size_t n = text != NULL ? i3_results(text + 4, size - 5, &t->record.spec, &load, t->record.outcome, count) : size;
    if (n > size - 5) {
        free(text);
        fail(t, I3_NO_RESULTS, "no memory for the results");
        return;
    }
    put32((uint8_t *)text, (uint32_t)n);
    text[4 + n] = DISPLAY_RESULTS;
    t->state = SHOWING;
    timer(t, PATIENCE_MS);
    bool said = say(t, text, n + 5);
    free(text);
    if (!said)
        hang_up(t);
}

/* ---- what comes ---- */

static void on_state(struct test *t, uint8_t state)
{
    if (state == TEST_END && t->state == RUNNING) {
        on_end(t);
    } else if (state == IPERF_DONE && t->state == SHOWING) {
        i3_stats()->ended_well++;
        hang_up(t);
    } else {
        log_debug("iperf3", state == CLIENT_TERMINATE ? "a client was interrupted" : "a client says %u out of turn",
                  state);
        i3_stats()->errors += state != CLIENT_TERMINATE;
        hang_up(t);
    }
}

static void on_length(struct test *t)
{
    t->length = (uint32_t)t->head[0] << 24 | (uint32_t)t->head[1] << 16 | (uint32_t)t->head[2] << 8 | t->head[3];
    t->got = 0;
    if (t->length == 0 || t->length > (t->state == WISHES ? TEXT_MAX : RESULTS_MAX)) {
        fail(t, t->state == WISHES ? I3_BAD_PARAMETERS : I3_NO_RESULTS, "a text of no length that is believed");
        return;
    }
    if (t->state != WISHES)
        return;
    t->text = malloc(t->length);
    if (t->text == NULL)
        fail(t, I3_NEW_TEST, "no memory");
}

/* Takes some of `n` bytes; returns how many. The test may be gone after this: then `inside` is NULL. */
static size_t take(struct test *t, const uint8_t *bytes, size_t n)
{
    if (t->state != WISHES && t->state != RESULTS) {
        on_state(t, *bytes);
        return 1;
    }
    if (t->have < sizeof t->head) {
        t->head[t->have++] = *bytes;
        if (t->have == sizeof t->head)
            on_length(t);
        return 1;
    }
    size_t left = t->length - t->got;
    n = n < left ? n : left;
    if (t->state == WISHES)
        memcpy(t->text + t->got, bytes, n);
    t->got += (uint32_t)n;
    if (t->got == t->length && t->state == WISHES)
        on_wishes(t);
    else if (t->got == t->length)
        on_results(t);
    return n;
}

err_t i3_test_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    struct test *t = arg;
    (void)err;
    if (p == NULL) {
        i3_stats()->ended_well += t->state == SHOWING;
        leave(t);
        return tcp_finish(pcb);
    }
    tcp_recved(pcb, p->tot_len);
    inside = pcb;
    for (const struct pbuf *q = p; q != NULL && inside != NULL; q = q->next)
        for (size_t at = 0; at < q->len && inside != NULL;)
            at += take(t, (const uint8_t *)q->payload + at, q->len - at);
    pbuf_free(p);
    if (inside == NULL)
        return tcp_finish(pcb);
    inside = NULL;
    return ERR_OK;
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t n)
{
    struct test *t = arg;
    (void)pcb, (void)n;
    if (t->out != NULL)
        flush(t);
    return ERR_OK;
}

static err_t on_poll(void *arg, struct tcp_pcb *pcb)
{
    return on_sent(arg, pcb, 0);
}

static void on_error(void *arg, err_t err)
{
    (void)err;
    leave(arg);
}

bool i3_test_start(struct tcp_pcb *pcb, const char cookie[I3_COOKIE])
{
    unsigned cores = steer_cores();
    struct test *t = calloc(1, sizeof *t + cores * sizeof(void *));
    if (t == NULL)
        return false;
    memcpy(t->record.cookie, cookie, I3_COOKIE);
    ip_addr_copy(t->record.peer, pcb->remote_ip);
    t->record.control = core_number();
    t->record.cores = cores;
    t->pcb = pcb;
    tests++;
    i3_stats()->tests++;
    ip_set_option(pcb, SOF_KEEPALIVE);
    pcb->keep_idle = KEEP_IDLE_MS;
    tcp_nagle_disable(pcb);
    tcp_arg(pcb, t);
    tcp_recv(pcb, i3_test_receive);
    tcp_sent(pcb, on_sent);
    tcp_err(pcb, on_error);
    tcp_poll(pcb, on_poll, 2);
    timer(t, PATIENCE_MS);
    const uint8_t state = PARAM_EXCHANGE;
    if (say(t, &state, 1))
        return true;
    unmake(t);
    return false;
}

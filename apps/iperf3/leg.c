/* A core's part of a test: the streams whose flows it owns, when they send, what they counted, how busy the core was.
 */
#include <stdlib.h>
#include <string.h>
#include "apps/iperf3/iperf3.h"
#include "kernel/clock.h"
#include "kernel/core.h"
#include "lwip/timeouts.h"
#include "net/loop.h"

#define SECOND_NS   1000000000ull
#define WAKE_MAX_NS (60 * SECOND_NS) /* lwIP's timers have a limit */

static struct leg *first; /* those that are not stopped */
static unsigned legs;

unsigned i3_legs(void)
{
    return legs;
}

struct leg *i3_leg_of_cookie(const char cookie[I3_COOKIE])
{
    struct leg *leg = first;
    while (leg != NULL && memcmp(leg->record->cookie, cookie, I3_COOKIE) != 0)
        leg = leg->next;
    return leg;
}

struct leg *i3_leg_of_peer(const ip_addr_t *peer)
{
    struct leg *leg = first;
    while (leg != NULL && (leg->running || !leg->spec->udp || !ip_addr_zoneless_eq(&leg->record->peer, peer)))
        leg = leg->next;
    return leg;
}

struct stream *i3_leg_add(struct leg *leg, uint64_t when)
{
    struct stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->leg = leg;
    s->open = true;
    s->next = leg->streams;
    leg->streams = s;
    i3_post(leg->record->control, I3_STREAM, leg->record, (uint64_t)(uintptr_t)s, when);
    return s;
}

void i3_leg_open(struct i3_record *record)
{
    struct leg *leg = calloc(1, sizeof *leg);
    if (leg != NULL) {
        leg->record = record;
        leg->spec = &record->spec;
        leg->line = &record->line[core_number()];
        leg->next = first;
        first = leg;
        legs++;
    }
    i3_post(record->control, I3_OPENED, record, (uint64_t)(uintptr_t)leg, 0);
}

/* ---- when to send ---- */

/* iperf3 lets a stream send a block whenever its mean rate since the start is below what was asked for. */
uint64_t i3_stream_allowed(const struct stream *s, uint64_t now)
{
    uint64_t rate = s->leg->spec->rate, limit = s->limit;
    if (rate == 0)
        return limit;
    double allowed = (double)(now - s->leg->began) * (double)rate / (8.0 * SECOND_NS) + 1;
    return allowed < (double)limit ? (uint64_t)allowed : limit;
}

uint64_t i3_stream_due(const struct stream *s)
{
    return s->leg->began + (uint64_t)((double)s->bytes * 8.0 * SECOND_NS / (double)s->leg->spec->rate);
}

/* Each time it is another one's turn to be the first: when the ring is full, the last get nothing. */
static void pump(struct leg *leg)
{
    struct stream *head = leg->streams, *last = NULL;
    for (struct stream *s = head; s != NULL; last = s, s = s->next) {
        if (!s->open || !s->sender)
            continue;
        if (leg->spec->udp)
            i3_udp_send(s);
        else
            i3_tcp_send(s);
    }
    if (head != last) {
        leg->streams = head->next;
        head->next = NULL;
        last->next = head;
    }
}

static void on_wake(void *arg)
{
    struct leg *leg = arg;
    leg->wake_at = 0;
    pump(leg);
}

static void forget_wake(struct leg *leg)
{
    if (leg->wake_at != 0)
        sys_untimeout(on_wake, leg);
    leg->wake_at = 0;
}

void i3_leg_wake_at(struct leg *leg, uint64_t when)
{
    uint64_t now = clock_ns();
    if (leg->wake_at != 0 && leg->wake_at <= when)
        return;
    when = when > now + WAKE_MAX_NS ? now + WAKE_MAX_NS : when > now ? when : now + 1;
    forget_wake(leg);
    leg->wake_at = when;
    sys_timeout((u32_t)((when - now + 999999) / 1000000), on_wake, leg);
}

void i3_leg_want_turn(struct leg *leg)
{
    if (leg->turn)
        return;
    leg->turn = true;
    i3_post(core_number(), I3_TURN, leg, 0, 0);
}

/* ---- the run ---- */

void i3_leg_role(struct stream *s, unsigned index, bool sender)
{
    const struct i3_spec *spec = s->leg->spec;
    if (s->leg->stopped)
        return;
    s->numbered = true;
    s->index = index;
    s->sender = sender;
    s->limit = UINT64_MAX;
    /* With an amount to be sent the client ends when it has got it. Not so when datagrams may be lost, or when bytes of
     * the first seconds do not count: then sending goes on until the client says that it is over. */
    if (spec->amount != 0 && spec->omit == 0 && !spec->udp)
        s->limit = (spec->amount + spec->parallel - 1) / spec->parallel;
}

static void omit(struct stream *s)
{
    s->omitted = s->bytes;
    s->omitted_packets = s->packets;
    s->omitted_errors = s->errors;
    s->jitter = 0;
}

static void on_omitted(void *arg)
{
    struct leg *leg = arg;
    leg->counting = clock_ns();
    for (struct stream *s = leg->streams; s != NULL; s = s->next)
        omit(s);
}

void i3_leg_begin(struct leg *leg)
{
    const struct loop_stats *loop = net_loop_stats();
    if (leg->stopped)
        return;
    leg->began = clock_ns();
    leg->counting = leg->began;
    leg->idle_then = loop->halted_ns + loop->polled_ns;
    leg->spin_then = loop->polled_ns;
    leg->running = true;
    if (leg->spec->omit != 0)
        sys_timeout(leg->spec->omit * 1000, on_omitted, leg);
    pump(leg);
}

static void note_load(const struct leg *leg)
{
    const struct loop_stats *loop = net_loop_stats();
    if (!leg->running)
        return;
    leg->line->window_ns = clock_ns() - leg->began;
    leg->line->idle_ns = loop->halted_ns + loop->polled_ns - leg->idle_then;
    leg->line->spin_ns = loop->polled_ns - leg->spin_then;
}

static void note_outcome(const struct stream *s)
{
    if (!s->numbered)
        return;
    s->leg->record->outcome[s->index] = (struct i3_outcome){
        .bytes = s->bytes - s->omitted,
        .packets = s->packets,
        .errors = s->errors,
        .omitted_packets = s->omitted_packets,
        .omitted_errors = s->omitted_errors,
        .jitter_ns = s->jitter / 16,
        .time_us = (clock_ns() - s->leg->counting) / 1000,
        .sender = s->sender,
    };
}

static void take_off_list(struct leg *leg)
{
    struct leg **at = &first;
    while (*at != leg)
        at = &(*at)->next;
    *at = leg->next;
}

void i3_leg_stop(struct leg *leg)
{
    struct i3_record *record = leg->record;
    if (leg->stopped)
        return;
    note_load(leg);
    forget_wake(leg);
    sys_untimeout(on_omitted, leg);
    take_off_list(leg);
    leg->stopped = true;
    for (struct stream *s = leg->streams; s != NULL; s = s->next) {
        note_outcome(s);
        if (leg->spec->udp)
            i3_udp_stop(s);
        else
            i3_tcp_stop(s);
    }
    leg->record = NULL; /* from here on the record may go at any time */
    leg->spec = NULL;
    leg->line = NULL;
    i3_post(record->control, I3_FINAL, record, 0, 0);
}

static void free_when_idle(struct leg *leg)
{
    if (leg->turn)
        return; /* its message still names the leg */
    free(leg);
    legs--;
}

void i3_leg_release(struct leg *leg)
{
    while (leg->streams != NULL) {
        struct stream *s = leg->streams;
        leg->streams = s->next;
        i3_tcp_release(s);
        free(s);
    }
    leg->released = true;
    free_when_idle(leg);
}

void i3_leg_turn(struct leg *leg)
{
    leg->turn = false;
    if (leg->released)
        free_when_idle(leg);
    else if (!leg->stopped)
        pump(leg);
}

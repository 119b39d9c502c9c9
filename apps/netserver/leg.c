/* A core's part of a test: its data socket, its counts, how busy the core is meanwhile. */
#include <stdlib.h>
#include "apps/netserver/netserver.h"
#include "kernel/clock.h"
#include "kernel/core.h"
#include "kernel/memory.h"
#include "net/loop.h"

static unsigned legs;

unsigned np_legs(void)
{
    return legs;
}

void np_leg_open(struct np_record *record)
{
    struct leg *leg = heap_low() ? NULL : calloc(1, sizeof *leg);
    uint32_t error = NP_ENOBUFS;
    if (leg != NULL) {
        leg->record = record;
        leg->spec = &record->spec;
        leg->counts = &record->counts[core_number()];
        error = record->spec.udp ? leg_udp_open(leg) : leg_tcp_open(leg);
    }
    if (error != 0) {
        free(leg);
        leg = NULL;
    }
    legs += leg != NULL;
    np_post(record->control, NP_OPENED, record, (uint64_t)(uintptr_t)leg, error);
}

void np_leg_begin(struct leg *leg)
{
    const struct np_spec *spec = leg->spec;
    const struct loop_stats *loop = net_loop_stats();
    if (leg->stopped)
        return;
    leg->since = clock_ns();
    leg->idle_then = loop->halted_ns + loop->polled_ns;
    leg->spin_then = loop->polled_ns;
    leg->watched = true;
    if (spec->udp && spec->tx && !spec->rx && leg->record->control == core_number()) {
        leg_began(leg);
        leg_want_turn(leg);
    }
}

static void note_load(const struct leg *leg)
{
    const struct loop_stats *loop = net_loop_stats();
    if (!leg->watched)
        return;
    leg->counts->window_ns = clock_ns() - leg->since;
    leg->counts->idle_ns = loop->halted_ns + loop->polled_ns - leg->idle_then;
    leg->counts->spin_ns = loop->polled_ns - leg->spin_then;
}

void np_leg_refuse(struct leg *leg)
{
    leg_tcp_release(leg);
    if (!leg->stopped)
        *leg->counts = (struct np_counts){ 0 };
}

void np_leg_stop(struct leg *leg)
{
    if (leg->stopped)
        return;
    note_load(leg);
    if (leg->spec->udp)
        leg_udp_stop(leg);
    leg->stopped = true;
    leg_tcp_stop(leg);
    struct np_record *record = leg->record;
    leg->record = NULL; /* from here on the record may go at any time */
    leg->spec = NULL;
    leg->counts = NULL;
    np_post(record->control, NP_FINAL, record, 0, 0);
}

static void free_when_idle(struct leg *leg)
{
    if (leg->turn)
        return; /* its message still names the leg */
    free(leg);
    legs--;
}

/* The UDP port stays open until now: a client that still sends must not be told that it is closed. */
void np_leg_release(struct leg *leg)
{
    if (leg->udp != NULL)
        udp_remove(leg->udp);
    leg->udp = NULL;
    leg_tcp_release(leg);
    leg->done = true;
    leg->released = true;
    free_when_idle(leg);
}

void np_leg_turn(struct leg *leg)
{
    leg->turn = false;
    if (leg->released)
        free_when_idle(leg);
    else if (leg->udp != NULL)
        leg_udp_turn(leg);
    else
        leg_tcp_turn(leg);
}

void leg_want_turn(struct leg *leg)
{
    if (leg->turn)
        return;
    leg->turn = true;
    np_post(core_number(), NP_TURN, leg, 0, 0);
}

void leg_began(struct leg *leg)
{
    if (leg->began || leg->stopped)
        return;
    leg->began = true;
    np_post(leg->record->control, NP_BEGAN, leg->record, clock_ns(), 0);
}

void leg_done(struct leg *leg)
{
    if (leg->done || leg->stopped)
        return;
    leg->done = true;
    np_post(leg->record->control, NP_DONE, leg->record, clock_ns(), 0);
}

bool leg_reached(const struct leg *leg, uint64_t own)
{
    const struct np_record *record = leg->record;
    if (record->spec.test_length >= 0)
        return false;
    /* Connections of one client come to all cores in turn. Each transaction follows from the one before, by way of the
     * client, so the last one's core sees what the others have counted. */
    if (record->spec.conn && record->spec.rx == record->spec.tx) {
        own = 0;
        for (unsigned i = 0; i < record->cores; i++)
            own += __atomic_load_n(&record->counts[i].transactions, __ATOMIC_RELAXED);
    }
    return np_count_reached(&record->spec, own);
}

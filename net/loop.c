/* The core's loop. Everything runs to completion here: no threads, no locks; interrupts only end a sleep. */
#include <stdbool.h>
#include <stdio.h>
#include "kernel/acpi.h"
#include "kernel/apic.h"
#include "kernel/bootline.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/recover.h"
#include "kernel/traps.h"
#include "kernel/x86.h"
#include "lwip/timeouts.h"
#include "net/acks.h"
#include "net/hooks.h"
#include "net/loop.h"
#include "net/netif.h"
#include "net/steer.h"

#define RECEIVE_BUDGET  64u
#define SLEEP_MAX_MS    4000u    /* the timer's reach; nothing in lwIP waits longer without looking */
#define POLL_AUTO_NS    200000u  /* poll=auto looks at most so long: a longer wait costs a halt's latency no more */
#define NO_INTERRUPT_NS 1000000u /* how long to sleep at a time on a device that cannot interrupt */
#define CONFIG_LOOK_NS                                                                                                 \
    100000000u /* with a shared vector any interrupt may mean the configuration: look this seldom                      \
                */

static struct loop_stats stats;

const struct loop_stats *net_loop_stats(void)
{
    return &stats;
}

/* The one-shot timer is left armed when it will fire early enough: a needless interrupt now and then is cheaper than an
 * access to the APIC at each sleep. */
static uint64_t timer_at;

static void arm_timer(uint64_t now, uint64_t wait_ns)
{
    uint64_t want = now + wait_ns;
    if (lapic_timer_is_armed() && timer_at <= want)
        return;
    timer_at = want;
    lapic_timer_arm(wait_ns);
}

static bool pending(const struct virtnet_pair *pair)
{
    return virtqueue_pending(&pair->rx) || steer_pending();
}

/* ---- looking before sleeping ---- */

/* poll=auto: of 256 waits for work of late (the last ones count most), how many ended within POLL_AUTO_NS. */
static unsigned short_waits;

static void learn(bool was_short)
{
    short_waits += was_short ? (256 - short_waits) / 8 : 0u - short_waits / 8;
}

/* How long to look before sleeping, ns: as the boot line says; "auto" looks while more than half of the waits are
 * short, and not at all otherwise. So a session of requests and responses takes no interrupt, and an idle core looks in
 * vain five times and then halts at once. */
static uint64_t poll_time(uint32_t poll_us)
{
    if (poll_us != POLL_AUTO)
        return (uint64_t)poll_us * 1000;
    return short_waits > 128 ? POLL_AUTO_NS : 0;
}

/* Looks for work for at most `ns`; true if there is some. `let_in`: interrupts are let in meanwhile. */
static bool poll(struct virtnet_pair *pair, uint64_t ns, bool let_in)
{
    uint64_t from = clock_ns(), now = from;
    bool found;
    while (!(found = pending(pair)) && now - from < ns) {
        if (let_in)
            cpu_poll_interrupts();
        cpu_relax();
        now = clock_ns();
    }
    stats.polled_ns += now - from;
    learn(found);
    return found;
}

/* ---- sleeping ---- */

static uint64_t interrupts_of(const struct virtnet_pair *pair)
{
    return pair->rx_stats.interrupts + pair->tx_stats.interrupts;
}

/* The last halt, until the turn after it has shown what came of it. */
static struct {
    uint64_t ns;         /* 0: there was none */
    uint64_t interrupts; /* of the queues, before it */
} halted;

static void halt(const struct virtnet_pair *pair, uint64_t wait_ns)
{
    uint64_t from = clock_ns();
    halted.interrupts = interrupts_of(pair);
    arm_timer(from, wait_ns);
    cpu_halt();
    halted.ns = net_clock() - from;
    stats.sleeps++;
    stats.halted_ns += halted.ns;
}

static void judge_halt(const struct virtnet_pair *pair, bool work, bool adapt)
{
    if (adapt)
        learn(work && halted.ns < POLL_AUTO_NS);
    if (!work)
        stats.spurious += interrupts_of(pair) != halted.interrupts;
    halted.ns = 0;
}

static void rest(struct netif *netif, struct virtnet_pair *pair, uint64_t limit_ns, uint16_t rx_after)
{
    uint32_t ms = sys_timeouts_sleeptime();
    uint64_t wait = (uint64_t)(ms < SLEEP_MAX_MS ? ms : SLEEP_MAX_MS) * 1000000;
    if (limit_ns < wait)
        wait = limit_ns;
    if (wait == 0) {
        net_clock();
        return;
    }
    /* In this order: where another core takes our device's interrupts, it wakes us only if it sees that we are about to
     * halt; so we say that first, then ask for interrupts, then look. */
    if (steer_sleep() && virtnet_sleep(pair, net_netif_waiting(netif), rx_after) && !acpi_power_button())
        halt(pair, wait);
    else
        net_clock();
    steer_awake();
    virtnet_awake(pair);
}

static void check_status(struct virtnet *dev)
{
    uint8_t status;
    char why[80];
    if (!virtnet_needs_reset(dev, &status))
        return;
    snprintf(why, sizeof why, "device_status is 0x%x: DEVICE_NEEDS_RESET", status);
    recover_ask(why);
}

/* A broken ring carries nothing any more. */
static void look_for_faults(struct virtnet_pair *pair)
{
    if ((pair->rx.fault.kind | pair->tx.fault.kind) == VIRTQ_FAULT_NONE) /* a broken one has a fault, too */
        return;
    virtnet_report_faults(pair);
    if (pair->rx.broken || pair->tx.broken)
        recover_ask("a queue is broken");
}

/* Looks at the configuration when an interrupt said it changed. Returns how soon it must look again, in ns. */
static uint64_t check_config(struct netif *netif, struct virtnet *dev)
{
    static uint64_t looked;
    if (!dev->config_changed) /* only core 0 gets that interrupt */
        return UINT64_MAX;
    uint64_t since = clock_ns() - looked;
    if (dev->interrupts == VIRTNET_ONE && since < CONFIG_LOOK_NS)
        return CONFIG_LOOK_NS - since;
    looked += since;
    dev->config_changed = false;
    check_status(dev);
    net_netif_check_link(netif);
    return UINT64_MAX;
}

/* Twice a second, on lwIP's clock: it is nothing that each turn should pay for. */
static void watch(void *pair)
{
    virtnet_watch(pair, net_time());
    sys_timeout(VIRTNET_WATCH_NS / 1000000, watch, pair);
}

void net_loop(struct netif *netif, struct virtnet *dev, uint32_t poll_us)
{
    struct virtnet_pair *pair = &dev->pair;
    /* Core 0 may get the interrupts of all queues: then it lets them in even while it is busy, for the others' sake. */
    bool for_others = core_number() == 0 && dev->pairs > 1 && dev->interrupts > VIRTNET_PER_PAIR;
    net_clock();
    watch(pair);
    while (!acpi_power_button()) {
        stats.turns++;
        recover_turn();
        if (for_others)
            cpu_poll_interrupts();
        /* First what has been sent: lwIP does not send a segment again while a descriptor holds its buffer. */
        unsigned work = net_netif_reclaim(netif);
        work += net_netif_receive(netif, RECEIVE_BUDGET);
        work += steer_receive(RECEIVE_BUDGET);
        stats.frames += work;
        stats.batches += work > 0;
        if (halted.ns != 0)
            judge_halt(pair, work > 0, poll_us == POLL_AUTO);
        sys_check_timeouts();
        struct acks_rest doze = { UINT64_MAX, 1 };
        if (__builtin_expect(acks_busy(), 0))
            doze = acks_turn(pair->rx_stats.packets, net_time());
        steer_flush();
        net_netif_flush(netif);
        virtnet_flush(pair);
        if (virtqueue_pending(&pair->rx)) { /* for the rest rest() looks */
            net_clock();
            continue;
        }
        uint64_t limit = check_config(netif, dev), look = poll_time(poll_us);
        if (__builtin_expect(doze.ns < limit, 0)) {
            limit = doze.ns;
            look = doze.rx_after > 1 ? 0 : look < limit ? look : limit;
        }
        if (dev->interrupts == VIRTNET_POLLED && limit > NO_INTERRUPT_NS)
            limit = NO_INTERRUPT_NS;
        look_for_faults(pair);
        if (look > 0 && poll(pair, look, for_others))
            net_clock();
        else
            rest(netif, pair, limit, doze.rx_after);
    }
}

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
#include "net/loop.h"
#include "net/netif.h"
#include "net/steer.h"

#define RECEIVE_BUDGET   64u
#define SLEEP_MAX_MS     4000u    /* the timer's reach; nothing in lwIP waits longer without looking */
#define POLL_AUTO_MAX_NS 20000u   /* looking longer than an interrupt and its exits cost never pays */
#define NO_INTERRUPT_NS  1000000u /* how long to sleep at a time on a device that cannot interrupt */
#define CONFIG_LOOK_NS                                                                                                 \
    100000000u /* with a shared vector any interrupt may mean the configuration: look this seldom                      \
                */

static struct loop_stats stats;
static uint64_t last_sleep = UINT64_MAX; /* ns; how long the last sleep was */

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

/* Looks for work for at most `ns`; true if there is some. */
static bool poll(struct virtnet_pair *pair, uint64_t ns)
{
    uint64_t from = clock_ns(), now = from;
    bool found;
    while (!(found = virtqueue_pending(&pair->rx) || steer_pending()) && now - from < ns) {
        cpu_relax();
        now = clock_ns();
    }
    stats.polled_ns += now - from;
    return found;
}

/* How long to look before sleeping: as the boot line says; "auto" looks for as long as sleeps have been short of late.
 */
static uint64_t poll_time(uint32_t poll_us)
{
    static uint64_t window;
    if (poll_us != POLL_AUTO)
        return (uint64_t)poll_us * 1000;
    if (last_sleep < POLL_AUTO_MAX_NS)
        window = POLL_AUTO_MAX_NS;
    else
        window /= 2;
    return window;
}

static uint64_t interrupts_of(const struct virtnet_pair *pair)
{
    return pair->rx_stats.interrupts + pair->tx_stats.interrupts;
}

static void halt(const struct virtnet_pair *pair)
{
    uint64_t before = interrupts_of(pair);
    cpu_halt();
    stats.sleeps++;
    if (interrupts_of(pair) != before && !virtqueue_pending(&pair->rx) && !virtqueue_pending(&pair->tx))
        stats.spurious++;
}

static void rest(struct netif *netif, struct virtnet_pair *pair, uint64_t limit_ns)
{
    uint64_t now = clock_ns();
    uint32_t ms = sys_timeouts_sleeptime();
    uint64_t wait = (uint64_t)(ms < SLEEP_MAX_MS ? ms : SLEEP_MAX_MS) * 1000000;
    if (limit_ns < wait)
        wait = limit_ns;
    if (wait == 0)
        return;
    if (virtnet_watch(pair, now))
        arm_timer(now, VIRTNET_WATCH_NS);
    /* In this order: where another core takes our device's interrupts, it wakes us only if it sees that we are about to
     * halt; so we say that first, then ask for interrupts, then look. */
    bool quiet = steer_sleep();
    quiet = virtnet_sleep(pair, net_netif_waiting(netif)) && quiet;
    if (quiet && !acpi_power_button()) {
        arm_timer(now, wait);
        halt(pair);
        last_sleep = clock_ns() - now;
        stats.halted_ns += last_sleep;
    }
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

void net_loop(struct netif *netif, struct virtnet *dev, uint32_t poll_us)
{
    struct virtnet_pair *pair = &dev->pair;
    /* Core 0 may get the interrupts of all queues: then it lets them in even while it is busy, for the others' sake. */
    bool for_others = core_number() == 0 && dev->pairs > 1 && dev->interrupts > VIRTNET_PER_PAIR;
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
        sys_check_timeouts();
        steer_flush();
        virtnet_flush(pair);
        if (work > 0)
            continue;
        uint64_t limit = check_config(netif, dev);
        if (dev->interrupts == VIRTNET_POLLED && limit > NO_INTERRUPT_NS)
            limit = NO_INTERRUPT_NS;
        look_for_faults(pair);
        if (!poll(pair, poll_time(poll_us)))
            rest(netif, pair, limit);
    }
}

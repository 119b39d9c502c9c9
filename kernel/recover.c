#include "kernel/recover.h"
#include "kernel/core.h"
#include "kernel/public.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/panic.h"
#include "kernel/smp.h"
#include "kernel/trace.h"
#include "kernel/traps.h"
#include "net/netif.h"
#include "net/steer.h"

/* With what the rings had in them, which may say why. */
#define give_up(...) (trace_drain(), panic(__VA_ARGS__))
#define REST_NS      1000000000u /* a device that breaks again and again is reset this seldom */

static struct netif *interface;
static struct virtnet *device;
static struct recover_stats stats;
struct recover_watch recover_watch;

static struct public_area *area(void)
{
    return core_shared()->public_area;
}

static struct public_core *face(void)
{
    return &area()->core[core_number()];
}

const struct recover_stats *recover_stats(void)
{
    return &stats;
}

void recover_init(struct netif *netif, struct virtnet *net)
{
    interface = netif;
    device = net;
    recover_watch = core_number() == 0 ? (struct recover_watch){ &area()->reset_wanted, 0 }
                                       : (struct recover_watch){ &area()->phase, PHASE_RUN };
}

void recover_ask(const char *why)
{
    if (__atomic_exchange_n(&area()->reset_wanted, 1, __ATOMIC_SEQ_CST) != 0)
        return;
    log_error("virtio", "%s: the device will be reset", why);
    if (core_number() != 0)
        core_wake(core_shared(), 0);
}

static void wake_others(void)
{
    for (unsigned i = 1; i < area()->pairs; i++)
        core_wake(core_shared(), i);
}

static void set_phase(uint32_t phase)
{
    __atomic_store_n(&area()->phase, phase, __ATOMIC_SEQ_CST);
    wake_others();
}

static void set_state(uint32_t state)
{
    __atomic_store_n(&face()->state, state, __ATOMIC_SEQ_CST);
}

/* Waits until all others have left state `from`. A core never works for so long without looking; one that does not come
 * may still use its rings, and then the device cannot be reset under it. */
static void wait_for_others(uint32_t from, const char *what)
{
    for (unsigned i = 1; i < area()->pairs; i++)
        if (smp_wait(core_shared(), i, from) == from)
            give_up("recovery: core %u does not %s", i, what);
}

/* Halted while the phase is `phase`. Interrupts are off between the look and the halt: the wake-up that follows a
 * change is pending then, and ends the halt. */
static void wait_phase(uint32_t phase)
{
    while (__atomic_load_n(&area()->phase, __ATOMIC_ACQUIRE) == phase)
        cpu_halt();
}

static void clear(void)
{
    net_netif_forget(interface);
    virtnet_relay(device);
}

static void lead(void)
{
    static uint64_t last;
    struct virtnet_peer peer[VIRTNET_MAX_PAIRS];
    struct virtio_error error;
    uint64_t begin = clock_ns();
    uint16_t pairs = (uint16_t)area()->pairs;
    if (last != 0 && begin - last < REST_NS)
        return; /* later: the loop comes back here in each turn */
    set_phase(PHASE_STOP);
    wait_for_others(CORE_READY, "stop");
    trace_keep();
    if (!virtnet_reset(device, &error))
        give_up("recovery: %s", error.text);
    set_phase(PHASE_CLEAR);
    clear();
    wait_for_others(CORE_STOPPED, "clear its rings");
    for (uint16_t i = 0; i < pairs; i++)
        peer[i] = (struct virtnet_peer){ area()->core[i].pair, core_shared()->core[i].apic_id };
    if (!virtnet_start(device, peer, pairs, steer_key(), steer_table(), &error))
        give_up("recovery: %s", error.text);
    if (device->pairs < pairs)
        give_up("recovery: the device now has %u queue pairs, it had %u", device->pairs, pairs);
    __atomic_store_n(&area()->reset_wanted, 0, __ATOMIC_SEQ_CST);
    set_phase(PHASE_RUN);
    device->config_changed = true; /* the link may be another */
    last = clock_ns();
    stats.resets++;
    stats.ns_down += last - begin;
    log_warn("virtio", "the device was reset and runs again after %llu us", (unsigned long long)(last - begin) / 1000);
}

static void follow(void)
{
    set_state(CORE_STOPPED);
    wait_phase(PHASE_STOP);
    clear();
    set_state(CORE_READY);
    wait_phase(PHASE_CLEAR);
}

void recover_now(void)
{
    if (core_number() == 0)
        lead();
    else
        follow();
}

/* Where a core's copy of the program starts, and the order in which everything comes up. */
#include <stdio.h>
#include <string.h>
#include "apps/app.h"
#include "apps/conform/conform.h"
#include "drivers/virtio/net.h"
#include "kernel/acpi.h"
#include "kernel/apic.h"
#include "kernel/bootline.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/memory.h"
#include "kernel/paging.h"
#include "kernel/panic.h"
#include "kernel/pci_host.h"
#include "kernel/public.h"
#include "kernel/recover.h"
#include "kernel/random.h"
#include "kernel/shared.h"
#include "kernel/smp.h"
#include "kernel/trace.h"
#include "kernel/traps.h"
#include "kernel/x86.h"
#include "lwip/init.h"
#include "net/address.h"
#include "net/counters.h"
#include "net/hooks.h"
#include "net/loop.h"
#include "net/netif.h"
#include "net/pcb_hash.h"
#include "net/steer.h"

#define PCI_VENDOR_VIRTIO  0x1af4
#define PCI_VIRTIO_NET     0x1041 /* 0x1040 + device type 1 (virtio 1.3, 4.1.2) */
#define PCI_VIRTIO_NET_OLD 0x1000 /* transitional */

void core_main(unsigned id, struct shared *all);

static const struct shared *shared;
static unsigned number;
static const struct app *layer2; /* the application that takes all frames; NULL: lwIP does */
static struct virtnet device;

const struct shared *core_shared(void)
{
    return shared;
}

unsigned core_number(void)
{
    return number;
}

const struct world *core_world(void)
{
    return number == 0 ? &shared->world0 : &shared->core[number].world;
}

static void unknown_word(void *context, const char *sentence)
{
    (void)context;
    log_warn("boot", "%s", sentence);
}

static bool app_known(void *context, const char *name)
{
    (void)context;
    return app_exists(name);
}

static void choose_apps(void)
{
    const char *problem;
    if (!apps_choose(&shared->boot, &layer2, &problem))
        panic("%s", problem);
}

static void read_boot_line(struct shared *all)
{
    struct bootline_env env = { .unknown = unknown_word, .app_known = app_known, .app_names = app_names() };
    struct bootline_error error;
    if (!bootline_parse(all->cmdline, &all->boot, &env, &error))
        panic("%s", error.text);
    console_level(all->boot.log);
    choose_apps();
    if (all->boot.conform && conform_problem(all->boot.conform_area) != NULL)
        panic("%s", conform_problem(all->boot.conform_area));
}

static void say_hello(void)
{
    static const char *const protocols[] = { "?", "PVH", "multiboot1", "multiboot2" };
    const struct acpi *acpi = acpi_tables();
    log_info("boot", "ringside, started by %s; memory %llu MiB; %u core%s in the machine",
             protocols[shared->protocol & 3], (unsigned long long)(phys_total() >> 20), acpi->core_count,
             acpi->core_count == 1 ? "" : "s");
    log_info("boot", "clock: %s, TSC %llu kHz; %s", clock_source(), (unsigned long long)clock_tsc_khz(),
             lapic_is_x2apic() ? "x2apic" : "xapic");
    log_debug("boot", "boot line: %s", shared->cmdline);
    log_debug("boot", "world 0 at %llx..%llx, entry %llx", (unsigned long long)shared->world0.at.start,
              (unsigned long long)shared->world0.at.end, (unsigned long long)shared->world0.entry);
}

/* ---- the network device ---- */

static bool is_virtio_net(const struct pci_device *dev)
{
    return dev->vendor == PCI_VENDOR_VIRTIO && (dev->device == PCI_VIRTIO_NET || dev->device == PCI_VIRTIO_NET_OLD);
}

static bool take_first(void *context, const struct pci_device *dev)
{
    if (!is_virtio_net(dev))
        return true;
    *(struct pci_device *)context = *dev;
    return false;
}

static bool list_device(void *context, const struct pci_device *dev)
{
    (void)context;
    log_error("pci", "%02x:%02x.%x %04x:%04x class %06x", dev->bdf >> 8, dev->bdf >> 3 & 31, dev->bdf & 7, dev->vendor,
              dev->device, dev->class_code);
    return true;
}

static void find_device(struct pci_device *found)
{
    found->vendor = 0;
    pci_walk(pci_host(), take_first, found);
    if (found->vendor != 0)
        return;
    log_error("pci", "no virtio-net device; by %s there is:", pci_host_name());
    pci_walk(pci_host(), list_device, NULL);
    panic("no virtio-net device on PCI (1af4:1041 or 1af4:1000)");
}

static _Noreturn void device_panic(const struct pci_device *pci, const struct virtio_error *error)
{
    panic("virtio-net at pci %02x:%02x.%x: %s", pci->bdf >> 8, pci->bdf >> 3 & 31, pci->bdf & 7, error->text);
}

/* Finds and negotiates the device, leaving out the features `without`. */
static void open_device(const struct shared *all, uint64_t without)
{
    struct pci_device found;
    struct virtio_error error;
    struct feature_request request = { all->boot.features_off | without, all->boot.features_required };
    uint16_t want =
        all->boot.queues != 0 && all->boot.queues < VIRTNET_MAX_PAIRS ? (uint16_t)all->boot.queues : VIRTNET_MAX_PAIRS;
    find_device(&found);
    if (all->boot.conform)
        conform_run(&all->boot, &found);
    if (!virtnet_probe(&device, &found, &request, (uint16_t)all->boot.ring, want, &error))
        device_panic(&found, &error);
    device.tx_next = all->boot.tx_next;
    device.trace = all->boot.trace;
    device.on_shared_interrupt = steer_wake_all;
}

static void say_device(void)
{
    const struct pci_device *pci = &device.pci;
    char features[256];
    features_format(device.features, features, sizeof features);
    log_info("virtio", "net at pci %02x:%02x.%x (%04x:%04x, %s), %s, %s; rings %u/%u, mtu %u", pci->bdf >> 8,
             pci->bdf >> 3 & 31, pci->bdf & 7, pci->vendor, pci->device, pci_host_name(), device.transport.ops->name,
             virtnet_interrupts_name(&device), device.pair.rx.size, device.pair.tx.size, device.mtu);
    log_info("virtio", "queue pairs: %u in use, the device has %u; steering: %s", device.pairs, device.max_pairs,
             device.rss_on      ? "rss"
             : device.pairs > 1 ? "automatic"
                                : "none needed");
    log_info("virtio", "features %s", features);
    if (!device.transport.ops->queue_size_free && shared->boot.ring != 0)
        log_warn("virtio", "ring=%u has no effect: this device's rings have a fixed size", shared->boot.ring);
}

/* ---- start ---- */

/* What every core does with its own copy: its stack over its own queue pair, its servers. */
static struct netif *start_net(struct virtio_error *error)
{
    if (!virtnet_layout(&device, (uint16_t)core_number(), error))
        return NULL;
    pcb_hash_init();
    net_clock();
    lwip_init();
    struct netif *netif = net_netif_add(&device.pair);
    if (netif == NULL) {
        snprintf(error->text, sizeof error->text, "no memory for the network interface");
        return NULL;
    }
    counters_publish(&device, netif);
    apps_start_all(&shared->boot);
    return netif;
}

static void start_kernel(struct shared *all)
{
    phys_init(all);
    paging_init(all);
    bool acpi = acpi_init(all->rsdp);
    clock_init(all->boot_tsc);
    clock_share(&all->clock);
    read_boot_line(all);
    pic_init();
    all->lapic = acpi_tables()->lapic;
    if (paging_map_mmio(all->lapic, 4096) == NULL)
        panic("no memory for page tables");
    all->core[0].apic_id = lapic_init(all->lapic);
    all->clock.lapic_hz = lapic_timer_init(0);
    say_hello();
    if (!acpi)
        log_warn("boot", "no ACPI tables: one core, PCI by ports, no power-off");
    else if (!acpi_power_button_init())
        log_debug("boot", "no power button");
    log_debug("boot", "randomness: %s", random_init());
    all->public_area = phys_alloc(sizeof *all->public_area, CACHE_LINE);
    if (all->public_area == NULL)
        panic("no memory for the public area");
    memset(all->public_area, 0, sizeof *all->public_area);
    console_share(&all->public_area->console_lock);
}

/* How many cores are used: those of the machine, as far as the boot line and the device's queue pairs go. */
static unsigned plan_cores(struct shared *all)
{
    unsigned want = acpi_tables()->core_count;
    if (all->boot.cores != 0 && all->boot.cores < want)
        want = all->boot.cores;
    if (device.pairs < want)
        want = device.pairs;
    if (want < acpi_tables()->core_count)
        log_info("smp", "%u of %u cores used: %u queue pair%s%s", want, acpi_tables()->core_count, device.pairs,
                 device.pairs == 1 ? "" : "s", all->boot.cores != 0 ? ", and cores= of the boot line" : "");
    virtnet_plan(&device, (uint16_t)want);
    all->public_area->net = &device;
    return want;
}

/* Messages per ring: many for few cores, fewer for many, since the number of rings is the square of theirs. */
static uint32_t mailbox_slots(unsigned cores)
{
    uint32_t slots = 256;
    while (slots > 16 && slots * cores > 2048)
        slots /= 2;
    return slots;
}

/* Makes the mailboxes and starts the others. Returns how many cores run. */
static unsigned start_others(struct shared *all, unsigned want)
{
    uint32_t slots = mailbox_slots(want);
    void *mailboxes = phys_alloc(mailbox_bytes(want, slots), CACHE_LINE);
    if (mailboxes == NULL)
        panic("no memory for the mailboxes of %u cores", want);
    all->public_area->mailboxes = mailbox_system_init(mailboxes, want, slots);
    return smp_start(all, want);
}

/* A device that has not answered a command in time may still carry it out, and send to queues that nobody looks after.
 * So it is reset and driven without a control queue, by one pair. What it had of our memory stays lost. */
static void start_over(struct shared *all, const struct virtnet_peer *self)
{
    struct virtio_error error;
    log_warn("virtio", "the device is reset, and used without its control queue: one pair");
    open_device(all, FEATURE_BIT(VIRTIO_NET_F_CTRL_VQ) | (layer2 != NULL ? LAYER2_WITHOUT : 0));
    virtnet_plan(&device, 1);
    steer_plan(1);
    if (!virtnet_layout(&device, 0, &error) || !virtnet_start(&device, self, 1, steer_key(), steer_table(), &error))
        device_panic(&device.pci, &error);
}

/* Waits for the others' queues, tells the device of all of them, and lets it go. */
static void start_device(struct shared *all, unsigned running)
{
    static struct virtnet_peer peer[MAX_CORES];
    struct virtio_error error;
    unsigned pairs = 1;
    peer[0] = (struct virtnet_peer){ &device.pair, all->core[0].apic_id };
    while (pairs < running && smp_wait(all, pairs, CORE_STARTED) == CORE_READY) {
        peer[pairs] = (struct virtnet_peer){ all->public_area->core[pairs].pair, all->core[pairs].apic_id };
        pairs++;
    }
    if (pairs < running)
        log_warn("smp", "core %u is not ready: %u queue pairs are used", pairs, pairs);
    steer_plan(pairs);
    if (!virtnet_start(&device, peer, (uint16_t)pairs, steer_key(), steer_table(), &error))
        device_panic(&device.pci, &error);
    if (device.control_lost)
        start_over(all, &peer[0]);
    if (device.pairs < pairs)
        steer_plan(device.pairs);
    all->public_area->pairs = device.pairs;
}

/* Where the device steers, every core gets to know the others' pairs. */
static void meet_others(const struct shared *all)
{
    const struct virtnet_pair *other[MAX_CORES];
    uint16_t count = 0;
    for (unsigned i = 0; i < all->public_area->pairs; i++)
        if (i != number)
            other[count++] = all->public_area->core[i].pair;
    if (((const struct virtnet *)all->public_area->net)->rss_on)
        virtnet_meet(&device, other, count);
}

/* Core 0: finds out what there is, starts the others, starts the device, lets everybody run. */
static struct netif *first_core(struct shared *all)
{
    start_kernel(all);
    open_device(all, layer2 != NULL ? LAYER2_WITHOUT : 0);
    unsigned running = start_others(all, plan_cores(all));
    heap_init(all->core[0].heap);
    steer_init();
    struct virtio_error error;
    struct netif *netif = start_net(&error);
    if (netif == NULL)
        panic("%s", error.text);
    all->public_area->core[0].pair = &device.pair;
    start_device(all, running);
    meet_others(all);
    say_device();
    /* From here on the shared structure is read-only. The others reload their page tables when they are let go. */
    if (!paging_protect(all->loader_segment[all->loader_segment_count - 1].at, 4))
        panic("no memory for page tables");
    __atomic_store_n(&all->public_area->phase, PHASE_RUN, __ATOMIC_SEQ_CST);
    for (unsigned i = 1; i < running; i++)
        core_wake(all, i);
    return netif;
}

static _Noreturn void park(const char *why)
{
    log_info("smp", "parked: %s", why);
    for (;;)
        __asm__ volatile("cli; hlt");
}

/* Every other core: makes its stack and its queues, says so, and waits to be let go. */
static struct netif *further_core(void)
{
    const struct core_info *me = &shared->core[core_number()];
    struct public_core *face = &shared->public_area->core[core_number()];
    clock_adopt(&shared->clock, shared->boot_tsc);
    console_share(&shared->public_area->console_lock);
    console_level(shared->boot.log);
    heap_init(me->heap);
    lapic_init(shared->lapic);
    lapic_timer_init(shared->clock.lapic_hz);
    random_init();
    __atomic_store_n(&face->state, CORE_STARTED, __ATOMIC_RELEASE);
    virtnet_attach(&device, shared->public_area->net);
    steer_init();
    choose_apps();
    struct virtio_error error;
    struct netif *netif = start_net(&error);
    if (netif == NULL) {
        __atomic_store_n(&face->state, CORE_FAILED, __ATOMIC_RELEASE);
        park(error.text);
    }
    face->pair = &device.pair;
    __atomic_store_n(&face->state, CORE_READY, __ATOMIC_RELEASE);
    /* Halted, so that waiting cores take no time from those that still start. Interrupts are off between the look and
     * the halt: a wake-up that comes in between is pending and ends the halt. */
    while (__atomic_load_n(&shared->public_area->phase, __ATOMIC_ACQUIRE) != PHASE_RUN)
        cpu_halt();
    write_cr3(read_cr3());
    if (core_number() >= shared->public_area->pairs)
        park("there is no queue pair for this core");
    steer_plan(shared->public_area->pairs);
    meet_others(shared);
    return netif;
}

/* What the application without a stack did, on all cores: nobody can ask it by HTTP. */
static void say_frames(void)
{
    uint64_t in = 0, out = 0, in_bytes = 0, out_bytes = 0, dropped = 0;
    for (unsigned i = 0; i < device.pairs; i++) {
        const struct virtnet_pair *pair = shared->public_area->core[i].pair;
        in += pair->rx_stats.packets;
        in_bytes += pair->rx_stats.bytes;
        out += pair->tx_stats.packets;
        out_bytes += pair->tx_stats.bytes;
        dropped += pair->tx_stats.no_room;
    }
    log_info(layer2->name,
             "received %llu frames, %llu bytes; sent %llu frames, %llu bytes; %llu dropped, the ring was full",
             (unsigned long long)in, (unsigned long long)in_bytes, (unsigned long long)out,
             (unsigned long long)out_bytes, (unsigned long long)dropped);
}

/* A core's copy of the program enters here, on its own stack, with the loader's page tables (core 0) or the program's.
 */
void core_main(unsigned id, struct shared *all)
{
    shared = all;
    number = id;
    const struct world *world = core_world();
    console_init(id);
    panic_init(all, world);
    traps_init(world);
    struct netif *netif = id == 0 ? first_core(all) : further_core();
    steer_start(netif);
    recover_init(netif, &device);
    if (id == 0)
        net_netif_check_link(netif);
    if (layer2 != NULL)
        net_netif_layer2(netif, layer2->layer2, device.pairs);
    net_address_start(netif, &device, layer2 != NULL ? NULL : &shared->boot);
    net_loop(netif, &device, shared->boot.poll_us);
    trace_drain();
    if (layer2 != NULL)
        say_frames();
    log_info("boot", "asked to end");
    machine_exit(EXIT_WELL);
}

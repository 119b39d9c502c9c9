/* Where a core's copy of the program starts, and the order in which everything comes up. */
#include <string.h>
#include "apps/app.h"
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
#include "kernel/random.h"
#include "kernel/shared.h"
#include "kernel/traps.h"
#include "lwip/init.h"
#include "net/address.h"
#include "net/loop.h"
#include "net/netif.h"

#define PCI_VENDOR_VIRTIO  0x1af4
#define PCI_VIRTIO_NET     0x1041 /* 0x1040 + device type 1 (virtio 1.3, 4.1.2) */
#define PCI_VIRTIO_NET_OLD 0x1000 /* transitional */

void core_main(unsigned id, struct shared *shared);

static const struct shared *shared_by_all;
static struct bootline boot;
static struct virtnet device;

const struct shared *core_shared(void)
{
    return shared_by_all;
}

const struct world *core_world(void)
{
    return &shared_by_all->world0;
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

static void read_boot_line(const struct shared *shared)
{
    struct bootline_env env = { .unknown = unknown_word, .app_known = app_known, .app_names = app_names() };
    struct bootline_error error;
    if (!bootline_parse(shared->cmdline, &boot, &env, &error))
        panic("%s", error.text);
    console_level(boot.log);
    if (boot.conform)
        panic("bad value conform: the backend checks are not in this version; valid is a boot line without it");
}

static void say_hello(const struct shared *shared)
{
    static const char *const protocols[] = { "?", "PVH", "multiboot1", "multiboot2" };
    const struct acpi *acpi = acpi_tables();
    log_info("boot", "ringside, started by %s; memory %llu MiB; %u core%s in the machine, 1 used",
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

static void open_device(void)
{
    struct pci_device found;
    struct virtio_error error;
    struct feature_request request = { boot.features_off, boot.features_required };
    find_device(&found);
    if (!virtnet_init(&device, &found, &request, (uint16_t)boot.ring, &error))
        panic("virtio-net at pci %02x:%02x.%x: %s", found.bdf >> 8, found.bdf >> 3 & 31, found.bdf & 7, error.text);
    char features[256];
    features_format(device.features, features, sizeof features);
    log_info("virtio", "net at pci %02x:%02x.%x (%04x:%04x, %s), %s, %s; rings %u/%u, mtu %u", found.bdf >> 8,
             found.bdf >> 3 & 31, found.bdf & 7, found.vendor, found.device, pci_host_name(),
             device.transport.ops->name, device.interrupts, device.pair.rx.size, device.pair.tx.size, device.mtu);
    log_info("virtio", "features %s", features);
    if (!device.transport.ops->queue_size_free && boot.ring != 0)
        log_warn("virtio", "ring=%u has no effect: this device's rings have a fixed size", boot.ring);
}

/* ---- applications ---- */

static bool wanted(const struct app *app)
{
    if (boot.app_count == 0)
        return app->by_default;
    for (unsigned i = 0; i < boot.app_count; i++)
        if (strcmp(boot.apps[i], app->name) == 0)
            return true;
    return false;
}

static void start_apps(void)
{
    for (const struct app *app = apps_start; app < apps_end; app++)
        if (wanted(app) && app->start())
            log_info("app", "%s on %s", app->name, app->ports);
}

/* ---- start ---- */

static void start_kernel(const struct shared *shared)
{
    phys_init(shared);
    paging_init(shared);
    bool acpi = acpi_init(shared->rsdp);
    clock_init(shared->boot_tsc);
    heap_init(phys_take_largest());
    read_boot_line(shared);
    lapic_init(acpi_tables()->lapic);
    lapic_timer_init();
    say_hello(shared);
    if (!acpi)
        log_warn("boot", "no ACPI tables: one core, PCI by ports, no power-off");
    else if (!acpi_power_button_init())
        log_debug("boot", "no power button");
    log_debug("boot", "randomness: %s", random_init());
}

/* A core's copy of the program enters here, on its own stack, with the loader's page tables. */
void core_main(unsigned id, struct shared *shared)
{
    shared_by_all = shared;
    console_init(id);
    panic_init(shared, &shared->world0);
    traps_init(&shared->world0);
    start_kernel(shared);
    open_device();
    lwip_init();
    struct netif *netif = net_netif_add(&device.pair);
    if (netif == NULL)
        panic("no memory for the network interface");
    net_netif_check_link(netif);
    start_apps();
    net_address_start(netif, &device, &boot);
    net_loop(netif, &device, boot.poll_us);
    log_info("boot", "asked to end");
    machine_exit(EXIT_WELL);
}

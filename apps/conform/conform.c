/* Runs the areas. See conform.h. */
#include <stdio.h>
#include <string.h>
#include "apps/conform/areas.h"
#include "apps/conform/conform.h"
#include "apps/conform/peer.h"
#include "apps/conform/rig.h"
#include "kernel/console.h"
#include "kernel/panic.h"

static const struct area *const areas[] = {
    &area_features, &area_reset,   &area_config,  &area_queues,   &area_ring,
    &area_events,   &area_receive, &area_control, &area_steering, &area_link,
};

#define AREAS (sizeof areas / sizeof *areas)

const char *conform_problem(const char *name)
{
    static char text[160];
    size_t at = (size_t)snprintf(text, sizeof text,
                                 "bad value conform=%s: valid is conform alone or conform= and one of", name);
    for (size_t i = 0; i < AREAS; i++) {
        if (name[0] == '\0' || strcmp(name, areas[i]->name) == 0)
            return NULL;
        if (at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s %s", i > 0 ? "," : "", areas[i]->name);
    }
    return text;
}

static void say_peer(void)
{
    static const char *const kind[] = { "none", "answers", "reflects frames" };
    if (peer.kind == PEER_ANSWERS)
        console_plain("# peer: %u.%u.%u.%u answers", peer.ip[0], peer.ip[1], peer.ip[2], peer.ip[3]);
    else
        console_plain("# peer: %s", kind[peer.kind]);
}

static void say_device(void)
{
    char text[600];
    int at = 0;
    console_plain("# device: %04x:%04x at pci %02x:%02x.%x, %s, %u vectors", rig.pci.vendor, rig.pci.device,
                  rig.pci.bdf >> 8, rig.pci.bdf >> 3 & 31, rig.pci.bdf & 7, rig.transport.ops->name, rig.msix.count);
    features_format(rig.offered, text, sizeof text);
    console_plain("# features offered: %s", text);
    console_plain("# queues: %u", rig.num_queues);
    for (uint16_t i = 0; i < rig.num_queues && i < 2 * RIG_MAX_PAIRS + 1; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%u", i > 0 ? "," : "",
                       rig.transport.ops->queue_size(&rig.transport, i));
    console_plain("# sizes: %s", at > 0 ? text : "none");
}

void conform_run(const struct bootline *boot, const struct pci_device *pci)
{
    rig.off = boot->features_off;
    if (!rig_open(pci))
        panic("virtio-net at pci %02x:%02x.%x: %s", pci->bdf >> 8, pci->bdf >> 3 & 31, pci->bdf & 7, rig.error.text);
    say_device();
    peer_find(boot);
    say_peer();
    tap_begin();
    for (size_t i = 0; i < AREAS; i++)
        for (unsigned k = 0; k < areas[i]->count; k++)
            if ((boot->conform_area[0] == '\0' || strcmp(boot->conform_area, areas[i]->name) == 0) &&
                tap_run(areas[i], &areas[i]->check[k], rig.offered & ~rig.off, peer.kind != PEER_NONE) == FAIL)
                rig_trace();
    rig_down();
    machine_exit(tap_end() != 0 ? EXIT_CONFORM : EXIT_WELL);
}

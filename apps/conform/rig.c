/* The bench's device: bring-up, vectors, the arena, waiting. See rig.h. */
#include <stdio.h>
#include <string.h>
#include "apps/conform/rig.h"
#include "drivers/virtio/recorder.h"
#include "kernel/apic.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/memory.h"
#include "kernel/traps.h"

#define ARENA        (8u << 20)
#define RING         256
#define CONTROL_RING 64
#define BUFFERS      32
#define BUFFER       2048
#define FIRST_VECTOR 0x50 /* of this core's interrupts: one per MSI-X entry in use */
#define ENTRIES      (1 + RIG_MAX_QUEUES)
#define TRACE_FIRST  4  /* lines of a queue that tell its state, */
#define TRACE_LAST   24 /* and those of its last operations that are shown */

struct rig rig;

static struct {
    char *base;
    size_t at;
} arena;
static volatile uint32_t interrupts[ENTRIES]; /* by MSI-X entry; with INTx 0: configuration, 1: queues */

void *rig_alloc(size_t size, size_t align)
{
    size_t start = (arena.at + align - 1) & ~(align - 1);
    if (start + size > ARENA)
        return NULL;
    arena.at = start + size;
    return memset(arena.base + start, 0, size);
}

uint32_t rig_memory_sum(void)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < arena.at / 4; i++)
        sum = sum * 31 + ((const volatile uint32_t *)arena.base)[i];
    return sum;
}

/* ---- waiting ---- */

struct rig_wait rig_for(unsigned ms)
{
    return (struct rig_wait){ clock_ns() + ms * 1000000ull, false };
}

bool rig_waiting(struct rig_wait *wait)
{
    if (wait->late)
        return false;
    wait->late = clock_ns() >= wait->until;
    cpu_relax();
    rig_look();
    return true;
}

void rig_look(void)
{
    cpu_poll_interrupts();
}

void rig_sleep(unsigned ms)
{
    for (struct rig_wait w = rig_for(ms); rig_waiting(&w);)
        ;
}

/* ---- interrupts ---- */

static void on_entry(void *argument)
{
    ++*(volatile uint32_t *)argument;
}

static void on_intx(void *argument)
{
    (void)argument;
    uint8_t isr = rig.transport.ops->isr(&rig.transport);
    interrupts[0] += isr >> 1 & 1;
    interrupts[1] += isr & 1;
}

/* What an 8259 says when a line has fallen before the interrupt was taken. */
static void on_nothing(void *argument)
{
    (void)argument;
}

uint32_t rig_interrupts(const struct rig_queue *q)
{
    return interrupts[q->entry];
}

uint32_t rig_config_interrupts(void)
{
    return interrupts[0];
}

/* Gives out the vectors: entry 0 the configuration's, then one for each queue as far as they go. */
static void set_vectors(const struct rig_options *o)
{
    unsigned queues = 2u * rig.pairs, entries = rig.msix.count < ENTRIES ? rig.msix.count : ENTRIES;
    rig.intx = o->intx || rig.msix.count == 0;
    rig.shared = rig.intx || entries < queues + 1;
    memset((void *)interrupts, 0, sizeof interrupts);
    if (rig.msix.count != 0)
        msix_enable(&rig.msix, !rig.intx);
    pci_command(&rig.pci, rig.intx ? 0 : PCI_COMMAND_INTX_DISABLE, rig.intx ? PCI_COMMAND_INTX_DISABLE : 0);
    for (unsigned q = 0; q < queues; q++)
        rig.queue[q].entry = (uint16_t)(rig.intx ? 1 : entries == 1 ? 0 : 1 + q % (entries - 1));
    if (rig.intx && rig.pci.irq_line <= 15) {
        irq_install(VECTOR_PIC + 7, on_nothing, NULL);
        irq_install(VECTOR_PIC + 15, on_nothing, NULL);
        irq_install((uint8_t)(VECTOR_PIC + rig.pci.irq_line), on_intx, NULL);
        pic_enable(rig.pci.irq_line);
    }
    for (unsigned i = 0; i < entries && !rig.intx; i++) {
        irq_install((uint8_t)(FIRST_VECTOR + i), on_entry, (void *)&interrupts[i]);
        msix_set(&rig.msix, (uint16_t)i, core_shared()->core[0].apic_id, (uint8_t)(FIRST_VECTOR + i));
    }
}

/* ---- features ---- */

static bool fail(const char *what, unsigned value)
{
    return virtio_fail(&rig.transport, &rig.error, "%s (%u)", what, value);
}

enum verdict rig_failed(void)
{
    return tap_fail("the device comes up", "%s", rig.error.text);
}

uint64_t rig_usable(void)
{
    static const uint8_t more[] = { VIRTIO_NET_F_CTRL_RX,       VIRTIO_NET_F_CTRL_VLAN,
                                    VIRTIO_NET_F_CTRL_RX_EXTRA, VIRTIO_NET_F_GUEST_ANNOUNCE,
                                    VIRTIO_NET_F_CTRL_MAC_ADDR, VIRTIO_NET_F_HOST_ECN,
                                    VIRTIO_NET_F_SPEED_DUPLEX,  VIRTIO_NET_F_CTRL_GUEST_OFFLOADS };
    size_t count;
    const struct feature *table = features_table(&count);
    uint64_t set = 0;
    for (size_t i = 0; i < count; i++)
        set |= table[i].implemented ? FEATURE_BIT(table[i].bit) : 0;
    for (size_t i = 0; i < sizeof more; i++)
        set |= FEATURE_BIT(more[i]);
    return features_closed(set & rig.offered & ~rig.off);
}

uint64_t rig_always(void)
{
    return rig.offered & (FEATURE_BIT(VIRTIO_F_VERSION_1) | FEATURE_BIT(VIRTIO_F_ACCESS_PLATFORM) |
                          FEATURE_BIT(VIRTIO_F_ORDER_PLATFORM));
}

bool rig_negotiate(uint64_t features)
{
    struct virtio_transport *t = &rig.transport;
    rig.up = false;
    if (!virtio_start(t, &rig.error))
        return false;
    t->ops->set_features(t, features);
    t->ops->set_status(t, t->ops->status(t) | VIRTIO_CONFIG_S_FEATURES_OK);
    uint8_t status = t->ops->status(t);
    if (status & VIRTIO_CONFIG_S_FEATURES_OK)
        return true;
    return virtio_fail(t, &rig.error, "device_status is 0x%x after FEATURES_OK with driver_feature 0x%llx", status,
                       (unsigned long long)features);
}

/* ---- bring-up ---- */

/* The largest power of two up to both. */
static uint16_t ring_size(uint16_t max, uint16_t want)
{
    uint16_t size = want < max ? want : max;
    while ((size & (size - 1)) != 0)
        size &= (uint16_t)(size - 1);
    return size;
}

static bool enable(struct virtqueue *vq, struct virtqueue_config *config, uint16_t vector)
{
    void *memory = rig_alloc(virtqueue_split_bytes(config->size, config->indirect_max), 4096);
    if (memory == NULL)
        return fail("a ring does not fit into the arena; size", config->size);
    if (virtqueue_split_init(vq, config, memory) != VIRTQ_OK)
        return fail("no usable queue; index", config->index);
    struct recorder *recorder = rig_alloc(sizeof *recorder, 64);
    if (recorder != NULL)
        recorder_attach(vq, recorder);
    const char *wrong = rig.transport.ops->queue_enable(&rig.transport, vq, vector);
    return wrong == NULL || fail(wrong, config->index);
}

static bool set_queues(const struct rig_options *o)
{
    bool event = rig_has(VIRTIO_RING_F_EVENT_IDX);
    uint16_t indirect = rig_has(VIRTIO_RING_F_INDIRECT_DESC) ? o->indirect : 0;
    for (uint16_t i = 0; i < 2 * rig.pairs; i++) {
        struct rig_queue *q = &rig.queue[i];
        q->max = rig.transport.ops->queue_size(&rig.transport, i);
        struct virtqueue_config config = { i, ring_size(q->max, o->ring != 0 ? o->ring : RING), event, indirect };
        if (!enable(&q->vq, &config, rig.intx || o->no_vectors ? VIRTIO_NO_VECTOR : q->entry))
            return false;
    }
    rig.control.open = false;
    if (!rig_has(VIRTIO_NET_F_CTRL_VQ))
        return true;
    bool many = rig_has(VIRTIO_NET_F_MQ) || rig_has(VIRTIO_NET_F_RSS); /* else its index is 2 (5.1.2) */
    uint16_t index = (uint16_t)(many ? 2 * rig.max_pairs : 2);
    uint16_t size = ring_size(rig.transport.ops->queue_size(&rig.transport, index), CONTROL_RING);
    struct virtqueue_config config = { index, size, event, 0 };
    void *memory = rig_alloc(control_bytes(), 64);
    if (memory == NULL || !enable(&rig.control.vq, &config, VIRTIO_NO_VECTOR))
        return false;
    control_init(&rig.control, &rig.transport, memory);
    return true;
}

/* Counts the lines of a queue's record, or prints the first and the last ones. */
struct lines {
    unsigned count, at; /* count 0: they are counted */
};

static void take_line(void *context, const char *line)
{
    struct lines *lines = context;
    unsigned at = lines->at++;
    if (lines->count > 0 && (at < TRACE_FIRST || at + TRACE_LAST >= lines->count))
        console_plain("# trace: %s", line);
}

static void trace(const struct virtqueue *vq)
{
    struct lines lines = { 0, 0 };
    recorder_print(vq, take_line, &lines);
    lines = (struct lines){ lines.at, 0 };
    recorder_print(vq, take_line, &lines);
}

void rig_trace(void)
{
    for (uint16_t i = 0; rig.queue != NULL && i < 2 * rig.pairs; i++)
        if (rig.queue[i].vq.stats.added > 0)
            trace(&rig.queue[i].vq);
    if (rig.control.transport != NULL && rig.control.vq.stats.added > 0)
        trace(&rig.control.vq);
}

bool rig_go(const struct rig_options *o)
{
    if (!virtio_go(&rig.transport, &rig.error))
        return false;
    rig.up = true;
    if (rig.pairs > 1 && rig_has(VIRTIO_NET_F_MQ) && !o->pairs_unset &&
        control_set_pairs(&rig.control, rig.pairs) != CONTROL_OK)
        return fail("VQ_PAIRS_SET failed; pairs", rig.pairs);
    return true;
}

bool rig_up(const struct rig_options *o)
{
    uint64_t want = features_closed((o->features & rig.offered & ~rig.off) | rig_always());
    arena.at = 0;
    rig.keep = false;
    if (!rig_negotiate(want))
        return false;
    rig.features = want;
    rig.header = rig_has(VIRTIO_NET_F_HASH_REPORT) ? 20 : 12;
    uint16_t most = rig_has(VIRTIO_NET_F_MQ) || rig_has(VIRTIO_NET_F_RSS) ? rig.max_pairs : 1;
    rig.pairs = o->pairs < 1 ? 1 : o->pairs < most ? o->pairs : most;
    rig.queue = rig_alloc(2u * rig.pairs * sizeof *rig.queue, 64);
    rig.linear = rig_alloc(RIG_FRAME_MAX, 64);
    rig.scratch = rig_alloc(RIG_FRAME_MAX, 64);
    set_vectors(o);
    bool vector = rig.transport.ops->config_vector(&rig.transport, rig.intx || o->no_vectors ? VIRTIO_NO_VECTOR : 0);
    if (!vector)
        return fail("msix_config does not keep its vector", 0);
    if (!set_queues(o))
        return false;
    for (uint16_t i = 0; i < rig.pairs && o->post != RIG_POST_NONE; i++)
        rig_post(i, o->post != 0 ? o->post : BUFFERS, o->buffer != 0 ? o->buffer : BUFFER, o->pieces);
    if (o->not_ok)
        return true;
    if (!rig_go(o))
        return false;
    for (uint16_t i = 0; i < rig.pairs && rig.up; i++) /* what was told before DRIVER_OK does not count */
        rig.transport.ops->notify(&rig.transport, &rig_rx(i)->vq);
    return true;
}

bool rig_down(void)
{
    rig.up = false;
    bool done = virtio_start(&rig.transport, &rig.error);
    rig.transport.ops->set_status(&rig.transport, 0);
    return done;
}

/* What the configuration says; it may be read before the negotiation (2.5.2). */
static void read_config(void)
{
    static const uint8_t ours[6] = { 2, 0, 0, 0xc0, 0x4f, 1 };
    uint16_t pairs = 1;
    memcpy(rig.mac, ours, 6);
    if (rig_offers(VIRTIO_NET_F_MAC))
        rig.transport.ops->config_read(&rig.transport, 0, rig.mac, 6);
    rig.mtu = 1500;
    if (rig_offers(VIRTIO_NET_F_MTU))
        rig.transport.ops->config_read(&rig.transport, offsetof(struct virtio_net_config, mtu), &rig.mtu, 2);
    if (rig_offers(VIRTIO_NET_F_MQ) || rig_offers(VIRTIO_NET_F_RSS))
        rig.transport.ops->config_read(&rig.transport, offsetof(struct virtio_net_config, max_virtqueue_pairs), &pairs,
                                       2);
    rig.max_pairs = pairs < 1 ? 1 : pairs < RIG_MAX_PAIRS ? pairs : RIG_MAX_PAIRS;
}

bool rig_open(const struct pci_device *pci)
{
    rig.pci = *pci;
    pci_size_bars(&rig.pci);
    pci_command(&rig.pci, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER, 0);
    const char *wrong = virtio_pci_modern_init(&rig.transport, &rig.pci);
    if (wrong != NULL)
        snprintf(rig.error.text, sizeof rig.error.text, "%s", wrong);
    if (wrong != NULL || !virtio_start(&rig.transport, &rig.error))
        return false;
    msix_init(&rig.msix, &rig.pci);
    arena.base = phys_alloc(ARENA, 4096);
    if (arena.base == NULL)
        return fail("no memory for the arena, bytes", ARENA);
    rig.offered = rig.transport.ops->features(&rig.transport);
    rig.num_queues = mmio_read16(RIG_COMMON(num_queues));
    read_config();
    return true;
}

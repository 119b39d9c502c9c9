/* A device whose every register may read as anything, now or from now on: status that does not move, a generation that
 * never stands still, queue sizes, places to notify at, numbers of pairs, limits of the hash, MTU, address, link, ISR;
 * and which answers commands as it likes. Bringing the driver up ends within so many reads, with a sentence or with a
 * state that can be worked with; and so does a reset. */
#include "tests/fuzz/fuzz.h"
#include "drivers/virtio/net.h"
#include "kernel/clock.h"
#include "kernel/memory.h"
#include "kernel/random.h"
#include "kernel/traps.h"
#include "tests/unit/modern_rig.h"

#include <linux/virtio_config.h>

#define CORES      4
#define READS_MOST 200000u /* each field of the configuration is read at most 1,000 times, each status for a second */
#define LOOK_NS    1000000u
#define REGISTERS  128
#define F(name)    FEATURE_BIT(VIRTIO_NET_F_##name)
#define USUAL                                                                                                          \
    (FEATURE_BIT(VIRTIO_F_VERSION_1) | F(MAC) | F(STATUS) | F(MRG_RXBUF) | F(MTU) | F(MQ) | F(CTRL_VQ) | F(CSUM) |     \
     F(GUEST_CSUM))

static struct {
    struct input in;
    unsigned reads, honest;
    struct {
        bool on;
        uint32_t value;
    } stuck[REGISTERS];
    struct virtnet core[CORES];
    struct virtio_net_config config;
    struct {
        void (*handler)(void *argument);
        void *argument;
    } irq[256];
    void *memory[64];
    unsigned memory_count, memory_left;
    uint64_t now;
    uint16_t commands_seen;
} rig;

/* ---- the device ---- */

static unsigned register_of(uint32_t at)
{
    return at < 64 ? at : at == ISR_AT ? 64 : 65 + at % 62;
}

static uint32_t told_by(struct input *in, uint8_t how, unsigned width)
{
    static const uint32_t edges[16] = { 0,  1,  2,  0xffffffff, 0x8000, 0x7fff, 0x8001, 3,
                                        32, 67, 64, 0x80,       0x40,   39,     127,    0x400 };
    if (how & 4)
        return edges[(how >> 3 & 7) + (how & 2) * 4];
    return width == 1 ? take8(in) : width == 2 ? take16(in) : take32(in);
}

/* A byte of the input says for how many reads the device is honest, or how it is not. */
static uint32_t lie(uint32_t at, unsigned width, uint32_t value)
{
    unsigned which = register_of(at);

    must(++rig.reads < READS_MOST);
    if (rig.stuck[which].on)
        return rig.stuck[which].value;
    if (rig.honest > 0 || !more(&rig.in)) {
        rig.honest -= rig.honest > 0;
        return value;
    }
    uint8_t how = take8(&rig.in);
    if (how < 0xc0) {
        rig.honest = how;
        return value;
    }
    uint32_t told = told_by(&rig.in, how, width);
    if ((how & 6) == 2)
        told ^= value;
    rig.stuck[which].on = how & 1;
    rig.stuck[which].value = told;
    return told;
}

static void see_status(uint8_t status)
{
    if (status != 0)
        return;
    for (unsigned i = 0; i < MODERN_QUEUES; i++)
        modern.dev.queue[i].enabled = false;
    rig.commands_seen = 0;
}

/* Writes a used entry, and the index behind it. */
static void use(struct vring_used *used, uint16_t size, uint32_t id, uint32_t length, uint16_t index)
{
    used->ring[rig.commands_seen++ % size] = (struct vring_used_elem){ .id = id, .len = length };
    __atomic_store_n(&used->idx, index, __ATOMIC_RELEASE);
}

/* The last piece of the chain, where the answer goes. */
static volatile uint8_t *answer_of(const struct vring_desc *desc, uint16_t size, uint16_t head)
{
    uint16_t at = head;
    for (unsigned n = 0; n < size && (desc[at].flags & VRING_DESC_F_NEXT); n++) {
        at = desc[at].next;
        must(at < size);
    }
    must(desc[at].flags & VRING_DESC_F_WRITE && desc[at].len == 1);
    return (volatile uint8_t *)(uintptr_t)desc[at].addr;
}

static void serve_control(void)
{
    const struct virtqueue *vq = &rig.core[0].control.vq;
    const struct modern_queue *q = vq->index < MODERN_QUEUES ? &modern.dev.queue[vq->index] : NULL;
    if (rig.core[0].control.memory == NULL || q == NULL || !q->enabled)
        return;
    const struct vring_desc *desc = (const struct vring_desc *)(uintptr_t)q->area[0];
    const struct vring_avail *avail = (const struct vring_avail *)(uintptr_t)q->area[1];
    struct vring_used *used = (struct vring_used *)(uintptr_t)q->area[2];
    must((uint16_t)(avail->idx - rig.commands_seen) <= 1); /* all commands lie in the same memory */
    if (avail->idx == rig.commands_seen)
        return;
    uint16_t head = avail->ring[rig.commands_seen % vq->size], next = (uint16_t)(rig.commands_seen + 1);
    volatile uint8_t *answer = answer_of(desc, vq->size, head);
    switch (take8(&rig.in) % 8) {
    case 0:
        *answer = VIRTIO_NET_OK;
        use(used, vq->size, head, 1, next);
        return;
    case 1:
        *answer = VIRTIO_NET_ERR;
        use(used, vq->size, head, 1, next);
        return;
    case 2:
        *answer = take8(&rig.in);
        use(used, vq->size, head, take32(&rig.in), next);
        return;
    case 3:
        use(used, vq->size, head, 0, next);
        return;
    case 4:
        use(used, vq->size, take8(&rig.in), 1, next);
        return;
    case 5:
        use(used, vq->size, head, 1, take16(&rig.in));
        return;
    case 6:
        use(used, vq->size, take32(&rig.in), take32(&rig.in), next);
        return;
    default: /* not now */
        return;
    }
}

/* ---- what the driver is linked with ---- */

uint64_t clock_ns(void)
{
    serve_control();
    return rig.now += LOOK_NS;
}

uint64_t random_next(void)
{
    return 0x0102030405060708;
}

void irq_install(uint8_t vector, void (*handler)(void *argument), void *argument)
{
    rig.irq[vector].handler = handler;
    rig.irq[vector].argument = argument;
}

void pic_enable(uint8_t line)
{
    must(line <= 15);
}

void *heap_alloc_aligned(size_t size, size_t align)
{
    void *p = NULL;
    must(rig.memory_count < COUNT_OF(rig.memory) && size < 64u << 20);
    if (rig.memory_left == 0 || posix_memalign(&p, align < 16 ? 16 : align, size > 0 ? size : 1) != 0)
        return NULL;
    rig.memory_left--;
    memset(p, 0, size);
    return rig.memory[rig.memory_count++] = p;
}

struct heap_stats heap_stats(void)
{
    return (struct heap_stats){ .untouched = 1 << 19 };
}

/* ---- what must hold ---- */

/* One line that can be shown. */
static bool is_sentence(const struct virtio_error *error)
{
    size_t n = strnlen(error->text, sizeof error->text);
    for (size_t i = 0; i < n; i++)
        if (error->text[i] < ' ' || error->text[i] > '~')
            return false;
    return n > 0 && n < sizeof error->text;
}

static void check_probed(const struct virtnet *net, uint16_t want)
{
    must(net->pairs >= 1 && net->pairs <= want && net->pairs <= net->max_pairs && net->mtu >= VIRTNET_MTU_MIN);
    must(net->max_pairs <= 0x8000);
    must(net->features & FEATURE_BIT(VIRTIO_F_VERSION_1) && (net->mac[0] & 1) == 0);
    must(net->features == features_closed(net->features));
    for (uint16_t i = 0; i < net->pairs; i++)
        for (unsigned which = 0; which < 2; which++) {
            uint16_t size = net->ring_size[i][which];
            must(size >= 2 && size <= VIRTQUEUE_MAX_SIZE && (size & (size - 1)) == 0);
        }
}

static void check_notify(const struct virtnet *net, const struct virtqueue *vq)
{
    const struct virtio_transport *t = &net->transport;
    const volatile char *at = (const volatile char *)vq->notify;
    must(at >= t->notify && at + sizeof *vq->notify <= t->notify + t->notify_length);
    must((uintptr_t)at % 2 == 0 && modern_mapped(4, (uint32_t)(at - modern.bar[4]), 2));
}

static void check_running(const struct virtnet *net, uint16_t pairs)
{
    must(net->pairs >= 1 && net->pairs <= pairs && (net->pairs == 1 || net->features & (F(MQ) | F(RSS))));
    for (uint16_t i = 0; i < pairs; i++) {
        check_notify(net, &rig.core[i].pair.rx);
        check_notify(net, &rig.core[i].pair.tx);
    }
    if (net->control.open)
        check_notify(net, &net->control.vq);
}

/* ---- a life ---- */

static bool start(uint16_t pairs)
{
    static const uint8_t key[CONTROL_RSS_KEY], table[CONTROL_RSS_TABLE];
    struct virtnet_peer peer[CORES];
    struct virtio_error error = { "" };
    for (uint16_t i = 0; i < pairs; i++)
        peer[i] = (struct virtnet_peer){ &rig.core[i].pair, 10u + i };
    if (!virtnet_start(&rig.core[0], peer, pairs, key, table, &error)) {
        must(is_sentence(&error));
        return false;
    }
    check_running(&rig.core[0], pairs);
    return true;
}

static void on_lost(struct virtnet_pair *pair, void *token)
{
    virtnet_finish(pair, token, NULL);
}

/* What goes on while it runs: interrupts, a look at the link, bells, commands. */
static void live(uint16_t pairs)
{
    struct control *control = &rig.core[0].control;
    uint8_t status;
    for (unsigned i = 0; i < COUNT_OF(rig.irq); i++)
        if (rig.irq[i].handler != NULL)
            rig.irq[i].handler(rig.irq[i].argument);
    virtnet_link_up(&rig.core[0]);
    for (uint16_t i = 0; i < pairs; i++)
        virtnet_flush(&rig.core[i].pair);
    if (control->memory != NULL && rig.core[0].features & F(CTRL_VQ))
        for (unsigned n = 0; n < 3; n++)
            must(control_announce_ack(control) == CONTROL_OK || control->failures > 0);
    must(virtnet_needs_reset(&rig.core[0], &status) == ((status & VIRTIO_CONFIG_S_NEEDS_RESET) != 0));
}

static bool start_again(uint16_t pairs)
{
    struct virtio_error error = { "" };
    if (!virtnet_reset(&rig.core[0], &error)) {
        must(is_sentence(&error));
        return false;
    }
    for (uint16_t i = 0; i < pairs; i++) {
        virtnet_take_back(&rig.core[i].pair, on_lost);
        virtnet_relay(&rig.core[i]);
    }
    return start(pairs);
}

static void bring_up(uint16_t want, uint16_t ring_max)
{
    struct feature_request request = { 0, 0 };
    struct virtio_error error = { "" };
    struct virtnet *net = &rig.core[0];
    modern_find_device();
    if (!virtnet_probe(net, &modern.device, &request, ring_max, want, &error)) {
        must(is_sentence(&error));
        return;
    }
    check_probed(net, want);
    uint16_t pairs = net->pairs;
    virtnet_plan(net, pairs);
    for (uint16_t i = 0; i < pairs; i++) {
        if (i > 0)
            virtnet_attach(&rig.core[i], net);
        if (!virtnet_layout(&rig.core[i], i, &error)) {
            must(is_sentence(&error));
            return;
        }
    }
    if (!start(pairs))
        return;
    live(pairs);
    if (start_again(pairs))
        live(pairs);
}

static void add_structures(uint8_t how)
{
    static const uint32_t multipliers[8] = { 4, 2, 0, 4096, 4, 1, 3, UINT32_MAX };
    for (uint8_t type = 1; type <= TYPES; type++) {
        unsigned at = modern_add_structure(type, 4, good[type].offset, good[type].length);
        if (type == CAP_NOTIFY)
            fake_pci_set(modern.function, at + 16, 4, multipliers[how % 8], 0);
    }
}

static void add_msix(unsigned count)
{
    unsigned at = modern_add_cap(0x11, 12);
    fake_pci_set(modern.function, at + 2, 2, count - 1, 0xc000);
    memset(modern.bar[0], 0, BAR_SIZE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool made;
    if (!made)
        modern_make_bars(NULL);
    made = true;
    modern_set_up(NULL);
    memset(&rig, 0, sizeof rig);
    rig.in = (struct input){ data, data + size };
    uint8_t how = take8(&rig.in), vectors = take8(&rig.in) % 12, memory = take8(&rig.in);
    add_structures(how >> 3);
    rig.memory_left = memory < 20 ? memory : UINT32_MAX;
    rig.config = (struct virtio_net_config){ .mac = { 0x52, 0x54, 0, 0x12, 0x34, 0x56 },
                                             .status = VIRTIO_NET_S_LINK_UP,
                                             .max_virtqueue_pairs = CORES,
                                             .mtu = 1500,
                                             .rss_max_key_size = 40,
                                             .rss_max_indirection_table_length = 128,
                                             .supported_hash_types = 0x3f };
    modern.dev.config = (const uint8_t *)&rig.config;
    modern.dev.offered = USUAL ^ take32(&rig.in) ^ (uint64_t)take32(&rig.in) << 32;
    modern.dev.queue_count = MODERN_QUEUES;
    modern.dev.changes_left = take8(&rig.in) % 16 == 15 ? UINT32_MAX : 0;
    fake_pci_set(modern.function, 0x3c, 1, take8(&rig.in) % 18, 0);
    fake_pci_set(modern.function, 0x3d, 1, how & 1, 0);
    for (unsigned i = 0; i < MODERN_QUEUES; i++)
        modern.dev.queue[i].size = 16;
    if (vectors > 0)
        add_msix(vectors);
    modern.dev.on_read = lie;
    modern.dev.on_status = see_status;
    bring_up((uint16_t)(1 + how % CORES), (how & 0x80) ? 8 : 64);
    while (rig.memory_count > 0)
        free(rig.memory[--rig.memory_count]);
    return 0;
}

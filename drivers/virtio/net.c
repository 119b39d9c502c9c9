/* Setting a virtio-net device up: features, configuration, queues, interrupts, number of pairs. The packet path is
 * net_queue.c. */
#include <stdio.h>
#include <string.h>
#include <linux/virtio_config.h>
#include "drivers/virtio/net.h"
#include "drivers/virtio/net_private.h"
#include "drivers/virtio/recorder.h"
#include "kernel/apic.h"
#include "kernel/console.h"
#include "kernel/memory.h"
#include "kernel/random.h"
#include "kernel/traps.h"

#define ISR_QUEUE        1u
#define ISR_CONFIG       2u
#define CONTROL_RING_MAX 64u /* one command is under way at a time, in at most 3 descriptors */
/* What our software hashes alike: addresses, and addresses and ports of TCP and UDP (5.1.6.4.3). */
#define HASH_TYPES                                                                                                     \
    (VIRTIO_NET_RSS_HASH_TYPE_IPv4 | VIRTIO_NET_RSS_HASH_TYPE_TCPv4 | VIRTIO_NET_RSS_HASH_TYPE_UDPv4 |                 \
     VIRTIO_NET_RSS_HASH_TYPE_IPv6 | VIRTIO_NET_RSS_HASH_TYPE_TCPv6 | VIRTIO_NET_RSS_HASH_TYPE_UDPv6)

/* ---- interrupts: take note; the core's loop does the work ---- */

static void on_config(void *argument)
{
    struct virtnet *net = argument;
    net->config_interrupts++;
    net->config_changed = true;
}

static void on_rx(void *argument)
{
    ((struct virtnet *)argument)->pair.rx_stats.interrupts++;
}

static void on_tx(void *argument)
{
    ((struct virtnet *)argument)->pair.tx_stats.interrupts++;
}

/* The same where the queues' operations are recorded. */
static void on_recorded_rx(void *argument)
{
    recorder_note(&((struct virtnet *)argument)->pair.rx, RECORDER_INTERRUPT);
    on_rx(argument);
}

static void on_recorded_tx(void *argument)
{
    recorder_note(&((struct virtnet *)argument)->pair.tx, RECORDER_INTERRUPT);
    on_tx(argument);
}

/* One vector for this core's pair, or for all pairs: then the others are woken too. */
static void on_queues(void *argument)
{
    struct virtnet *net = argument;
    recorder_note(&net->pair.rx, RECORDER_INTERRUPT);
    recorder_note(&net->pair.tx, RECORDER_INTERRUPT);
    on_rx(net);
    on_tx(net);
    if (net->interrupts != VIRTNET_PER_PAIR && net->on_shared_interrupt != NULL)
        net->on_shared_interrupt();
}

static void on_all(void *argument)
{
    on_queues(argument);
    on_config(argument); /* which of them it was cannot be told: MSI-X has no status (4.1.4.5) */
}

/* INTx: reading the status acknowledges it, so that the line falls before the 8259 is acknowledged (4.1.4.5). */
static void on_intx(void *argument)
{
    struct virtnet *net = argument;
    uint8_t isr = net->transport.ops->isr(&net->transport);
    if (isr & ISR_QUEUE)
        on_queues(net);
    if (isr & ISR_CONFIG)
        on_config(net);
}

static void install_handlers(struct virtnet *net)
{
    irq_install(VECTOR_CONFIG, net->interrupts == VIRTNET_ONE ? on_all : on_config, net);
    irq_install(VECTOR_RX, net->trace ? on_recorded_rx : on_rx, net);
    irq_install(VECTOR_TX, net->trace ? on_recorded_tx : on_tx, net);
    irq_install(VECTOR_QUEUES, on_queues, net);
}

const char *virtnet_interrupts_name(const struct virtnet *net)
{
    static const char *const names[] = { "msix per queue",   "msix per pair", "msix for all queues",
                                         "msix, one vector", "intx",          "no interrupts: polled" };
    return names[net->interrupts];
}

/* How many vectors there are decides how finely they can be given out, for `pairs` pairs. */
static enum virtnet_interrupts choose_interrupts(const struct virtnet *net, uint16_t pairs)
{
    if (net->msix.count >= 2 * pairs + 1)
        return VIRTNET_PER_QUEUE;
    if (net->msix.count >= pairs + 1)
        return VIRTNET_PER_PAIR;
    if (net->msix.count >= 2)
        return VIRTNET_TWO;
    if (net->msix.count == 1)
        return VIRTNET_ONE;
    return net->pci.irq_pin != 0 && net->pci.irq_line <= 15 ? VIRTNET_INTX : VIRTNET_POLLED;
}

/* The MSI-X entry of pair `i`'s receive (0) or transmit (1) queue. */
static uint16_t entry_for(const struct virtnet *net, uint16_t i, uint16_t which)
{
    switch (net->interrupts) {
    case VIRTNET_PER_QUEUE:
        return (uint16_t)(1 + 2 * i + which);
    case VIRTNET_PER_PAIR:
        return (uint16_t)(1 + i);
    case VIRTNET_TWO:
        return 1;
    case VIRTNET_ONE:
        return 0;
    default:
        return VIRTIO_NO_VECTOR;
    }
}

static void setup_msix(struct virtnet *net, const struct virtnet_peer *peer, uint16_t pairs)
{
    pci_command(&net->pci, PCI_COMMAND_INTX_DISABLE, 0);
    msix_enable(&net->msix, true);
    msix_set(&net->msix, 0, peer[0].apic_id, VECTOR_CONFIG);
    if (net->interrupts == VIRTNET_TWO)
        msix_set(&net->msix, 1, peer[0].apic_id, VECTOR_QUEUES);
    for (uint16_t i = 0; i < pairs && net->interrupts == VIRTNET_PER_PAIR; i++)
        msix_set(&net->msix, entry_for(net, i, 0), peer[i].apic_id, VECTOR_QUEUES);
    for (uint16_t i = 0; i < pairs && net->interrupts == VIRTNET_PER_QUEUE; i++) {
        msix_set(&net->msix, entry_for(net, i, 0), peer[i].apic_id, VECTOR_RX);
        msix_set(&net->msix, entry_for(net, i, 1), peer[i].apic_id, VECTOR_TX);
    }
    if (!net->transport.ops->config_vector(&net->transport, 0))
        log_warn("virtio", "msix_config does not keep vector 0: link changes go unnoticed");
}

static void setup_interrupts(struct virtnet *net, const struct virtnet_peer *peer, uint16_t pairs)
{
    if (net->interrupts <= VIRTNET_ONE) {
        setup_msix(net, peer, pairs);
    } else if (net->interrupts == VIRTNET_INTX) {
        pci_command(&net->pci, 0, PCI_COMMAND_INTX_DISABLE);
        irq_install((uint8_t)(VECTOR_PIC + net->pci.irq_line), on_intx, net);
        pic_enable(net->pci.irq_line);
    } else {
        log_warn("virtio", "no MSI-X, interrupt_pin %u, interrupt_line %u: without interrupts, the queues are polled",
                 net->pci.irq_pin, net->pci.irq_line);
    }
}

/* ---- configuration ---- */

#define CONFIG_FIELD(net, field, to)                                                                                   \
    (net)->transport.ops->config_read(&(net)->transport, offsetof(struct virtio_net_config, field), to, sizeof *(to))

/* True if the device offers the feature and the user has not switched it off: it will be negotiated, and the fields
 * that belong to it may be read already (2.5.1, 3.1.1). */
static bool will_have(struct virtnet *net, const struct feature_request *request, unsigned bit)
{
    return (net->transport.ops->features(&net->transport) & ~request->off & FEATURE_BIT(bit)) != 0;
}

/* The MTU the device advises. Below 68 it is refused: the feature is not acknowledged. (5.1.4.2) */
static void read_mtu(struct virtnet *net, struct feature_request *request)
{
    uint16_t mtu = 0;
    net->mtu = VIRTNET_MTU_DEFAULT;
    if (!will_have(net, request, VIRTIO_NET_F_MTU))
        return;
    if (!CONFIG_FIELD(net, mtu, &mtu) || mtu < VIRTNET_MTU_MIN) {
        log_warn("virtio", "config mtu is %u, valid is %u to 65535: refused, %u is used", mtu, VIRTNET_MTU_MIN,
                 net->mtu);
        request->off |= FEATURE_BIT(VIRTIO_NET_F_MTU);
        return;
    }
    net->mtu = mtu;
}

/* The device's address, or a random locally administered one. A group address or all zeroes is refused: the feature is
 * not acknowledged, since who has it must use the address. (5.1.4.2, 5.1.5) */
static void read_mac(struct virtnet *net, struct feature_request *request)
{
    static const uint8_t zero[6];
    if (will_have(net, request, VIRTIO_NET_F_MAC)) {
        bool have = net->transport.ops->config_read(&net->transport, 0, net->mac, 6);
        if (have && (net->mac[0] & 1) == 0 && memcmp(net->mac, zero, 6) != 0)
            return;
        if (have)
            log_warn("virtio",
                     "config mac is %02x:%02x:%02x:%02x:%02x:%02x, no station's address: refused, a random one is used",
                     net->mac[0], net->mac[1], net->mac[2], net->mac[3], net->mac[4], net->mac[5]);
        request->off |= FEATURE_BIT(VIRTIO_NET_F_MAC);
    }
    uint64_t r = random_next();
    memcpy(net->mac, &r, 6);
    net->mac[0] = (uint8_t)((net->mac[0] & ~1u) | 2);
}

/* How many pairs the device has, 1 without VIRTIO_NET_F_MQ or _RSS. Out of the range of 1 to 0x8000 it counts as 1.
 * (5.1.4) */
static void read_pairs(struct virtnet *net)
{
    uint16_t pairs = 1;
    if (virtnet_has(net, VIRTIO_NET_F_MQ) || virtnet_has(net, VIRTIO_NET_F_RSS))
        CONFIG_FIELD(net, max_virtqueue_pairs, &pairs);
    if (pairs < 1 || pairs > 0x8000) {
        log_warn("virtio", "config max_virtqueue_pairs is %u, valid is 1 to 32768: one is used", pairs);
        pairs = 1;
    }
    net->max_pairs = pairs;
    if (virtnet_has(net, VIRTIO_NET_F_RSS) || virtnet_has(net, VIRTIO_NET_F_HASH_REPORT)) {
        CONFIG_FIELD(net, rss_max_key_size, &net->rss.max_key_size);
        if (virtnet_has(net, VIRTIO_NET_F_RSS)) /* else there is no such field (5.1.4) */
            CONFIG_FIELD(net, rss_max_indirection_table_length, &net->rss.max_table_length);
        net->transport.ops->config_read(&net->transport, offsetof(struct virtio_net_config, supported_hash_types),
                                        &net->rss.hash_types, 4);
    }
}

bool virtnet_link_up(struct virtnet *net)
{
    uint16_t status = VIRTIO_NET_S_LINK_UP;
    if (virtnet_has(net, VIRTIO_NET_F_STATUS))
        CONFIG_FIELD(net, status, &status);
    return (status & VIRTIO_NET_S_LINK_UP) != 0;
}

/* ---- start ---- */

static bool open_pci(struct virtnet *net, struct virtio_error *error)
{
    pci_size_bars(&net->pci);
    pci_command(&net->pci, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER, 0);
    const char *wrong = virtio_pci_modern_init(&net->transport, &net->pci);
    if (wrong != NULL)
        snprintf(error->text, sizeof error->text, "%s", wrong);
    return wrong == NULL;
}

/* The largest power of two that exceeds neither the device's size nor `most` (0: whatever the device has); 0: there is
 * no such queue. */
static uint16_t choose_size(struct virtnet *net, uint16_t queue, uint16_t most)
{
    uint16_t size = net->transport.ops->queue_size(&net->transport, queue);
    if (most != 0 && most < size && net->transport.ops->queue_size_free)
        size = most;
    while ((size & (size - 1)) != 0) /* modern sizes may be any; a split ring's is a power of two (2.7) */
        size &= (uint16_t)(size - 1);
    return size;
}

/* Sizes of the first `want` pairs' queues. A pair that is not there ends the list; the first one must be. */
static bool choose_sizes(struct virtnet *net, uint16_t want, struct virtio_error *error)
{
    uint16_t rx_max = net->ring_max;
    if (virtnet_gets_gso(net) && !virtnet_has(net, VIRTIO_NET_F_MRG_RXBUF) && (rx_max == 0 || rx_max > VIRTNET_RX_HUGE))
        rx_max = VIRTNET_RX_HUGE;
    for (uint16_t i = 0; i < net->max_pairs && i < want && i < VIRTNET_MAX_PAIRS; i++) {
        for (uint16_t which = 0; which < 2; which++) {
            uint16_t queue = (uint16_t)(2 * i + which),
                     size = choose_size(net, queue, which == 0 ? rx_max : net->ring_max);
            net->ring_size[i][which] = size;
            if (size >= 2)
                continue;
            if (i == 0)
                return virtio_fail(&net->transport, error, "queue_size of queue %u is %u: no usable queue", queue,
                                   size);
            log_warn("virtio", "queue_size of queue %u is %u: %u pairs are used", queue, size, i);
            return true;
        }
        net->pairs = (uint16_t)(i + 1);
    }
    return true;
}

bool virtnet_probe(struct virtnet *net, const struct pci_device *pci, const struct feature_request *request,
                   uint16_t ring_max, uint16_t want, struct virtio_error *error)
{
    struct feature_request asked = *request;
    struct feature_choice choice;
    *net = (struct virtnet){ .pci = *pci, .ring_max = ring_max };
    if (!open_pci(net, error) || !virtio_start(&net->transport, error))
        return false;
    read_mtu(net, &asked);
    read_mac(net, &asked);
    if (!virtio_negotiate(&net->transport, &asked, &choice, error))
        return false;
    net->features = choice.acknowledged;
    read_pairs(net);
    msix_init(&net->msix, &net->pci);
    return choose_sizes(net, want, error);
}

void virtnet_plan(struct virtnet *net, uint16_t pairs)
{
    net->pairs = pairs;
    net->interrupts = choose_interrupts(net, pairs);
}

void virtnet_attach(struct virtnet *net, const struct virtnet *probed)
{
    *net = *probed;
    virtio_pci_modern_attach(&net->transport, &probed->transport);
    memset(&net->pair, 0, sizeof net->pair);
    memset(&net->control, 0, sizeof net->control);
    net->on_shared_interrupt = NULL; /* another copy's function; shared interrupts are core 0's */
    net->pci.access = NULL;          /* and so is configuration space */
}

void virtnet_meet(struct virtnet *net, const struct virtnet_pair *const other[], uint16_t count)
{
    memcpy(net->other, other, count * sizeof *other);
    net->others = count;
}

bool virtnet_layout(struct virtnet *net, uint16_t number, struct virtio_error *error)
{
    net->pair.net = net;
    install_handlers(net);
    if (!virtnet_pair_init(&net->pair, number, error))
        return false;
    virtnet_refill(&net->pair);
    virtnet_show(&net->pair);
    return true;
}

static bool enable_queue(struct virtnet *net, struct virtqueue *vq, uint16_t vector, struct virtio_error *error)
{
    const char *wrong = net->transport.ops->queue_enable(&net->transport, vq, vector);
    if (wrong == NULL)
        return true;
    return virtio_fail(&net->transport, error, "queue %u (size %u, vector 0x%x): %s", vq->index, vq->size, vector,
                       wrong);
}

/* The control queue, if there is one: its index is behind all queues the device has, however many are used (5.1.2). A
 * device whose control queue cannot be used is driven without. */
static bool start_control(struct virtnet *net, struct virtio_error *error)
{
    if (!virtnet_has(net, VIRTIO_NET_F_CTRL_VQ))
        return true;
    uint32_t behind = 2u * net->max_pairs; /* of 32,768 pairs none fits behind */
    uint16_t index = (uint16_t)behind, size = behind <= UINT16_MAX ? choose_size(net, index, CONTROL_RING_MAX) : 0;
    struct virtqueue_config config = { index, size, virtnet_has(net, VIRTIO_RING_F_EVENT_IDX), 0 };
    struct recorder *recorder = net->control.vq.recorder; /* from before a reset */
    if (net->control_ring == NULL) {
        net->control_ring = heap_alloc_aligned(virtqueue_split_bytes(CONTROL_RING_MAX, 0), 4096);
        net->control_memory = heap_alloc_aligned(control_bytes(), 64);
    }
    bool usable = size >= 4 && size <= CONTROL_RING_MAX && net->control_ring != NULL && net->control_memory != NULL;
    if (!usable || virtqueue_split_init(&net->control.vq, &config, net->control_ring) != VIRTQ_OK) {
        log_warn("virtio", "control queue %u of size %u: not used", behind, size);
        return true;
    }
    if (recorder != NULL)
        recorder_attach(&net->control.vq, recorder);
    else if (net->trace && !virtnet_record(&net->control.vq, error))
        return false;
    if (!enable_queue(net, &net->control.vq, VIRTIO_NO_VECTOR, error))
        return false;
    control_init(&net->control, &net->transport, net->control_memory);
    return true;
}

/* Tells the device how many pairs to use, and how to spread what it receives. Degrades to one pair. */
static void set_pairs(struct virtnet *net, uint16_t pairs, const uint8_t *key, const uint8_t *table)
{
    net->pairs = 1;
    if (virtnet_has(net, VIRTIO_NET_F_RSS) && pairs > 1) {
        enum control_result r = control_set_rss(&net->control, &net->rss, key, table, pairs, HASH_TYPES);
        net->rss_on = r == CONTROL_OK;
        if (net->rss_on) {
            net->pairs = pairs;
            return;
        }
        log_warn("virtio", "RSS: %s", control_result_text(r));
    }
    if (virtnet_has(net, VIRTIO_NET_F_HASH_REPORT))
        control_set_hash(&net->control, &net->rss, key, HASH_TYPES); /* no harm if not: frames then carry no hash */
    if (pairs == 1 || !virtnet_has(net, VIRTIO_NET_F_MQ))
        return;
    enum control_result r = control_set_pairs(&net->control, pairs);
    if (r == CONTROL_OK)
        net->pairs = pairs;
    else
        log_warn("virtio", "%u queue pairs: %s; one is used", pairs, control_result_text(r));
}

bool virtnet_start(struct virtnet *net, const struct virtnet_peer *peer, uint16_t pairs, const uint8_t *key,
                   const uint8_t *table, struct virtio_error *error)
{
    setup_interrupts(net, peer, pairs);
    for (uint16_t i = 0; i < pairs; i++) {
        /* The queues are another core's, which waits for this to be done: nobody else may touch the common
         * configuration. */
        struct virtnet_pair *pair = (struct virtnet_pair *)peer[i].pair;
        if (!enable_queue(net, &pair->rx, entry_for(net, i, 0), error) ||
            !enable_queue(net, &pair->tx, entry_for(net, i, 1), error))
            return false;
    }
    if (!start_control(net, error) || !virtio_go(&net->transport, error))
        return false;
    bool had_control = net->control.open;
    set_pairs(net, pairs, key, table);
    net->control_lost = had_control && !net->control.open;
    return true;
}

bool virtnet_reset(struct virtnet *net, struct virtio_error *error)
{
    struct feature_request same = { .off = ~net->features, .required = net->features };
    struct feature_choice choice;
    net->control.open = false;
    net->rss_on = false;
    return virtio_start(&net->transport, error) && virtio_negotiate(&net->transport, &same, &choice, error);
}

bool virtnet_needs_reset(struct virtnet *net, uint8_t *status)
{
    *status = net->transport.ops->status(&net->transport);
    return (*status & VIRTIO_CONFIG_S_NEEDS_RESET) != 0;
}

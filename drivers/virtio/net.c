/* Setting a virtio-net device up: features, configuration, queues, interrupts. The packet path is net_queue.c. */
#include <stdio.h>
#include <string.h>
#include <linux/virtio_config.h>
#include "drivers/virtio/net.h"
#include "drivers/virtio/net_private.h"
#include "kernel/apic.h"
#include "kernel/console.h"
#include "kernel/random.h"
#include "kernel/traps.h"

#define ISR_QUEUE  1u
#define ISR_CONFIG 2u

/* ---- interrupts: take note; the core's loop does the work ---- */

static void on_config(void *argument)
{
    struct virtnet *net = argument;
    net->config_interrupts++;
    net->config_changed = true;
}

static void on_rx(void *argument)
{
    ((struct virtnet_pair *)argument)->rx_stats.interrupts++;
}

static void on_tx(void *argument)
{
    ((struct virtnet_pair *)argument)->tx_stats.interrupts++;
}

static void on_queues(void *argument)
{
    struct virtnet_pair *pair = argument;
    on_rx(pair);
    on_tx(pair);
}

static void on_all(void *argument)
{
    struct virtnet *net = argument;
    on_queues(&net->pair);
    on_config(net); /* which of them it was cannot be told: MSI-X has no status (4.1.4.5) */
}

/* INTx: reading the status acknowledges it, so that the line falls before the 8259 is acknowledged (4.1.4.5). */
static void on_intx(void *argument)
{
    struct virtnet *net = argument;
    uint8_t isr = net->transport.ops->isr(&net->transport);
    if (isr & ISR_QUEUE)
        on_queues(&net->pair);
    if (isr & ISR_CONFIG)
        on_config(net);
}

/* MSI-X entry `index` raises a new vector of this core. */
static bool assign(struct virtnet *net, uint16_t index, void (*handler)(void *), void *argument)
{
    uint8_t vector = irq_allocate();
    if (vector == 0)
        return false;
    irq_install(vector, handler, argument);
    msix_set(&net->msix, index, vector);
    return true;
}

/* Which MSI-X entry stands for what. */
struct vectors {
    uint16_t config, rx, tx;
};

/* As many interrupts as the device has vectors for: three, queues apart from configuration, one for all, or the pin's.
 */
static struct vectors setup_interrupts(struct virtnet *net)
{
    static const struct vectors none = { VIRTIO_NO_VECTOR, VIRTIO_NO_VECTOR, VIRTIO_NO_VECTOR };
    msix_init(&net->msix, &net->pci);
    if (net->msix.count > 0) {
        pci_command(&net->pci, PCI_COMMAND_INTX_DISABLE, 0);
        msix_enable(&net->msix, true);
    }
    if (net->msix.count >= 3 && assign(net, 0, on_config, net) && assign(net, 1, on_rx, &net->pair) &&
        assign(net, 2, on_tx, &net->pair)) {
        net->interrupts = "msix/3";
        return (struct vectors){ 0, 1, 2 };
    }
    if (net->msix.count == 2 && assign(net, 0, on_config, net) && assign(net, 1, on_queues, &net->pair)) {
        net->interrupts = "msix/2";
        return (struct vectors){ 0, 1, 1 };
    }
    if (net->msix.count == 1 && assign(net, 0, on_all, net)) {
        net->interrupts = "msix/1";
        net->vector_shared = true;
        return (struct vectors){ 0, 0, 0 };
    }
    net->interrupts = "intx";
    pci_command(&net->pci, 0, PCI_COMMAND_INTX_DISABLE);
    if (net->pci.irq_pin == 0 || net->pci.irq_line > 15) {
        log_warn("virtio", "no MSI-X, and interrupt_line is %u: without interrupts, the queues are polled",
                 net->pci.irq_line);
        net->interrupts = "none";
        net->polled = true;
        return none;
    }
    irq_install((uint8_t)(VECTOR_PIC + net->pci.irq_line), on_intx, net);
    pic_enable(net->pci.irq_line);
    return none;
}

/* ---- configuration ---- */

/* The MTU the device advises. Below 68 it is refused: the feature is not acknowledged. (5.1.4.2) */
static void read_mtu(struct virtnet *net, struct feature_request *request)
{
    uint16_t mtu = 0;
    net->mtu = VIRTNET_MTU_DEFAULT;
    if (!(net->transport.ops->features(&net->transport) & FEATURE_BIT(VIRTIO_NET_F_MTU)) ||
        (request->off & FEATURE_BIT(VIRTIO_NET_F_MTU)))
        return;
    if (!net->transport.ops->config_read(&net->transport, offsetof(struct virtio_net_config, mtu), &mtu, 2) ||
        mtu < VIRTNET_MTU_MIN) {
        log_warn("virtio", "config mtu is %u, valid is %u to 65535: refused, %u is used", mtu, VIRTNET_MTU_MIN,
                 net->mtu);
        request->off |= FEATURE_BIT(VIRTIO_NET_F_MTU);
        return;
    }
    net->mtu = mtu;
}

/* The device's address, or a random locally administered one. A group address or all zeroes is refused. (5.1.5) */
static void read_mac(struct virtnet *net)
{
    bool have = virtnet_has(net, VIRTIO_NET_F_MAC) && net->transport.ops->config_read(&net->transport, 0, net->mac, 6);
    static const uint8_t zero[6];
    if (have && (net->mac[0] & 1) == 0 && memcmp(net->mac, zero, 6) != 0)
        return;
    if (have)
        log_warn("virtio", "config mac is %02x:%02x:%02x:%02x:%02x:%02x, no station's address: a random one is used",
                 net->mac[0], net->mac[1], net->mac[2], net->mac[3], net->mac[4], net->mac[5]);
    uint64_t r = random_next();
    memcpy(net->mac, &r, 6);
    net->mac[0] = (uint8_t)((net->mac[0] & ~1u) | 2);
}

bool virtnet_link_up(struct virtnet *net)
{
    uint16_t status = VIRTIO_NET_S_LINK_UP;
    if (virtnet_has(net, VIRTIO_NET_F_STATUS))
        net->transport.ops->config_read(&net->transport, offsetof(struct virtio_net_config, status), &status, 2);
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

static bool enable_queue(struct virtnet *net, const struct virtqueue *vq, uint16_t vector, struct virtio_error *error)
{
    const char *wrong = net->transport.ops->queue_enable(&net->transport, vq, vector);
    if (wrong == NULL)
        return true;
    return virtio_fail(&net->transport, error, "queue %u (size %u, vector 0x%x): %s", vq->index, vq->size, vector,
                       wrong);
}

bool virtnet_init(struct virtnet *net, const struct pci_device *pci, const struct feature_request *request,
                  uint16_t ring_max, struct virtio_error *error)
{
    struct feature_request asked = *request;
    struct feature_choice choice;
    *net = (struct virtnet){ .pci = *pci, .ring_max = ring_max };
    net->pair.net = net;
    if (!open_pci(net, error) || !virtio_start(&net->transport, error))
        return false;
    read_mtu(net, &asked);
    if (!virtio_negotiate(&net->transport, &asked, &choice, error))
        return false;
    net->features = choice.acknowledged;
    read_mac(net);
    struct vectors vector = setup_interrupts(net);
    if (net->msix.count > 0 && !net->transport.ops->config_vector(&net->transport, vector.config))
        log_warn("virtio", "msix_config does not keep vector %u: link changes go unnoticed", vector.config);
    if (!virtnet_pair_init(&net->pair, 0, error) || !enable_queue(net, &net->pair.rx, vector.rx, error) ||
        !enable_queue(net, &net->pair.tx, vector.tx, error))
        return false;
    virtnet_refill(&net->pair);
    if (!virtio_go(&net->transport, error))
        return false;
    virtnet_flush(&net->pair);
    return true;
}

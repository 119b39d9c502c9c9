/* The modern PCI transport (virtio 1.3, 4.1): four structures, each at a place that a capability names. */
#include <stddef.h>
#include <string.h>
#include <linux/virtio_pci.h>
#include "drivers/virtio/transport.h"
#include "kernel/console.h"
#include "kernel/pci_host.h"
#include "kernel/x86.h"

#define COMMON(t, field) ((t)->common + offsetof(struct virtio_pci_common_cfg, field))
#define GENERATION_TRIES 1000
#define MAX_CAPABILITIES 48
#define CAPABILITIES_END 256u
#define CONFIG_MOST      0x1000u /* of the device's configuration; what is defined is far shorter */

static uint8_t modern_status(struct virtio_transport *t)
{
    return mmio_read8(COMMON(t, device_status));
}

static void modern_set_status(struct virtio_transport *t, uint8_t status)
{
    mmio_write8(COMMON(t, device_status), status);
}

static uint64_t modern_features(struct virtio_transport *t)
{
    mmio_write32(COMMON(t, device_feature_select), 0);
    uint64_t low = mmio_read32(COMMON(t, device_feature));
    mmio_write32(COMMON(t, device_feature_select), 1);
    return low | (uint64_t)mmio_read32(COMMON(t, device_feature)) << 32;
}

static void modern_set_features(struct virtio_transport *t, uint64_t features)
{
    mmio_write32(COMMON(t, guest_feature_select), 0);
    mmio_write32(COMMON(t, guest_feature), (uint32_t)features);
    mmio_write32(COMMON(t, guest_feature_select), 1);
    mmio_write32(COMMON(t, guest_feature), (uint32_t)(features >> 32));
}

static uint16_t modern_queue_size(struct virtio_transport *t, uint16_t queue)
{
    if (queue >= mmio_read16(COMMON(t, num_queues)))
        return 0;
    mmio_write16(COMMON(t, queue_select), queue);
    return mmio_read16(COMMON(t, queue_size));
}

static void write_address(volatile char *low, volatile char *high, const void *address)
{
    mmio_write32(low, (uint32_t)(uintptr_t)address);
    mmio_write32(high, (uint32_t)((uintptr_t)address >> 32));
}

static const char *modern_queue_enable(struct virtio_transport *t, struct virtqueue *vq, uint16_t vector)
{
    mmio_write16(COMMON(t, queue_select), vq->index);
    mmio_write16(COMMON(t, queue_size), vq->size);
    if (mmio_read16(COMMON(t, queue_size)) != vq->size)
        return "queue_size does not keep what was written";
    mmio_write16(COMMON(t, queue_msix_vector), vector);
    if (mmio_read16(COMMON(t, queue_msix_vector)) != vector)
        return "queue_msix_vector does not keep what was written";
    uint64_t at = (uint64_t)mmio_read16(COMMON(t, queue_notify_off)) * t->notify_multiplier;
    if (at + sizeof(uint16_t) > t->notify_length)
        return "queue_notify_off lies beyond the notification structure";
    if (at % 2 != 0) /* the multiplier is 0 or even (4.1.4.4.1) */
        return "queue_notify_off names an odd address";
    vq->notify = (volatile uint16_t *)(t->notify + at);
    write_address(COMMON(t, queue_desc_lo), COMMON(t, queue_desc_hi), vq->desc);
    write_address(COMMON(t, queue_avail_lo), COMMON(t, queue_avail_hi), vq->avail);
    write_address(COMMON(t, queue_used_lo), COMMON(t, queue_used_hi), vq->used);
    mmio_write16(COMMON(t, queue_enable), 1);
    return NULL;
}

static void modern_notify(struct virtio_transport *t, const struct virtqueue *vq)
{
    (void)t;
    *vq->notify = vq->index;
}

static bool modern_config_vector(struct virtio_transport *t, uint16_t vector)
{
    mmio_write16(COMMON(t, msix_config), vector);
    return mmio_read16(COMMON(t, msix_config)) == vector;
}

static bool modern_config_read(struct virtio_transport *t, uint32_t offset, void *to, uint32_t n)
{
    if (offset > t->config_length || n > t->config_length - offset)
        return false;
    for (unsigned tries = 0; tries < GENERATION_TRIES; tries++) {
        uint8_t before = mmio_read8(COMMON(t, config_generation));
        /* Fields are read by their own width (4.1.3.1): bytes are right for the MAC and other arrays. */
        if (n == 2)
            memcpy(to, &(uint16_t){ mmio_read16(t->config + offset) }, 2);
        else if (n == 4)
            memcpy(to, &(uint32_t){ mmio_read32(t->config + offset) }, 4);
        else
            for (uint32_t i = 0; i < n; i++)
                ((uint8_t *)to)[i] = mmio_read8(t->config + offset + i);
        if (mmio_read8(COMMON(t, config_generation)) == before)
            return true;
    }
    log_warn("virtio", "config_generation does not stand still in %u readings", GENERATION_TRIES);
    return false;
}

static uint8_t modern_isr(struct virtio_transport *t)
{
    return mmio_read8(t->isr);
}

static const struct virtio_transport_ops modern_ops = {
    .name = "modern",
    .status = modern_status,
    .set_status = modern_set_status,
    .features = modern_features,
    .set_features = modern_set_features,
    .queue_size = modern_queue_size,
    .queue_size_free = true,
    .queue_enable = modern_queue_enable,
    .notify = modern_notify,
    .config_vector = modern_config_vector,
    .config_read = modern_config_read,
    .isr = modern_isr,
};

/* Maps the structure that the capability at `at` describes, no more of it than `most` bytes (4.1.4.1); *length: how
 * many. NULL if it cannot be used: no memory BAR there, or it does not lie within it, or is shorter than `least`, or
 * not aligned as the specification wants it. */
static volatile char *map_structure(const struct pci_device *pci, uint8_t at, uint32_t least, uint64_t most,
                                    uint32_t align, uint32_t *length)
{
    uint8_t bar = (uint8_t)pci_read(pci, (uint16_t)(at + offsetof(struct virtio_pci_cap, bar)), 1);
    uint32_t offset = pci_read(pci, (uint16_t)(at + offsetof(struct virtio_pci_cap, offset)), 4);
    *length = pci_read(pci, (uint16_t)(at + offsetof(struct virtio_pci_cap, length)), 4);
    if (bar > 5 || *length < least || offset % align != 0 || (uint64_t)offset + *length > pci->bar[bar].size)
        return NULL;
    if (*length > most)
        *length = (uint32_t)most;
    return pci_map_window(pci, bar, offset, *length);
}

/* Takes the capability if it is the first usable one of its type (4.1.4). */
static void take_capability(struct virtio_transport *t, uint8_t at)
{
    uint8_t type = (uint8_t)pci_read(t->pci, (uint16_t)(at + offsetof(struct virtio_pci_cap, cfg_type)), 1);
    uint32_t length,
        own = type == VIRTIO_PCI_CAP_NOTIFY_CFG ? sizeof(struct virtio_pci_notify_cap) : sizeof(struct virtio_pci_cap);
    if (at + own > CAPABILITIES_END) /* what would be read behind is none of it */
        return;
    if (type == VIRTIO_PCI_CAP_COMMON_CFG && t->common == NULL) {
        length = sizeof(struct virtio_pci_common_cfg);
        t->common = map_structure(t->pci, at, length, length, 4, &length);
    } else if (type == VIRTIO_PCI_CAP_NOTIFY_CFG && t->notify == NULL) {
        t->notify_multiplier = pci_read(t->pci, (uint16_t)(at + sizeof(struct virtio_pci_cap)), 4);
        t->notify = map_structure(t->pci, at, 2, 0xffffull * t->notify_multiplier + 2, 2, &t->notify_length);
    } else if (type == VIRTIO_PCI_CAP_ISR_CFG && t->isr == NULL) {
        t->isr = map_structure(t->pci, at, 1, 1, 1, &length);
    } else if (type == VIRTIO_PCI_CAP_DEVICE_CFG && t->config == NULL) {
        t->config = map_structure(t->pci, at, 1, CONFIG_MOST, 4, &t->config_length);
    }
}

const char *virtio_pci_modern_init(struct virtio_transport *t, const struct pci_device *pci)
{
    *t = (struct virtio_transport){ .ops = &modern_ops, .pci = pci };
    uint8_t at = 0;
    for (unsigned n = 0; n < MAX_CAPABILITIES && (at = pci_find_capability(pci, PCI_CAP_VENDOR, at)) != 0; n++)
        take_capability(t, at); /* counted: a list that bites its tail ends here */
    if (t->common == NULL)
        return "no usable common configuration structure (a legacy device is not driven yet)";
    if (t->notify == NULL)
        return "no usable notification structure";
    if (t->isr == NULL)
        return "no usable ISR status structure";
    if (t->config == NULL)
        return "no usable device configuration structure";
    return NULL;
}

void virtio_pci_modern_attach(struct virtio_transport *t, const struct virtio_transport *found)
{
    *t = *found;
    t->ops = &modern_ops; /* this copy's own functions */
    t->pci = NULL;        /* configuration space is core 0's */
}

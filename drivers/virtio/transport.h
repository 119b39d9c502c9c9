/* How a virtio device's registers are reached: one operation table per transport. Knows no rings beyond their
 * addresses. */
#ifndef RINGSIDE_VIRTIO_TRANSPORT_H
#define RINGSIDE_VIRTIO_TRANSPORT_H
#include <stdbool.h>
#include <stdint.h>
#include "drivers/virtio/ring.h"
#include "kernel/pci.h"

#define VIRTIO_NO_VECTOR 0xffff /* VIRTIO_MSI_NO_VECTOR */

struct virtio_transport;

struct virtio_transport_ops {
    const char *name;
    /* device_status (2.1). Writing 0 asks for a reset; it is done when 0 is read back. */
    uint8_t (*status)(struct virtio_transport *t);
    void (*set_status)(struct virtio_transport *t, uint8_t status);
    /* The 64 feature bits: those the device offers, and the driver's choice (2.2). */
    uint64_t (*features)(struct virtio_transport *t);
    void (*set_features)(struct virtio_transport *t, uint64_t features);
    /* The largest size of a queue; 0: there is no such queue. */
    uint16_t (*queue_size)(struct virtio_transport *t, uint16_t queue);
    /* True if a smaller size than the largest can be chosen (legacy devices' rings have a fixed size). */
    bool queue_size_free;
    /* Tells the device where the queue lies, its size and its interrupt vector (VIRTIO_NO_VECTOR: none), reads size and
     * vector back, enables it and fills in vq->notify. NULL, or what the device refused. (4.1.5.1.3) */
    const char *(*queue_enable)(struct virtio_transport *t, struct virtqueue *vq, uint16_t vector);
    /* Tells the device that there is something new in the queue (2.9). Any core may, for its own queues. */
    void (*notify)(struct virtio_transport *t, const struct virtqueue *vq);
    /* Sets the interrupt vector of configuration changes; false if the device refused it. */
    bool (*config_vector)(struct virtio_transport *t, uint16_t vector);
    /* Reads bytes of the device's own configuration, all from one generation (2.5.3). False when there are not so many,
     * or the generation does not stand still. */
    bool (*config_read)(struct virtio_transport *t, uint32_t offset, void *to, uint32_t n);
    /* Reads and thereby acknowledges the interrupt status: bit 0 queues, bit 1 configuration (4.1.4.5). For INTx only.
     */
    uint8_t (*isr)(struct virtio_transport *t);
};

/* A device on PCI, with modern registers (virtio 1.3, 4.1). */
struct virtio_transport {
    const struct virtio_transport_ops *ops;
    const struct pci_device *pci;
    volatile char *common, *isr, *config, *notify; /* the four structures, in their BARs */
    uint32_t config_length, notify_length, notify_multiplier;
};

/* Finds the modern structures of `pci` (BARs sized, memory decoding on): of each type the first usable one. NULL, or
 * what is missing. */
const char *virtio_pci_modern_init(struct virtio_transport *t, const struct pci_device *pci);

/* On a further core: takes over what another core's virtio_pci_modern_init() found. */
void virtio_pci_modern_attach(struct virtio_transport *t, const struct virtio_transport *found);
#endif

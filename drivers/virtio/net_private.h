/* Between net.c and net_queue.c only. */
#ifndef RINGSIDE_VIRTIO_NET_PRIVATE_H
#define RINGSIDE_VIRTIO_NET_PRIVATE_H
#include "drivers/virtio/net.h"

/* Makes pair `number`'s virtqueues (receive queue 2 * number, transmit queue 2 * number + 1; 5.1.2), buffers and slots.
 */
bool virtnet_pair_init(struct virtnet_pair *pair, uint16_t number, struct virtio_error *error);

/* Gives a queue that has been laid out for the first time a recorder. */
bool virtnet_record(struct virtqueue *vq, struct virtio_error *error);
#endif

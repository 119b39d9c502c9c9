/* Checksum offload of a frame to send. */
#ifndef RINGSIDE_NET_OFFLOAD_H
#define RINGSIDE_NET_OFFLOAD_H
#include <stdint.h>
#include <linux/virtio_net.h>

/* If the frame (its first `n` bytes at `frame`, Ethernet header first) is TCP or UDP and no fragment, asks the device
 * for the checksum: NEEDS_CSUM with start and offset in *header, and the sum of the pseudo-header in the checksum's
 * place (virtio 1.3, 5.1.6.2). A frame whose checksum field is filled in already is left alone, so that what must not
 * be offloaded can be finished in software. Returns true if it asked. */
int offload_checksum(struct virtio_net_hdr_v1 *header, uint8_t *frame, uint32_t n);

/* After offload_checksum() has asked for its checksum: asks the device to cut a TCP segment, or a packet of several
 * datagrams, into pieces of `gso_size` bytes of data, and says how long the headers are, exactly (GUEST_HDRLEN).
 * `frame` holds the headers at least. (5.1.6.2) */
void offload_segmentation(struct virtio_net_hdr_v1 *header, const uint8_t *frame, uint16_t gso_size);
#endif

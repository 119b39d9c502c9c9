/* Receive buffers as pbufs, on the core whose pool they are from and on others. */
#ifndef RINGSIDE_NET_BUFFER_H
#define RINGSIDE_NET_BUFFER_H
#include "drivers/virtio/net.h"
#include "kernel/public.h"
#include "lwip/pbuf.h"

/* This core's pool. */
void buffers_init(const struct rx_pool *pool);

/* The frame as a pbuf chain over its own buffers, without `skip` bytes at its start. A buffer goes home when its pbuf
 * is freed. The frame must not be longer than 65,535 bytes. */
struct pbuf *buffers_wrap(const struct virtnet_frame *frame, uint32_t skip);

/* True if the frame's buffers are this core's and few are left: then it is better copied than kept. */
bool buffers_low(const struct virtnet_frame *frame);

/* The frame copied to the heap; its buffers go home. NULL: no memory. */
struct pbuf *buffers_copy(const struct virtnet_frame *frame, uint32_t skip);

/* Gives all of the frame's buffers back. */
void buffers_release(const struct virtnet_frame *frame);

/* Links the frame's buffers, each with its length and its home, so that the first stands for all on another core; and
 * there, makes a frame of them again (flags aside). */
void buffers_link(const struct virtnet_frame *frame);
void buffers_unlink(struct rx_buffer *first, struct virtnet_frame *frame);

/* Takes the buffers of this core that others returned back into their pool. Adds their number to *count, and returns
 * it. */
unsigned buffers_come_home(struct public_core *face, uint64_t *count);
#endif

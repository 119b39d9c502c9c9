/* The whole of the guest above its driver, on one core, on the host: net/, the real lwIP with the guest's configuration
 * and patch, and all servers, over a queue pair whose device is the target's. It is started once; stack_settle() ends
 * what an input has left, and sees that nothing of it is still held. */
#ifndef RINGSIDE_FUZZ_STACK_H
#define RINGSIDE_FUZZ_STACK_H
#include "tests/fuzz/fuzz.h"
#include "lwip/netif.h"
#include <linux/virtio_net.h>

extern struct netif *stack_netif;

/* Starts it: 198.18.0.2/15 and fd00::2; called again it does nothing. */
void stack_start(void);

/* The device writes a frame, its header in front, into as many receive buffers as it takes. It is for the guest with
 * stack_turn(); false: there are too few buffers. */
bool stack_give(const struct virtio_net_hdr_v1 *header, const uint8_t *frame, uint32_t n);

/* A turn of the core's loop; then the device sends what there is to send, unless it is busy (stack_busy). Each frame
 * is checked and handed to `see`. */
void stack_turn(void);
extern bool stack_busy;
extern void (*stack_see)(const uint8_t *frame, uint32_t n);

/* Lets so much time go by, timers and all. */
void stack_pass(uint32_t ms);

/* Memory: the next but `n` request that the heap gets is refused (0: none is); and whether little is left. */
extern unsigned stack_refuse;
extern bool stack_memory_low;

/* Ends all connections, lets time go by until all that they had is given up; every receive buffer is back then. */
void stack_settle(void);
#endif

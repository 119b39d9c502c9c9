/* A queue pair of a virtio-net device, with a fake device behind both of its rings, and an account of every receive
 * buffer and transmit slot: at any moment each is in exactly one place. */
#ifndef RINGSIDE_NET_RIG_H
#define RINGSIDE_NET_RIG_H
#include <linux/if_ether.h>
#include <linux/virtio_config.h>
#include "drivers/virtio/net.h"
#include "drivers/virtio/net_private.h"
#include "tests/unit/fake_console.h"
#include "tests/unit/fake_device.h"
#include "tests/unit/unit.h"

#define RIG_TOKENS 8192

struct net_config {
    uint16_t rx_size, tx_size;
    uint64_t features;
    uint16_t mtu;     /* 0: 1500 */
    uint32_t buffers; /* at most so many receive buffers; 0: as many as the pair wants */
    uint16_t number;  /* of the pair */
    bool no_room;     /* not even for one buffer */
};

/* A frame that the device writes: a header, and `bytes` of frame behind it, whose contents follow from `seed`. */
struct net_frame {
    struct virtio_net_hdr_v1_hash header;
    uint32_t bytes;
    uint8_t seed;
};

struct net_rig {
    struct virtnet net;
    struct virtnet_pair *pair; /* &net.pair */
    struct fake_device rx, tx;
    void *memory[16];
    unsigned memory_count;
    unsigned allocations_left; /* then there is no memory */
    uint64_t untouched;
    unsigned rx_bells, tx_bells, other_bells;
    const struct virtqueue *other_bell[16]; /* whose */

    /* Buffers and slots that are the test's at the moment. */
    struct rx_buffer *held[4096];
    unsigned held_count;
    struct tx_slot *slot[64];
    unsigned slot_count;
};
extern struct net_rig net_rig;

#define MRG   FEATURE_BIT(VIRTIO_NET_F_MRG_RXBUF)
#define CSUM  FEATURE_BIT(VIRTIO_NET_F_GUEST_CSUM)
#define HASH  FEATURE_BIT(VIRTIO_NET_F_HASH_REPORT)
#define EVENT FEATURE_BIT(VIRTIO_RING_F_EVENT_IDX)
#define INDIR FEATURE_BIT(VIRTIO_RING_F_INDIRECT_DESC)

/* Sets everything up to the point where the device has seen the receive buffers. False: virtnet_pair_init() failed. */
bool net_rig_try_open(const struct net_config *config, struct virtio_error *error);
void net_rig_open(const struct net_config *config);
void net_rig_close(void);

/* Byte i of a frame. */
uint8_t net_rig_byte(uint8_t seed, uint32_t i);

/* The device writes the frame into the next buffers it has, each filled up, and returns them; header.hdr.num_buffers is
 * set to how many that takes. False, and nothing is done: it has not enough. Not published. */
bool net_rig_write(struct net_frame *frame);

/* The device writes `n` bytes into the next buffer, from `bytes`, and says that it wrote `claimed`. */
bool net_rig_write_raw(const void *bytes, uint32_t n, uint32_t claimed);

/* Buffers that the device has. */
unsigned net_rig_buffers(void);

/* The test keeps the buffers of a received frame; gives number i of the buffers it has back. */
void net_rig_hold(const struct virtnet_frame *frame);
void net_rig_release(unsigned i);

/* Every buffer is in the pool, with the device, or held by the test: one of them, once. Every slot is free, with the
 * device, or the test's. And the counters agree. */
void net_rig_check_buffers(void);
void net_rig_check_slots(void);

/* virtnet_flush() rings each bell at most once, and a device that sleeps while there is work is told. It is awake then.
 */
void net_rig_flush(void);
#endif

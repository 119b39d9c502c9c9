/* A whole virtio-net device from the driver's end to its registers: net.c and all below it on modern_rig, with a
 * fake_device that answers the control queue and notes what it was asked. */
#ifndef RINGSIDE_CLAUSES_RIG_H
#define RINGSIDE_CLAUSES_RIG_H
#include <linux/virtio_config.h>
#include "drivers/virtio/net.h"
#include "tests/unit/modern_rig.h"

#define F(name)  FEATURE_BIT(VIRTIO_NET_F_##name)
#define VERSION1 FEATURE_BIT(VIRTIO_F_VERSION_1)

/* device_status (2.1). */
#define DRIVER_OK   4
#define FEATURES_OK 8
#define FAILED      0x80

struct clauses_command {
    uint8_t class, command;
    uint16_t word;         /* the first of its data */
    uint8_t status;        /* of the device when it came, */
    unsigned enabled;      /* queues enabled then, */
    uint16_t transmitting; /* frames in transmit queues */
};

struct clauses_rig {
    struct virtnet net, core[4]; /* core 0's, and the others': core[0] is not used */
    struct virtio_error error;
    struct virtio_net_config config;
    struct {
        void (*handler)(void *argument);
        void *argument;
    } irq[256];
    struct clauses_command command[16];
    unsigned commands;
    unsigned early_bells; /* notifications before DRIVER_OK */
};
extern struct clauses_rig rig;

/* For cmocka. */
int clauses_set_up(void **state);
int clauses_tear_down(void **state);

/* A new device with the four structures and `vectors` MSI-X vectors (0: none). */
void clauses_plain(unsigned vectors);

/* It has so many pairs, and a control queue. */
void clauses_offer_pairs(uint16_t pairs);

/* virtnet_probe() with these features off: up to FEATURES_OK. */
bool clauses_probe(uint64_t off, uint16_t ring_max, uint16_t pairs);

/* virtnet_start() of so many pairs, whose cores have laid theirs out. */
bool clauses_start(uint16_t pairs);

/* All the rest after a probe: one pair per core. */
bool clauses_bring_up(uint16_t pairs);

/* All of it, with rings of 16 and 4 pairs to be had if more than one is wanted. */
void clauses_run(unsigned vectors, uint16_t pairs);

/* The available ring of an enabled queue. */
const struct vring_avail *clauses_available(unsigned queue);

/* The interrupt of that vector comes. */
void clauses_raise(uint8_t vector);
#endif

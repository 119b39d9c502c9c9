/* A virtio-net device on the fake PCI function and registers of modern_rig, for tests of its being set up. */
#ifndef RINGSIDE_SETUP_RIG_H
#define RINGSIDE_SETUP_RIG_H
#include "tests/unit/modern_rig.h"

#include <linux/virtio_config.h>
#include "drivers/virtio/net.h"

#define F(name)  FEATURE_BIT(VIRTIO_NET_F_##name)
#define VERSION1 FEATURE_BIT(VIRTIO_F_VERSION_1)
#define FAILED   0x80

struct setup {
    struct virtnet net;
    struct virtio_error error;
    struct virtio_net_config config; /* the device's */
    void *memory[32];
    unsigned memory_count;
    struct {
        void (*handler)(void *argument);
        void *argument;
    } irq[256];
    int pic_line; /* -1: none was enabled */
    unsigned shared_interrupts;
};
extern struct setup setup;

/* A good device with one pair; afterwards its memory is freed. */
int set_up(void **state);
int tear_down(void **state);

/* MSI-X with so many vectors, its table at the beginning of BAR 0, all entries masked. */
void setup_add_msix(unsigned count);
/* It offers so many pairs, and a control queue. */
void setup_offer_pairs(uint16_t pairs);

bool setup_probe_asking(uint64_t off, uint64_t required, uint16_t ring_max, uint16_t want);
bool setup_probe(void);

/* Sets everything up with MSI-X, with one pair per core: core i has APIC id 10 + i. */
bool setup_start_with_rings(unsigned vectors, uint16_t pairs, uint16_t ring_max);
bool setup_start(unsigned vectors, uint16_t pairs);

/* A word of an MSI-X entry; and that an entry sends this vector to this APIC. */
uint32_t setup_entry(unsigned i, unsigned word);
void setup_check_entry(unsigned i, uint32_t apic_id, uint8_t vector);

/* What is said: both parts are in the reason for a failure, or in the one warning. */
void setup_check_reason(const char *part, const char *another);
void setup_check_warned(const char *part, const char *another);
#endif

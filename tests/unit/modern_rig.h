/* A PCI function with the structures of a modern virtio device: configuration space (fake_pci), BARs in memory, and
 * registers that behave as the specification says (virtio 1.3, 4.1.4) or lose what is written. pci_modern.c is compiled
 * with these registers in place of the processor's accesses. */
#ifndef RINGSIDE_MODERN_RIG_H
#define RINGSIDE_MODERN_RIG_H
#include "drivers/virtio/transport.h"
#include "tests/unit/fake_console.h"
#include "tests/unit/fake_pci.h"
#include "tests/unit/unit.h"

#define COMMON_LENGTH  56
#define MODERN_QUEUES  16
#define MODERN_LOG     1024
#define TYPES          4
#define MODERN_WINDOWS 256

/* The structures' types (4.1.4); the first four in the order in which a missing one is reported. */
enum { CAP_COMMON = 1, CAP_NOTIFY, CAP_ISR, CAP_DEVICE, CAP_PCI, CAP_SHARED_MEMORY = 8 };

/* BARs 0 and 4 are in memory, 64 bits wide; 2 is in I/O space; 3 has no address. In BAR 4 lie the good structures. */
#define BAR_SIZE      0x10000u
#define ISR_AT        0x1000u
#define DEVICE_AT     0x2000u
#define NOTIFY_AT     0x8000u
#define NOTIFY_LENGTH 0x1000u

struct modern_queue {
    uint16_t size, vector, notify_off;
    bool enabled;
    uint64_t area[3]; /* desc, avail, used */
};

/* A write to the register at that offset of the common structure. */
struct modern_write {
    uint16_t at;
    uint32_t value;
};

/* What lies behind the registers. */
struct modern_device {
    uint64_t offered, accepted;
    uint32_t offer_select, accept_select;
    uint16_t config_vector, queue_count, queue_select;
    uint8_t status, isr;
    struct modern_queue queue[MODERN_QUEUES];
    bool loses_size, loses_vector, loses_config_vector;

    const uint8_t *config; /* the device's configuration; NULL: bytes of a pattern */
    uint8_t generation;
    uint32_t changes_left; /* times that the configuration changes when it has been read; UINT32_MAX: always */
    uint32_t config_reads, generation_reads;
    unsigned accesses, misfits; /* misfits: not of the register's width */

    struct modern_write log[MODERN_LOG]; /* what was written to the common structure, in order */
    unsigned log_count;
    uint64_t config_touched; /* a bit for each of the configuration's first 64 bytes that was read */
    unsigned isr_reads;
    bool offers_beyond;                /* all feature bits from 64 on are offered too */
    void (*on_status)(uint8_t status); /* called before the device takes a new status */
    /* What a read gives instead of `value`; `at`: where in BAR 4. NULL: the registers are as they are. */
    uint32_t (*on_read)(uint32_t at, unsigned width, uint32_t value);
};

/* Addresses that were mapped. */
struct modern_window {
    uint64_t start, size;
};

struct modern_rig {
    struct modern_device dev;
    struct fake_pci pci;
    struct fake_function *function;
    struct pci_device device;
    struct virtio_transport transport;
    char *bar[6];
    struct modern_window window[MODERN_WINDOWS];
    unsigned window_count;
    unsigned next_cap; /* where the next capability goes */
};
extern struct modern_rig modern;

/* For cmocka: BARs are made once for all tests, the device anew for each. */
int modern_make_bars(void **state);
int modern_free_bars(void **state);
int modern_set_up(void **state);

/* Whether these bytes of a BAR lie in one window that was mapped. */
bool modern_mapped(unsigned bar, uint32_t at, uint32_t size);

/* Byte i of the device's configuration as it is now. */
uint8_t modern_config_byte(uint32_t i);

/* Puts a capability behind the last one; returns where it is. */
unsigned modern_add_cap(uint8_t id, uint8_t length);

/* The same for a structure; that for notifications is followed by a multiplier of 4. */
unsigned modern_add_structure(uint8_t type, uint8_t bar_index, uint32_t offset, uint32_t length);

/* Offset in BAR 4 and length of the good structure of each type; how short it may be, how its offset must be aligned,
 * and what is said when there is none. */
struct good_structure {
    uint32_t offset, length, least, alignment;
    const char *missing;
};
extern const struct good_structure good[TYPES + 1];

void modern_add_good(uint8_t type);

/* The good ones of all types but `without` (0: all). */
void modern_add_all_good_but(uint8_t without);

/* Finds the device on the bus, sizes its BARs. */
void modern_find_device(void);

/* Does that and starts the transport; returns its verdict. Checks that nothing is changed by looking. */
const char *modern_init(void);

/* The structures in use are the good ones. */
void modern_check_good(void);

/* A queue with its rings at a fixed place. */
struct virtqueue modern_ring(uint16_t index, uint16_t size);
uint64_t modern_area(unsigned i);
#endif

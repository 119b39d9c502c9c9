/* A virtqueue and a fake device on the same memory, and buffers whose shape follows from their number: the device
 * recognises a buffer by what it reads, the driver by what it gets back. */
#ifndef RINGSIDE_RIG_H
#define RINGSIDE_RIG_H
#include "drivers/virtio/recorder.h"
#include "tests/unit/fake_device.h"
#include "tests/unit/unit.h"

/* A buffer's shape: pieces that the device reads, and that it writes. */
struct rig_shape {
    uint16_t out, in;
};

enum rig_state { RIG_UNKNOWN, RIG_ADDED, RIG_TAKEN, RIG_BACK };

struct rig_buffer {
    enum rig_state state;
    struct rig_shape shape;
    uint32_t writable, written; /* bytes */
};

struct rig {
    struct virtqueue vq;
    struct fake_device dev;
    void *mem;
    uint64_t next;  /* number of the next buffer to add */
    uint64_t back;  /* buffers that came back */
    uint64_t limit; /* numbers that there is room for in buffer[] */
    struct rig_buffer *buffer;
    bool concurrent; /* the device may act in the middle of what the driver does */
    bool driver_asleep;
    uint16_t patience; /* returned buffers that the sleeping driver agreed to let lie */
    uint64_t seed;
    struct recorder recorder; /* attached where RIG_RECORDED is defined */
};

void rig_open(struct rig *rig, uint16_t size, bool event_idx, uint16_t indirect_max, uint64_t limit);
void rig_close(struct rig *rig);

/* A queue that has been running: all indices at `index`. Nothing may be in flight. */
void rig_start_at(struct rig *rig, uint16_t index);

/* The shape of buffer n, at most `max` pieces; by `salt` another one. */
struct rig_shape rig_shape(uint64_t n, uint16_t max, uint64_t salt);

/* Adds buffer rig->next of that shape. Returns what virtqueue_add() did; checks capacity, and that a refused one
 * changes nothing. */
int rig_add(struct rig *rig, struct rig_shape shape);

/* The device takes the next buffer and compares all its pieces with what was added. False: none there. */
bool rig_take(struct rig *rig);

/* The device returns held buffer i, having written some number of bytes that follows from the buffer; not yet
 * published. */
void rig_return(struct rig *rig, uint16_t i);

/* The driver pops the next buffer and checks it. False: none there. */
bool rig_pop(struct rig *rig);

/* The driver asks for an interrupt, late or at the next buffer, and sleeps if it may. Returns whether it does. */
bool rig_driver_sleep(struct rig *rig, bool late);

/* The promises of notification, at any moment: a sleeping device sees no work; a sleeping driver has no more returned
 * buffers than it agreed to let lie. */
void rig_check_no_one_sleeps_on_work(struct rig *rig);

/* The device has seen nothing wrong, and the queue found no fault. */
void rig_check_clean(struct rig *rig);
#endif

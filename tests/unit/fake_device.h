/* The device's side of a split virtqueue, written from the specification alone (virtio 1.3, 2.7): it knows the three
 * areas and the queue size, nothing of the driver. It checks whatever the driver makes available; the first thing that
 * is wrong is in `violation`. It can be correct or lie: see fake_device_lie(). */
#ifndef RINGSIDE_FAKE_DEVICE_H
#define RINGSIDE_FAKE_DEVICE_H
#include <linux/virtio_ring.h>
#include <stdbool.h>
#include <stdint.h>

struct fake_piece {
    uint64_t addr;
    uint32_t len;
    bool writable;
};

/* A buffer that the device has taken from the available ring. `piece` is valid until the next one is taken. */
struct fake_chain {
    uint16_t head;
    bool indirect;
    uint32_t pieces;
    uint64_t readable, writable; /* bytes */
    const struct fake_piece *piece;
};

/* What the device remembers of a buffer until it returns it. */
struct fake_held {
    uint64_t tag; /* the first piece's address */
    uint64_t writable;
    uint16_t head;
};

struct fake_device {
    /* The areas and what was negotiated. */
    struct vring_desc *desc;
    struct vring_avail *avail;
    struct vring_used *used;
    uint16_t size;
    bool event_idx, indirect;
    bool scribble; /* overwrite descriptors and available entries once they have been read, and unused memory of the
                      used ring */

    uint16_t last_avail; /* next available entry to take */
    uint16_t used_idx;   /* next used entry to write; the driver sees it with fake_device_publish() */
    uint16_t told;       /* used->idx when the device last looked whether the driver wants an interrupt */
    bool asleep;         /* it waits for a notification */

    struct fake_held *held; /* circular, [size] */
    uint16_t held_first, held_count;
    uint16_t *owner; /* [size]: head + 1 of the chain that a descriptor belongs to while the device holds it, else 0 */
    uint16_t *next;  /* [size]: the descriptor behind it in its chain */
    struct fake_piece *piece;

    uint64_t taken, returned, interrupts, scribbles;
    char violation[200]; /* empty: none */
};

/* Sets up the device for a queue in the given state of index (0 for a new one). */
void fake_device_init(struct fake_device *dev, struct vring_desc *desc, struct vring_avail *avail,
                      struct vring_used *used, uint16_t size, bool event_idx, bool indirect);
void fake_device_free(struct fake_device *dev);

/* Starts from `index` instead of 0: both indices, in memory too. Nothing may be in flight. */
void fake_device_start_at(struct fake_device *dev, uint16_t index);

/* Entries of the available ring that have not been taken. */
uint16_t fake_device_available(struct fake_device *dev);

/* Takes the next available buffer, checks it, holds it. False: there is none. */
bool fake_device_take(struct fake_device *dev, struct fake_chain *chain);

/* Held buffer number i: 0 is the oldest, as long as they are returned in order. */
const struct fake_held *fake_device_held(const struct fake_device *dev, uint16_t i);

/* Writes a used entry for held buffer i; the driver does not see it before fake_device_publish(). */
void fake_device_return(struct fake_device *dev, uint16_t i, uint32_t written);

/* Makes used entries visible. Returns true if the driver is to be interrupted (2.7.7.2). */
bool fake_device_publish(struct fake_device *dev);

/* Asks for a notification when the entry `ahead` places behind the last one taken is made available (0: the very next),
 * and looks again. Returns true, and is asleep, if no such entry is there yet. Without event index `ahead` is taken as
 * 0. (2.7.10) */
bool fake_device_sleep(struct fake_device *dev, uint16_t ahead);

/* Asks for no notifications. */
void fake_device_poll(struct fake_device *dev);

/* Writes a used entry that need not be true; returns nothing it holds. */
void fake_device_lie(struct fake_device *dev, uint32_t id, uint32_t len);

/* Sets the used index in memory and for itself. */
void fake_device_jump(struct fake_device *dev, uint16_t used_idx);
#endif

/* The flight recorder of a virtqueue: what driver and device did with it lately, for who debugs one of them.
 *
 * Two sources. The ring's own memory still holds the last entries of both sides: reading them costs nothing before
 * somebody asks, but they have no times, and nothing in them tells of kicks and interrupts. A record has both, in the
 * order of events; it is made by an operation table that wraps the layout's (`vq->split` is false then), so that a
 * queue without one pays nothing for there being recorders. */
#ifndef RINGSIDE_VIRTIO_RECORDER_H
#define RINGSIDE_VIRTIO_RECORDER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "drivers/virtio/ring.h"

#define RECORDER_OPERATIONS 256 /* that are kept, or shown of what the ring holds: a power of two */
#define RECORDER_UNTAKEN    16  /* used entries not taken yet that are shown */
#define RECORDER_LINE       112 /* bytes of a printed line at most, its ending 0 included, */
#define RECORDER_LINES      (RECORDER_OPERATIONS + RECORDER_UNTAKEN + 6) /* and so many lines of a queue at most */

enum recorder_kind {
    RECORDER_LAID_OUT, /* value: buffers taken back before */
    RECORDER_ADD,      /* value: bytes */
    RECORDER_FULL,     /* an add that found no room; value: bytes, head: free descriptors */
    RECORDER_PUBLISH,  /* no kick was wanted; value: entries, head: the device's avail_event, or flags */
    RECORDER_KICK,     /* the same, and a kick was wanted */
    RECORDER_KICK_AGAIN,
    RECORDER_POP,       /* value: bytes written, as the device says */
    RECORDER_ARM,       /* value: the used index at which the interrupt is wanted */
    RECORDER_ARM_LATE,  /* the same, but the device was there already */
    RECORDER_DISARM,    /* no interrupt is wanted */
    RECORDER_INTERRUPT, /* one came, perhaps for another queue with the same vector */
    RECORDER_BAD_ID,    /* value: the id; skipped */
    RECORDER_BAD_LENGTH,
    RECORDER_BAD_INDEX, /* value: the used index; head: what had been made available */
};

/* One operation. The indices are the driver's, after it. */
struct recorder_entry {
    uint64_t us : 38; /* since the start, the lower bits: 76 hours */
    uint64_t kind : 5;
    uint64_t pieces : 5; /* of an added buffer; 31: or more */
    uint64_t head : 16;
    uint32_t value;
    uint16_t avail, used; /* next avail entry to fill, next used entry to take */
};
_Static_assert(sizeof(struct recorder_entry) == 16, "16 bytes");

struct recorder {
    const struct virtqueue_ops *ops; /* the layout's */
    uint64_t count;                  /* operations recorded, ever; the last ones are in entry[], by number */
    uint32_t detached;               /* buffers taken back since the ring was last laid out */
    struct recorder_entry entry[RECORDER_OPERATIONS];
};

/* Records from now on. After virtqueue_split_init(), each time; what was recorded before a reset stays. *recorder is
 * all zero the first time. */
void recorder_attach(struct virtqueue *vq, struct recorder *recorder);

/* Notes what is no operation of the ring's: RECORDER_INTERRUPT, RECORDER_KICK_AGAIN. Nothing if `vq` has no recorder.
 * Interrupts must be off, or come when the loop is not at the ring. */
void recorder_note(const struct virtqueue *vq, enum recorder_kind kind);

/* Takes a line, which has no line feed and begins with the queue: "q1 ...". */
typedef void (*recorder_print_fn)(void *context, const char *line);

/* Prints the queue's state and its last RECORDER_OPERATIONS operations, oldest first: from its record, else half of
 * them from each ring. Any core may do so at any time: nothing read is trusted, and what its owner changes meanwhile
 * may be shown half old, half new. */
void recorder_print(const struct virtqueue *vq, recorder_print_fn print, void *context);
#endif

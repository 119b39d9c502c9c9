/* Between the cores' stacks: every flow has one owner, whichever queue its packets come in by; what concerns all cores
 * (ARP, neighbour discovery, addresses, link) reaches all. Owner = indirection table at the standard RSS hash of the
 * flow, whatever the device does. */
#ifndef RINGSIDE_NET_STEER_H
#define RINGSIDE_NET_STEER_H
#include <stdbool.h>
#include <stdint.h>
#include "drivers/virtio/net.h"
#include "kernel/mailbox.h"
#include "lwip/netif.h"

struct steer_stats {
    uint64_t handed_over;    /* frames that came in here and belong to another core */
    uint64_t taken_over;     /* frames that other cores handed to this one */
    uint64_t spread;         /* frames passed to all cores */
    uint64_t dropped_mail;   /* frames dropped because the owner's mailbox was full */
    uint64_t dropped_memory; /* frames dropped for lack of memory for a copy */
    uint64_t swallowed;      /* answers that core 0 gives for all */
    uint64_t woken;          /* interrupts from other cores */
    uint64_t returned;       /* buffers that came home */
    uint64_t app_messages;   /* messages of applications that were delivered here */
    uint64_t dropped_app;    /* such messages lost for lack of memory */
    uint64_t hash_differs;   /* the device's hash of a flow is not ours */
};

/* Opens this core's mailbox. Before any frame moves. */
void steer_init(void);

/* Makes the table for so many queue pairs (cores), and for more than one what hashes are looked up in. Before frames
 * move, while there is memory for it; panics if not. */
void steer_plan(unsigned pairs);

/* Key (40 bytes) and indirection table (128 entries; NULL for one pair), for the device. */
const uint8_t *steer_key(void);
const uint8_t *steer_table(void);

/* The interface that frames and messages of other cores go to. */
void steer_start(struct netif *netif);

/* Looks where a received frame belongs. True: it was passed on or dropped, and its buffers are not the caller's any
 * more. False: it is for this core. `header`: bytes before the Ethernet header in the first buffer. */
bool steer_frame(const struct virtnet_frame *frame, uint32_t header);

/* True if a frame to send is one that only core 0 sends for all: ARP and neighbour answers, announcements,
 * solicitations of routers. */
bool steer_swallows(const struct pbuf *p);

/* Takes at most `budget` messages of other cores and the buffers they returned. Returns how many. */
unsigned steer_receive(unsigned budget);

/* Makes what was posted to other cores visible, waking those that sleep. */
void steer_flush(void);

/* True if steer_receive() would find something. */
bool steer_pending(void);

/* Before sleeping and after, as mailbox_sleep() and mailbox_awake(). */
bool steer_sleep(void);
void steer_awake(void);

/* Called by an interrupt that may be about other cores' queues: wakes those that sleep. */
void steer_wake_all(void);

/* Core 0 tells the others: the IPv4 address (network order), the link. */
void steer_tell_address(uint32_t ip, uint32_t mask, uint32_t gateway);
void steer_tell_link(bool up);

/* How many cores share the flows: 1 when there is nothing to steer. */
unsigned steer_cores(void);

/* A message between the parts of one application on two cores, or on one (then it comes in a later turn of the loop,
 * not from within the call). Data only: what the words mean is the application's business; a pointer among them means
 * something only to the core that it comes from, or as plain memory. Messages from one core to another keep their
 * order. */
struct app_message {
    uint32_t kind;
    uint64_t a, b, c;
};

/* Posts it for application number `app` (app_number()) on core `to`. A full mailbox does not lose it: it waits here,
 * and the loop does not sleep meanwhile. False: there is no memory for that, it is lost (counted as dropped_app). */
bool steer_post_app(unsigned to, unsigned app, const struct app_message *message);

const struct steer_stats *steer_stats(void);
const struct mailbox *steer_mailbox(void);
#endif

/* Who is at the other end: something that answers ARP and ICMP echo requests, or a backend that reflects frames. And
 * the questions to it. */
#ifndef RINGSIDE_CONFORM_PEER_H
#define RINGSIDE_CONFORM_PEER_H
#include "apps/conform/rig.h"
#include "kernel/bootline.h"

enum peer_kind { PEER_NONE, PEER_ANSWERS, PEER_REFLECTS };

struct peer {
    enum peer_kind kind;
    uint8_t ip[4], own[4]; /* its address and ours */
    uint8_t mac[6];        /* its Ethernet address; broadcast if it reflects */
};
extern struct peer peer;

#define PEER_PAYLOAD 32  /* bytes of an ordinary question */
#define PEER_WAIT    500 /* ms that an answer may take; asked again PEER_TRIES times where a lost frame is no fault */
#define PEER_TRIES   6

/* Brings the device up and finds out: peer= or the gateway of the boot line, or the router of a DHCP offer. */
void peer_find(const struct bootline *boot);

/* An Ethernet frame from us to the peer, of `protocol`, over IPv4: headers and `n` bytes of `payload`, IPv4's checksum
 * filled in. Returns its length. `frame` has room for 34 + n bytes. */
uint32_t peer_ip(uint8_t *frame, uint8_t protocol, const void *payload, uint32_t n);

/* The Internet checksum of n bytes that start at an even place of what is summed, in memory order; `sum`: of what was
 * summed before. */
uint16_t peer_sum(const void *bytes, uint32_t n, uint32_t sum);

/* A question: an ICMP echo request. All zero but for `bytes` is an ordinary one on pair 0. */
struct peer_question {
    uint16_t pair;  /* to send on */
    uint32_t bytes; /* of the payload */
    bool part;      /* the ICMP checksum is left to the device */
    struct rig_sending how;
};

/* Sends a question without waiting. Returns its number, which the answer carries; 0: there was no room. */
uint16_t peer_send(const struct peer_question *question);

/* True if the frame is the answer to question `number`, or its reflection, with the payload of `bytes` as it was sent.
 */
bool peer_is_answer(const struct rig_frame *frame, uint16_t number, uint32_t bytes);

/* Handles a frame that was not asked for: an ARP request for our address is answered. */
void peer_other(const struct rig_frame *frame);

/* Sends a question and waits for its answer; asks again in vain PEER_TRIES times. False: no answer. `frame` (or NULL)
 * gets the answer. What was sent is reclaimed. */
bool peer_ask(const struct peer_question *question, struct rig_frame *frame);

/* The simplest proof that both directions work: PASS, or FAIL with the evidence. */
enum verdict peer_works(uint32_t bytes);
#endif

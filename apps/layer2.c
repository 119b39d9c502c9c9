/* Layer 2 without a stack, what people who test a backend reach for first. Each core does the same on its own queue
 * pair.
 *
 * macswap: every frame goes back where it came from, its two addresses exchanged, in the buffer it came in.
 * rxonly: every frame is counted (rx_packets) and forgotten.
 * txonly:SIZE,COUNT: COUNT frames of SIZE bytes go out as fast as the ring takes them; over all cores in equal parts.
 */
#include <stdlib.h>
#include <string.h>
#include <linux/if_ether.h>
#include "apps/app.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/public.h"
#include "net/layer2.h"

#define FRAME_MIN   ETH_ZLEN /* 60: without the frame check sequence, which is the medium's */
#define FRAME_MAX   1514u
#define COUNT_MAX   1000000000u
#define NUMBER_AT   ETH_HLEN /* where a frame's number is: four bytes of core, eight of number, in network order */
#define NUMBER_SIZE 12u

#define LAYER2_APP(id, ports_, argument_, check_, layer2_)                                                             \
    APP(id, .ports = ports_, .argument = argument_, .check = check_, .layer2 = layer2_)

static void forget(struct virtnet_pair *pair, const struct virtnet_frame *frame)
{
    (void)pair;
    for (uint16_t i = 0; i < frame->count; i++)
        virtnet_release(frame->buffer[i]);
}

/* ---- rxonly ---- */

static bool never_waits(const struct virtnet_pair *pair)
{
    (void)pair;
    return false;
}

static const struct layer2 rxonly_layer2 = { .frame = forget, .waiting = never_waits };
LAYER2_APP(rxonly, "every frame", NULL, NULL, &rxonly_layer2);

/* ---- macswap ---- */

static void swap_addresses(uint8_t *frame)
{
    uint8_t first[ETH_ALEN];
    memcpy(first, frame, ETH_ALEN);
    memcpy(frame, frame + ETH_ALEN, ETH_ALEN);
    memcpy(frame + ETH_ALEN, first, ETH_ALEN);
}

/* The received buffers are the ones that are sent: the header is in front of the frame already, and is cleared. False:
 * there is no room, or a frame has more buffers than the ring has descriptors. */
static bool send_back(struct virtnet_pair *pair, const struct virtnet_frame *frame)
{
    struct virtq_buf pieces[VIRTNET_FRAME_PIECES];
    uint32_t bytes = 0;
    swap_addresses(frame->buffer[0]->data + pair->header);
    memset(frame->buffer[0]->data, 0, pair->header);
    ((struct virtio_net_hdr_v1 *)frame->buffer[0]->data)->hdr_len = (uint16_t)(frame->length[0] - pair->header);
    for (uint16_t i = 0; i < frame->count; i++) {
        pieces[i] = (struct virtq_buf){ (uint64_t)(uintptr_t)frame->buffer[i]->data, frame->length[i] };
        frame->buffer[i]->next = i + 1 < frame->count ? frame->buffer[i + 1] : NULL;
        bytes += frame->length[i];
    }
    if (virtqueue_add(&pair->tx, pieces, frame->count, 0, frame->buffer[0]) != VIRTQ_OK)
        return false;
    pair->tx_stats.packets++;
    pair->tx_stats.bytes += bytes - pair->header;
    return true;
}

static void macswap_sent(struct virtnet_pair *pair, void *token)
{
    (void)pair;
    for (struct rx_buffer *b = token, *next; b != NULL; b = next) {
        next = b->next;
        virtnet_release(b);
    }
}

static unsigned take_back(struct virtnet_pair *pair, unsigned budget)
{
    unsigned n = 0;
    uint32_t length;
    void *token;
    for (; n < 2 * budget && (token = virtqueue_pop(&pair->tx, &length)) != NULL; n++)
        macswap_sent(pair, token);
    return n;
}

/* What comes in while the way out is full is dropped, as a bridge does it. */
static void macswap_frame(struct virtnet_pair *pair, const struct virtnet_frame *frame)
{
    if (send_back(pair, frame))
        return;
    pair->tx_stats.no_room++;
    forget(pair, frame);
}

static const struct layer2 macswap_layer2 = {
    .frame = macswap_frame, .turn = take_back, .waiting = never_waits, .sent = macswap_sent
};
LAYER2_APP(macswap, "every frame", NULL, NULL, &macswap_layer2);

/* ---- txonly ---- */

static uint32_t size, total;
static uint64_t left, sent;
static uint8_t filler[FRAME_MAX];

static bool parse_number(const char **at, uint32_t max, uint32_t *value)
{
    uint64_t v = 0;
    const char *c = *at;
    for (; *c >= '0' && *c <= '9'; c++)
        if ((v = v * 10 + (uint64_t)(*c - '0')) > max)
            return false;
    bool some = c != *at;
    *at = c;
    *value = (uint32_t)v;
    return some;
}

static bool txonly_check(const char *argument)
{
    return parse_number(&argument, FRAME_MAX, &size) && size >= FRAME_MIN && *argument++ == ',' &&
           parse_number(&argument, COUNT_MAX, &total) && total > 0 && *argument == '\0';
}

/* To the peer's address that testers of DPDK use, of the local experimental type (IEEE 802, 9.2.3). */
static void build(const struct virtnet_pair *pair, uint8_t *frame)
{
    static const uint8_t to[ETH_ALEN] = { 2, 0, 0, 0, 0, 0 };
    uint64_t number = __builtin_bswap64(sent);
    uint32_t core = __builtin_bswap32(pair->number);
    memcpy(frame, to, ETH_ALEN);
    memcpy(frame + ETH_ALEN, pair->net->mac, ETH_ALEN);
    frame[12] = 0x88;
    frame[13] = 0xb5;
    memcpy(frame + NUMBER_AT, &core, 4);
    memcpy(frame + NUMBER_AT + 4, &number, 8);
}

static bool send_one(struct virtnet_pair *pair)
{
    struct tx_slot *slot = virtnet_slot(pair);
    if (slot == NULL)
        return false;
    uint32_t in_slot = size <= VIRTNET_INLINE - VIRTNET_HEADER_HASH ? size : NUMBER_AT + NUMBER_SIZE;
    struct virtq_buf rest = { (uint64_t)(uintptr_t)filler, size - in_slot };
    virtnet_header(slot)->hdr_len = (uint16_t)in_slot;
    build(pair, slot->data + pair->header);
    memset(slot->data + pair->header + NUMBER_AT + NUMBER_SIZE, 0, in_slot - NUMBER_AT - NUMBER_SIZE);
    return virtnet_send(pair, slot, pair->header + in_slot, &rest, rest.len > 0);
}

static unsigned txonly_turn(struct virtnet_pair *pair, unsigned budget)
{
    unsigned n = virtnet_reclaim(pair, 2 * budget, NULL);
    for (unsigned i = 0; i < budget && left > 0 && send_one(pair); i++, n++) {
        left--;
        if (++sent, left == 0)
            log_info("txonly", "all %llu frames of %u bytes are queued", (unsigned long long)sent, size);
    }
    return n;
}

static bool txonly_waiting(const struct virtnet_pair *pair)
{
    (void)pair;
    return left > 0;
}

static void txonly_begin(unsigned core, unsigned cores)
{
    left = total / cores + (core < total % cores);
}

static const struct layer2 txonly_layer2 = {
    .frame = forget, .turn = txonly_turn, .waiting = txonly_waiting, .begin = txonly_begin
};
LAYER2_APP(txonly, "no port: it only sends", "SIZE,COUNT with SIZE 60..1514 and COUNT 1..1000000000", txonly_check,
           &txonly_layer2);

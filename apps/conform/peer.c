/* The other end. See peer.h. (RFC 826, 792, 2131) */
#include <string.h>
#include "apps/conform/peer.h"

#define ETHERNET   14
#define IP_HEADER  20
#define ECHO       8
#define PAYLOAD    (ETHERNET + IP_HEADER + ECHO)
#define IDENTIFIER 0x5253

struct peer peer;

static uint16_t questions; /* asked so far */

static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

uint16_t peer_sum(const void *bytes, uint32_t n, uint32_t sum)
{
    const uint8_t *b = bytes;
    for (uint32_t i = 0; i + 1 < n; i += 2)
        sum += get16(b + i);
    if (n & 1)
        sum += (uint32_t)b[n - 1] << 8;
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static void ethernet(uint8_t *frame, const uint8_t to[6], uint16_t type)
{
    memcpy(frame, to, 6);
    memcpy(frame + 6, rig.mac, 6);
    put16(frame + 12, type);
}

uint32_t peer_ip(uint8_t *frame, uint8_t protocol, const void *payload, uint32_t n)
{
    static const uint8_t start[12] = { 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64 };
    uint8_t *ip = frame + ETHERNET;
    ethernet(frame, peer.mac, 0x800);
    memcpy(ip, start, sizeof start);
    put16(ip + 2, (uint16_t)(IP_HEADER + n));
    ip[9] = protocol;
    memcpy(ip + 12, peer.own, 4);
    memcpy(ip + 16, peer.ip, 4);
    put16(ip + 10, (uint16_t)~peer_sum(ip, IP_HEADER, 0));
    memmove(ip + IP_HEADER, payload, n);
    return ETHERNET + IP_HEADER + n;
}

/* ---- questions ---- */

static uint8_t pattern(uint16_t number, uint32_t i)
{
    return (uint8_t)(number * 7 + i + (i >> 8) * 3);
}

uint16_t peer_send(const struct peer_question *q)
{
    uint8_t *frame = rig.scratch;
    uint8_t *icmp = frame + ETHERNET + IP_HEADER;
    uint32_t n = q->bytes < RIG_FRAME_MAX - PAYLOAD ? q->bytes : RIG_FRAME_MAX - PAYLOAD;
    uint16_t number = ++questions != 0 ? questions : ++questions;
    icmp[0] = 8, icmp[1] = icmp[2] = icmp[3] = 0;
    put16(icmp + 4, IDENTIFIER);
    put16(icmp + 6, number);
    for (uint32_t i = 0; i < n; i++)
        icmp[ECHO + i] = pattern(number, i);
    static const struct virtio_net_hdr_v1 part = { .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                                   .csum_start = ETHERNET + IP_HEADER,
                                                   .csum_offset = 2 };
    struct rig_sending how = q->how;
    if (q->part)
        how.header = &part; /* ICMP has no pseudo header: the field holds 0 */
    else
        put16(icmp + 2, (uint16_t)~peer_sum(icmp, ECHO + n, 0));
    return rig_send(q->pair, frame, peer_ip(frame, 1, icmp, ECHO + n), &how) ? number : 0;
}

bool peer_is_answer(const struct rig_frame *f, uint16_t number, uint32_t bytes)
{
    const uint8_t *d = f->data;
    if (f->bytes < PAYLOAD + bytes || get16(d + 12) != 0x800 || d[ETHERNET] != 0x45 || d[ETHERNET + 9] != 1)
        return false;
    const uint8_t *icmp = d + ETHERNET + IP_HEADER;
    if (icmp[0] != (peer.kind == PEER_REFLECTS ? 8 : 0) || get16(icmp + 4) != IDENTIFIER || get16(icmp + 6) != number)
        return false;
    for (uint32_t i = 0; i < bytes; i++)
        if (icmp[ECHO + i] != pattern(number, i))
            return false;
    return true;
}

/* An ARP frame: 1 asks, 2 answers. */
static void send_arp(uint16_t pair, uint16_t operation, const uint8_t to[6], const uint8_t ip[4])
{
    static const uint8_t start[6] = { 0, 1, 8, 0, 6, 4 };
    uint8_t frame[60] = { 0 };
    ethernet(frame, to, 0x806);
    memcpy(frame + 14, start, sizeof start);
    put16(frame + 20, operation);
    memcpy(frame + 22, rig.mac, 6);
    memcpy(frame + 28, peer.own, 4);
    if (operation == 2)
        memcpy(frame + 32, to, 6);
    memcpy(frame + 38, ip, 4);
    rig_send(pair, frame, sizeof frame, NULL);
}

void peer_other(const struct rig_frame *f)
{
    if (f->bytes >= 42 && get16(f->data + 12) == 0x806 && get16(f->data + 20) == 1 && peer.kind != PEER_REFLECTS &&
        memcmp(f->data + 38, peer.own, 4) == 0 && memcmp(f->data + 22, rig.mac, 6) != 0)
        send_arp(f->pair, 2, f->data + 22, f->data + 28);
}

bool peer_ask(const struct peer_question *q, struct rig_frame *frame)
{
    struct rig_frame mine;
    frame = frame != NULL ? frame : &mine;
    for (unsigned tries = 0; tries < PEER_TRIES; tries++) {
        rig_reclaim(q->pair, tries == 0 ? 0 : PEER_WAIT);
        uint16_t number = peer_send(q);
        for (struct rig_wait w = rig_for(PEER_WAIT); number != 0 && rig_waiting(&w);)
            while (rig_receive(frame, 0)) {
                if (peer_is_answer(frame, number, q->bytes)) {
                    rig_reclaim(q->pair, PEER_WAIT);
                    return true;
                }
                peer_other(frame);
            }
    }
    return false;
}

enum verdict peer_works(uint32_t bytes)
{
    if (peer_ask(&(struct peer_question){ .bytes = bytes }, NULL))
        return rig_faultless();
    tap_note("ring", "size %u, sent %u, taken back %u, received %u", rig_tx(0)->vq.size, rig_tx(0)->given,
             rig_tx(0)->facts.taken, rig_rx(0)->facts.taken);
    rig_faultless();
    return tap_fail("an answer to a frame", "none in %u tries of %u ms", PEER_TRIES, PEER_WAIT);
}

/* ---- who is there ---- */

/* The value of a DHCP option, at least `least` bytes long; NULL: it is not there. */
static const uint8_t *option(const uint8_t *at, const uint8_t *end, uint8_t code, uint8_t least)
{
    while (at < end && *at != 255) {
        if (*at == 0) {
            at++;
            continue;
        }
        if (end - at < 2 || end - at < 2 + at[1])
            return NULL;
        if (*at == code)
            return at[1] >= least ? at + 2 : NULL;
        at += 2 + at[1];
    }
    return NULL;
}

/* An offer for us: takes our address and the router's. */
static bool take_offer(const struct rig_frame *f)
{
    const uint8_t *bootp = f->data + 42;
    if (f->bytes < 42 + 240 || get16(f->data + 12) != 0x800 || f->data[23] != 17 || get16(f->data + 36) != 68 ||
        bootp[0] != 2 || memcmp(bootp + 28, rig.mac, 6) != 0)
        return false;
    const uint8_t *router = option(bootp + 240, f->data + f->bytes, 3, 4);
    if (router == NULL)
        return false;
    memcpy(peer.own, bootp + 16, 4);
    memcpy(peer.ip, router, 4);
    return true;
}

/* Asks for an offer, and takes nothing but the addresses from it. */
static bool ask_dhcp(void)
{
    static const uint8_t cookie[] = { 99, 130, 83, 99, 53, 1, 1, 55, 2, 1, 3, 255 };
    uint8_t udp[8 + 300] = { 0 }, *frame = rig.scratch, *bootp = udp + 8;
    struct rig_frame f;
    put16(udp, 68);
    put16(udp + 2, 67);
    put16(udp + 4, sizeof udp);
    bootp[0] = bootp[1] = 1, bootp[2] = 6;
    memcpy(bootp + 4, "conf", 4);
    bootp[10] = 0x80; /* answered to all: we have no address yet */
    memcpy(bootp + 28, rig.mac, 6);
    memcpy(bootp + 236, cookie, sizeof cookie);
    memset(peer.ip, 255, 4);
    memset(peer.mac, 255, 6);
    for (unsigned tries = 0; tries < PEER_TRIES; tries++) {
        rig_send(0, frame, peer_ip(frame, 17, udp, sizeof udp), NULL);
        for (struct rig_wait w = rig_for(PEER_WAIT); rig_waiting(&w);)
            while (rig_receive(&f, 0))
                if (take_offer(&f))
                    return true;
    }
    return false;
}

/* What came in answer to an ARP request: the answer, or the request itself. */
static enum peer_kind judge(const struct rig_frame *f)
{
    const uint8_t *d = f->data;
    if (f->bytes < 42 || get16(d + 12) != 0x806)
        return PEER_NONE;
    if (get16(d + 20) == 1 && memcmp(d + 22, rig.mac, 6) == 0)
        return PEER_REFLECTS;
    if (get16(d + 20) != 2 || memcmp(d + 28, peer.ip, 4) != 0)
        return PEER_NONE;
    memcpy(peer.mac, d + 22, 6);
    return PEER_ANSWERS;
}

void peer_find(const struct bootline *boot)
{
    static const uint8_t example[2][4] = { { 198, 18, 0, 2 }, { 198, 18, 0, 1 } };
    static const uint8_t zero[4];
    struct rig_frame f;
    peer = (struct peer){ .kind = PEER_NONE };
    if (!rig_up(&(struct rig_options){ 0 }))
        return;
    memcpy(peer.own, boot->ip == IP_STATIC ? boot->ip_addr : zero, 4);
    bool known = boot->has_peer || boot->ip_has_gw;
    if (known)
        memcpy(peer.ip, boot->has_peer ? boot->peer : boot->ip_gw, 4);
    if ((!known || boot->ip != IP_STATIC) && !ask_dhcp()) {
        memcpy(peer.own, example[0], 4); /* a backend that reflects does not mind */
        memcpy(peer.ip, example[1], 4);
    }
    if (boot->has_peer)
        memcpy(peer.ip, boot->peer, 4);
    memset(peer.mac, 255, 6);
    for (unsigned tries = 0; tries < PEER_TRIES && peer.kind == PEER_NONE; tries++) {
        send_arp(0, 1, peer.mac, peer.ip);
        for (struct rig_wait w = rig_for(PEER_WAIT); peer.kind == PEER_NONE && rig_waiting(&w);)
            while (peer.kind == PEER_NONE && rig_receive(&f, 0))
                peer.kind = judge(&f);
    }
    if (peer.kind == PEER_REFLECTS)
        memset(peer.mac, 2, 6); /* any station's */
}

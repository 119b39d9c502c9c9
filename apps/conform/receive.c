/* Area receive: headers, buffers and checksums of what comes, and what the device makes of the headers that we send. */
#include <string.h>
#include "apps/conform/areas.h"
#include "apps/conform/peer.h"

#define IP        14
#define TCP       34
#define TCP_AT    16 /* of its checksum, and */
#define UDP_AT    6
#define TCP_TRIES 2
#define HEADERS   28u /* of IPv4 and ICMP */

#define GUEST_GSO                                                                                                      \
    (rig_bit(VIRTIO_NET_F_GUEST_TSO4) | rig_bit(VIRTIO_NET_F_GUEST_TSO6) | rig_bit(VIRTIO_NET_F_GUEST_UFO) |           \
     rig_bit(VIRTIO_NET_F_GUEST_USO4_BIT) | rig_bit(VIRTIO_NET_F_GUEST_USO6_BIT) | rig_bit(VIRTIO_NET_F_GUEST_ECN))

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

/* ---- what a frame may look like ---- */

static const char *gso_problem(const struct virtio_net_hdr_v1 *h)
{
    /* By gso_type without the ECN bit: the features one of which it needs. */
    static const uint64_t needs[] = { 0,
                                      rig_bit(VIRTIO_NET_F_GUEST_TSO4),
                                      0,
                                      rig_bit(VIRTIO_NET_F_GUEST_UFO),
                                      rig_bit(VIRTIO_NET_F_GUEST_TSO6),
                                      rig_bit(VIRTIO_NET_F_GUEST_USO4_BIT) | rig_bit(VIRTIO_NET_F_GUEST_USO6_BIT) };
    unsigned type = h->gso_type & ~VIRTIO_NET_HDR_GSO_ECN;
    if (h->gso_type == VIRTIO_NET_HDR_GSO_NONE)
        return NULL;
    if (h->gso_type & VIRTIO_NET_HDR_GSO_ECN && !rig_has(VIRTIO_NET_F_GUEST_ECN))
        return "the ECN bit of gso_type, not negotiated";
    if (type >= sizeof needs / sizeof *needs || !(needs[type] & rig.features))
        return "a gso_type that was not negotiated";
    if (!(h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM))
        return "a gso_type without NEEDS_CSUM";
    return h->gso_size == 0 ? "a gso_type without gso_size" : NULL;
}

static const char *flags_problem(const struct virtio_net_hdr_v1 *h)
{
    if (!rig_has(VIRTIO_NET_F_GUEST_CSUM))
        return h->flags != 0 ? "flags without guest_csum" : NULL;
    return h->flags & ~(VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID) ? "flags that do not exist" : NULL;
}

/* Checksums of IPv4 and what it carries: complete, or as NEEDS_CSUM says. Others' frames are not judged. */
static const char *sum_problem(const struct rig_frame *f)
{
    const uint8_t *ip = f->data + IP;
    const struct virtio_net_hdr_v1 *h = &f->header.hdr;
    bool needs = h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM;
    if (needs && h->csum_start + h->csum_offset + 2u > f->bytes)
        return "csum_start and csum_offset beyond the frame";
    if (f->bytes < TCP + 8 || get16(f->data + 12) != 0x800 || ip[0] != 0x45 || get16(ip + 6) & 0x3fff)
        return NULL;
    uint32_t n = get16(ip + 2) - 20u;
    if (peer_sum(ip, 20, 0) != 0xffff)
        return "a wrong IPv4 header checksum";
    if (get16(ip + 2) < 28 || n > f->bytes - TCP)
        return "an IPv4 packet longer than the frame";
    uint32_t pseudo = ip[9] + n;
    unsigned at = ip[9] == 6 ? TCP_AT : UDP_AT;
    if (ip[9] == 1 && needs) /* ICMP has no pseudo header */
        return h->csum_start != TCP || h->csum_offset != 2 ? "csum_start and csum_offset of something else" : NULL;
    if (ip[9] == 1)
        return peer_sum(ip + 20, n, 0) != 0xffff ? "a wrong ICMP checksum" : NULL;
    if ((ip[9] != 6 && ip[9] != 17) || n < at + 2 || (ip[9] == 17 && get16(ip + 20 + at) == 0))
        return NULL;
    pseudo = peer_sum(ip + 12, 8, pseudo);
    if (!needs)
        return peer_sum(ip + 20, n, pseudo) != 0xffff ? "a wrong checksum, without NEEDS_CSUM" : NULL;
    if (h->csum_start != TCP || h->csum_offset != at)
        return "csum_start and csum_offset of something else";
    return get16(ip + 20 + at) != pseudo ? "NEEDS_CSUM without the pseudo header's sum" : NULL;
}

static enum verdict legal(const struct rig_frame *f)
{
    const struct virtio_net_hdr_v1 *h = &f->header.hdr;
    const char *wrong = gso_problem(h);
    wrong = wrong != NULL ? wrong : flags_problem(h);
    wrong = wrong != NULL ? wrong : sum_problem(f);
    if (wrong == NULL && f->bytes < IP)
        wrong = "a frame shorter than an Ethernet header";
    if (wrong == NULL)
        return PASS;
    tap_note("header", "flags 0x%x, gso_type 0x%x, hdr_len %u, gso_size %u, csum_start %u, csum_offset %u", h->flags,
             h->gso_type, h->hdr_len, h->gso_size, h->csum_start, h->csum_offset);
    return tap_fail("a header as negotiated, checksums as it says", "%s; a frame of %u bytes", wrong, f->bytes);
}

/* ---- questions by TCP ---- */

static uint16_t source = 40000;
static bool tcp_silent;

/* Asks for a connection to a port that is closed, or open: there is an answer in either case. */
static bool send_syn(void)
{
    uint8_t tcp[20] = { 0, 0, 0, 1, 1, 2, 3, 4, 0, 0, 0, 0, 0x50, 2, 0x10, 0 };
    source++;
    tcp[0] = (uint8_t)(source >> 8), tcp[1] = (uint8_t)source;
    uint32_t n = peer_ip(rig.scratch, 6, tcp, sizeof tcp);
    uint8_t *ip = rig.scratch + IP;
    uint16_t sum = (uint16_t)~peer_sum(ip + 20, sizeof tcp, peer_sum(ip + 12, 8, 6 + sizeof tcp));
    ip[20 + TCP_AT] = (uint8_t)(sum >> 8), ip[21 + TCP_AT] = (uint8_t)sum;
    return rig_send(0, rig.scratch, n, NULL);
}

static bool is_tcp_answer(const struct rig_frame *f)
{
    const uint8_t *d = f->data;
    bool mine = f->bytes >= TCP + 20 && get16(d + 12) == 0x800 && d[IP + 9] == 6;
    return mine && get16(d + TCP + (peer.kind == PEER_REFLECTS ? 0 : 2)) == source;
}

/* An answer to a SYN, each frame on the way judged. A peer that does not answer TCP is not asked again. */
static enum verdict ask_tcp(void)
{
    struct rig_frame f;
    if (tcp_silent)
        return PASS;
    for (unsigned tries = 0; tries < TCP_TRIES; tries++) {
        send_syn();
        for (struct rig_wait w = rig_for(PEER_WAIT); rig_waiting(&w);)
            while (rig_receive(&f, 0)) {
                if (legal(&f) != PASS)
                    return FAIL;
                if (is_tcp_answer(&f))
                    return PASS;
                peer_other(&f);
            }
        rig_reclaim(0, PEER_WAIT);
    }
    tcp_silent = true;
    return PASS;
}

/* Traffic with these features, every frame judged. */
static enum verdict traffic(uint64_t features)
{
    struct rig_frame f;
    if (!rig_up(&(struct rig_options){ .features = features }))
        return rig_failed();
    for (unsigned i = 0; i < 5; i++) {
        if (!peer_ask(&(struct peer_question){ .bytes = 18 + 300 * i }, &f))
            return tap_fail("an answer", "none to a frame of %u bytes", 60 + 300 * i);
        if (legal(&f) != PASS || ask_tcp() != PASS)
            return FAIL;
    }
    if (tcp_silent)
        tap_note("tcp", "not answered: ICMP alone was judged");
    return rig_faultless();
}

#define CSUM rig_bit(VIRTIO_NET_F_GUEST_CSUM)

static enum verdict without_csum(void)
{
    return traffic(rig_usable() & ~CSUM & ~GUEST_GSO);
}

static enum verdict with_csum(void)
{
    return traffic(rig_usable() & ~GUEST_GSO);
}

static enum verdict with_all(void)
{
    return traffic(rig_usable());
}

/* ---- buffers ---- */

static enum verdict one_buffer(void)
{
    struct rig_frame f;
    if (!rig_up(&(struct rig_options){ .features = rig_usable() & ~rig_bit(VIRTIO_NET_F_MRG_RXBUF) & ~GUEST_GSO }))
        return rig_failed();
    for (unsigned i = 0; i < 5; i++) {
        if (!peer_ask(&(struct peer_question){ .bytes = 18 + 300 * i }, &f))
            return tap_fail("an answer", "none to a frame of %u bytes", 60 + 300 * i);
        if (f.header.hdr.num_buffers != 1)
            return tap_fail("1", "num_buffers %u (buffers are filled with c5)", f.header.hdr.num_buffers);
    }
    return PASS;
}

/* The payload of the largest question, on a usual link. */
static uint32_t most(void)
{
    return (rig.mtu < 1500 ? rig.mtu : 1500) - HEADERS;
}

/* Frames over buffers of `bytes`, and what is to be looked at. */
static enum verdict small(uint32_t bytes, bool full, bool together)
{
    struct rig_frame f;
    struct rig_options o = { .features = rig_usable() & ~GUEST_GSO, .buffer = bytes, .post = 200 };
    if (!rig_up(&o))
        return rig_failed();
    for (unsigned i = 0; i < 5; i++) {
        if (!peer_ask(&(struct peer_question){ .bytes = most() - i }, &f))
            return tap_fail("an answer, whole", "none over buffers of %u bytes", bytes);
        unsigned least = (rig.header + f.bytes + bytes - 1) / bytes;
        if (f.torn || f.buffers != least)
            return tap_fail("as many as the frame fills", "num_buffers %u of %u bytes, used %u, for a frame of %u",
                            f.header.hdr.num_buffers, bytes, f.buffers, f.bytes);
        if (full && f.gaps)
            return tap_fail("all buffers but the last are full", "one of %u is not", f.buffers);
        if (together && f.late)
            return tap_fail("all buffers of a frame are used at once", "not all of %u were", f.buffers);
    }
    return rig_faultless();
}

static enum verdict count_right(void)
{
    static const uint16_t sizes[] = { 1526, 1000, 512, 256, 100 };
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (small(sizes[i], false, false) != PASS)
            return FAIL;
    return PASS;
}

static enum verdict all_full(void)
{
    return small(256, true, false);
}

static enum verdict at_once(void)
{
    return small(128, false, true);
}

/* header + frame is what the used lengths add up to: the answer is as long as its IPv4 packet says, or padded. */
static enum verdict lengths(void)
{
    const uint32_t sizes[] = { 18, 19, 100, most() - 1, most() };
    struct rig_frame f;
    if (!rig_up(&(struct rig_options){ .features = rig_usable() & ~GUEST_GSO }))
        return rig_failed();
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (!peer_ask(&(struct peer_question){ .bytes = sizes[i] }, &f))
            return tap_fail("an answer", "none to a frame of %u bytes", 42 + sizes[i]);
        if (f.bytes != 42u + sizes[i])
            return tap_fail("header and frame", "used length %u for a frame of %u and a header of %u",
                            f.bytes + rig.header, 42 + sizes[i], rig.header);
    }
    return rig_faultless();
}

/* ---- headers that we send ---- */

static enum verdict filled_in(void)
{
    if (!rig_up(&(struct rig_options){ .features = rig_usable() & ~CSUM & ~GUEST_GSO }))
        return rig_failed();
    for (unsigned i = 0; i < 5; i++)
        if (!peer_ask(&(struct peer_question){ .bytes = PEER_PAYLOAD + i, .part = true }, NULL))
            return tap_fail("an answer", "none to a frame with NEEDS_CSUM, csum_start 34, csum_offset 2");
    return PASS;
}

static enum verdict header_ignored(struct virtio_net_hdr_v1 h)
{
    if (!rig_up(&(struct rig_options){ .features = rig_usable() & ~GUEST_GSO }))
        return rig_failed();
    if (peer_ask(&(struct peer_question){ .bytes = PEER_PAYLOAD, .how.header = &h }, NULL))
        return PASS;
    tap_note("device_status", "0x%x, %u of %u frames used", rig.transport.ops->status(&rig.transport),
             rig_tx(0)->facts.taken, rig_tx(0)->given);
    return tap_fail("an answer", "none to a frame with flags 0x%x, hdr_len %u, csum_start %u, csum_offset %u", h.flags,
                    h.hdr_len, h.csum_start, h.csum_offset);
}

static enum verdict unknown_flags(void)
{
    return header_ignored((struct virtio_net_hdr_v1){ .flags = 0x80 });
}

static enum verdict idle_sum(void)
{
    return header_ignored((struct virtio_net_hdr_v1){ .csum_start = 34, .csum_offset = 4 });
}

static enum verdict wrong_length(void)
{
    return header_ignored((struct virtio_net_hdr_v1){ .hdr_len = 9999 });
}

#define MERGE NEEDS(VIRTIO_NET_F_MRG_RXBUF)

static const struct check checks[] = {
    { "5.1.6.4.1", "num_buffers is 1 without mergeable buffers", true, 0, one_buffer },
    { "5.1.6.4.1", "num_buffers says over how many buffers a frame lies", true, MERGE, count_right },
    { "5.1.6.4.1", "all buffers of a frame but the last are full", true, MERGE, all_full },
    { "5.1.6.4.1", "the buffers of a frame are used together", true, MERGE, at_once },
    { "2.7.8.2", "the used length is that of header and frame", true, 0, lengths },
    { "5.1.6.4.1", "without guest_csum flags are 0 and checksums complete", true, 0, without_csum },
    { "5.1.6.4.1", "with guest_csum checksums are as flags say", true, NEEDS(VIRTIO_NET_F_GUEST_CSUM), with_csum },
    { "5.1.6.4.1", "gso_type is only what was negotiated", true, 0, with_all },
    { "5.1.6.2.2", "a checksum left to the device is filled in", true, NEEDS(VIRTIO_NET_F_CSUM), filled_in },
    { "5.1.6.2.2", "flags that do not exist are ignored", true, 0, unknown_flags },
    { "5.1.6.2.2", "csum_start and csum_offset are not used without NEEDS_CSUM", true, 0, idle_sum },
    { "5.1.6.2.2", "hdr_len need not be right", true, 0, wrong_length },
};

const struct area area_receive = AREA("receive", checks);

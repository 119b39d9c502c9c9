#include <stdbool.h>
#include <string.h>
#include <linux/if_ether.h>
#include "drivers/virtio/net.h"
#include "net/offload.h"
#include "net/port/chksum.h"

#define PROTO_TCP       6
#define PROTO_UDP       17
#define TCP_CHECKSUM_AT 16
#define UDP_CHECKSUM_AT 6
#define TCP_OFFSET_AT   12
#define UDP_BYTES       8

static uint16_t get16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

/* One's complement sum of `n` bytes (a multiple of 4) in memory order, not folded: it is the same in either byte order
 * (RFC 1071). */
static uint64_t sum32(const uint8_t *p, unsigned n)
{
    uint64_t sum = 0;
    for (; n > 0; n -= 4, p += 4) {
        uint32_t v;
        memcpy(&v, p, 4);
        sum += v;
    }
    return sum;
}

/* Where the transport header starts, its protocol, its length in bytes, and the sum of the addresses. */
struct transport {
    uint32_t start, length;
    uint8_t protocol;
    uint64_t addresses;
};

static int find_transport(const uint8_t *frame, uint32_t n, struct transport *t)
{
    uint16_t type = n >= ETH_HLEN + 20u ? __builtin_bswap16(get16(frame + 12)) : 0;
    const uint8_t *ip = frame + ETH_HLEN;
    if (type == ETH_P_IP) {
        uint32_t header = (ip[0] & 15u) * 4, total = __builtin_bswap16(get16(ip + 2));
        if (ip[0] >> 4 != 4 || header < 20 || total < header || (ip[9] != PROTO_TCP && ip[9] != PROTO_UDP))
            return 0;
        if ((__builtin_bswap16(get16(ip + 6)) & 0x3fff) != 0) /* a fragment has only part of what the checksum covers */
            return 0;
        *t = (struct transport){ ETH_HLEN + header, total - header, ip[9], sum32(ip + 12, 8) };
    } else if (type == ETH_P_IPV6 && n >= ETH_HLEN + 40u && ip[0] >> 4 == 6) {
        *t = (struct transport){ ETH_HLEN + 40, __builtin_bswap16(get16(ip + 4)), ip[6], sum32(ip + 8, 32) };
    } else {
        return 0;
    }
    return 1;
}

/* `protocol` and `offset` are constants: once for each protocol. */
static inline int ask(struct virtio_net_hdr_v1 *header, uint8_t *frame, uint32_t n, const struct transport *t,
                      uint8_t protocol, uint16_t offset)
{
    uint8_t *field = frame + t->start + offset;
    if (t->length < offset + 2u || t->start + offset + 2 > n || get16(field) != 0)
        return 0;
    uint16_t sum = chksum_fold(t->addresses + __builtin_bswap16((uint16_t)t->length) + __builtin_bswap16(protocol));
    memcpy(field, &sum, 2);
    header->flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    header->csum_start = (uint16_t)t->start;
    header->csum_offset = offset;
    return 1;
}

int offload_checksum(struct virtio_net_hdr_v1 *header, uint8_t *frame, uint32_t n)
{
    struct transport t;
    if (!find_transport(frame, n, &t))
        return 0;
    if (t.protocol == PROTO_TCP)
        return ask(header, frame, n, &t, PROTO_TCP, TCP_CHECKSUM_AT);
    return t.protocol == PROTO_UDP ? ask(header, frame, n, &t, PROTO_UDP, UDP_CHECKSUM_AT) : 0;
}

void offload_segmentation(struct virtio_net_hdr_v1 *header, const uint8_t *frame, uint16_t gso_size)
{
    header->gso_size = gso_size;
    if (header->csum_offset == UDP_CHECKSUM_AT) {
        header->gso_type = VIRTNET_GSO_UDP_L4;
        header->hdr_len = (uint16_t)(header->csum_start + UDP_BYTES);
        return;
    }
    bool ip6 = __builtin_bswap16(get16(frame + 12)) == ETH_P_IPV6;
    header->gso_type = ip6 ? VIRTIO_NET_HDR_GSO_TCPV6 : VIRTIO_NET_HDR_GSO_TCPV4;
    header->hdr_len = (uint16_t)(header->csum_start + (frame[header->csum_start + TCP_OFFSET_AT] >> 4) * 4);
}

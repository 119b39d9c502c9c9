#include <string.h>
#include <linux/if_ether.h>
#include "net/join.h"

#define IP4_BYTES 20u
#define IP6_BYTES 40u
#define UDP_BYTES 8u
#define PROTO_UDP 17
#define GROUP_BIT 1 /* of an Ethernet address's first byte */

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

/* Bytes of the headers of a datagram that may be joined; 0: it may not. */
static uint16_t headers_of(const struct pbuf *p)
{
    const uint8_t *frame = p->payload, *ip = frame + ETH_HLEN;
    uint32_t udp;
    if (p->len < ETH_HLEN + IP4_BYTES + UDP_BYTES || (frame[0] & GROUP_BIT))
        return 0;
    if (get16(frame + 12) == ETH_P_IP && ip[0] == 0x45 && (get16(ip + 6) & 0x3fff) == 0 && ip[9] == PROTO_UDP)
        udp = ETH_HLEN + IP4_BYTES;
    else if (get16(frame + 12) == ETH_P_IPV6 && ip[6] == PROTO_UDP)
        udp = ETH_HLEN + IP6_BYTES;
    else
        return 0;
    /* What was not said of its length would be cut wrongly; a checksum that was made belongs to it alone. */
    if (p->len < udp + UDP_BYTES || p->tot_len <= udp + UDP_BYTES || get16(frame + udp + 4) != p->tot_len - udp ||
        get16(frame + udp + 6) != 0)
        return 0;
    return (uint16_t)(udp + UDP_BYTES);
}

/* All but lengths, checksums and IPv4's identification, which the device counts on from the first one's, as lwIP does.
 */
static bool same_flow(const uint8_t *a, const uint8_t *b, uint16_t bytes)
{
    if (bytes == ETH_HLEN + IP4_BYTES + UDP_BYTES)
        return memcmp(a, b, 16) == 0 && memcmp(a + 20, b + 20, 4) == 0 && memcmp(a + 26, b + 26, 12) == 0;
    return memcmp(a, b, 18) == 0 && memcmp(a + 20, b + 20, 38) == 0;
}

static uint16_t count(const struct pbuf *p)
{
    uint16_t n = 0;
    for (; p != NULL; p = p->next)
        n++;
    return n;
}

bool join_full(const struct join *join)
{
    uint32_t data = join->first->tot_len - join->bytes;
    return data != (uint32_t)join->size * join->count || join->count == JOIN_COUNT;
}

bool join_add(struct join *join, struct pbuf *p, uint16_t pieces)
{
    uint16_t bytes = headers_of(p), more = count(p);
    if (bytes == 0 || more > pieces)
        return false;
    uint16_t data = (uint16_t)(p->tot_len - bytes);
    if (join->first == NULL) {
        pbuf_ref(p);
        *join = (struct join){ .first = p, .size = data, .count = 1, .pieces = more, .bytes = bytes };
        return true;
    }
    if (bytes != join->bytes || data > join->size || join->pieces + more > pieces || join_full(join) ||
        (uint32_t)join->first->tot_len + data > JOIN_BYTES || !same_flow(join->first->payload, p->payload, bytes))
        return false;
    pbuf_ref(p);
    p = pbuf_free_header(p, bytes); /* nobody reads headers of lwIP's that are sent, or sends them again */
    pbuf_cat(join->first, p);
    join->pieces = (uint16_t)(join->pieces + count(p));
    join->count++;
    return true;
}

/* Makes the first one's headers tell of all. IPv4's checksum changes by what its field changes (RFC 1624). */
static void tell(uint8_t *frame, uint16_t bytes, uint32_t total)
{
    uint8_t *ip = frame + ETH_HLEN;
    put16(frame + bytes - 4, total - bytes + UDP_BYTES);
    if (bytes == ETH_HLEN + IP6_BYTES + UDP_BYTES) {
        put16(ip + 4, total - ETH_HLEN - IP6_BYTES);
        return;
    }
    uint32_t now = total - ETH_HLEN, sum = (uint16_t)~get16(ip + 10) + (uint32_t)(uint16_t)~get16(ip + 2) + now;
    put16(ip + 2, now);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    put16(ip + 10, ~sum);
}

struct pbuf *join_take(struct join *join)
{
    struct pbuf *p = join->first;
    if (p == NULL)
        return NULL;
    p->gso_size = 0;
    if (join->count > 1) {
        tell(p->payload, join->bytes, p->tot_len);
        p->gso_size = join->size;
    }
    join->first = NULL;
    return p;
}

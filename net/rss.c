/* Receive side scaling in software. See rss.h. */
#include <stddef.h>
#include <string.h>
#include <linux/if_ether.h>
#include "net/rss.h"

#define EXTENSION_HEADERS 8
#define DHCP_CLIENT_PORT  68

/* Protocols, IPv6's next header values that are followed, and ICMP's types that matter. */
enum { PROTOCOL_ICMP = 1, PROTOCOL_TCP = 6, PROTOCOL_UDP = 17 };
enum { IP6_HOP_BY_HOP = 0, IP6_ROUTING = 43, IP6_FRAGMENT = 44, IP6_DESTINATION = 60, IP6_ICMP = 58 };
enum { ICMP_UNREACHABLE = 3, ICMP_QUENCH = 4, ICMP_REDIRECT = 5, ICMP_TIME_EXCEEDED = 11, ICMP_PARAMETER = 12 };
enum {
    ICMP6_ERROR_FIRST = 1,
    ICMP6_ERROR_LAST = 4,
    MLD_FIRST = 130, /* query, report, done */
    MLD_LAST = 132,
    ND_FIRST = 133, /* router and neighbour solicitation and advertisement, redirect */
    ND_LAST = 137,
    MLD2_REPORT = 143,
};

const uint8_t rss_default_key[RSS_KEY_BYTES] = {
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
    0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
    0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
};

/* ---- the hash ---- */

/* The 32 bits of the key from bit `at` (0..287) on, bit 0 being the first byte's highest. */
static uint32_t key_window(const uint8_t *key, unsigned at)
{
    uint64_t five = 0;
    for (unsigned i = 0; i < 5; i++)
        five = five << 8 | key[at / 8 + i];
    return (uint32_t)(five >> (8 - at % 8));
}

void rss_init(struct rss *rss, const uint8_t key[RSS_KEY_BYTES], unsigned queues)
{
    memcpy(rss->key, key, RSS_KEY_BYTES);
    for (unsigned i = 0; i < RSS_TABLE; i++)
        rss->table[i] = (uint8_t)(i % (queues != 0 ? queues : 1));
    for (unsigned byte = 0; byte < 36; byte++) {
        uint32_t *row = rss->by_byte[byte];
        row[0] = 0;
        /* The hash of the input is the exclusive or of its bits' hashes: value v is its lowest bit and the rest. */
        for (unsigned v = 1; v < 256; v++)
            row[v] = row[v & (v - 1)] ^ key_window(key, 8 * byte + 7 - (unsigned)__builtin_ctz(v));
    }
}

/* The share of two, and of four, input bytes that begin at position `at`. */
static inline uint32_t hash2(const struct rss *rss, unsigned at, const uint8_t *bytes)
{
    return rss->by_byte[at][bytes[0]] ^ rss->by_byte[at + 1][bytes[1]];
}

static inline uint32_t hash4(const struct rss *rss, unsigned at, const uint8_t *bytes)
{
    return hash2(rss, at, bytes) ^ hash2(rss, at + 2, bytes + 2);
}

static inline uint32_t hash_flow(const struct rss *rss, unsigned length, const uint8_t *source,
                                 const uint8_t *destination, const uint8_t *ports)
{
    uint32_t hash = ports != NULL ? hash4(rss, 2 * length, ports) : 0;
    for (unsigned at = 0; at < length; at += 4)
        hash ^= hash4(rss, at, source + at) ^ hash4(rss, length + at, destination + at);
    return hash;
}

uint32_t rss_hash_ip4(const struct rss *rss, const uint8_t source[4], const uint8_t destination[4],
                      const uint8_t ports[4])
{
    return hash_flow(rss, 4, source, destination, ports);
}

uint32_t rss_hash_ip6(const struct rss *rss, const uint8_t source[16], const uint8_t destination[16],
                      const uint8_t ports[4])
{
    return hash_flow(rss, 16, source, destination, ports);
}

uint16_t rss_port_for(const struct rss *rss, unsigned core, unsigned length, const uint8_t *local,
                      const uint8_t *remote, uint16_t remote_port, uint16_t first, uint16_t count)
{
    if (length != 4 && length != 16)
        return 0;
    /* Zero bytes add nothing: the hash of all but the local port, once. */
    uint8_t ports[4] = { (uint8_t)(remote_port >> 8), (uint8_t)remote_port, 0, 0 };
    uint32_t rest = hash_flow(rss, length, remote, local, ports), end = (uint32_t)first + count;
    for (uint32_t port = first != 0 ? first : 1; port < end && port <= UINT16_MAX; port++) {
        ports[0] = (uint8_t)(port >> 8);
        ports[1] = (uint8_t)port;
        if (rss_owner(rss, rest ^ hash2(rss, 2 * length + 2, ports)) == core)
            return (uint16_t)port;
    }
    return 0;
}

/* ---- the parser ---- */

/* What an IP header says, of a frame's own packet or of one inside an ICMP error. Pointers are into the frame. */
struct packet {
    uint8_t length; /* of an address: 4 or 16 */
    uint8_t protocol;
    bool fragment, later; /* a fragment; one that does not begin with the payload's first byte */
    const uint8_t *source, *destination;
    const uint8_t *payload; /* what is behind the headers, */
    uint32_t n;             /* and how much of it is there */
};

static uint16_t be16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* RFC 791, 3.1. */
static bool parse_ip4(struct packet *p, const uint8_t *ip, uint32_t n)
{
    if (n < 20 || ip[0] >> 4 != 4)
        return false;
    uint32_t header = (ip[0] & 15u) * 4, total = be16(ip + 2);
    if (header < 20 || total < header || n < header)
        return false;
    uint16_t fragment = be16(ip + 6);
    *p = (struct packet){
        .length = 4,
        .protocol = ip[9],
        .fragment = (fragment & 0x3fff) != 0, /* more fragments, or an offset */
        .later = (fragment & 0x1fff) != 0,
        .source = ip + 12,
        .destination = ip + 16,
        .payload = ip + header,
        .n = smaller(total, n) - header, /* what is behind the total length is padding */
    };
    return true;
}

/* RFC 8200, 3 and 4. Extension headers are followed as far as a receiver must go to find the protocol. */
static bool parse_ip6(struct packet *p, const uint8_t *ip, uint32_t n)
{
    if (n < 40 || ip[0] >> 4 != 6)
        return false;
    *p = (struct packet){
        .length = 16,
        .protocol = ip[6],
        .source = ip + 8,
        .destination = ip + 24,
        .payload = ip + 40,
        .n = smaller(be16(ip + 4), n - 40),
    };
    for (unsigned followed = 0;; followed++) {
        bool fragment = p->protocol == IP6_FRAGMENT;
        if (p->later || (!fragment && p->protocol != IP6_HOP_BY_HOP && p->protocol != IP6_ROUTING &&
                         p->protocol != IP6_DESTINATION))
            return true;
        if (followed == EXTENSION_HEADERS || p->n < 8)
            return false;
        uint32_t header = fragment ? 8 : (p->payload[1] + 1u) * 8;
        if (p->n < header)
            return false;
        if (fragment) {
            /* Neither an offset nor more to come: not really a fragment (RFC 6946). */
            p->fragment |= (be16(p->payload + 2) & 0xfff9) != 0;
            p->later = (be16(p->payload + 2) & 0xfff8) != 0;
        }
        p->protocol = p->payload[0];
        p->payload += header;
        p->n -= header;
    }
}

static bool has_ports(const struct packet *p)
{
    return p->protocol == PROTOCOL_TCP || p->protocol == PROTOCOL_UDP;
}

/* The flow of a packet that this side sent, as an answer to it would have it: its ends exchanged. False: the ports are
 * missing. */
static bool hash_turned(const struct rss *rss, const struct packet *p, uint32_t *hash)
{
    if (p->later || !has_ports(p)) {
        *hash = hash_flow(rss, p->length, p->destination, p->source, NULL);
        return true;
    }
    if (p->n < 4)
        return false;
    uint8_t ports[4] = { p->payload[2], p->payload[3], p->payload[0], p->payload[1] };
    *hash = hash_flow(rss, p->length, p->destination, p->source, ports);
    return true;
}

static bool is_error(const struct packet *p, uint8_t type)
{
    if (p->length == 16)
        return type >= ICMP6_ERROR_FIRST && type <= ICMP6_ERROR_LAST;
    return type == ICMP_UNREACHABLE || type == ICMP_QUENCH || type == ICMP_REDIRECT || type == ICMP_TIME_EXCEEDED ||
           type == ICMP_PARAMETER;
}

static bool is_for_everybody(const struct packet *p, uint8_t type)
{
    return p->length == 16 && ((type >= MLD_FIRST && type <= ND_LAST) || type == MLD2_REPORT);
}
_Static_assert(MLD_LAST + 1 == ND_FIRST, "one range");

/* RFC 792, RFC 4443: four bytes of header, four that depend on the type, then of an error the packet it is about. */
static struct rss_result steer_icmp(const struct rss *rss, const struct packet *p)
{
    struct packet about;
    struct rss_result result = { RSS_OTHER, 0 };
    if (p->n < 4)
        return result;
    uint8_t type = p->payload[0];
    if (is_for_everybody(p, type)) {
        result.kind = RSS_EVERYBODY;
        return result;
    }
    if (is_error(p, type) && p->n >= 8 && (p->length == 4 ? parse_ip4 : parse_ip6)(&about, p->payload + 8, p->n - 8) &&
        hash_turned(rss, &about, &result.hash)) {
        result.kind = RSS_ICMP_ERROR;
        return result;
    }
    return (struct rss_result){ RSS_IP, hash_flow(rss, p->length, p->source, p->destination, NULL) };
}

static struct rss_result steer(const struct rss *rss, const struct packet *p)
{
    if (p->fragment)
        return (struct rss_result){ RSS_FRAGMENT, hash_flow(rss, p->length, p->source, p->destination, NULL) };
    if (p->protocol == (p->length == 4 ? PROTOCOL_ICMP : IP6_ICMP))
        return steer_icmp(rss, p);
    if (!has_ports(p))
        return (struct rss_result){ RSS_IP, hash_flow(rss, p->length, p->source, p->destination, NULL) };
    if (p->n < 4)
        return (struct rss_result){ RSS_OTHER, 0 };
    if (p->length == 4 && p->protocol == PROTOCOL_UDP && be16(p->payload + 2) == DHCP_CLIENT_PORT)
        return (struct rss_result){ RSS_CONTROL, 0 };
    return (struct rss_result){ RSS_PORTS, hash_flow(rss, p->length, p->source, p->destination, p->payload) };
}

/* True for nearly all packets there are: TCP or UDP right behind an IPv4 header without options, not fragmented, the
 * ports there, and not DHCP's. What is not so plain goes the long way, which gives plain packets the same result. */
static inline bool is_plain(const uint8_t *ip, uint32_t n)
{
    return n >= 24 && ip[0] == 0x45 && be16(ip + 2) >= 24 && (be16(ip + 6) & 0x3fff) == 0 &&
           (ip[9] == PROTOCOL_TCP || (ip[9] == PROTOCOL_UDP && be16(ip + 22) != DHCP_CLIENT_PORT));
}

struct rss_result rss_parse(const struct rss *rss, const uint8_t *frame, uint32_t n)
{
    struct packet p;
    struct rss_result other = { RSS_OTHER, 0 };
    if (n < ETH_HLEN)
        return other;
    const uint8_t *ip = frame + ETH_HLEN;
    switch (be16(frame + 12)) {
    case ETH_P_ARP:
        return n >= ETH_HLEN + 28 ? (struct rss_result){ RSS_EVERYBODY, 0 } : other; /* RFC 826, for IPv4 */
    case ETH_P_IP:
        if (is_plain(ip, n - ETH_HLEN))
            return (struct rss_result){ RSS_PORTS, hash_flow(rss, 4, ip + 12, ip + 16, ip + 20) };
        return parse_ip4(&p, ip, n - ETH_HLEN) ? steer(rss, &p) : other;
    case ETH_P_IPV6:
        return parse_ip6(&p, ip, n - ETH_HLEN) ? steer(rss, &p) : other;
    default:
        return other;
    }
}

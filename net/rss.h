/* Receive side scaling in software: which core owns a flow, the same answer as a device's with the same key and table
 * gives (virtio 1.3, 5.1.6.5.7; the Toeplitz hash as NDIS documents it). Compiles on the host; knows no lwIP. */
#ifndef RINGSIDE_NET_RSS_H
#define RINGSIDE_NET_RSS_H
#include <stdbool.h>
#include <stdint.h>

#define RSS_KEY_BYTES 40
#define RSS_TABLE     128

/* The key that everybody uses, for which test vectors are published. */
extern const uint8_t rss_default_key[RSS_KEY_BYTES];

/* Key and indirection table, made ready for fast hashing (a table per input byte: 36 x 256 words). */
struct rss {
    uint32_t by_byte[36][256];
    uint8_t table[RSS_TABLE]; /* queue (= core) of each value of the hash's low 7 bits */
    uint8_t key[RSS_KEY_BYTES];
};

/* Spreads the table over `queues` (1..128) in turn, as drivers do. */
void rss_init(struct rss *rss, const uint8_t key[RSS_KEY_BYTES], unsigned queues);

/* What a frame says about where it belongs. */
enum rss_kind {
    RSS_OTHER,      /* no IP, cut short, or too many extension headers: the core that got it keeps it */
    RSS_IP,         /* hash over the two addresses: no ports (other protocols, ICMP among them) */
    RSS_PORTS,      /* hash over addresses and ports: TCP or UDP */
    RSS_FRAGMENT,   /* a fragment: hash over the two addresses; the whole is steered after reassembly */
    RSS_EVERYBODY,  /* ARP, IPv6 neighbour discovery, router advertisement, MLD: for every core */
    RSS_CONTROL,    /* belongs to core 0: DHCP's client port */
    RSS_ICMP_ERROR, /* hash of the embedded packet's flow, turned round: the owner of the connection it is about (over
                       the two addresses when that packet has no ports) */
};

struct rss_result {
    enum rss_kind kind;
    uint32_t hash;
};

/* Parses an Ethernet frame (without VLAN tag: a tagged one is RSS_OTHER) of which the first `n` bytes are at `frame`.
 * Lengths are checked; IPv6 extension headers are followed (at most 8). `hash` is 0 for kinds without one. The hash is
 * the device's for the types IPv4, TCPv4, UDPv4, IPv6, TCPv6 and UDPv6 of virtio 1.3, 5.1.6.4.3; with the _EX types the
 * device would take other addresses from extension headers, so they stay off. */
struct rss_result rss_parse(const struct rss *rss, const uint8_t *frame, uint32_t n);

/* Hashes of a flow, addresses and ports in network order: remote first, as a received packet has them (source,
 * destination). */
uint32_t rss_hash_ip4(const struct rss *rss, const uint8_t source[4], const uint8_t destination[4],
                      const uint8_t ports[4]);
uint32_t rss_hash_ip6(const struct rss *rss, const uint8_t source[16], const uint8_t destination[16],
                      const uint8_t ports[4]);
/* ports NULL: over the addresses alone. */

static inline unsigned rss_owner(const struct rss *rss, uint32_t hash)
{
    return rss->table[hash & (RSS_TABLE - 1)];
}

/* The lowest local port in [first, first + count) for an active open to `remote`:`remote_port` such that answers hash
 * to core `core`; 0 if none does (or `length` is neither 4 nor 16). Ports above 65535, and 0, are not in the range.
 * Addresses have `length` bytes; ports in host order. */
uint16_t rss_port_for(const struct rss *rss, unsigned core, unsigned length, const uint8_t *local,
                      const uint8_t *remote, uint16_t remote_port, uint16_t first, uint16_t count);
#endif

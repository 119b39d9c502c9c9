/* Receive side scaling once more, slowly and written another way: the hash from its definition, bit by bit, and a
 * parser with a cursor. */
#ifndef RINGSIDE_RSS_REFERENCE_H
#define RINGSIDE_RSS_REFERENCE_H
#include "net/rss.h"
#include "tests/unit/unit.h"

/* The Toeplitz hash of n bytes. */
uint32_t slow_hash(const uint8_t *key, const uint8_t *input, unsigned n);

/* Over source, destination (of `length` bytes each) and, unless NULL, ports. */
uint32_t slow_flow(const uint8_t *key, unsigned length, const uint8_t *source, const uint8_t *destination,
                   const uint8_t *ports);

/* What rss_parse() should find with the default key. */
struct rss_result slow_parse(const uint8_t *frame, uint32_t n);

static inline void put16(uint8_t *to, unsigned v)
{
    to[0] = (uint8_t)(v >> 8);
    to[1] = (uint8_t)v;
}

static inline void put_ports(uint8_t ports[4], unsigned source, unsigned destination)
{
    put16(ports, source);
    put16(ports + 2, destination);
}

/* Bytes by chance. */
static inline void fill(uint64_t *seed, uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(chance(seed) >> 24);
}
#endif

/* The internet checksum's sum (RFC 1071): knows no lwIP, compiles on the host. */
#ifndef RINGSIDE_PORT_CHKSUM_H
#define RINGSIDE_PORT_CHKSUM_H
#include <stdint.h>

typedef uint64_t chksum_u64 __attribute__((aligned(1), may_alias));
typedef uint32_t chksum_u32 __attribute__((aligned(1), may_alias));

/* One's complement sum: what is carried out at the top comes in at the bottom. */
static inline uint64_t chksum_add(uint64_t sum, uint64_t v)
{
    sum += v;
    return sum + (sum < v);
}

/* The 16-bit sum of a longer one. A word added to itself with its halves swapped has in its upper half the sum of both,
 * and what the lower half carries out has come in there. 0 only for 0. */
static inline uint16_t chksum_fold(uint64_t sum)
{
    uint32_t half = (uint32_t)((sum + (sum << 32 | sum >> 32)) >> 32);
    return (uint16_t)((half + (half << 16 | half >> 16)) >> 16);
}

uint16_t net_chksum_any(const void *data, int length);

/* The sum, not complemented, of `length` (at least 0) bytes at any address: 16-bit words as they lie in memory, the
 * last byte of an odd number with a zero behind it. 0 only for nothing but zeros. */
static inline uint16_t net_chksum(const void *data, int length)
{
    const char *p = (const char *)data;
    if (length != 20) /* an IPv4 header without options */
        return net_chksum_any(data, length);
    uint64_t sum = chksum_add(*(const chksum_u64 *)p, *(const chksum_u64 *)(p + 8));
    return chksum_fold(chksum_add(sum, *(const chksum_u32 *)(p + 16)));
}
#endif

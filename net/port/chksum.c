#include "net/port/chksum.h"

struct bytes32 {
    char byte[32];
};
typedef uint16_t chksum_u16 __attribute__((aligned(1), may_alias));

/* Eight bytes at a time: the sum of longer words, folded, is that of the shorter ones (RFC 1071, 2). */
uint16_t net_chksum_any(const void *data, int length)
{
    const uint8_t *p = data;
    uint64_t sum = 0;
    for (; length >= 32; length -= 32, p += 32) /* what is carried out goes on into the next addition */
        __asm__("addq (%1), %0; adcq 8(%1), %0; adcq 16(%1), %0; adcq 24(%1), %0; adcq $0, %0"
                : "+r"(sum)
                : "r"(p), "m"(*(const struct bytes32 *)p)
                : "cc");
    for (; length >= 8; length -= 8, p += 8)
        sum = chksum_add(sum, *(const chksum_u64 *)p);
    if (length & 4) {
        sum = chksum_add(sum, *(const chksum_u32 *)p);
        p += 4;
    }
    if (length & 2) {
        sum = chksum_add(sum, *(const chksum_u16 *)p);
        p += 2;
    }
    if (length & 1)
        sum = chksum_add(sum, *p);
    return chksum_fold(sum);
}

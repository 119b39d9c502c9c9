/* The internet checksum's sum against its definition (RFC 1071, 1), for all lengths and alignments, and known values.
 */
#include <stdlib.h>
#include <string.h>
#include "net/port/chksum.h"
#include "tests/unit/unit.h"

#define LONGEST 600

/* Word by word, high byte first, the carries added at the end; swapped to how the sum lies in memory. */
static uint16_t by_definition(const uint8_t *p, int n)
{
    uint32_t sum = 0;
    for (int i = 0; i < n; i += 2)
        sum += (uint32_t)p[i] << 8 | (i + 1 < n ? p[i + 1] : 0u);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return __builtin_bswap16((uint16_t)sum);
}

/* Exactly as long as what is summed, so that the sanitizer sees a byte too far on either side. */
static void compare(const uint8_t *bytes, int n, int skew)
{
    uint8_t *copy = malloc((size_t)(n + skew) + (n + skew == 0));
    memcpy(copy + skew, bytes, (size_t)n);
    assert_int_equal(net_chksum(copy + skew, n), by_definition(bytes, n));
    assert_int_equal(net_chksum_any(copy + skew, n), by_definition(bytes, n));
    free(copy);
}

static void fill(uint8_t *bytes, int n, unsigned kind)
{
    for (int i = 0; i < n; i++)
        bytes[i] = kind == 0 ? 0xff : kind == 1 ? 0 : kind == 2 ? (uint8_t)(i & 1 ? 0 : 0xff) : (uint8_t)rand();
}

static void all_lengths_and_alignments(void **state)
{
    uint8_t bytes[LONGEST];
    (void)state;
    srand(1);
    for (unsigned kind = 0; kind < 5; kind++)
        for (int n = 0; n <= LONGEST; n++)
            for (int skew = 0; skew < 8; skew++) {
                fill(bytes, n, kind);
                compare(bytes, n, skew);
            }
}

/* Sums that carry at each place where carries are taken in. */
static void carries(void **state)
{
    (void)state;
    for (int n = 8; n <= 40; n++)
        for (int at = 0; at < n; at++)
            for (unsigned low = 0; low < 4; low++) {
                uint8_t bytes[40];
                memset(bytes, 0xff, sizeof bytes);
                bytes[at] = (uint8_t)low;
                compare(bytes, n, 0);
            }
}

static void longest(void **state)
{
    uint8_t *bytes = malloc(65535);
    (void)state;
    memset(bytes, 0xff, 65535);
    compare(bytes, 65535, 1);
    compare(bytes, 65534, 0);
    free(bytes);
}

/* The example of RFC 1071, 3: its sum is ddf2. */
static void the_rfcs_example(void **state)
{
    static const uint8_t bytes[] = { 0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7 };
    (void)state;
    assert_int_equal(__builtin_bswap16(net_chksum(bytes, sizeof bytes)), 0xddf2);
}

/* With the checksum in its field, a header's sum is all ones; with any bit changed it is not. */
static void a_header(void **state)
{
    uint8_t h[20] = { 0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 192, 168, 0, 1, 192, 168, 0, 199 };
    (void)state;
    assert_int_equal(net_chksum(h, 20), 0xffff);
    for (unsigned bit = 0; bit < 160; bit++) {
        h[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(net_chksum(h, 20), 0xffff);
        h[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_lengths_and_alignments), cmocka_unit_test(carries),  cmocka_unit_test(longest),
        cmocka_unit_test(the_rfcs_example),           cmocka_unit_test(a_header),
    };
    return cmocka_run_group_tests_name("chksum", tests, NULL, NULL);
}

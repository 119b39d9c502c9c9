/* Checksum offload: what the device makes of a frame that asks for it must be the checksum that RFC 793, 768 and 8200
 * describe; whatever is not to be offloaded is left as it is, to the last byte. */
#include "tests/unit/unit.h"

#include "net/offload.h"

#define ETHERNET 14
#define TCP      6
#define UDP      17

/* A frame in an allocation of just its size, and how it looked before. */
struct frame {
    uint8_t *byte, *before;
    uint32_t n;        /* bytes of the frame */
    uint32_t ip;       /* bytes of the IP header */
    uint8_t protocol;  /* what follows it */
    uint32_t field_at; /* of the checksum's field */
    bool v6;
};

static uint64_t seed;

static int set_up(void **state)
{
    (void)state;
    seed = chance_seed(0x0ff1);
    return 0;
}

static void put16(uint8_t *p, unsigned v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static unsigned get16(const uint8_t *p)
{
    return p[0] << 8 | p[1];
}

static void fill(uint8_t *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        p[i] = (uint8_t)chance(&seed);
}

/* A frame of random addresses and contents. `options` are bytes of IPv4 options, 0..40 in steps of 4. */
static struct frame make(bool v6, uint8_t protocol, uint32_t options, uint32_t payload)
{
    struct frame f = { .v6 = v6, .protocol = protocol, .ip = v6 ? 40 : 20 + options };
    uint32_t transport = protocol == TCP ? 20 : 8;

    f.n = ETHERNET + f.ip + transport + payload;
    f.byte = malloc(f.n);
    f.before = malloc(f.n);
    fill(f.byte, f.n);
    uint8_t *ip = f.byte + ETHERNET;
    put16(f.byte + 12, v6 ? 0x86dd : 0x0800);
    if (v6) {
        ip[0] = 0x60 | (ip[0] & 15);
        put16(ip + 4, transport + payload);
        ip[6] = protocol;
    } else {
        ip[0] = (uint8_t)(0x40 | f.ip / 4);
        put16(ip + 2, f.ip + transport + payload);
        put16(ip + 6, chance(&seed) % 2 ? 0x4000 : 0); /* "don't fragment" is no fragment */
        ip[9] = protocol;
    }
    f.field_at = ETHERNET + f.ip + (protocol == TCP ? 16 : 6);
    if (protocol == UDP)
        put16(f.byte + ETHERNET + f.ip + 4, transport + payload);
    put16(f.byte + f.field_at, 0);
    memcpy(f.before, f.byte, f.n);
    return f;
}

static void drop(struct frame *f)
{
    free(f->byte);
    free(f->before);
}

/* One's complement sum of bytes in network order (RFC 1071), the slow way. */
static uint32_t sum(uint32_t start, const uint8_t *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        start += i % 2 ? p[i] : (uint32_t)p[i] << 8;
        start = (start & 0xffff) + (start >> 16);
    }
    return start;
}

/* The checksum that the field must end up with, from the frame as it was. */
static unsigned reference(const struct frame *f)
{
    const uint8_t *ip = f->before + ETHERNET;
    uint32_t length = f->n - ETHERNET - f->ip;
    uint32_t s = f->v6 ? sum(0, ip + 8, 32) : sum(0, ip + 12, 8);

    s = sum(s, (const uint8_t[]){ 0, f->protocol, (uint8_t)(length >> 8), (uint8_t)length }, 4);
    return ~sum(s, f->before + ETHERNET + f->ip, length) & 0xffff;
}

/* What the device does (5.1.6.2): the checksum from csum_start to the end, into the field. */
static void device(const struct virtio_net_hdr_v1 *h, uint8_t *byte, uint32_t n)
{
    put16(byte + h->csum_start + h->csum_offset, ~sum(0, byte + h->csum_start, n - h->csum_start) & 0xffff);
}

/* The header the driver starts with: cleared. */
static bool offload(struct virtio_net_hdr_v1 *h, uint8_t *byte, uint32_t n)
{
    *h = (struct virtio_net_hdr_v1){ 0 };
    return offload_checksum(h, byte, n);
}

/* Nothing is asked for and nothing is touched. */
static void check_left_alone(struct frame *f, const char *what)
{
    struct virtio_net_hdr_v1 h, none = { 0 };

    memcpy(f->before, f->byte, f->n);
    check(!offload(&h, f->byte, f->n), "%s", what);
    assert_memory_equal(&h, &none, sizeof(h));
    assert_memory_equal(f->byte, f->before, f->n);
}

/* The device is asked for the right checksum; only the field has changed. `n` bytes of the frame are given. */
static void check_offloaded(struct frame *f, uint32_t n)
{
    struct virtio_net_hdr_v1 h;
    uint8_t *first = malloc(n);

    memcpy(first, f->byte, n);
    check(offload(&h, first, n), "a frame of %u bytes, IP header of %u, protocol %u", f->n, f->ip, f->protocol);
    memcpy(f->byte, first, n);
    free(first);
    assert_int_equal(h.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
    assert_int_equal(h.csum_start, ETHERNET + f->ip);
    assert_int_equal(h.csum_start + h.csum_offset, f->field_at);
    assert_int_equal(h.gso_type, VIRTIO_NET_HDR_GSO_NONE);
    assert_int_equal(h.hdr_len + h.gso_size + h.num_buffers, 0);
    device(&h, f->byte, f->n);
    check(get16(f->byte + f->field_at) == reference(f), "checksum %04x, not %04x", get16(f->byte + f->field_at),
          reference(f));
    put16(f->byte + f->field_at, 0);
    assert_memory_equal(f->byte, f->before, f->n);
}

static void test_ipv4(void **state)
{
    (void)state;
    for (uint32_t options = 0; options <= 40; options += 4) {
        for (uint32_t payload = 0; payload < 40; payload++) {
            struct frame f = make(false, payload % 2 ? TCP : UDP, options, payload / 2);
            check_offloaded(&f, f.n);
            drop(&f);
        }
    }
}

static void test_ipv6(void **state)
{
    (void)state;
    for (uint32_t payload = 0; payload < 400; payload++) {
        struct frame f = make(true, payload % 2 ? TCP : UDP, 0, payload / 2);
        check_offloaded(&f, f.n);
        drop(&f);
    }
}

/* Random frames up to the largest, of which only the headers may be given. */
static void test_random_frames(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 20000; n++) {
        uint32_t payload = chance_below(&seed, n % 100 ? 1461 : 65400 - 100);
        struct frame f = make(chance(&seed) % 2, chance(&seed) % 2 ? TCP : UDP, 4 * chance_below(&seed, 11), payload);
        uint32_t headers = f.field_at + 2;
        check_offloaded(&f, headers + chance_below(&seed, f.n - headers + 1));
        drop(&f);
    }
}

/* Sums that carry: addresses and contents of nothing but ones, or zeroes. */
static void test_extreme_sums(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 64; n++) {
        static const uint8_t fill[] = { 0, 0xff, 0x7f, 0xfe }; /* of 0 and ff the sum has no carry when it is folded */
        struct frame f = make(n & 1, n & 2 ? TCP : UDP, 0, n & 4 ? 1401 : 1400);
        uint32_t addresses = ETHERNET + (f.v6 ? 8 : 12);
        memset(f.byte + addresses, fill[n / 16], f.v6 ? 32 : 8);
        memset(f.byte + ETHERNET + f.ip, n & 8 ? 0xff : 0, f.n - ETHERNET - f.ip);
        put16(f.byte + f.field_at, 0);
        memcpy(f.before, f.byte, f.n);
        check_offloaded(&f, f.n);
        drop(&f);
    }
}

static void test_fragments(void **state)
{
    static const unsigned fields[] = { 0x2000, 0x0001, 0x00b9, 0x1fff, 0x20b9, 0x3fff, 0x6000, 0x6001, 0xa001 };

    (void)state;
    for (unsigned i = 0; i < 2 * COUNT_OF(fields); i++) {
        struct frame f = make(false, i % 2 ? TCP : UDP, 0, 100);
        put16(f.byte + ETHERNET + 6, fields[i / 2]);
        check_left_alone(&f, "a fragment of IPv4");
        drop(&f);
    }
}

static void test_filled_in(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 64; i++) {
        struct frame f = make(i & 1, i & 2 ? TCP : UDP, 0, 100);
        put16(f.byte + f.field_at, 1u << (i / 4));
        check_left_alone(&f, "a field that is filled in");
        drop(&f);
    }
}

/* Every other protocol, IPv6's extension headers and fragments (44) among them. */
static void test_other_protocols(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 512; i++) {
        struct frame f = make(i & 1, UDP, 0, 100);
        f.byte[ETHERNET + (f.v6 ? 6 : 9)] = (uint8_t)(i / 2);
        memset(f.byte + ETHERNET + f.ip, 0, f.n - ETHERNET - f.ip);
        if (i / 2 != TCP && i / 2 != UDP)
            check_left_alone(&f, "another protocol");
        drop(&f);
    }
}

static void test_other_types(void **state)
{
    static const unsigned types[] = { 0x0806, 0x8100, 0x88a8, 0x0008, 0xdd86, 0x05dc, 0x86dc, 0 };

    (void)state;
    for (unsigned i = 0; i < 2 * COUNT_OF(types); i++) {
        struct frame f = make(i % 2, UDP, 0, 100);
        put16(f.byte + 12, types[i / 2]);
        check_left_alone(&f, "neither IPv4 nor IPv6");
        drop(&f);
    }
}

/* Headers that contradict themselves: nobody knows where the checksum is. */
static void test_broken_headers(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 16; i++) {
        struct frame f = make(false, TCP, 0, 100);
        memset(f.byte + ETHERNET + 10, 0, 130); /* wherever the field is thought to be, it is empty */
        f.byte[ETHERNET] = (uint8_t)(i < 5 ? 0x40 | i : i << 4 | 5); /* header length below 5, version not 4 */
        if (f.byte[ETHERNET] != 0x45)
            check_left_alone(&f, "IPv4 with a bad first byte");
        drop(&f);
        f = make(true, UDP, 0, 100);
        f.byte[ETHERNET] = (uint8_t)(i << 4);
        if (i != 6)
            check_left_alone(&f, "IPv6 with a bad version");
        drop(&f);
    }
    for (unsigned length = 0; length < 70; length++) {
        struct frame f = make(length % 2, length % 4 < 2 ? TCP : UDP, 0, 100);
        unsigned least = f.field_at + 2 - ETHERNET - (f.v6 ? 40 : 0); /* the field lies within the packet */
        put16(f.byte + ETHERNET + (f.v6 ? 4 : 2), length);
        if (length < least)
            check_left_alone(&f, "a length that ends before the checksum");
        drop(&f);
    }
}

/* Cut anywhere, in memory that ends there. */
static void test_truncated(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 24; i++) {
        struct frame f = make(i & 1, i & 2 ? TCP : UDP, i & 1 ? 0 : 8 * (i / 4), 20);
        for (uint32_t n = 0; n < f.n; n++) {
            struct frame cut = f;
            cut.byte = malloc(n ? n : 1);
            cut.before = malloc(n ? n : 1);
            cut.n = n;
            memcpy(cut.byte, f.byte, n);
            if (n < f.field_at + 2) {
                check_left_alone(&cut, "cut off");
            } else {
                struct virtio_net_hdr_v1 h;
                assert_true(offload(&h, cut.byte, n));
            }
            drop(&cut);
        }
        drop(&f);
    }
}

/* Any bytes of any length: no step outside, at most the field changes, and that was 0. */
static void test_random_bytes(void **state)
{
    unsigned asked = 0;

    (void)state;
    for (unsigned n = 0; n < 300000; n++) {
        uint32_t length = chance_below(&seed, 100);
        uint8_t *byte = malloc(length ? length : 1), *before = malloc(length ? length : 1);
        struct virtio_net_hdr_v1 h;

        for (uint32_t i = 0; i < length; i++)
            byte[i] = chance(&seed) & 1 ? 0 : (uint8_t)chance(&seed);
        if (length > 34) {
            put16(byte + 12, n % 2 ? 0x0800 : 0x86dd);
            byte[14] = (uint8_t)(n % 2 ? 0x40 | (byte[14] & 15) : 0x60);
            byte[n % 2 ? 23 : 20] = n % 4 < 2 ? TCP : UDP;
        }
        memcpy(before, byte, length);
        if (offload(&h, byte, length)) {
            uint32_t at = h.csum_start + h.csum_offset;
            check(at + 2 <= length && h.csum_start >= ETHERNET + 20, "field at %u of %u", at, length);
            assert_int_equal(get16(before + at), 0);
            put16(byte + at, 0);
            asked++;
        }
        assert_memory_equal(byte, before, length);
        free(byte);
        free(before);
    }
    check(asked > 1000, "only %u asked", asked);
}

/* A segment that the device is to cut: the type by the IP version, the headers' length with all options, and the
 * pseudo-header's sum over the whole length (checked with the checksum of the whole, as if it were not cut). */
static void test_segmentation(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 4000; n++) {
        bool v6 = n % 2;
        uint32_t data = 1 + chance_below(&seed, 65000), tcp = 20 + 4 * chance_below(&seed, 11);
        struct frame f =
            make(v6, TCP, v6 ? 0 : 4 * chance_below(&seed, 11), tcp - 20 + (data < 65300 - tcp ? data : 1000));
        uint16_t size = (uint16_t)(1 + chance_below(&seed, 65535));
        uint32_t headers = ETHERNET + f.ip + tcp, given = headers + chance_below(&seed, f.n - headers + 1);
        f.byte[ETHERNET + f.ip + 12] = (uint8_t)(tcp / 4 << 4 | (n & 15));
        memcpy(f.before, f.byte, f.n);
        struct virtio_net_hdr_v1 h;
        uint8_t *first = malloc(given); /* what is not in the slot is not there */
        memcpy(first, f.byte, given);
        assert_true(offload(&h, first, given));
        offload_segmentation(&h, first, size);
        memcpy(f.byte, first, given);
        free(first);
        assert_int_equal(h.gso_type, v6 ? VIRTIO_NET_HDR_GSO_TCPV6 : VIRTIO_NET_HDR_GSO_TCPV4);
        assert_int_equal(h.gso_size, size);
        assert_int_equal(h.hdr_len, headers);
        assert_int_equal(h.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
        assert_int_equal(h.csum_start, ETHERNET + f.ip);
        assert_int_equal(h.csum_offset, 16);
        assert_int_equal(h.num_buffers, 0);
        device(&h, f.byte, f.n);
        check(get16(f.byte + f.field_at) == reference(&f), "checksum of %u bytes", f.n);
        put16(f.byte + f.field_at, 0);
        assert_memory_equal(f.byte, f.before, f.n);
        drop(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_ipv4, set_up),
        cmocka_unit_test_setup(test_ipv6, set_up),
        cmocka_unit_test_setup(test_random_frames, set_up),
        cmocka_unit_test_setup(test_extreme_sums, set_up),
        cmocka_unit_test_setup(test_fragments, set_up),
        cmocka_unit_test_setup(test_filled_in, set_up),
        cmocka_unit_test_setup(test_other_protocols, set_up),
        cmocka_unit_test_setup(test_other_types, set_up),
        cmocka_unit_test_setup(test_broken_headers, set_up),
        cmocka_unit_test_setup(test_truncated, set_up),
        cmocka_unit_test_setup(test_random_bytes, set_up),
        cmocka_unit_test_setup(test_segmentation, set_up),
    };

    return cmocka_run_group_tests_name("offload", tests, NULL, NULL);
}

/* UDP datagrams that came as one packet, cut again: headers, contents and boundaries, whatever buffers they lie in;
 * what is no such packet is refused; and every buffer goes back, when memory runs out too. */
#include <linux/if_ether.h>
#include "lwip/inet_chksum.h"
#include "lwip/pbuf.h"
#include "net/datagrams.h"
#include "tests/unit/unit.h"

static unsigned blocks;     /* of memory that are out */
static int takes_left = -1; /* then there is no memory; -1: there always is */

void *heap_take(size_t n)
{
    if (takes_left == 0)
        return NULL;
    takes_left -= takes_left > 0;
    blocks++;
    return malloc(n);
}

void *heap_take_cleared(size_t n, size_t each)
{
    blocks++;
    return calloc(n, each);
}

void heap_give(void *p)
{
    blocks--;
    free(p);
}

/* ---- packets ---- */

enum kind { IP4, IP4_OPTIONS, IP6, IP6_EXTENSIONS, KINDS };

static const uint32_t ip_bytes[KINDS] = { 20, 28, 40, 64 };
static uint8_t packet[65536];

static void set16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static unsigned get16(const uint8_t *at)
{
    return (unsigned)(at[0] << 8 | at[1]);
}

static uint8_t byte(uint32_t i)
{
    return (uint8_t)(i * 7 + i / 251);
}

/* A packet with `data` bytes in packet[]; returns its length. */
static uint32_t make(enum kind kind, uint32_t data)
{
    uint32_t ip = ip_bytes[kind], udp = ETH_HLEN + ip;
    uint8_t *b = packet + ETH_HLEN;
    memset(packet, 0, udp + 8);
    if (kind <= IP4_OPTIONS) {
        set16(packet + 12, ETH_P_IP);
        b[0] = (uint8_t)(0x40 | ip / 4);
        set16(b + 2, ip + 8 + data);
        set16(b + 6, 0x4000); /* not to be fragmented */
        b[8] = 64;
        b[9] = 17;
        memcpy(b + 12, "\306\022\0\1\306\022\0\2", 8);
        memset(b + 20, 1, ip - 20);
        uint16_t sum = inet_chksum(b, (u16_t)ip);
        memcpy(b + 10, &sum, 2);
    } else {
        set16(packet + 12, ETH_P_IPV6);
        b[0] = 0x60;
        set16(b + 4, ip - 40 + 8 + data);
        b[6] = kind == IP6 ? 17 : 0;
        b[7] = 64;
        if (kind == IP6_EXTENSIONS) { /* hop by hop, 8 bytes; destination options, 16 */
            b[40] = 60;
            b[48] = 17;
            b[49] = 1;
        }
    }
    set16(packet + udp, 4000);
    set16(packet + udp + 2, 7);
    set16(packet + udp + 4, 8 + data);
    for (uint32_t i = 0; i < data; i++)
        packet[udp + 8 + i] = byte(i);
    return udp + 8 + data;
}

/* The packet's first `n` bytes in pbufs of `piece` bytes, the first of `first`. */
static struct pbuf *wrap(uint32_t n, uint32_t first, uint32_t piece)
{
    struct pbuf *all = NULL;
    for (uint32_t at = 0; at < n;) {
        uint32_t part = at == 0 ? first : piece;
        part = part < n - at ? part : n - at;
        struct pbuf *p = pbuf_alloc(PBUF_RAW, (u16_t)part, PBUF_RAM);
        memcpy(p->payload, packet + at, part);
        at += part;
        if (all == NULL)
            all = p;
        else
            pbuf_cat(all, p);
    }
    return all;
}

static void check_datagram(const struct pbuf *p, enum kind kind, uint32_t at, uint32_t n)
{
    static uint8_t got[65536];
    uint32_t ip = ip_bytes[kind], udp = ETH_HLEN + ip;
    const uint8_t *b = got + ETH_HLEN;
    for (const struct pbuf *q = p; q != NULL; q = q->next)
        check(q->len > 0 && q->tot_len == q->len + (q->next != NULL ? q->next->tot_len : 0), "lengths of the chain");
    assert_int_equal(p->tot_len, udp + 8 + n);
    assert_true(p->len >= udp + 8); /* lwIP reads headers where they begin */
    assert_int_equal(p->gso_size, 0);
    pbuf_copy_partial(p, got, p->tot_len, 0);
    assert_int_equal(get16(got + udp + 4), 8 + n);
    if (kind <= IP4_OPTIONS) {
        assert_int_equal(get16(b + 2), ip + 8 + n);
        assert_int_equal(inet_chksum(b, (u16_t)ip), 0);
    } else {
        assert_int_equal(get16(b + 4), ip - 40 + 8 + n);
    }
    for (uint32_t i = 0; i < n; i++)
        if (got[udp + 8 + i] != byte(at + i))
            check(false, "byte %u of a datagram of %u at %u", i, n, at);
}

/* All lengths that matter, in buffers of all sizes that matter; the datagrams are freed at once, or kept and freed in
 * either order. */
static void test_cut(void **state)
{
    static const uint32_t firsts[] = { 134, 200, 2000, 4000, 65535 }, pieces[] = { 1, 100, 1472, 4032, 65535 };
    static const uint16_t sizes[] = { 1, 2, 511, 512, 513, 514, 1000, 1472, 9000, 30000 };
    static const uint32_t extras[] = { 0, 1, 511, 513 };
    static struct pbuf *kept[70000];
    (void)state;

    for (unsigned n = 0; n < KINDS * COUNT_OF(firsts) * COUNT_OF(pieces) * COUNT_OF(sizes) * COUNT_OF(extras); n++) {
        unsigned v = n;
        enum kind kind = (enum kind)(v % KINDS);
        uint32_t first = firsts[(v /= KINDS) % COUNT_OF(firsts)];
        uint32_t piece = pieces[(v /= COUNT_OF(firsts)) % COUNT_OF(pieces)];
        uint16_t size = sizes[(v /= COUNT_OF(pieces)) % COUNT_OF(sizes)];
        uint32_t extra = extras[v / COUNT_OF(sizes)];
        uint32_t most = piece == 1 ? 1600 : 65535 - ETH_HLEN - ip_bytes[kind] - 8, whole = piece == 1   ? 2
                                                                                           : size < 500 ? 100
                                                                                                        : most / size;
        uint32_t data = whole * size + (extra < size ? extra : 0), count = 0;
        data = data > most ? most : data;
        struct datagrams cut;
        struct pbuf *p = wrap(make(kind, data), first, piece);
        assert_true(datagrams_begin(&cut, p, size));
        for (uint32_t at = 0; at < data; at += size, count++) {
            uint32_t bytes = data - at < size ? data - at : size;
            struct pbuf *q = datagrams_next(&cut);
            assert_non_null(q);
            check_datagram(q, kind, at, bytes);
            if (n % 3 == 0)
                pbuf_free(q);
            kept[count] = n % 3 == 0 ? NULL : q;
        }
        assert_null(datagrams_next(&cut));
        assert_null(cut.rest);
        datagrams_end(&cut);
        for (uint32_t i = 0; i < count && n % 3 != 0; i++) {
            uint32_t k = n % 3 == 1 ? i : count - 1 - i, at = k * size;
            check_datagram(kept[k], kind, at, data - at < size ? data - at : size);
            pbuf_free(kept[k]);
        }
        assert_int_equal(blocks, 0);
    }
}

/* What the link has added is no data; an IPv4 header's wrong checksum stays wrong. */
static void test_padding_and_sum(void **state)
{
    struct datagrams cut;
    (void)state;
    uint32_t n = make(IP4, 3000);
    struct pbuf *p = wrap(n + 20, 4000, 4000), *q;
    assert_true(datagrams_begin(&cut, p, 1400));
    for (uint32_t at = 0; at < 3000; at += 1400) {
        q = datagrams_next(&cut);
        check_datagram(q, IP4, at, at == 2800 ? 200 : 1400);
        pbuf_free(q);
    }
    assert_null(datagrams_next(&cut));
    packet[ETH_HLEN + 8] ^= 1;
    assert_true(datagrams_begin(&cut, wrap(n, 4000, 4000), 1400));
    while ((q = datagrams_next(&cut)) != NULL) {
        assert_int_not_equal(inet_chksum((uint8_t *)q->payload + ETH_HLEN, 20), 0);
        pbuf_free(q);
    }
    assert_int_equal(blocks, 0);
}

/* One byte of the headers wrong, or too few of them. */
static void test_refused(void **state)
{
    static const struct {
        enum kind kind;
        uint32_t at;
        uint8_t value;
    } wrong[] = {
        { IP4, 12, 0x86 },
        { IP4, 14, 0x65 },
        { IP4, 14, 0x44 },
        { IP4, 14, 0x4f },
        { IP4, 16, 0xff },
        { IP4, 17, 19 },
        { IP4, 20, 0x20 },
        { IP4, 21, 1 },
        { IP4, 23, 6 },
        { IP4, 38, 0xff },
        { IP4, 39, 7 },
        { IP6, 13, 0 },
        { IP6, 14, 0x40 },
        { IP6, 18, 0xff },
        { IP6, 20, 6 },
        { IP6, 20, 44 },
        { IP6, 20, 0 },
        { IP6, 58, 0xff },
        { IP6_EXTENSIONS, 54, 6 },
        { IP6_EXTENSIONS, 55, 1 },
        { IP6_EXTENSIONS, 63, 255 },
    };
    struct datagrams cut;
    (void)state;

    for (unsigned i = 0; i < COUNT_OF(wrong); i++) {
        uint32_t n = make(wrong[i].kind, 3000);
        assert_int_not_equal(packet[wrong[i].at], wrong[i].value);
        packet[wrong[i].at] = wrong[i].value;
        struct pbuf *p = wrap(n, 4000, 4000);
        check(!datagrams_begin(&cut, p, 1000), "kind %u with %#x at %u", wrong[i].kind, wrong[i].value, wrong[i].at);
        pbuf_free(p);
    }
    for (enum kind kind = 0; kind < KINDS; kind++) {
        uint32_t n = make(kind, 3000), headers = n - 3000;
        for (uint32_t first = 1; first <= headers; first++) { /* headers in two buffers */
            struct pbuf *p = wrap(n, first, 4000);
            check(datagrams_begin(&cut, p, 1000) == (first == headers), "kind %u, the first %u bytes", kind, first);
            if (first == headers)
                datagrams_end(&cut);
            else
                pbuf_free(p);
        }
        for (uint32_t length = 1; length < n; length += length < headers ? 1 : 97) { /* less than IP says */
            struct pbuf *p = wrap(length, 4000, 4000);
            assert_false(datagrams_begin(&cut, p, 1000));
            pbuf_free(p);
        }
        struct pbuf *p = wrap(n, 4000, 4000);
        assert_false(datagrams_begin(&cut, p, 0));
        pbuf_free(p);
    }
    assert_int_equal(blocks, 0);
}

/* Memory ends at any moment: what was cut is right, the rest is given back. */
static void test_no_memory(void **state)
{
    (void)state;
    for (unsigned size = 400; size <= 1400; size += 1000) {
        for (int takes = 0;; takes++) {
            struct datagrams cut;
            struct pbuf *q;
            uint32_t at = 0;
            assert_true(datagrams_begin(&cut, wrap(make(IP6, 20000), 4000, 3000), (uint16_t)size));
            takes_left = takes;
            while ((q = datagrams_next(&cut)) != NULL) {
                check_datagram(q, IP6, at, 20000 - at < size ? 20000 - at : size);
                pbuf_free(q);
                at += size;
            }
            takes_left = -1;
            bool all = at >= 20000;
            assert_int_equal(cut.rest == NULL, all);
            datagrams_end(&cut);
            assert_int_equal(blocks, 0);
            if (all)
                break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_padding_and_sum),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests_name("datagrams", tests, NULL, NULL);
}

/* Datagrams joined into one packet: which may be, in which order and how many; what the headers tell of the whole; and
 * every reference goes back. */
#include <linux/if_ether.h>
#include "lwip/inet_chksum.h"
#include "lwip/pbuf.h"
#include "net/join.h"
#include "tests/unit/unit.h"

static void set16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static unsigned get16(const uint8_t *at)
{
    return (unsigned)(at[0] << 8 | at[1]);
}

static uint32_t headers(bool six)
{
    return 14 + (six ? 40 : 20) + 8;
}

/* Datagram number `n`, its data behind the headers, or `apart` in a pbuf of its own. */
static struct pbuf *make(bool six, uint32_t data, unsigned n, bool apart)
{
    uint32_t head = headers(six);
    struct pbuf *p = pbuf_alloc(PBUF_RAW, (u16_t)(head + (apart ? 0 : data)), PBUF_RAM);
    uint8_t *b = p->payload, *ip = b + 14, *udp = b + head - 8;
    memset(b, 0, head);
    memcpy(b, "\2\0\0\0\0\1\2\0\0\0\0\2", 12);
    set16(b + 12, six ? ETH_P_IPV6 : ETH_P_IP);
    if (six) {
        ip[0] = 0x60;
        set16(ip + 4, 8 + data);
        ip[6] = 17;
        ip[7] = 255;
        memcpy(ip + 8, "0123456789abcdefghijklmnopqrstuv", 32);
    } else {
        ip[0] = 0x45;
        set16(ip + 2, 28 + data);
        set16(ip + 4, 1000 + n);
        ip[8] = 255;
        ip[9] = 17;
        memcpy(ip + 12, "\306\022\0\1\306\022\0\2", 8);
        uint16_t sum = inet_chksum(ip, 20);
        memcpy(ip + 10, &sum, 2);
    }
    set16(udp, 7);
    set16(udp + 2, 4000);
    set16(udp + 4, 8 + data);
    if (apart) {
        struct pbuf *q = pbuf_alloc(PBUF_RAW, (u16_t)data, PBUF_RAM);
        memset(q->payload, (int)(n + 1), data);
        pbuf_cat(p, q);
    } else {
        memset(b + head, (int)(n + 1), data);
    }
    return p;
}

/* As an application does it: hands the datagram over and frees its own reference. */
static bool add(struct join *join, struct pbuf *p, uint16_t pieces)
{
    bool added = join_add(join, p, pieces);
    pbuf_free(p);
    return added;
}

static void check_joined(struct pbuf *p, bool six, uint32_t size, unsigned count, uint32_t last)
{
    static uint8_t got[65536];
    uint32_t head = headers(six), data = size * (count - 1) + last;
    const uint8_t *ip = got + 14;
    assert_non_null(p);
    for (const struct pbuf *q = p; q != NULL; q = q->next)
        check(q->len > 0 && q->ref == 1 && q->tot_len == q->len + (q->next != NULL ? q->next->tot_len : 0), "chain");
    assert_int_equal(p->tot_len, head + data);
    assert_int_equal(p->gso_size, count > 1 ? size : 0);
    pbuf_copy_partial(p, got, p->tot_len, 0);
    assert_int_equal(get16(got + head - 4), 8 + data);
    assert_int_equal(get16(ip + (six ? 4 : 2)), (six ? 8 : 28) + data);
    assert_true(six || inet_chksum(ip, 20) == 0);
    assert_true(six || get16(ip + 4) == 1000);
    for (uint32_t i = 0; i < data; i++)
        if (got[head + i] != (uint8_t)(i / size + 1))
            check(false, "byte %u of %u", i, data);
    pbuf_free(p);
}

/* All sizes, numbers, and last ones. */
static void test_joined(void **state)
{
    static const uint16_t sizes[] = { 1, 2, 22, 234, 512, 1000, 1472 };
    (void)state;

    for (unsigned n = 0; n < 4 * COUNT_OF(sizes) * JOIN_COUNT; n++) {
        bool six = n & 1, apart = n & 2;
        uint16_t size = sizes[n / 4 % COUNT_OF(sizes)];
        unsigned count = n / 4 / COUNT_OF(sizes) + 1, most = (JOIN_BYTES - headers(six)) / size;
        count = count > most ? most : count;
        for (uint32_t last = size; last > 0; last = last == size && size > 1 ? size / 2 : 0) {
            struct join join = { 0 };
            for (unsigned i = 0; i < count; i++)
                assert_true(add(&join, make(six, i + 1 < count ? size : last, i, apart), 200));
            uint32_t first = count == 1 ? last : size; /* one alone gives the size itself */
            assert_int_equal(join.count, count);
            assert_int_equal(join_full(&join), count == JOIN_COUNT || last != first);
            if (last != first || count == JOIN_COUNT || count == most)
                assert_false(add(&join, make(six, size, count, apart), 200));
            check_joined(join_take(&join), six, first, count, last);
            assert_null(join_take(&join));
        }
    }
}

/* A larger one, one of another flow (each byte of the headers), and too many pieces do not go with the others. */
static void test_not_together(void **state)
{
    (void)state;
    for (unsigned six = 0; six < 2; six++) {
        uint32_t head = headers(six);
        for (uint32_t at = 0; at < head; at++) {
            struct join join = { 0 };
            struct pbuf *p = make(six, 100, 1, false);
            uint8_t *b = p->payload;
            assert_true(add(&join, make(six, 100, 0, false), 20));
            b[at] ^= at == 0 ? 4 : 0x10; /* a station's address still */
            bool free4 = !six && ((at >= 14 + 4 && at < 14 + 6) || (at >= 14 + 10 && at < 14 + 12));
            /* lengths of IP are for IP: UDP's counts */
            bool length = at >= 14u + (six ? 4 : 2) && at < 14u + (six ? 6 : 4);
            bool added = add(&join, p, 20);
            if (!length)
                check(added == free4, "IPv%u, byte %u: %s", six ? 6 : 4, at, added ? "joined" : "not joined");
            pbuf_free(join_take(&join));
        }
        struct join join = { 0 };
        assert_true(add(&join, make(six, 100, 0, true), 5));
        assert_false(add(&join, make(six, 101, 1, true), 5));
        assert_int_equal(join.pieces, 2);
        assert_true(add(&join, make(six, 100, 1, true), 5));
        assert_true(add(&join, make(six, 100, 2, true), 5));
        assert_int_equal(join.pieces, 4);
        assert_false(add(&join, make(six, 100, 3, true), 5));
        pbuf_free(join_take(&join));
    }
}

/* What is nothing to be joined at all. */
static void test_never(void **state)
{
    static const struct {
        bool six;
        uint8_t at, value;
    } wrong[] = { { false, 0, 1 },  { false, 12, 0x86 }, { false, 14, 0x46 }, { false, 20, 0x20 },
                  { false, 21, 1 }, { false, 23, 6 },    { false, 39, 0 },    { false, 40, 1 },
                  { true, 20, 44 }, { true, 60, 1 },     { true, 58, 7 } };
    (void)state;

    for (unsigned i = 0; i < COUNT_OF(wrong); i++) {
        struct join join = { 0 };
        struct pbuf *p = make(wrong[i].six, 100, 0, false);
        ((uint8_t *)p->payload)[wrong[i].at] = wrong[i].value;
        check(!add(&join, p, 20), "number %u", i);
    }
    for (unsigned six = 0; six < 2; six++) {
        struct join join = { 0 };
        assert_false(add(&join, make(six, 0, 0, false), 20));
        assert_false(add(&join, make(six, 100, 0, true), 1));
        assert_null(join.first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined),
        cmocka_unit_test(test_not_together),
        cmocka_unit_test(test_never),
    };

    return cmocka_run_group_tests_name("join", tests, NULL, NULL);
}

/* The short ways of net/ether.c against lwIP's own: the same frame is given twice, once when the host it comes from is
 * not known there, so that lwIP takes it, and once when it is. What is sent, what is counted and what is freed must be
 * the same, and which of the two went which way is seen. */
#include "lwip/etharp.h"
#include "lwip/inet_chksum.h"
#include "lwip/init.h"
#include "lwip/ip4.h"
#include "lwip/ip4_frag.h"
#include "net/port/chksum.h"
#include "tests/unit/unit.h"

static unsigned to_lwip; /* packets that lwIP's IPv4 was given */

static err_t counted_ip4_input(struct pbuf *p, struct netif *netif)
{
    to_lwip++;
    return ip4_input(p, netif);
}

#define ip4_input counted_ip4_input
#include "net/ether.c"
#undef ip4_input

#define HEADERS  (14 + 20 + 8)
#define LONGEST  2000
#define OUR_MTU  1500
#define OURS     "\306\022\0\2"
#define THEIRS   "\306\022\0\1"
#define STATIONS "\2\0\0\0\0\2\2\0\0\0\0\1" /* ours, theirs: as a frame for us begins */

static struct netif netif;
static uint8_t sent[LONGEST];
static unsigned frames_sent, sent_bytes, freed;

static err_t capture(struct netif *n, struct pbuf *p)
{
    (void)n;
    frames_sent++;
    sent_bytes = pbuf_copy_partial(p, sent, sizeof sent, 0);
    return ERR_OK;
}

static err_t init(struct netif *n)
{
    n->mtu = OUR_MTU;
    n->hwaddr_len = ETH_ALEN;
    memcpy(n->hwaddr, STATIONS, ETH_ALEN);
    n->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET;
    n->output = ether_output4;
    n->linkoutput = capture;
    return ERR_OK;
}

/* A received frame: its bytes lie in front of nothing else, as in a receive buffer, and its end is counted. */
struct received {
    struct pbuf_custom custom;
    uint8_t data[LONGEST];
};

static void on_free(struct pbuf *p)
{
    freed++;
    free(p);
}

static struct pbuf *receive(const uint8_t *bytes, uint32_t n)
{
    struct received *r = calloc(1, sizeof *r);
    r->custom.custom_free_function = on_free;
    memcpy(r->data, bytes, n);
    return pbuf_alloced_custom(PBUF_RAW, (u16_t)n, PBUF_POOL, &r->custom, r->data, (u16_t)n);
}

/* Their ARP request: lwIP knows their station from then on and nothing else, no fragments either; the short ways know
 * nothing. */
static void say_who(void)
{
    etharp_cleanup_netif(&netif);
    for (unsigned i = 0; i <= IP_REASS_MAXAGE; i++)
        ip_reass_tmr();
    uint8_t arp[42] = STATIONS "\x08\x06\0\1\x08\0\6\4\0\1\2\0\0\0\0\1" THEIRS;
    memcpy(arp + 38, OURS, 4);
    struct pbuf *p = receive(arp, sizeof arp);
    assert_int_equal(ether_input(p, &netif), ERR_OK);
}

static int open_netif(void **state)
{
    ip4_addr_t address, mask;
    (void)state;
    memcpy(&address, OURS, 4);
    IP4_ADDR(&mask, 255, 255, 255, 0);
    lwip_init();
    assert_non_null(netif_add(&netif, &address, &mask, IP4_ADDR_ANY4, NULL, init, ether_input));
    netif_set_default(&netif);
    netif_set_up(&netif);
    netif_set_link_up(&netif);
    return 0;
}

static void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

/* Sets both checksums right. */
static void sum_up(uint8_t *frame, uint32_t data)
{
    uint16_t sum;
    memset(frame + 24, 0, 2);
    sum = inet_chksum(frame + 14, 20);
    memcpy(frame + 24, &sum, 2);
    memset(frame + 36, 0, 2);
    sum = inet_chksum(frame + 34, (u16_t)(8 + data));
    memcpy(frame + 36, &sum, 2);
}

/* An echo request with `data` bytes; returns the frame's length. */
static uint32_t make(uint8_t *frame, uint32_t data, unsigned seed)
{
    memset(frame, 0, LONGEST);
    memcpy(frame, STATIONS "\x08\0\x45", 15);
    put16(frame + 16, 28 + data);
    put16(frame + 18, seed * 77);
    frame[22] = 64;
    frame[23] = 1;
    memcpy(frame + 26, THEIRS, 4);
    memcpy(frame + 30, OURS, 4);
    frame[34] = 8;
    put16(frame + 38, seed);
    for (uint32_t i = 0; i < data; i++)
        frame[HEADERS + i] = (uint8_t)(seed + i * (seed | 1));
    sum_up(frame, data);
    return HEADERS + data;
}

/* What came of a frame. `first`: bytes in the first of its two pbufs; 0: it has one. */
struct outcome {
    unsigned frames, bytes, freed;
    uint8_t sent[LONGEST];
    struct stats_proto ip, icmp;
};

static struct outcome give(const uint8_t *frame, uint32_t n, uint32_t first)
{
    struct outcome o = { 0 };
    frames_sent = freed = sent_bytes = 0;
    memset(sent, 0, sizeof sent);
    memset(&lwip_stats.ip, 0, sizeof lwip_stats.ip);
    memset(&lwip_stats.icmp, 0, sizeof lwip_stats.icmp);
    struct pbuf *p = receive(frame, first != 0 ? first : n);
    if (first != 0)
        pbuf_cat(p, receive(frame + first, n - first));
    assert_int_equal(ether_input(p, &netif), ERR_OK);
    o.frames = frames_sent;
    o.bytes = sent_bytes;
    o.freed = freed;
    memcpy(o.sent, sent, sizeof sent);
    o.ip = lwip_stats.ip;
    o.icmp = lwip_stats.icmp;
    return o;
}

/* Their host is known to the short ways: lwIP has answered a request of theirs. */
static void know_them(void)
{
    static uint8_t frame[LONGEST];
    say_who();
    give(frame, make(frame, 56, 1), 0);
    assert_int_equal(frames_sent, 1);
}

/* Gives the frame both ways; returns true if the second was the short one. */
static bool compare(const uint8_t *frame, uint32_t n, uint32_t first, const char *what)
{
    say_who();
    unsigned before = to_lwip;
    struct outcome theirs = give(frame, n, first);
    check(to_lwip == before + 1, "%s: not to lwIP, though the host is not known", what);
    know_them();
    before = to_lwip;
    struct outcome ours = give(frame, n, first);
    check(ours.frames == theirs.frames && ours.bytes == theirs.bytes, "%s: %u frames of %u bytes, lwIP: %u of %u", what,
          ours.frames, ours.bytes, theirs.frames, theirs.bytes);
    /* where both are lwIP's, its packets are numbered */
    for (uint32_t i = 0; to_lwip == before && i < ours.bytes; i++)
        check(ours.sent[i] == theirs.sent[i], "%s: byte %u is %02x, lwIP's is %02x", what, i, ours.sent[i],
              theirs.sent[i]);
    check(ours.freed == theirs.freed, "%s: %u pbufs freed, lwIP: %u", what, ours.freed, theirs.freed);
    check(memcmp(&ours.ip, &theirs.ip, sizeof ours.ip) == 0, "%s: IP's counters differ", what);
    check(memcmp(&ours.icmp, &theirs.icmp, sizeof ours.icmp) == 0, "%s: ICMP's counters differ", what);
    return to_lwip == before;
}

/* All lengths, with padding behind, flags, codes, and sums at the edge of the carry. */
static void test_answers(void **state)
{
    static uint8_t frame[LONGEST];
    (void)state;

    for (uint32_t data = 0; data <= OUR_MTU - 28; data++) {
        uint32_t n = make(frame, data, data + 1);
        frame[15] = (uint8_t)(data & 1 ? 0xb8 : 0);
        frame[20] = data & 2 ? 0x40 : 0; /* don't fragment */
        frame[22] = (uint8_t)data;       /* time to live, which is not looked at */
        frame[35] = data % 7 == 0;       /* code: the same */
        sum_up(frame, data);
        check(compare(frame, n, 0, "request"), "%u bytes of data: lwIP's way", data);
        check(compare(frame, n + 1 + data % 30, 0, "padded"), "%u bytes of data, padded: lwIP's way", data);
        assert_int_equal(frames_sent, 1);
        assert_int_equal(frame[34] == 8 && sent[34] == 0, 1);
    }
    for (uint32_t word = 0; word <= 0xffff; word++) { /* every sum there is */
        uint32_t n = make(frame, 2, 1);
        put16(frame + HEADERS, word);
        sum_up(frame, 2);
        assert_true(compare(frame, n, 0, "sum"));
    }
}

/* Each bit of a request's headers changed, with its sums as they were, and put right. */
static void test_each_bit(void **state)
{
    static uint8_t frame[LONGEST];
    char what[60];
    unsigned short_ways = 0;
    (void)state;

    for (unsigned bit = 12 * 8; bit < (HEADERS + 4) * 8; bit++)
        for (unsigned right = 0; right < 2; right++) {
            uint32_t n = make(frame, 56, bit);
            frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
            if (right)
                sum_up(frame, 56);
            snprintf(what, sizeof what, "bit %u of byte %u, sums %s", bit % 8, bit / 8, right ? "right" : "wrong");
            if (bit / 8 < 14) /* no IPv4: lwIP's in either case, and not through ip4_input() */
                continue;
            bool is_short = compare(frame, n, 0, what);
            /* never with a wrong sum; of 0x45, the lengths, fragments, protocol, type, and both addresses all bits
             * matter; what is left: TOS, identification, don't fragment and the bit beside it, TTL, code, and ICMP's
             * own */
            bool free = bit / 8 == 15 || bit / 8 == 18 || bit / 8 == 19 || bit / 8 == 22 || bit / 8 == 24 ||
                        bit / 8 == 25 || bit / 8 >= 35 || (bit / 8 == 20 && bit % 8 >= 6);
            check(is_short == (right && free), "%s: %s way", what, is_short ? "the short" : "lwIP's");
            short_ways += is_short;
        }
    assert_true(short_ways > 80);
}

/* Valid requests that are none for the short way. */
static void test_left_to_lwip(void **state)
{
    static uint8_t frame[LONGEST];
    (void)state;
    uint32_t n = make(frame, 56, 3);
    assert_true(compare(frame, n, 0, "usual"));
    assert_false(compare(frame, n, HEADERS, "in two pbufs"));
    assert_false(compare(frame, n + 8, n, "with padding in a second pbuf"));
    frame[n - 1] = 0;
    sum_up(frame, 56);
    assert_true(compare(frame, n, 0, "a zero at its end"));
    assert_false(compare(frame, n - 1, 0, "without it")); /* but behind it in the buffer */
    for (uint32_t total = 0; total < 28;
         total++) { /* too short for an echo request, the sums right as far as they go */
        n = make(frame, 56, 0);
        put16(frame + 16, total);
        sum_up(frame, 0);
        if (total >= 24)
            put16(frame + 36, 0xf7ff);
        assert_false(compare(frame, n, 0, "too short"));
    }
    static const char *const sources[] = { "\0\0\0\0", "\306\022\0\377", "\377\377\377\377", "\340\0\0\1",
                                           "\306\022\0\3" };
    for (unsigned i = 0; i < COUNT_OF(sources); i++) {
        n = make(frame, 56, 3);
        memcpy(frame + 26, sources[i], 4);
        sum_up(frame, 56);
        assert_false(compare(frame, n, 0, "source"));
    }
    static const char *const others[] = { "\306\022\0\3", "\306\022\0\377", "\377\377\377\377", "\340\0\0\1" };
    for (unsigned i = 0; i < COUNT_OF(others); i++) {
        n = make(frame, 56, 3);
        memcpy(frame + 30, others[i], 4);
        sum_up(frame, 56);
        assert_false(compare(frame, n, 0, "destination"));
    }
    n = make(frame, OUR_MTU - 28 + 4, 3); /* its answer goes in two fragments */
    assert_false(compare(frame, n, 0, "longer than the MTU"));
    n = make(frame, 56, 3);
    know_them();
    netif_set_down(&netif);
    unsigned before = to_lwip;
    give(frame, n, 0);
    assert_int_equal(to_lwip, before + 1);
    assert_int_equal(frames_sent, 0);
    netif_set_up(&netif);
}

/* What is known of a host holds for a second, and until any ARP frame. */
static void test_for_a_second(void **state)
{
    static uint8_t frame[LONGEST];
    uint32_t n = make(frame, 56, 3), them;
    (void)state;
    memcpy(&them, THEIRS, 4);
    know_them();
    unsigned before = to_lwip;
    give(frame, n, 0);
    assert_int_equal(to_lwip, before);
    host_of(them)->until = net_time();
    give(frame, n, 0);
    assert_int_equal(to_lwip, before + 1);
    give(frame, n, 0);
    assert_int_equal(to_lwip, before + 1);
    say_who();
    give(frame, n, 0);
    assert_int_equal(to_lwip, before + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_each_bit),
        cmocka_unit_test(test_left_to_lwip),
        cmocka_unit_test(test_for_a_second),
    };

    return cmocka_run_group_tests_name("ether", tests, open_netif, NULL);
}

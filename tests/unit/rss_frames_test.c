/* Which core a frame belongs to: frames made here, cut at every length; and damaged ones by the hundred thousand,
 * against a second parser (rss_reference.c). */
#include "tests/unit/rss_reference.h"

static struct rss rss;

static int setup(void **state)
{
    (void)state;
    rss_init(&rss, rss_default_key, 4);
    return 0;
}

/* ---- frames ---- */

struct frame {
    uint32_t n;
    uint8_t byte[512];
};

static const uint8_t peer4[4] = { 198, 18, 0, 9 }, self4[4] = { 198, 18, 3, 77 }, third4[4] = { 198, 19, 1, 2 };
static const uint8_t peer6[16] = { 0x20, 1, 0xd, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
static const uint8_t self6[16] = { 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 1, 2, 3 };
static const uint8_t third6[16] = { 0x20, 1, 0xd, 0xb8, 0xff, 0xff, 1 };
enum { PEER_PORT = 40001, SELF_PORT = 12865 };

/* Appends n bytes (zeroes when `bytes` is NULL); returns where they are. */
static uint8_t *add(struct frame *f, const void *bytes, uint32_t n)
{
    uint8_t *at = f->byte + f->n;

    assert_true(f->n + n <= sizeof(f->byte));
    if (bytes)
        memcpy(at, bytes, n);
    else
        memset(at, 0, n);
    f->n += n;
    return at;
}

static void ethernet(struct frame *f, unsigned type)
{
    f->n = 0;
    put16(add(f, NULL, 14) + 12, type);
}

/* An IPv4 header with `options` bytes of options; its total length is set by finish4(). Returns its place. */
static uint8_t *ip4(struct frame *f, unsigned protocol, const uint8_t *source, const uint8_t *destination,
                    unsigned fragment, unsigned options)
{
    uint8_t *h = add(f, NULL, 20);

    memset(add(f, NULL, options), 1, options);
    h[0] = (uint8_t)(0x45 + options / 4);
    put16(h + 6, fragment);
    h[8] = 64;
    h[9] = (uint8_t)protocol;
    memcpy(h + 12, source, 4);
    memcpy(h + 16, destination, 4);
    return h;
}

static void finish4(struct frame *f, uint8_t *h)
{
    put16(h + 2, (unsigned)(f->byte + f->n - h));
}

static uint8_t *ip6(struct frame *f, unsigned next, const uint8_t *source, const uint8_t *destination)
{
    uint8_t *h = add(f, NULL, 40);

    h[0] = 0x60;
    h[6] = (uint8_t)next;
    h[7] = 64;
    memcpy(h + 8, source, 16);
    memcpy(h + 24, destination, 16);
    return h;
}

static void finish6(struct frame *f, uint8_t *h)
{
    put16(h + 4, (unsigned)(f->byte + f->n - h - 40));
}

/* An extension header of 8 * units bytes. */
static void extension(struct frame *f, unsigned next, unsigned units)
{
    uint8_t *h = add(f, NULL, 8 * units);

    h[0] = (uint8_t)next;
    h[1] = (uint8_t)(units - 1);
}

static void fragment6(struct frame *f, unsigned next, unsigned offset_and_more)
{
    uint8_t *h = add(f, NULL, 8);

    h[0] = (uint8_t)next;
    put16(h + 2, offset_and_more);
    put16(h + 6, 0x1234);
}

/* The first 8 bytes of TCP or UDP, and some data. */
static void transport(struct frame *f, unsigned source, unsigned destination)
{
    uint8_t *h = add(f, NULL, 28);

    put_ports(h, source, destination);
}

static void icmp(struct frame *f, unsigned type)
{
    *add(f, NULL, 8) = (uint8_t)type;
}

static uint32_t hash4(const uint8_t *source, const uint8_t *destination)
{
    return slow_flow(rss_default_key, 4, source, destination, NULL);
}

static uint32_t hash6(const uint8_t *source, const uint8_t *destination)
{
    return slow_flow(rss_default_key, 16, source, destination, NULL);
}

static uint32_t hash_ports(unsigned length, const void *source, const void *destination, unsigned source_port,
                           unsigned destination_port)
{
    uint8_t ports[4];

    put_ports(ports, source_port, destination_port);
    return slow_flow(rss_default_key, length, source, destination, ports);
}

/* Parses the first n bytes of a frame from memory that ends with them. */
static struct rss_result parse_first(const struct frame *f, uint32_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    struct rss_result result;

    memcpy(copy, f->byte, n);
    result = rss_parse(&rss, copy, n);
    free(copy);
    return result;
}

static void expect(const struct frame *f, enum rss_kind kind, uint32_t hash)
{
    struct rss_result result = parse_first(f, f->n);

    assert_int_equal(result.kind, kind);
    assert_int_equal(result.hash, hash);
}

/* What is found from `enough` bytes on, RSS_OTHER below: at every length. */
static void expect_from(const struct frame *f, uint32_t enough, enum rss_kind kind, uint32_t hash)
{
    for (uint32_t n = 0; n <= f->n; n++) {
        struct rss_result result = parse_first(f, n);

        check(result.kind == (n >= enough ? kind : RSS_OTHER), "kind %d at length %u", result.kind, n);
        assert_int_equal(result.hash, n >= enough ? hash : 0);
    }
}

static void test_transport_ip4(void **state)
{
    static const unsigned protocols[] = { 6, 17 };
    struct frame f;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        for (unsigned options = 0; options <= 40; options += 4) {
            ethernet(&f, 0x0800);
            uint8_t *h = ip4(&f, protocols[i], peer4, self4, 0x4000 /* don't fragment */, options);
            transport(&f, PEER_PORT, SELF_PORT);
            finish4(&f, h);
            expect_from(&f, 14 + 20 + options + 4, RSS_PORTS, hash_ports(4, peer4, self4, PEER_PORT, SELF_PORT));
        }
    }
}

static void test_transport_ip6(void **state)
{
    static const unsigned protocols[] = { 6, 17 };
    struct frame f;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        ethernet(&f, 0x86dd);
        uint8_t *h = ip6(&f, protocols[i], peer6, self6);
        transport(&f, PEER_PORT, SELF_PORT);
        finish6(&f, h);
        expect_from(&f, 14 + 40 + 4, RSS_PORTS, hash_ports(16, peer6, self6, PEER_PORT, SELF_PORT));
    }
}

/* Ports lie within the packet: padding behind a short one is none. */
static void test_padding_is_not_ports(void **state)
{
    struct frame f;

    (void)state;
    for (unsigned bytes = 0; bytes <= 8; bytes++) {
        ethernet(&f, 0x0800);
        uint8_t *h = ip4(&f, 17, peer4, self4, 0, 0);
        add(&f, NULL, bytes);
        finish4(&f, h);
        add(&f, "padding, padding", 16);
        expect(&f, bytes >= 4 ? RSS_PORTS : RSS_OTHER, bytes >= 4 ? hash_ports(4, peer4, self4, 0, 0) : 0);
        ethernet(&f, 0x86dd);
        h = ip6(&f, 6, peer6, self6);
        add(&f, NULL, bytes);
        finish6(&f, h);
        add(&f, "padding, padding", 16);
        expect(&f, bytes >= 4 ? RSS_PORTS : RSS_OTHER, bytes >= 4 ? hash_ports(16, peer6, self6, 0, 0) : 0);
    }
}

/* A frame whose first piece alone is looked at: lengths in the header go beyond what is there. */
static void test_only_the_first_bytes(void **state)
{
    struct frame f;

    (void)state;
    ethernet(&f, 0x0800);
    uint8_t *h = ip4(&f, 6, peer4, self4, 0, 0);
    transport(&f, PEER_PORT, SELF_PORT);
    put16(h + 2, 65535);
    expect(&f, RSS_PORTS, hash_ports(4, peer4, self4, PEER_PORT, SELF_PORT));
    ethernet(&f, 0x86dd);
    h = ip6(&f, 6, peer6, self6);
    transport(&f, PEER_PORT, SELF_PORT);
    put16(h + 4, 65535);
    expect(&f, RSS_PORTS, hash_ports(16, peer6, self6, PEER_PORT, SELF_PORT));
}

static void test_other_protocols(void **state)
{
    struct frame f;

    (void)state;
    for (unsigned protocol = 0; protocol < 256; protocol++) {
        if (protocol != 1 && protocol != 6 && protocol != 17) {
            ethernet(&f, 0x0800);
            uint8_t *h = ip4(&f, protocol, peer4, self4, 0, 0);
            transport(&f, 1, 68);
            finish4(&f, h);
            expect_from(&f, 14 + 20, RSS_IP, hash4(peer4, self4));
        }
        if (protocol != 0 && protocol != 6 && protocol != 17 && protocol != 43 && protocol != 44 && protocol != 58 &&
            protocol != 60) {
            ethernet(&f, 0x86dd);
            uint8_t *h = ip6(&f, protocol, peer6, self6);
            transport(&f, 1, 68);
            finish6(&f, h);
            expect_from(&f, 14 + 40, RSS_IP, hash6(peer6, self6));
        }
    }
}

static void test_other_frames(void **state)
{
    static const unsigned types[] = { 0, 46, 1500, 0x0801, 0x8100, 0x88a8, 0x8035, 0x86dc, 0x88cc, 0xffff };
    struct frame f;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        ethernet(&f, types[i]);
        uint8_t *h = ip4(&f, 6, peer4, self4, 0, 0);
        transport(&f, PEER_PORT, SELF_PORT);
        finish4(&f, h);
        expect(&f, RSS_OTHER, 0);
    }
}

static void test_bad_headers(void **state)
{
    struct frame f;
    uint8_t *h;

    (void)state;
    for (unsigned first = 0; first < 256; first++) { /* version and header length */
        ethernet(&f, 0x0800);
        h = ip4(&f, 50, peer4, self4, 0, 40);
        finish4(&f, h);
        h[0] = (uint8_t)first;
        bool good = first >> 4 == 4 && (first & 15) >= 5;
        expect(&f, good ? RSS_IP : RSS_OTHER, good ? hash4(peer4, self4) : 0);
        ethernet(&f, 0x86dd);
        h = ip6(&f, 59, peer6, self6);
        finish6(&f, h);
        h[0] = (uint8_t)first;
        expect(&f, first >> 4 == 6 ? RSS_IP : RSS_OTHER, first >> 4 == 6 ? hash6(peer6, self6) : 0);
    }
    for (unsigned total = 0; total < 100; total++) {
        ethernet(&f, 0x0800);
        h = ip4(&f, 50, peer4, self4, 0, 16);
        put16(h + 2, total);
        expect(&f, total >= 36 ? RSS_IP : RSS_OTHER, total >= 36 ? hash4(peer4, self4) : 0);
    }
}

/* First, middle and last fragments: all where the reassembly is. */
static void test_fragments_ip4(void **state)
{
    static const unsigned fields[] = { 0x2000, 0x2001, 0x0001, 0x3fff, 0x1fff, 0x6000, 0xa0b9 };
    static const unsigned protocols[] = { 1, 6, 17, 50 };
    struct frame f;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(fields) * COUNT_OF(protocols); i++) {
        ethernet(&f, 0x0800);
        uint8_t *h = ip4(&f, protocols[i % COUNT_OF(protocols)], peer4, self4, fields[i / COUNT_OF(protocols)], 4);
        transport(&f, 67, 68);
        finish4(&f, h);
        expect_from(&f, 14 + 24, RSS_FRAGMENT, hash4(peer4, self4));
    }
    ethernet(&f, 0x0800); /* the two other flags do not make a fragment */
    uint8_t *h = ip4(&f, 6, peer4, self4, 0xc000, 0);
    transport(&f, PEER_PORT, SELF_PORT);
    finish4(&f, h);
    expect(&f, RSS_PORTS, hash_ports(4, peer4, self4, PEER_PORT, SELF_PORT));
}

static void test_fragments_ip6(void **state)
{
    static const struct {
        unsigned field;
        bool fragment;
    } rows[] = { { 1, true },  { 8, true },  { 9, true },  { 0xfff8, true }, { 0xfff9, true }, { 0x8000, true },
                 { 0, false }, { 2, false }, { 4, false }, { 6, false },     { 0x0101, true }, { 0x000f, true } };
    static const unsigned protocols[] = { 6, 17, 58, 59, 0, 60 };
    struct frame f;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows) * COUNT_OF(protocols); i++) {
        unsigned protocol = protocols[i % COUNT_OF(protocols)], field = rows[i / COUNT_OF(protocols)].field;

        ethernet(&f, 0x86dd);
        uint8_t *h = ip6(&f, 60, peer6, self6);
        extension(&f, 44, 2);
        fragment6(&f, protocol, field);
        transport(&f, PEER_PORT, 0);
        finish6(&f, h);
        if (!rows[i / COUNT_OF(protocols)].fragment) { /* as if the header were not there (RFC 6946) */
            if (protocol == 6 || protocol == 17)
                expect_from(&f, 14 + 40 + 16 + 8 + 4, RSS_PORTS, hash_ports(16, peer6, self6, PEER_PORT, 0));
        } else if (field >= 8 || (protocol != 0 && protocol != 60)) {
            expect_from(&f, 14 + 40 + 16 + 8, RSS_FRAGMENT, hash6(peer6, self6));
        }
    }
}

/* Up to eight extension headers of every kind and length; a ninth is one too many. */
static void test_extension_headers(void **state)
{
    static const unsigned kinds[] = { 0, 43, 60 };
    uint64_t seed = chance_seed(0xe47);
    struct frame f;

    (void)state;
    for (unsigned round = 0; round < 60; round++) {
        for (unsigned count = 0; count <= 10; count++) {
            unsigned kind[11], bytes = 0;

            for (unsigned i = 0; i < count; i++)
                kind[i] = kinds[chance_below(&seed, 3)];
            kind[count] = round % 2 ? 6 : 17;
            ethernet(&f, 0x86dd);
            uint8_t *h = ip6(&f, kind[0], peer6, self6);
            for (unsigned i = 0; i < count; i++) {
                unsigned units = 1 + chance_below(&seed, 4);

                extension(&f, kind[i + 1], units);
                bytes += 8 * units;
            }
            transport(&f, PEER_PORT, SELF_PORT);
            finish6(&f, h);
            if (count <= 8)
                expect_from(&f, 14 + 40 + bytes + 4, RSS_PORTS, hash_ports(16, peer6, self6, PEER_PORT, SELF_PORT));
            else
                expect_from(&f, UINT32_MAX, RSS_OTHER, 0);
        }
    }
}

static void test_for_everybody(void **state)
{
    struct frame f;

    (void)state;
    ethernet(&f, 0x0806);
    add(&f, NULL, 28);
    add(&f, NULL, 18);
    expect_from(&f, 14 + 28, RSS_EVERYBODY, 0);
    for (unsigned type = 0; type < 256; type++) {
        ethernet(&f, 0x86dd);
        uint8_t *h = ip6(&f, 0, peer6, self6); /* MLD comes behind a hop-by-hop header */
        extension(&f, 58, 1);
        icmp(&f, type);
        add(&f, NULL, 16);
        finish6(&f, h);
        /* MLD query, report, done; router and neighbour solicitation and advertisement, redirect; MLDv2 report. */
        if ((type >= 130 && type <= 137) || type == 143)
            expect_from(&f, 14 + 40 + 8 + 4, RSS_EVERYBODY, 0);
        else
            expect_from(&f, 14 + 40 + 8 + 4, RSS_IP, hash6(peer6, self6)); /* errors about nothing among them */
    }
}

static void test_dhcp(void **state)
{
    struct frame f;

    (void)state;
    for (unsigned port = 60; port < 80; port++) {
        ethernet(&f, 0x0800);
        uint8_t *h = ip4(&f, 17, peer4, self4, 0, 0);
        transport(&f, 67, port);
        finish4(&f, h);
        if (port == 68)
            expect_from(&f, 14 + 20 + 4, RSS_CONTROL, 0);
        else
            expect(&f, RSS_PORTS, hash_ports(4, peer4, self4, 67, port));
    }
    ethernet(&f, 0x0800); /* TCP's port 68, and an answer to one of ours, are nothing special */
    uint8_t *h = ip4(&f, 6, peer4, self4, 0, 0);
    transport(&f, 67, 68);
    finish4(&f, h);
    expect(&f, RSS_PORTS, hash_ports(4, peer4, self4, 67, 68));
    ethernet(&f, 0x0800);
    h = ip4(&f, 17, peer4, self4, 0, 0);
    transport(&f, 68, 67);
    finish4(&f, h);
    expect(&f, RSS_PORTS, hash_ports(4, peer4, self4, 68, 67));
    ethernet(&f, 0x86dd);
    h = ip6(&f, 17, peer6, self6);
    transport(&f, 67, 68);
    finish6(&f, h);
    expect(&f, RSS_PORTS, hash_ports(16, peer6, self6, 67, 68));
}

/* An error from a third party about a packet that went from here to the peer: it belongs to whom the peer's answers
 * belong to. Cut short, it goes by its own addresses. */
static void expect_error(const struct frame *f, uint32_t outer, uint32_t outer_hash, uint32_t enough, uint32_t hash)
{
    for (uint32_t n = 0; n <= f->n; n++) {
        struct rss_result result = parse_first(f, n);
        enum rss_kind kind = n < outer ? RSS_OTHER : n < enough ? RSS_IP : RSS_ICMP_ERROR;

        check(result.kind == kind, "kind %d at length %u", result.kind, n);
        assert_int_equal(result.hash, n < outer ? 0 : n < enough ? outer_hash : hash);
    }
}

static void test_icmp_errors_ip4(void **state)
{
    static const unsigned protocols[] = { 6, 17, 1, 50 };
    struct frame f;

    (void)state;
    for (unsigned type = 0; type < 256; type++) {
        for (size_t i = 0; i < COUNT_OF(protocols); i++) {
            ethernet(&f, 0x0800);
            uint8_t *h = ip4(&f, 1, third4, self4, 0, 8);
            icmp(&f, type);
            uint8_t *about = ip4(&f, protocols[i], self4, peer4, 0x4000, 4);
            transport(&f, SELF_PORT, PEER_PORT);
            put16(about + 2, 1500); /* most of the packet is left out */
            finish4(&f, h);
            if (type == 3 || type == 4 || type == 5 || type == 11 || type == 12)
                expect_error(&f, 14 + 28 + 4, hash4(third4, self4), 14 + 28 + 8 + 24 + (i < 2 ? 4 : 0),
                             i < 2 ? hash_ports(4, peer4, self4, PEER_PORT, SELF_PORT) : hash4(peer4, self4));
            else
                expect_from(&f, 14 + 28 + 4, RSS_IP, hash4(third4, self4));
        }
    }
}

static void test_icmp_errors_ip6(void **state)
{
    static const unsigned protocols[] = { 6, 17, 58, 59 };
    struct frame f;

    (void)state;
    for (unsigned type = 0; type < 130; type++) {
        for (size_t i = 0; i < COUNT_OF(protocols); i++) {
            ethernet(&f, 0x86dd);
            uint8_t *h = ip6(&f, 60, third6, self6);
            extension(&f, 58, 1);
            icmp(&f, type);
            uint8_t *about = ip6(&f, 60, self6, peer6);
            extension(&f, protocols[i], 2);
            transport(&f, SELF_PORT, PEER_PORT);
            put16(about + 4, 1460);
            finish6(&f, h);
            if (type >= 1 && type <= 4)
                expect_error(&f, 14 + 48 + 4, hash6(third6, self6), 14 + 48 + 8 + 56 + (i < 2 ? 4 : 0),
                             i < 2 ? hash_ports(16, peer6, self6, PEER_PORT, SELF_PORT) : hash6(peer6, self6));
            else
                expect_from(&f, 14 + 48 + 4, RSS_IP, hash6(third6, self6));
        }
    }
}

/* Errors about fragments: the first one has the ports, the others not. */
static void test_icmp_errors_about_fragments(void **state)
{
    struct frame f;

    (void)state;
    for (unsigned first = 0; first < 2; first++) {
        ethernet(&f, 0x0800);
        uint8_t *h = ip4(&f, 1, third4, self4, 0, 0);
        icmp(&f, 11);
        ip4(&f, 17, self4, peer4, first ? 0x2000 : 0x20b9, 0);
        put16(f.byte + 14 + 28 + 2, 1500);
        transport(&f, SELF_PORT, PEER_PORT);
        finish4(&f, h);
        expect(&f, RSS_ICMP_ERROR, first ? hash_ports(4, peer4, self4, PEER_PORT, SELF_PORT) : hash4(peer4, self4));
        ethernet(&f, 0x86dd);
        h = ip6(&f, 58, third6, self6);
        icmp(&f, 3);
        ip6(&f, 44, self6, peer6);
        put16(f.byte + 14 + 48 + 4, 1448);
        fragment6(&f, 17, first ? 1 : 1449);
        transport(&f, SELF_PORT, PEER_PORT);
        finish6(&f, h);
        expect(&f, RSS_ICMP_ERROR, first ? hash_ports(16, peer6, self6, PEER_PORT, SELF_PORT) : hash6(peer6, self6));
    }
}

/* IPv4 inside ICMPv6 and the other way round is not looked into. */
static void test_icmp_errors_about_the_other_family(void **state)
{
    struct frame f;

    (void)state;
    ethernet(&f, 0x0800);
    uint8_t *h = ip4(&f, 1, third4, self4, 0, 0);
    icmp(&f, 3);
    uint8_t *about = ip6(&f, 6, self6, peer6);
    transport(&f, SELF_PORT, PEER_PORT);
    finish6(&f, about);
    finish4(&f, h);
    expect(&f, RSS_IP, hash4(third4, self4));
    ethernet(&f, 0x86dd);
    h = ip6(&f, 58, third6, self6);
    icmp(&f, 1);
    about = ip4(&f, 6, self4, peer4, 0, 0);
    transport(&f, SELF_PORT, PEER_PORT);
    finish4(&f, about);
    finish6(&f, h);
    expect(&f, RSS_IP, hash6(third6, self6));
    ethernet(&f, 0x0800); /* ICMPv6 in IPv4 and ICMP in IPv6 are unknown protocols */
    h = ip4(&f, 58, third4, self4, 0, 0);
    icmp(&f, 135);
    finish4(&f, h);
    expect(&f, RSS_IP, hash4(third4, self4));
}

/* ---- damaged frames ---- */

/* A frame of some kind, more or less as it should be. */
static void any_frame(uint64_t *seed, struct frame *f)
{
    static const unsigned next[] = { 6, 17, 58, 44, 0, 43, 60, 59, 1 };
    bool six = chance_below(seed, 2);
    unsigned protocol = next[chance_below(seed, COUNT_OF(next))];

    ethernet(f, six ? 0x86dd : 0x0800);
    if (six)
        put16(ip6(f, protocol, peer6, self6) + 4, chance_below(seed, 300));
    else
        put16(ip4(f, protocol, peer4, self4, chance_below(seed, 4) ? 0 : 0x2000, 4 * chance_below(seed, 11)) + 2,
              chance_below(seed, 300));
    for (unsigned n = six ? chance_below(seed, 11) : 0; n > 0; n--) {
        protocol = next[chance_below(seed, COUNT_OF(next))];
        if (chance_below(seed, 4) == 0)
            fragment6(f, protocol, chance_below(seed, 3) ? 0 : chance_below(seed, 20));
        else
            extension(f, protocol, 1 + chance_below(seed, 2));
    }
    if (chance_below(seed, 4) == 0) {
        transport(f, (unsigned)chance(seed) & 0xffff, chance_below(seed, 2) ? 68 : SELF_PORT);
        return;
    }
    icmp(f, chance_below(seed, 4) ? chance_below(seed, 14) : 128 + chance_below(seed, 16));
    if (six)
        put16(ip6(f, next[chance_below(seed, COUNT_OF(next))], self6, peer6) + 4, 1400);
    else
        put16(ip4(f, next[chance_below(seed, 3)], self4, peer4, 0, 4 * chance_below(seed, 11)) + 2, 1400);
    transport(f, (unsigned)chance(seed) & 0xffff, chance_below(seed, 2) ? 68 : SELF_PORT);
}

static void test_fuzz(void **state)
{
    uint64_t seed = chance_seed(0xf022);
    unsigned kinds[RSS_ICMP_ERROR + 1] = { 0 };
    struct frame f;

    (void)state;
    for (unsigned n = 0; n < 400000; n++) {
        struct rss_result result, expected;
        uint32_t length;

        if (chance_below(&seed, 16) == 0) {
            f.n = chance_below(&seed, 128);
            fill(&seed, f.byte, f.n);
            if (f.n >= 14 && chance_below(&seed, 4))
                put16(f.byte + 12, chance_below(&seed, 2) ? 0x0800 : 0x86dd);
        } else {
            any_frame(&seed, &f);
            for (unsigned damage = chance_below(&seed, 4); damage > 0; damage--)
                f.byte[12 + chance_below(&seed, f.n - 12)] = (uint8_t)chance(&seed);
        }
        length = chance_below(&seed, 2) ? f.n : chance_below(&seed, f.n + 1);
        result = parse_first(&f, length);
        expected = slow_parse(f.byte, length);
        check(result.kind == expected.kind && result.hash == expected.hash,
              "frame %u: kind %d, hash %08x; expected: kind %d, hash %08x", n, result.kind, result.hash, expected.kind,
              expected.hash);
        kinds[result.kind]++;
    }
    for (unsigned kind = 0; kind < COUNT_OF(kinds); kind++)
        check(kinds[kind] > 100, "kind %u came up %u times only", kind, kinds[kind]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transport_ip4),
        cmocka_unit_test(test_transport_ip6),
        cmocka_unit_test(test_padding_is_not_ports),
        cmocka_unit_test(test_only_the_first_bytes),
        cmocka_unit_test(test_other_protocols),
        cmocka_unit_test(test_other_frames),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_fragments_ip4),
        cmocka_unit_test(test_fragments_ip6),
        cmocka_unit_test(test_extension_headers),
        cmocka_unit_test(test_for_everybody),
        cmocka_unit_test(test_dhcp),
        cmocka_unit_test(test_icmp_errors_ip4),
        cmocka_unit_test(test_icmp_errors_ip6),
        cmocka_unit_test(test_icmp_errors_about_fragments),
        cmocka_unit_test(test_icmp_errors_about_the_other_family),
        cmocka_unit_test(test_fuzz),
    };
    return cmocka_run_group_tests_name("rss_frames", tests, setup, NULL);
}

/* See rss_reference.h. */
#include "tests/unit/rss_reference.h"

/* The definition: for every bit of the input that is set, the 32 bits of the key that begin at its place. */

static bool bit_of(const uint8_t *bytes, unsigned i)
{
    return bytes[i / 8] >> (7 - i % 8) & 1;
}

uint32_t slow_hash(const uint8_t *key, const uint8_t *input, unsigned n)
{
    uint32_t hash = 0;

    for (unsigned i = 0; i < 8 * n; i++) {
        for (unsigned b = 0; bit_of(input, i) && b < 32; b++)
            hash ^= (uint32_t)bit_of(key, i + b) << (31 - b);
    }
    return hash;
}

uint32_t slow_flow(const uint8_t *key, unsigned length, const uint8_t *source, const uint8_t *destination,
                   const uint8_t *ports)
{
    uint8_t input[36];

    memcpy(input, source, length);
    memcpy(input + length, destination, length);
    if (ports)
        memcpy(input + 2 * length, ports, 4);
    return slow_hash(key, input, 2 * length + (ports ? 4 : 0));
}

/* ---- the parser ---- */

/* A cursor that reads big-endian numbers and remembers that it went too far. */
struct reader {
    const uint8_t *at;
    uint32_t left;
    bool short_;
};

static const uint8_t *take(struct reader *r, uint32_t n)
{
    static const uint8_t nothing[16];
    const uint8_t *at = r->at;

    if (n > r->left) {
        r->short_ = true;
        r->left = 0;
        return nothing;
    }
    r->at += n;
    r->left -= n;
    return at;
}

static uint32_t number(struct reader *r, unsigned bytes)
{
    uint32_t v = 0;

    for (; bytes > 0; bytes--)
        v = v << 8 | *take(r, 1);
    return v;
}

struct seen {
    unsigned length, protocol, offset;
    bool more;
    uint8_t source[16], destination[16];
};

static void limit(struct reader *r, uint32_t n)
{
    r->left = n < r->left ? n : r->left;
}

static bool see_ip4(struct reader *r, struct seen *s)
{
    unsigned first = number(r, 1), total, header = (first & 15) * 4, field;

    number(r, 1);
    total = number(r, 2);
    number(r, 2);
    field = number(r, 2);
    number(r, 1);
    s->protocol = number(r, 1);
    number(r, 2);
    memcpy(s->source, take(r, 4), 4);
    memcpy(s->destination, take(r, 4), 4);
    s->length = 4;
    s->more = field >> 13 & 1;
    s->offset = field % 8192;
    if (first / 16 != 4 || header < 20 || total < header)
        return false;
    take(r, header - 20);
    limit(r, total - header);
    return !r->short_;
}

static bool see_ip6(struct reader *r, struct seen *s)
{
    unsigned first = number(r, 4), payload = number(r, 2), headers = 0;

    s->protocol = number(r, 1);
    number(r, 1);
    memcpy(s->source, take(r, 16), 16);
    memcpy(s->destination, take(r, 16), 16);
    s->length = 16;
    s->more = false;
    s->offset = 0;
    limit(r, payload);
    if (first >> 28 != 6 || r->short_)
        return false;
    while (s->offset == 0 && strchr("\053\054\074", (int)s->protocol) && headers++ <= 8) { /* and 0, the string's end */
        bool fragment = s->protocol == 44;
        unsigned next = number(r, 1), units = number(r, 1), field = number(r, 2);

        take(r, 4);
        if (fragment) {
            s->more |= field & 1;
            s->offset = field >> 3;
        } else {
            for (; units > 0 && !r->short_; units--)
                take(r, 8);
        }
        s->protocol = next;
    }
    return !r->short_ && headers <= 8;
}

static uint32_t seen_hash(const struct seen *s, const uint8_t *ports, bool turned)
{
    uint8_t other[4];

    if (!turned)
        return slow_flow(rss_default_key, s->length, s->source, s->destination, ports);
    if (ports) {
        memcpy(other, ports + 2, 2);
        memcpy(other + 2, ports, 2);
    }
    return slow_flow(rss_default_key, s->length, s->destination, s->source, ports ? other : NULL);
}

static struct rss_result result_of(enum rss_kind kind, uint32_t hash)
{
    return (struct rss_result){ kind, hash };
}

static struct rss_result see_icmp(struct reader *r, const struct seen *s)
{
    unsigned type = number(r, 1);
    struct rss_result by_addresses = result_of(RSS_IP, seen_hash(s, NULL, false));
    struct seen about;

    number(r, 3);
    if (r->short_)
        return result_of(RSS_OTHER, 0);
    if (s->length == 16 && (type == 143 || (type >= 130 && type < 138)))
        return result_of(RSS_EVERYBODY, 0);
    if (s->length == 16 ? type < 1 || type > 4 : type > 12 || !(0x1838 >> type & 1))
        return by_addresses;
    number(r, 4);
    if (r->short_ || !(s->length == 4 ? see_ip4(r, &about) : see_ip6(r, &about)))
        return by_addresses;
    if (about.offset || (about.protocol != 6 && about.protocol != 17))
        return result_of(RSS_ICMP_ERROR, seen_hash(&about, NULL, true));
    const uint8_t *ports = take(r, 4);
    return r->short_ ? by_addresses : result_of(RSS_ICMP_ERROR, seen_hash(&about, ports, true));
}

struct rss_result slow_parse(const uint8_t *frame, uint32_t n)
{
    struct reader r = { frame, n, false };
    struct seen s;

    take(&r, 12);
    unsigned type = number(&r, 2);
    if (r.short_)
        return result_of(RSS_OTHER, 0);
    if (type == 0x0806)
        return result_of(r.left >= 28 ? RSS_EVERYBODY : RSS_OTHER, 0);
    if (type == 0x0800 ? !see_ip4(&r, &s) : type == 0x86dd ? !see_ip6(&r, &s) : true)
        return result_of(RSS_OTHER, 0);
    if (s.more || s.offset)
        return result_of(RSS_FRAGMENT, seen_hash(&s, NULL, false));
    if (s.protocol == (s.length == 4 ? 1u : 58u))
        return see_icmp(&r, &s);
    if (s.protocol != 6 && s.protocol != 17)
        return result_of(RSS_IP, seen_hash(&s, NULL, false));
    const uint8_t *ports = take(&r, 4);
    if (r.short_)
        return result_of(RSS_OTHER, 0);
    if (s.length == 4 && s.protocol == 17 && ports[2] == 0 && ports[3] == 68)
        return result_of(RSS_CONTROL, 0);
    return result_of(RSS_PORTS, seen_hash(&s, ports, false));
}

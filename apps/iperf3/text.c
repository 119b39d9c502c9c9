#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "apps/iperf3/text.h"

#define DEPTH_MAX   8u
#define UDP_MIN     12u /* bytes: what a datagram carries before its filler; 16 with wide counters */
#define LEN_MAX     (1u << 30)
#define LEN_DEFAULT 131072u
#define UDP_DEFAULT 1460u

/* ---- JSON (RFC 8259), as much as is needed: an object of names and plain values; what is nested is skipped ---- */

enum kind { NUMBER, STRING, YES, NO, NOTHING, NESTED };

struct scan {
    const char *at, *end;
};

struct word {
    const char *at;
    size_t n;
};

struct value {
    enum kind kind;
    double number;
};

static void skip_blanks(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r' || *s->at == '\n'))
        s->at++;
}

/* Skips blanks in any case. */
static bool next_is(struct scan *s, char c)
{
    skip_blanks(s);
    if (s->at == s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

static bool is_digit(const struct scan *s)
{
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

static bool scan_escape(struct scan *s)
{
    if (s->at == s->end || *s->at == '\0' || strchr("\"\\/bfnrtu", *s->at) == NULL)
        return false;
    if (*s->at++ != 'u')
        return true;
    for (int i = 0; i < 4; i++, s->at++)
        if (s->at == s->end || *s->at == '\0' || strchr("0123456789abcdefABCDEF", *s->at) == NULL)
            return false;
    return true;
}

/* After the opening quote. Escapes stay as they are: no name has any. */
static bool scan_string(struct scan *s, struct word *word)
{
    word->at = s->at;
    while (s->at < s->end && (unsigned char)*s->at >= ' ' && *s->at != '"')
        if (*s->at++ == '\\' && !scan_escape(s))
            return false;
    word->n = (size_t)(s->at - word->at);
    return s->at < s->end && *s->at++ == '"';
}

static double scan_digits(struct scan *s, double n)
{
    for (; is_digit(s); s->at++)
        n = n * 10 + (*s->at - '0');
    return n;
}

static bool scan_number(struct scan *s, double *number)
{
    bool minus = next_is(s, '-'), shrink = false;
    double n = 0, exponent = 0, scale = 1;
    if (!is_digit(s))
        return false;
    if (*s->at == '0')
        s->at++;
    else
        n = scan_digits(s, 0);
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!is_digit(s))
            return false;
        for (; is_digit(s); s->at++)
            n += (*s->at - '0') * (scale /= 10);
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-'))
            shrink = *s->at++ == '-';
        if (!is_digit(s))
            return false;
        exponent = scan_digits(s, 0);
    }
    for (; exponent > 0 && n > 0 && n < 1e30; exponent--)
        n = shrink ? n / 10 : n * 10;
    *number = minus ? -n : n;
    return true;
}

static bool scan_literal(struct scan *s, const char *literal)
{
    size_t n = strlen(literal);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, literal, n) != 0)
        return false;
    s->at += n;
    return true;
}

static bool scan_value(struct scan *s, struct value *value, unsigned depth);

/* After the opening bracket, to its counterpart. */
static bool skip_nested(struct scan *s, bool object, unsigned depth)
{
    char close = object ? '}' : ']';
    struct value value;
    struct word name;
    if (depth == DEPTH_MAX)
        return false;
    if (next_is(s, close))
        return true;
    do {
        if (object && !(next_is(s, '"') && scan_string(s, &name) && next_is(s, ':')))
            return false;
        if (!scan_value(s, &value, depth + 1))
            return false;
    } while (next_is(s, ','));
    return next_is(s, close);
}

static bool scan_value(struct scan *s, struct value *value, unsigned depth)
{
    static const struct {
        const char *text;
        enum kind kind;
    } literal[] = { { "true", YES }, { "false", NO }, { "null", NOTHING } };
    struct word word;
    value->number = 0;
    value->kind = STRING;
    if (next_is(s, '"'))
        return scan_string(s, &word);
    value->kind = NESTED;
    if (next_is(s, '{'))
        return skip_nested(s, true, depth);
    if (next_is(s, '['))
        return skip_nested(s, false, depth);
    for (size_t i = 0; i < sizeof literal / sizeof *literal; i++) {
        value->kind = literal[i].kind;
        if (scan_literal(s, literal[i].text))
            return true;
    }
    value->kind = NUMBER;
    return scan_number(s, &value->number);
}

/* ---- the wishes ---- */

enum name {
    UDP,
    SCTP,
    REVERSE,
    BIDIRECTIONAL,
    WIDE,
    NODELAY,
    OUTPUT,
    FLAGS, /* those before are yes or no; those after are amounts */
    OMIT = FLAGS,
    TIME,
    NUM,
    BLOCKS,
    PARALLEL,
    LEN,
    BANDWIDTH,
    TOS,
    NAMES,
};

static const char *const names[NAMES] = {
    [UDP] = "udp",
    [SCTP] = "sctp",
    [REVERSE] = "reverse",
    [BIDIRECTIONAL] = "bidirectional",
    [WIDE] = "udp_counters_64bit",
    [NODELAY] = "nodelay",
    [OUTPUT] = "get_server_output",
    [OMIT] = "omit",
    [TIME] = "time",
    [NUM] = "num",
    [BLOCKS] = "blockcount",
    [PARALLEL] = "parallel",
    [LEN] = "len",
    [BANDWIDTH] = "bandwidth",
    [TOS] = "TOS",
};

/* False: the value is none that this name can have. */
static bool set(double wish[NAMES], const struct word *name, const struct value *value)
{
    for (unsigned i = 0; i < NAMES; i++) {
        if (strlen(names[i]) != name->n || memcmp(names[i], name->at, name->n) != 0)
            continue;
        if (value->kind == NUMBER)
            wish[i] = value->number;
        else if (i < FLAGS && (value->kind == YES || value->kind == NO))
            wish[i] = value->kind == YES;
        else
            return value->kind == NOTHING;
        return wish[i] >= 0;
    }
    return true;
}

static bool scan_wishes(const char *text, size_t n, double wish[NAMES])
{
    struct scan s = { text, text + n };
    struct value value;
    struct word name;
    if (!next_is(&s, '{'))
        return false;
    bool some = !next_is(&s, '}');
    while (some) {
        if (!(next_is(&s, '"') && scan_string(&s, &name) && next_is(&s, ':') && scan_value(&s, &value, 1)) ||
            !set(wish, &name, &value))
            return false;
        some = next_is(&s, ',');
        if (!some && !next_is(&s, '}'))
            return false;
    }
    skip_blanks(&s);
    return s.at == s.end;
}

static uint64_t at_most(double wish, uint64_t limit)
{
    return wish < (double)limit ? (uint64_t)wish : limit;
}

enum i3_error i3_parse(const char *text, size_t n, struct i3_spec *spec)
{
    double wish[NAMES] = { [PARALLEL] = 1 };
    if (!scan_wishes(text, n, wish))
        return I3_BAD_PARAMETERS;
    if (wish[SCTP] != 0)
        return I3_NO_SCTP;
    if (wish[PARALLEL] > I3_STREAMS_MAX)
        return I3_TOO_MANY_STREAMS;
    if (wish[LEN] > LEN_MAX)
        return I3_BLOCK_TOO_LARGE;
    *spec = (struct i3_spec){
        .udp = wish[UDP] != 0,
        .reverse = wish[REVERSE] != 0,
        .bidirectional = wish[BIDIRECTIONAL] != 0,
        .counters64 = wish[WIDE] != 0,
        .nodelay = wish[NODELAY] != 0,
        .want_output = wish[OUTPUT] != 0,
        .tos = (uint8_t)at_most(wish[TOS], 255),
        .parallel = wish[PARALLEL] >= 1 ? (uint32_t)wish[PARALLEL] : 1,
        .len = wish[LEN] >= 1   ? (uint32_t)wish[LEN]
               : wish[UDP] != 0 ? UDP_DEFAULT
                                : LEN_DEFAULT,
        .time = (uint32_t)at_most(wish[TIME], I3_TIME_MAX),
        .omit = (uint32_t)at_most(wish[OMIT], I3_TIME_MAX),
        .rate = at_most(wish[BANDWIDTH], UINT64_C(1) << 60),
    };
    spec->amount = at_most(wish[NUM] >= 1 ? wish[NUM] : wish[BLOCKS] * spec->len, UINT64_C(1) << 62);
    if (spec->udp && (spec->len > I3_UDP_MAX || spec->len < UDP_MIN + (spec->counters64 ? 4u : 0)))
        return I3_BAD_UDP_SIZE;
    return I3_OK;
}

/* ---- results ---- */

struct out {
    char *to;
    size_t size, used;
};

static void put(struct out *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct out *o, const char *format, ...)
{
    va_list args;
    size_t room = o->used < o->size ? o->size - o->used : 0;
    va_start(args, format);
    int n = vsnprintf(room > 0 ? o->to + o->used : NULL, room, format, args);
    va_end(args);
    o->used += n > 0 ? (size_t)n : 0;
}

/* A number with six places, in units of which `one` is 1. */
static void put_decimal(struct out *o, const char *name, uint64_t n, uint64_t one)
{
    put(o, "\"%s\":%llu.%06llu", name, (unsigned long long)(n / one), (unsigned long long)(n % one * 1000000 / one));
}

static void put_stream(struct out *o, const struct i3_spec *spec, const struct i3_outcome *of, unsigned index)
{
    put(o, "%s{\"id\":%u,\"bytes\":%llu,\"retransmits\":-1,", index > 0 ? "," : "", i3_id(index),
        (unsigned long long)of->bytes);
    put(o, "\"jitter\":%llu.%09llu,\"errors\":%llu,", (unsigned long long)(of->jitter_ns / 1000000000),
        (unsigned long long)(of->jitter_ns % 1000000000), (unsigned long long)of->errors);
    if (spec->udp)
        put(o, "\"omitted_errors\":%llu,", (unsigned long long)of->omitted_errors);
    put(o, "\"packets\":%llu,", (unsigned long long)of->packets);
    if (spec->udp)
        put(o, "\"omitted_packets\":%llu,", (unsigned long long)of->omitted_packets);
    put(o, "\"start_time\":0,");
    put_decimal(o, "end_time", of->time_us, 1000000);
    put(o, "}");
}

/* A line for people. */
static void put_line(struct out *o, const struct i3_spec *spec, const struct i3_outcome *of, unsigned index)
{
    uint64_t us = of->time_us > 0 ? of->time_us : 1, kbits = of->bytes * 8 * 1000 / us;
    put(o, "[%3u] 0.00-%llu.%02llu sec  %llu bytes  %llu.%03llu Mbits/sec", i3_id(index),
        (unsigned long long)(us / 1000000), (unsigned long long)(us % 1000000 / 10000), (unsigned long long)of->bytes,
        (unsigned long long)(kbits / 1000), (unsigned long long)(kbits % 1000));
    if (spec->udp && !of->sender)
        put(o, "  %llu.%03llu ms  %llu/%llu", (unsigned long long)(of->jitter_ns / 1000000),
            (unsigned long long)(of->jitter_ns % 1000000 / 1000), (unsigned long long)(of->errors - of->omitted_errors),
            (unsigned long long)(of->packets - of->omitted_packets));
    put(o, "  %s\\n", of->sender ? "sender" : "receiver");
}

size_t i3_results(char *to, size_t size, const struct i3_spec *spec, const struct i3_load *load,
                  const struct i3_outcome *outcome, unsigned count)
{
    struct out o = { to, size, 0 };
    put(&o, "{");
    put_decimal(&o, "cpu_util_total", load->busy, 100);
    put(&o, ",\"cpu_util_user\":0,"); /* it is all one */
    put_decimal(&o, "cpu_util_system", load->busy, 100);
    put(&o, ",\"sender_has_retransmits\":%d,", i3_sends(spec) ? 0 : -1); /* lwIP does not count them by connection */
    if (!spec->udp)
        put(&o, "\"congestion_used\":\"reno\",");
    put(&o, "\"streams\":[");
    for (unsigned i = 0; i < count; i++)
        put_stream(&o, spec, &outcome[i], i);
    put(&o, "]");
    if (spec->want_output) {
        put(&o,
            ",\"server_output_text\":\"Ringside: %s, %u streams, %u cores, busy %u.%02u%%, looking for work "
            "%u.%02u%%\\n",
            spec->udp ? "UDP" : "TCP", count, load->cores, load->busy / 100, load->busy % 100, load->spinning / 100,
            load->spinning % 100);
        for (unsigned i = 0; i < count; i++)
            put_line(&o, spec, &outcome[i], i);
        put(&o, "\"");
    }
    put(&o, "}");
    return o.used;
}

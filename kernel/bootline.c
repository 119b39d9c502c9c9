/* The boot line's words. One row of `words` for each; docs/boot-line.md is the user's view. No allocation, no locale,
 * and nothing of the line is trusted. Compiles on the host. */
#include "kernel/bootline.h"

#include <stdio.h>
#include <string.h>

#include "drivers/virtio/features.h"
#include "kernel/ipaddr.h"

#define SHOWN_MAX   72 /* characters of a word or value that are shown */
#define COMPARE_MAX 24 /* characters of a word that are compared to find the nearest */

/* A piece of the line. */
struct text {
    const char *at;
    size_t len;
};

struct parser {
    struct bootline *out;
    const struct bootline_env *env;
    char valid[160]; /* what would have been valid, filled by a word's parse function when the row's own text says too
                        little */
};

struct word {
    const char *name;
    bool bare;                                          /* may stand without a value */
    bool (*parse)(struct parser *p, struct text value); /* false: bad value */
    const char *valid;                                  /* what is valid, for the error */
};

static bool is(struct text t, const char *s)
{
    return t.len == strlen(s) && memcmp(t.at, s, t.len) == 0;
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Cuts off and returns what stands before the first `separator`; *rest becomes what follows it. True in *more if there
 * was one. */
static struct text cut(struct text *rest, char separator, bool *more)
{
    const char *found = rest->len ? memchr(rest->at, separator, rest->len) : NULL;
    struct text head = { rest->at, found ? (size_t)(found - rest->at) : rest->len };

    *more = found != NULL;
    rest->at += head.len + (found ? 1 : 0);
    rest->len -= head.len + (found ? 1 : 0);
    return head;
}

/* Writes `t` for people to read: printable ASCII as it is, the rest as \xNN, long ones cut with "...". */
static void show(char out[SHOWN_MAX + 4], struct text t)
{
    size_t n = 0;

    for (size_t i = 0; i < t.len; i++) {
        unsigned char c = (unsigned char)t.at[i];
        bool plain = c >= 0x20 && c < 0x7f;

        if (n + (plain ? 1 : 4) > SHOWN_MAX) {
            memcpy(out + n, "...", 4);
            return;
        }
        if (plain)
            out[n++] = (char)c;
        else
            n += (size_t)snprintf(out + n, 5, "\\x%02x", c);
    }
    out[n] = '\0';
}

/* A whole number in decimal digits without leading zeros, min..max. */
static bool number(struct text t, uint32_t min, uint32_t max, uint32_t *out)
{
    uint64_t n = 0;

    if (t.len == 0 || t.len > 10 || (t.len > 1 && t.at[0] == '0'))
        return false;
    for (size_t i = 0; i < t.len; i++) {
        if (t.at[i] < '0' || t.at[i] > '9')
            return false;
        n = n * 10 + (uint64_t)(t.at[i] - '0');
    }
    *out = (uint32_t)n;
    return n >= min && n <= max;
}

/* Edit distance (insert, remove, replace, swap neighbours) between a word of the line and a valid one, letter case
 * aside. */
static unsigned distance(struct text t, const char *name)
{
    unsigned row[3][COMPARE_MAX + 1]; /* the row before the last, the last, this one; by turns */
    size_t width = strlen(name);

    if (width > COMPARE_MAX)
        width = COMPARE_MAX;
    if (t.len > COMPARE_MAX)
        t.len = COMPARE_MAX;
    for (size_t j = 0; j <= width; j++)
        row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= t.len; i++) {
        unsigned *now = row[i % 3], *last = row[(i - 1) % 3], *before = row[(i + 1) % 3];

        now[0] = (unsigned)i;
        for (size_t j = 1; j <= width; j++) {
            char a = t.at[i - 1] | 0x20, b = name[j - 1] | 0x20;
            unsigned best = last[j - 1] + (a != b);

            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a == (name[j - 2] | 0x20) && (t.at[i - 2] | 0x20) == b && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[t.len % 3][width];
}

/* How far `t` is from `name`, for finding the nearest. An abbreviation (queue for queues) is nearer than anything that
 * takes an edit; letters behind a name (coresN, ring_size) weigh about half as much as other edits. */
static unsigned farness(struct text t, const char *name)
{
    size_t width = strlen(name), common = 0;
    size_t shorter = t.len < width ? t.len : width;

    while (common < shorter && (t.at[common] | 0x20) == (name[common] | 0x20))
        common++;
    unsigned edits = distance(t, name);
    if (common == t.len && common > 0)
        return edits;
    return (COMPARE_MAX + 1) * (common == width ? edits + 1 : 2 * edits);
}

/* ADDR/N[,gw=ADDR] in its parts; gw.at is NULL without a gateway. */
struct address {
    struct text addr, gw;
    uint32_t prefix;
};

static bool split_address(struct text value, uint32_t prefix_max, struct address *a)
{
    bool more, has_gw;
    struct text gw = value;
    struct text length = cut(&gw, ',', &has_gw);

    a->addr = cut(&length, '/', &more);
    a->gw = (struct text){ NULL, 0 };
    if (!more || !number(length, 0, prefix_max, &a->prefix))
        return false;
    if (has_gw) {
        if (gw.len < 3 || memcmp(gw.at, "gw=", 3) != 0)
            return false;
        a->gw = (struct text){ gw.at + 3, gw.len - 3 };
    }
    return true;
}

/* The address is well-formed; `problem` says why it cannot be used, if so. */
static bool usable(struct parser *p, const char *problem)
{
    if (problem)
        snprintf(p->valid, sizeof(p->valid), "%s", problem);
    return !problem;
}

static bool parse_ip(struct parser *p, struct text value)
{
    struct bootline *o = p->out;
    struct address a;

    o->ip_has_gw = false;
    o->ip = is(value, "dhcp") ? IP_AUTO : IP_STATIC;
    if (o->ip == IP_AUTO)
        return true;
    if (!split_address(value, 32, &a) || !ip4_parse(a.addr.at, a.addr.len, o->ip_addr))
        return false;
    o->ip_prefix = (uint8_t)a.prefix;
    o->ip_has_gw = a.gw.at != NULL;
    if (o->ip_has_gw && !ip4_parse(a.gw.at, a.gw.len, o->ip_gw))
        return false;
    return usable(p, ip4_host_problem(o->ip_addr, o->ip_prefix)) &&
           (!o->ip_has_gw || usable(p, ip4_gateway_problem(o->ip_gw, o->ip_addr)));
}

static bool parse_ip6(struct parser *p, struct text value)
{
    struct bootline *o = p->out;
    struct address a;

    o->ip6_has_gw = false;
    o->ip6 = is(value, "auto") ? IP_AUTO : is(value, "off") ? IP_OFF : IP_STATIC;
    if (o->ip6 != IP_STATIC)
        return true;
    if (!split_address(value, 128, &a) || !ip6_parse(a.addr.at, a.addr.len, o->ip6_addr))
        return false;
    o->ip6_prefix = (uint8_t)a.prefix;
    o->ip6_has_gw = a.gw.at != NULL;
    if (o->ip6_has_gw && !ip6_parse(a.gw.at, a.gw.len, o->ip6_gw))
        return false;
    return usable(p, ip6_host_problem(o->ip6_addr)) &&
           (!o->ip6_has_gw || usable(p, ip6_gateway_problem(o->ip6_gw, o->ip6_addr)));
}

static bool parse_cores(struct parser *p, struct text value)
{
    return number(value, 1, BOOTLINE_NUMBER_MAX, &p->out->cores);
}

static bool parse_queues(struct parser *p, struct text value)
{
    return number(value, 1, BOOTLINE_NUMBER_MAX, &p->out->queues);
}

static bool parse_ring(struct parser *p, struct text value)
{
    uint32_t n = 0;

    if (!number(value, 2, 32768, &n) || (n & (n - 1)))
        return false;
    p->out->ring = n;
    return true;
}

static bool parse_poll(struct parser *p, struct text value)
{
    if (is(value, "auto")) {
        p->out->poll_us = POLL_AUTO;
        return true;
    }
    return number(value, 0, BOOTLINE_POLL_MAX, &p->out->poll_us);
}

static const char *nearest_feature(struct text name)
{
    size_t count;
    const struct feature *table = features_table(&count);
    const char *best = table[0].name;

    for (size_t i = 1; i < count; i++) {
        if (farness(name, table[i].name) < farness(name, best))
            best = table[i].name;
    }
    return best;
}

static bool parse_features(struct parser *p, struct text value)
{
    bool more = true;
    char shown[SHOWN_MAX + 4];

    p->out->features_off = p->out->features_required = 0;
    while (more) {
        struct text item = cut(&value, ',', &more);
        if (item.len < 2 || (item.at[0] != '+' && item.at[0] != '-'))
            return false;
        struct text name = { item.at + 1, item.len - 1 };
        const struct feature *f = feature_by_name(name.at, name.len);
        if (!f) {
            show(shown, name);
            snprintf(p->valid, sizeof(p->valid), "a feature's name after + or -; nearest to \"%s\" is %s", shown,
                     nearest_feature(name));
            return false;
        }
        uint64_t bit = FEATURE_BIT(f->bit);
        bool off = item.at[0] == '-';
        p->out->features_off = (p->out->features_off & ~bit) | (off ? bit : 0);
        p->out->features_required = (p->out->features_required & ~bit) | (off ? 0 : bit);
    }
    return true;
}

/* Letters that names of applications and areas are made of. */
static bool is_name(struct text t)
{
    for (size_t i = 0; i < t.len; i++) {
        char c = t.at[i];

        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'))
            return false;
    }
    return t.len > 0;
}

/* Adds an application, once. `item` is a name, or name:argument. */
static bool add_app(struct parser *p, struct text item)
{
    struct bootline *o = p->out;
    char name[BOOTLINE_APP_LEN];
    bool has_argument;
    struct text argument = item;
    struct text plain = cut(&argument, ':', &has_argument);

    if (item.len >= BOOTLINE_APP_LEN || !is_name(plain) || (has_argument && argument.len == 0))
        return false;
    memcpy(name, plain.at, plain.len);
    name[plain.len] = '\0';
    if (p->env->app_known && !p->env->app_known(p->env->context, name))
        return false;
    for (unsigned i = 0; i < o->app_count; i++) {
        if (is(item, o->apps[i]))
            return true;
    }
    if (o->app_count == BOOTLINE_APP_MAX) {
        snprintf(p->valid, sizeof(p->valid), "at most %d names", BOOTLINE_APP_MAX);
        return false;
    }
    memcpy(o->apps[o->app_count], item.at, item.len);
    o->apps[o->app_count++][item.len] = '\0';
    return true;
}

static bool parse_apps(struct parser *p, struct text value)
{
    const char *names = p->env->app_names;
    bool more = true;

    p->out->app_count = 0;
    snprintf(p->valid, sizeof(p->valid), "%s%s",
             names ? "a comma-separated list of " : "names of applications, comma-separated", names ? names : "");
    while (more) {
        struct text item = cut(&value, ',', &more);
        /* An application's argument may hold commas itself (txonly:SIZE,COUNT): a number is no name, so it belongs to
         * what stands before it. */
        while (more && memchr(item.at, ':', item.len) && value.len && value.at[0] >= '0' && value.at[0] <= '9') {
            struct text next = cut(&value, ',', &more);
            item.len += 1 + next.len;
        }
        if (!add_app(p, item))
            return false;
    }
    return true;
}

static bool parse_conform(struct parser *p, struct text value)
{
    struct bootline *o = p->out;

    o->conform = true;
    o->conform_area[0] = '\0';
    if (!value.at) /* without a value: all areas */
        return true;
    if (!is_name(value) || value.len >= sizeof(o->conform_area))
        return false;
    memcpy(o->conform_area, value.at, value.len);
    o->conform_area[value.len] = '\0';
    return true;
}

static bool parse_peer(struct parser *p, struct text value)
{
    struct bootline *o = p->out;

    o->has_peer = ip4_parse(value.at, value.len, o->peer);
    return o->has_peer && usable(p, ip4_host_problem(o->peer, 32));
}

static bool parse_txirq(struct parser *p, struct text value)
{
    p->out->tx_next = is(value, "next");
    return p->out->tx_next || is(value, "late");
}

static bool parse_trace(struct parser *p, struct text value)
{
    p->out->trace = is(value, "on");
    return p->out->trace || is(value, "off");
}

static bool parse_log(struct parser *p, struct text value)
{
    static const char *const names[] = { "error", "warn", "info", "debug" }; /* in the order of enum log_level */

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (is(value, names[i])) {
            p->out->log = (enum log_level)i;
            return true;
        }
    }
    return false;
}

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

static const struct word words[] = {
    { "ip", false, parse_ip, "dhcp or A.B.C.D/N[,gw=A.B.C.D], N 0 to 32" },
    { "ip6", false, parse_ip6, "auto, off or ADDR/N[,gw=ADDR], N 0 to 128" },
    { "cores", false, parse_cores, "a whole number from 1 to " TEXT(BOOTLINE_NUMBER_MAX) },
    { "queues", false, parse_queues, "a whole number from 1 to " TEXT(BOOTLINE_NUMBER_MAX) },
    { "ring", false, parse_ring, "a power of two from 2 to 32768" },
    { "features", false, parse_features, "+name or -name, comma-separated" },
    { "poll", false, parse_poll, "auto or microseconds from 0 to " TEXT(BOOTLINE_POLL_MAX) },
    { "apps", false, parse_apps, "" },
    { "conform", true, parse_conform, "conform alone or conform= and an area's name, at most 15 characters" },
    { "peer", false, parse_peer, "A.B.C.D" },
    { "txirq", false, parse_txirq, "late or next" },
    { "trace", false, parse_trace, "on or off" },
    { "log", false, parse_log, "error, warn, info or debug" },
};

#define WORDS (sizeof(words) / sizeof(words[0]))

static void report(const struct parser *p, const char *sentence)
{
    if (p->env->unknown)
        p->env->unknown(p->env->context, sentence);
}

static void report_unknown(const struct parser *p, struct text word, struct text name)
{
    char shown[SHOWN_MAX + 4], sentence[SHOWN_MAX + 100];
    const struct word *best = &words[0];

    for (size_t i = 1; i < WORDS; i++) {
        if (farness(name, words[i].name) < farness(name, best->name))
            best = &words[i];
    }
    show(shown, word);
    snprintf(sentence, sizeof(sentence), "unknown word \"%s\" ignored; nearest valid word: %s%s", shown, best->name,
             best->bare ? "" : "=");
    report(p, sentence);
}

/* One word of the line. */
static bool parse_word(struct parser *p, struct text word, struct bootline_error *error)
{
    bool has_value;
    struct text value = word;
    struct text name = cut(&value, '=', &has_value);
    char shown[SHOWN_MAX + 4];

    for (size_t i = 0; i < WORDS; i++) {
        if (!is(name, words[i].name) || (!has_value && !words[i].bare))
            continue;
        p->valid[0] = '\0';
        if (words[i].parse(p, has_value ? value : (struct text){ NULL, 0 }))
            return true;
        show(shown, word);
        snprintf(error->text, sizeof(error->text), "bad value %s: valid is %s", shown,
                 p->valid[0] ? p->valid : words[i].valid);
        return false;
    }
    report_unknown(p, word, name);
    return true;
}

bool bootline_parse(const char *line, struct bootline *out, const struct bootline_env *env,
                    struct bootline_error *error)
{
    struct parser p = { .out = out, .env = env };
    size_t len = 0, at = 0;

    while (len <= BOOTLINE_MAX && line[len])
        len++;
    *out = (struct bootline){ .poll_us = POLL_AUTO, .log = LOG_INFO };
    error->text[0] = '\0';
    if (len > BOOTLINE_MAX) {
        /* Half a word could mean something else: 10.0.0.1/24 cut to 10.0.0.1/2. */
        while (len > 0 && !is_blank(line[len - 1]))
            len--;
        report(&p, "boot line longer than " TEXT(BOOTLINE_MAX) " characters: the rest is ignored");
    }
    while (at < len) {
        size_t start = at;

        while (at < len && !is_blank(line[at]))
            at++;
        if (at > start && !parse_word(&p, (struct text){ line + start, at - start }, error))
            return false;
        at++;
    }
    return true;
}

#include "apps/metrics.h"
#include <string.h>
#include "kernel/clock.h"
#include "kernel/core.h"
#include "kernel/public.h"
#include "lwip/netif.h"
#include "net/counters.h"

/* ---- writing ---- */

#define DIGITS 20 /* of the largest 64-bit number */

/* (Not taken into its many callers: nobody is in a hurry here.) */
__attribute__((noinline)) void text_bytes(struct text *t, const char *bytes, size_t n)
{
    if (t->at != NULL && n > t->size - t->used)
        n = t->size - t->used;
    if (t->at != NULL)
        memcpy(t->at + t->used, bytes, n);
    t->used += n;
}

static void put(struct text *t, const char *s)
{
    text_bytes(t, s, strlen(s));
}

static void put_number(struct text *t, uint64_t n)
{
    char digits[DIGITS];
    size_t at = DIGITS;
    do {
        digits[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n != 0);
    text_bytes(t, digits + at, t->at != NULL ? DIGITS - at : DIGITS);
}

static void put_seconds(struct text *t, uint64_t ns)
{
    char fraction[10] = ".";
    uint64_t rest = ns % 1000000000;
    for (size_t i = 9; i > 0; i--, rest /= 10)
        fraction[i] = (char)('0' + rest % 10);
    put_number(t, ns / 1000000000);
    text_bytes(t, fraction, sizeof fraction);
}

static void put_hex(struct text *t, uint8_t byte)
{
    static const char hex[] = "0123456789abcdef";
    char two[2] = { hex[byte >> 4], hex[byte & 15] };
    text_bytes(t, two, 2);
}

static void put_value(struct text *t, const struct net_counters *of, const struct metric *metric)
{
    uint64_t value = counters_read(of, metric);
    if (metric->kind == METRIC_SECONDS)
        put_seconds(t, value);
    else
        put_number(t, value);
}

/* ---- the machine ---- */

static const struct virtnet *device(void)
{
    return core_shared()->public_area->net;
}

static void put_mac(struct text *t)
{
    for (unsigned i = 0; i < 6; i++) {
        put(t, i > 0 ? ":" : "");
        put_hex(t, device()->mac[i]);
    }
}

static void put_ip(struct text *t)
{
    char ip[IP4ADDR_STRLEN_MAX];
    const ip4_addr_t *address = netif_ip4_addr(netif_default);
    put(t, ip4_addr_isany(address) ? "none" : ip4addr_ntoa_r(address, ip, sizeof ip));
}

/* The addresses that serve, in lower case (RFC 5952, 4.3), separated by commas. */
static void put_ip6(struct text *t)
{
    char ip6[IP6ADDR_STRLEN_MAX];
    bool any = false;
    for (s8_t i = 0; i < LWIP_IPV6_NUM_ADDRESSES; i++) {
        if (!ip6_addr_isvalid(netif_ip6_addr_state(netif_default, i)))
            continue;
        ip6addr_ntoa_r(netif_ip6_addr(netif_default, i), ip6, sizeof ip6);
        for (char *c = ip6; *c != '\0'; c++)
            *c |= *c >= 'A' && *c <= 'F' ? 0x20 : 0;
        put(t, any ? "," : "");
        put(t, ip6);
        any = true;
    }
    put(t, any ? "" : "none");
}

static void put_interrupts(struct text *t)
{
    put(t, virtnet_interrupts_name(device()));
}

static void put_steering(struct text *t)
{
    put(t, device()->rss_on ? "rss" : device()->pairs > 1 ? "automatic" : "none");
}

/* What is text. */
static const struct {
    const char *name;
    void (*write)(struct text *t);
} words[] = {
    { "mac", put_mac },           { "ip", put_ip }, { "ip6", put_ip6 }, { "interrupts", put_interrupts },
    { "steering", put_steering },
};

/* What is a number. */
struct fact {
    const char *name, *help;
    uint64_t value;
    bool seconds;
};

#define FACTS 6

static void facts(struct fact *to)
{
    const struct fact now[FACTS] = {
        { "uptime_seconds", "Time since the first instruction", clock_ns(), true },
        { "scrape_core", "The core that made this answer", core_number(), false },
        { "link_up", "1: the device says that the link is up", netif_is_link_up(netif_default) != 0, false },
        { "mtu_bytes", "MTU of the interface", device()->mtu, false },
        { "queue_pairs", "Queue pairs in use, one per core", device()->pairs, false },
        { "queue_pairs_max", "Queue pairs that the device has", device()->max_pairs, false },
    };
    memcpy(to, now, sizeof now);
}

static void put_fact(struct text *t, const struct fact *fact)
{
    if (fact->seconds)
        put_seconds(t, fact->value);
    else
        put_number(t, fact->value);
}

/* Calls write(t, name) for each feature acknowledged. */
static void each_feature(struct text *t, void (*write)(struct text *t, const char *name, bool first))
{
    size_t count;
    const struct feature *feature = features_table(&count);
    bool first = true;
    for (size_t i = 0; i < count; i++) {
        if (!virtnet_has(device(), feature[i].bit))
            continue;
        write(t, feature[i].name, first);
        first = false;
    }
}

/* ---- Prometheus ---- */

static void head(struct text *t, const char *name, const char *suffix, const char *help, bool counter)
{
    const char *const parts[] = { "# HELP ringside_",
                                  name,
                                  suffix,
                                  " ",
                                  help,
                                  "\n# TYPE ringside_",
                                  name,
                                  suffix,
                                  counter ? " counter\n" : " gauge\n" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        put(t, parts[i]);
}

static void put_label(struct text *t, const char *name, const char *value)
{
    put(t, name);
    put(t, "=\"");
    put(t, value);
    put(t, "\"");
}

static void put_name(struct text *t, const char *name, const char *suffix)
{
    put(t, "ringside_");
    put(t, name);
    put(t, suffix);
}

static const char *suffix_of(const struct metric *metric)
{
    static const char *const suffix[] = { "_total", "_seconds_total", "" };
    return suffix[metric->kind];
}

/* One row of the table: a line for each core. */
static void prometheus_row(struct text *t, const struct metric *metric)
{
    for (unsigned core = 0; core < MAX_CORES; core++) {
        const struct net_counters *of = counters_of(core);
        if (of == NULL)
            continue;
        put_name(t, metric->name, suffix_of(metric));
        put(t, "{core=\"");
        put_number(t, core);
        if (metric->per_queue) {
            put(t, "\",queue=\"");
            put_number(t, of->net->pair.number);
        }
        put(t, "\"");
        if (metric->reason[0] != '\0') {
            put(t, ",");
            put_label(t, "reason", metric->reason);
        }
        put(t, "} ");
        put_value(t, of, metric);
        put(t, "\n");
    }
}

static void prometheus_feature(struct text *t, const char *name, bool first)
{
    (void)first;
    put(t, "ringside_feature{");
    put_label(t, "name", name);
    put(t, "} 1\n");
}

static void prometheus_machine(struct text *t)
{
    struct fact fact[FACTS];
    facts(fact);
    for (size_t i = 0; i < FACTS; i++) {
        head(t, fact[i].name, "", fact[i].help, false);
        put_name(t, fact[i].name, " ");
        put_fact(t, &fact[i]);
        put(t, "\n");
    }
    head(t, "info", "", "Addresses, interrupts and steering", false);
    put(t, "ringside_info{");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        put(t, i > 0 ? "\"," : "");
        put(t, words[i].name);
        put(t, "=\"");
        words[i].write(t);
    }
    put(t, "\"} 1\n");
    head(t, "feature", "", "Features acknowledged", false);
    each_feature(t, prometheus_feature);
}

static void prometheus_lwip(struct text *t)
{
    size_t metrics, protocols;
    const struct lwip_metric *metric = counters_lwip_table(&metrics);
    const struct lwip_protocol *protocol = counters_lwip_protocols(&protocols);
    for (size_t m = 0; m < metrics; m++) {
        char name[32] = "lwip_";
        strcat(name, metric[m].name);
        head(t, name, "_total", metric[m].help, true);
        for (size_t p = 0; p < protocols; p++) {
            uint64_t sum;
            if (!counters_lwip_sum(&metric[m], &protocol[p], &sum))
                continue;
            put_name(t, name, "_total{");
            put_label(t, "protocol", protocol[p].name);
            put(t, "} ");
            put_number(t, sum);
            put(t, "\n");
        }
    }
}

void metrics_prometheus(struct text *t)
{
    size_t count;
    const struct metric *metric = counters_table(&count);
    prometheus_machine(t);
    for (size_t i = 0; i < count; i++) {
        if (metric[i].help[0] != '\0') /* the first row of its name */
            head(t, metric[i].name, suffix_of(&metric[i]), metric[i].help, metric[i].kind != METRIC_GAUGE);
        prometheus_row(t, &metric[i]);
    }
    prometheus_lwip(t);
}

/* ---- JSON ---- */

static void put_key(struct text *t, const char *name, const char *suffix)
{
    put(t, "\"");
    put(t, name);
    put(t, suffix);
    put(t, "\":");
}

static void json_feature(struct text *t, const char *name, bool first)
{
    put(t, first ? "\"" : ",\"");
    put(t, name);
    put(t, "\"");
}

static void json_machine(struct text *t)
{
    struct fact fact[FACTS];
    facts(fact);
    for (size_t i = 0; i < FACTS; i++) {
        put_key(t, fact[i].name, "");
        put_fact(t, &fact[i]);
        put(t, ",\n");
    }
    put(t, "\"info\":{");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        put(t, i > 0 ? "\"," : "");
        put_key(t, words[i].name, "");
        put(t, "\"");
        words[i].write(t);
    }
    put(t, "\"},\n\"feature\":[");
    each_feature(t, json_feature);
    put(t, "],\n");
}

/* A core's numbers. Rows that share a name are an object of their reasons. */
static void json_core(struct text *t, unsigned core, const struct net_counters *of)
{
    size_t count;
    const struct metric *metric = counters_table(&count);
    bool within = false;
    put(t, "{\"core\":");
    put_number(t, core);
    put(t, ",\"queue\":");
    put_number(t, of->net->pair.number);
    for (size_t i = 0; i < count; i++) {
        if (metric[i].help[0] != '\0') {
            put(t, within ? "}," : ",");
            put_key(t, metric[i].name, metric[i].kind == METRIC_SECONDS ? "_seconds" : "");
            within = metric[i].reason[0] != '\0';
            put(t, within ? "{" : "");
        } else {
            put(t, ",");
        }
        if (within)
            put_key(t, metric[i].reason, "");
        put_value(t, of, &metric[i]);
    }
    put(t, within ? "}}" : "}");
}

static void json_lwip(struct text *t)
{
    size_t metrics, protocols;
    const struct lwip_metric *metric = counters_lwip_table(&metrics);
    const struct lwip_protocol *protocol = counters_lwip_protocols(&protocols);
    for (size_t m = 0; m < metrics; m++) {
        bool any = false;
        put(t, ",\n\"lwip_");
        put(t, metric[m].name);
        put(t, "\":{");
        for (size_t p = 0; p < protocols; p++) {
            uint64_t sum;
            if (!counters_lwip_sum(&metric[m], &protocol[p], &sum))
                continue;
            put(t, any ? "," : "");
            put_key(t, protocol[p].name, "");
            put_number(t, sum);
            any = true;
        }
        put(t, "}");
    }
}

void metrics_json(struct text *t)
{
    bool any = false;
    put(t, "{");
    json_machine(t);
    put(t, "\"cores\":[");
    for (unsigned core = 0; core < MAX_CORES; core++) {
        const struct net_counters *of = counters_of(core);
        if (of == NULL)
            continue;
        put(t, any ? ",\n" : "\n");
        json_core(t, core, of);
        any = true;
    }
    put(t, "]");
    json_lwip(t);
    put(t, "}\n");
}

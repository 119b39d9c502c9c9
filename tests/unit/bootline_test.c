/* The boot line: every word of docs/boot-line.md with good and bad values, what is said about unknown words, and random
 * bytes. */
#include "tests/unit/unit.h"

#include "drivers/virtio/features.h"
#include "kernel/bootline.h"
#include <linux/virtio_net.h>

/* What the parser said about unknown words. */
struct heard {
    unsigned count;
    char last[512];
};

static void hear(void *context, const char *sentence)
{
    struct heard *heard = context;

    heard->count++;
    snprintf(heard->last, sizeof(heard->last), "%s", sentence);
}

static bool known_app(void *context, const char *name)
{
    (void)context;
    return !strcmp(name, "echo") || !strcmp(name, "discard") || !strcmp(name, "chargen") || !strcmp(name, "txonly");
}

static struct bootline out;
static struct bootline_error error;
static struct heard heard;
static const struct bootline_env env = { hear, known_app, "echo,discard,chargen,txonly", &heard };

/* Parses a copy of `line` that ends where its allocation ends, so that AddressSanitizer sees a step beyond. */
static bool parse(const char *line)
{
    char *copy = strdup(line);

    memset(&out, 0xa5, sizeof(out)); /* what the parser does not set is seen */
    memset(&error, 0xa5, sizeof(error));
    heard = (struct heard){ 0 };
    bool good = bootline_parse(copy, &out, &env, &error);
    free(copy);
    return good;
}

static void good(const char *line)
{
    check(parse(line), "%s -> %s", line, error.text);
    check(heard.count == 0, "%s -> %s", line, heard.last);
}

static void test_defaults(void **state)
{
    static const char *const lines[] = { "", " ", "\t \n\r\v\f " };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        good(lines[i]);
        assert_int_equal(out.ip, IP_AUTO);
        assert_int_equal(out.ip6, IP_AUTO);
        assert_false(out.ip_has_gw || out.ip6_has_gw || out.conform || out.has_peer);
        assert_int_equal(out.cores, 0);
        assert_int_equal(out.queues, 0);
        assert_int_equal(out.ring, 0);
        assert_int_equal(out.poll_us, POLL_AUTO);
        assert_int_equal(out.features_off, 0);
        assert_int_equal(out.features_required, 0);
        assert_int_equal(out.app_count, 0);
        assert_string_equal(out.conform_area, "");
        assert_int_equal(out.log, LOG_INFO);
        assert_false(out.tx_next);
    }
}

static void test_ip(void **state)
{
    static const uint8_t addr[4] = { 198, 18, 3, 254 }, gw[4] = { 198, 18, 3, 1 };

    (void)state;
    good("ip=198.18.3.254/24,gw=198.18.3.1");
    assert_int_equal(out.ip, IP_STATIC);
    assert_memory_equal(out.ip_addr, addr, 4);
    assert_int_equal(out.ip_prefix, 24);
    assert_true(out.ip_has_gw);
    assert_memory_equal(out.ip_gw, gw, 4);
    good("ip=198.18.3.254/32");
    assert_int_equal(out.ip_prefix, 32);
    assert_false(out.ip_has_gw);
    good("ip=198.18.3.254/0");
    assert_int_equal(out.ip_prefix, 0);
    good("ip=198.18.3.254/31,gw=198.18.3.255"); /* RFC 3021: both addresses of a /31 are hosts */
    good("ip=198.18.3.254/32,gw=10.0.0.1");     /* a gateway outside the prefix is usual with /32 */
    good("ip=dhcp");
    assert_int_equal(out.ip, IP_AUTO);
}

static void test_ip6(void **state)
{
    static const uint8_t addr[16] = { 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12 };
    static const uint8_t gw[16] = { 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 };
    static const uint8_t mixed[16] = { 0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 33 };

    (void)state;
    good("ip6=fd00::12/64,gw=fe80::1");
    assert_int_equal(out.ip6, IP_STATIC);
    assert_memory_equal(out.ip6_addr, addr, 16);
    assert_int_equal(out.ip6_prefix, 64);
    assert_true(out.ip6_has_gw);
    assert_memory_equal(out.ip6_gw, gw, 16);
    good("ip6=64:FF9B::192.0.2.33/128");
    assert_memory_equal(out.ip6_addr, mixed, 16);
    assert_int_equal(out.ip6_prefix, 128);
    assert_false(out.ip6_has_gw);
    good("ip6=auto");
    assert_int_equal(out.ip6, IP_AUTO);
    good("ip6=off");
    assert_int_equal(out.ip6, IP_OFF);
}

static void test_numbers(void **state)
{
    (void)state;
    good("cores=1 queues=32768 ring=2 poll=0");
    assert_int_equal(out.cores, 1);
    assert_int_equal(out.queues, 32768);
    assert_int_equal(out.ring, 2);
    assert_int_equal(out.poll_us, 0);
    good("cores=32768 queues=1 ring=32768 poll=1000000");
    assert_int_equal(out.cores, 32768);
    assert_int_equal(out.queues, 1);
    assert_int_equal(out.ring, 32768);
    assert_int_equal(out.poll_us, 1000000);
    good("poll=5 poll=auto");
    assert_int_equal(out.poll_us, POLL_AUTO);
    for (unsigned n = 0; n <= 65536; n++) {
        char line[32];
        bool valid = n >= 2 && n <= 32768 && (n & (n - 1)) == 0;

        snprintf(line, sizeof(line), "ring=%u", n);
        check(parse(line) == valid, "%s", line);
        check(!valid || out.ring == n, "%s", line);
    }
}

static void test_features(void **state)
{
    size_t count;
    const struct feature *table = features_table(&count);

    (void)state;
    for (size_t i = 0; i < count; i++) {
        char line[64];

        snprintf(line, sizeof(line), "features=-%s", table[i].name);
        good(line);
        assert_int_equal(out.features_off, FEATURE_BIT(table[i].bit));
        assert_int_equal(out.features_required, 0);
        snprintf(line, sizeof(line), "features=+%s", table[i].name);
        good(line);
        assert_int_equal(out.features_off, 0);
        assert_int_equal(out.features_required, FEATURE_BIT(table[i].bit));
    }
    good("features=+csum,-mac,-csum,+mtu");
    assert_int_equal(out.features_off, FEATURE_BIT(VIRTIO_NET_F_MAC) | FEATURE_BIT(VIRTIO_NET_F_CSUM));
    assert_int_equal(out.features_required, FEATURE_BIT(VIRTIO_NET_F_MTU));
    good("features=+csum,-mac features=-mtu");
    assert_int_equal(out.features_off, FEATURE_BIT(VIRTIO_NET_F_MTU));
    assert_int_equal(out.features_required, 0);
}

static void test_apps(void **state)
{
    char line[200] = "apps=";

    (void)state;
    good("apps=echo");
    assert_int_equal(out.app_count, 1);
    assert_string_equal(out.apps[0], "echo");
    good("apps=discard,echo,discard");
    assert_int_equal(out.app_count, 2);
    assert_string_equal(out.apps[0], "discard");
    assert_string_equal(out.apps[1], "echo");
    good("apps=echo,txonly:1514,1000000,discard"); /* the comma before a number belongs to the argument */
    assert_int_equal(out.app_count, 3);
    assert_string_equal(out.apps[1], "txonly:1514,1000000");
    assert_string_equal(out.apps[2], "discard");
    good("apps=echo apps=discard");
    assert_int_equal(out.app_count, 1);
    assert_string_equal(out.apps[0], "discard");

    /* Without app_known any name will do; as many as there is room for, and of the length there is room for. */
    struct bootline_env any = { hear, NULL, NULL, &heard };
    for (unsigned i = 0; i < BOOTLINE_APP_MAX; i++)
        snprintf(line + strlen(line), sizeof(line) - strlen(line), "%sapp%u", i ? "," : "", i);
    assert_true(bootline_parse(line, &out, &any, &error));
    assert_int_equal(out.app_count, BOOTLINE_APP_MAX);
    assert_string_equal(out.apps[BOOTLINE_APP_MAX - 1], "app15");
    strcat(line, ",app0"); /* again: no further place needed */
    assert_true(bootline_parse(line, &out, &any, &error));
    strcat(line, ",one-more");
    assert_false(bootline_parse(line, &out, &any, &error));
    assert_non_null(strstr(error.text, "at most 16 names"));
    assert_true(bootline_parse("apps=a234567890123456789012345678901", &out, &any, &error));
    assert_int_equal(strlen(out.apps[0]), BOOTLINE_APP_LEN - 1);
    assert_false(bootline_parse("apps=a2345678901234567890123456789012", &out, &any, &error));
}

static void test_conform_and_log(void **state)
{
    static const char *const levels[] = { "error", "warn", "info", "debug" };

    (void)state;
    good("conform");
    assert_true(out.conform);
    assert_string_equal(out.conform_area, "");
    good("conform=ring");
    assert_true(out.conform);
    assert_string_equal(out.conform_area, "ring");
    good("conform=a23456789012345");
    assert_string_equal(out.conform_area, "a23456789012345");
    good("conform peer=198.18.0.1");
    assert_true(out.has_peer);
    assert_memory_equal(out.peer, ((uint8_t[]){ 198, 18, 0, 1 }), 4);
    good("conform=ring conform");
    assert_string_equal(out.conform_area, "");
    for (unsigned i = 0; i < COUNT_OF(levels); i++) {
        char line[32];

        snprintf(line, sizeof(line), "log=%s", levels[i]);
        good(line);
        assert_int_equal(out.log, i);
    }
}

static void test_later_wins(void **state)
{
    (void)state;
    good("ip=10.0.0.1/24,gw=10.0.0.2 ip=dhcp ip6=fd00::1/64,gw=fd00::2 ip6=fd00::3/64 cores=4 cores=2 ring=256 ring=64 "
         "log=debug log=warn queues=3 queues=1 txirq=late txirq=next trace=off trace=on");
    assert_true(out.tx_next);
    assert_int_equal(out.ip, IP_AUTO);
    assert_false(out.ip_has_gw);
    assert_int_equal(out.ip6, IP_STATIC);
    assert_int_equal(out.ip6_addr[15], 3);
    assert_false(out.ip6_has_gw);
    assert_int_equal(out.cores, 2);
    assert_int_equal(out.queues, 1);
    assert_int_equal(out.ring, 64);
    assert_int_equal(out.log, LOG_WARN);
    assert_true(out.trace);
    good("trace=on trace=off");
    assert_false(out.trace);
    good("txirq=next txirq=late");
    assert_false(out.tx_next);
    good("  ring=64\tcores=2\n  poll=7\r\n"); /* any blanks, also at both ends */
    assert_int_equal(out.ring, 64);
    assert_int_equal(out.cores, 2);
    assert_int_equal(out.poll_us, 7);
}

/* Each of these stops with a line that names word and value and says what is valid. */
static void test_bad_values(void **state)
{
    static const struct {
        const char *word, *valid;
    } rows[] = {
        { "ip=300.1.1.1/24", "dhcp or A.B.C.D/N[,gw=A.B.C.D]" },
        { "ip=", "dhcp or" },
        { "ip=DHCP", "dhcp or" },
        { "ip=dhcp,gw=10.0.0.1", "dhcp or" },
        { "ip=10.0.0.1", "dhcp or" },
        { "ip=10.0.0.1/", "dhcp or" },
        { "ip=10.0.0.1/33", "dhcp or" },
        { "ip=10.0.0.1/-1", "dhcp or" },
        { "ip=10.0.0.1/024", "dhcp or" },
        { "ip=10.0.0.1/24x", "dhcp or" },
        { "ip=10.0.0.01/24", "dhcp or" },
        { "ip=10.0.0/24", "dhcp or" },
        { "ip=10.0.0.1.1/24", "dhcp or" },
        { "ip=10.0.0.1/24,", "dhcp or" },
        { "ip=10.0.0.1/24,gw=", "dhcp or" },
        { "ip=10.0.0.1/24,gw", "dhcp or" },
        { "ip=10.0.0.1/24,GW=10.0.0.2", "dhcp or" },
        { "ip=10.0.0.1/24,gw=10.0.0.2/24", "dhcp or" },
        { "ip=10.0.0.1/24,gw=10.0.0.2,gw=10.0.0.3", "dhcp or" },
        { "ip=fd00::1/64", "dhcp or" },
        { "ip=10.0.0.0/24", "not the network's own" },
        { "ip=10.0.0.255/24", "or its broadcast address" },
        { "ip=0.0.0.0/24", "a host's address" },
        { "ip=127.0.0.1/8", "a host's address" },
        { "ip=224.0.0.1/24", "a host's address" },
        { "ip=255.255.255.255/32", "a host's address" },
        { "ip=10.0.0.1/24,gw=10.0.0.1", "a gateway other than the host itself" },
        { "ip=10.0.0.1/24,gw=239.0.0.1", "a host's address" },
        { "ip6=", "auto, off or ADDR/N[,gw=ADDR]" },
        { "ip6=on", "auto, off or" },
        { "ip6=dhcp", "auto, off or" },
        { "ip6=off,gw=fd00::1", "auto, off or" },
        { "ip6=fd00::1", "auto, off or" },
        { "ip6=fd00::1/129", "auto, off or" },
        { "ip6=fd00:::1/64", "auto, off or" },
        { "ip6=fe80::1%eth0/64", "auto, off or" },
        { "ip6=fd00::1/64,gw=10.0.0.1", "auto, off or" },
        { "ip6=10.0.0.1/24", "auto, off or" },
        { "ip6=::/64", "a host's address" },
        { "ip6=::1/128", "a host's address" },
        { "ip6=ff02::1/64", "a host's address" },
        { "ip6=fd00::1/64,gw=ff02::2", "a host's address" },
        { "ip6=fd00::1/64,gw=fd00::1", "a gateway other than the host itself" },
        { "cores=0", "a whole number from 1 to 32768" },
        { "cores=", "a whole number" },
        { "cores=-1", "a whole number" },
        { "cores=+1", "a whole number" },
        { "cores=1.5", "a whole number" },
        { "cores=0x2", "a whole number" },
        { "cores=02", "a whole number" },
        { "cores=32769", "a whole number" },
        { "cores=4294967297", "a whole number" },
        { "cores=18446744073709551617", "a whole number" },
        { "cores=two", "a whole number" },
        { "queues=0", "a whole number from 1 to 32768" },
        { "queues=all", "a whole number" },
        { "ring=3", "a power of two from 2 to 32768" },
        { "ring=0", "a power of two" },
        { "ring=1", "a power of two" },
        { "ring=65536", "a power of two" },
        { "ring=4294967298", "a power of two" },
        { "ring=256k", "a power of two" },
        { "features=", "+name or -name, comma-separated" },
        { "features=csum", "+name or -name" },
        { "features=+", "+name or -name" },
        { "features=+csum,", "+name or -name" },
        { "features=,+csum", "+name or -name" },
        { "features=+csum,,-mac", "+name or -name" },
        { "features=+evnt_idx", "nearest to \"evnt_idx\" is event_idx" },
        { "features=-EVENT_IDX", "nearest to \"EVENT_IDX\" is event_idx" },
        { "features=-host_tso", "nearest to \"host_tso\" is host_tso4" },
        { "features=--csum", "nearest to \"-csum\" is csum" },
        { "features=+csum-mac", "nearest to \"csum-mac\" is csum" },
        { "txirq=", "late or next" },
        { "txirq=NEXT", "late or next" },
        { "txirq=nextt", "late or next" },
        { "poll=-1", "auto or microseconds from 0 to 1000000" },
        { "poll=", "auto or" },
        { "poll=1000001", "auto or" },
        { "poll=4294967295", "auto or" },
        { "poll=10us", "auto or" },
        { "apps=", "a comma-separated list of echo,discard,chargen,txonly" },
        { "apps=ech", "echo,discard" },
        { "apps=echo,", "echo,discard" },
        { "apps=,echo", "echo,discard" },
        { "apps=echo,,discard", "echo,discard" },
        { "apps=echo:", "echo,discard" },
        { "apps=:7", "echo,discard" },
        { "apps=echo,12", "echo,discard" },
        { "apps=Echo", "echo,discard" },
        { "conform=", "conform alone or conform= and an area's name" },
        { "conform=Ring", "conform alone" },
        { "peer=198.18.0.256", "A.B.C.D" },
        { "peer=198.18.0.1/24", "A.B.C.D" },
        { "conform=a234567890123456", "conform alone" },
        { "trace=", "on or off" },
        { "trace=1", "on or off" },
        { "trace=onn", "on or off" },
        { "log=", "error, warn, info or debug" },
        { "log=verbose", "error, warn" },
        { "log=INFO", "error, warn" },
        { "log=3", "error, warn" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char line[128], start[128];

        snprintf(line, sizeof(line), "ring=64 %s log=warn", rows[i].word);
        check(!parse(line), "%s taken", rows[i].word);
        snprintf(start, sizeof(start), "bad value %s: valid is ", rows[i].word);
        check(!strncmp(error.text, start, strlen(start)), "%s -> %s", rows[i].word, error.text);
        check(strstr(error.text + strlen(start), rows[i].valid), "%s -> %s", rows[i].word, error.text);
    }
}

static void test_unknown_words(void **state)
{
    static const struct {
        const char *word, *nearest;
    } rows[] = {
        { "ipp=dhcp", "ip=" },         { "ip4=dhcp", "ip=" },
        { "IP=dhcp", "ip=" },          { "ipv6=off", "ip6=" },
        { "pi6=off", "ip6=" },         { "core=2", "cores=" },
        { "coers=2", "cores=" },       { "smp_cores=2", "cores=" },
        { "queue=1", "queues=" },      { "c=1", "cores=" },
        { "rings=4", "ring=" },        { "ring_size=4", "ring=" },
        { "rign=4", "ring=" },         { "feature=-csum", "features=" },
        { "feat=-csum", "features=" }, { "fetures=-csum", "features=" },
        { "pol=1", "poll=" },          { "app=echo", "apps=" },
        { "aps=echo", "apps=" },       { "conf", "conform" },
        { "conformance", "conform" },  { "comform=ring", "conform" },
        { "lgo=debug", "log=" },       { "loglevel=3", "log=" },
        { "cores", "cores=" },         { "ip", "ip=" },
        { "cores 2", "cores=" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char word[64], line[128], sentence[256];

        snprintf(word, sizeof(word), "%s", rows[i].word);
        word[strcspn(word, " ")] = '\0';
        snprintf(line, sizeof(line), "cores=3 %s ring=64", word);
        check(parse(line), "%s -> %s", line, error.text);
        snprintf(sentence, sizeof(sentence), "unknown word \"%s\" ignored; nearest valid word: %s", word,
                 rows[i].nearest);
        check(heard.count == 1, "%s: %u sentences", line, heard.count);
        assert_string_equal(heard.last, sentence);
        assert_int_equal(out.cores, 3); /* ignored, and nothing else with it */
        assert_int_equal(out.ring, 64);
    }
    assert_true(parse("quiet splash =  x= nosuch"));
    assert_int_equal(heard.count, 5);
    struct bootline_env silent = { NULL, NULL, NULL, NULL };
    assert_true(bootline_parse("quiet ring=4", &out, &silent, &error));
    assert_int_equal(out.ring, 4);
}

static void test_shown_safely(void **state)
{
    char line[1200];

    (void)state;
    assert_true(parse("a\x01\x1b[31m\x7f\xc3\xa4\"\\"));
    assert_string_equal(heard.last,
                        "unknown word \"a\\x01\\x1b[31m\\x7f\\xc3\\xa4\"\\\" ignored; nearest valid word: apps=");
    assert_false(parse("cores=\xff"));
    assert_string_equal(error.text, "bad value cores=\\xff: valid is a whole number from 1 to 32768");
    memset(line, 'z', sizeof(line));
    line[sizeof(line) - 1] = '\0';
    assert_true(parse(line));
    assert_true(strlen(heard.last) < 160);
    assert_non_null(strstr(heard.last, "zzz...\" ignored; nearest valid word: "));
    memcpy(line, "cores=", 6);
    assert_false(parse(line));
    assert_non_null(strstr(error.text, "zzz...: valid is a whole number from 1 to 32768")); /* the end is not cut off */
    memcpy(line, "features=+", 10);
    memset(line + 10, '\x80', 300);
    assert_false(parse(line));
    assert_true(strlen(error.text) < sizeof(error.text));
    assert_non_null(strstr(error.text, "nearest to \"\\x80"));
    assert_non_null(strstr(error.text, "\" is "));
}

static void test_line_too_long(void **state)
{
    static char line[BOOTLINE_MAX + 200];

    (void)state;
    /* Exactly as long as allowed: all of it counts. */
    memset(line, ' ', sizeof(line));
    strcpy(line + BOOTLINE_MAX - 8, "ring=128");
    good(line);
    assert_int_equal(out.ring, 128);
    /* One more: the last word would be cut to another value; it is left out, and that is said. */
    memset(line, ' ', sizeof(line));
    memcpy(line, "cores=2", 7);
    strcpy(line + BOOTLINE_MAX - 6, "ring=16384");
    assert_true(parse(line));
    assert_int_equal(heard.count, 1);
    assert_non_null(strstr(heard.last, "longer than 4096 characters"));
    assert_int_equal(out.cores, 2);
    assert_int_equal(out.ring, 0);
    /* The limit falls between two words: the first counts. */
    memset(line, ' ', sizeof(line));
    strcpy(line + BOOTLINE_MAX - 7, "ring=16 cores=2");
    assert_true(parse(line));
    assert_int_equal(heard.count, 1);
    assert_int_equal(out.ring, 16);
    assert_int_equal(out.cores, 0);
    /* Nothing behind the limit counts, however many words. */
    strcpy(line + BOOTLINE_MAX - 7, "ring=16 cores=2 ring=64 queues=7");
    assert_true(parse(line));
    assert_int_equal(out.ring, 16);
    assert_int_equal(out.queues, 0);
    /* One word without an end. */
    memset(line, 'x', sizeof(line));
    line[sizeof(line) - 1] = '\0';
    assert_true(parse(line));
    assert_int_equal(heard.count, 1);
}

/* Whatever holds for the result of any line. */
static void check_sane(const char *line, bool parsed)
{
    check(memchr(error.text, 0, sizeof(error.text)), "%s", line);
    for (const char *c = parsed ? heard.last : error.text; *c; c++)
        check(*c >= 0x20 && *c < 0x7f, "byte %02x shown for %s", (unsigned char)*c, line);
    if (!parsed) {
        check(!strncmp(error.text, "bad value ", 10) && strstr(error.text, ": valid is "), "%s", error.text);
        return;
    }
    check(error.text[0] == '\0', "%s", error.text);
    check(out.ip == IP_AUTO || (out.ip == IP_STATIC && out.ip_prefix <= 32), "%s", line);
    check(out.ip6 == IP_AUTO || out.ip6 == IP_OFF || (out.ip6 == IP_STATIC && out.ip6_prefix <= 128), "%s", line);
    check(out.cores <= BOOTLINE_NUMBER_MAX && out.queues <= BOOTLINE_NUMBER_MAX, "%s", line);
    check(out.ring == 0 || (out.ring >= 2 && out.ring <= 32768 && !(out.ring & (out.ring - 1))), "%s", line);
    check(out.poll_us == POLL_AUTO || out.poll_us <= BOOTLINE_POLL_MAX, "%s", line);
    check(!(out.features_off & out.features_required), "%s", line);
    check(out.app_count <= BOOTLINE_APP_MAX, "%s", line);
    for (unsigned i = 0; i < out.app_count; i++)
        check(out.apps[i][0] && memchr(out.apps[i], 0, BOOTLINE_APP_LEN), "%s", line);
    check(memchr(out.conform_area, 0, sizeof(out.conform_area)), "%s", line);
    check(out.log <= LOG_DEBUG, "%s", line);
}

static void test_random_bytes(void **state)
{
    uint64_t seed = chance_seed(0xb007);
    char line[256];

    (void)state;
    for (unsigned n = 0; n < 20000; n++) {
        size_t len = chance_below(&seed, sizeof(line));

        for (size_t i = 0; i < len; i++)
            line[i] = (char)(1 + chance_below(&seed, 255));
        line[len] = '\0';
        check_sane(line, parse(line));
    }
}

/* Good words, with a few bytes changed, dropped, doubled or swapped for what the grammar is made of. */
static void test_mutations(void **state)
{
    static const char *const words[] = {
        "ip=dhcp",       "ip=198.18.0.2/15,gw=198.18.0.1", "ip6=auto", "ip6=off",
        "cores=2",       "ip6=fd00::1:2/64,gw=fe80::1",    "queues=4", "ring=256",
        "poll=auto",     "features=+csum,-event_idx",      "poll=50",  "apps=echo,discard",
        "conform=ring",  "apps=txonly:64,100,echo",        "conform",  "log=debug",
        "features=-mac", "ip6=64:ff9b::192.0.2.1/96",      "log=warn", "unknown=1"
    };
    static const char special[] = "=,+-:./ 0123456789abcdefgxz\t\x80\xff";
    uint64_t seed = chance_seed(0x3141);
    unsigned refused = 0, taken = 0;

    (void)state;
    for (unsigned n = 0; n < 40000; n++) {
        char line[512] = "";

        for (unsigned w = chance_below(&seed, 4) + 1; w > 0; w--) {
            strcat(line, words[chance_below(&seed, COUNT_OF(words))]);
            strcat(line, " ");
        }
        for (unsigned m = chance_below(&seed, 4); m > 0; m--) {
            size_t len = strlen(line), at = chance_below(&seed, (uint32_t)len);

            switch (chance_below(&seed, 3)) {
            case 0:
                line[at] = special[chance_below(&seed, sizeof(special) - 1)];
                break;
            case 1:
                memmove(line + at, line + at + 1, len - at);
                break;
            default:
                memmove(line + at + 1, line + at, len - at + 1);
                break;
            }
        }
        bool parsed = parse(line);
        check_sane(line, parsed);
        taken += parsed;
        refused += !parsed;
    }
    check(taken > 1000 && refused > 1000, "%u taken, %u refused: these mutations test little", taken, refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_ip),
        cmocka_unit_test(test_ip6),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_features),
        cmocka_unit_test(test_apps),
        cmocka_unit_test(test_conform_and_log),
        cmocka_unit_test(test_later_wins),
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_unknown_words),
        cmocka_unit_test(test_shown_safely),
        cmocka_unit_test(test_line_too_long),
        cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_mutations),
    };

    return cmocka_run_group_tests_name("bootline", tests, NULL, NULL);
}

/* iperf3's texts: wishes as real clients send them, and all that could come instead; results. */
#include "tests/unit/unit.h"
#include "apps/iperf3/text.h"

/* Of iperf3 3.12 and 3.18. */
#define TCP_TEXT                                                                                                       \
    "{\"tcp\":true,\"omit\":0,\"time\":10,\"num\":0,\"blockcount\":0,\"parallel\":1,\"len\":131072,"                   \
    "\"pacing_timer\":1000,\"client_version\":\"3.12\"}"
#define UDP_TEXT                                                                                                       \
    "{\"udp\":true,\"omit\":1,\"time\":2,\"num\":0,\"blockcount\":0,\"parallel\":3,\"reverse\":true,\"len\":1448,"     \
    "\"bandwidth\":10000000,\"pacing_timer\":1000,\"udp_counters_64bit\":1,\"get_server_output\":1,"                   \
    "\"extra_data\":\"a \\\"quoted\\\" \\u00e4 {[,\",\"client_version\":\"3.18\"}"

/* Parses a copy that ends where the text ends: what is read behind it is found out. */
static enum i3_error parse_bytes(const char *text, size_t n, struct i3_spec *spec)
{
    char *copy = malloc(n > 0 ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    enum i3_error error = i3_parse(copy, n, spec);
    free(copy);
    return error;
}

static enum i3_error parse(const char *text, struct i3_spec *spec)
{
    return parse_bytes(text, strlen(text), spec);
}

static void real_wishes(void **state)
{
    struct i3_spec s;
    (void)state;
    assert_int_equal(parse(TCP_TEXT, &s), I3_OK);
    assert_false(s.udp || s.reverse || s.bidirectional || s.nodelay || s.want_output);
    assert_int_equal(s.time, 10);
    assert_int_equal(s.parallel, 1);
    assert_int_equal(s.len, 131072);
    assert_true(s.amount == 0 && s.rate == 0 && s.omit == 0 && s.tos == 0);
    assert_true(i3_receives(&s) && !i3_sends(&s) && i3_streams(&s) == 1);

    assert_int_equal(parse(UDP_TEXT, &s), I3_OK);
    assert_true(s.udp && s.reverse && s.counters64 && s.want_output && !s.bidirectional);
    assert_true(s.time == 2 && s.omit == 1 && s.parallel == 3 && s.len == 1448 && s.rate == 10000000);
    assert_true(!i3_receives(&s) && i3_sends(&s));
}

static void single_wishes(void **state)
{
    struct i3_spec s;
    (void)state;
    assert_int_equal(parse("{}", &s), I3_OK);
    assert_true(s.parallel == 1 && s.len == 131072 && s.time == 0);
    assert_int_equal(parse(" { \"udp\" : true } \r\n", &s), I3_OK);
    assert_true(s.udp && s.len == 1460);
    assert_int_equal(parse("{\"bidirectional\":true,\"parallel\":128,\"nodelay\":true,\"TOS\":16}", &s), I3_OK);
    assert_true(i3_streams(&s) == 256 && i3_receives(&s) && i3_sends(&s) && s.nodelay && s.tos == 16);
    assert_int_equal(parse("{\"num\":10485760}", &s), I3_OK);
    assert_true(s.amount == 10485760);
    assert_int_equal(parse("{\"blockcount\":50,\"len\":1000}", &s), I3_OK);
    assert_true(s.amount == 50000);
    assert_int_equal(parse("{\"num\":18446744073709551615,\"bandwidth\":1e+30,\"time\":1e9,\"omit\":99999999}", &s),
                     I3_OK);
    assert_true(s.amount == UINT64_C(1) << 62 && s.rate == UINT64_C(1) << 60);
    assert_true(s.time == I3_TIME_MAX && s.omit == I3_TIME_MAX);
    assert_int_equal(parse("{\"bandwidth\":1.5e+6,\"len\":250E-1}", &s), I3_OK);
    assert_true(s.rate == 1500000 && s.len == 25);
    assert_int_equal(parse("{\"time\":null,\"udp\":0,\"reverse\":false,\"reverse\":1}", &s), I3_OK);
    assert_true(!s.udp && s.reverse);
    assert_int_equal(parse("{\"timeout\":-7,\"tim\":\"x\",\"x\":{\"time\":[1,{\"a\":[]},\"]\"]},\"time\":3}", &s),
                     I3_OK);
    assert_int_equal(s.time, 3);
}

static void refused_wishes(void **state)
{
    static const struct {
        const char *text;
        enum i3_error error;
    } row[] = {
        { "{\"sctp\":true}", I3_NO_SCTP },
        { "{\"parallel\":129}", I3_TOO_MANY_STREAMS },
        { "{\"parallel\":1e99999}", I3_TOO_MANY_STREAMS },
        { "{\"len\":99999999999}", I3_BLOCK_TOO_LARGE },
        { "{\"udp\":true,\"len\":65508}", I3_BAD_UDP_SIZE },
        { "{\"udp\":true,\"len\":11}", I3_BAD_UDP_SIZE },
        { "{\"udp\":true,\"udp_counters_64bit\":1,\"len\":15}", I3_BAD_UDP_SIZE },
        { "{\"time\":-1}", I3_BAD_PARAMETERS },
        { "{\"time\":\"10\"}", I3_BAD_PARAMETERS },
        { "{\"time\":true}", I3_BAD_PARAMETERS },
        { "{\"udp\":\"yes\"}", I3_BAD_PARAMETERS },
        { "{\"udp\":[true]}", I3_BAD_PARAMETERS },
    };
    struct i3_spec s;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(row); i++)
        check(parse(row[i].text, &s) == row[i].error, "%s", row[i].text);
}

static void no_json(void **state)
{
    static const char *const text[] = {
        "",
        " ",
        "{",
        "}",
        "[]",
        "1",
        "\"a\"",
        "null",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":1}}",
        "{\"a\":1}x",
        "{a:1}",
        "{'a':1}",
        "{\"a\":01}",
        "{\"a\":1.}",
        "{\"a\":.5}",
        "{\"a\":1e}",
        "{\"a\":1e+}",
        "{\"a\":-}",
        "{\"a\":+1}",
        "{\"a\":tru}",
        "{\"a\":truee}",
        "{\"a\":nul",
        "{\"a\":\"b}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12g4\"}",
        "{\"a\":\"\\u123",
        "{\"a\":\"\\",
        "{\"a\":\"\n\"}",
        "{\"a\":[1,]}",
        "{\"a\":[1}",
        "{\"a\":{1:2}}",
        "{\"a\":{\"b\":1]}",
        "{\"a\":[[[[[[[[[[1]]]]]]]]]]}",
    };
    struct i3_spec s;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(text); i++)
        check(parse(text[i], &s) == I3_BAD_PARAMETERS, "%s", text[i]);
    assert_int_equal(parse_bytes("{\"a\":1\0}", 8, &s), I3_BAD_PARAMETERS);
    assert_int_equal(parse_bytes("{}\0", 3, &s), I3_BAD_PARAMETERS);
    for (size_t n = 0; n < sizeof UDP_TEXT - 1; n++)
        check(parse_bytes(UDP_TEXT, n, &s) == I3_BAD_PARAMETERS, "the first %zu bytes", n);
}

/* Real ones with bytes changed, and bytes of chance: whatever comes out is within bounds. */
static void random_bytes(void **state)
{
    static const char some[] = "{}[]\":,0123456789.eE+-\\u truefalsn\t";
    uint64_t seed = chance_seed(0x3201);
    char text[sizeof UDP_TEXT];
    (void)state;
    for (unsigned round = 0; round < 200000; round++) {
        struct i3_spec s = { 0 };
        size_t n = sizeof UDP_TEXT - 1;
        memcpy(text, UDP_TEXT, n);
        if (round % 4 == 0)
            for (size_t i = 0; i < n; i++)
                text[i] = some[chance_below(&seed, sizeof some)];
        else
            for (uint32_t i = 0; i <= chance_below(&seed, 4); i++)
                text[chance_below(&seed, (uint32_t)n)] =
                    round % 2 ? (char)chance(&seed) : some[chance_below(&seed, sizeof some)];
        if (parse_bytes(text, round % 3 ? n : chance_below(&seed, (uint32_t)n + 1), &s) != I3_OK)
            continue;
        assert_true(s.parallel >= 1 && s.parallel <= I3_STREAMS_MAX && s.len >= 1 && s.len <= 1u << 30);
        assert_true(s.time <= I3_TIME_MAX && s.omit <= I3_TIME_MAX && s.amount <= UINT64_C(1) << 62);
        assert_true(!s.udp || (s.len >= 12 && s.len <= I3_UDP_MAX));
    }
}

static void ids(void **state)
{
    (void)state;
    assert_int_equal(i3_id(0), 1);
    assert_int_equal(i3_id(1), 3);
    assert_int_equal(i3_id(2), 4);
    assert_int_equal(i3_id(255), 257);
}

static char *results(const struct i3_spec *spec, const struct i3_outcome *outcome, unsigned count)
{
    struct i3_load load = { .busy = 12345, .spinning = 7, .cores = 2 };
    size_t size = i3_results_size(count);
    char *text = malloc(size + 1);
    assert_non_null(text);
    size_t n = i3_results(text, size, spec, &load, outcome, count);
    check(n <= size, "%zu bytes of %zu", n, size);
    text[n] = '\0';
    struct i3_spec ignored;
    check(parse(text, &ignored) == I3_OK, "no JSON: %s", text); /* it knows none of these names */
    return text;
}

static void results_of_tcp(void **state)
{
    struct i3_spec spec = { .parallel = 2 };
    struct i3_outcome outcome[2] = { { .bytes = 5000000000, .time_us = 1000001 }, { .bytes = 7, .time_us = 12 } };
    (void)state;
    char *text = results(&spec, outcome, 2);
    assert_string_equal(text,
                        "{\"cpu_util_total\":123.450000,\"cpu_util_user\":0,\"cpu_util_system\":123.450000,"
                        "\"sender_has_retransmits\":-1,\"congestion_used\":\"reno\",\"streams\":["
                        "{\"id\":1,\"bytes\":5000000000,\"retransmits\":-1,\"jitter\":0.000000000,\"errors\":0,"
                        "\"packets\":0,\"start_time\":0,\"end_time\":1.000001},"
                        "{\"id\":3,\"bytes\":7,\"retransmits\":-1,\"jitter\":0.000000000,\"errors\":0,\"packets\":0,"
                        "\"start_time\":0,\"end_time\":0.000012}]}");
    free(text);
}

static void results_of_udp(void **state)
{
    struct i3_spec spec = { .udp = true, .reverse = true, .parallel = 1, .want_output = true };
    struct i3_outcome outcome = { .bytes = 1000,
                                  .packets = 10,
                                  .errors = 4,
                                  .omitted_packets = 5,
                                  .omitted_errors = 1,
                                  .jitter_ns = 12345,
                                  .time_us = 2000000 };
    (void)state;
    char *text = results(&spec, &outcome, 1);
    assert_non_null(strstr(text,
                           "\"sender_has_retransmits\":0,\"streams\":[{\"id\":1,\"bytes\":1000,\"retransmits\":-1,"
                           "\"jitter\":0.000012345,\"errors\":4,\"omitted_errors\":1,\"packets\":10,"
                           "\"omitted_packets\":5,\"start_time\":0,\"end_time\":2.000000}]"));
    assert_non_null(strstr(text, "0.00-2.00 sec  1000 bytes  0.004 Mbits/sec  0.012 ms  3/5  receiver\\n"));
    free(text);
}

/* The largest there can be fits, and with less room nothing is written behind it. */
static void results_of_all(void **state)
{
    struct i3_spec spec = { .udp = true, .bidirectional = true, .parallel = I3_STREAMS_MAX, .want_output = true };
    struct i3_load load = { .busy = UINT32_MAX, .spinning = UINT32_MAX, .cores = UINT32_MAX };
    struct i3_outcome outcome[2 * I3_STREAMS_MAX];
    (void)state;
    for (unsigned i = 0; i < COUNT_OF(outcome); i++)
        outcome[i] = (struct i3_outcome){ UINT64_MAX, UINT64_MAX, UINT64_MAX, 0, 0, UINT64_MAX, UINT64_MAX, i >= 128 };
    free(results(&spec, outcome, COUNT_OF(outcome)));
    for (size_t size = 0; size < 3000; size += 7) {
        char *text = malloc(size + 1);
        assert_non_null(text);
        assert_true(i3_results(size > 0 ? text : NULL, size, &spec, &load, outcome, 8) > 3000);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_wishes),    cmocka_unit_test(single_wishes),  cmocka_unit_test(refused_wishes),
        cmocka_unit_test(no_json),        cmocka_unit_test(random_bytes),   cmocka_unit_test(ids),
        cmocka_unit_test(results_of_tcp), cmocka_unit_test(results_of_udp), cmocka_unit_test(results_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

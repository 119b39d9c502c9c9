/* netperf's control records: real ones of netperf 2.7.0 and its server (tests/unit/data/netperf), and all that a client
 * may send instead. Each file has lines "client HEX" and "server HEX": a request, the answer, the results. */
#include "tests/unit/unit.h"
#include "apps/netserver/record.h"

#define DATA "tests/unit/data/netperf/"

static const struct np_server server = { .tcp_receive_buffer = 262144,
                                         .tcp_send_buffer = 131072,
                                         .udp_receive_buffer = 65536,
                                         .udp_send_buffer = 32768,
                                         .cores = 3,
                                         .ipv6 = true };

struct exchange {
    uint8_t request[NP_RECORD], answer[NP_RECORD], results[NP_RECORD];
    bool has_results;
};

static bool next_record(FILE *file, uint8_t record[NP_RECORD])
{
    char who[8];
    unsigned byte;
    if (fscanf(file, "%7s", who) != 1)
        return false;
    for (unsigned i = 0; i < NP_RECORD; i++) {
        assert_int_equal(fscanf(file, "%2x", &byte), 1);
        record[i] = (uint8_t)byte;
    }
    return true;
}

static struct exchange load(const char *name)
{
    struct exchange e;
    char path[128];
    snprintf(path, sizeof path, DATA "%s.txt", name);
    FILE *file = fopen(path, "r");
    check(file != NULL, "%s is not there (tests run in the project's root)", path);
    assert_true(next_record(file, e.request) && next_record(file, e.answer));
    e.has_results = next_record(file, e.results);
    fclose(file);
    return e;
}

static uint32_t word(const uint8_t *r, unsigned at)
{
    return (uint32_t)r[at] << 24 | (uint32_t)r[at + 1] << 16 | (uint32_t)r[at + 2] << 8 | r[at + 3];
}

static void set(uint8_t *r, unsigned at, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        r[at + i] = (uint8_t)(value >> (24 - 8 * i));
}

static float number(const uint8_t *r, unsigned at)
{
    uint32_t bits = word(r, at);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static struct np_request parse(const char *name)
{
    struct exchange e = load(name);
    struct np_request q;
    np_parse(e.request, &server, &q);
    return q;
}

static void test_omni_requests(void **state)
{
    (void)state;
    struct np_spec s = parse("tcp_rr").spec;
    assert_int_equal(s.type, NP_OMNI);
    assert_true(s.rx && s.tx && s.nodelay && !s.udp && !s.conn && !s.cpu);
    assert_int_equal(s.request_size, 10);
    assert_int_equal(s.response_size, 20);
    assert_int_equal(s.test_length, -3);
    assert_int_equal(s.port, 0);
    s = parse("tcp_crr").spec;
    assert_true(s.rx && s.tx && s.conn && !s.udp);
    s = parse("udp_rr").spec;
    assert_true(s.rx && s.tx && s.udp && !s.conn && !s.nodelay);
    assert_int_equal(s.test_length, -5);
    assert_int_equal(s.peer_port, 0x8134);
    s = parse("tcp_stream").spec;
    assert_true(s.rx && !s.tx && s.cpu && !s.udp);
    assert_int_equal(s.test_length, 1);
    assert_int_equal(s.receive_size, server.tcp_receive_buffer);
}

static void test_classic_requests(void **state)
{
    (void)state;
    struct np_spec s = parse("tcp_cc").spec;
    assert_int_equal(s.type, NP_TCP_CC);
    assert_true(s.conn && !s.rx && !s.tx);
    assert_int_equal(s.test_length, -2);
    s = parse("sendfile").spec;
    assert_int_equal(s.type, NP_TCP_STREAM);
    assert_true(s.rx && !s.tx && !s.conn && !s.udp);
    assert_int_equal(s.test_length, (int32_t)word(load("sendfile").request, 40));
    struct np_request q = parse("rem_cpu");
    assert_int_equal(q.kind, NP_IS_ANSWERED);
    assert_int_equal(q.type, NP_CPU_CALIBRATE);
}

/* Our answer to a real request has what the real server's has, but for what is our own: buffers, receive size and
 * number of receive buffers where the client leaves them to us, the port. */
static void test_answers_like_the_real_ones(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        unsigned port_at, own[4];
    } row[] = { { "tcp_rr", 52, { 8, 20 } }, { "tcp_crr", 52, { 8, 20 } },
                { "udp_rr", 52, { 8, 20 } }, { "tcp_stream", 52, { 8, 20, 12, 16 } },
                { "tcp_cc", 28, { 8, 24 } }, { "sendfile", 32, { 8, 28, 12 } } };
    for (unsigned i = 0; i < COUNT_OF(row); i++) {
        struct exchange e = load(row[i].name);
        struct np_request q;
        uint8_t answer[NP_RECORD];
        np_parse(e.request, &server, &q);
        assert_int_equal(q.kind, NP_IS_TEST);
        np_answer(&q.spec, &server, 4711, answer);
        assert_int_equal(word(answer, row[i].port_at), 4711);
        for (unsigned at = 0; at < NP_RECORD; at += 4) {
            bool own = at == row[i].port_at;
            for (unsigned k = 0; k < COUNT_OF(row[i].own); k++)
                own = own || (row[i].own[k] != 0 && at == row[i].own[k]);
            /* the test's length is not read; the real server leaves it out of omni answers */
            if (!own && !(q.type == NP_OMNI && at == 40) && !(q.type != NP_OMNI && (at == 20 || at == 24)))
                check(word(answer, at) == word(e.answer, at), "%s: word at %u is %08x, the real one %08x", row[i].name,
                      at, word(answer, at), word(e.answer, at));
        }
        assert_int_equal(word(answer, 8), q.spec.udp ? server.udp_receive_buffer : server.tcp_receive_buffer);
    }
}

/* Results with the real ones' counts have the real ones' words where clients look. */
static void test_results_like_the_real_ones(void **state)
{
    (void)state;
    struct exchange e = load("tcp_rr");
    struct np_request q;
    uint8_t r[NP_RECORD];
    np_parse(e.request, &server, &q);
    struct np_outcome o = { .rx_bytes = 30,
                            .tx_bytes = 60,
                            .rx_calls = 3,
                            .tx_calls = 3,
                            .transactions = 3,
                            .elapsed = number(e.results, 48) };
    np_results(&q.spec, &server, &o, r);
    assert_int_equal(word(r, 0), NP_OMNI_RESULTS);
    for (unsigned at = 4; at < 52; at += 4)
        if (at != 20 && at != 36)
            check(word(r, at) == word(e.results, at), "at %u: %08x, the real one %08x", at, word(r, at),
                  word(e.results, at));
    e = load("tcp_cc");
    np_parse(e.request, &server, &q);
    o = (struct np_outcome){ .transactions = 2, .elapsed = number(e.results, 20) };
    np_results(&q.spec, &server, &o, r);
    assert_int_equal(word(r, 0), 302);
    assert_int_equal(word(r, 16), word(e.results, 16));
    assert_int_equal(word(r, 20), word(e.results, 20));
    e = load("sendfile");
    np_parse(e.request, &server, &q);
    o = (struct np_outcome){ .rx_bytes = (uint64_t)1 << 16, .rx_calls = 5, .elapsed = 0.5f };
    np_results(&q.spec, &server, &o, r);
    assert_int_equal(word(r, 0), 12);
    assert_int_equal(word(r, 8), 0x40f00000); /* 65536.0 as binary64, as in the real record */
    assert_int_equal(word(r, 12), 0);
    assert_int_equal(word(r, 8), word(e.results, 8));
    assert_int_equal(word(r, 20), 0x3f000000);
}

static void test_large_counts_and_load(void **state)
{
    (void)state;
    struct np_request q = parse("tcp_stream");
    uint8_t r[NP_RECORD];
    struct np_outcome o = {
        .rx_bytes = 0x123456789abcull, .cpu = true, .busy = 37.5f, .spinning = 2, .peak_core = 2, .peak_busy = 50
    };
    np_results(&q.spec, &server, &o, r);
    assert_int_equal(word(r, 8), 0x1234);
    assert_int_equal(word(r, 12), 0x56789abc);
    assert_true(number(r, 52) == 37.5f && number(r, 60) == 37.5f && number(r, 64) == 2 && number(r, 92) == 50);
    assert_int_equal(word(r, 84), 3);
    assert_int_equal(word(r, 88), 2);
    o.cpu = false;
    np_results(&q.spec, &server, &o, r);
    assert_true(number(r, 52) == -1);
}

static void test_ready_answers(void **state)
{
    (void)state;
    uint8_t r[NP_RECORD];
    struct exchange e = load("rem_cpu");
    np_answer_simple(NP_CPU_CALIBRATE, &server, r);
    assert_memory_equal(r, e.answer, 12);
    assert_int_equal(word(r, 12), 3);
    np_answer_simple(NP_SYSINFO, &server, r);
    assert_int_equal(word(r, 0), 601);
    assert_int_equal(r[8], ',');
    assert_non_null(memchr(r + 8, 0, NP_RECORD - 8));
    np_answer_simple(NP_DEBUG_OFF, &server, r);
    assert_int_equal(word(r, 0), 3);
    np_error(NP_OMNI, 93, r);
    assert_int_equal(word(r, 0), 98);
    assert_int_equal(word(r, 4), 93);
    np_error(4242, NP_UNKNOWN, r);
    assert_int_equal(word(r, 0), 4242);
}

static void expect_wrong(unsigned at, uint32_t value, uint32_t error)
{
    uint8_t record[NP_RECORD];
    struct np_request q;
    memcpy(record, load("tcp_rr").request, NP_RECORD);
    set(record, at, value);
    np_parse(record, &server, &q);
    check(q.kind == NP_IS_WRONG && q.error == error, "%u at %u: error %u, not %u", value, at, q.error, error);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    expect_wrong(0, 4, NP_UNKNOWN);
    expect_wrong(0, 0x61000000, NP_UNKNOWN); /* 97 in the other byte order */
    expect_wrong(100, 132, NP_EPROTONOSUPPORT);
    expect_wrong(96, 3, NP_EPROTONOSUPPORT);
    expect_wrong(96, 2, NP_EPROTONOSUPPORT); /* datagrams by TCP */
    expect_wrong(92, 7, NP_EAFNOSUPPORT);
    expect_wrong(104, 1, NP_EINVAL);
    expect_wrong(104, 0x06000000, NP_EINVAL);
    expect_wrong(88, 65536, NP_EINVAL);
    expect_wrong(108, 65536, NP_EINVAL);
    struct np_server without = server;
    struct np_request q;
    uint8_t record[NP_RECORD];
    memcpy(record, load("tcp_rr").request, NP_RECORD);
    set(record, 92, 6);
    np_parse(record, &server, &q);
    assert_int_equal(q.kind, NP_IS_TEST);
    without.ipv6 = false;
    np_parse(record, &without, &q);
    assert_int_equal(q.error, NP_EAFNOSUPPORT);
}

static void test_udp_is_checked(void **state)
{
    (void)state;
    uint8_t record[NP_RECORD];
    struct np_request q;
    memcpy(record, load("udp_rr").request, NP_RECORD);
    set(record, 52, 65507);
    np_parse(record, &server, &q);
    assert_int_equal(q.kind, NP_IS_TEST);
    set(record, 52, 65508);
    np_parse(record, &server, &q);
    assert_int_equal(q.error, NP_EMSGSIZE);
    set(record, 104, 2); /* sends only, to nobody */
    set(record, 108, 0);
    np_parse(record, &server, &q);
    assert_int_equal(q.error, NP_EINVAL);
    set(record, 104, 0);
    np_parse(record, &server, &q);
    assert_int_equal(q.error, NP_EINVAL);
}

static void test_sizes_have_defaults(void **state)
{
    (void)state;
    static const uint32_t none[] = { 0, 0xffffffff, 0x80000000 };
    uint8_t record[NP_RECORD];
    struct np_request q;
    for (unsigned i = 0; i < COUNT_OF(none); i++) {
        memcpy(record, load("tcp_rr").request, NP_RECORD);
        for (unsigned at = 12; at <= 52; at += 4)
            set(record, at, none[i]);
        np_parse(record, &server, &q);
        assert_int_equal(q.kind, NP_IS_TEST);
        assert_true(q.spec.request_size == 1 && q.spec.response_size == 1);
        assert_true(q.spec.receive_size == 262144 && q.spec.send_size > 0);
    }
}

static void test_count_reached(void **state)
{
    (void)state;
    struct np_spec s = { .test_length = -3 };
    assert_false(np_count_reached(&s, 2));
    assert_true(np_count_reached(&s, 3));
    s.test_length = INT32_MIN;
    assert_false(np_count_reached(&s, INT32_MAX));
    assert_true(np_count_reached(&s, 0x80000000ull));
    s.test_length = 3;
    assert_false(np_count_reached(&s, UINT64_MAX));
}

/* Whatever comes, a test that is accepted can be run: sizes that nobody divides by 0 with, a direction, a port. */
static void check_sane(const uint8_t record[NP_RECORD])
{
    struct np_request q;
    uint8_t out[NP_RECORD];
    np_parse(record, &server, &q);
    if (q.kind == NP_IS_WRONG)
        np_error(q.type, q.error, out);
    if (q.kind == NP_IS_ANSWERED)
        np_answer_simple(q.type, &server, out);
    if (q.kind != NP_IS_TEST)
        return;
    const struct np_spec *s = &q.spec;
    assert_true(s->request_size > 0 && s->response_size > 0 && s->receive_size > 0 && s->send_size > 0);
    assert_true(s->rx || s->tx || s->conn);
    assert_true(!s->udp || !s->conn);
    assert_true(!s->udp || !s->tx || s->rx || (s->peer_port != 0 && s->send_size <= 65507));
    assert_true(!s->udp || !s->tx || !s->rx || s->response_size <= 65507);
    struct np_outcome o = { .rx_bytes = UINT64_MAX, .elapsed = 1 };
    np_answer(s, &server, 1, out);
    np_results(s, &server, &o, out);
}

static void test_random_bytes(void **state)
{
    (void)state;
    static const uint32_t types[] = { 1, 2, 5, 6, 10, 13, 16, 19, 34, 94, 97, 300, 600 };
    static const char *const names[] = { "tcp_rr", "udp_rr", "tcp_crr", "tcp_stream", "tcp_cc", "sendfile" };
    uint64_t seed = chance_seed(1);
    for (unsigned n = 0; n < 200000; n++) {
        static uint8_t base[COUNT_OF(names)][NP_RECORD];
        uint8_t record[NP_RECORD];
        for (unsigned i = 0; n == 0 && i < COUNT_OF(names); i++)
            memcpy(base[i], load(names[i]).request, NP_RECORD);
        if (n % 2 == 0) { /* a real one with some words changed */
            memcpy(record, base[chance_below(&seed, COUNT_OF(names))], NP_RECORD);
            for (unsigned k = chance_below(&seed, 6); k > 0; k--)
                set(record, 4 * chance_below(&seed, 50), (uint32_t)chance(&seed) >> chance_below(&seed, 32));
        } else {
            for (unsigned i = 0; i < NP_RECORD; i++)
                record[i] = (uint8_t)chance(&seed);
            set(record, 0, types[chance_below(&seed, COUNT_OF(types))]);
        }
        check_sane(record);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_omni_requests),
        cmocka_unit_test(test_classic_requests),
        cmocka_unit_test(test_answers_like_the_real_ones),
        cmocka_unit_test(test_results_like_the_real_ones),
        cmocka_unit_test(test_large_counts_and_load),
        cmocka_unit_test(test_ready_answers),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_udp_is_checked),
        cmocka_unit_test(test_sizes_have_defaults),
        cmocka_unit_test(test_count_reached),
        cmocka_unit_test(test_random_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

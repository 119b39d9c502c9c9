/* What clients write and users type, parsed: iperf3's wishes, netperf's records, Internet addresses. What is accepted
 * is in range, what is answered fits; addresses are those that the C library takes for some, and no others. */
#include "tests/fuzz/fuzz.h"
#include "apps/iperf3/text.h"
#include "apps/netserver/record.h"
#include "kernel/ipaddr.h"

#include <arpa/inet.h>

static void wishes(const char *text, size_t n)
{
    struct i3_spec spec;
    enum i3_error error = i3_parse(text, n, &spec);
    if (error != I3_OK)
        return;
    must(spec.parallel >= 1 && spec.parallel <= I3_STREAMS_MAX && spec.len >= 1 && spec.time <= I3_TIME_MAX &&
         spec.omit <= I3_TIME_MAX && (!spec.udp || spec.len <= I3_UDP_MAX));
    static struct i3_outcome outcome[2 * I3_STREAMS_MAX];
    unsigned count = i3_streams(&spec);
    for (unsigned i = 0; i < count; i++)
        outcome[i] = (struct i3_outcome){ UINT64_MAX, UINT64_MAX, UINT64_MAX,     UINT64_MAX,
                                          UINT64_MAX, UINT64_MAX, UINT64_MAX - i, i & 1 };
    struct i3_load load = { UINT32_MAX, UINT32_MAX, 64 };
    size_t room = i3_results_size(count);
    char *to = malloc(room);
    must(to != NULL && i3_results(to, room, &spec, &load, outcome, count) <= room);
    free(to);
}

/* The same of words and marks that the bytes choose. */
static void composed(const uint8_t *bytes, size_t n)
{
    static const char *const word[] = { "{",
                                        "}",
                                        "[",
                                        "]",
                                        ":",
                                        ",",
                                        "\"",
                                        "\"parallel\":",
                                        "\"len\":",
                                        "\"udp\":",
                                        "\"tcp\":",
                                        "1",
                                        "128",
                                        "129",
                                        "65507",
                                        "65508",
                                        "-1",
                                        "1e9",
                                        "9e99",
                                        "0.5",
                                        "true",
                                        "false",
                                        "null",
                                        "\"x\":",
                                        "\"\"",
                                        "\\",
                                        "\\u00e4",
                                        " ",
                                        "\"time\":",
                                        "0",
                                        "\"reverse\":",
                                        "\"bidirectional\":",
                                        "\"num\":",
                                        "\"blockcount\":",
                                        "\"omit\":",
                                        "\"bandwidth\":",
                                        "\"TOS\":",
                                        "\"udp_counters_64bit\":",
                                        "\"sctp\":",
                                        "86401" };
    static char text[16384];
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        const char *w = word[bytes[i] % (sizeof word / sizeof *word)];
        if (length + strlen(w) > sizeof text)
            break;
        memcpy(text + length, w, strlen(w));
        length += strlen(w);
    }
    char *exact = malloc(length > 0 ? length : 1);
    must(exact != NULL);
    memcpy(exact, text, length);
    wishes(exact, length);
    free(exact);
}

static void record(const uint8_t *bytes, size_t n)
{
    static const struct np_server server = { 262144, 131072, 65536, 32768, 3, true };
    uint8_t *request = calloc(1, NP_RECORD), *answer = malloc(NP_RECORD);
    struct np_request q;
    must(request != NULL && answer != NULL);
    memcpy(request, bytes, n < NP_RECORD ? n : NP_RECORD);
    np_parse(request, &server, &q);
    must(q.kind <= NP_IS_WRONG && (q.kind == NP_IS_WRONG) == (q.error != 0));
    if (q.kind == NP_IS_TEST) {
        const struct np_spec *s = &q.spec;
        struct np_outcome outcome = { UINT64_MAX, 1, UINT64_MAX, 0, 5, 0, true, 101, 7, 63, 99 };
        must(s->request_size >= 1 && s->response_size >= 1 && s->receive_size >= 1 && s->send_size >= 1);
        must(!s->udp || !s->tx || (s->rx ? s->response_size : s->send_size) <= 65507);
        must(!s->udp || (!s->conn && (s->rx || s->tx) && (s->rx || s->peer_port != 0)));
        np_answer(s, &server, 20000, answer);
        np_results(s, &server, &outcome, answer);
        np_count_reached(s, UINT64_MAX);
    } else if (q.kind == NP_IS_ANSWERED) {
        np_answer_simple(q.type, &server, answer);
    } else if (q.kind == NP_IS_WRONG) {
        np_error(q.type, q.error, answer);
    }
    free(request);
    free(answer);
}

/* `text` is not terminated: inet_pton() gets a copy that is. */
static void address(const char *text, size_t n)
{
    uint8_t own[16], theirs[16];
    char copy[64];
    if (n >= sizeof copy || memchr(text, '\0', n) != NULL)
        return;
    memcpy(copy, text, n);
    copy[n] = '\0';
    bool four = ip4_parse(text, n, own);
    must(four == (inet_pton(AF_INET, copy, theirs) == 1) && (!four || memcmp(own, theirs, 4) == 0));
    if (four) {
        ip4_host_problem(own, (unsigned)(n * 5 % 33));
        ip4_gateway_problem(own, theirs);
    }
    bool six = ip6_parse(text, n, own);
    must(six == (inet_pton(AF_INET6, copy, theirs) == 1) && (!six || memcmp(own, theirs, 16) == 0));
    if (six) {
        ip6_host_problem(own);
        ip6_gateway_problem(own, theirs);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    uint8_t *bytes = malloc(size); /* of no byte more: a step beyond is seen */
    must(bytes != NULL);
    memcpy(bytes, data + 1, size - 1);
    char *text = realloc(bytes, size - 1 > 0 ? size - 1 : 1);
    must(text != NULL);
    switch (data[0] % 4) {
    case 0:
        wishes(text, size - 1);
        break;
    case 1:
        record((const uint8_t *)text, size - 1);
        break;
    case 2:
        composed((const uint8_t *)text, size - 1);
        break;
    default:
        address(text, size - 1);
    }
    free(text);
    return 0;
}

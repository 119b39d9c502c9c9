/* netperf's control records (656 bytes each way): requests parsed and checked, answers and results built. Numbers are
 * big-endian 32-bit words, floating point is IEEE binary32 in a word (binary64 in two), texts are raw bytes; what is
 * unused is sent as zero. Compiles on the host; knows no lwIP. */
#ifndef RINGSIDE_NETSERVER_RECORD_H
#define RINGSIDE_NETSERVER_RECORD_H
#include <stdbool.h>
#include <stdint.h>

#define NP_RECORD     656 /* netperf 2.6.0 and later */
#define NP_RECORD_OLD 256 /* 2.5.0 and older, which are not served */

/* Request types. A classic test's answer is its type + 1, its results are type + 2. */
enum np_type {
    NP_DEBUG_ON = 1,
    NP_DEBUG_OFF = 2,
    NP_DEBUG_ANSWER = 3,
    NP_CPU_CALIBRATE = 5,
    NP_PASSPHRASE = 6,
    NP_TCP_STREAM = 10,
    NP_TCP_RR = 13,
    NP_UDP_STREAM = 16,
    NP_UDP_RR = 19,
    NP_TCP_CRR = 34,
    NP_TCP_MAERTS = 94,
    NP_OMNI = 97,
    NP_OMNI_ANSWER = 98,
    NP_OMNI_RESULTS = 99,
    NP_TCP_CC = 300,
    NP_SYSINFO = 600,
    NP_SYSINFO_ANSWER = 601,
};

/* Linux's numbers of what can be wrong: clients print them as text of their own system. */
enum np_errno {
    NP_ENOMEM = 12,
    NP_EINVAL = 22,
    NP_EMSGSIZE = 90,
    NP_EPROTONOSUPPORT = 93,
    NP_EAFNOSUPPORT = 97,
    NP_EADDRINUSE = 98,
    NP_ENOBUFS = 105,
    NP_UNKNOWN = 998, /* netperf's own: unknown request */
};

/* What a record asks for. */
enum np_kind {
    NP_IS_TEST,       /* a test; see the specification */
    NP_IS_ANSWERED,   /* something that np_answer_simple() answers at once */
    NP_IS_UNANSWERED, /* nothing to answer: a pass phrase */
    NP_IS_WRONG,      /* np_error() with error */
};

/* A test, as the server sees it: rx and tx are its own directions. */
struct np_spec {
    uint32_t type; /* NP_OMNI or a classic test */
    bool udp;
    bool rx, tx;
    bool conn;                    /* a data connection per transaction */
    bool nodelay, cpu, keepalive; /* wishes */
    uint32_t request_size;        /* rx and tx: bytes of a request, at least 1 */
    uint32_t response_size;       /* rx and tx: bytes of a response, at least 1 */
    uint32_t receive_size;        /* streams: bytes that count as one receive, at least 1 */
    uint32_t send_size;           /* streams: bytes of a message sent, at least 1 */
    uint32_t message_size; /* classic UDP_STREAM: a datagram of another length ends the test; 0: only an empty one */
    int32_t test_length;   /* > 0 seconds, 0 without limit, < 0 so many transactions or bytes */
    uint16_t port;         /* the data port wished for, 0: any */
    uint16_t peer_port;    /* of the client's data socket (UDP that only sends) */
    /* Echoed, without effect here. */
    uint32_t asked_receive, asked_send; /* sizes as asked for, answered in the direction that the test does not use */
    uint32_t receive_width, send_width; /* number of buffers the client wants used in turn */
    uint32_t priority, type_of_service; /* -1: none asked for */
    uint32_t receive_avoid, send_avoid; /* copy avoidance */
};

struct np_request {
    uint32_t type;
    enum np_kind kind;
    uint32_t error;      /* NP_IS_WRONG: enum np_errno */
    struct np_spec spec; /* NP_IS_TEST */
};

/* What the server has to say of itself. */
struct np_server {
    uint32_t tcp_receive_buffer, tcp_send_buffer; /* bytes */
    uint32_t udp_receive_buffer, udp_send_buffer;
    uint32_t cores;
    bool ipv6;
};

/* How a test went. */
struct np_outcome {
    uint64_t rx_bytes, tx_bytes, rx_calls, tx_calls, transactions;
    float elapsed; /* seconds */
    bool cpu;      /* it was measured: percent of all cores, averaged */
    float busy, spinning;
    uint32_t peak_core;
    float peak_busy;
};

/* Reads a record; sizes, ports and addresses families are checked and defaults put in their place. */
void np_parse(const uint8_t record[NP_RECORD], const struct np_server *server, struct np_request *request);

/* The answer to a test: its data socket listens on `port`. */
void np_answer(const struct np_spec *spec, const struct np_server *server, uint16_t port, uint8_t record[NP_RECORD]);

/* The results of a test. */
void np_results(const struct np_spec *spec, const struct np_server *server, const struct np_outcome *outcome,
                uint8_t record[NP_RECORD]);

/* The answer to a request of kind NP_IS_ANSWERED. */
void np_answer_simple(uint32_t type, const struct np_server *server, uint8_t record[NP_RECORD]);

/* An answer of the test's or request's type that carries an error and nothing else. */
void np_error(uint32_t type, uint32_t error, uint8_t record[NP_RECORD]);

/* True when `done` transactions (or bytes, for a stream) are what a test by count asked for. */
static inline bool np_count_reached(const struct np_spec *spec, uint64_t done)
{
    return spec->test_length < 0 && done >= (uint64_t) - (int64_t)spec->test_length;
}
#endif

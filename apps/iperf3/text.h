/* The texts of iperf3's control protocol: the client's wishes as JSON, the results as JSON. Knows no network.
 *
 * The protocol has no specification but the program; the names are those that iperf3 3.1 to 3.18 send and read. */
#ifndef RINGSIDE_IPERF3_TEXT_H
#define RINGSIDE_IPERF3_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define I3_STREAMS_MAX 128u   /* of one direction */
#define I3_TIME_MAX    86400u /* seconds, as the client has it */
#define I3_UDP_MAX     65507u /* bytes of a datagram */

/* iperf3's numbers for what went wrong: the client has a sentence for each. */
enum i3_error {
    I3_OK = 0,
    I3_TOO_MANY_STREAMS = 6,
    I3_BLOCK_TOO_LARGE = 7,
    I3_NO_SCTP = 18,
    I3_BAD_UDP_SIZE = 20,
    I3_NEW_TEST = 100,
    I3_BAD_PARAMETERS = 114,
    I3_NO_RESULTS = 116,
    I3_CREATE_STREAM = 200,
};

/* What a client wants. */
struct i3_spec {
    bool udp, reverse, bidirectional;
    bool counters64;     /* UDP: sequence numbers of 64 bits */
    bool nodelay;        /* TCP: no Nagle */
    bool want_output;    /* the server's own words, too */
    uint8_t tos;         /* of what the server sends */
    uint32_t parallel;   /* streams of each direction */
    uint32_t len;        /* bytes of a block or datagram */
    uint32_t time, omit; /* seconds; time 0: no limit */
    uint64_t amount;     /* bytes in all after which the client ends; 0: none */
    uint64_t rate;       /* bits per second and stream; 0: as fast as it goes */
};

/* Streams of both directions. */
static inline uint32_t i3_streams(const struct i3_spec *spec)
{
    return spec->bidirectional ? 2 * spec->parallel : spec->parallel;
}

/* Whether the server is to receive, to send. */
static inline bool i3_receives(const struct i3_spec *spec)
{
    return spec->bidirectional || !spec->reverse;
}

static inline bool i3_sends(const struct i3_spec *spec)
{
    return spec->bidirectional || spec->reverse;
}

/* The number by which both sides call a stream: 1, 3, 4, 5, ... */
static inline unsigned i3_id(unsigned index)
{
    return index == 0 ? 1 : index + 2;
}

/* Reads `n` bytes of JSON. Names that are not known are skipped, those that are missing have iperf3's defaults. */
enum i3_error i3_parse(const char *text, size_t n, struct i3_spec *spec);

/* What became of a stream. */
struct i3_outcome {
    uint64_t bytes;
    uint64_t packets, errors, omitted_packets, omitted_errors; /* UDP */
    uint64_t jitter_ns;
    uint64_t time_us;
    bool sender; /* the server sent */
};

/* Of the machine: hundredths of percent of one core, the sum over all cores. */
struct i3_load {
    uint32_t busy, spinning;
    unsigned cores;
};

/* Writes the results, without terminating zero. Returns how many bytes that takes; more than `size`: it is cut off. */
size_t i3_results(char *to, size_t size, const struct i3_spec *spec, const struct i3_load *load,
                  const struct i3_outcome *outcome, unsigned count);

/* Enough for the results of so many streams. */
static inline size_t i3_results_size(unsigned count)
{
    return 1024 + (size_t)count * 512;
}
#endif

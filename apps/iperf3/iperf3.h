/* iperf3's server: its parts and what they tell each other.
 *
 * All connections come to one port. Which core gets one its flow decides; the first 37 bytes, a cookie, say what it is:
 * a cookie that no test of this moment has opens a control connection and with it a test, which is run on this core
 * (test.c); the others are streams of the test whose cookie it is (leg.c). Before the client is told to open its
 * streams every core has a leg of the test, so that each knows the cookie. UDP streams have no cookie, only the
 * client's address: of the tests of one address one at a time opens its streams, and core 0 says whose turn it is
 * (turns.c).
 *
 *     test   -> core 0 CLAIM    may I open UDP streams?
 *     core 0 -> test   GRANT    yes
 *     test   -> core 0 DISCLAIM they are open, or will not be
 *     test   -> leg    OPEN     know this test
 *     leg    -> test   OPENED   done, or no memory
 *     leg    -> test   STREAM   one is there, and when it came
 *     test   -> leg    ROLE     its number, and whether to send
 *     test   -> leg    BEGIN    all are there: send; the clock runs
 *     test   -> leg    STOP     the client says that it is over: close the streams
 *     leg    -> test   FINAL    the counts are what they are
 *     test   -> leg    RELEASE  the client is gone; no answer
 *
 * What a test is and what became of it lies in one record in the memory of the control connection's core. Other cores
 * read its first part; each writes its own line of counts and, when it stops, the outcome of its streams. It lives
 * until every leg has said FINAL, after which no leg looks at it. Streams live until RELEASE, so that their address can
 * be told. */
#ifndef RINGSIDE_IPERF3_H
#define RINGSIDE_IPERF3_H
#include "apps/iperf3/text.h"
#include "lwip/tcp.h"
#include "lwip/udp.h"

#define I3_PORT   5201
#define I3_COOKIE 37u /* bytes: 36 characters and a zero */

enum i3_message {
    I3_CLAIM = 1,
    I3_GRANT,
    I3_DISCLAIM,
    I3_OPEN,
    I3_OPENED,
    I3_STREAM,
    I3_ROLE,
    I3_BEGIN,
    I3_STOP,
    I3_FINAL,
    I3_RELEASE,
    I3_TURN,
};

/* One core's line of a record, which only it writes; `bytes` may be read while the test runs. */
struct i3_line {
    uint64_t bytes;                       /* received, omitted ones too */
    uint64_t window_ns, idle_ns, spin_ns; /* how long the core was watched; of that, without work; looking for some */
    uint64_t reserved[4];
};
_Static_assert(sizeof(struct i3_line) == 64, "a cache line");

struct i3_record {
    struct i3_spec spec;
    char cookie[I3_COOKIE];
    ip_addr_t peer;
    unsigned control; /* the core of the control connection */
    unsigned cores;
    struct i3_line *line;       /* one for each core */
    struct i3_outcome *outcome; /* one for each stream */
};

struct i3_stats {
    uint64_t tests;      /* control connections with a cookie */
    uint64_t ended_well; /* tests whose client said that it is done */
    uint64_t refused;    /* connections refused: no cookie, a stream too many, no memory */
    uint64_t errors;     /* tests ended by an error of the client, or a time that was over */
    uint64_t silent;     /* connections that did not say what they are */
    uint64_t stray;      /* datagrams of no stream */
};

/* ---- iperf3.c ---- */

/* Posts a message to a core's iperf3. */
void i3_post(unsigned core, enum i3_message kind, const void *a, uint64_t b, uint64_t c);

struct i3_stats *i3_stats(void);

/* For the log: something has ended. */
void i3_log_end(const char *what);

/* ---- test.c: tests of this core's control connections ---- */

/* A connection with a cookie of its own becomes the control connection of a new test. False: no memory. */
bool i3_test_start(struct tcp_pcb *pcb, const char cookie[I3_COOKIE]);

/* What has come on it, as tcp_recv()'s callback; `arg` is the pcb's. */
err_t i3_test_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err);

/* Messages. */
void i3_test_granted(struct i3_record *record);
void i3_test_opened(struct i3_record *record, unsigned core, void *leg);
void i3_test_stream(struct i3_record *record, unsigned core, void *stream, uint64_t when);
void i3_test_final(struct i3_record *record);
unsigned i3_tests(void);

/* ---- turns.c: core 0's list of who may open UDP streams ---- */

void i3_turn_claim(struct i3_record *record, unsigned from);
void i3_turn_disclaim(const struct i3_record *record);

/* ---- leg.c: this core's part of tests, anybody's ---- */

struct leg {
    struct leg *next;         /* of this core's */
    struct i3_record *record; /* not after FINAL */
    const struct i3_spec *spec;
    struct i3_line *line;
    struct stream *streams;
    bool running; /* BEGIN was here: no more streams */
    bool stopped, released;
    bool turn;         /* a TURN is on its way */
    uint64_t began;    /* ns */
    uint64_t counting; /* ns; when what counts began: later than that, if time is omitted */
    uint64_t wake_at;  /* ns; when the timer is set for; 0: it is not */
    uint64_t idle_then, spin_then;
};

struct stream {
    struct stream *next; /* of the leg's */
    struct leg *leg;
    struct tcp_pcb *pcb; /* TCP; NULL: closed */
    bool open;           /* may send and receive */
    bool sender;         /* the server sends */
    bool numbered;       /* it has a role */
    unsigned index;
    uint64_t bytes, omitted; /* all; of them, those that do not count */
    uint64_t limit;          /* of what is to be sent */
    uint64_t left;           /* TCP: bytes of the present block */

    struct stream *chain; /* UDP: of the same slot of the table */
    ip_addr_t peer;
    uint16_t port;
    bool timed;       /* `transit` is set */
    uint64_t packets; /* highest number received, or how many were sent */
    uint64_t errors;  /* missing */
    uint64_t omitted_packets, omitted_errors;
    int64_t transit; /* ns, of the last datagram, by both clocks */
    uint64_t jitter; /* ns, 16 times (RFC 3550, A.8) */
};

/* The leg whose streams have this cookie; NULL: none. */
struct leg *i3_leg_of_cookie(const char cookie[I3_COOKIE]);

/* The leg that waits for UDP streams of this address; NULL: none. */
struct leg *i3_leg_of_peer(const ip_addr_t *peer);

/* A new stream, which came at `when` (any clock that all cores share). NULL: no memory. */
struct stream *i3_leg_add(struct leg *leg, uint64_t when);

/* Messages. */
void i3_leg_open(struct i3_record *record);
void i3_leg_role(struct stream *stream, unsigned index, bool sender);
void i3_leg_begin(struct leg *leg);
void i3_leg_stop(struct leg *leg);
void i3_leg_release(struct leg *leg);
void i3_leg_turn(struct leg *leg);
unsigned i3_legs(void);

/* Asks for another look at what is to be sent: in a later turn of the loop; not before a time (ns). */
void i3_leg_want_turn(struct leg *leg);
void i3_leg_wake_at(struct leg *leg, uint64_t when);

/* How many bytes a sender may have sent by now. */
uint64_t i3_stream_allowed(const struct stream *stream, uint64_t now);
/* When it may send on (ns). */
uint64_t i3_stream_due(const struct stream *stream);

/* ---- stream_tcp.c ---- */

/* A connection with the leg's cookie becomes one of its streams. False: no memory. */
bool i3_tcp_adopt(struct leg *leg, struct tcp_pcb *pcb, uint64_t when);
/* What came together with the cookie. */
void i3_tcp_count(struct tcp_pcb *pcb, uint32_t n);
/* Sends what may be sent. */
void i3_tcp_send(struct stream *stream);
/* No more: a sender's connection gets its FIN behind what is queued and stays, a receiver's is closed. */
void i3_tcp_stop(struct stream *stream);
void i3_tcp_release(struct stream *stream);

/* ---- stream_udp.c ---- */

/* Datagrams of the port, as udp_recv()'s callback. */
void i3_udp_receive(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *from, u16_t port);
/* Sends some of what may be sent. */
void i3_udp_send(struct stream *stream);
/* No more. */
void i3_udp_stop(struct stream *stream);
#endif

/* The netserver's parts and what they tell each other.
 *
 * A control connection lives on the core that owns its flow, and there the test is run (test.c). Each core has a leg of
 * the test (leg.c): the data port, and the data connections whose flows it owns. Test and legs talk by messages, even
 * on one core, so that nothing is called back from within itself.
 *
 *     test -> leg    OPEN     make the data socket
 *     leg  -> test   OPENED   done, or what went wrong
 *     test -> leg    BEGIN    the client has been answered: note how busy this core is, and begin, if sending is all
 *     leg  -> test   BEGAN    first data connection or datagram: the clock starts
 *     leg  -> test   DONE     the test has come to its end here
 *     test -> leg    REFUSE   another leg was first: cut the data connection, it is one too many
 *     test -> leg    STOP     no more: close what is open, count no further
 *     leg  -> test   FINAL    the counts are what they are
 *     test -> leg    RELEASE  nothing more will come; no answer
 *
 * What a test is and what was counted lies in one record in the memory of the control connection's core. Other cores
 * read its first part, and each writes one line of its second. It lives until every leg has said FINAL, after which no
 * leg looks at it. */
#ifndef RINGSIDE_NETSERVER_H
#define RINGSIDE_NETSERVER_H
#include "apps/netserver/record.h"
#include "lwip/tcp.h"
#include "lwip/udp.h"

#define NP_PORT 12865

enum np_message {
    NP_OPEN = 1,
    NP_OPENED,
    NP_BEGIN,
    NP_BEGAN,
    NP_DONE,
    NP_REFUSE,
    NP_STOP,
    NP_FINAL,
    NP_RELEASE,
    NP_TURN
};

/* What one leg counts: a cache line that only its core writes. Others may read it while the test runs (whether anything
 * moves; whether a count is reached); times are written before FINAL. */
struct np_counts {
    uint64_t rx_bytes, tx_bytes, rx_calls, tx_calls;
    uint64_t transactions;
    uint64_t window_ns, idle_ns, spin_ns; /* how long the core was watched; of that, halted or looking for work */
};
_Static_assert(sizeof(struct np_counts) == 64, "a cache line");

struct np_record {
    struct np_spec spec;
    uint16_t port;            /* the data port */
    ip_addr_t peer;           /* the client's address, where datagrams go that were not asked for */
    unsigned control;         /* the core that the control connection lives on */
    unsigned cores;           /* legs */
    struct np_counts *counts; /* one for each leg */
};

/* ---- netserver.c ---- */

/* Posts a message to a core's netserver. */
void np_post(unsigned core, enum np_message kind, const void *a, uint64_t b, uint64_t c);

/* What the server says of itself. */
const struct np_server *np_server(void);

/* ---- control.c: control connections ---- */

struct control;

/* A new control connection, as lwIP's accept callback. */
err_t np_control_accept(void *arg, struct tcp_pcb *pcb, err_t err);

/* Sends a record; the next request is read when it has gone. */
void np_control_send(struct control *control, const uint8_t record[NP_RECORD]);

/* How many control connections there are. */
unsigned np_controls(void);

/* ---- test.c: tests of this core's control connections ---- */

struct test;

/* Begins a test; its answer, or an error, and later its results are sent by np_control_send(). NULL: no memory. */
struct test *np_test_start(struct control *control, const struct np_spec *spec, const ip_addr_t *peer);

/* True when the results have been sent (or an error): the next request may be read. */
bool np_test_over(const struct test *test);

/* The control connection is gone, or wants another test: ends the test and frees it when all legs are closed. */
void np_test_leave(struct test *test);

/* Messages of legs. */
void np_test_opened(struct np_record *record, unsigned core, void *leg, uint32_t error);
void np_test_began(struct np_record *record, unsigned core, uint64_t when);
void np_test_done(struct np_record *record, unsigned core, uint64_t when);
void np_test_final(struct np_record *record, unsigned core);
unsigned np_tests(void);

/* ---- leg.c: this core's part of tests, anybody's ---- */

struct leg {
    const struct np_spec *spec; /* in the record: not after FINAL */
    struct np_record *record;
    struct np_counts *counts;
    struct tcp_pcb *listener;
    struct udp_pcb *udp;
    struct connection *connections; /* open data connections */
    uint64_t got;                   /* UDP: bytes of the present request */
    bool began, done, stopped, released;
    bool resting;                         /* UDP: a timer will ask for a turn */
    bool turn;                            /* a TURN is on its way */
    bool watched;                         /* the three below are set */
    uint64_t since, idle_then, spin_then; /* when and how BEGIN found the core's counters */
};

void np_leg_open(struct np_record *record);
void np_leg_begin(struct leg *leg);
void np_leg_refuse(struct leg *leg);
void np_leg_stop(struct leg *leg);
void np_leg_release(struct leg *leg);
void np_leg_turn(struct leg *leg);
unsigned np_legs(void);

/* For the data sockets: the first data; the end; whether a count is reached (`own`: by what this leg counted). */
void leg_began(struct leg *leg);
void leg_done(struct leg *leg);
bool leg_reached(const struct leg *leg, uint64_t own);
/* Asks for np_leg_turn() in a later turn of the loop. */
void leg_want_turn(struct leg *leg);

/* ---- leg_tcp.c, leg_udp.c: data sockets ---- */

/* Make the data socket on the record's port; return 0 or an errno. */
uint32_t leg_tcp_open(struct leg *leg);
uint32_t leg_udp_open(struct leg *leg);

/* No more data: the TCP listener closes, connections get their FIN and are read out. */
void leg_tcp_stop(struct leg *leg);
/* What is still there goes. */
void leg_tcp_release(struct leg *leg);
/* Closes connections that could not be closed from within the accept callback. */
void leg_tcp_turn(struct leg *leg);

/* UDP that only sends: sends some; at the end, says so to the client. */
void leg_udp_turn(struct leg *leg);
void leg_udp_stop(struct leg *leg);
#endif

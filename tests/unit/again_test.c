/* Data that a peer has sent before in front of new data, in one segment of several pbufs (the device puts together what
 * comes): lwIP leaves the pbufs with old data in the chain, without bytes. The servers that keep what they cannot use
 * at once (echo, netserver's control connections) get past them. */
#include "tests/unit/unit.h"

#include "apps/app.h"
#include "apps/netserver/netserver.h"
#include "apps/tcp_server.h"
#include "kernel/console.h"
#include "kernel/memory.h"
#include "lwip/ip.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/prot/tcp.h"
#include "net/netif.h"
#include "tests/unit/lwip_rig.h"

#include <unistd.h>

extern const struct app app_echo;
static unsigned answered;

/* ---- what the servers are linked with ---- */

void log_line(enum log_level level, const char *area, const char *format, ...)
{
    (void)level, (void)area, (void)format;
}

bool log_wants(enum log_level level);
bool log_wants(enum log_level level)
{
    (void)level;
    return false;
}

bool heap_below(unsigned share)
{
    (void)share;
    return false;
}

struct heap_stats heap_stats(void)
{
    return (struct heap_stats){ 0 };
}

err_t net_udp_sendto(struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *to, u16_t port)
{
    return udp_sendto(pcb, p, to, port);
}

const struct np_server *np_server(void)
{
    static const struct np_server server = { 1, 1, 1, 1, 1, false };
    answered++; /* it is asked for with each request */
    return &server;
}

struct test *np_test_start(struct control *control, const struct np_spec *spec, const ip_addr_t *peer)
{
    (void)control, (void)spec, (void)peer;
    return NULL;
}

bool np_test_over(const struct test *test)
{
    (void)test;
    return true;
}

void np_test_leave(struct test *test)
{
    (void)test;
}

unsigned np_tests(void)
{
    return 0;
}

unsigned np_legs(void)
{
    return 0;
}

/* ---- a peer ---- */

/* A segment that begins `old` bytes before what the peer sends next (or behind that, if it is negative), in pbufs of so
 * many bytes; all of `value`. */
static void send_again(struct peer *peer, int32_t old, const uint16_t *lengths, unsigned count, uint8_t value)
{
    struct pbuf *all = pbuf_alloc(PBUF_IP, TCP_HLEN, PBUF_RAM);
    struct tcp_hdr *tcp = all->payload;
    uint32_t bytes = 0;

    memset(tcp, 0, TCP_HLEN);
    tcp->src = lwip_htons(peer->port);
    tcp->dest = lwip_htons(peer->guest_port);
    tcp->seqno = lwip_htonl(peer->seq - (uint32_t)old);
    tcp->ackno = lwip_htonl(peer->ack);
    tcp->wnd = lwip_htons(60000);
    TCPH_HDRLEN_FLAGS_SET(tcp, 5, TCP_ACK | TCP_PSH);
    for (unsigned i = 0; i < count; bytes += lengths[i++]) {
        struct pbuf *p = pbuf_alloc(PBUF_RAW, lengths[i], PBUF_RAM);
        memset(p->payload, value, lengths[i]);
        pbuf_cat(all, p);
    }
    ip_data.current_netif = ip_data.current_input_netif = netif_default;
    ip_addr_copy(*ip_current_src_addr(), peer->address);
    ip_addr_copy(*ip_current_dest_addr(), peer->guest);
    peer->seq += old < 0 ? 0 : bytes - (uint32_t)old;
    tcp_input(all, netif_default);
}

/* What the guest has acknowledged of the peer's data, once its timers have run. */
static uint32_t guest_expects(const struct peer *peer)
{
    for (const struct tcp_pcb *pcb = tcp_active_pcbs; pcb != NULL; pcb = pcb->next)
        if (pcb->remote_port == peer->port)
            return pcb->rcv_nxt;
    check(false, "no connection");
    return 0;
}

static void test_echo(void **state)
{
    struct peer peer = rig_peer(2, 7);

    (void)state;
    assert_true(rig_connect(&peer));
    rig_send(&peer, TCP_ACK | TCP_PSH, 1000);
    uint32_t before = peer.seq;
    send_again(&peer, 900, (const uint16_t[]){ 400, 400, 300 }, 3, 'x');
    assert_int_equal(guest_expects(&peer), before + 200);
    assert_int_equal(tcp_active_pcbs->rcv_wnd, UINT16_MAX); /* of which it keeps nothing back */
}

static void test_netserver(void **state)
{
    struct peer peer = rig_peer(4, 12865);
    static const uint16_t lengths[] = { 300, 300, NP_RECORD };

    (void)state;
    assert_true(rig_connect(&peer));
    rig_send(&peer, TCP_ACK | TCP_PSH, NP_RECORD);
    unsigned first = answered;
    assert_true(first > 0);
    send_again(&peer, 600, lengths, 3, 0);
    assert_true(answered > first);
}

/* A peer that breaks the rules: with a gap in front, more than the window takes. When the gap is filled the window is
 * full, to the byte. */
static void test_beyond_the_window(void **state)
{
    static const uint16_t most[] = { 30000, 30000 };

    (void)state;
    for (unsigned fin = 0; fin < 2; fin++) {
        struct peer peer = rig_peer(6 + 2 * fin, 7);
        assert_true(rig_connect(&peer));
        uint32_t first = peer.seq;
        if (fin) { /* in front of one that is there already */
            send_again(&peer, -20000, most, 1, 'y');
            assert_int_equal(guest_expects(&peer), first);
        }
        send_again(&peer, -10000, most, 2, 'x');
        assert_int_equal(guest_expects(&peer), first);
        rig_send(&peer, TCP_ACK | TCP_PSH, 10000);
        assert_int_equal(guest_expects(&peer), first + UINT16_MAX);
    }
}

/* ---- a server that ends a connection when its answer is acknowledged ---- */

static unsigned given_back;
static bool aborts;

static void on_free(struct pbuf *p)
{
    (void)p;
    given_back++;
}

static err_t end_when_sent(void *arg, struct tcp_pcb *pcb, u16_t n)
{
    (void)arg, (void)n;
    if (!aborts)
        return tcp_finish(pcb);
    tcp_abort(pcb);
    return ERR_ABRT;
}

static err_t answer_at_once(void *arg, struct tcp_pcb *pcb, err_t err)
{
    (void)arg, (void)err;
    tcp_sent(pcb, end_when_sent);
    tcp_write(pcb, "x", 1, TCP_WRITE_FLAG_COPY);
    return tcp_output(pcb);
}

/* The acknowledgement comes with data: the receive buffer that they are in goes home. */
static void test_ends_with_data_unread(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        static uint8_t bytes[TCP_HLEN + 100];
        static struct pbuf_custom custom = { .custom_free_function = on_free };
        struct peer peer = rig_peer(10 + 2 * i, 5000);
        struct tcp_hdr *tcp = (struct tcp_hdr *)bytes;

        aborts = i;
        given_back = 0;
        assert_true(rig_connect(&peer));
        memset(bytes, 0, sizeof bytes);
        tcp->src = lwip_htons(peer.port);
        tcp->dest = lwip_htons(5000);
        tcp->seqno = lwip_htonl(peer.seq);
        tcp->ackno = lwip_htonl(peer.ack);
        tcp->wnd = lwip_htons(60000);
        TCPH_HDRLEN_FLAGS_SET(tcp, 5, TCP_ACK | TCP_PSH);
        struct pbuf *p = pbuf_alloced_custom(PBUF_RAW, sizeof bytes, PBUF_REF, &custom, bytes, sizeof bytes);
        ip_data.current_netif = ip_data.current_input_netif = netif_default;
        ip_addr_copy(*ip_current_src_addr(), peer.address);
        ip_addr_copy(*ip_current_dest_addr(), peer.guest);
        tcp_input(p, netif_default);
        assert_int_equal(given_back, 1);
        for (const struct tcp_pcb *pcb = tcp_active_pcbs; pcb != NULL; pcb = pcb->next)
            assert_int_not_equal(pcb->remote_port, peer.port);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_echo), cmocka_unit_test(test_netserver),
                                        cmocka_unit_test(test_beyond_the_window),
                                        cmocka_unit_test(test_ends_with_data_unread) };

    alarm(30); /* who does not get past them never ends */
    rig_start();
    check(app_echo.start() && tcp_serve("netserver", 12865, np_control_accept) &&
              tcp_serve("ends", 5000, answer_at_once),
          "not started");
    return cmocka_run_group_tests_name("again", tests, NULL, NULL);
}

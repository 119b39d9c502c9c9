/* The table of connections, in the real lwIP: whatever comes and goes, the lists, the table and the links are one. */
#include "tests/unit/unit.h"
#include "tests/unit/lwip_rig.h"
#include "lwip/priv/tcp_priv.h"
#include "net/timewait.h"

static bool no_memory;

static void *calloc_or_not(size_t n, size_t size)
{
    return no_memory ? NULL : calloc(n, size);
}

#define calloc calloc_or_not
#include "net/pcb_hash.c"
#undef calloc

#define PORT     80
#define MANY     3000u
#define KEEP     1024u
#define KEEP_LOW 64u
#define MSL_MS   60000u

static struct tcp_pcb *listener;
static unsigned received; /* bytes, by the connection that got the last segment: */
static struct tcp_pcb *who;
static struct peer peers[MANY];

/* ---- a server ---- */

static err_t on_receive(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    (void)arg, (void)err;
    who = pcb;
    received = p != NULL ? p->tot_len : 0;
    if (p == NULL)
        return tcp_close(pcb);
    tcp_recved(pcb, p->tot_len);
    pbuf_free(p);
    return ERR_OK;
}

/* One that closes without having read: lwIP sends a reset. */
static err_t on_receive_close(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    (void)arg, (void)err;
    pbuf_free(p);
    return tcp_close(pcb);
}

static err_t on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    (void)arg;
    if (err != ERR_OK)
        return err;
    tcp_recv(pcb, on_receive);
    who = pcb;
    return ERR_OK;
}

static int set_up(void **state)
{
    static bool started;
    (void)state;
    rig_chance = chance_seed(1);
    if (!started) {
        pcb_hash_init();
        rig_start();
    }
    started = true;
    listener = tcp_new_ip_type(IPADDR_TYPE_ANY);
    if (tcp_bind(listener, IP_ANY_TYPE, PORT) != ERR_OK)
        return -1;
    listener = tcp_listen_with_backlog(listener, 255);
    tcp_accept(listener, on_accept);
    return 0;
}

static void check_all(void);

static int tear_down(void **state)
{
    (void)state;
    no_memory = rig_heap_low = false;
    tcp_close(listener);
    while (tcp_active_pcbs != NULL)
        tcp_abort(tcp_active_pcbs);
    while (tcp_tw_pcbs != NULL)
        tcp_abort(tcp_tw_pcbs);
    check_all();
    return stats.active == 0 && stats.time_wait == 0 && oldest == NULL ? 0 : -1;
}

/* ---- what must always hold ---- */

static unsigned check_list(struct tcp_pcb **list)
{
    unsigned n = 0;
    struct tcp_pcb **at = list;
    for (; *at != NULL; at = &(*at)->next, n++) {
        struct tcp_pcb *pcb = *at, *found = table[pcb->hash & (stats.buckets - 1)];
        check(pcb->link == at, "connection %u of its list does not know what points to it", n);
        check(pcb->hash == hash_of(&pcb->remote_ip, pcb->remote_port, &pcb->local_ip, pcb->local_port), "stale");
        while (found != NULL && found != pcb)
            found = found->hash_next;
        check(found == pcb, "connection %u of its list is not in the table", n);
    }
    return n;
}

static void check_all(void)
{
    unsigned active = check_list(&tcp_active_pcbs), waiting = check_list(&tcp_tw_pcbs), in_table = 0;
    struct tcp_pcb *last = tcp_tw_pcbs;
    for (uint32_t i = 0; i < stats.buckets; i++)
        for (struct tcp_pcb *pcb = table[i]; pcb != NULL; pcb = pcb->hash_next)
            in_table++;
    while (last != NULL && last->next != NULL)
        last = last->next;
    check(active == stats.active && waiting == stats.time_wait, "%u and %u in the lists, %u and %u counted", active,
          waiting, stats.active, stats.time_wait);
    check(in_table == active + waiting, "%u in the table, %u in the lists", in_table, active + waiting);
    check(oldest == last, "the oldest is not the last of its list");
}

/* The connection of a peer, found by looking through the lists. */
static struct tcp_pcb *look(const struct peer *peer)
{
    for (unsigned i = 0; i < 2; i++)
        for (struct tcp_pcb *pcb = i ? tcp_tw_pcbs : tcp_active_pcbs; pcb != NULL; pcb = pcb->next)
            if (pcb->remote_port == peer->port && pcb->local_port == peer->guest_port &&
                ip_addr_eq(&pcb->remote_ip, &peer->address))
                return pcb;
    return NULL;
}

static void open_many(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        peers[i] = rig_peer(i, PORT);
        check(rig_connect(&peers[i]), "connection %u of %u", i, n);
    }
}

/* The guest closes, the peer too: TIME_WAIT. */
static void close_first(struct peer *peer)
{
    struct tcp_pcb *pcb = look(peer);
    tcp_recv(pcb, NULL);
    tcp_close(pcb);
    peer->ack++;
    rig_send(peer, TCP_FIN | TCP_ACK, 0);
}

/* ---- tests ---- */

static void test_each_segment_finds_its_connection(void **state)
{
    (void)state;
    open_many(MANY);
    check_all();
    assert_int_equal(stats.active, MANY);
    for (unsigned i = 0; i < 4 * MANY; i++) {
        struct peer *peer = &peers[chance_below(&rig_chance, MANY)];
        unsigned bytes = 1 + chance_below(&rig_chance, 100);
        who = NULL;
        rig_send(peer, TCP_ACK | TCP_PSH, bytes);
        check(who != NULL && received == bytes, "segment %u reached nobody", i);
        check(who->remote_port == peer->port && ip_addr_eq(&who->remote_ip, &peer->address), "segment %u went astray",
              i);
    }
    /* Same ports, other addresses; same addresses, other ports; none of them is open. */
    for (unsigned i = 0; i < MANY; i += 2) {
        struct peer other = peers[i];
        ip_2_ip4(&other.address)->addr ^= PP_HTONL(1u << (i / 2 % 16 + 8));
        rig_send(&other, TCP_ACK, 0);
        check(rig_answer() != NULL && (rig_answer()->flags & TCP_RST) != 0, "a segment of nobody was taken");
    }
    check_all();
}

static void test_no_more_than_some_share_a_bucket(void **state)
{
    (void)state;
    struct pattern {
        const char *name;
        uint32_t address_step, port_step;
    } patterns[] = { { "one address, ports in turn", 0, 1 },
                     { "one address, every 256th port in turn", 0, 256 },
                     { "addresses in turn, one port", 1, 0 },
                     { "every 256th address, one port", 256, 0 },
                     { "addresses and ports in turn", 1, 1 } };
    enum { COUNT = 8192 };
    for (unsigned round = 0; round < 20; round++) {
        pcb_hash_init();
        for (unsigned k = 0; k < COUNT_OF(patterns); k++) {
            static uint8_t in[COUNT];
            memset(in, 0, sizeof in);
            unsigned most = 0;
            for (uint32_t i = 0; i < COUNT; i++) {
                struct peer peer = rig_peer(0, PORT);
                ip_2_ip4(&peer.address)->addr = lwip_htonl(0x0a000001 + i * patterns[k].address_step);
                uint32_t port = i * patterns[k].port_step;
                peer.port = (uint16_t)(1024 + port + port / 65536);
                unsigned b = hash_of(&peer.address, peer.port, &peer.guest, PORT) % COUNT;
                if (++in[b] > most)
                    most = in[b];
            }
            /* Chance would have it at 6 to 9; a bucket with 20 has a probability of 10^-15. */
            check(most < 20, "%s: %u of %u in one bucket", patterns[k].name, most, COUNT);
        }
    }
}

static void test_another_key_another_table(void **state)
{
    (void)state;
    unsigned same = 0;
    uint32_t was[1000];
    pcb_hash_init();
    for (unsigned i = 0; i < 1000; i++) {
        peers[i] = rig_peer(i, PORT);
        was[i] = hash_of(&peers[i].address, peers[i].port, &peers[i].guest, PORT) % 256;
    }
    pcb_hash_init();
    for (unsigned i = 0; i < 1000; i++)
        same += hash_of(&peers[i].address, peers[i].port, &peers[i].guest, PORT) % 256 == was[i];
    check(same < 30, "%u of 1000 connections have the bucket of another key", same);
}

static void test_every_part_of_the_address_counts(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 2; n++) {
        struct peer peer = rig_peer(n, PORT);
        uint32_t h = hash_of(&peer.address, 1000, &peer.guest, PORT);
        assert_int_not_equal(h, hash_of(&peer.address, 1001, &peer.guest, PORT));
        assert_int_not_equal(h, hash_of(&peer.address, 1000, &peer.guest, PORT + 1));
        for (unsigned word = 0; word < (n ? 4 : 1); word++) {
            struct peer other = peer;
            ip_2_ip6(&other.address)->addr[word] ^= 1;
            assert_int_not_equal(h, hash_of(&other.address, 1000, &peer.guest, PORT));
            other = peer;
            ip_2_ip6(&other.guest)->addr[word] ^= 1;
            assert_int_not_equal(h, hash_of(&peer.address, 1000, &other.guest, PORT));
        }
    }
}

static void test_the_table_grows_and_shrinks(void **state)
{
    (void)state;
    assert_int_equal(stats.buckets, FEWEST);
    open_many(MANY);
    assert_int_equal(stats.buckets, 4096);
    for (unsigned i = 0; i < MANY; i++) {
        tcp_abort(look(&peers[i]));
        if (i % 100 == 0)
            check_all();
    }
    assert_int_equal(stats.buckets, FEWEST);
    assert_ptr_equal(table, few);
}

static void test_without_memory_to_grow(void **state)
{
    (void)state;
    no_memory = true;
    open_many(MANY);
    assert_int_equal(stats.buckets, FEWEST);
    check_all();
    no_memory = false;
    check(rig_connect(
              &(struct peer){ .address = peers[0].address, .guest = peers[0].guest, .port = 1, .guest_port = PORT }),
          "one more");
    assert_int_equal(stats.buckets, FEWEST); /* not at each connection again */
    for (unsigned i = 0; i < MANY; i++) {
        who = NULL;
        rig_send(&peers[i], TCP_ACK | TCP_PSH, 1);
        check(who != NULL && who->remote_port == peers[i].port, "segment %u went astray", i);
    }
}

static void test_ends_of_all_kinds(void **state)
{
    (void)state;
    open_many(1200);
    uint32_t left = 1200;
    while (left > 0) {
        uint32_t i = chance_below(&rig_chance, left);
        struct peer peer = peers[i];
        peers[i] = peers[--left];
        switch (chance_below(&rig_chance, 6)) {
        case 0: /* the guest first */
            close_first(&peer);
            check(look(&peer)->state == TIME_WAIT, "no TIME_WAIT");
            break;
        case 1: /* the peer first */
            rig_send(&peer, TCP_FIN | TCP_ACK, 0);
            rig_send(&peer, TCP_ACK, 0);
            check(look(&peer) == NULL, "still there after both have closed");
            break;
        case 2: /* both at once */
            tcp_close(look(&peer));
            rig_send(&peer, TCP_FIN | TCP_ACK, 0);
            rig_send(&peer, TCP_ACK, 0);
            check(look(&peer)->state == TIME_WAIT, "no TIME_WAIT");
            break;
        case 3:
            rig_send(&peer, TCP_RST | TCP_ACK, 0);
            check(look(&peer) == NULL, "still there after a reset");
            break;
        case 4:
            tcp_abort(look(&peer));
            break;
        default: /* data on which the guest closes: a reset */
            tcp_recv(look(&peer), on_receive_close);
            rig_send(&peer, TCP_ACK | TCP_PSH, 5);
            check(look(&peer) == NULL, "still there after data on which the guest closed");
        }
        if (left % 20 == 0)
            check_all();
    }
    rig_pass(3 * MSL_MS);
    check_all();
    check(stats.time_wait == 0, "%u in TIME_WAIT for ever", stats.time_wait);
}

/* Connections that the timers end, between others that stay. */
static void test_timers_take_from_the_middle(void **state)
{
    (void)state;
    open_many(300);
    for (unsigned i = 300; i < 600; i++) { /* half open */
        peers[i] = rig_peer(i, PORT);
        if (listener == NULL || i % 3 == 0)
            check(rig_connect(&peers[i]), "connection %u", i);
        else if (i % 3 == 1 && i < 500)
            rig_send(&peers[i], TCP_SYN, 0);
    }
    uint32_t before = stats.active;
    check_all();
    rig_pass(30000);
    check_all();
    check(stats.active == 400 && before > 400, "%u of %u left, 400 were established", stats.active, before);
}

static void test_listeners_are_left_alone(void **state)
{
    (void)state;
    struct tcp_pcb *bound[5];
    ip_addr_t own = rig_peer(0, PORT).guest;
    for (unsigned i = 0; i < COUNT_OF(bound); i++) {
        bound[i] = tcp_new_ip_type(IPADDR_TYPE_ANY);
        assert_int_equal(tcp_bind(bound[i], IP_ANY_TYPE, (u16_t)(1000 + i)), ERR_OK);
    }
    struct tcp_pcb *special = tcp_new_ip_type(IPADDR_TYPE_V4);
    ip_set_option(special, SOF_REUSEADDR);
    assert_int_equal(tcp_bind(special, &own, 1005), ERR_OK);
    special = tcp_listen(special);
    tcp_accept(special, on_accept);
    check_all();
    assert_int_equal(stats.active + stats.time_wait, 0);
    bound[2] = tcp_listen(bound[2]);
    tcp_accept(bound[2], on_accept);
    struct peer peer = rig_peer(0, 1002), other = rig_peer(2, 1005);
    assert_true(rig_connect(&peer));
    assert_true(rig_connect(&other));
    check_all();
    for (unsigned i = COUNT_OF(bound); i-- > 0;)
        tcp_close(bound[i]);
    tcp_close(special);
    who = NULL;
    rig_send(&peer, TCP_ACK | TCP_PSH, 3); /* it outlives its listener */
    check(who != NULL && received == 3, "gone with its listener");
    check_all();
}

/* A connection that the guest opens: its port is chosen late. */
static void test_opened_by_the_guest(void **state)
{
    (void)state;
    struct peer peer = rig_peer(4, 0);
    struct tcp_pcb *pcb = tcp_new_ip_type(IPADDR_TYPE_ANY);
    tcp_recv(pcb, on_receive);
    assert_int_equal(tcp_connect(pcb, &peer.address, peer.port, NULL), ERR_OK);
    check_all();
    assert_non_null(rig_answer());
    peer.guest_port = pcb->local_port;
    peer.ack = rig_answer()->seq + 1;
    rig_send(&peer, TCP_SYN | TCP_ACK, 0);
    assert_int_equal(pcb->state, ESTABLISHED);
    who = NULL;
    rig_send(&peer, TCP_ACK | TCP_PSH, 3);
    assert_ptr_equal(who, pcb);
    check_all();
}

/* ---- TIME_WAIT ---- */

static void test_the_oldest_go_first(void **state)
{
    (void)state;
    uint64_t evicted = timewait_stats()->evicted;
    for (unsigned i = 0; i < KEEP + 200; i++) {
        peers[i] = rig_peer(i, PORT);
        check(rig_connect(&peers[i]), "connection %u", i);
        close_first(&peers[i]);
        check(stats.time_wait == (i < KEEP ? i + 1 : KEEP), "%u in TIME_WAIT after %u", stats.time_wait, i + 1);
    }
    check_all();
    for (unsigned i = 0; i < KEEP + 200; i++)
        check((look(&peers[i]) != NULL) == (i >= 200), "connection %u", i);
    assert_int_equal(timewait_stats()->evicted - evicted, 200);
    rig_heap_low = true;
    struct peer last = rig_peer(KEEP + 200, PORT);
    assert_true(rig_connect(&last));
    close_first(&last);
    assert_int_equal(stats.time_wait, KEEP_LOW);
    check_all();
    for (unsigned i = 0; i < KEEP + 200; i++)
        check((look(&peers[i]) != NULL) == (i >= 200 + KEEP - KEEP_LOW + 1), "connection %u when memory is low", i);
    rig_send(&peers[KEEP + 199], TCP_FIN | TCP_ACK, 0); /* sent again: acknowledged again */
    check(rig_answer() != NULL && rig_answer()->flags == TCP_ACK, "not acknowledged");
}

/* A SYN as it comes by Ethernet. */
static void syn_frame(const struct peer *peer, uint32_t seq, bool tagged)
{
    uint8_t frame[14 + 40 + 20] = { 0 }, *ip = frame + 14, *tcp;
    bool v6 = IP_IS_V6(&peer->address);
    frame[12] = v6 ? 0x86 : 0x08;
    frame[13] = v6 ? 0xdd : 0x00;
    if (v6) {
        ip[0] = 0x60;
        ip[6] = 6;
        memcpy(ip + 8, ip_2_ip6(&peer->address)->addr, 16);
        memcpy(ip + 24, ip_2_ip6(&peer->guest)->addr, 16);
        tcp = ip + 40;
    } else {
        ip[0] = 0x45;
        ip[9] = 6;
        memcpy(ip + 12, &ip_2_ip4(&peer->address)->addr, 4);
        memcpy(ip + 16, &ip_2_ip4(&peer->guest)->addr, 4);
        tcp = ip + 20;
    }
    tcp[0] = (uint8_t)(peer->port >> 8);
    tcp[1] = (uint8_t)peer->port;
    tcp[2] = (uint8_t)(peer->guest_port >> 8);
    tcp[3] = (uint8_t)peer->guest_port;
    for (unsigned i = 0; i < 4; i++)
        tcp[4 + i] = (uint8_t)(seq >> (24 - 8 * i));
    tcp[12] = 0x50;
    tcp[13] = TCP_SYN;
    if (tagged)
        frame[12] = 0x81;
    timewait_make_way(frame, (uint32_t)(tcp + 20 - frame));
}

static void test_a_newer_syn_reopens(void **state)
{
    (void)state;
    open_many(20);
    for (unsigned i = 0; i < 10; i++)
        close_first(&peers[i]);
    uint64_t reopened = timewait_stats()->reopened;
    for (unsigned i = 0; i < 20; i++) {
        syn_frame(&peers[i], peers[i].seq - 1, false); /* of the old connection */
        syn_frame(&peers[i], peers[i].seq + 1, true);  /* no IP frame */
        check(look(&peers[i]) != NULL, "connection %u is gone", i);
        struct peer other = peers[i];
        other.port ^= 1;
        syn_frame(&other, peers[i].seq + 1, false);
        check(look(&peers[i]) != NULL, "connection %u is gone for another's SYN", i);
        syn_frame(&peers[i], peers[i].seq + 1, false);
        check((look(&peers[i]) == NULL) == (i < 10), "connection %u", i); /* only what is in TIME_WAIT */
        check_all();
    }
    assert_int_equal(timewait_stats()->reopened - reopened, 10);
    for (unsigned i = 0; i < 10; i++) {
        peers[i].seq++;
        check(rig_connect(&peers[i]), "connection %u does not open again", i);
    }
    check_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_segment_finds_its_connection, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_more_than_some_share_a_bucket, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_another_key_another_table, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_every_part_of_the_address_counts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_table_grows_and_shrinks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_without_memory_to_grow, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ends_of_all_kinds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_timers_take_from_the_middle, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_listeners_are_left_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_opened_by_the_guest, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_oldest_go_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_newer_syn_reopens, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Frames into the receive path, the real lwIP and the servers. The input is a list of commands to peers that know
 * what is needed to get somewhere (addresses, sequence numbers, checksums): connections are opened and carry data in
 * order or out of it, with whatever flags, in what the servers speak or in any bytes; datagrams, fragments, packets
 * that stand for several, ARP, neighbour discovery, DHCP; memory that is refused, a device that is busy, time that goes
 * by. Whatever comes: no sanitizer finding, no assertion of lwIP's, every frame sent is as it must be, and when all is
 * over nothing of it is held any more. */
#include "tests/fuzz/stack.h"
#include "lwip/dhcp.h"
#include "lwip/ip.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/prot/dhcp.h"
#include "lwip/prot/ip6.h"
#include "lwip/prot/tcp.h"
#include "lwip/udp.h"

#include <linux/if_ether.h>

#define SLOTS      4
#define FRAME_MOST 70000u
#define CHUNK      1400u
#define COMMANDS   200
#define GSO_UDP_L4 5 /* of virtio 1.2; not in the uapi headers */

struct peer {
    bool v6;
    uint16_t port, guest_port;
    uint32_t seq, ack;
};

static struct peer peers[SLOTS];
static struct input in;
static uint8_t frame[FRAME_MOST];
static uint8_t flags; /* of the virtio-net header of what follows */
static const uint8_t guest_mac[6] = { 0x52, 0x54, 0, 0x12, 0x34, 0x56 }, peer_mac[6] = { 2, 0, 0, 0, 0, 1 };

/* ---- bytes ---- */

static void put16(uint8_t *at, uint32_t v)
{
    at[0] = (uint8_t)(v >> 8);
    at[1] = (uint8_t)v;
}

static void put32(uint8_t *at, uint32_t v)
{
    put16(at, v >> 16);
    put16(at + 2, v & 0xffff);
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint32_t sum_of(const uint8_t *p, uint32_t n, uint32_t sum)
{
    for (uint32_t i = 0; i < n; i++)
        sum += i & 1 ? p[i] : (uint32_t)p[i] << 8;
    return sum;
}

static uint16_t folded(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

/* `n` bytes of the input, or fewer. */
static uint32_t take_bytes(uint8_t *to, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && more(&in))
        to[i++] = take8(&in);
    return i;
}

/* ---- frames ---- */

static void give(uint32_t n, uint8_t gso_type, uint16_t gso_size)
{
    struct virtio_net_hdr_v1 h = { .flags = flags, .gso_type = gso_type, .gso_size = gso_size };
    if (gso_type == 0 && n < 60) {
        memset(frame + n, 0, 60 - n);
        n = 60;
    }
    if (flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) {
        h.csum_start = ETH_HLEN + 20;
        h.csum_offset = 16;
    }
    stack_give(&h, frame, n);
    stack_turn();
}

static uint8_t *begin(uint16_t type, bool group)
{
    memcpy(frame, guest_mac, 6);
    if (group)
        memcpy(frame, type == ETH_P_IPV6 ? "\x33\x33\0\0\0\1" : "\xff\xff\xff\xff\xff\xff", 6);
    memcpy(frame + 6, peer_mac, 6);
    put16(frame + 12, type);
    return frame + ETH_HLEN;
}

/* Where the payload of an IP packet goes. */
static uint8_t *begin_ip(bool v6)
{
    uint8_t *ip = begin(v6 ? ETH_P_IPV6 : ETH_P_IP, false);
    memset(ip, 0, v6 ? 40 : 20);
    if (v6) {
        ip[0] = 0x60;
        ip[7] = 64;
        ip[8] = ip[24] = 0xfd;
        ip[23] = 1;
        ip[39] = 2;
        return ip + 40;
    }
    ip[0] = 0x45;
    ip[8] = 64;
    put32(ip + 12, 0xc6120001);
    put32(ip + 16, 0xc6120002);
    return ip + 20;
}

/* `checksum`: where in the payload its own is, 0: it has none. */
static uint32_t end_ip(bool v6, uint8_t protocol, uint32_t n, unsigned checksum)
{
    uint8_t *ip = frame + ETH_HLEN, *data = ip + (v6 ? 40 : 20);
    if (v6) {
        put16(ip + 4, n);
        ip[6] = protocol;
    } else {
        put16(ip + 2, 20 + n);
        ip[9] = protocol;
        put16(ip + 10, 0);
        put16(ip + 10, folded(sum_of(ip, 20, 0)));
    }
    if (checksum != 0 && n >= checksum + 2) {
        put16(data + checksum, 0);
        uint32_t pseudo = protocol == 1 ? 0 : v6 ? sum_of(ip + 8, 32, protocol + n) : sum_of(ip + 12, 8, protocol + n);
        put16(data + checksum, folded(sum_of(data, n, pseudo)));
    }
    return ETH_HLEN + (v6 ? 40u : 20u) + n;
}

/* ---- connections ---- */

static void see(const uint8_t *f, uint32_t n)
{
    bool v6 = f[12] == 0x86;
    const uint8_t *ip = f + ETH_HLEN, *tcp = ip + (v6 ? 40 : 20);
    if (f[12] == 8 && f[13] == 6)
        return;
    if (ip[v6 ? 6 : 9] != 6 || n < (uint32_t)(tcp - f) + 20)
        return;
    uint32_t header = (tcp[12] >> 4) * 4u,
             bytes = (v6 ? (uint32_t)ip[4] << 8 | ip[5] : ((uint32_t)ip[2] << 8 | ip[3]) - 20) - header;
    uint32_t end = get32(tcp + 4) + bytes + (tcp[13] & 1) + (tcp[13] >> 1 & 1);
    for (unsigned i = 0; i < SLOTS; i++) {
        struct peer *p = &peers[i];
        if (p->v6 != v6 || p->port != (tcp[2] << 8 | tcp[3]) || p->guest_port != (tcp[0] << 8 | tcp[1]))
            continue;
        if (tcp[13] & TCP_SYN || (int32_t)(end - p->ack) > 0)
            p->ack = end;
    }
}

/* A segment; what `fill` is (NULL: zeros). */
static void segment(const struct peer *p, uint8_t tcp_flags, uint32_t seq, uint32_t ack, uint16_t window,
                    const uint8_t *options, uint32_t option_bytes, const uint8_t *data, uint32_t n, uint16_t gso_size)
{
    uint8_t *tcp = begin_ip(p->v6);
    uint32_t header = 20 + ((option_bytes + 3) & ~3u);
    memset(tcp, 0, header);
    put16(tcp, p->port);
    put16(tcp + 2, p->guest_port);
    put32(tcp + 4, seq);
    put32(tcp + 8, ack);
    tcp[12] = (uint8_t)(header / 4 << 4);
    tcp[13] = tcp_flags;
    put16(tcp + 14, window);
    if (option_bytes > 0)
        memcpy(tcp + 20, options, option_bytes);
    if (n > 0 && data != NULL)
        memcpy(tcp + header, data, n);
    else
        memset(tcp + header, 0, n);
    give(end_ip(p->v6, 6, header + n, 16),
         gso_size == 0 ? 0
         : p->v6       ? VIRTIO_NET_HDR_GSO_TCPV6
                       : VIRTIO_NET_HDR_GSO_TCPV4,
         gso_size);
}

static uint16_t listening_port(uint8_t which)
{
    unsigned n = 0;
    for (const struct tcp_pcb_listen *l = tcp_listen_pcbs.listen_pcbs; l != NULL; l = l->next)
        n++;
    which = (uint8_t)(which % n);
    const struct tcp_pcb_listen *l = tcp_listen_pcbs.listen_pcbs;
    while (which-- > 0)
        l = l->next;
    return l->local_port;
}

static void open_connection(unsigned slot)
{
    static const uint8_t option[] = { 2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1 };
    uint8_t which = take8(&in), how = take8(&in);
    struct peer *p = &peers[slot];
    *p = (struct peer){ .v6 = how & 1,
                        .port = (uint16_t)(how & 2 ? 40000 + slot : 41000 + (how >> 2) + 64 * slot),
                        .guest_port = listening_port(which),
                        .seq = how & 4 ? 0xfffffff0u : 1000 };
    uint32_t n = how & 8 ? 0 : how & 16 ? 4 : how & 32 ? 10 : sizeof option;
    segment(p, TCP_SYN, p->seq, 0, 65535, option, n, NULL, 0, 0);
    p->seq++;
    if (!(how & 0x80))
        segment(p, TCP_ACK, p->seq, p->ack, 65535, NULL, 0, NULL, 0, 0);
}

static void send_data(struct peer *p, const uint8_t *data, uint32_t n)
{
    for (uint32_t at = 0; at < n; at += CHUNK) {
        uint32_t part = n - at < CHUNK ? n - at : CHUNK;
        segment(p, TCP_ACK | TCP_PSH, p->seq, p->ack, 65535, NULL, 0, data + at, part, 0);
        p->seq += part;
    }
}

static void some_data(struct peer *p)
{
    uint8_t data[256];
    send_data(p, data, take_bytes(data, take8(&in)));
}

/* Any flags, place, acknowledgement, window, options. */
static void odd_segment(struct peer *p)
{
    uint8_t data[256], options[40], tcp_flags = take8(&in), how = take8(&in);
    int32_t seq = (int8_t)take8(&in), ack = (int8_t)take8(&in);
    uint16_t window = take16(&in);
    uint32_t option_bytes = how & 1 ? take_bytes(options, take8(&in) % 41) : 0;
    uint32_t n = take_bytes(data, how & 2 ? 0 : take8(&in));
    if (how & 4)
        seq *= 1000;
    if (how & 8)
        ack *= 1000;
    segment(p, tcp_flags, p->seq + (uint32_t)seq, p->ack + (uint32_t)ack, window, options, option_bytes, data, n, 0);
    if (how & 16)
        p->seq += n;
}

/* ---- what the servers are spoken to ---- */

static uint32_t netperf_request(uint8_t *to, uint8_t kind)
{
    static const uint8_t classic[] = { 1, 5, 10, 13, 16, 19, 34, 94 };
    static const uint32_t words[] = { 0x61, ~0u, ~0u, ~0u, 8, 0,   1,   1,   ~0u, ~0u, 8, 0, 1, 1,
                                      0x24, 0,   ~0u, 0,   0, ~0u, ~0u, ~0u, 0,   4,   1, 6, 6, 0x6578 };
    memset(to, 0, 656);
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        put32(to + 4 * i, words[i]);
    put32(to + 152, ~0u);
    put32(to + 156, ~0u);
    if (kind & 1) { /* datagrams */
        put32(to + 96, 2);
        put32(to + 100, 17);
    }
    put32(to + 104, kind & 2 ? kind & 4 ? 2 : 4 : 6);
    if (kind & 8)
        put32(to, classic[kind >> 4 & 7]);
    return 656;
}

static uint32_t words_of(uint8_t *to, uint8_t which)
{
    static const char *const text[] = {
        "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "HEAD /metrics.json HTTP/1.1\r\n\r\n",
        "POST /x HTTP/1.1\r\nContent-Length: 99\r\n\r\n",
        "abcdefghijklmnopqrstuvwxyz0123456789",                  /* and its zero: iperf3's cookie */
        "{\"tcp\":true,\"time\":1,\"parallel\":1,\"len\":1448}", /* behind its length */
        "{\"tcp\":true,\"time\":1,\"parallel\":2,\"bidirectional\":true,\"len\":100,\"num\":5000,\"bandwidth\":99999}",
        "{\"udp\":true,\"time\":1,\"parallel\":1,\"reverse\":true,\"len\":1448,\"bandwidth\":1000000,\"omit\":1}",
    };
    uint32_t n = (uint32_t)strlen(text[which]), head = which > 4 ? 4 : 0;
    put32(to, n);
    memcpy(to + head, text[which], n + 1);
    return head + n + (which == 4);
}

static void say(struct peer *p)
{
    static uint8_t text[1024];
    uint8_t which = take8(&in), patches = take8(&in) % 8;
    uint32_t n = which & 0x80 ? netperf_request(text, which & 0x7f) : words_of(text, which % 8);
    while (patches-- > 0) {
        uint16_t at = take16(&in);
        text[at % n] = take8(&in);
    }
    send_data(p, text, n);
}

/* ---- without connections ---- */

static uint16_t udp_port(uint8_t which)
{
    unsigned n = 0;
    for (const struct udp_pcb *u = udp_pcbs; u != NULL; u = u->next)
        n++;
    which = (uint8_t)(which % n);
    const struct udp_pcb *u = udp_pcbs;
    while (which-- > 0)
        u = u->next;
    return u->local_port;
}

static void datagram(bool large)
{
    uint8_t which = take8(&in), how = take8(&in);
    bool v6 = how & 1;
    uint8_t *udp = begin_ip(v6);
    uint32_t n = large ? take16(&in) % 65000u : take8(&in);
    uint32_t have = take_bytes(udp + 8, n < 255 ? n : 255);
    n = large ? n : have;
    if (large && n > have)
        memset(udp + 8 + have, 0x55, n - have);
    put16(udp, how & 2 ? 7 : 40000u + (how >> 4));
    put16(udp + 2, udp_port(which));
    put16(udp + 4, how & 4 ? n : n + 8);
    uint8_t before = flags;
    flags = large ? VIRTIO_NET_HDR_F_DATA_VALID : flags;
    give(end_ip(v6, 17, n + 8, 6), large ? GSO_UDP_L4 : 0, large ? (uint16_t)(take8(&in) * 8 + 1) : 0);
    flags = before;
}

/* In order, or with some in front that was sent before, or with a gap. */
static void large_segment(struct peer *p, bool odd)
{
    uint32_t n = take16(&in) % 65000u;
    uint16_t size = take16(&in);
    int32_t back = odd ? (int16_t)take16(&in) : 0;
    uint8_t before = flags;
    flags = VIRTIO_NET_HDR_F_DATA_VALID;
    segment(p, TCP_ACK | TCP_PSH, p->seq - (uint32_t)back, p->ack, 65535, NULL, 0, NULL, n, size % 9000 + 1);
    flags = before;
    if (back >= 0 && n > (uint32_t)back)
        p->seq += n - (uint32_t)back;
}

static void raw(void)
{
    uint8_t how = take8(&in);
    if (how & 1) { /* any protocol */
        uint8_t *data = begin_ip(how & 2), protocol = take8(&in);
        uint32_t n = take_bytes(data, take8(&in));
        give(end_ip(how & 2, protocol, n, 0), 0, 0);
        return;
    }
    uint8_t *at = begin(how & 2 ? ETH_P_IP : how & 4 ? ETH_P_IPV6 : how & 8 ? ETH_P_ARP : take16(&in), how & 16);
    give(ETH_HLEN + take_bytes(at, take8(&in)), 0, 0);
}

static void arp(uint8_t how)
{
    uint8_t *a = begin(ETH_P_ARP, how & 1);
    memcpy(a, "\0\1\x08\0\6\4\0\1", 8);
    a[7] = how & 2 ? 2 : 1;
    memcpy(a + 8, peer_mac, 6);
    put32(a + 14, 0xc6120001u + (how >> 4));
    memset(a + 18, 0, 6);
    put32(a + 24, how & 4 ? 0xc6120001u : 0xc6120002u);
    give(ETH_HLEN + 28, 0, 0);
}

static void icmp6(void)
{
    static const uint8_t types[16] = { 135, 136, 134, 133, 137, 128, 129, 1, 2, 3, 4, 130, 131, 132, 143, 0 };
    uint8_t how = take8(&in), code = take8(&in), *icmp = begin_ip(true), *ip = frame + ETH_HLEN;
    ip[7] = 255;
    if (how & 16) { /* link-local source */
        ip[8] = 0xfe;
        ip[9] = 0x80;
    }
    if (how & 32)
        memcpy(ip + 24, "\xff\2\0\0\0\0\0\0\0\0\0\1\xff\0\0\2", 16);
    icmp[0] = types[how & 15];
    icmp[1] = code;
    uint32_t n = 4 + take_bytes(icmp + 4, take8(&in));
    if (how & 64 && n >= 24) /* about us */
        memcpy(icmp + 8, "\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2", 16);
    give(end_ip(true, 58, n, 2), 0, 0);
}

/* What makes the guest know the peer. */
static void solicit(void)
{
    uint8_t *icmp = begin_ip(true);
    frame[ETH_HLEN + 7] = 255;
    memset(icmp, 0, 32);
    icmp[0] = 135;
    icmp[8] = 0xfd;
    icmp[23] = 2;
    icmp[24] = 1;
    icmp[25] = 1;
    memcpy(icmp + 26, peer_mac, 6);
    give(end_ip(true, 58, 32, 2), 0, 0);
}

static void icmp4(void)
{
    uint8_t *icmp = begin_ip(false);
    icmp[0] = take8(&in);
    icmp[1] = take8(&in);
    uint32_t n = 4 + take_bytes(icmp + 4, take8(&in));
    give(end_ip(false, 1, n, 2), 0, 0);
}

static void fragment(void)
{
    uint8_t how = take8(&in), id = take8(&in), protocol = take8(&in) & 1 ? 17 : take8(&in);
    uint16_t offset = how & 2 ? take8(&in) : take16(&in);
    uint8_t *data = begin_ip(how & 1), *ip = frame + ETH_HLEN;
    if (how & 1) {
        data[0] = protocol;
        data[1] = 0;
        put16(data + 2, (uint32_t)offset << 3 | (how >> 2 & 1));
        put32(data + 4, id);
        uint32_t n = take_bytes(data + 8, take8(&in));
        give(end_ip(true, 44, 8 + n, 0), 0, 0);
        return;
    }
    put16(ip + 4, id);
    put16(ip + 6, (offset & 0x1fff) | (how & 4 ? 0x2000 : 0));
    uint32_t n = take_bytes(data, take8(&in));
    give(end_ip(false, protocol, n, 0), 0, 0);
}

/* An answer to what the client has asked last, with any options behind the message's type. */
static void dhcp_answer(void)
{
    const struct dhcp *dhcp = netif_dhcp_data(stack_netif);
    uint8_t kind = take8(&in);
    if (dhcp == NULL) {
        dhcp_start(stack_netif);
        return;
    }
    uint8_t *udp = begin_ip(false), *b = udp + 8;
    put32(frame + ETH_HLEN + 16, kind & 0x80 ? 0xffffffff : 0xc6120002u);
    memset(udp, 0, 8 + 240);
    put16(udp, 67);
    put16(udp + 2, 68);
    memcpy(b, "\2\1\6", 3);
    put32(b + 4, dhcp->xid);
    put32(b + 16, 0xc6120002u + (kind >> 3 & 3));
    put32(b + 20, 0xc6120001u);
    memcpy(b + 28, guest_mac, 6);
    put32(b + 236, 0x63825363);
    b[240] = 53;
    b[241] = 1;
    b[242] = kind & 7;
    uint32_t n = 243 + take_bytes(b + 243, take8(&in));
    put16(udp + 4, 8 + n);
    give(end_ip(false, 17, 8 + n, 6), 0, 0);
}

static void surroundings(void)
{
    static const uint8_t known[4] = { 0, VIRTIO_NET_HDR_F_DATA_VALID, VIRTIO_NET_HDR_F_NEEDS_CSUM, 3 };
    uint8_t how = take8(&in);
    stack_busy = how & 1;
    stack_memory_low = (how & 6) == 6;
    flags = known[how >> 3 & 3];
    if (how & 0x80)
        stack_refuse = 1 + (how >> 5 & 3) + take8(&in) % 64u;
    stack_turn();
}

static void pass(void)
{
    static const uint32_t ms[8] = { 1, 10, 60, 300, 1000, 4000, 20000, 70000 };
    uint8_t how = take8(&in);
    stack_pass(ms[how & 7] * (1 + (how >> 3) % 4u));
}

/* ---- commands ---- */

static void command(void)
{
    uint8_t what = take8(&in);
    struct peer *p = &peers[what >> 4 & 3];
    switch (what & 15) {
    case 0:
        open_connection(what >> 4 & 3);
        break;
    case 1:
        some_data(p);
        break;
    case 2:
        odd_segment(p);
        break;
    case 3:
        segment(p, TCP_ACK, p->seq, p->ack, take16(&in), NULL, 0, NULL, 0, 0);
        break;
    case 4:
        segment(p, TCP_ACK | TCP_FIN, p->seq++, p->ack, 65535, NULL, 0, NULL, 0, 0);
        break;
    case 5:
        segment(p, TCP_RST | (what & 0x40 ? TCP_ACK : 0), p->seq, p->ack, 0, NULL, 0, NULL, 0, 0);
        break;
    case 6:
        say(p);
        break;
    case 7:
        datagram(what & 0x40);
        break;
    case 8:
        raw();
        break;
    case 9:
        pass();
        break;
    case 10:
        arp(take8(&in));
        break;
    case 11:
        icmp6();
        break;
    case 12:
        fragment();
        break;
    case 13:
        if (what & 0x40)
            icmp4();
        else
            dhcp_answer();
        break;
    case 14:
        large_segment(p, what & 0x40);
        break;
    default:
        surroundings();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    stack_start();
    in = (struct input){ data, data + size };
    memset(peers, 0, sizeof peers);
    for (unsigned i = 0; i < SLOTS; i++)
        peers[i].port = (uint16_t)(i + 1);
    flags = 0;
    stack_see = see;
    arp(0);
    solicit();
    for (unsigned n = 0; n < COMMANDS && more(&in); n++)
        command();
    stack_settle();
    return 0;
}

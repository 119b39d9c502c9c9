#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <linux/if_ether.h>
#include "kernel/memory.h"
#include "lwip/priv/tcp_priv.h"
#include "net/pcb_hash.h"
#include "net/timewait.h"

/* Connections in TIME_WAIT that are kept, at most. Looking one up costs the same however many there are, but the pcb of
 * each new connection is the one of the oldest: so many of them stay in a processor's second cache. */
#define KEEP       1024u
#define KEEP_LOW   64u /* when memory is low */
#define IP4_HEADER 20u
#define IP6_HEADER 40u
#define TCP_HEADER 20u
#define PROTOCOL   6u /* TCP */

#define OPTION_END       0
#define OPTION_NOP       1
#define OPTION_TIMESTAMP 8

/* A connection request as it lies in a frame. */
struct syn {
    ip_addr_t source, destination;
    uint16_t source_port, destination_port;
    uint32_t sequence;
    bool has_time;
    uint32_t time; /* of the timestamp option */
};

static struct timewait_stats stats;

const struct timewait_stats *timewait_stats(void)
{
    return &stats;
}

static uint16_t get16(const uint8_t *b)
{
    return (uint16_t)(b[0] << 8 | b[1]);
}

static uint32_t get32(const uint8_t *b)
{
    return (uint32_t)get16(b) << 16 | get16(b + 2);
}

static void find_time(struct syn *syn, const uint8_t *option, const uint8_t *end)
{
    while (option < end && *option != OPTION_END) {
        if (*option == OPTION_NOP) {
            option++;
            continue;
        }
        if (end - option < 2 || option[1] < 2 || end - option < option[1])
            return;
        if (option[0] == OPTION_TIMESTAMP && option[1] == 10) {
            syn->has_time = true;
            syn->time = get32(option + 2);
            return;
        }
        option += option[1];
    }
}

/* The TCP header, if the frame is a whole one with it and asks for a connection (SYN without ACK or RST); NULL
 * otherwise. Behind extension headers it is not looked for. Checksums are lwIP's to check: a damaged SYN can only end a
 * TIME_WAIT early. */
static const uint8_t *find_syn(const uint8_t *frame, uint32_t length)
{
    uint32_t at = ETH_HLEN;
    if (length < ETH_HLEN + IP4_HEADER + TCP_HEADER)
        return NULL;
    uint16_t type = get16(frame + 12);
    if (type == ETH_P_IP && frame[ETH_HLEN + 9] == PROTOCOL && (get16(frame + ETH_HLEN + 6) & 0x1fff) == 0)
        at += (frame[ETH_HLEN] & 15u) * 4u;
    else if (type == ETH_P_IPV6 && frame[ETH_HLEN + 6] == PROTOCOL)
        at += IP6_HEADER;
    else
        return NULL;
    if (at < ETH_HLEN + IP4_HEADER || length < at + TCP_HEADER ||
        (frame[at + 13] & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN)
        return NULL;
    return frame + at;
}

static void read_syn(const uint8_t *frame, uint32_t length, const uint8_t *tcp, struct syn *syn)
{
    const uint8_t *ip = frame + ETH_HLEN, *end = frame + length;
    uint32_t header = (tcp[12] >> 4) * 4u;
    memset(syn, 0, sizeof *syn);
    if (get16(frame + 12) == ETH_P_IP) {
        IP_SET_TYPE_VAL(syn->source, IPADDR_TYPE_V4);
        IP_SET_TYPE_VAL(syn->destination, IPADDR_TYPE_V4);
        memcpy(&ip_2_ip4(&syn->source)->addr, ip + 12, 4);
        memcpy(&ip_2_ip4(&syn->destination)->addr, ip + 16, 4);
    } else {
        IP_SET_TYPE_VAL(syn->source, IPADDR_TYPE_V6);
        IP_SET_TYPE_VAL(syn->destination, IPADDR_TYPE_V6);
        memcpy(ip_2_ip6(&syn->source)->addr, ip + 8, 16);
        memcpy(ip_2_ip6(&syn->destination)->addr, ip + 24, 16);
    }
    syn->source_port = get16(tcp);
    syn->destination_port = get16(tcp + 2);
    syn->sequence = get32(tcp + 4);
    if (header > TCP_HEADER && header <= (uint32_t)(end - tcp))
        find_time(syn, tcp + TCP_HEADER, tcp + header);
}

/* Zones are left out: there is one interface. */
static bool same_address(const ip_addr_t *a, const ip_addr_t *b)
{
    if (IP_GET_TYPE(a) != IP_GET_TYPE(b))
        return false;
    return IP_IS_V6(a) ? ip6_addr_zoneless_eq(ip_2_ip6(a), ip_2_ip6(b)) : ip4_addr_eq(ip_2_ip4(a), ip_2_ip4(b));
}

static bool matches(const struct tcp_pcb *pcb, const struct syn *syn)
{
    return pcb->remote_port == syn->source_port && pcb->local_port == syn->destination_port &&
           same_address(&pcb->remote_ip, &syn->source) && same_address(&pcb->local_ip, &syn->destination);
}

static bool is_newer(const struct tcp_pcb *pcb, const struct syn *syn)
{
    if (TCP_SEQ_GT(syn->sequence, pcb->rcv_nxt))
        return true;
    return syn->has_time && (pcb->flags & TF_TIMESTAMP) != 0 && TCP_SEQ_GT(syn->time, pcb->ts_recent);
}

void timewait_entered(void)
{
    while (pcb_hash_stats()->time_wait > KEEP || (pcb_hash_stats()->time_wait > KEEP_LOW && heap_low())) {
        tcp_abort(pcb_hash_oldest()); /* sends nothing in TIME_WAIT */
        stats.evicted++;
    }
}

void timewait_make_way(const uint8_t *frame, uint32_t length)
{
    struct syn syn;
    const uint8_t *tcp = tcp_tw_pcbs != NULL ? find_syn(frame, length) : NULL;
    if (tcp == NULL)
        return;
    read_syn(frame, length, tcp, &syn);
    struct tcp_pcb *pcb = pcb_hash_first(&syn.source, syn.source_port, &syn.destination, syn.destination_port);
    while (pcb != NULL && !matches(pcb, &syn))
        pcb = pcb->hash_next;
    if (pcb == NULL || pcb->state != TIME_WAIT || !is_newer(pcb, &syn))
        return;
    tcp_abort(pcb);
    stats.reopened++;
}

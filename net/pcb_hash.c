#include <stddef.h>
#include <stdlib.h>
#include "kernel/random.h"
#include "lwip/priv/tcp_priv.h"
#include "net/acks.h"
#include "net/pcb_hash.h"
#include "net/timewait.h"

#define FEWEST 256u /* buckets at the start, and at least */

static struct tcp_pcb *few[FEWEST], **table = few;
static struct pcb_hash_stats stats = { .buckets = FEWEST };
static uint32_t too_many = FEWEST; /* with more connections than that the table is to grow */
static struct tcp_pcb *oldest;
static uint64_t key[11];

void pcb_hash_init(void)
{
    for (unsigned i = 0; i < sizeof key / sizeof *key; i++)
        key[i] = random_next();
}

const struct pcb_hash_stats *pcb_hash_stats(void)
{
    return &stats;
}

struct tcp_pcb *pcb_hash_oldest(void)
{
    return oldest;
}

/* What is linear in a port or an address is not any more; one to one. */
static uint32_t stir(uint32_t hash)
{
    hash ^= hash >> 15;
    hash *= 0x9e3779b1u;
    return hash ^ hash >> 16;
}

/* Sums of products of pairs of words, each masked with a word of the key, of which the upper half is taken (Lemire and
 * Kaser, "Strongly universal string hashing is fast", 2014, Multilinear-HM): any two connections share a hash with a
 * chance of 2^-32, whoever chose them, as long as the key is not known. Ports in turn would still come in steps that
 * some keys make fall into few buckets: hence the stirring. IPv6 addresses count without their zones. */
static uint32_t hash_of(const ip_addr_t *remote, uint16_t remote_port, const ip_addr_t *local, uint16_t local_port)
{
    uint64_t sum = key[0] + (key[1] + ((uint32_t)remote_port << 16 | local_port)) * key[2];
    if (!IP_IS_V6(remote))
        return stir((uint32_t)((sum + (key[3] + ip_2_ip4(remote)->addr) * (key[4] + ip_2_ip4(local)->addr)) >> 32));
    for (unsigned i = 0; i < 4; i++)
        sum += (key[3 + 2 * i] + ip_2_ip6(remote)->addr[i]) * (key[4 + 2 * i] + ip_2_ip6(local)->addr[i]);
    return stir((uint32_t)(sum >> 32));
}

static struct tcp_pcb **bucket_of(uint32_t hash)
{
    return &table[hash & (stats.buckets - 1)];
}

static void put(struct tcp_pcb *pcb)
{
    struct tcp_pcb **bucket = bucket_of(pcb->hash);
    pcb->hash_next = *bucket;
    *bucket = pcb;
}

/* Another number of buckets (a power of two). Without memory for them it stays as it is: slower, but right. */
static void resize(uint32_t buckets)
{
    struct tcp_pcb **old = table, **made = buckets == FEWEST ? few : calloc(buckets, sizeof(struct tcp_pcb *));
    uint32_t before = stats.buckets;
    if (made == NULL) {
        if (buckets > before)
            too_many *= 2; /* not at each new connection again */
        return;
    }
    table = made;
    stats.buckets = too_many = buckets;
    for (uint32_t i = 0; i < before; i++) {
        for (struct tcp_pcb *pcb = old[i], *next; pcb != NULL; pcb = next) {
            next = pcb->hash_next;
            put(pcb);
        }
        old[i] = NULL;
    }
    if (old != few)
        free(old);
}

static bool is_hashed(struct tcp_pcb **list)
{
    return list == &tcp_active_pcbs || list == &tcp_tw_pcbs;
}

void pcb_hash_add(struct tcp_pcb **list, struct tcp_pcb *pcb)
{
    if (!is_hashed(list))
        return;
    pcb->link = list;
    if (pcb->next != NULL)
        pcb->next->link = &pcb->next;
    pcb->hash = hash_of(&pcb->remote_ip, pcb->remote_port, &pcb->local_ip, pcb->local_port);
    put(pcb);
    if (list == &tcp_active_pcbs) {
        stats.active++;
    } else {
        stats.time_wait++;
        if (pcb->next == NULL)
            oldest = pcb;
        timewait_entered();
    }
    if (stats.active + stats.time_wait > too_many)
        resize(stats.buckets * 2);
}

static void take(struct tcp_pcb *pcb)
{
    struct tcp_pcb **at = bucket_of(pcb->hash);
    while (*at != pcb)
        at = &(*at)->hash_next;
    *at = pcb->hash_next;
}

struct tcp_pcb **pcb_hash_remove(struct tcp_pcb **list, struct tcp_pcb *pcb)
{
    static struct tcp_pcb *nowhere;
    if (!is_hashed(list))
        return NULL; /* a listener has no links */
    struct tcp_pcb **link = pcb->link;
    if (link == NULL)
        return &nowhere;
    take(pcb);
    pcb->link = NULL;
    if (pcb->next != NULL)
        pcb->next->link = link;
    if (list == &tcp_active_pcbs)
        stats.active--;
    else
        stats.time_wait--;
    if (pcb->held > 0)
        acks_forget(pcb);
    if (pcb == oldest) /* the last of its list; now that is the one before it, whose `next` its link is */
        oldest = link == list ? NULL : (struct tcp_pcb *)((char *)link - offsetof(struct tcp_pcb, next));
    if (stats.buckets > FEWEST && stats.active + stats.time_wait == stats.buckets / 8)
        resize(stats.buckets / 2);
    return link;
}

struct tcp_pcb *pcb_hash_first(const ip_addr_t *remote, uint16_t remote_port, const ip_addr_t *local,
                               uint16_t local_port)
{
    return *bucket_of(hash_of(remote, remote_port, local, local_port));
}

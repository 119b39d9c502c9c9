#include <stdlib.h>
#include <string.h>
#include <linux/if_ether.h>
#include "apps/app.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/memory.h"
#include "kernel/panic.h"
#include "kernel/public.h"
#include "kernel/smp.h"
#include "kernel/traps.h"
#include "lwip/ip.h"
#include "net/buffer.h"
#include "net/netif.h"
#include "net/reassemble.h"
#include "net/rss.h"
#include "net/steer.h"

#define PARCELS_MAX 256 /* copies that other cores may have not read yet */

/* What messages mean. */
enum message_kind {
    MESSAGE_FRAME =
        1, /* c: the first buffer of a frame, linked by `next`; a, d: its flags, gso_size, b: bytes before Ethernet */
    MESSAGE_FRAGMENT,      /* the same, of a datagram that the receiver is to reassemble */
    MESSAGE_FRAME_COPY,    /* c: a parcel with a whole frame; a, d: its flags, gso_size */
    MESSAGE_FRAGMENT_COPY, /* the same, to be reassembled */
    MESSAGE_SPREAD,        /* the same as a copy of a frame, which every core gets */
    MESSAGE_DATAGRAM,      /* c: a parcel with a reassembled datagram */
    MESSAGE_ADDRESS,       /* b: address, c: mask, d: gateway */
    MESSAGE_LINK,          /* a: up */
    MESSAGE_APP,           /* a: number of the application; b, c, d, e: its own (struct app_message) */
};

/* Bytes for other cores, in this core's heap: each reader copies them and counts itself off; the sender frees it when
 * all have. */
struct parcel {
    struct parcel *next;
    uint32_t readers; /* left to read it; the last store is the release that the sender's look acquires */
    uint32_t length;
    uint8_t data[];
};

/* A message that waits: to this core itself, or for room in another's mailbox. */
struct waiting {
    struct waiting *next;
    unsigned to;
    struct message message;
};

static struct rss *rss; /* NULL on one core: it owns everything */
static struct mailbox box;
static struct public_core *me; /* this core's part of the public area */
static struct netif *interface;
static unsigned cores = 1;
static struct parcel *parcels; /* not read by all yet, newest first */
static unsigned parcel_count;
static struct waiting *waiting, **waiting_end = &waiting;
static struct steer_stats stats;

static struct public_core *face(unsigned core)
{
    return (struct public_core *)&core_shared()->public_area->core[core];
}

const struct steer_stats *steer_stats(void)
{
    return &stats;
}

const struct mailbox *steer_mailbox(void)
{
    return &box;
}

static void on_wake(void *argument)
{
    (void)argument;
    stats.woken++; /* it has ended cpu_halt(), which was all it was for */
}

void steer_init(void)
{
    irq_install(VECTOR_WAKE, on_wake, NULL);
    me = face(core_number());
    mailbox_open(&box, core_shared()->public_area->mailboxes, core_number());
}

void steer_plan(unsigned pairs)
{
    cores = pairs;
    if (pairs == 1)
        return;
    if (rss == NULL)
        rss = heap_alloc_aligned(sizeof *rss, 64);
    if (rss == NULL)
        panic("no memory to steer by");
    rss_init(rss, rss_default_key, pairs);
}

const uint8_t *steer_key(void)
{
    return rss_default_key;
}

const uint8_t *steer_table(void)
{
    return rss == NULL ? NULL : rss->table;
}

void steer_start(struct netif *netif)
{
    interface = netif;
}

/* ---- parcels ---- */

static void free_read_parcels(void)
{
    for (struct parcel **at = &parcels; *at != NULL;) {
        struct parcel *p = *at;
        if (__atomic_load_n(&p->readers, __ATOMIC_ACQUIRE) != 0) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        parcel_count--;
        free(p);
    }
}

static struct parcel *new_parcel(uint32_t length, uint32_t readers)
{
    if (parcel_count >= PARCELS_MAX)
        free_read_parcels();
    bool fits = parcel_count < PARCELS_MAX && length <= UINT16_MAX; /* a pbuf's length has 16 bits */
    struct parcel *p = fits ? malloc(sizeof *p + length) : NULL;
    if (p == NULL) {
        stats.dropped_memory++;
        return NULL;
    }
    *p = (struct parcel){ .next = parcels, .readers = readers, .length = length };
    parcels = p;
    parcel_count++;
    return p;
}

static void done_reading(struct parcel *p)
{
    __atomic_fetch_sub(&p->readers, 1, __ATOMIC_RELEASE);
}

static uint16_t gso_size_of(const struct virtnet_frame *frame)
{
    return frame->flags & VIRTNET_FRAME_LARGE ? frame->gso_size : 0;
}

/* `flags`, `gso_size`: the frame's. */
static void post_parcel(unsigned to, enum message_kind kind, struct parcel *p, uint8_t flags, uint16_t gso_size)
{
    struct message m = { .kind = (uint16_t)kind, .a = flags, .c = (uint64_t)(uintptr_t)p, .d = gso_size };
    if (mailbox_post(&box, to, &m))
        return;
    stats.dropped_mail++;
    done_reading(p);
}

/* A parcel's bytes as a pbuf of this core's. */
static struct pbuf *unpack(struct parcel *parcel)
{
    struct pbuf *p = pbuf_alloc(PBUF_RAW, (u16_t)parcel->length, PBUF_RAM);
    if (p != NULL)
        pbuf_take(p, parcel->data, (u16_t)parcel->length);
    else
        stats.dropped_memory++;
    done_reading(parcel);
    return p;
}

/* ---- frames that come in ---- */

static void copy_out(const struct virtnet_frame *frame, uint32_t header, uint8_t *to)
{
    for (uint16_t i = 0; i < frame->count; i++) {
        uint32_t skip = i == 0 ? header : 0, n = frame->length[i] - skip;
        memcpy(to, frame->buffer[i]->data + skip, n);
        to += n;
    }
}

static uint32_t bytes_of(const struct virtnet_frame *frame, uint32_t header)
{
    uint32_t n = 0;
    for (uint16_t i = 0; i < frame->count; i++)
        n += frame->length[i];
    return n - header;
}

/* To every other core as a copy; the caller goes on with the frame itself. */
static void spread(const struct virtnet_frame *frame, uint32_t header)
{
    struct parcel *p = new_parcel(bytes_of(frame, header), cores - 1);
    if (p == NULL)
        return;
    copy_out(frame, header, p->data);
    stats.spread++;
    for (unsigned to = 0; to < cores; to++)
        if (to != core_number())
            post_parcel(to, MESSAGE_SPREAD, p, frame->flags, gso_size_of(frame));
}

/* To its owner as a copy: this core's buffers are running low, and the owner may keep what it gets for long. */
static void send_copy(const struct virtnet_frame *frame, uint32_t header, unsigned owner, bool fragment)
{
    struct parcel *p = new_parcel(bytes_of(frame, header), 1);
    if (p != NULL) {
        copy_out(frame, header, p->data);
        stats.handed_over++;
        post_parcel(owner, fragment ? MESSAGE_FRAGMENT_COPY : MESSAGE_FRAME_COPY, p, frame->flags, gso_size_of(frame));
    }
    buffers_release(frame);
}

/* To its owner, as it lies: the owner reads our buffers, and they come home by the list of returned ones. */
static void hand_over(const struct virtnet_frame *frame, uint32_t header, unsigned owner, bool fragment)
{
    if (buffers_low(frame)) {
        send_copy(frame, header, owner, fragment);
        return;
    }
    buffers_link(frame);
    struct message m = {
        .kind = fragment ? MESSAGE_FRAGMENT : MESSAGE_FRAME,
        .a = frame->flags,
        .b = header,
        .c = (uint64_t)(uintptr_t)frame->buffer[0],
        .d = gso_size_of(frame),
    };
    if (mailbox_post(&box, owner, &m)) {
        stats.handed_over++;
        return;
    }
    stats.dropped_mail++;
    buffers_release(frame);
}

/* A frame with a fragment on the core that its addresses hash to: reassembled here, then steered as a whole. It is a
 * copy (NULL: there was no memory for it): fragments wait up to 15 s for their fellows, and must not keep receive
 * buffers so long. */
static void reassemble(struct pbuf *p)
{
    if (p == NULL) {
        stats.dropped_memory++;
        return;
    }
    uint8_t start[ETH_HLEN + 64 + 8] = { 0 };
    pbuf_copy_partial(p, start, ETH_HLEN, 0);
    p = net_reassemble(interface, p);
    if (p == NULL)
        return;
    uint16_t n = pbuf_copy_partial(p, start + ETH_HLEN, sizeof start - ETH_HLEN, 0);
    struct rss_result where = rss_parse(rss, start, ETH_HLEN + n);
    unsigned owner = where.kind == RSS_PORTS ? rss_owner(rss, where.hash) : core_number();
    if (owner == core_number()) {
        net_netif_trust(interface, 0); /* whatever a device says of a fragment, it has not seen the whole */
        if (ip_input(p, interface) != ERR_OK)
            pbuf_free(p);
        return;
    }
    struct parcel *parcel = new_parcel(p->tot_len, 1);
    if (parcel != NULL) {
        pbuf_copy_partial(p, parcel->data, p->tot_len, 0);
        stats.handed_over++;
        post_parcel(owner, MESSAGE_DATAGRAM, parcel, 0, 0);
    }
    pbuf_free(p);
}

bool steer_frame(const struct virtnet_frame *frame, uint32_t header)
{
    if (cores == 1)
        return false;
    struct rss_result where = rss_parse(rss, frame->buffer[0]->data + header, frame->length[0] - header);
    unsigned owner = core_number();
    switch (where.kind) {
    case RSS_OTHER:
        return false;
    case RSS_EVERYBODY:
        spread(frame, header);
        return false;
    case RSS_CONTROL:
        owner = 0;
        break;
    case RSS_PORTS:
        if (frame->hash_report != 0 && frame->hash != where.hash)
            stats.hash_differs++;
        owner = rss_owner(rss, where.hash);
        break;
    default:
        owner = rss_owner(rss, where.hash);
        break;
    }
    bool fragment = where.kind == RSS_FRAGMENT && net_can_reassemble(interface, frame->buffer[0]->data + header);
    if (owner != core_number()) {
        hand_over(frame, header, owner, fragment);
        return true;
    }
    if (fragment)
        reassemble(buffers_copy(frame, header));
    return fragment;
}

/* ---- messages of applications ---- */

unsigned steer_cores(void)
{
    return cores;
}

static void deliver(unsigned from, const struct message *m)
{
    struct app_message message = { m->b, m->c, m->d, m->e };
    stats.app_messages++;
    app_deliver(m->a, from, &message);
}

static void wait_in_line(struct waiting *w)
{
    w->next = NULL;
    *waiting_end = w;
    waiting_end = &w->next;
}

/* Only what waits when this is called: a message to oneself may be answered by another. */
static unsigned move_waiting(void)
{
    struct waiting *w = waiting, *next;
    unsigned n = 0;
    uint64_t full = 0; /* cores whose mailbox is: later messages must not overtake earlier ones */
    waiting = NULL;
    waiting_end = &waiting;
    for (; w != NULL; w = next) {
        next = w->next;
        if (w->to != core_number() && ((full >> w->to & 1) != 0 || !mailbox_post(&box, w->to, &w->message))) {
            full |= 1ull << w->to;
            wait_in_line(w);
            continue;
        }
        if (w->to == core_number())
            deliver(w->to, &w->message);
        free(w);
        n++;
    }
    return n;
}

static bool has_waiting(unsigned to)
{
    for (const struct waiting *w = waiting; w != NULL; w = w->next)
        if (w->to == to)
            return true;
    return false;
}

bool steer_post_app(unsigned to, unsigned app, const struct app_message *message)
{
    struct message m = { (uint16_t)MESSAGE_APP, (uint16_t)app, message->kind, message->a, message->b, message->c };
    if (to != core_number() && !has_waiting(to) && mailbox_post(&box, to, &m))
        return true;
    struct waiting *w = malloc(sizeof *w);
    if (w == NULL) {
        stats.dropped_app++;
        return false;
    }
    w->to = to;
    w->message = m;
    wait_in_line(w);
    return true;
}

/* ---- what comes from other cores ---- */

static void take_frame(const struct message *m)
{
    struct virtnet_frame frame;
    buffers_unlink((struct rx_buffer *)(uintptr_t)m->c, &frame);
    frame.flags = (uint8_t)m->a;
    frame.gso_size = (uint16_t)m->d;
    stats.taken_over++;
    if (m->kind == MESSAGE_FRAGMENT)
        reassemble(buffers_copy(&frame, m->b));
    else
        net_netif_input(interface, &frame, m->b);
}

static void take_parcel(const struct message *m)
{
    struct pbuf *p = unpack((struct parcel *)(uintptr_t)m->c);
    if (p == NULL)
        return;
    stats.taken_over += m->kind != MESSAGE_SPREAD;
    if (m->kind == MESSAGE_FRAGMENT_COPY) {
        reassemble(p);
        return;
    }
    if (m->kind != MESSAGE_DATAGRAM) {
        net_netif_pass(interface, p, (uint8_t)m->a, (uint16_t)m->d);
        return;
    }
    net_netif_trust(interface, 0);
    if (ip_input(p, interface) != ERR_OK)
        pbuf_free(p);
}

static void take_address(const struct message *m)
{
    ip4_addr_t ip = { m->b }, mask = { (u32_t)m->c }, gateway = { (u32_t)m->d };
    netif_set_addr(interface, &ip, &mask, &gateway);
}

static void take(unsigned from, const struct message *m)
{
    switch (m->kind) {
    case MESSAGE_FRAME:
    case MESSAGE_FRAGMENT:
        take_frame(m);
        break;
    case MESSAGE_FRAME_COPY:
    case MESSAGE_FRAGMENT_COPY:
    case MESSAGE_SPREAD:
    case MESSAGE_DATAGRAM:
        take_parcel(m);
        break;
    case MESSAGE_ADDRESS:
        take_address(m);
        break;
    case MESSAGE_LINK:
        net_netif_set_link(interface, m->a != 0);
        break;
    case MESSAGE_APP:
        deliver(from, m);
        break;
    default:
        log_error("steer", "message of unknown kind %u", m->kind);
    }
}

unsigned steer_receive(unsigned budget)
{
    struct message m;
    uint32_t from;
    unsigned n = waiting != NULL ? move_waiting() : 0;
    if (parcels == NULL && !steer_pending()) /* as good as always: a flow's packets come in by its owner's queue */
        return n;
    while (n < budget && mailbox_take(&box, &from, &m)) {
        take(from, &m);
        n++;
    }
    n += buffers_come_home(me, &stats.returned);
    if (parcels != NULL)
        free_read_parcels();
    return n;
}

/* ---- waking and sleeping ---- */

static void wake(uint64_t whom)
{
    for (; whom != 0; whom &= whom - 1)
        core_wake(core_shared(), (unsigned)__builtin_ctzll(whom));
}

void steer_flush(void)
{
    if (cores > 1)
        wake(mailbox_ring(&box));
}

bool steer_pending(void)
{
    if (waiting != NULL)
        return true;
    return cores > 1 && (mailbox_pending(&box) || __atomic_load_n(&me->returned, __ATOMIC_RELAXED) != NULL);
}

bool steer_sleep(void)
{
    if (cores == 1)
        return waiting == NULL;
    __atomic_store_n(&me->starved, net_netif_starved(interface), __ATOMIC_SEQ_CST);
    return waiting == NULL && mailbox_sleep(&box) && __atomic_load_n(&me->returned, __ATOMIC_SEQ_CST) == NULL;
}

void steer_awake(void)
{
    if (cores > 1)
        mailbox_awake(&box);
}

void steer_wake_all(void)
{
    for (unsigned i = 0; i < cores; i++)
        if (i != core_number() && __atomic_exchange_n(&box.system->bell[i].halted, 0, __ATOMIC_SEQ_CST) != 0)
            core_wake(core_shared(), i);
}

/* ---- what core 0 tells ---- */

static void tell(const struct message *m)
{
    for (unsigned to = 1; to < cores; to++)
        if (!mailbox_post(&box, to, m))
            log_error("steer", "core %u does not take a message of kind %u: its mailbox is full", to, m->kind);
}

void steer_tell_address(uint32_t ip, uint32_t mask, uint32_t gateway)
{
    if (core_number() == 0)
        tell(&(struct message){ .kind = MESSAGE_ADDRESS, .b = ip, .c = mask, .d = gateway });
}

void steer_tell_link(bool up)
{
    if (core_number() == 0)
        tell(&(struct message){ .kind = MESSAGE_LINK, .a = up });
}

/* ---- what only core 0 sends ---- */

#define ARP_REPLY        2
#define ICMP6_RS         133
#define ICMP6_NS         135
#define ICMP6_NA         136
#define ICMP6_MLD_REPORT 131
#define ICMP6_MLD_DONE   132
#define ICMP6_MLD2       143

static bool swallows_arp(const uint8_t *arp)
{
    return (arp[6] << 8 | arp[7]) == ARP_REPLY || memcmp(arp + 14, arp + 24, 4) == 0;
}

static bool swallows_icmp6(const uint8_t *ip, const uint8_t *icmp)
{
    static const uint8_t unspecified[16];
    switch (icmp[0]) {
    case ICMP6_RS:
    case ICMP6_NA:
    case ICMP6_MLD_REPORT:
    case ICMP6_MLD_DONE:
    case ICMP6_MLD2:
        return true;
    case ICMP6_NS:
        return memcmp(ip + 8, unspecified, 16) == 0; /* duplicate address detection */
    default:
        return false;
    }
}

static bool swallows(const struct pbuf *p)
{
    uint8_t start[ETH_HLEN + 40 + 8 + 1];
    uint16_t n = pbuf_copy_partial(p, start, sizeof start, 0), type = (uint16_t)(start[12] << 8 | start[13]);
    const uint8_t *ip = start + ETH_HLEN;
    bool swallowed = false;
    if (type == ETH_P_ARP && n >= ETH_HLEN + 28)
        swallowed = swallows_arp(ip);
    else if (type == ETH_P_IPV6 && n > ETH_HLEN + 40 && ip[6] == 58)
        swallowed = swallows_icmp6(ip, ip + 40);
    else if (type == ETH_P_IPV6 && n == sizeof start && ip[6] == 0 && ip[40] == 58) /* behind the router alert option */
        swallowed = swallows_icmp6(ip, ip + 48);
    stats.swallowed += swallowed;
    return swallowed;
}

bool steer_swallows(const struct pbuf *p)
{
    const uint8_t *frame = p->payload;
    if (core_number() == 0)
        return false;
    bool is_ip4 = p->len >= ETH_HLEN && (frame[12] << 8 | frame[13]) == ETH_P_IP;
    return !is_ip4 && swallows(p);
}

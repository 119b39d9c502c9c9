/* See stack.h. */
#include "tests/fuzz/stack.h"
#include "apps/app.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/memory.h"
#include "kernel/panic.h"
#include "kernel/public.h"
#include "kernel/random.h"
#include "kernel/recover.h"
#include "kernel/smp.h"
#include "kernel/traps.h"
#include "lwip/dhcp.h"
#include "lwip/init.h"
#include "lwip/ip.h"
#include "lwip/ip4_frag.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/prot/tcp.h"
#include "lwip/timeouts.h"
#include "net/acks.h"
#include "net/counters.h"
#include "net/hooks.h"
#include "net/loop.h"
#include "net/netif.h"
#include "net/pcb_hash.h"
#include "net/steer.h"
#include "tests/unit/net_rig.h"

#define B(name) FEATURE_BIT(VIRTIO_NET_F_##name)
#define FEATURES                                                                                                       \
    (FEATURE_BIT(VIRTIO_F_VERSION_1) | MRG | CSUM | EVENT | INDIR | B(CSUM) | B(GUEST_TSO4) | B(GUEST_TSO6) |          \
     B(HOST_TSO4) | B(HOST_TSO6) | B(GUEST_USO4_BIT) | B(GUEST_USO6_BIT) | B(HOST_USO_BIT))
#define SETTLE_MS   200000u /* longer than anything lasts: fragments 60 s, an iperf2 flow 30 s, FIN_WAIT_2, TIME_WAIT */
#define STEPS_MOST  20000u
#define TIME_BEGINS 1000000000000u

struct netif *stack_netif;
bool stack_busy, stack_memory_low;
void (*stack_see)(const uint8_t *frame, uint32_t n);
unsigned stack_refuse;
static uint64_t now = TIME_BEGINS;
static struct public_area area;
static struct shared shared = { .core_count = 1, .public_area = &area };

/* ---- what the guest's lower half would be ---- */

static bool refused(void)
{
    return stack_refuse > 0 && --stack_refuse == 0;
}

void *heap_take(size_t n)
{
    return refused() ? NULL : malloc(n);
}

void *heap_take_cleared(size_t n, size_t each)
{
    return refused() ? NULL : calloc(n, each);
}

void heap_give(void *p)
{
    free(p);
}

bool heap_low(void)
{
    return stack_memory_low;
}

bool heap_below(unsigned share)
{
    (void)share;
    return stack_memory_low;
}

const struct heap_stats *heap_counters(void)
{
    static struct heap_stats none;
    return &none;
}

uint64_t clock_ns(void)
{
    return now;
}

uint64_t random_next(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    return chance(&state);
}

uint64_t random_hash(const void *input, size_t n)
{
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)input)[i]) * 0x100000001b3;
    return h;
}

void panic(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("not true: panic: ", stderr);
    vfprintf(stderr, format, args);
    va_end(args);
    abort();
}

void console_plain(const char *format, ...)
{
    (void)format;
}

const struct shared *core_shared(void)
{
    return &shared;
}

unsigned core_number(void)
{
    return 0;
}

void core_wake(const struct shared *s, unsigned core)
{
    (void)s, (void)core;
}

void irq_install(uint8_t vector, void (*handler)(void *argument), void *argument)
{
    (void)vector, (void)handler, (void)argument;
}

const struct loop_stats *net_loop_stats(void)
{
    static struct loop_stats none;
    return &none;
}

const struct recover_stats *recover_stats(void)
{
    static struct recover_stats none;
    return &none;
}

const char *virtnet_interrupts_name(const struct virtnet *net)
{
    (void)net;
    return "none";
}

bool virtnet_link_up(struct virtnet *net)
{
    (void)net;
    return true;
}

/* ---- applications ---- */

extern const struct app app_chargen, app_discard, app_echo, app_http, app_iperf2, app_iperf3, app_netserver;
static const struct app *const apps[] = { &app_chargen, &app_discard, &app_echo,     &app_http,
                                          &app_iperf2,  &app_iperf3,  &app_netserver };

unsigned app_number(const struct app *app)
{
    for (unsigned i = 0; i < COUNT_OF(apps); i++)
        if (apps[i] == app)
            return i;
    abort();
}

void app_deliver(unsigned number, unsigned from, const struct app_message *message)
{
    must(number < COUNT_OF(apps) && apps[number]->message != NULL);
    apps[number]->message(from, message);
}

/* ---- the device ---- */

bool stack_give(const struct virtio_net_hdr_v1 *header, const uint8_t *frame, uint32_t n)
{
    static uint8_t bytes[VIRTNET_HEADER + 70000];
    uint32_t all = VIRTNET_HEADER + n, room = net_rig.pair->pool.data_size, count = (all + room - 1) / room;
    struct virtio_net_hdr_v1 h = *header;
    if (all > sizeof bytes || count > net_rig_buffers())
        return false;
    h.num_buffers = (uint16_t)count;
    memcpy(bytes, &h, sizeof h);
    memcpy(bytes + sizeof h, frame, n);
    for (uint32_t at = 0; at < all; at += room)
        net_rig_write_raw(bytes + at, all - at < room ? all - at : room, all - at < room ? all - at : room);
    fake_device_publish(&net_rig.rx);
    return true;
}

static uint32_t sum_of(const uint8_t *p, uint32_t n, uint32_t sum)
{
    for (uint32_t i = 0; i < n; i++)
        sum += i & 1 ? p[i] : (uint32_t)p[i] << 8;
    return sum;
}

static uint16_t fold(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

/* TCP, UDP and ICMPv6 of a whole packet: what is sent is summed up, or left to the device with the pseudo-header's sum
 * in place. */
static void check_sum(const struct virtio_net_hdr_v1 *h, const uint8_t *addresses, uint32_t address_bytes,
                      uint8_t protocol, const uint8_t *data, uint32_t n, uint32_t start)
{
    uint32_t pseudo = sum_of(addresses, address_bytes, protocol + n);
    if (h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) {
        must(h->csum_start == start && h->csum_offset == (protocol == 6 ? 16 : 6));
        must(fold(pseudo) == (data[h->csum_offset] << 8 | data[h->csum_offset + 1]));
    } else if (protocol == 6 || protocol == 58 || (protocol == 17 && (data[6] | data[7]) != 0)) {
        must(fold(sum_of(data, n, pseudo)) == 0xffff);
    }
}

static void check_packet(const struct virtio_net_hdr_v1 *h, const uint8_t *frame, uint32_t n)
{
    const uint8_t *ip = frame + ETH_HLEN;
    uint16_t type = (uint16_t)(frame[12] << 8 | frame[13]);
    if (type == ETH_P_IP) {
        must(n >= ETH_HLEN + 20 && ip[0] == 0x45);
        uint32_t total = (uint32_t)ip[2] << 8 | ip[3], fragment = ((uint32_t)ip[6] << 8 | ip[7]) & 0x3fff;
        must(total >= 20 && total <= n - ETH_HLEN && fold(sum_of(ip, 20, 0)) == 0xffff);
        must(fragment == 0 || h->flags == 0); /* a device has only part of what the sum is over */
        if (fragment == 0 && (ip[9] == 6 || ip[9] == 17)) {
            must(total >= 20 + (ip[9] == 6 ? 20u : 8u));
            check_sum(h, ip + 12, 8, ip[9], ip + 20, total - 20, ETH_HLEN + 20);
        }
    } else if (type == ETH_P_IPV6) {
        must(n >= ETH_HLEN + 40 && ip[0] >> 4 == 6);
        uint32_t length = (uint32_t)ip[4] << 8 | ip[5];
        must(length <= n - ETH_HLEN - 40);
        if (ip[6] == 6 || ip[6] == 17 || ip[6] == 58)
            check_sum(h, ip + 8, 32, ip[6], ip + 40, length, ETH_HLEN + 40);
    } else {
        must(type == ETH_P_ARP && n >= ETH_HLEN + 28);
    }
}

static void check_sent(const struct virtio_net_hdr_v1 *h, const uint8_t *frame, uint32_t n)
{
    must(n >= ETH_HLEN && h->num_buffers == 0 && (h->flags & ~VIRTIO_NET_HDR_F_NEEDS_CSUM) == 0);
    if (h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)
        must((uint32_t)h->csum_start + h->csum_offset + 2 <= n);
    if (h->gso_type == VIRTIO_NET_HDR_GSO_NONE)
        must(n <= ETH_HLEN + 1500u);
    else
        must(h->gso_size > 0 && h->hdr_len < n && h->flags != 0 && h->hdr_len + h->gso_size <= ETH_HLEN + 1500u);
    check_packet(h, frame, n);
}

static void take_sent(void)
{
    static uint8_t bytes[VIRTNET_HEADER + 70000];
    struct fake_chain chain;
    while (fake_device_take(&net_rig.tx, &chain)) {
        uint32_t n = 0;
        must(chain.writable == 0 && chain.readable <= sizeof bytes && chain.readable >= VIRTNET_HEADER);
        for (uint32_t i = 0; i < chain.pieces; n += chain.piece[i++].len)
            memcpy(bytes + n, (const void *)(uintptr_t)chain.piece[i].addr, chain.piece[i].len);
        check_sent((const struct virtio_net_hdr_v1 *)bytes, bytes + VIRTNET_HEADER, n - VIRTNET_HEADER);
        if (stack_see != NULL)
            stack_see(bytes + VIRTNET_HEADER, n - VIRTNET_HEADER);
        fake_device_return(&net_rig.tx, 0, 0);
    }
    fake_device_publish(&net_rig.tx);
}

/* ---- the core's loop ---- */

static uint64_t doze_ns; /* how long acknowledgements that wait let the core sleep */

void stack_turn(void)
{
    doze_ns = UINT64_MAX;
    net_clock();
    net_netif_reclaim(stack_netif);
    net_netif_receive(stack_netif, 64);
    steer_receive(64);
    sys_check_timeouts();
    if (acks_busy())
        doze_ns = acks_turn(net_rig.pair->rx_stats.packets, net_time()).ns;
    steer_flush();
    net_netif_flush(stack_netif);
    virtnet_flush(net_rig.pair);
    if (!stack_busy)
        take_sent();
    must(net_rig.rx.violation[0] == '\0' && net_rig.tx.violation[0] == '\0');
}

/* As the core sleeps: until something is due. One that has work left comes back soon, though not as soon as a real one,
 * or time would not go by. A core that never sleeps is found out. */
void stack_pass(uint32_t ms)
{
    uint64_t end = now + (uint64_t)ms * 1000000;
    for (unsigned steps = 0; now < end; steps++) {
        uint64_t wait = (uint64_t)sys_timeouts_sleeptime() * 1000000;
        must(steps < STEPS_MOST);
        if (steer_pending() || (net_netif_waiting(stack_netif) && !stack_busy))
            wait = 10000000;
        wait = wait < doze_ns ? wait : doze_ns;
        now += wait < 100000 ? 100000 : wait < end - now ? wait : end - now;
        stack_turn();
    }
}

/* ---- beginning and end ---- */

static void set_address(void)
{
    ip4_addr_t ip = { PP_HTONL(0xc6120002u) }, mask = { PP_HTONL(0xfffe0000u) }, gateway = { PP_HTONL(0xc6120001u) };
    ip6_addr_t six = { .addr = { PP_HTONL(0xfd000000u), 0, 0, PP_HTONL(2) } };
    netif_set_addr(stack_netif, &ip, &mask, &gateway);
    netif_ip6_addr_set(stack_netif, 1, &six);
    netif_ip6_addr_set_state(stack_netif, 1, IP6_ADDR_PREFERRED);
}

const ip6_addr_t *net_nd6_gateway(struct netif *netif, const ip6_addr_t *dest)
{
    (void)netif, (void)dest;
    return NULL;
}

void stack_start(void)
{
    if (stack_netif != NULL)
        return;
    net_rig_open(&(struct net_config){ .rx_size = 128, .tx_size = 32, .features = FEATURES });
    memcpy(net_rig.net.mac, "\x52\x54\x00\x12\x34\x56", 6);
    net_rig.net.pairs = 1;
    net_rig.net.transport.ops->notify(&net_rig.net.transport, &net_rig.pair->rx);
    area.pairs = 1;
    area.net = &net_rig.net;
    area.core[0].pair = net_rig.pair;
    void *mail = NULL;
    must(posix_memalign(&mail, 128, mailbox_bytes(1, 16)) == 0);
    area.mailboxes = mailbox_system_init(mail, 1, 16);
    steer_init();
    net_clock();
    pcb_hash_init();
    lwip_init();
    steer_plan(1);
    stack_netif = net_netif_add(net_rig.pair);
    must(stack_netif != NULL);
    steer_start(stack_netif);
    counters_publish(&net_rig.net, stack_netif);
    netif_set_up(stack_netif);
    netif_create_ip6_linklocal_address(stack_netif, 1);
    netif_set_ip6_autoconfig_enabled(stack_netif, 1);
    set_address();
    netif_set_link_up(stack_netif);
    for (unsigned i = 0; i < COUNT_OF(apps); i++)
        must(apps[i]->start());
    stack_pass(5000);
}

static void end_connections(void)
{
    while (tcp_active_pcbs != NULL)
        tcp_abort(tcp_active_pcbs);
    while (tcp_tw_pcbs != NULL)
        tcp_abort(tcp_tw_pcbs);
}

void stack_settle(void)
{
    stack_busy = stack_memory_low = false;
    stack_refuse = 0;
    stack_see = NULL;
    if (netif_dhcp_data(stack_netif) != NULL) {
        dhcp_release_and_stop(stack_netif);
        dhcp_cleanup(stack_netif);
    }
    stack_turn();
    end_connections();
    stack_pass(SETTLE_MS);
    end_connections();
    stack_pass(1000);
    set_address();
    stack_turn();
    stack_turn(); /* what the last one sent is taken back */
    must(tcp_active_pcbs == NULL && tcp_tw_pcbs == NULL);
    must(!net_netif_waiting(stack_netif) && net_rig.pair->tx.in_flight == 0);
    virtnet_refill(net_rig.pair);
    virtnet_flush(net_rig.pair);
    must(net_rig_buffers() == net_rig.pair->rx.size);
    net_rig_check_buffers();
    net_rig_check_slots();
}

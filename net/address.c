#include <stdio.h>
#include <string.h>
#include "kernel/console.h"
#include "kernel/core.h"
#include "lwip/dhcp.h"
#include "lwip/ethip6.h"
#include "lwip/nd6.h"
#include "lwip/timeouts.h"
#include "net/address.h"
#include "net/hooks.h"
#include "net/steer.h"

#define PATIENCE_MS  10000 /* for a lease, or the link */
#define IPV6_MTU_MIN 1280  /* RFC 8200, 5 */

static const struct bootline *boot;
static const struct virtnet *device;
static struct netif *interface;
static bool ready;
static ip6_addr_t gateway6, prefix6;
static bool has_gateway6;

/* The address in slot `slot` as text, in lower case (RFC 5952, 4.3). */
static const char *ip6_text(unsigned slot, char *text, size_t size)
{
    ip6addr_ntoa_r(netif_ip6_addr(interface, slot), text, (int)size);
    for (char *c = text; *c != '\0'; c++)
        *c = *c >= 'A' && *c <= 'F' ? (char)(*c + 'a' - 'A') : *c;
    return text;
}

static void print_ready(void)
{
    char features[256], ip[IP4ADDR_STRLEN_MAX] = "none", ip6[IP6ADDR_STRLEN_MAX] = "none";
    if (ready || core_number() != 0)
        return;
    ready = true;
    if (!ip4_addr_isany(netif_ip4_addr(interface)))
        ip4addr_ntoa_r(netif_ip4_addr(interface), ip, sizeof ip);
    /* A static address has slot 1 and goes before the link-local one in slot 0. */
    unsigned slot = boot != NULL && boot->ip6 == IP_STATIC ? 1 : 0;
    if (!ip6_addr_isinvalid(netif_ip6_addr_state(interface, slot)))
        ip6_text(slot, ip6, sizeof ip6);
    features_format(device->features, features, sizeof features);
    console_plain("ringside: ready ip=%s ip6=%s mac=%02x:%02x:%02x:%02x:%02x:%02x cores=%u queues=%u features=%s", ip,
                  ip6, device->mac[0], device->mac[1], device->mac[2], device->mac[3], device->mac[4], device->mac[5],
                  device->pairs, device->pairs, features);
}

/* An address serves when the link is up and it is there. */
static void look_if_ready(void)
{
    if (netif_is_link_up(interface) && !ip4_addr_isany(netif_ip4_addr(interface)))
        print_ready();
}

static void say_ip4(void)
{
    char ip[IP4ADDR_STRLEN_MAX], gw[IP4ADDR_STRLEN_MAX], mask[IP4ADDR_STRLEN_MAX];
    log_info("net", "ip=%s mask=%s gw=%s", ip4addr_ntoa_r(netif_ip4_addr(interface), ip, sizeof ip),
             ip4addr_ntoa_r(netif_ip4_netmask(interface), mask, sizeof mask),
             ip4addr_ntoa_r(netif_ip4_gw(interface), gw, sizeof gw));
}

/* Says what became of an IPv6 address: it serves, or another station has it (RFC 4862, 5.4). */
static void say_ip6(unsigned slot)
{
    char ip6[IP6ADDR_STRLEN_MAX];
    uint8_t state = netif_ip6_addr_state(interface, slot);
    if (ip6_addr_isvalid(state))
        log_info("net", "ip6=%s", ip6_text(slot, ip6, sizeof ip6));
    else if (ip6_addr_isduplicated(state))
        log_warn("net", "ip6=%s is a duplicate, another station has it: not used", ip6_text(slot, ip6, sizeof ip6));
}

/* Called by lwIP when an address or the link changes. */
static void on_change(struct netif *netif, netif_nsc_reason_t reason, const netif_ext_callback_args_t *args)
{
    static bool had;
    bool have = !ip4_addr_isany(netif_ip4_addr(netif));
    if (core_number() != 0)
        return;
    if (reason & LWIP_NSC_IPV4_ADDRESS_CHANGED)
        steer_tell_address(netif_ip4_addr(netif)->addr, netif_ip4_netmask(netif)->addr, netif_ip4_gw(netif)->addr);
    if (reason & LWIP_NSC_IPV4_ADDRESS_CHANGED && have)
        say_ip4();
    else if (reason & LWIP_NSC_IPV4_ADDRESS_CHANGED && had)
        log_warn("net", "ip=none: the lease ran out or was taken back; asking for another");
    had = have;
    if (reason & LWIP_NSC_IPV6_ADDR_STATE_CHANGED)
        say_ip6((unsigned)args->ipv6_addr_state_changed.addr_index);
    look_if_ready();
}

static void on_patience_over(void *argument)
{
    (void)argument;
    if (ready)
        return;
    if (!netif_is_link_up(interface))
        log_warn("net", "the link has been down for %u s: waiting for it", PATIENCE_MS / 1000);
    else
        log_warn("net", "no DHCP answer in %u s: going on without an IPv4 address, and trying on", PATIENCE_MS / 1000);
    print_ready();
}

static void start_ip4(void)
{
    ip4_addr_t ip, mask, gw;
    if (boot->ip != IP_STATIC && core_number() != 0)
        return; /* core 0 tells */
    if (boot->ip != IP_STATIC) {
        if (dhcp_start(interface) != ERR_OK)
            log_error("net", "DHCP cannot be started: no memory");
        return;
    }
    memcpy(&ip.addr, boot->ip_addr, 4);
    memcpy(&gw.addr, boot->ip_gw, 4);
    mask.addr = boot->ip_prefix == 0 ? 0 : lwip_htonl(UINT32_MAX << (32 - boot->ip_prefix));
    if (!boot->ip_has_gw)
        ip4_addr_set_any(&gw);
    netif_set_addr(interface, &ip, &mask, &gw);
}

static void start_ip6(void)
{
    if (boot->ip6 == IP_OFF)
        return;
    if (interface->mtu < IPV6_MTU_MIN) {
        log_warn("net", "mtu is %u, and IPv6 needs %u: no IPv6", interface->mtu, IPV6_MTU_MIN);
        return;
    }
    netif_create_ip6_linklocal_address(interface, 1);
    if (boot->ip6 != IP_STATIC) {
        netif_set_ip6_autoconfig_enabled(interface, 1);
        return;
    }
    ip6_addr_t ip;
    memcpy(ip.addr, boot->ip6_addr, 16);
    ip6_addr_clear_zone(&ip);
    prefix6 = ip;
    netif_ip6_addr_set(interface, 1, &ip);
    netif_ip6_addr_set_state(interface, 1, IP6_ADDR_TENTATIVE);
    has_gateway6 = boot->ip6_has_gw;
    memcpy(gateway6.addr, boot->ip6_gw, 16);
    ip6_addr_assign_zone(&gateway6, IP6_UNICAST, interface);
}

static bool in_prefix(const ip6_addr_t *a, const ip6_addr_t *b, unsigned bits)
{
    const uint8_t *x = (const uint8_t *)a->addr, *y = (const uint8_t *)b->addr;
    for (; bits >= 8; bits -= 8)
        if (*x++ != *y++)
            return false;
    return bits == 0 || ((*x ^ *y) >> (8 - bits)) == 0;
}

const ip6_addr_t *net_nd6_gateway(struct netif *netif, const ip6_addr_t *dest)
{
    (void)netif;
    if (boot == NULL || boot->ip6 != IP_STATIC)
        return NULL;
    if (in_prefix(dest, &prefix6,
                  boot->ip6_prefix)) /* lwIP takes /64 to be the link; a shorter prefix makes more of it */
        return dest;
    return has_gateway6 ? &gateway6 : NULL;
}

void net_address_start(struct netif *netif, const struct virtnet *dev, const struct bootline *line)
{
    static netif_ext_callback_t callback;
    interface = netif;
    device = dev;
    boot = line;
    if (boot == NULL) {
        print_ready();
        return;
    }
    netif_add_ext_callback(&callback, on_change);
    netif_set_up(netif);
    if (core_number() == 0)
        sys_timeout(PATIENCE_MS, on_patience_over, NULL);
    start_ip6();
    start_ip4();
}

/* What lwIP and net/ ask of the rest of the guest, for tests in which it does not matter: time stands still, chance is
 * always the same, there is memory. */
#include "lwip/ip_addr.h"
#include "lwip/netif.h"
#include "net/hooks.h"
#include "tests/unit/unit.h"

uint32_t net_random(void)
{
    return 4;
}

uint64_t random_next(void)
{
    return 4;
}

uint64_t net_time(void)
{
    return 1000000;
}

u32_t sys_now(void)
{
    return 1;
}

bool heap_low(void)
{
    return false;
}

void net_assert(const char *message, const char *file, int line)
{
    print_error("lwIP: %s (%s:%d)\n", message, file, line);
    abort();
}

u32_t net_tcp_isn(const ip_addr_t *local_ip, u16_t local_port, const ip_addr_t *remote_ip, u16_t remote_port)
{
    (void)local_ip, (void)local_port, (void)remote_ip, (void)remote_port;
    return 1;
}

const ip6_addr_t *net_nd6_gateway(struct netif *n, const ip6_addr_t *dest)
{
    (void)n, (void)dest;
    return NULL;
}

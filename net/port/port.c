/* What lwIP asks of its surroundings: time, randomness, a way to stop. */
#include <string.h>
#include "kernel/clock.h"
#include "kernel/panic.h"
#include "kernel/random.h"
#include "lwip/sys.h"
#include "net/hooks.h"

static uint64_t now; /* ns, as of the last net_clock() */
static u32_t now_ms;

uint64_t net_clock(void)
{
    now = clock_ns();
    now_ms = (u32_t)(now / 1000000);
    return now;
}

uint64_t net_time(void)
{
    return now;
}

u32_t sys_now(void)
{
    return now_ms;
}

uint32_t net_random(void)
{
    return (uint32_t)random_next();
}

void net_assert(const char *message, const char *file, int line)
{
    panic("lwIP: %s (%s:%d)", message, file, line);
}

u32_t net_tcp_isn(const ip_addr_t *local_ip, u16_t local_port, const ip_addr_t *remote_ip, u16_t remote_port)
{
    struct {
        ip_addr_t local, remote;
        u16_t local_port, remote_port;
    } flow;
    memset(&flow, 0, sizeof flow); /* padding is hashed too */
    ip_addr_copy(flow.local, *local_ip);
    ip_addr_copy(flow.remote, *remote_ip);
    flow.local_port = local_port;
    flow.remote_port = remote_port;
    return (u32_t)(random_hash(&flow, sizeof flow) + clock_ns() / 4000);
}

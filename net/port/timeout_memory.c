/* Memory of lwIP's timers, instead of memp_malloc() and memp_free() in its timeouts.c (Makefile). A cyclic timer is
 * freed, its handler runs, and it is made again: a handler that took the last memory meanwhile would end the timer for
 * good. So what was a timer's memory stays timers' memory. */
#include "kernel/memory.h"
#include "lwip/memp.h"
#include "lwip/timeouts.h"

static struct sys_timeo *idle;

void *net_timeout_take(memp_t type);
void net_timeout_give(memp_t type, void *timeout);

void *net_timeout_take(memp_t type)
{
    struct sys_timeo *t = idle;
    (void)type; /* it asks for no other */
    if (t == NULL)
        return heap_take(sizeof *t);
    idle = t->next;
    return t;
}

void net_timeout_give(memp_t type, void *timeout)
{
    struct sys_timeo *t = timeout;
    (void)type;
    t->next = idle;
    idle = t;
}

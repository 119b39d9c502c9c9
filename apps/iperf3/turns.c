/* Whose turn it is to open UDP streams. They come without a cookie, so that of the tests of one address only one may
 * wait for them. Core 0 keeps the list; it is short: a turn takes some round trips, and test.c ends one that stalls. */
#include <stdlib.h>
#include "apps/iperf3/iperf3.h"
#include "kernel/console.h"

struct turn {
    struct turn *next;
    struct i3_record *record; /* names the test; read only when it is added */
    unsigned core;
    ip_addr_t peer;
    bool granted;
};

static struct turn *first; /* the oldest */

static void grant(struct turn *t)
{
    t->granted = true;
    i3_post(t->core, I3_GRANT, t->record, 0, 0);
}

void i3_turn_claim(struct i3_record *record, unsigned from)
{
    struct turn *t = calloc(1, sizeof *t), **at = &first;
    bool taken = false;
    if (t == NULL) {
        log_warn("iperf3", "no memory to let tests take turns: two of one address may take each other's streams");
        i3_post(from, I3_GRANT, record, 0, 0);
        return;
    }
    t->record = record;
    t->core = from;
    ip_addr_copy(t->peer, record->peer);
    for (; *at != NULL; at = &(*at)->next)
        taken = taken || ip_addr_zoneless_eq(&(*at)->peer, &t->peer);
    *at = t;
    if (!taken)
        grant(t);
}

void i3_turn_disclaim(const struct i3_record *record)
{
    struct turn **at = &first, *t;
    while (*at != NULL && (*at)->record != record)
        at = &(*at)->next;
    t = *at;
    if (t == NULL)
        return;
    *at = t->next;
    for (struct turn *next = t->next; next != NULL; next = next->next) {
        if (!ip_addr_zoneless_eq(&next->peer, &t->peer))
            continue;
        grant(next);
        break;
    }
    free(t);
}

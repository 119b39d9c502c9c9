#include "kernel/trace.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "drivers/virtio/net.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/public.h"
#include "lwip/timeouts.h"

#define AT_ONCE_NS 200000u /* so long the console may hold up the loop, every millisecond, and one line at least */

static const struct public_area *area(void)
{
    return core_shared()->public_area;
}

/* ---- all queues ---- */

static void print_queue(const struct virtqueue *vq, const char *what, unsigned core, recorder_print_fn print,
                        void *context)
{
    char line[RECORDER_LINE];
    snprintf(line, sizeof line, "q%u is the %s queue of core %u%s", vq->index, what, core,
             vq->recorder == NULL ? "; operations have no times: trace=on in the boot line records them" : "");
    print(context, line);
    recorder_print(vq, print, context);
}

void trace_print(recorder_print_fn print, void *context)
{
    const struct virtnet *net = area()->net;
    for (unsigned i = 0; i < area()->pairs; i++) {
        const struct virtnet_pair *pair = area()->core[i].pair;
        print_queue(&pair->rx, "receive", i, print, context);
        print_queue(&pair->tx, "transmit", i, print, context);
    }
    if (net->control.vq.desc != NULL)
        print_queue(&net->control.vq, "control", 0, print, context);
}

size_t trace_bytes(void)
{
    return (size_t)(2 * area()->pairs + 1) * (RECORDER_LINES + 1) * RECORDER_LINE;
}

/* ---- on the console ---- */

/* Lines, one behind the other, each with its ending 0. */
static struct {
    char *text;
    size_t size, used, shown;
    uint64_t since; /* when the last one was kept, ns; 0: none was */
} kept;

static void measure(void *size, const char *line)
{
    *(size_t *)size += strlen(line) + 1;
}

static void keep_line(void *unused, const char *line)
{
    size_t n = strlen(line) + 1;
    (void)unused;
    if (n > kept.size - kept.used)
        return;
    memcpy(kept.text + kept.used, line, n);
    kept.used += n;
}

/* Prints lines for `ns`, one at least. True: there are more. */
static bool show(uint64_t ns)
{
    uint64_t begin = clock_ns();
    do {
        if (kept.shown == kept.used) {
            free(kept.text);
            kept.text = NULL;
            return false;
        }
        log_warn("trace", "%s", kept.text + kept.shown);
        kept.shown += strlen(kept.text + kept.shown) + 1;
    } while (clock_ns() - begin < ns);
    return true;
}

static void show_some(void *unused)
{
    if (kept.text != NULL && show(AT_ONCE_NS))
        sys_timeout(1, show_some, unused);
}

void trace_keep(void)
{
    uint64_t now = clock_ns();
    if (kept.text != NULL || (kept.since != 0 && now - kept.since < TRACE_REST_NS)) {
        log_warn("trace", "the rings' operations are not printed: they were a moment ago");
        return;
    }
    kept.size = kept.used = kept.shown = 0;
    trace_print(measure, &kept.size);
    kept.text = malloc(kept.size);
    if (kept.text == NULL) {
        log_warn("trace", "no memory for the rings' operations");
        return;
    }
    kept.since = now;
    trace_print(keep_line, NULL);
    sys_timeout(1, show_some, NULL);
}

void trace_drain(void)
{
    if (kept.text != NULL)
        show(UINT64_MAX);
}

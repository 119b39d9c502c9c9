/* Faults that make a reset of the device necessary, on request: a datagram to port 4444 that says which. In the rings
 * of the core that the datagram comes to. */
#include <string.h>
#include <linux/virtio_config.h>
#include "apps/app.h"
#include "apps/tcp_server.h"
#include "drivers/virtio/net.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/public.h"
#include "kernel/x86.h"

#define PORT    4444
#define WAIT_NS 200000000u
#define SPOILED 8

/* Makes a descriptor available that the ring does not have, and waits until the device has given up over it. */
static void overrun(struct virtqueue *vq, struct virtio_transport *t)
{
    vq->avail->ring[vq->avail_idx & vq->mask] = (uint16_t)(vq->size + 1);
    __atomic_store_n(&vq->avail->idx, (uint16_t)(vq->avail_idx + 1), __ATOMIC_SEQ_CST);
    t->ops->notify(t, vq);
    for (uint64_t end = clock_ns() + WAIT_NS; clock_ns() < end && !(t->ops->status(t) & VIRTIO_CONFIG_S_NEEDS_RESET);)
        cpu_relax();
}

/* Damages the entries that the device takes next for what it receives. */
static void spoil(struct virtqueue *vq)
{
    for (uint16_t i = 0; i < SPOILED; i++)
        vq->avail->ring[(vq->used->idx + i) & vq->mask] = (uint16_t)(vq->size + 1);
}

/* More used entries than there were available ones, as if by the device, which may write the right index over it at any
 * moment: so the driver's look follows at once. */
static void invent(struct virtqueue *vq)
{
    for (unsigned tries = 0; tries < 1000 && !vq->broken; tries++) {
        uint32_t length;
        uint16_t index = (uint16_t)(vq->last_used + 30000);
        __atomic_store_n(&vq->used->idx, index, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&vq->used->idx, __ATOMIC_SEQ_CST) == index)
            virtqueue_pop(vq, &length);
    }
}

static void on_datagram(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *from, u16_t port)
{
    struct virtnet_pair *pair = (struct virtnet_pair *)core_shared()->public_area->core[core_number()].pair;
    struct virtio_transport *t = &pair->net->transport;
    char what = *(const char *)p->payload;
    (void)arg, (void)pcb, (void)from, (void)port;
    log_info("guest", "fault '%c' on core %u", what, core_number());
    switch (what) {
    case 'a':
        overrun(&pair->tx, t);
        break;
    case 'A':
        spoil(&pair->rx);
        break;
    case 'u':
        invent(&pair->tx);
        break;
    case 'U':
        invent(&pair->rx);
        break;
    default:
        log_error("guest", "no such fault; valid: a A u U");
    }
    pbuf_free(p);
}

static bool start(void)
{
    return udp_serve("faults", PORT, on_datagram);
}

APP(faults_on_request, .ports = "udp/4444", .start = start);

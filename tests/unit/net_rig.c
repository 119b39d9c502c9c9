/* See net_rig.h. */
#include "tests/unit/net_rig.h"

#include "kernel/memory.h"

struct net_rig net_rig;

/* ---- what the queue pair is linked with ---- */

void *heap_alloc_aligned(size_t size, size_t align)
{
    void *p = NULL;

    if (net_rig.allocations_left == 0)
        return NULL;
    net_rig.allocations_left--;
    check(net_rig.memory_count < COUNT_OF(net_rig.memory), "so many allocations?");
    /* Exactly what is asked for: AddressSanitizer sees a step beyond. */
    check(posix_memalign(&p, align < 16 ? 16 : align, size ? size : 1) == 0, "no memory");
    memset(p, 0, size);
    net_rig.memory[net_rig.memory_count++] = p;
    return p;
}

struct heap_stats heap_stats(void)
{
    return (struct heap_stats){ .untouched = net_rig.untouched };
}

/* Who needs time to go by has a clock of his own. */
__attribute__((weak)) uint64_t clock_ns(void)
{
    return 1;
}

static void notify(struct virtio_transport *t, const struct virtqueue *vq)
{
    assert_ptr_equal(t, &net_rig.net.transport);
    if (vq == &net_rig.pair->rx)
        net_rig.rx_bells++;
    else if (vq == &net_rig.pair->tx)
        net_rig.tx_bells++;
    else
        net_rig.other_bell[net_rig.other_bells++ % COUNT_OF(net_rig.other_bell)] = vq;
}

static const struct virtio_transport_ops fake_ops = { .name = "fake", .notify = notify };

/* ---- up and down ---- */

bool net_rig_try_open(const struct net_config *config, struct virtio_error *error)
{
    unsigned left = net_rig.allocations_left;

    memset(&net_rig, 0, sizeof(net_rig));
    fake_console_clear();
    net_rig.allocations_left = left ? left - 1 : UINT32_MAX; /* left - 1 are granted, if it was set before */
    net_rig.pair = &net_rig.net.pair;
    net_rig.pair->net = &net_rig.net;
    net_rig.net.transport.ops = &fake_ops;
    net_rig.net.features = config->features;
    net_rig.net.mtu = config->mtu ? config->mtu : 1500;
    net_rig.net.ring_size[config->number][0] = config->rx_size;
    net_rig.net.ring_size[config->number][1] = config->tx_size;
    uint32_t each = net_rig.net.mtu > 1800 && !(config->features & MRG) ? net_rig.net.mtu + 200u : 2048;
    net_rig.untouched = config->buffers ? 2ull * config->buffers * each : 1ull << 30;
    if (config->no_room)
        net_rig.untouched = each;
    return virtnet_pair_init(net_rig.pair, config->number, error);
}

void net_rig_open(const struct net_config *config)
{
    struct virtio_error error;

    check(net_rig_try_open(config, &error), "%s", error.text);
    struct virtqueue *rx = &net_rig.pair->rx, *tx = &net_rig.pair->tx;
    fake_device_init(&net_rig.rx, rx->desc, rx->avail, rx->used, rx->size, config->features & EVENT,
                     config->features & INDIR);
    fake_device_init(&net_rig.tx, tx->desc, tx->avail, tx->used, tx->size, config->features & EVENT,
                     config->features & INDIR);
    virtnet_refill(net_rig.pair);
    virtnet_show(net_rig.pair);
}

void net_rig_close(void)
{
    fake_device_free(&net_rig.rx);
    fake_device_free(&net_rig.tx);
    for (unsigned i = 0; i < net_rig.memory_count; i++)
        free(net_rig.memory[i]);
    memset(&net_rig, 0, sizeof(net_rig));
}

/* ---- the device ---- */

uint8_t net_rig_byte(uint8_t seed, uint32_t i)
{
    return (uint8_t)(seed * 31 + i * 13 + (i >> 8) * 7);
}

unsigned net_rig_buffers(void)
{
    return fake_device_available(&net_rig.rx);
}

bool net_rig_write_raw(const void *bytes, uint32_t n, uint32_t claimed)
{
    struct fake_chain chain;

    if (!fake_device_take(&net_rig.rx, &chain))
        return false;
    check(chain.pieces == 1 && chain.readable == 0 && n <= chain.writable, "%u bytes into %llu", n,
          (unsigned long long)chain.writable);
    if (n)
        memcpy((void *)(uintptr_t)chain.piece[0].addr, bytes, n);
    fake_device_return(&net_rig.rx, (uint16_t)(net_rig.rx.held_count - 1), claimed);
    return true;
}

bool net_rig_write(struct net_frame *frame)
{
    static uint8_t bytes[VIRTNET_HEADER_HASH + 70000];
    uint32_t header = net_rig.pair->header, all = header + frame->bytes, room = net_rig.pair->pool.data_size;
    uint32_t count = (all + room - 1) / room;

    if (count > net_rig_buffers())
        return false;
    frame->header.hdr.num_buffers = (uint16_t)count;
    memcpy(bytes, &frame->header, header);
    for (uint32_t i = 0; i < frame->bytes; i++)
        bytes[header + i] = net_rig_byte(frame->seed, i);
    for (uint32_t at = 0; at < all; at += room) {
        uint32_t n = all - at < room ? all - at : room;
        assert_true(net_rig_write_raw(bytes + at, n, n));
    }
    return true;
}

/* ---- accounts ---- */

void net_rig_hold(const struct virtnet_frame *frame)
{
    for (unsigned i = 0; i < frame->count; i++) {
        check(net_rig.held_count < COUNT_OF(net_rig.held), "too many buffers are held");
        net_rig.held[net_rig.held_count++] = frame->buffer[i];
    }
}

void net_rig_release(unsigned i)
{
    struct rx_buffer *buffer = net_rig.held[i];

    net_rig.held[i] = net_rig.held[--net_rig.held_count];
    virtnet_release(buffer);
}

/* Number of an element of an array that starts with the third (buffers) or fourth (slots) allocation. */
static uint32_t number_of(const void *p, unsigned allocation, size_t each, uint32_t count)
{
    size_t offset = (size_t)((const char *)p - (const char *)net_rig.memory[allocation]);

    check((const char *)p >= (const char *)net_rig.memory[allocation] && offset % each == 0 && offset / each < count,
          "%p is none of them", p);
    return (uint32_t)(offset / each);
}

static void see(uint8_t *seen, uint32_t number, const char *where)
{
    check(!seen[number], "number %u is %s, and in another place", number, where);
    seen[number] = 1;
}

static void check_all_seen(const uint8_t *seen, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        check(seen[i], "number %u is lost", i);
}

static void see_ring(uint8_t *seen, const struct virtqueue *vq, unsigned allocation, size_t each, uint32_t count)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < vq->size; i++) {
        if (vq->state[i].token) {
            see(seen, number_of(vq->state[i].token, allocation, each, count), "with the device");
            n++;
        }
    }
    assert_int_equal(n, vq->in_flight);
}

void net_rig_check_buffers(void)
{
    static uint8_t seen[40000];
    const struct rx_pool *pool = &net_rig.pair->pool;
    size_t each = sizeof(struct rx_buffer) + pool->data_size;
    uint32_t n = 0;

    memset(seen, 0, pool->total);
    for (const struct rx_buffer *b = pool->free; b; b = b->next, n++)
        see(seen, number_of(b, 2, each, pool->total), "in the pool");
    assert_int_equal(n, pool->free_count);
    see_ring(seen, &net_rig.pair->rx, 2, each, pool->total);
    for (unsigned i = 0; i < net_rig.held_count; i++)
        see(seen, number_of(net_rig.held[i], 2, each, pool->total), "held");
    check_all_seen(seen, pool->total);
}

void net_rig_check_slots(void)
{
    static uint8_t seen[VIRTQUEUE_MAX_SIZE];
    uint32_t count = net_rig.pair->tx.size;
    size_t each = sizeof(struct tx_slot) + net_rig.pair->slot_room;

    memset(seen, 0, count);
    for (const struct tx_slot *s = net_rig.pair->free_slot; s; s = s->next)
        see(seen, number_of(s, 3, each, count), "free");
    see_ring(seen, &net_rig.pair->tx, 3, each, count);
    for (unsigned i = 0; i < net_rig.slot_count; i++)
        see(seen, number_of(net_rig.slot[i], 3, each, count), "the test's");
    check_all_seen(seen, count);
}

static void check_bell(struct fake_device *dev, unsigned bells, const char *which)
{
    check(bells <= 1, "%u doorbells of the %s queue", bells, which);
    check(!dev->asleep || fake_device_available(dev) == 0 || bells == 1, "the %s queue's device sleeps on work", which);
    dev->asleep = dev->asleep && bells == 0;
}

void net_rig_flush(void)
{
    net_rig.rx_bells = net_rig.tx_bells = 0;
    virtnet_flush(net_rig.pair);
    check_bell(&net_rig.rx, net_rig.rx_bells, "receive");
    check_bell(&net_rig.tx, net_rig.tx_bells, "transmit");
}

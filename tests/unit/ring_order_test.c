/* The order of stores and loads at the two moments at which a notification can get lost, on a processor that may do a
 * load before an earlier store of its own is seen (x86: stores wait in a buffer, first in first out, until a fence or
 * until it pleases the processor). split.c is compiled with its atomic accesses going through such a buffer, and the
 * device, which keeps to its own order, steps in between them: its store and its load at every pair of places, with the
 * buffer emptied at every place or not at all. So a fence that is missing is found on any machine, each time;
 * ring_race_test tries the same on real processors, which show it or not. */
#include "tests/unit/unit.h"

#include <stdatomic.h>

static uint64_t order_load(const void *at, unsigned width);
static void order_store(void *at, uint64_t value, unsigned width);
static void order_fence(memory_order order);

#define __atomic_load_n(p, order)     ((__typeof__(*(p)))order_load(p, sizeof(*(p))))
#define __atomic_store_n(p, v, order) order_store(p, v, sizeof(*(p)))
#undef atomic_thread_fence
#define atomic_thread_fence order_fence
#include "drivers/virtio/split.c"

#define PLACES 12 /* more than the accesses of one operation */
#define QUEUE  4

/* ---- the processor ---- */

struct pending_store {
    void *at;
    uint64_t value;
    unsigned width;
};

static struct {
    bool on; /* else accesses are what they are */
    struct pending_store store[PLACES];
    unsigned stores;
    unsigned place;                            /* accesses and fences so far */
    unsigned device_store, device_load, drain; /* at which place that happens */
    void (*on_store)(void), (*on_load)(void);
} order;

static void write_memory(const struct pending_store *s)
{
    memcpy(s->at, &s->value, s->width);
}

static void drain(void)
{
    for (unsigned i = 0; i < order.stores; i++)
        write_memory(&order.store[i]);
    order.stores = 0;
}

/* What happens between two accesses of the driver's. */
static void between(void)
{
    check(order.place < PLACES, "so many accesses?");
    if (order.place == order.drain)
        drain();
    if (order.place == order.device_store)
        order.on_store();
    if (order.place == order.device_load)
        order.on_load();
    order.place++;
}

static uint64_t order_load(const void *at, unsigned width)
{
    uint64_t value = 0;

    if (order.on)
        between();
    memcpy(&value, at, width);
    for (unsigned i = 0; order.on && i < order.stores; i++)
        if (order.store[i].at == at)
            value = order.store[i].value; /* a processor sees its own stores */
    return value;
}

static void order_store(void *at, uint64_t value, unsigned width)
{
    struct pending_store s = { at, value, width };

    if (!order.on) {
        write_memory(&s);
        return;
    }
    between();
    check(order.stores < PLACES, "so many stores?");
    order.store[order.stores++] = s;
}

static void order_fence(memory_order how)
{
    if (!order.on)
        return;
    between();
    if (how == memory_order_seq_cst) /* no other is more than a word to the compiler on x86 */
        drain();
}

/* ---- the device: what it stores and what it then loads, as virtio 1.3, 2.7.7.2 and 2.7.10 say ---- */

static struct {
    struct virtqueue vq;
    char memory[4096] __attribute__((aligned(4096)));
    uint16_t taken, used;
    bool asleep, interrupts;
} ring;

static void device_asks(void)
{
    if (ring.vq.event_idx)
        ring.vq.used->ring[QUEUE].id = (ring.vq.used->ring[QUEUE].id & ~0xffffu) | ring.taken;
    else
        ring.vq.used->flags = 0;
}

static void device_looks(void)
{
    ring.asleep = ring.vq.avail->idx == ring.taken;
}

static void device_returns(void)
{
    ring.vq.used->ring[ring.used % QUEUE] = (struct vring_used_elem){ .id = 0, .len = 1 };
    ring.vq.used->idx = ++ring.used;
}

static void device_decides(void)
{
    uint16_t event = ring.vq.avail->ring[QUEUE];

    ring.interrupts =
        ring.vq.event_idx ? event == (uint16_t)(ring.used - 1) : !(ring.vq.avail->flags & VRING_AVAIL_F_NO_INTERRUPT);
}

static void lay_out(bool event_idx)
{
    struct virtqueue_config config = { .size = QUEUE, .event_idx = event_idx };

    order.on = false;
    assert_true(virtqueue_split_bytes(QUEUE, 0) <= sizeof(ring.memory));
    assert_int_equal(virtqueue_split_init(&ring.vq, &config, ring.memory), VIRTQ_OK);
    ring.taken = ring.used = 0;
    ring.asleep = ring.interrupts = false;
    assert_int_equal(virtqueue_split_add_one(&ring.vq, (struct virtq_buf){ 0x1000, 1 }, true, &ring), VIRTQ_OK);
}

/* ---- every way to step on each other ---- */

static bool publish(void)
{
    return virtqueue_split_publish(&ring.vq);
}

static bool arm(void)
{
    return virtqueue_split_enable_callbacks(&ring.vq, 0);
}

/* One way; afterwards all is seen, and the device has done its part. Returns what `operation` did, *places: how many
 * there are. */
static bool one_way(bool (*operation)(void), unsigned device_store, unsigned device_load, unsigned drain_at,
                    unsigned *places)
{
    order.stores = order.place = 0;
    order.device_store = device_store;
    order.device_load = device_load;
    order.drain = drain_at;
    order.on = true;
    bool result = operation();
    *places = order.place;
    if (device_store >= order.place)
        order.on_store();
    if (device_load >= order.place)
        order.on_load();
    drain();
    order.on = false;
    return result;
}

/* The device asks for a notification and looks for buffers, the driver shows one and looks whether it is to notify. */
static void test_publish(void **state)
{
    (void)state;
    order.on_store = device_asks;
    order.on_load = device_looks;
    for (unsigned how = 0; how < 2; how++) {
        unsigned places = 1, kicks = 0, naps = 0, ways = 0;
        for (unsigned s = 0; s <= places; s++)
            for (unsigned l = s; l <= places; l++)
                for (unsigned d = 0; d <= places; d++, ways++) {
                    lay_out(how);
                    if (how)
                        ring.vq.used->ring[QUEUE].id = 0xffff; /* it has no need of notifications before */
                    else
                        ring.vq.used->flags = VRING_USED_F_NO_NOTIFY;
                    bool kick = one_way(publish, s, l, d, &places);
                    check(kick || !ring.asleep, "steps %u and %u, seen at %u: the device sleeps and was not told", s, l,
                          d);
                    assert_int_equal(ring.vq.avail->idx, 1);
                    kicks += kick;
                    naps += ring.asleep;
                }
        check(places >= 3 && kicks > 0 && kicks < ways && naps > 0 && naps < ways,
              "%u places, %u ways, %u kicks, asleep %u times: this shows little", places, ways, kicks, naps);
    }
}

/* The device returns a buffer and looks whether it is to interrupt, the driver asks for that and looks for buffers. */
static void test_arm(void **state)
{
    (void)state;
    order.on_store = device_returns;
    order.on_load = device_decides;
    for (unsigned how = 0; how < 2; how++) {
        unsigned places = 1, interrupts = 0, sleeps = 0, ways = 0;
        for (unsigned s = 0; s <= places; s++)
            for (unsigned l = s; l <= places; l++)
                for (unsigned d = 0; d <= places; d++, ways++) {
                    lay_out(how);
                    publish();
                    bool sleep = one_way(arm, s, l, d, &places);
                    check(ring.interrupts || !sleep,
                          "steps %u and %u, seen at %u: the driver sleeps and is not interrupted", s, l, d);
                    interrupts += ring.interrupts;
                    sleeps += sleep;
                }
        check(places >= 3 && interrupts > 0 && interrupts < ways && sleeps > 0 && sleeps < ways,
              "%u places, %u ways, %u interrupts, %u sleeps: this shows little", places, ways, interrupts, sleeps);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_publish), cmocka_unit_test(test_arm) };

    return cmocka_run_group_tests_name("ring_order", tests, NULL, NULL);
}

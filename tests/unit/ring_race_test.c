/* The two moments at which a notification can get lost, many times each: driver and device step on them together,
 * on two processors. publish: the driver makes a buffer visible and looks whether it has to kick; the device asks for a
 * kick and looks for buffers. arm: the driver asks for an interrupt and looks for returned buffers; the device returns
 * one and looks whether it has to interrupt. Each side stores and then loads what the other stores; a processor may do
 * the load first, unless there is a fence. */
#include "tests/unit/unit.h"

#include "drivers/virtio/ring.h"
#include "tests/unit/fake_device.h"
#include <pthread.h>
#include <sched.h>
#include <time.h>

#define RUN_MS   500
#define DELAYS   32   /* of different lengths, in looks at the ring */
#define PATIENCE 5000 /* turns of waiting before the processor is given away */

enum part { PUBLISH, ARM };

struct race {
    struct virtqueue vq;
    struct fake_device dev;
    enum part part;
    unsigned round, device_done; /* atomic: the round that is on, and the last that the device has ended */
    bool over;                   /* atomic */
    bool asleep, interrupt;      /* what the device found in this round */
};

static void wait_until(const unsigned *value, unsigned wanted, const bool *over)
{
    for (unsigned n = 0;
         __atomic_load_n(value, __ATOMIC_ACQUIRE) != wanted && !(over && __atomic_load_n(over, __ATOMIC_ACQUIRE));
         n++) {
        if (n % PATIENCE == PATIENCE - 1)
            sched_yield();
    }
}

/* Both look at what the other will write, as they do in life: its memory is then near, and one's own store has a way to
 * go. */
static void device_delay(struct race *r, uint64_t *seed)
{
    for (unsigned n = chance_below(seed, DELAYS); n > 0; n--)
        fake_device_available(&r->dev);
}

static void driver_delay(struct race *r, uint64_t *seed)
{
    for (unsigned n = chance_below(seed, DELAYS); n > 0; n--)
        virtqueue_pending(&r->vq);
}

static void *device_thread(void *context)
{
    struct race *r = context;
    uint64_t seed = chance_seed(0x7ace);

    for (unsigned round = 1;; round++) {
        wait_until(&r->round, round, &r->over);
        if (__atomic_load_n(&r->over, __ATOMIC_ACQUIRE))
            return NULL;
        device_delay(r, &seed);
        if (r->part == PUBLISH)
            r->asleep = fake_device_sleep(&r->dev, 0);
        else
            r->interrupt = fake_device_publish(&r->dev);
        __atomic_store_n(&r->device_done, round, __ATOMIC_RELEASE);
    }
}

static void add(struct race *r)
{
    struct virtq_buf buf = { 0x1000, 1 };

    assert_int_equal(virtqueue_add(&r->vq, &buf, 0, 1, r), VIRTQ_OK);
}

/* The device takes and returns what is visible; while it does, no one else is at work. */
static void take_and_return(struct race *r)
{
    struct fake_chain chain;

    while (fake_device_take(&r->dev, &chain))
        ;
    while (r->dev.held_count)
        fake_device_return(&r->dev, 0, 1);
}

static void round_of_publish(struct race *r, unsigned round, uint64_t *seed)
{
    uint32_t len;

    fake_device_poll(&r->dev);
    add(r);
    __atomic_store_n(&r->round, round, __ATOMIC_RELEASE);
    driver_delay(r, seed);
    bool kick = virtqueue_publish(&r->vq);
    wait_until(&r->device_done, round, NULL);
    check(kick || !r->asleep, "round %u: the device sleeps on a buffer and was not kicked", round);
    take_and_return(r);
    fake_device_publish(&r->dev);
    assert_ptr_equal(virtqueue_pop(&r->vq, &len), r);
}

static void round_of_arm(struct race *r, unsigned round, uint64_t *seed)
{
    uint32_t len;

    virtqueue_disable_callbacks(&r->vq);
    add(r);
    virtqueue_publish(&r->vq);
    take_and_return(r);
    __atomic_store_n(&r->round, round, __ATOMIC_RELEASE);
    driver_delay(r, seed);
    bool sleeps = virtqueue_enable_callbacks(&r->vq);
    wait_until(&r->device_done, round, NULL);
    check(r->interrupt || !sleeps, "round %u: the driver sleeps on a buffer and was not interrupted", round);
    assert_ptr_equal(virtqueue_pop(&r->vq, &len), r);
}

static void race(enum part part, bool event_idx)
{
    struct virtqueue_config config = { .size = 4, .event_idx = event_idx };
    struct race *r = calloc(1, sizeof(*r));
    struct timespec now, start;
    uint64_t seed = chance_seed(0x1ace), ms = 0;
    pthread_t thread;
    void *mem = NULL;
    unsigned round = 0;

    assert_int_equal(posix_memalign(&mem, 4096, virtqueue_split_bytes(4, 0)), 0);
    assert_int_equal(virtqueue_split_init(&r->vq, &config, mem), VIRTQ_OK);
    fake_device_init(&r->dev, r->vq.desc, r->vq.avail, r->vq.used, 4, event_idx, false);
    r->part = part;
    assert_int_equal(pthread_create(&thread, NULL, device_thread, r), 0);
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (ms < RUN_MS) {
        round++;
        if (part == PUBLISH)
            round_of_publish(r, round, &seed);
        else
            round_of_arm(r, round, &seed);
        if (round % 64 == 0) {
            clock_gettime(CLOCK_MONOTONIC, &now);
            ms = (uint64_t)((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000);
        }
    }
    __atomic_store_n(&r->over, true, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    check(!r->dev.violation[0], "%s", r->dev.violation);
    print_message("%s, event_idx=%d: %u rounds\n", part == PUBLISH ? "publish" : "arm", event_idx, round);
    fake_device_free(&r->dev);
    free(mem);
    free(r);
}

static void test_publish_against_sleep(void **state)
{
    (void)state;
    race(PUBLISH, true);
    race(PUBLISH, false);
}

static void test_arm_against_return(void **state)
{
    (void)state;
    race(ARM, true);
    race(ARM, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_publish_against_sleep),
                                        cmocka_unit_test(test_arm_against_return) };

    return cmocka_run_group_tests_name("ring_race", tests, NULL, NULL);
}

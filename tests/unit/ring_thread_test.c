/* The split virtqueue and a device on a thread of its own. Both sleep whenever the rules allow it, and only a kick or
 * an interrupt wakes them: if one gets lost, a wait runs into its deadline. Built twice: with ThreadSanitizer (is every
 * access ordered?) and optimised without any (is the order that the processor keeps the right one?). */
#include "tests/unit/unit.h"

#include "drivers/virtio/ring.h"
#include "tests/unit/fake_device.h"
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#define DEADLINE_S 20 /* of one sleep; a wake-up takes microseconds, a loaded machine some more */
#define RUN_MS     500
#define MODE_MS    200
#define SLOW_NS    50000

/* How the device returns what it has: any of it; the oldest first; the newest first; or one at a time, late, each with
 * an index of its own. */
enum mode { ANY_ORDER, IN_ORDER, REVERSED, SLOW };

struct pair {
    struct virtqueue vq;
    struct fake_device dev;
    enum mode mode;
    unsigned run_ms;
    sem_t kick, interrupt;
    uint64_t total;           /* buffers to add; fewer if the time is up */
    bool finished;            /* the driver has all of them back (atomic) */
    uint64_t device_slept;    /* device's thread */
    const char *device_fault; /* device's thread */
    uint64_t driver_slept;
    const char *driver_fault;
};

/* Waits for a wake-up. False: none came. */
static bool wait_for(sem_t *sem)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DEADLINE_S;
    return sem_timedwait(sem, &until) == 0;
}

/* Forgets the wake-ups so far; those that come after the sleeper has armed count. */
static void forget(sem_t *sem)
{
    while (sem_trywait(sem) == 0)
        ;
}

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void linger(uint64_t *seed)
{
    for (volatile unsigned n = chance_below(seed, 200); n > 0; n--)
        ;
}

/* Each buffer is one number: the device checks that it is the one that was put there, and answers in the second piece.
 */
struct letter {
    uint64_t question, answer;
};

static void answer_one(struct pair *p, uint16_t i)
{
    struct letter *letter = (struct letter *)(uintptr_t)fake_device_held(&p->dev, i)->tag;

    letter->answer = ~letter->question;
    fake_device_return(&p->dev, i, sizeof(letter->answer));
}

/* Which of those it has comes back next. */
static uint16_t choose(const struct pair *p, uint64_t *seed)
{
    if (p->mode == ANY_ORDER)
        return (uint16_t)chance_below(seed, p->dev.held_count);
    return p->mode == REVERSED ? (uint16_t)(p->dev.held_count - 1) : 0;
}

static void answer_some(struct pair *p, uint64_t *seed)
{
    if (p->mode == SLOW) {
        if (p->dev.held_count == 0)
            return;
        clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ .tv_nsec = chance_below(seed, SLOW_NS) }, NULL);
        answer_one(p, 0);
        return;
    }
    while (p->dev.held_count && (chance_below(seed, 8) || !fake_device_available(&p->dev)))
        answer_one(p, choose(p, seed));
}

static void *device_thread(void *context)
{
    struct pair *p = context;
    struct fake_chain chain;
    uint64_t seed = chance_seed(0xdec1);

    while (!__atomic_load_n(&p->finished, __ATOMIC_ACQUIRE)) {
        while (chance_below(&seed, 8) && fake_device_take(&p->dev, &chain))
            ;
        answer_some(p, &seed);
        if (fake_device_publish(&p->dev))
            sem_post(&p->interrupt);
        if (p->dev.violation[0]) {
            p->device_fault = p->dev.violation;
            break;
        }
        if (chance_below(&seed, 4) == 0)
            linger(&seed);
        forget(&p->kick);
        if (p->dev.held_count || !fake_device_sleep(&p->dev, 0) || __atomic_load_n(&p->finished, __ATOMIC_ACQUIRE))
            continue;
        p->device_slept++;
        if (!wait_for(&p->kick)) {
            p->device_fault = "no kick came";
            break;
        }
        fake_device_poll(&p->dev);
    }
    __atomic_store_n(&p->finished, true, __ATOMIC_RELEASE);
    sem_post(&p->interrupt);
    return NULL;
}

/* Pops what there is, checks the answers. Returns how many. */
static uint64_t pop_all(struct pair *p)
{
    struct letter *letter;
    uint32_t len;
    uint64_t count = 0;

    while ((letter = virtqueue_pop(&p->vq, &len)) != NULL) {
        if (letter->answer != ~letter->question || len != sizeof(letter->answer))
            p->driver_fault = "a buffer came back before it was answered";
        letter->question = 0;
        count++;
    }
    return count;
}

static uint64_t add_some(struct pair *p, struct letter *letters, uint64_t added, unsigned most)
{
    uint64_t count = 0;

    while (count < most && added + count < p->total) {
        struct letter *letter = NULL;
        for (uint32_t i = 0; i < p->vq.size && !letter; i++) {
            if (letters[i].question == 0)
                letter = &letters[i];
        }
        struct virtq_buf bufs[2];
        if (!letter)
            break;
        bufs[0] = (struct virtq_buf){ (uint64_t)(uintptr_t)&letter->question, sizeof(letter->question) };
        bufs[1] = (struct virtq_buf){ (uint64_t)(uintptr_t)&letter->answer, sizeof(letter->answer) };
        if (virtqueue_add(&p->vq, bufs, 1, 1, letter) != VIRTQ_OK)
            break;
        letter->question = added + count + 1;
        count++;
    }
    if (virtqueue_publish(&p->vq))
        sem_post(&p->kick);
    return count;
}

static void drive(struct pair *p, struct letter *letters)
{
    uint64_t added = 0, back = 0, seed = chance_seed(0xd41e), until = now_ms() + p->run_ms;

    while (back < p->total && !p->driver_fault && !__atomic_load_n(&p->finished, __ATOMIC_ACQUIRE)) {
        uint64_t popped = pop_all(p), put = add_some(p, letters, added, 1 + chance_below(&seed, p->vq.size));
        back += popped;
        added += put;
        if (now_ms() >= until)
            p->total = added; /* time is up: wait for what is out */
        if (popped || put || back == p->total) {
            if (chance_below(&seed, 4) == 0)
                linger(&seed);
            virtqueue_disable_callbacks(&p->vq);
            continue;
        }
        forget(&p->interrupt);
        if (!(chance_below(&seed, 2) ? virtqueue_enable_callbacks(&p->vq) : virtqueue_enable_callbacks_late(&p->vq)))
            continue;
        if (__atomic_load_n(&p->finished,
                            __ATOMIC_ACQUIRE)) /* the device gave up: its call may just have been forgotten */
            break;
        p->driver_slept++;
        if (!wait_for(&p->interrupt))
            p->driver_fault = "no interrupt came";
    }
    p->total = back;
}

static void run_mode(uint16_t size, bool event_idx, uint16_t indirect_max, enum mode mode, unsigned run_ms)
{
    struct pair *p = calloc(1, sizeof(*p));
    struct letter *letters = calloc(size, sizeof(*letters));
    struct virtqueue_config config = { .size = size, .event_idx = event_idx, .indirect_max = indirect_max };
    pthread_t thread;
    void *mem = NULL;

    assert_int_equal(posix_memalign(&mem, 4096, virtqueue_split_bytes(size, indirect_max)), 0);
    assert_int_equal(virtqueue_split_init(&p->vq, &config, mem), VIRTQ_OK);
    fake_device_init(&p->dev, p->vq.desc, p->vq.avail, p->vq.used, size, event_idx, indirect_max > 0);
    p->total = UINT32_MAX;
    p->mode = mode;
    p->run_ms = run_ms;
    sem_init(&p->kick, 0, 0);
    sem_init(&p->interrupt, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, device_thread, p), 0);
    drive(p, letters);
    __atomic_store_n(&p->finished, true, __ATOMIC_RELEASE);
    sem_post(&p->kick);
    pthread_join(thread, NULL);
    check(!p->device_fault, "%s", p->device_fault);
    check(!p->driver_fault, "%s", p->driver_fault);
    check(p->vq.stats.bad_used == 0, "fault %d: %u", p->vq.fault.kind, p->vq.fault.value);
    assert_int_equal(p->vq.stats.popped, p->total);
    print_message("ring=%u event_idx=%d indirect=%u mode %d: %llu buffers, device slept %llu times, driver %llu\n",
                  size, event_idx, indirect_max, mode, (unsigned long long)p->total,
                  (unsigned long long)p->device_slept, (unsigned long long)p->driver_slept);
    check(mode == SLOW ? p->total > 40 && p->driver_slept > 5
                       : p->total > 200 && p->device_slept > 20 && p->driver_slept > 20,
          "%llu buffers, slept %llu and %llu: this tests little", (unsigned long long)p->total,
          (unsigned long long)p->device_slept, (unsigned long long)p->driver_slept);
    sem_destroy(&p->kick);
    sem_destroy(&p->interrupt);
    fake_device_free(&p->dev);
    free(mem);
    free(letters);
    free(p);
}

static void run(uint16_t size, bool event_idx, uint16_t indirect_max)
{
    run_mode(size, event_idx, indirect_max, ANY_ORDER, RUN_MS);
}

static void test_event_index(void **state)
{
    (void)state;
    run(2, true, 0);
    run(2, true, 2);
    run(16, true, 0);
    run(256, true, 2);
}

static void test_flags(void **state)
{
    (void)state;
    run(2, false, 0);
    run(16, false, 2);
    run(256, false, 0);
}

static void test_in_order(void **state)
{
    (void)state;
    run_mode(16, true, 2, IN_ORDER, MODE_MS);
    run_mode(64, false, 0, IN_ORDER, MODE_MS);
}

static void test_reversed(void **state)
{
    (void)state;
    run_mode(16, true, 0, REVERSED, MODE_MS);
    run_mode(64, false, 2, REVERSED, MODE_MS);
}

static void test_slow(void **state)
{
    (void)state;
    run_mode(16, true, 2, SLOW, MODE_MS);
    run_mode(8, false, 0, SLOW, MODE_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_event_index), cmocka_unit_test(test_flags),
                                        cmocka_unit_test(test_in_order), cmocka_unit_test(test_reversed),
                                        cmocka_unit_test(test_slow) };

    return cmocka_run_group_tests_name("ring_thread", tests, NULL, NULL);
}

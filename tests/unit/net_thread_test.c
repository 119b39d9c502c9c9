/* A queue pair of the network device and a device on a thread of its own, which sends back what it gets, as frames of
 * lengths that it chooses. Both sleep whenever the rules allow it, and only a doorbell or an interrupt wakes them: one
 * that gets lost lets a wait run into its deadline. Built twice, as ring_thread_test. */
#include "tests/unit/net_rig.h"

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#define DEADLINE_S 20 /* of one sleep */
#define RUN_MS     250
#define SLOW_NS    50000
#define LETTERS    256
#define BUDGET     16
#define PIECES_MAX 2

/* How the device returns what it has. */
enum mode { ANY_ORDER, IN_ORDER, REVERSED, SLOW };

/* What a frame to send refers to; the driver's again when done() was called for it. */
struct letter {
    uint64_t number;
    uint8_t more[PIECES_MAX][24];
    bool out;
};

static struct {
    enum mode mode;
    sem_t doorbell, interrupt;
    bool finished; /* atomic */
    const char *device_fault;
    /* the device's: numbers that it has got and not sent back */
    uint64_t echo[4 * LETTERS];
    unsigned echoes;
    bool starved; /* of receive buffers, at the last try */
    uint64_t device_slept;
    /* the driver's */
    struct letter letter[LETTERS];
    bool waiting[LETTERS]; /* by number modulo LETTERS: sent, and not back */
    uint64_t sent, back, done, driver_slept, full;
    const char *driver_fault;
} run;

static bool wait_for(sem_t *sem)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DEADLINE_S;
    return sem_timedwait(sem, &until) == 0;
}

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

static void ring_doorbell(struct virtio_transport *t, const struct virtqueue *vq)
{
    (void)t, (void)vq;
    sem_post(&run.doorbell);
}

static const struct virtio_transport_ops thread_ops = { .name = "thread", .notify = ring_doorbell };

static uint8_t byte_of(uint64_t number, unsigned i)
{
    return (uint8_t)(number * 5 + i);
}

/* ---- the device ---- */

static const char *check_sent(const struct fake_chain *chain, uint64_t *number)
{
    unsigned header = net_rig.pair->header;
    const uint8_t *first = (const uint8_t *)(uintptr_t)chain->piece[0].addr;

    if (chain->writable != 0 || chain->piece[0].len < header + ETH_HLEN + 8 || chain->pieces > 1 + PIECES_MAX)
        return "a frame that was not sent";
    memcpy(number, first + header + ETH_HLEN, 8);
    for (uint32_t i = 1; i < chain->pieces; i++)
        for (uint32_t at = 0; at < chain->piece[i].len; at++)
            if (((const uint8_t *)(uintptr_t)chain->piece[i].addr)[at] != byte_of(*number, at))
                return "a piece that is not the frame's";
    return NULL;
}

static uint16_t choose(const struct fake_device *dev, uint64_t *seed)
{
    if (run.mode == ANY_ORDER)
        return (uint16_t)chance_below(seed, dev->held_count);
    return run.mode == REVERSED ? (uint16_t)(dev->held_count - 1) : 0;
}

static void take_sent(uint64_t *seed)
{
    struct fake_chain chain;

    while (run.echoes < COUNT_OF(run.echo) && chance_below(seed, 8) && fake_device_take(&net_rig.tx, &chain)) {
        const char *wrong = check_sent(&chain, &run.echo[run.echoes++]);
        run.device_fault = wrong ? wrong : run.device_fault;
    }
    while (net_rig.tx.held_count && (run.mode == SLOW || chance_below(seed, 8)))
        fake_device_return(&net_rig.tx, choose(&net_rig.tx, seed), 0);
}

/* Writes one frame into as many of the held buffers as it takes; false: they are too few. Buffers are taken as their
 * addresses' tags say, so that any of those that are held may be the next. */
static bool send_back(uint64_t number, uint64_t *seed)
{
    struct fake_device *rx = &net_rig.rx;
    struct fake_chain chain;
    uint32_t room = net_rig.pair->pool.data_size, header = net_rig.pair->header, frame = 60 + chance_below(seed, 1400);
    bool mergeable = net_rig.net.features & MRG;

    if (mergeable && chance_below(seed, 4) == 0)
        frame += 2 * room;
    uint32_t all = header + frame, count = (all + room - 1) / room;
    while (rx->held_count < count && fake_device_take(rx, &chain))
        ;
    run.starved = rx->held_count < count;
    if (run.starved)
        return false;
    for (uint32_t i = 0, at = 0; i < count; i++, at += room) {
        uint16_t which = choose(rx, seed);
        uint8_t *to = (uint8_t *)(uintptr_t)fake_device_held(rx, which)->tag;
        uint32_t n = all - at < room ? all - at : room;
        if (i == 0) {
            struct virtio_net_hdr_v1 h = { .num_buffers = (uint16_t)(mergeable ? count : 1) };
            memcpy(to, &h, sizeof h);
            memcpy(to + header + ETH_HLEN, &number, 8);
        } else {
            to[0] = byte_of(number, i);
        }
        to[n - 1] = byte_of(number, n);
        fake_device_return(rx, which, n);
    }
    return true;
}

static bool device_works(uint64_t *seed)
{
    bool moved = false;

    take_sent(seed);
    while (run.echoes > 0 && chance_below(seed, 16) && send_back(run.echo[run.echoes - 1], seed)) {
        run.echoes--;
        moved = true;
        if (run.mode == SLOW) {
            clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ .tv_nsec = chance_below(seed, SLOW_NS) }, NULL);
            break;
        }
    }
    if (fake_device_publish(&net_rig.rx) | fake_device_publish(&net_rig.tx))
        sem_post(&run.interrupt);
    return moved;
}

/* It may sleep when it has returned all that was sent and has nothing to send back, or not the buffers for it. */
static bool device_may_sleep(void)
{
    if (net_rig.tx.held_count > 0 || (run.echoes > 0 && !run.starved))
        return false;
    return fake_device_sleep(&net_rig.tx, 0) && (run.echoes == 0 || fake_device_sleep(&net_rig.rx, 0));
}

static void *device_thread(void *context)
{
    uint64_t seed = chance_seed(0xdec1);

    (void)context;
    while (!__atomic_load_n(&run.finished, __ATOMIC_ACQUIRE) && !run.device_fault) {
        bool moved = device_works(&seed);
        if (net_rig.rx.violation[0] || net_rig.tx.violation[0])
            run.device_fault = net_rig.rx.violation[0] ? net_rig.rx.violation : net_rig.tx.violation;
        forget(&run.doorbell);
        if (moved || !device_may_sleep() || __atomic_load_n(&run.finished, __ATOMIC_ACQUIRE))
            continue;
        run.device_slept++;
        if (!wait_for(&run.doorbell))
            run.device_fault = "no doorbell rang";
        fake_device_poll(&net_rig.tx);
        fake_device_poll(&net_rig.rx);
    }
    __atomic_store_n(&run.finished, true, __ATOMIC_RELEASE);
    sem_post(&run.interrupt);
    return NULL;
}

/* ---- the driver ---- */

static void on_done(void *token)
{
    struct letter *letter = token;

    letter->out = false;
    memset(letter->more, 0xee, sizeof letter->more); /* it is ours again */
    run.done++;
}

/* One frame; false: there is no room for it. */
static bool send_one(uint64_t *seed)
{
    struct letter *letter = &run.letter[run.sent % LETTERS];
    uint32_t header = net_rig.pair->header;
    uint16_t count = (uint16_t)chance_below(seed, PIECES_MAX + 1);
    struct virtq_buf piece[PIECES_MAX];

    if (letter->out || run.waiting[run.sent % LETTERS])
        return false;
    if (virtqueue_need(&net_rig.pair->tx, (uint16_t)(count + 1)) > virtqueue_capacity(&net_rig.pair->tx))
        return false;
    struct tx_slot *slot = virtnet_slot(net_rig.pair);
    if (!slot)
        return false;
    memcpy(slot->data + header + ETH_HLEN, &run.sent, 8);
    for (uint16_t i = 0; i < count; i++) {
        for (unsigned at = 0; at < sizeof letter->more[i]; at++)
            letter->more[i][at] = byte_of(run.sent, at);
        piece[i] = (struct virtq_buf){ (uint64_t)(uintptr_t)letter->more[i], sizeof letter->more[i] };
    }
    slot->token = count > 0 ? letter : NULL;
    letter->out = count > 0;
    if (!virtnet_send(net_rig.pair, slot, header + ETH_HLEN + 8, piece, count)) {
        run.driver_fault = "there is room, and there is none";
        return false;
    }
    run.waiting[run.sent++ % LETTERS] = true;
    return true;
}

static void check_received(const struct virtnet_frame *frame)
{
    uint64_t number;

    memcpy(&number, frame->buffer[0]->data + net_rig.pair->header + ETH_HLEN, 8);
    if (number >= run.sent || number + LETTERS < run.sent || !run.waiting[number % LETTERS])
        run.driver_fault = "a frame that was not sent, or came before";
    for (uint16_t i = 0; i < frame->count; i++)
        if (frame->buffer[i]->data[frame->length[i] - 1] != byte_of(number, frame->length[i]) ||
            (i > 0 && frame->buffer[i]->data[0] != byte_of(number, i)))
            run.driver_fault = "a buffer came before it was written";
    run.waiting[number % LETTERS] = false;
    run.back++;
}

static unsigned receive_some(void)
{
    struct virtnet_frame frame;
    unsigned n = 0;

    for (; n < BUDGET && virtnet_receive(net_rig.pair, &frame); n++) {
        check_received(&frame);
        for (uint16_t i = 0; i < frame.count; i++)
            virtnet_release(frame.buffer[i]);
    }
    virtnet_refill(net_rig.pair);
    return n;
}

/* Sleeps, if there is nothing to do. Late only as long as so much is sure to come. */
static void driver_sleeps(bool full, uint64_t *seed)
{
    uint64_t owed = run.sent - run.back;
    uint16_t after = (uint16_t)(1 + (owed > 0 ? chance_below(seed, owed < 16 ? (uint32_t)owed : 16) : 0));

    forget(&run.interrupt);
    if (virtnet_sleep(net_rig.pair, full, after) && !__atomic_load_n(&run.finished, __ATOMIC_ACQUIRE)) {
        run.driver_slept++;
        if (!wait_for(&run.interrupt))
            run.driver_fault = "no interrupt came";
    }
    virtnet_awake(net_rig.pair);
}

static void drive(void)
{
    uint64_t seed = chance_seed(0xd41e), until = now_ms() + RUN_MS;

    while (!run.driver_fault && !__atomic_load_n(&run.finished, __ATOMIC_ACQUIRE)) {
        bool over = now_ms() >= until, full = false;
        unsigned work = virtnet_reclaim(net_rig.pair, BUDGET, on_done) + receive_some();
        for (unsigned n = 1 + chance_below(&seed, BUDGET); n > 0 && !over && !full; n--) {
            full = !send_one(&seed);
            work += !full;
        }
        virtnet_flush(net_rig.pair);
        if (over && run.back == run.sent && net_rig.pair->tx.in_flight == 0)
            return;
        if (work == 0) {
            run.full += full;
            /* When all is back, what is still out is the device's to say: by the transmit queue's interrupt. */
            driver_sleeps(full || run.back == run.sent, &seed);
        }
    }
}

static void run_pair(uint16_t rx, uint16_t tx, uint64_t features, enum mode mode)
{
    pthread_t thread;

    memset(&run, 0, sizeof run);
    run.mode = mode;
    sem_init(&run.doorbell, 0, 0);
    sem_init(&run.interrupt, 0, 0);
    net_rig_open(&(struct net_config){ .rx_size = rx, .tx_size = tx, .features = features });
    net_rig.net.transport.ops = &thread_ops;
    assert_int_equal(pthread_create(&thread, NULL, device_thread, NULL), 0);
    drive();
    __atomic_store_n(&run.finished, true, __ATOMIC_RELEASE);
    sem_post(&run.doorbell);
    pthread_join(thread, NULL);
    check(!run.device_fault, "%s", run.device_fault);
    check(!run.driver_fault, "%s", run.driver_fault);
    for (const struct virtqueue *vq = &net_rig.pair->rx; vq; vq = vq == &net_rig.pair->rx ? &net_rig.pair->tx : NULL)
        check(!vq->broken && vq->stats.bad_used == 0, "fault %d: %u", vq->fault.kind, vq->fault.value);
    assert_int_equal(run.back, run.sent);
    assert_int_equal(net_rig.pair->rx_stats.packets, run.back);
    print_message("rings %u, %u, features %llx, mode %d: %llu frames, %llu sent from where they lay, device slept %llu "
                  "times, driver %llu, %llu with a full ring\n",
                  rx, tx, (unsigned long long)features, mode, (unsigned long long)run.back,
                  (unsigned long long)run.done, (unsigned long long)run.device_slept,
                  (unsigned long long)run.driver_slept, (unsigned long long)run.full);
    check(run.sent > 50 && run.done > 10 && run.driver_slept > 5 && (mode == SLOW || run.device_slept > 5),
          "this tests little");
    net_rig_check_buffers();
    net_rig_check_slots();
    net_rig_close();
    sem_destroy(&run.doorbell);
    sem_destroy(&run.interrupt);
}

static void test_any_order(void **state)
{
    (void)state;
    run_pair(16, 16, MRG | EVENT | INDIR, ANY_ORDER);
    run_pair(64, 8, MRG, ANY_ORDER);
    run_pair(4, 4, MRG | EVENT, ANY_ORDER);
}

static void test_in_order(void **state)
{
    (void)state;
    run_pair(128, 32, EVENT | INDIR, IN_ORDER);
    run_pair(16, 16, MRG, IN_ORDER);
}

static void test_reversed(void **state)
{
    (void)state;
    run_pair(32, 16, MRG | EVENT, REVERSED);
    run_pair(16, 32, INDIR, REVERSED);
}

static void test_slow(void **state)
{
    (void)state;
    run_pair(16, 8, MRG | EVENT | INDIR, SLOW);
    run_pair(8, 4, MRG, SLOW);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_any_order), cmocka_unit_test(test_in_order),
                                        cmocka_unit_test(test_reversed), cmocka_unit_test(test_slow) };

    return cmocka_run_group_tests_name("net_thread", tests, NULL, NULL);
}

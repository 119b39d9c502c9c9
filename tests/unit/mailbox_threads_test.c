/* Mailboxes with a thread for each core. An interrupt is a counter that the sleeping thread waits for, on a condition
 * variable or spinning (which comes round so fast that the race between sending and falling asleep is met often).
 * Built twice: with ThreadSanitizer, which finds what is not ordered, and optimised, where the processor reorders. */
#define _GNU_SOURCE /* pthread_setaffinity_np() */
#include "tests/unit/unit.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "kernel/mailbox.h"

#define DEADLINE_S 60 /* for everything that must happen; nothing here takes long */
#define MAX_CORES  8

struct core {
    struct machine *machine;
    struct mailbox box;
    uint64_t seed;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    uint32_t interrupts; /* received and not yet noticed */
    uint64_t interrupted, tries_to_sleep, slept;
    uint64_t received[MAX_CORES], sent[MAX_CORES];
};

struct machine {
    struct mailbox_system *system;
    uint32_t cores;
    bool spin; /* how cores sleep */
    bool stop;
    time_t deadline;
    char failure[160]; /* the first one; read when the threads have ended */
    bool failed;
    struct core core[MAX_CORES];
};

static time_t now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t); /* the condition variables' clock */
    return t.tv_sec;
}

static bool stopped(struct machine *m)
{
    return __atomic_load_n(&m->stop, __ATOMIC_ACQUIRE);
}

static void interrupt(struct core *core)
{
    if (core->machine->spin) {
        __atomic_fetch_add(&core->interrupts, 1, __ATOMIC_RELEASE);
        return;
    }
    pthread_mutex_lock(&core->mutex);
    __atomic_fetch_add(&core->interrupts, 1, __ATOMIC_RELAXED);
    pthread_cond_signal(&core->wake);
    pthread_mutex_unlock(&core->mutex);
}

static void stop(struct machine *m)
{
    __atomic_store_n(&m->stop, true, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < m->cores; i++)
        interrupt(&m->core[i]);
}

/* Ends the run; the first sentence is kept. */
__attribute__((format(printf, 2, 3))) static void failure(struct machine *m, const char *format, ...)
{
    va_list args;

    if (!__atomic_exchange_n(&m->failed, true, __ATOMIC_ACQ_REL)) {
        va_start(args, format);
        vsnprintf(m->failure, sizeof(m->failure), format, args);
        va_end(args);
    }
    stop(m);
}

/* Waits for an interrupt; false: none has come in time. */
static bool halt(struct core *core)
{
    struct timespec until = { .tv_sec = core->machine->deadline };
    int error = 0;

    if (core->machine->spin) {
        for (uint32_t n = 1; __atomic_load_n(&core->interrupts, __ATOMIC_ACQUIRE) == 0; n++) {
            if (n % 64 == 0)
                sched_yield();
            if (n % 65536 == 0 && now_s() >= core->machine->deadline)
                return false;
        }
        __atomic_store_n(&core->interrupts, 0, __ATOMIC_RELAXED);
        return true;
    }
    pthread_mutex_lock(&core->mutex);
    while (core->interrupts == 0 && error == 0)
        error = pthread_cond_timedwait(&core->wake, &core->mutex, &until);
    core->interrupts = 0;
    pthread_mutex_unlock(&core->mutex);
    return error == 0;
}

/* What a core's loop does when there is no work. */
static void sleep_on_nothing(struct core *core)
{
    core->tries_to_sleep++;
    if (!mailbox_sleep(&core->box))
        return;
    core->slept++;
    if (!halt(core))
        failure(core->machine, "core %u slept until the deadline", core->box.core);
    mailbox_awake(&core->box);
}

static void ring(struct core *core)
{
    for (uint64_t wake = mailbox_ring(&core->box); wake != 0; wake &= wake - 1) {
        struct core *other = &core->machine->core[__builtin_ctzll(wake)];

        __atomic_fetch_add(&other->interrupted, 1, __ATOMIC_RELAXED);
        interrupt(other);
    }
}

/* Now and then a pause, mostly short. */
static void dawdle(struct core *core)
{
    uint32_t what = chance_below(&core->seed, 64);

    if (what == 0)
        usleep(chance_below(&core->seed, 300));
    else if (what < 24)
        for (uint32_t n = chance_below(&core->seed, 200); n > 0; n--)
            __asm__ volatile("pause");
}

static void machine_open(struct machine *m, uint32_t cores, uint32_t slots, bool spin)
{
    memset(m, 0, sizeof(*m));
    m->system = mailbox_system_init(aligned_alloc(CACHE_LINE, mailbox_bytes(cores, slots)), cores, slots);
    m->cores = cores;
    m->spin = spin;
    m->deadline = now_s() + DEADLINE_S;
    for (uint32_t i = 0; i < cores * cores; i++) {
        struct mailbox_ring *ring = mailbox_ring_between(m->system, i / cores, i % cores);

        ring->head = ring->tail = UINT32_MAX - 10 * i;
    }
    for (uint32_t i = 0; i < cores; i++) {
        struct core *core = &m->core[i];

        core->machine = m;
        core->seed = chance_seed(0x3a11 + 100 * i);
        pthread_mutex_init(&core->mutex, NULL);
        pthread_cond_init(&core->wake, NULL);
        mailbox_open(&core->box, m->system, i);
    }
}

/* Runs all cores to their end and checks what holds after every run: a core is interrupted at most once for each time
 * it tried to sleep. */
static void machine_run(struct machine *m, void *(*body)(void *))
{
    for (uint32_t i = 0; i < m->cores; i++)
        assert_int_equal(pthread_create(&m->core[i].thread, NULL, body, &m->core[i]), 0);
    for (uint32_t i = 0; i < m->cores; i++)
        pthread_join(m->core[i].thread, NULL);
    check(!m->failed, "%u cores: %s", m->cores, m->failure);
    for (uint32_t i = 0; i < m->cores; i++)
        check(m->core[i].interrupted <= m->core[i].tries_to_sleep,
              "core %u of %u: %llu interrupts although it tried to sleep %llu times", i, m->cores,
              (unsigned long long)m->core[i].interrupted, (unsigned long long)m->core[i].tries_to_sleep);
}

static void machine_close(struct machine *m)
{
    free(m->system);
    for (uint32_t i = 0; i < m->cores; i++) {
        pthread_mutex_destroy(&m->core[i].mutex);
        pthread_cond_destroy(&m->core[i].wake);
    }
}

/* ---- tokens: a few messages wander, all other cores sleep; one lost wake-up and a token is never seen again ---- */

#define HOPS 3000

static struct {
    uint32_t hops; /* no atomic: the token's holder alone may touch it, as with the packets that messages stand for */
} token[MAX_CORES];
static uint32_t tokens, retired;

static void handle_token(struct core *core, const struct message *message)
{
    struct message next = *message;
    uint32_t id = message->kind;

    if (message->c != token[id].hops)
        failure(core->machine, "token %u: hop %u, the message says %llu", id, token[id].hops,
                (unsigned long long)message->c);
    next.c = ++token[id].hops;
    if (token[id].hops == HOPS) {
        if (__atomic_add_fetch(&retired, 1, __ATOMIC_ACQ_REL) == tokens)
            stop(core->machine);
        return;
    }
    uint32_t to = (core->box.core + 1 + chance_below(&core->seed, core->machine->cores - 1)) % core->machine->cores;
    if (!mailbox_post(&core->box, to, &next))
        failure(core->machine, "token %u: the ring from %u to %u is full", id, core->box.core, to);
}

static void *token_core(void *argument)
{
    struct core *core = argument;
    struct message message;
    uint32_t from;

    if (core->box.core < tokens)
        handle_token(core, &(struct message){ .kind = (uint16_t)core->box.core });
    while (!stopped(core->machine)) {
        ring(core);
        if (mailbox_take(&core->box, &from, &message))
            handle_token(core, &message);
        else
            sleep_on_nothing(core);
        dawdle(core);
    }
    return NULL;
}

static void wander(bool spin)
{
    static struct machine machine;

    for (uint32_t cores = 2; cores <= MAX_CORES; cores++) {
        uint64_t slept = 0, interrupted = 0;

        memset(token, 0, sizeof(token));
        tokens = cores / 3 + 1;
        retired = 0;
        machine_open(&machine, cores, 8, spin);
        machine_run(&machine, token_core);
        assert_int_equal(retired, tokens);
        for (uint32_t i = 0; i < cores; i++) {
            slept += machine.core[i].slept;
            interrupted += machine.core[i].interrupted;
        }
        check(slept > 100 && interrupted > 100, "%u cores slept %llu times and got %llu interrupts: nothing was tried",
              cores, (unsigned long long)slept, (unsigned long long)interrupted);
        machine_close(&machine);
    }
}

static void test_tokens(void **state)
{
    (void)state;
    wander(false);
}

static void test_tokens_spinning(void **state)
{
    (void)state;
    wander(true);
}

/* ---- flood: every core sends to every other as fast as small rings allow ---- */

#define FLOOD 4000 /* messages for each ordered pair */

static bool flood_done(const struct core *core)
{
    for (uint32_t other = 0; other < core->machine->cores; other++)
        if (other != core->box.core && (core->received[other] < FLOOD || core->sent[other] < FLOOD))
            return false;
    return true;
}

/* Posts up to a few messages to some core; false: there was something to send, and no room. */
static bool flood_send(struct core *core)
{
    uint32_t to = (core->box.core + 1 + chance_below(&core->seed, core->machine->cores - 1)) % core->machine->cores;

    for (uint32_t n = chance_below(&core->seed, 6); n > 0 && core->sent[to] < FLOOD; n--) {
        struct message m = { .kind = (uint16_t)core->box.core, .a = (uint16_t)to, .c = core->sent[to] };

        m.e = ~m.c;
        if (!mailbox_post(&core->box, to, &m))
            return false;
        core->sent[to]++;
    }
    return true;
}

static void flood_receive(struct core *core, uint32_t from, const struct message *m)
{
    uint64_t expected = core->received[from]++;

    if (m->kind != from || m->a != core->box.core || m->c != expected || m->e != ~expected)
        failure(core->machine, "core %u expected number %llu of core %u; the message: from %u to %u, number %llu",
                core->box.core, (unsigned long long)expected, from, m->kind, m->a, (unsigned long long)m->c);
}

static bool flood_sent_all(const struct core *core)
{
    for (uint32_t other = 0; other < core->machine->cores; other++)
        if (other != core->box.core && core->sent[other] < FLOOD)
            return false;
    return true;
}

static void *flood_core(void *argument)
{
    struct core *core = argument;
    struct message message;
    uint32_t from, budget;

    while (!flood_done(core) && !stopped(core->machine)) {
        bool room = flood_send(core);

        ring(core);
        for (budget = 8; budget > 0 && mailbox_take(&core->box, &from, &message); budget--)
            flood_receive(core, from, &message);
        if (budget == 8 && flood_sent_all(core) && !flood_done(core))
            sleep_on_nothing(core);
        else if (budget == 8 && !room)
            sched_yield(); /* nobody says when there is room again */
        dawdle(core);
        if (now_s() >= core->machine->deadline)
            failure(core->machine, "core %u has not got everything by the deadline", core->box.core);
    }
    return NULL;
}

static void test_flood(void **state)
{
    static struct machine machine;
    uint64_t overflows = 0;

    (void)state;
    for (uint32_t cores = 2; cores <= MAX_CORES; cores += 2) {
        machine_open(&machine, cores, 4, false);
        machine_run(&machine, flood_core);
        for (uint32_t i = 0; i < cores; i++) {
            struct mailbox *box = &machine.core[i].box;
            uint32_t from;
            struct message message;

            assert_int_equal(box->stats.received, (uint64_t)FLOOD * (cores - 1));
            assert_int_equal(box->stats.sent, (uint64_t)FLOOD * (cores - 1));
            assert_false(mailbox_take(box, &from, &message)); /* exactly once */
            overflows += box->stats.overflow;
        }
        machine_close(&machine);
    }
    assert_true(overflows > 100); /* full rings have been met */
}

/* ---- the moment of falling asleep: all start together, core 0 falls asleep, the others send; in many mailbox
 * systems one behind the other, judged together, so that a try costs little more than the meeting before it ---- */

#define SYSTEMS 256

static struct sleeper {
    struct mailbox box[MAX_CORES];
    bool slept;
    uint32_t sent, wakes;
} sleeper[SYSTEMS];
static uint32_t arrived, yields;
static uint64_t tries, parallel; /* of all tries those in which no thread had to give way to another */
static time_t enough;

#define PARALLEL_WANTED 150000

/* All threads meet here; `meeting` counts. False: the run is over. */
static bool meet(struct machine *m, uint32_t *meeting)
{
    uint32_t all = m->cores * ++*meeting;

    __atomic_add_fetch(&arrived, 1, __ATOMIC_ACQ_REL);
    for (uint32_t n = 1; __atomic_load_n(&arrived, __ATOMIC_ACQUIRE) != all; n++) {
        if ((int32_t)(__atomic_load_n(&arrived, __ATOMIC_ACQUIRE) - all) > 0)
            return true; /* the others are on their way to the next meeting */
        if (n % 512 == 0) {
            __atomic_fetch_add(&yields, 1, __ATOMIC_RELAXED);
            sched_yield();
        }
        if (stopped(m))
            return false;
    }
    return true;
}

/* A short time, so that stores and looks meet in every order. */
static void spread(struct core *core, uint32_t most)
{
    for (uint32_t n = chance_below(&core->seed, most); n > 0; n--)
        __asm__ volatile("" ::: "memory");
}

/* Falls asleep in system `s`, or sends there; mostly. */
static void try_system(struct core *core, struct sleeper *s)
{
    spread(core, 1u << core->seed % 10);
    if (core->box.core == 0) {
        s->slept = mailbox_sleep(&s->box[0]);
    } else if (chance_below(&core->seed, 8) != 0) {
        mailbox_post(&s->box[core->box.core], 0, &(struct message){ .kind = 1 });
        uint64_t wake = mailbox_ring(&s->box[core->box.core]);
        __atomic_fetch_add(&s->wakes, (uint32_t)__builtin_popcountll(wake), __ATOMIC_RELAXED);
        __atomic_fetch_add(&s->sent, 1, __ATOMIC_RELAXED);
    }
}

static void judge(struct core *core, struct sleeper *s)
{
    uint32_t from, taken = 0;
    struct message message;

    tries++;
    core->received[0] += s->slept && s->sent > 0;
    core->received[1] += !s->slept;
    if (s->slept && s->sent > 0 && s->wakes == 0)
        failure(core->machine, "the core sleeps on %u messages and nobody wakes it", s->sent);
    if (s->wakes > 1 || (s->sent == 0 && s->wakes > 0))
        failure(core->machine, "%u messages, %u interrupts", s->sent, s->wakes);
    if (s->sent == 0 && !s->slept)
        failure(core->machine, "nothing was sent, and the core does not sleep");
    mailbox_awake(&s->box[0]);
    while (mailbox_take(&s->box[0], &from, &message))
        taken++;
    if (taken != s->sent)
        failure(core->machine, "%u sent, %u received", s->sent, taken);
    s->sent = s->wakes = 0;
}

/* Each core on a processor of its own, as far as there are so many. */
static void stay_on_a_processor(struct core *core)
{
    uint32_t place = core->box.core;
    cpu_set_t all, one;

    if (sched_getaffinity(0, sizeof(all), &all) != 0)
        return;
    place %= (uint32_t)CPU_COUNT(&all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &all) && place-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
        }
    }
}

static void *falling_core(void *argument)
{
    struct core *core = argument;
    struct machine *m = core->machine;
    uint32_t meeting = 0, before, after = 0;

    stay_on_a_processor(core);
    while (meet(m, &meeting)) {
        for (uint32_t i = 0; i < SYSTEMS && meet(m, &meeting); i++) {
            try_system(core, &sleeper[i]);
            before = after;
            after = __atomic_load_n(&yields, __ATOMIC_RELAXED);
            if (core->box.core == 0)
                parallel += before == after;
        }
        if (!meet(m, &meeting))
            break;
        for (uint32_t i = 0; core->box.core == 0 && i < SYSTEMS; i++)
            judge(core, &sleeper[i]);
        if (core->box.core == 0 && (parallel >= PARALLEL_WANTED || now_s() >= enough))
            stop(m);
    }
    return NULL;
}

/* Until enough has been tried in parallel, or a busy machine has had its time. */
static void fall_asleep(uint32_t cores, time_t seconds)
{
    static struct machine machine;
    uint32_t from;
    struct message message;

    machine_open(&machine, cores, 4, true);
    for (uint32_t i = 0; i < SYSTEMS; i++) {
        void *memory = aligned_alloc(CACHE_LINE, mailbox_bytes(cores, 4));

        mailbox_system_init(memory, cores, 4);
        for (uint32_t core = 0; core < cores; core++)
            mailbox_open(&sleeper[i].box[core], memory, core);
        assert_false(mailbox_take(&sleeper[i].box[0], &from, &message)); /* the first look, after which it may sleep */
    }
    arrived = yields = 0;
    tries = parallel = 0;
    enough = now_s() + seconds;
    machine_run(&machine, falling_core);
    print_message("%u cores: %llu tries, %llu of them in parallel\n", cores, (unsigned long long)tries,
                  (unsigned long long)parallel);
    for (uint32_t i = 0; i < SYSTEMS; i++)
        free(sleeper[i].box[0].system);
    /* Both have happened: asleep before a message, and awake because of one. */
    check(machine.core[0].received[0] > 0 && machine.core[0].received[1] > 0, "%llu and %llu",
          (unsigned long long)machine.core[0].received[0], (unsigned long long)machine.core[0].received[1]);
    machine_close(&machine);
}

static void test_falling_asleep(void **state)
{
    (void)state;
    fall_asleep(2, 12);
}

static void test_falling_asleep_two_senders(void **state)
{
    (void)state;
    fall_asleep(3, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_falling_asleep), cmocka_unit_test(test_falling_asleep_two_senders),
        cmocka_unit_test(test_tokens),         cmocka_unit_test(test_tokens_spinning),
        cmocka_unit_test(test_flood),
    };
    return cmocka_run_group_tests_name("mailbox_threads", tests, NULL, NULL);
}

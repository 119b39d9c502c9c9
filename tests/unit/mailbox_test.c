/* Mailboxes, one call at a time: what is visible when, full rings, indices that wrap, order, turns, and who is to be
 * woken. What happens when calls run at once is mailbox_threads_test.c. */
#include "tests/unit/unit.h"

#include "kernel/mailbox.h"

/* A system with an end for every core, in memory of exactly the size asked for. */
struct net {
    struct mailbox_system *system;
    struct mailbox box[MAILBOX_MAX_CORES];
};

/* All rings start at `index`, as after so many messages. */
static void net_open(struct net *net, uint32_t cores, uint32_t slots, uint32_t index)
{
    void *memory = aligned_alloc(CACHE_LINE, mailbox_bytes(cores, slots));

    memset(memory, 0x5a, mailbox_bytes(cores, slots));
    net->system = mailbox_system_init(memory, cores, slots);
    for (uint32_t i = 0; i < cores * cores; i++) {
        struct mailbox_ring *ring = mailbox_ring_between(net->system, i / cores, i % cores);

        ring->head = ring->tail = index;
    }
    for (uint32_t core = 0; core < cores; core++)
        mailbox_open(&net->box[core], net->system, core);
}

static void net_close(struct net *net)
{
    free(net->system);
}

/* A message whose every field follows from who sends it to whom, and from its number. */
static struct message made(uint32_t from, uint32_t to, uint32_t number)
{
    uint64_t seed = ((uint64_t)from << 40 | (uint64_t)to << 34 | number) + 1;
    struct message m = { .kind = (uint16_t)from, .a = (uint16_t)to, .b = number };

    m.c = chance(&seed);
    m.d = chance(&seed);
    m.e = chance(&seed);
    return m;
}

static bool post(struct net *net, uint32_t from, uint32_t to, uint32_t number)
{
    struct message m = made(from, to, number);

    return mailbox_post(&net->box[from], to, &m);
}

/* Takes a message and checks that nothing in it is another's; returns its number, its sender in *from. */
static bool take(struct net *net, uint32_t core, uint32_t *from, uint32_t *number)
{
    struct message m, expected;

    if (!mailbox_take(&net->box[core], from, &m))
        return false;
    assert_in_range(*from, 0, net->system->cores - 1);
    expected = made(*from, core, m.b);
    assert_memory_equal(&m, &expected, sizeof(m));
    *number = m.b;
    return true;
}

static void assert_takes(struct net *net, uint32_t core, uint32_t from, uint32_t number)
{
    uint32_t who, which;

    assert_true(take(net, core, &who, &which));
    assert_int_equal(who, from);
    assert_int_equal(which, number);
}

static void assert_empty(struct net *net, uint32_t core)
{
    uint32_t who, which;

    assert_false(take(net, core, &who, &which));
}

static void test_sizes(void **state)
{
    static const uint32_t bad[][2] = { { 0, 64 },   { 65, 64 }, { 4, 0 }, { 4, 3 },
                                       { 4, 1023 }, { 4, 65 },  { 0, 0 }, { UINT32_MAX, 1 } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_int_equal(mailbox_bytes(bad[i][0], bad[i][1]), 0);
    /* Indices on cache lines of their own, 32 bytes a message. */
    assert_int_equal(mailbox_bytes(2, 64) - sizeof(struct mailbox_system), 4 * (128 + 64 * 32));
    assert_int_equal(mailbox_bytes(3, 1) - sizeof(struct mailbox_system), 9 * (128 + 64));
    assert_true(mailbox_bytes(64, 1u << 20) > (size_t)4096 << 25);
}

/* Nothing of a ring lies in another one or outside: all rings filled to the brim, then all emptied. */
static void test_every_ring_of_a_system(void **state)
{
    static const uint32_t shapes[][2] = { { 1, 1 }, { 1, 8 }, { 2, 1 }, { 3, 4 }, { 8, 16 }, { 64, 2 } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        static struct net net;
        uint32_t cores = shapes[i][0], slots = shapes[i][1], who, which, next[MAILBOX_MAX_CORES];

        net_open(&net, cores, slots, 0);
        for (uint32_t from = 0; from < cores; from++) {
            for (uint32_t n = 0; n < cores * slots; n++)
                assert_true(post(&net, from, n % cores, n / cores));
            assert_int_equal(mailbox_ring(&net.box[from]), 0);
            assert_int_equal(net.box[from].stats.sent, cores * slots);
        }
        for (uint32_t core = 0; core < cores; core++) {
            memset(next, 0, sizeof(next));
            for (uint32_t n = 0; n < cores * slots; n++) {
                assert_true(take(&net, core, &who, &which));
                assert_int_equal(which, next[who]++);
            }
            assert_empty(&net, core);
            assert_int_equal(net.box[core].stats.received, cores * slots);
        }
        net_close(&net);
    }
}

static void test_nothing_is_seen_before_the_ring(void **state)
{
    struct net net;

    (void)state;
    net_open(&net, 2, 4, 0);
    assert_true(post(&net, 0, 1, 0));
    assert_true(post(&net, 0, 1, 1));
    assert_empty(&net, 1);
    mailbox_ring(&net.box[0]);
    assert_true(post(&net, 0, 1, 2));
    assert_takes(&net, 1, 0, 0);
    assert_takes(&net, 1, 0, 1);
    assert_empty(&net, 1);
    mailbox_ring(&net.box[0]);
    assert_takes(&net, 1, 0, 2);
    assert_empty(&net, 1);
    assert_empty(&net, 0);
    net_close(&net);
}

static void test_to_itself(void **state)
{
    struct net net;

    (void)state;
    net_open(&net, 3, 2, 0);
    assert_true(post(&net, 2, 2, 7));
    assert_int_equal(mailbox_ring(&net.box[2]), 0);
    assert_false(mailbox_sleep(&net.box[2]));
    assert_takes(&net, 2, 2, 7);
    assert_empty(&net, 2);
    assert_true(mailbox_sleep(&net.box[2]));
    net_close(&net);
}

/* A full ring refuses and counts, rung or not; each message taken makes room for one. */
static void test_full(void **state)
{
    static const uint32_t starts[] = { 0, 5, UINT32_MAX - 2, UINT32_MAX };

    (void)state;
    for (uint32_t slots = 1; slots <= 64; slots *= 2) {
        for (size_t s = 0; s < COUNT_OF(starts); s++) {
            struct net net;

            net_open(&net, 2, slots, starts[s]);
            for (uint32_t n = 0; n < slots; n++)
                assert_true(post(&net, 0, 1, n));
            assert_false(post(&net, 0, 1, 999));
            assert_false(post(&net, 0, 1, 999));
            assert_int_equal(net.box[0].stats.overflow, 2);
            assert_int_equal(net.box[0].stats.sent, slots);
            mailbox_ring(&net.box[0]);
            assert_false(post(&net, 0, 1, 999));
            assert_true(post(&net, 1, 0, 0)); /* the other direction has its own ring */
            for (uint32_t n = 0; n < 3 * slots; n++) {
                assert_takes(&net, 1, 0, n);
                assert_true(post(&net, 0, 1, slots + n));
                assert_false(post(&net, 0, 1, 999));
                mailbox_ring(&net.box[0]);
            }
            for (uint32_t n = 0; n < slots; n++)
                assert_takes(&net, 1, 0, 3 * slots + n);
            assert_empty(&net, 1);
            assert_int_equal(net.box[0].stats.overflow, 3 + 3 * slots);
            net_close(&net);
        }
    }
}

/* Random calls of all cores, the indices passing through 2^32, against counters of what was posted, rung and taken. */
static void test_order_across_the_wrap(void **state)
{
    enum { CORES = 5, SLOTS = 8, CALLS = 400000 };
    uint64_t seed = chance_seed(0xb0c5);
    static uint32_t posted[CORES][CORES], rung[CORES][CORES], taken[CORES][CORES];
    uint64_t refused = 0;
    struct net net;

    (void)state;
    net_open(&net, CORES, SLOTS, UINT32_MAX - 1000);
    for (uint32_t call = 0; call < CALLS; call++) {
        uint32_t core = chance_below(&seed, CORES), other = chance_below(&seed, CORES), who, which, waiting = 0;

        switch (chance_below(&seed, 8)) {
        case 0:
            mailbox_ring(&net.box[core]);
            memcpy(rung[core], posted[core], sizeof(rung[core]));
            break;
        case 1:
        case 2:
        case 3:
        case 4:
            for (uint32_t from = 0; from < CORES; from++)
                waiting += rung[from][core] - taken[from][core];
            assert_int_equal(take(&net, core, &who, &which), waiting > 0);
            if (waiting > 0) {
                assert_int_equal(which, taken[who][core]++);
                assert_true(which < rung[who][core]);
            }
            break;
        default:
            if (posted[core][other] - taken[core][other] == SLOTS) {
                refused++;
                assert_false(post(&net, core, other, 0));
            } else {
                assert_true(post(&net, core, other, posted[core][other]++));
            }
        }
    }
    for (uint32_t from = 0; from < CORES; from++) {
        for (uint32_t to = 0; to < CORES; to++)
            assert_true(taken[from][to] > 2000); /* past the wrap, every one of them */
        refused -= net.box[from].stats.overflow;
    }
    assert_int_equal(refused, 0);
    net_close(&net);
}

/* Takes one message that lies before core 0 and has its sender send another; returns the sender. */
static uint32_t take_and_refill(struct net *net)
{
    uint32_t who, which;

    assert_true(take(net, 0, &who, &which));
    if (which == 0)
        assert_true(post(net, who, 0, 0));
    mailbox_ring(&net->box[who]);
    return who;
}

/* Whoever has a message waiting gets his turn after at most one message of each other sender, however much they send;
 * with all 64 cores, from whatever turn it is. */
static void test_turns(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 150; round++) {
        static struct net net;
        uint32_t quiet = round % 63 + 1, others = 0;

        net_open(&net, 64, 4, 0);
        for (uint32_t busy = 1; busy < 64; busy++) { /* their rings are kept full */
            while (busy != quiet && post(&net, busy, 0, 0))
                ;
            mailbox_ring(&net.box[busy]);
        }
        for (uint32_t n = 0; n < 7 * round; n++)
            take_and_refill(&net);
        assert_true(post(&net, quiet, 0, 1));
        mailbox_ring(&net.box[quiet]);
        while (take_and_refill(&net) != quiet)
            check(++others <= 62, "core %u is still waiting after %u others", quiet, others);
        net_close(&net);
    }
}

/* Two messages each of three senders come alternately. */
static void test_turns_alternate(void **state)
{
    static const uint32_t expected[] = { 1, 2, 3, 1, 2, 3 };
    struct net net;

    (void)state;
    net_open(&net, 4, 4, 0);
    for (uint32_t from = 3; from > 0; from--) {
        assert_true(post(&net, from, 0, 0));
        assert_true(post(&net, from, 0, 1));
        mailbox_ring(&net.box[from]);
    }
    for (uint32_t i = 0; i < COUNT_OF(expected); i++)
        assert_takes(&net, 0, expected[i], i / 3);
    assert_empty(&net, 0);
    net_close(&net);
}

static void test_only_the_halted_are_woken(void **state)
{
    struct net net;

    (void)state;
    net_open(&net, 4, 4, 0);
    for (uint32_t core = 0; core < 4; core++)
        assert_empty(&net, core);
    assert_true(mailbox_sleep(&net.box[1]));
    assert_true(mailbox_sleep(&net.box[3]));
    for (uint32_t to = 1; to < 4; to++) { /* several posts, one ring */
        assert_true(post(&net, 0, to, 0));
        assert_true(post(&net, 0, to, 1));
    }
    assert_int_equal(mailbox_ring(&net.box[0]), 1u << 1 | 1u << 3);
    assert_int_equal(net.box[0].stats.wakes, 2);
    /* They are being woken: no more interrupts, not by the same core, not by another one. */
    assert_true(post(&net, 0, 1, 2));
    assert_int_equal(mailbox_ring(&net.box[0]), 0);
    assert_true(post(&net, 2, 1, 0));
    assert_true(post(&net, 2, 3, 0));
    assert_int_equal(mailbox_ring(&net.box[2]), 0);
    mailbox_awake(&net.box[1]);
    assert_false(mailbox_sleep(&net.box[1]));
    for (uint32_t n = 0; n < 4; n++)
        assert_takes(&net, 1, n == 1 ? 2 : 0, n == 0 ? 0 : n == 1 ? 0 : n - 1);
    assert_empty(&net, 1);
    assert_true(mailbox_sleep(&net.box[1]));
    assert_true(post(&net, 2, 1, 1));
    assert_int_equal(mailbox_ring(&net.box[2]), 1u << 1);
    net_close(&net);
}

/* A core that woke by something else is awake, and one that may not sleep counts as awake. */
static void test_awake(void **state)
{
    struct net net;

    (void)state;
    net_open(&net, 2, 4, 0);
    assert_empty(&net, 1);
    assert_true(mailbox_sleep(&net.box[1]));
    mailbox_awake(&net.box[1]);
    assert_true(post(&net, 0, 1, 0));
    assert_int_equal(mailbox_ring(&net.box[0]), 0);
    assert_false(mailbox_sleep(&net.box[1]));
    assert_true(post(&net, 0, 1, 1));
    assert_int_equal(mailbox_ring(&net.box[0]), 0);
    assert_takes(&net, 1, 0, 0);
    assert_false(mailbox_sleep(&net.box[1])); /* one is left, and its bell was heard long ago */
    assert_takes(&net, 1, 0, 1);
    assert_empty(&net, 1);
    assert_true(mailbox_sleep(&net.box[1]));
    net_close(&net);
}

static void test_no_sleep_on_what_was_not_rung(void **state)
{
    struct net net;

    (void)state;
    net_open(&net, 2, 4, 0);
    assert_empty(&net, 0);
    assert_true(post(&net, 0, 1, 0));
    assert_false(mailbox_sleep(&net.box[0]));
    mailbox_ring(&net.box[0]);
    assert_true(mailbox_sleep(&net.box[0]));
    net_close(&net);
}

static void test_ring_without_posts(void **state)
{
    struct net net;

    (void)state;
    net_open(&net, 2, 4, 0);
    assert_empty(&net, 1);
    assert_true(mailbox_sleep(&net.box[1]));
    assert_int_equal(mailbox_ring(&net.box[0]), 0);
    assert_true(mailbox_sleep(&net.box[1]));
    net_close(&net);
}

/* A core that opens its end anew, as after a restart, misses nothing and overwrites nothing. */
static void test_open_again(void **state)
{
    struct net net;

    (void)state;
    net_open(&net, 2, 4, UINT32_MAX);
    for (uint32_t n = 0; n < 3; n++)
        assert_true(post(&net, 0, 1, n));
    mailbox_ring(&net.box[0]);
    assert_takes(&net, 1, 0, 0); /* from here on the bell has been heard, and only core 1's own memory knows */
    mailbox_open(&net.box[1], net.system, 1);
    assert_false(mailbox_sleep(&net.box[1]));
    mailbox_open(&net.box[0], net.system, 0);
    assert_true(post(&net, 0, 1, 3));
    assert_true(post(&net, 0, 1, 4));
    assert_false(post(&net, 0, 1, 5));
    mailbox_ring(&net.box[0]);
    for (uint32_t n = 1; n < 5; n++)
        assert_takes(&net, 1, 0, n);
    assert_empty(&net, 1);
    net_close(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_every_ring_of_a_system),
        cmocka_unit_test(test_nothing_is_seen_before_the_ring),
        cmocka_unit_test(test_to_itself),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_order_across_the_wrap),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_turns_alternate),
        cmocka_unit_test(test_only_the_halted_are_woken),
        cmocka_unit_test(test_awake),
        cmocka_unit_test(test_no_sleep_on_what_was_not_rung),
        cmocka_unit_test(test_ring_without_posts),
        cmocka_unit_test(test_open_again),
    };
    return cmocka_run_group_tests_name("mailbox", tests, NULL, NULL);
}

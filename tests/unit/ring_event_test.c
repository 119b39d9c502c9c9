/* Notifications of the split virtqueue: who is told what, and who may sleep. The queue's code is included here so that
 * the device can act at each of its fences and before and after each access to memory that both share: the moments at
 * which the other side may see half of what is being done. */
#include "tests/unit/rig.h"

#include <stdatomic.h>

static void at_fence(memory_order order);
static void at_access(void);

#undef atomic_thread_fence
#define atomic_thread_fence(order) at_fence(order)
#define __atomic_load_n(at, order)                                                                                     \
    ({                                                                                                                 \
        at_access();                                                                                                   \
        __typeof__(*(at) + 0) value_ = __atomic_load_n(at, order);                                                     \
        at_access();                                                                                                   \
        value_;                                                                                                        \
    })
#define __atomic_store_n(at, value, order)                                                                             \
    do {                                                                                                               \
        at_access();                                                                                                   \
        __atomic_store_n(at, value, order);                                                                            \
        at_access();                                                                                                   \
    } while (0)
#include "drivers/virtio/split.c"
#undef atomic_thread_fence
#undef __atomic_load_n
#undef __atomic_store_n

static struct rig rig;
static void (*on_access)(void); /* what the device does at each of those moments; accesses within it do not count */
static unsigned accesses;       /* how many moments there have been */

/* What the other side could see at the last full fence, and how many of them there were. Only a full fence orders a
 * store before a load. Without it a processor may look first; that cannot be waited for in a test (ring_race_test
 * tries), but that the fence is there, and behind the store, can be seen. */
static struct {
    unsigned count;
    uint16_t avail_idx, used_event, avail_flags;
} fences;

static void at_access(void)
{
    void (*act)(void) = on_access;

    accesses++;
    if (!act)
        return;
    on_access = NULL;
    act();
    on_access = act;
}

static void at_fence(memory_order order)
{
    atomic_signal_fence(memory_order_seq_cst);
    if (order == memory_order_seq_cst) {
        fences.count++;
        fences.avail_idx = rig.dev.avail->idx;
        fences.used_event = *(uint16_t *)&rig.dev.avail->ring[rig.dev.size];
        fences.avail_flags = rig.dev.avail->flags;
    }
    at_access();
}

static int tear_down(void **state)
{
    (void)state;
    on_access = NULL;
    return 0;
}

/* Indices where 16-bit arithmetic could go wrong, and some others. */
static uint32_t boundary(uint32_t i)
{
    static const uint16_t around[] = { 0, 32768 };

    if (i < 160)
        return (uint16_t)(around[i / 80] + i % 80 - 40);
    return i < 400 ? (i * 40503u) & 0xffff : UINT32_MAX;
}

static void add(unsigned n)
{
    while (n--)
        assert_int_equal(rig_add(&rig, (struct rig_shape){ 0, 1 }), VIRTQ_OK);
}

static void take_all(void)
{
    while (rig_take(&rig))
        ;
}

/* Everything comes back, nobody looks at notifications. */
static void clear_queue(void)
{
    virtqueue_publish(&rig.vq);
    take_all();
    while (rig.dev.held_count)
        rig_return(&rig, 0);
    fake_device_publish(&rig.dev);
    while (rig_pop(&rig))
        ;
    rig_check_clean(&rig);
    rig.next = rig.back = 0; /* the numbers can be used again */
    memset(rig.buffer, 0, sizeof(*rig.buffer) * rig.limit);
}

/* The device asks for the notification at any entry; it is told exactly when that entry is among those published. */
static void test_kick_at_boundaries(void **state)
{
    static const uint16_t batches[] = { 1, 2, 3, 7, 16 };

    (void)state;
    rig_open(&rig, 16, true, 0, 64);
    for (uint32_t i = 0; boundary(i) != UINT32_MAX; i++) {
        for (size_t b = 0; b < COUNT_OF(batches); b++) {
            for (int ahead = -20; ahead < 42; ahead++) {
                uint16_t start = (uint16_t)boundary(i);
                uint16_t event = (uint16_t)(start + (ahead < 40 ? ahead : ahead == 40 ? 32767 : 32768));
                bool expected = false;

                rig_start_at(&rig, start);
                *(uint16_t *)&rig.dev.used->ring[16] = event;
                add(batches[b]);
                for (uint16_t n = 0; n < batches[b]; n++)
                    expected = expected || (uint16_t)(start + n) == event;
                struct virtq_stats before = rig.vq.stats;
                check(virtqueue_publish(&rig.vq) == expected, "from %u, %u entries, event %u", start, batches[b],
                      event);
                assert_int_equal(rig.vq.stats.kicks, before.kicks + expected);
                assert_int_equal(rig.vq.stats.kicks_suppressed, before.kicks_suppressed + !expected);
                clear_queue();
            }
        }
    }
    rig_close(&rig);
}

/* The largest batch that there is. */
static void test_kick_for_a_whole_ring(void **state)
{
    static const uint16_t starts[] = { 0, 1, 32767, 32768, 65535 };

    (void)state;
    rig_open(&rig, 32768, true, 0, 32768);
    for (size_t i = 0; i < COUNT_OF(starts); i++) {
        static const int ahead[] = { -32768, -2, -1, 0, 1, 16384, 32766, 32767 };
        for (size_t a = 0; a < COUNT_OF(ahead); a++) {
            rig_start_at(&rig, starts[i]);
            *(uint16_t *)&rig.dev.used->ring[32768] = (uint16_t)(starts[i] + ahead[a]);
            add(32768);
            check(virtqueue_publish(&rig.vq) == (ahead[a] >= 0), "from %u, event at %d", starts[i], ahead[a]);
            clear_queue();
        }
    }
    rig_close(&rig);
}

/* Without event index only the flag counts, whatever lies where avail_event would be. */
static void test_kick_by_flag(void **state)
{
    (void)state;
    rig_open(&rig, 4, false, 0, 8);
    for (unsigned i = 0; i < 140000; i++) {
        bool wanted = i % 3 == 0;
        rig.dev.used->flags = wanted ? 0 : VRING_USED_F_NO_NOTIFY;
        *(uint16_t *)&rig.dev.used->ring[4] = (uint16_t)(i * 7);
        add(1);
        assert_int_equal(virtqueue_publish(&rig.vq), wanted);
        clear_queue();
    }
    assert_int_equal(rig.vq.avail_idx, 140000 & 0xffff);
    rig_close(&rig);
}

/* With event index the flag must be ignored (2.7.10). */
static void test_kick_ignores_flag(void **state)
{
    (void)state;
    rig_open(&rig, 4, true, 0, 8);
    rig.dev.used->flags = VRING_USED_F_NO_NOTIFY;
    add(1);
    assert_true(virtqueue_publish(&rig.vq));
    rig_close(&rig);
}

/* A device that polls is not kicked: but for once in 65,536 entries, when its event index comes round. */
static void test_polling_device_is_left_alone(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        rig_open(&rig, 8, event_idx, 0, 16);
        add(1);
        assert_true(virtqueue_publish(&rig.vq)); /* a new queue's device is told of the first */
        clear_queue();
        fake_device_poll(&rig.dev);
        for (unsigned i = 0; i < 50000; i++) {
            add(1 + i % 8);
            virtqueue_publish(&rig.vq);
            clear_queue();
        }
        check(rig.vq.stats.kicks <= 1 + (event_idx ? 4 : 0), "%llu kicks", (unsigned long long)rig.vq.stats.kicks);
        assert_int_equal(rig.vq.stats.kicks + rig.vq.stats.kicks_suppressed, 50001);
        rig_close(&rig);
    }
}

/* Armed and switched off again: whatever comes back, there is no interrupt. */
static void test_disabled_at_boundaries(void **state)
{
    (void)state;
    rig_open(&rig, 16, true, 0, 64);
    for (uint32_t i = 0; boundary(i) != UINT32_MAX; i++) {
        for (unsigned late = 0; late < 2; late++) {
            rig_start_at(&rig, (uint16_t)boundary(i));
            add(16);
            virtqueue_publish(&rig.vq);
            take_all();
            assert_true(rig_driver_sleep(&rig, late));
            rig.driver_asleep = false;
            virtqueue_disable_callbacks(&rig.vq);
            while (rig.dev.held_count) {
                rig_return(&rig, 0);
                check(!fake_device_publish(&rig.dev), "from %u: interrupted", boundary(i));
            }
            clear_queue();
        }
    }
    rig_close(&rig);
}

/* Callbacks off from the start on, and after they have been on: no interrupt, but for once in 65,536 entries with event
 * index. */
static void test_disabled_callbacks_are_quiet(void **state)
{
    (void)state;
    for (unsigned variant = 0; variant < 4; variant++) {
        rig_open(&rig, 8, variant & 1, 0, 16);
        if (variant & 2) {
            assert_true(virtqueue_enable_callbacks(&rig.vq));
            virtqueue_disable_callbacks(&rig.vq);
        }
        for (unsigned i = 0; i < 40000; i++) {
            add(1 + i % 8);
            clear_queue();
            virtqueue_disable_callbacks(&rig.vq); /* again and again changes nothing */
        }
        check(rig.dev.interrupts <= (variant & 1 ? 3 : 0), "%llu interrupts", (unsigned long long)rig.dev.interrupts);
        rig_close(&rig);
    }
}

/* With n buffers out and callbacks armed, the device returns one after the other, `step` at a time: the interrupt comes
 * exactly when the driver's patience ends, once. */
static void armed(uint16_t start, unsigned n, unsigned step, bool late)
{
    unsigned interrupts = 0, returned = 0;

    rig_start_at(&rig, start);
    add(n);
    virtqueue_publish(&rig.vq);
    take_all();
    assert_true(rig_driver_sleep(&rig, late));
    assert_int_equal(rig.patience + 1u, late && n > 1 ? (3 * n + 3) / 4 : 1);
    while (rig.dev.held_count) {
        for (unsigned i = 0; i < step && rig.dev.held_count; i++, returned++)
            rig_return(&rig, 0);
        bool due = returned > rig.patience && interrupts == 0;
        check(fake_device_publish(&rig.dev) == due, "from %u, %u of %u returned by %u, patience %u", start, returned, n,
              step, rig.patience);
        interrupts += due;
    }
    assert_int_equal(interrupts, 1);
    rig.driver_asleep = false;
    clear_queue();
}

static void test_callback_at_boundaries(void **state)
{
    (void)state;
    rig_open(&rig, 16, true, 0, 64);
    for (uint32_t i = 0; boundary(i) != UINT32_MAX; i++) {
        for (unsigned n = 1; n <= 16; n++) {
            for (unsigned step = 1; step <= n; step += 3) {
                armed((uint16_t)boundary(i), n, step, false);
                armed((uint16_t)boundary(i), n, step, true);
            }
        }
    }
    rig_close(&rig);
    rig_open(&rig, 32768, true, 0, 32768);
    armed(40000, 32768, 1, true);
    armed(65535, 32768, 100, true);
    armed(1, 32768, 32768, false);
    rig_close(&rig);
}

/* What has been returned before callbacks are armed: too much, and it is not safe to sleep. */
static void test_already_returned(void **state)
{
    (void)state;
    rig_open(&rig, 16, true, 0, 64);
    for (uint32_t i = 0; boundary(i) != UINT32_MAX; i += 3) {
        for (unsigned n = 1; n <= 16; n++) {
            for (unsigned before = 0; before <= n; before++) {
                rig_start_at(&rig, (uint16_t)boundary(i));
                add(n);
                virtqueue_publish(&rig.vq);
                take_all();
                for (unsigned r = 0; r < before; r++)
                    rig_return(&rig, 0);
                fake_device_publish(&rig.dev);
                assert_int_equal(virtqueue_enable_callbacks(&rig.vq), before == 0);
                assert_int_equal(virtqueue_enable_callbacks_late(&rig.vq), before < (3 * n + 3) / 4);
                assert_int_equal(virtqueue_pending(&rig.vq), before > 0);
                clear_queue();
            }
        }
    }
    rig_close(&rig);
}

/* Buffers that were added but not published cannot come back: a late callback must not wait for them. */
static void test_late_counts_what_the_device_has(void **state)
{
    (void)state;
    rig_open(&rig, 64, true, 0, 64);
    add(4);
    virtqueue_publish(&rig.vq);
    add(60);
    take_all();
    assert_int_equal(rig.dev.held_count, 4);
    assert_true(virtqueue_enable_callbacks_late(&rig.vq));
    while (rig.dev.held_count)
        rig_return(&rig, 0);
    check(fake_device_publish(&rig.dev), "all four have returned and nobody is told");
    rig_close(&rig);
}

/* The interrupt comes with the buffer that was asked for, and before most of them are gone at the latest, whatever was
 * asked for: who waits for more than the device has would wait for ever. */
static void test_after_so_many(void **state)
{
    (void)state;
    rig_open(&rig, 16, true, 0, 64);
    for (uint32_t i = 0; boundary(i) != UINT32_MAX; i += 3) {
        for (unsigned n = 1; n <= 16; n++) {
            for (unsigned after = 0; after <= 20; after++) {
                unsigned most = (3 * n + 3) / 4, at = after < 1 ? 1 : after < most ? after : most;
                rig_start_at(&rig, (uint16_t)boundary(i));
                add(n);
                virtqueue_publish(&rig.vq);
                take_all();
                assert_true(virtqueue_enable_callbacks_after(&rig.vq, (uint16_t)after));
                for (unsigned r = 1; r <= n; r++) {
                    rig_return(&rig, 0);
                    assert_int_equal(fake_device_publish(&rig.dev), r == at);
                    assert_int_equal(virtqueue_enable_callbacks_after(&rig.vq, (uint16_t)after), r < at);
                }
                clear_queue();
            }
        }
    }
    rig_close(&rig);
}

/* An empty queue has nothing to wait for: the callback comes with the first buffer that returns. */
static void test_late_on_an_empty_queue(void **state)
{
    (void)state;
    rig_open(&rig, 8, true, 0, 64);
    assert_true(virtqueue_enable_callbacks_late(&rig.vq));
    add(8);
    virtqueue_publish(&rig.vq);
    take_all();
    rig_return(&rig, 0);
    assert_true(fake_device_publish(&rig.dev));
    rig_close(&rig);
}

static void test_callback_by_flag(void **state)
{
    (void)state;
    rig_open(&rig, 8, false, 0, 64);
    for (unsigned late = 0; late < 2; late++) {
        for (unsigned n = 1; n <= 8; n++) {
            add(n);
            virtqueue_publish(&rig.vq);
            take_all();
            assert_true(late ? virtqueue_enable_callbacks_late(&rig.vq) : virtqueue_enable_callbacks(&rig.vq));
            assert_int_equal(rig.dev.avail->flags, 0);
            rig_return(&rig, 0);
            assert_true(fake_device_publish(&rig.dev)); /* late is the same: the flag knows no number */
            assert_false(late ? virtqueue_enable_callbacks_late(&rig.vq) : virtqueue_enable_callbacks(&rig.vq));
            virtqueue_disable_callbacks(&rig.vq);
            assert_int_equal(rig.dev.avail->flags, VRING_AVAIL_F_NO_INTERRUPT);
            clear_queue();
        }
    }
    assert_int_equal(rig.vq.stats.callbacks_armed, 32);
    rig_close(&rig);
}

#define MOMENTS 8 /* more than publish or arming have */

static unsigned act_at; /* the moment at which the device does its one thing */
static bool acted;

/* A device that polls until there is nothing to do, then asks to be told and sleeps, at one moment while the driver
 * publishes. Either it sees the buffer, or it is told. */
static void device_goes_to_sleep(void)
{
    if (acted || accesses < act_at)
        return;
    acted = true;
    take_all();
    fake_device_sleep(&rig.dev, 0);
}

static void test_device_sleeps_while_driver_publishes(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        unsigned slept = 0, kicked = 0;

        rig_open(&rig, 4, event_idx, 0, 64);
        for (uint32_t i = 0; boundary(i) != UINT32_MAX; i++) {
            for (act_at = 1; act_at <= MOMENTS; act_at++) {
                rig_start_at(&rig, (uint16_t)boundary(i));
                fake_device_poll(&rig.dev);
                add(1 + i % 4);
                accesses = fences.count = 0;
                acted = false;
                on_access = device_goes_to_sleep;
                bool kick = virtqueue_publish(&rig.vq);
                on_access = NULL;
                check(fences.count == 1 && fences.avail_idx == rig.dev.avail->idx,
                      "%u full fences between the index and the decision to kick", fences.count);
                slept += rig.dev.asleep;
                kicked += kick;
                rig.dev.asleep = rig.dev.asleep && !kick;
                rig_check_no_one_sleeps_on_work(&rig);
                clear_queue();
            }
        }
        check(slept > 100 && kicked > 100, "slept %u, kicked %u", slept, kicked); /* both ways have been gone */
        rig_close(&rig);
    }
}

/* A device that returns a buffer at one moment while the driver arms its callback. The driver sees it, or is
 * interrupted. */
static void device_returns_one(void)
{
    if (acted || accesses < act_at)
        return;
    acted = true;
    rig_return(&rig, 0);
    fake_device_publish(&rig.dev);
}

/* One go: n buffers out, the driver arms. Returns whether it was interrupted meanwhile. */
static bool arm_against_return(unsigned n, bool late)
{
    rig.driver_asleep = false;
    virtqueue_disable_callbacks(&rig.vq);
    add(n);
    virtqueue_publish(&rig.vq);
    take_all();
    accesses = fences.count = 0;
    acted = false;
    uint64_t before = rig.dev.interrupts;
    on_access = device_returns_one;
    bool asleep = rig_driver_sleep(&rig, late);
    on_access = NULL;
    bool interrupted = rig.dev.interrupts != before;
    check(fences.count == 1, "%u full fences between arming and looking again", fences.count);
    check(rig.vq.event_idx ? fences.used_event == (uint16_t)(rig.vq.last_used + rig.patience) : fences.avail_flags == 0,
          "the fence does not stand behind what arms");
    rig.driver_asleep = asleep && !interrupted;
    rig_check_no_one_sleeps_on_work(&rig);
    rig.driver_asleep = false;
    return interrupted;
}

static void test_device_returns_while_driver_arms(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        unsigned interrupted = 0;

        rig_open(&rig, 8, event_idx, 0, 64);
        for (uint32_t i = 0; boundary(i) != UINT32_MAX; i++) {
            for (unsigned n = 1; n <= 8; n++) {
                for (act_at = 1; act_at <= MOMENTS; act_at++) {
                    rig_start_at(&rig, (uint16_t)boundary(i));
                    interrupted += arm_against_return(n, n % 2);
                    clear_queue();
                }
            }
        }
        check(interrupted > 100, "interrupted %u times", interrupted);
        rig_close(&rig);
    }
}

/* Anything, at any moment: the device takes, returns, polls or sleeps at random, also in the middle of what the driver
 * does. */
static uint64_t interrupts_seen;

static void device_does_something(void)
{
    /* Asleep it waits for a kick, but goes on with what it holds. */
    switch (rig.dev.asleep ? 2 : chance_below(&rig.seed, 6)) {
    case 0:
        rig_take(&rig);
        break;
    case 1:
        take_all();
        break;
    case 2:
        for (unsigned n = chance_below(&rig.seed, 4); n > 0 && rig.dev.held_count; n--)
            rig_return(&rig, (uint16_t)chance_below(&rig.seed, rig.dev.held_count));
        fake_device_publish(&rig.dev);
        break;
    case 3:
        fake_device_sleep(&rig.dev, 0);
        break;
    case 4:
        fake_device_poll(&rig.dev);
        break;
    default:
        break;
    }
}

static void driver_does_something(void)
{
    struct virtqueue *vq = &rig.vq;
    bool asleep;

    switch (chance_below(&rig.seed, 6)) {
    case 0:
    case 1:
        if (rig.next < rig.limit)
            rig_add(&rig, rig_shape(rig.next, vq->size < 4 ? vq->size : 4, 0));
        break;
    case 2:
        if (virtqueue_publish(vq))
            rig.dev.asleep = false;
        break;
    case 3:
        if (!rig.driver_asleep)
            rig_pop(&rig);
        break;
    case 4:
        if (rig.driver_asleep)
            break;
        interrupts_seen = rig.dev.interrupts;
        asleep = rig_driver_sleep(&rig, chance_below(&rig.seed, 2));
        rig.driver_asleep = asleep && rig.dev.interrupts == interrupts_seen;
        break;
    default:
        if (!rig.driver_asleep)
            virtqueue_disable_callbacks(vq);
        break;
    }
}

static void anything(uint16_t size, bool event_idx, uint16_t start)
{
    rig_open(&rig, size, event_idx, 2, 6000);
    rig_start_at(&rig, start);
    rig.concurrent = true;
    interrupts_seen = 0;
    on_access = device_does_something;
    for (unsigned n = 0; n < 30000; n++) {
        /* The device slept before publish, and was woken by what publish returned: judge between operations only. */
        driver_does_something();
        rig.driver_asleep = rig.driver_asleep && rig.dev.interrupts == interrupts_seen;
        rig_check_no_one_sleeps_on_work(&rig);
        device_does_something();
        rig.driver_asleep = rig.driver_asleep && rig.dev.interrupts == interrupts_seen;
        rig_check_no_one_sleeps_on_work(&rig);
        rig_check_clean(&rig);
    }
    on_access = NULL;
    check(rig.back > 500, "only %llu buffers came back", (unsigned long long)rig.back);
    rig_close(&rig);
}

static void test_anything_at_any_moment(void **state)
{
    static const uint16_t starts[] = { 0, 32000, 64000, 65535 };

    (void)state;
    for (uint16_t size = 1; size <= 256; size = (uint16_t)(size * 4)) {
        for (size_t i = 0; i < COUNT_OF(starts); i++) {
            anything(size, true, starts[i]);
            anything(size, false, starts[i]);
        }
    }
}

#define TEST(f) cmocka_unit_test_teardown(f, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_kick_at_boundaries),
        TEST(test_kick_for_a_whole_ring),
        TEST(test_kick_by_flag),
        TEST(test_kick_ignores_flag),
        TEST(test_polling_device_is_left_alone),
        TEST(test_disabled_at_boundaries),
        TEST(test_disabled_callbacks_are_quiet),
        TEST(test_callback_at_boundaries),
        TEST(test_already_returned),
        TEST(test_late_counts_what_the_device_has),
        TEST(test_after_so_many),
        TEST(test_late_on_an_empty_queue),
        TEST(test_callback_by_flag),
        TEST(test_device_sleeps_while_driver_publishes),
        TEST(test_device_returns_while_driver_arms),
        TEST(test_anything_at_any_moment),
    };

    return cmocka_run_group_tests_name("ring_event", tests, NULL, NULL);
}

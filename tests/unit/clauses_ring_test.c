/* What the specification says of a driver's split ring at every moment (virtio 1.3, 2.7 and 3.3.1), looked at after
 * each step of long random runs: the available index, the flags, and the descriptors that the device may be reading. */
#include "tests/unit/rig.h"

#define STEPS 20000

static struct rig rig;

/* What was shown to the device of each buffer that it has, by head: descriptors and indirect table. */
struct exposed {
    bool with_device;
    uint16_t count;              /* descriptors of its chain */
    uint16_t at[64];             /* which */
    struct vring_desc copy[64];  /* and what was in them */
    struct vring_desc table[64]; /* of an indirect one */
    uint16_t entries;
};
static struct exposed exposed[64];
static uint16_t seen; /* available entries that have been looked at */

/* Takes down what has become available since. */
static void note_exposed(void)
{
    for (; seen != rig.dev.avail->idx; seen++) {
        uint16_t head = rig.dev.avail->ring[seen % rig.vq.size], at = head;
        struct exposed *e = &exposed[head];

        check(!e->with_device, "head %u is made available while the device has it", head);
        *e = (struct exposed){ .with_device = true };
        for (;;) {
            e->at[e->count] = at;
            e->copy[e->count++] = rig.dev.desc[at];
            if (!(rig.dev.desc[at].flags & VRING_DESC_F_NEXT))
                break;
            at = rig.dev.desc[at].next;
        }
        if (rig.dev.desc[head].flags & VRING_DESC_F_INDIRECT) {
            e->entries = (uint16_t)(rig.dev.desc[head].len / sizeof(struct vring_desc));
            memcpy(e->table, (void *)(uintptr_t)rig.dev.desc[head].addr, rig.dev.desc[head].len);
        }
    }
}

/* Nothing of it has changed. */
static void check_exposed(void)
{
    for (uint16_t head = 0; head < rig.vq.size; head++) {
        const struct exposed *e = &exposed[head];

        for (uint16_t i = 0; e->with_device && i < e->count; i++)
            check(memcmp(&rig.dev.desc[e->at[i]], &e->copy[i], sizeof(e->copy[i])) == 0, "descriptor %u has changed",
                  e->at[i]);
        if (e->with_device && e->entries)
            assert_memory_equal((void *)(uintptr_t)e->copy[0].addr, e->table, e->entries * sizeof(e->table[0]));
    }
}

/* The device returns a buffer: from now on it is the driver's. */
static void give_back(void)
{
    uint16_t i = (uint16_t)chance_below(&rig.seed, rig.dev.held_count);

    exposed[fake_device_held(&rig.dev, i)->head].with_device = false;
    rig_return(&rig, i);
}

static void one_step(void)
{
    switch (chance_below(&rig.seed, 8)) {
    case 0:
    case 1:
        rig_add(&rig, rig_shape(rig.next, rig.vq.size < 5 ? rig.vq.size : 5, 0));
        break;
    case 2:
        if (virtqueue_publish(&rig.vq))
            rig.dev.asleep = false;
        note_exposed();
        break;
    case 3:
        rig_take(&rig);
        break;
    case 4:
        if (rig.dev.held_count > 0)
            give_back();
        fake_device_publish(&rig.dev);
        break;
    case 5:
        rig_pop(&rig);
        break;
    case 6:
        virtqueue_disable_callbacks(&rig.vq);
        break;
    default:
        if (chance_below(&rig.seed, 2))
            virtqueue_enable_callbacks(&rig.vq);
        else
            virtqueue_enable_callbacks_late(&rig.vq);
    }
}

/* Runs rings of all kinds; calls look() before the first and after every step. */
static void run(void (*look)(bool first))
{
    for (unsigned variant = 0; variant < 16; variant++) {
        rig_open(&rig, (uint16_t)(2u << variant / 4 * 2 % 6), variant & 1, variant & 2 ? 4 : 0, STEPS);
        memset(exposed, 0, sizeof(exposed));
        seen = 0;
        if (variant >= 8) {
            rig_start_at(&rig, (uint16_t)(65500 + variant));
            seen = rig.dev.avail->idx;
        }
        look(true);
        for (unsigned n = 0; n < STEPS && rig.next < STEPS - 1; n++) {
            one_step();
            look(false);
        }
        assert_true(rig.back > 100);
        rig_check_clean(&rig);
        rig_close(&rig);
    }
}

/* 3.3.1: what is with the device stays as it was shown, descriptors and indirect tables. */
static void look_at_exposed(bool first)
{
    (void)first;
    check_exposed();
}

static void test_exposed_entries_stay(void **state)
{
    (void)state;
    run(look_at_exposed);
}

/* 2.7.6.1: the available index never goes back; no step moves it by more than the ring has. */
static void look_at_index(bool first)
{
    static uint16_t last;
    uint16_t now = rig.dev.avail->idx, moved = (uint16_t)(now - last);

    check(first || moved <= rig.vq.size, "the available index went from %u to %u", last, now);
    last = now;
}

static void test_available_index_only_grows(void **state)
{
    (void)state;
    run(look_at_index);
}

/* 2.7.7.1: 0 or 1 without event index, and both occur; always 0 with it. */
static unsigned flags_seen;

static void look_at_flags(bool first)
{
    uint16_t flags = rig.dev.avail->flags;

    (void)first;
    check(flags <= (rig.vq.event_idx ? 0 : 1), "available flags are %x, %s event index", flags,
          rig.vq.event_idx ? "with" : "without");
    flags_seen |= 1u << flags;
}

static void test_available_flags(void **state)
{
    (void)state;
    run(look_at_flags);
    assert_int_equal(flags_seen, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exposed_entries_stay),
        cmocka_unit_test(test_available_index_only_grows),
        cmocka_unit_test(test_available_flags),
    };

    return cmocka_run_group_tests_name("clauses_ring", tests, NULL, NULL);
}

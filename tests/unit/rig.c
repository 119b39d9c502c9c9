/* A virtqueue and a fake device on the same memory. See rig.h. */
#include "tests/unit/rig.h"

static struct virtq_buf bufs[2 * UINT16_MAX];

void rig_open(struct rig *rig, uint16_t size, bool event_idx, uint16_t indirect_max, uint64_t limit)
{
    struct virtqueue_config config = { .index = 1, .size = size, .event_idx = event_idx, .indirect_max = indirect_max };

    memset(rig, 0, sizeof(*rig));
    /* Exactly what is asked for: AddressSanitizer sees a step beyond. */
    check(posix_memalign(&rig->mem, 4096, virtqueue_split_bytes(size, indirect_max)) == 0, "no memory");
    memset(rig->mem, 0xee, virtqueue_split_bytes(size, indirect_max));
    assert_int_equal(virtqueue_split_init(&rig->vq, &config, rig->mem), VIRTQ_OK);
#ifdef RIG_RECORDED
    recorder_attach(&rig->vq, &rig->recorder);
#endif
    fake_device_init(&rig->dev, rig->vq.desc, rig->vq.avail, rig->vq.used, size, event_idx, indirect_max > 0);
    rig->limit = limit;
    rig->buffer = calloc(limit, sizeof(*rig->buffer));
    rig->seed = chance_seed(0x51e5 + size);
}

#ifdef RIG_RECORDED
uint64_t clock_ns(void)
{
    return 1;
}
#endif

void rig_close(struct rig *rig)
{
    fake_device_free(&rig->dev);
    free(rig->buffer);
    free(rig->mem);
}

void rig_start_at(struct rig *rig, uint16_t index)
{
    struct virtqueue *vq = &rig->vq;

    assert_int_equal(vq->in_flight, 0);
    vq->avail_idx = vq->published = vq->last_used = index;
    vq->avail->idx = index;
    fake_device_start_at(&rig->dev, index);
    vq->callbacks = true; /* so that switching them off writes the event index anew */
    virtqueue_disable_callbacks(vq);
    rig->driver_asleep = false;
}

struct rig_shape rig_shape(uint64_t n, uint16_t max, uint64_t salt)
{
    uint64_t state = (n + 1) * 0x9e3779b97f4a7c15ull + salt;
    uint16_t pieces = (uint16_t)(1 + chance_below(&state, max));
    uint16_t out = (uint16_t)chance_below(&state, pieces + 1u);

    return (struct rig_shape){ out, (uint16_t)(pieces - out) };
}

/* Piece i of buffer n: the address carries both. */
static struct virtq_buf piece_of(uint64_t n, uint32_t i)
{
    return (struct virtq_buf){ (n + 1) << 20 | i, 1 + (uint32_t)((n * 7 + i * 13) % 3000) };
}

static void *token_of(uint64_t n)
{
    return (void *)(uintptr_t)(n + 1);
}

/* Nothing of the queue that a refused add may change has changed. */
static void check_unchanged(struct rig *rig, const struct virtqueue *before, int result)
{
    struct virtqueue now = rig->vq;

    now.stats.full = before->stats.full;
    check(!memcmp(&now, before, sizeof(now)), "add changed the queue although it returned %d", result);
    check(rig->vq.stats.full == before->stats.full + (result == VIRTQ_FULL), "stats.full");
}

int rig_add(struct rig *rig, struct rig_shape shape)
{
    struct virtqueue *vq = &rig->vq, before = *vq;
    uint32_t pieces = (uint32_t)shape.out + shape.in;
    uint64_t n = rig->next;

    check(n < rig->limit, "the test's own limit");
    struct rig_buffer added = { .state = RIG_ADDED, .shape = shape };
    for (uint32_t i = 0; i < pieces; i++) {
        bufs[i] = piece_of(n, i);
        added.writable += i >= shape.out ? bufs[i].len : 0;
    }
    added.written = n % 5 == 0 ? added.writable : (uint32_t)(n * 31 % ((uint64_t)added.writable + 1));
    int result = virtqueue_add(vq, bufs, shape.out, shape.in, token_of(n));
    memset(bufs, 0, sizeof(bufs[0]) * pieces); /* the queue must not need them any more */
    if (pieces > vq->size || vq->broken) {
        assert_int_equal(result, vq->broken ? VIRTQ_BROKEN : VIRTQ_TOO_LONG);
        check_unchanged(rig, &before, result);
        return result;
    }
    uint16_t need = virtqueue_need(&before, (uint16_t)pieces);
    if (need > virtqueue_capacity(&before)) {
        assert_int_equal(result, VIRTQ_FULL);
        check_unchanged(rig, &before, result);
        return result;
    }
    assert_int_equal(result, VIRTQ_OK);
    assert_int_equal(virtqueue_capacity(vq), virtqueue_capacity(&before) - need);
    rig->buffer[n] = added;
    rig->next++;
    return result;
}

bool rig_take(struct rig *rig)
{
    struct fake_chain chain;

    if (!fake_device_take(&rig->dev, &chain)) {
        rig_check_clean(rig);
        return false;
    }
    rig_check_clean(rig);
    uint64_t n = (chain.piece[0].addr >> 20) - 1;
    check(n < rig->next, "buffer %llu was never added", (unsigned long long)n);
    struct rig_buffer *b = &rig->buffer[n];
    check(b->state == RIG_ADDED, "buffer %llu in state %d was made available", (unsigned long long)n, b->state);
    b->state = RIG_TAKEN;
    assert_int_equal(chain.pieces, b->shape.out + b->shape.in);
    assert_int_equal(chain.writable, b->writable);
    assert_int_equal(chain.indirect, chain.pieces > 1 && chain.pieces <= rig->vq.indirect_max);
    for (uint32_t i = 0; i < chain.pieces; i++) {
        struct virtq_buf expected = piece_of(n, i);
        const struct fake_piece *p = &chain.piece[i];
        check(p->addr == expected.addr && p->len == expected.len && p->writable == (i >= b->shape.out),
              "piece %u of buffer %llu", i, (unsigned long long)n);
    }
    return true;
}

void rig_return(struct rig *rig, uint16_t i)
{
    fake_device_return(&rig->dev, i, rig->buffer[(fake_device_held(&rig->dev, i)->tag >> 20) - 1].written);
}

bool rig_pop(struct rig *rig)
{
    struct virtqueue *vq = &rig->vq;
    uint32_t len = 0xdddddddd;
    bool pending = virtqueue_pending(vq);
    uint16_t before = virtqueue_capacity(vq);
    uintptr_t token = (uintptr_t)virtqueue_pop(vq, &len);

    check(pending ? token != 0 : token == 0 || rig->concurrent, "pending says %d", pending);
    if (!token)
        return false;
    uint64_t n = token - 1;
    check(n < rig->next, "buffer %llu was never added", (unsigned long long)n);
    struct rig_buffer *b = &rig->buffer[n];
    check(b->state == RIG_TAKEN, "buffer %llu came back in state %d", (unsigned long long)n, b->state);
    b->state = RIG_BACK;
    rig->back++;
    assert_int_equal(len, b->written);
    assert_int_equal(virtqueue_capacity(vq), before + virtqueue_need(vq, (uint16_t)(b->shape.out + b->shape.in)));
    return true;
}

bool rig_driver_sleep(struct rig *rig, bool late)
{
    struct virtqueue *vq = &rig->vq;
    uint16_t outstanding =
        (uint16_t)(vq->published - vq->last_used);            /* what the device has, or has returned without a pop */
    uint16_t enough = (uint16_t)((3u * outstanding + 3) / 4); /* three quarters of it, rounded up */

    late = late && vq->event_idx && enough > 1;
    rig->patience = late ? (uint16_t)(enough - 1) : 0;
    rig->driver_asleep = late ? virtqueue_enable_callbacks_late(vq) : virtqueue_enable_callbacks(vq);
    return rig->driver_asleep;
}

void rig_check_no_one_sleeps_on_work(struct rig *rig)
{
    uint16_t visible = (uint16_t)(rig->dev.avail->idx - rig->dev.last_avail);
    uint16_t returned = (uint16_t)(rig->dev.used->idx - rig->vq.last_used);

    check(!rig->dev.asleep || visible == 0, "the device sleeps on %u buffers", visible);
    check(!rig->driver_asleep || returned <= rig->patience, "the driver sleeps on %u returned buffers", returned);
}

void rig_check_clean(struct rig *rig)
{
    check(!rig->dev.violation[0], "%s", rig->dev.violation);
    check(rig->vq.fault.kind == VIRTQ_FAULT_NONE && !rig->vq.broken && rig->vq.stats.bad_used == 0,
          "fault %d: %u, limit %u", rig->vq.fault.kind, rig->vq.fault.value, rig->vq.fault.limit);
}

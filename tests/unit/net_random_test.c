/* A queue pair in random sequences of everything that driver, device and stack do: what the device writes arrives once,
 * in order and whole, or is dropped and counted for the right reason; what is sent arrives and comes back once; no
 * buffer and no slot is ever lost or doubled. Then the same with a device that lies. */
#include "tests/unit/net_rig.h"

static uint64_t seed;

static uint32_t below(uint32_t n)
{
    return chance_below(&seed, n);
}

/* ---- receive: what was written, and what must come of it ---- */

enum outcome { ARRIVES, SHORT, NUM_BUFFERS, BAD_HEADER, OUTCOMES };

struct written {
    enum outcome outcome;
    struct net_frame frame;
};

static struct written written[1024];  /* by free-running number */
static uint64_t first, visible, next; /* the oldest that has not arrived, the first not published, the next */
static uint64_t expected[OUTCOMES];

/* Of each buffer that the stack holds: which bytes of which frame it has. */
static struct part {
    uint8_t seed;
    uint32_t skip, at, length;
} part[COUNT_OF(net_rig.held)];

static void note(enum outcome outcome, const struct net_frame *frame)
{
    written[next++ % COUNT_OF(written)] = (struct written){ outcome, *frame };
}

/* `count` buffers of 60 bytes, the first with a header that says `said`. False: there are not so many. */
static bool write_small(uint16_t said, unsigned count, uint32_t bytes)
{
    uint8_t raw[100] = { [10] = (uint8_t)said, [11] = (uint8_t)(said >> 8) };

    if (net_rig_buffers() < count)
        return false;
    for (unsigned i = 0; i < count; i++)
        assert_true(net_rig_write_raw(i == 0 ? raw : raw + 12, bytes, bytes));
    return true;
}

static uint32_t some_bytes(void)
{
    bool merged = net_rig.net.features & MRG;

    return below(20) || !merged ? 14 + below(1505) : 14 + below(65536);
}

static void write_frame(void)
{
    bool mrg = net_rig.net.features & MRG, csum = net_rig.net.features & CSUM;
    struct net_frame f = { .bytes = some_bytes(), .seed = (uint8_t)next };
    unsigned count = VIRTNET_FRAME_PIECES + 1 + below(20);
    enum outcome outcome = ARRIVES;

    if (next - first == COUNT_OF(written))
        return;
    switch (below(20)) {
    case 0:
        if (write_small(1, 1, below(net_rig.pair->header + 14u)))
            note(SHORT, &f);
        return;
    case 1:
        if (mrg && write_small(0, 1, 60))
            note(NUM_BUFFERS, &f);
        return;
    case 2:
        if (mrg && write_small((uint16_t)count, count, 60))
            note(NUM_BUFFERS, &f);
        return;
    case 3:
        f.header.hdr.gso_type = (uint8_t)(1 + below(255));
        outcome = BAD_HEADER;
        break;
    case 4:
        f.header.hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
        f.header.hdr.csum_start = (uint16_t)(14 + below(f.bytes));
        f.header.hdr.csum_offset = (uint16_t)below(30);
        bool within = (uint32_t)f.header.hdr.csum_start + f.header.hdr.csum_offset + 2 <= f.bytes;
        outcome = csum && within ? ARRIVES : BAD_HEADER;
        break;
    case 5:
        f.header.hdr.flags = VIRTIO_NET_HDR_F_DATA_VALID;
        break;
    }
    if (net_rig_write(&f))
        note(outcome, &f);
}

static void publish(void)
{
    fake_device_publish(&net_rig.rx);
    visible = next;
}

static void check_drops(void)
{
    const struct virtnet_rx_stats *s = &net_rig.pair->rx_stats;

    assert_int_equal(s->short_frame, expected[SHORT]);
    assert_int_equal(s->num_buffers, expected[NUM_BUFFERS]);
    assert_int_equal(s->bad_header, expected[BAD_HEADER]);
    assert_int_equal(s->packets, expected[ARRIVES]);
}

static void hold(const struct virtnet_frame *frame, const struct net_frame *f)
{
    uint32_t at = 0;

    for (unsigned i = 0; i < frame->count; i++) {
        uint32_t skip = i == 0 ? net_rig.pair->header : 0;
        part[net_rig.held_count + i] = (struct part){ f->seed, skip, at, frame->length[i] - skip };
        at += frame->length[i] - skip;
    }
    check(at == f->bytes, "%u bytes of %u", at, f->bytes);
    net_rig_hold(frame);
}

/* Gives a buffer back; what it holds has not changed meanwhile. */
static void release(unsigned i)
{
    const struct part p = part[i];
    const uint8_t *data = net_rig.held[i]->data + p.skip;

    for (uint32_t k = 0; k<p.length; k += p.length> 4000 ? 97 : 7)
        check(data[k] == net_rig_byte(p.seed, p.at + k), "byte %u of a held frame has changed", p.at + k);
    part[i] = part[net_rig.held_count - 1];
    net_rig_release(i);
}

static bool receive(void)
{
    struct virtnet_frame frame;
    bool got = virtnet_receive(net_rig.pair, &frame);

    while (first < visible && written[first % COUNT_OF(written)].outcome != ARRIVES)
        expected[written[first++ % COUNT_OF(written)].outcome]++;
    if (!got) {
        check(first == visible, "%llu frames are missing", (unsigned long long)(visible - first));
        return false;
    }
    check(first < visible, "a frame that was not written");
    expected[ARRIVES]++;
    const struct net_frame *f = &written[first++ % COUNT_OF(written)].frame;
    assert_int_equal(frame.flags, f->header.hdr.flags);
    hold(&frame, f);
    return true;
}

/* The device promises more buffers than it returns. */
static void write_frame_with_buffers_missing(void)
{
    if (!(net_rig.net.features & MRG))
        return;
    publish();
    while (net_rig.held_count < 3000 && receive())
        ;
    if (first != next || !write_small((uint16_t)(2 + below(70)), 1, 60))
        return;
    struct virtnet_frame frame;
    fake_device_publish(&net_rig.rx);
    assert_false(virtnet_receive(net_rig.pair, &frame));
    expected[NUM_BUFFERS]++;
    check_drops();
}

/* ---- transmit ---- */

enum token_state { NONE, SENT, TAKEN, RETURNED };
static uint8_t token[RIG_TOKENS];
static unsigned next_token;
static bool lies; /* the device does: order and number of what comes back cannot be told */

static void done(void *p)
{
    uint8_t *state = p;

    check(state >= token && state < token + RIG_TOKENS, "a token that was never given");
    check(*state == RETURNED || (lies && *state != NONE), "a token in state %u came back", *state);
    *state = NONE;
}

static void send_frame(void)
{
    struct virtq_buf pieces[VIRTNET_TX_PIECES];
    uint16_t count = (uint16_t)(below(3) ? below(3) : below(VIRTNET_TX_PIECES + 1));
    uint16_t capacity = virtqueue_capacity(&net_rig.pair->tx);
    struct tx_slot *slot = virtnet_slot(net_rig.pair);

    if (!slot) {
        check(lies || net_rig.pair->tx.in_flight + net_rig.slot_count == net_rig.pair->tx.size, "no slot");
        return;
    }
    if (below(10) == 0 && net_rig.slot_count < COUNT_OF(net_rig.slot)) { /* taken, and used later */
        net_rig.slot[net_rig.slot_count++] = slot;
        return;
    }
    while (token[next_token] != NONE)
        next_token = (next_token + 1) % RIG_TOKENS;
    slot->token = below(4) ? &token[next_token] : NULL;
    for (uint16_t i = 0; i < count; i++)
        pieces[i] = (struct virtq_buf){ 4096ull * (i + 1), 1 + i };
    bool sent = virtnet_send(net_rig.pair, slot, net_rig.pair->header + 1 + below(200), pieces, count);
    bool room = count + 1 <= net_rig.pair->tx.size &&
                virtqueue_need(&net_rig.pair->tx, (uint16_t)(count + 1)) <= capacity && !net_rig.pair->tx.broken;
    assert_int_equal(sent, room);
    if (sent && slot->token)
        *(uint8_t *)slot->token = SENT;
}

static void send_kept_slot(void)
{
    if (net_rig.slot_count > 0)
        virtnet_send(net_rig.pair, net_rig.slot[--net_rig.slot_count], 60, NULL, 0);
}

static uint8_t *token_of(uint64_t address)
{
    return ((struct tx_slot *)(uintptr_t)(address - offsetof(struct tx_slot, data)))->token;
}

static void take_sent(void)
{
    struct fake_chain chain;

    if (!fake_device_take(&net_rig.tx, &chain) || lies)
        return;
    uint8_t *state = token_of(chain.piece[0].addr);
    for (uint32_t i = 1; i < chain.pieces; i++)
        check(chain.piece[i].addr == 4096ull * i && chain.piece[i].len == i, "piece %u", i);
    if (state) {
        assert_int_equal(*state, SENT);
        *state = TAKEN;
    }
}

static void return_sent(void)
{
    if (net_rig.tx.held_count == 0)
        return;
    uint16_t i = (uint16_t)below(net_rig.tx.held_count);
    uint8_t *state = token_of(fake_device_held(&net_rig.tx, i)->tag);
    if (state)
        *state = RETURNED;
    fake_device_return(&net_rig.tx, i, 0);
}

/* ---- sequences ---- */

static void begin(const struct net_config *config)
{
    net_rig_open(config);
    memset(token, 0, sizeof(token));
    memset(expected, 0, sizeof(expected));
    first = visible = next = 0;
    lies = false;
}

static void end(void)
{
    net_rig_check_buffers();
    net_rig_check_slots();
    net_rig_close();
}

static void step(void)
{
    switch (below(16)) {
    case 0:
    case 1:
    case 2:
        write_frame();
        break;
    case 3:
        publish();
        break;
    case 4:
    case 5:
        for (uint32_t n = below(20); n > 0 && net_rig.held_count < 3000 && receive(); n--)
            ;
        break;
    case 6:
        for (uint32_t n = below(2) ? below(8) : net_rig.held_count; n > 0 && net_rig.held_count > 0; n--)
            release(below(net_rig.held_count));
        break;
    case 7:
        virtnet_refill(net_rig.pair);
        break;
    case 8:
        net_rig_flush();
        break;
    case 9:
        below(8) ? send_frame() : write_frame_with_buffers_missing();
        break;
    case 10:
        below(4) ? send_frame() : send_kept_slot();
        break;
    case 11:
        take_sent();
        break;
    case 12:
        return_sent();
        break;
    case 13:
        fake_device_publish(&net_rig.tx);
        break;
    case 14:
        virtnet_reclaim(net_rig.pair, below(9), done);
        break;
    case 15:
        below(2) ? (void)fake_device_sleep(&net_rig.rx, 0) : fake_device_poll(&net_rig.rx);
        below(2) ? (void)fake_device_sleep(&net_rig.tx, 0) : fake_device_poll(&net_rig.tx);
        break;
    }
}

static void run(const struct net_config *config, unsigned steps)
{
    begin(config);
    unsigned every = 1 + net_rig.pair->pool.total / 16;
    for (unsigned n = 0; n < steps; n++) {
        step();
        if (n % every == 0) {
            net_rig_check_buffers();
            net_rig_check_slots();
        }
        check(!net_rig.rx.violation[0] && !net_rig.tx.violation[0], "%s%s", net_rig.rx.violation, net_rig.tx.violation);
    }
    /* All that was written arrives, all that was sent comes back. */
    publish();
    while (net_rig.held_count > 0 || receive()) {
        while (net_rig.held_count > 0)
            release(0);
    }
    check_drops();
    while (net_rig.slot_count > 0)
        send_kept_slot();
    for (unsigned n = 0; n < 3000; n++) {
        net_rig_flush();
        take_sent();
        return_sent();
        fake_device_publish(&net_rig.tx);
        virtnet_reclaim(net_rig.pair, 4, done);
    }
    assert_int_equal(net_rig.pair->tx.in_flight, 0);
    for (unsigned i = 0; i < RIG_TOKENS; i++)
        assert_int_equal(token[i], NONE);
    virtnet_report_faults(net_rig.pair);
    assert_int_equal(fake_console_count(LOG_DEBUG), 0);
    end();
}

static void test_honest(void **state)
{
    static const uint64_t features[] = { 0,           MRG, MRG | CSUM, MRG | EVENT, MRG | CSUM | EVENT | INDIR | HASH,
                                         INDIR | CSUM };
    static const uint16_t sizes[] = { 2, 4, 8, 16, 64, 128, 256, 1024 };

    (void)state;
    seed = chance_seed(0x9e70);
    for (unsigned i = 0; i < COUNT_OF(features) * COUNT_OF(sizes); i++) {
        uint16_t size = sizes[i % COUNT_OF(sizes)];
        run(&(struct net_config){ .rx_size = size,
                                  .tx_size = sizes[(i * 5 + i / 8) % COUNT_OF(sizes)],
                                  .features = features[i / COUNT_OF(sizes)],
                                  .buffers = i % 3 == 0 ? 0 : size / 2u + below(size + 40u) },
            8000);
    }
}

/* ---- a device that lies ---- */

static void write_anything(struct fake_device *dev)
{
    struct fake_chain chain;
    bool sane = below(2);

    if (!fake_device_take(dev, &chain))
        return;
    for (uint32_t i = 0; i < chain.pieces; i++) {
        uint8_t *to = (uint8_t *)(uintptr_t)chain.piece[i].addr;
        for (uint32_t k = 0; chain.piece[i].writable && k < 24 && k < chain.piece[i].len; k++)
            to[k] = sane ? k == 10 : below(2) ? 0 : below(4) ? (uint8_t)below(40) : (uint8_t)chance(&seed);
    }
}

static void lie(struct fake_device *dev)
{
    uint32_t id = below(4) ? below(dev->size + 2u) : (uint32_t)chance(&seed);
    uint32_t length = below(4) ? below(2100) : (uint32_t)chance(&seed);

    if (below(200) == 0)
        fake_device_lie(dev, id, length); /* one too many */
    else if (below(1000) == 0)
        fake_device_jump(dev, (uint16_t)(dev->used_idx + chance(&seed)));
    else if (dev->held_count > 0)
        fake_device_return(dev, (uint16_t)below(dev->held_count), length);
    else
        return;
    if (below(6) == 0) /* another's id */
        dev->used->ring[(uint16_t)(dev->used_idx - 1) % dev->size].id = id;
    if (below(4) == 0)
        fake_device_publish(dev);
}

static void receive_anything(void)
{
    struct virtnet_frame frame;
    const struct virtnet_pair *pair = net_rig.pair;

    if (net_rig.held_count > 3000 || !virtnet_receive(net_rig.pair, &frame))
        return;
    assert_true(frame.count >= 1 && frame.count <= VIRTNET_FRAME_PIECES);
    assert_true(frame.length[0] >= pair->header + 14u);
    for (unsigned i = 0; i < frame.count; i++)
        assert_true(frame.length[i] >= 1 && frame.length[i] <= pair->pool.data_size);
    assert_int_equal(frame.flags & ~3, 0);
    net_rig_hold(&frame);
}

static void lying_step(void)
{
    switch (below(9)) {
    case 0:
        write_anything(&net_rig.rx);
        break;
    case 1:
        take_sent();
        break;
    case 2:
        lie(&net_rig.rx);
        break;
    case 3:
        lie(&net_rig.tx);
        break;
    case 4:
        receive_anything();
        break;
    case 5:
        if (net_rig.held_count > 0)
            net_rig_release(below(net_rig.held_count));
        virtnet_refill(net_rig.pair);
        break;
    case 6:
        below(4) ? send_frame() : send_kept_slot();
        break;
    case 7:
        virtnet_reclaim(net_rig.pair, below(9), done);
        break;
    case 8:
        virtnet_flush(net_rig.pair);
        virtnet_report_faults(net_rig.pair);
        break;
    }
}

static void test_lies(void **state)
{
    static const uint16_t sizes[] = { 2, 4, 16, 64 };
    unsigned broken = 0, faults = 0, packets = 0;

    (void)state;
    seed = chance_seed(0x11e5);
    for (unsigned round = 0; round < 400; round++) {
        uint16_t size = sizes[round % COUNT_OF(sizes)];
        begin(&(struct net_config){ .rx_size = size,
                                    .tx_size = sizes[round / 4 % COUNT_OF(sizes)],
                                    .features = (round % 5 ? MRG : 0) | (round % 2 ? CSUM : 0) |
                                                (round % 3 ? EVENT : 0) | (round % 7 ? 0 : HASH) |
                                                (round % 2 ? INDIR : 0),
                                    .buffers = size + below(60) });
        lies = true;
        for (unsigned n = 0; n < 600; n++) {
            lying_step();
            if (n % 8 == 0) {
                net_rig_check_buffers();
                net_rig_check_slots();
            }
        }
        broken += net_rig.pair->rx.broken + net_rig.pair->tx.broken;
        faults += fake_console_count(LOG_ERROR);
        packets += (unsigned)net_rig.pair->rx_stats.packets;
        check(fake_console_count(LOG_DEBUG) <= 4, "%u lines", fake_console_count(LOG_DEBUG));
        end();
    }
    check(broken > 20 && faults > 200 && packets > 500, "broken %u, faults %u, packets %u", broken, faults, packets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_honest),
        cmocka_unit_test(test_lies),
    };

    return cmocka_run_group_tests_name("net_random", tests, NULL, NULL);
}

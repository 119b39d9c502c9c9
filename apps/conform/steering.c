/* Several queue pairs (virtio 1.3, 5.1.6.5.6 and 5.1.6.5.7): which receive queue a frame comes by. */
#include <string.h>
#include "apps/conform/areas.h"
#include "apps/conform/peer.h"
#include "apps/conform/rig.h"
#include "net/rss.h"

#define FLOWS       24u    /* connections that are tried */
#define FIRST_PORT  20000u /* our end of the first */
#define CLOSED      9u     /* the peer's end: discard; whether it is open does not matter */
#define FLOW_MS     100u
#define FLOW_TRIES  5u
#define TCP         20u /* bytes of its header */
#define REPORT_TCP4 2u  /* VIRTIO_NET_HASH_REPORT_TCPv4 */
#define RX_TYPES    (VIRTIO_NET_RSS_HASH_TYPE_IPv4 | VIRTIO_NET_RSS_HASH_TYPE_TCPv4)

static enum verdict up(uint16_t pairs, bool unset)
{
    if (!rig_up(&(struct rig_options){ .features = rig_usable(), .pairs = pairs, .pairs_unset = unset }))
        return rig_failed();
    return rig.pairs >= 2 ? PASS : tap_skip("one queue pair only");
}

/* ---- flows: a SYN to a closed port, which TCP answers whatever it thinks of it ---- */

static void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static void send_syn(uint16_t pair, uint16_t port)
{
    uint8_t tcp[TCP] = { [12] = 5 << 4, [13] = 2, [14] = 16 }, frame[34 + TCP], pseudo[12];
    put16(tcp, port);
    put16(tcp + 2, CLOSED);
    memcpy(pseudo, peer.own, 4);
    memcpy(pseudo + 4, peer.ip, 4);
    memcpy(pseudo + 8, (const uint8_t[]){ 0, 6, 0, TCP }, 4);
    put16(tcp + 16, (uint16_t)~peer_sum(tcp, TCP, peer_sum(pseudo, sizeof pseudo, 0)));
    rig_send(pair, frame, peer_ip(frame, 6, tcp, TCP), NULL);
}

/* True if the frame is TCP's answer to the SYN from `port`, or the SYN reflected. */
static bool is_answer(const struct rig_frame *f, uint16_t port)
{
    const uint8_t *ip = f->data + 14, *tcp = ip + 20;
    unsigned at = peer.kind == PEER_REFLECTS ? 0 : 2;
    return f->bytes >= 34 + TCP && f->data[12] == 8 && f->data[13] == 0 && ip[0] == 0x45 && ip[9] == 6 &&
           (tcp[at] << 8 | tcp[at + 1]) == port && (tcp[2 - at] << 8 | tcp[3 - at]) == CLOSED;
}

/* Opens the flow of `port` from pair `pair`, and waits for what comes back. */
static bool ask(uint16_t pair, uint16_t port, struct rig_frame *frame)
{
    for (unsigned tries = 0; tries < FLOW_TRIES; tries++) {
        rig_reclaim(pair, FLOW_MS);
        send_syn(pair, port);
        for (struct rig_wait w = rig_for(FLOW_MS << tries); rig_waiting(&w);)
            while (rig_receive(frame, 0)) {
                if (is_answer(frame, port))
                    return true;
                peer_other(frame);
            }
    }
    return false;
}

/* Opens FLOWS flows in turn from the first `from` pairs; each answer has to come by one of the first `most`. */
static enum verdict only_first(uint16_t from, uint16_t most)
{
    struct rig_frame frame;
    unsigned answered = 0;
    for (unsigned i = 0; i < FLOWS; i++) {
        if (!ask((uint16_t)(i % from), (uint16_t)(FIRST_PORT + i), &frame))
            continue;
        answered++;
        if (frame.pair >= most)
            return tap_fail("a frame by an enabled queue", "by receiveq%u of %u that are enabled", frame.pair + 1,
                            most);
    }
    tap_note("answers", "%u of %u", answered, FLOWS);
    return answered > 0 ? rig_faultless() : tap_fail("an answer", "none");
}

static enum control_result set_pairs(uint16_t pairs)
{
    return control_run(&rig.control, VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &pairs, 2);
}

/* ---- automatic steering ---- */

static enum verdict check_default(void)
{
    enum verdict v = up(RIG_MAX_PAIRS, true);
    return v == PASS ? only_first(1, 1) : v;
}

static enum verdict check_all(void)
{
    enum verdict v = up(RIG_MAX_PAIRS, false);
    return v == PASS ? only_first(rig.pairs, rig.pairs) : v;
}

static enum verdict check_fewer(void)
{
    enum verdict v = up(RIG_MAX_PAIRS, false);
    if (v != PASS)
        return v;
    v = only_first(rig.pairs, rig.pairs);
    enum control_result r = set_pairs(1);
    if (v != PASS || r != CONTROL_OK)
        return v != PASS ? v : tap_fail("VQ_PAIRS_SET 1 answered with OK", "%s", control_result_text(r));
    return only_first(1, 1);
}

/* Every queue carries frames out, whatever comes back where. */
static enum verdict check_transmit(void)
{
    struct rig_frame frame;
    enum verdict v = up(RIG_MAX_PAIRS, false);
    for (uint16_t pair = 0; v == PASS && pair < rig.pairs; pair++)
        if (!ask(pair, (uint16_t)(FIRST_PORT + pair), &frame))
            return tap_fail("an answer to a frame on every transmit queue", "none on transmitq%u", pair + 1);
    return v == PASS ? rig_faultless() : v;
}

/* The first answer of a flow may come by any queue; then the device knows. */
static enum verdict check_learns(void)
{
    struct rig_frame frame;
    unsigned asked = 0, right = 0;
    enum verdict v = up(RIG_MAX_PAIRS, false);
    if (v != PASS)
        return v;
    for (unsigned i = 0; i < FLOWS; i++) {
        uint16_t pair = (uint16_t)(i % rig.pairs), port = (uint16_t)(FIRST_PORT + 100 + i);
        if (!ask(pair, port, &frame) || !ask(pair, port, &frame))
            continue;
        asked++;
        right += frame.pair == pair;
    }
    tap_note("flows", "%u of %u came by the queue they were sent on", right, asked);
    return asked > 0 && right == asked ? PASS : tap_fail("all of them", "%u of %u", right, asked);
}

/* ---- by hash ---- */

/* The Toeplitz hash bit by bit, as it is defined: for each bit that is set, the 32 bits of the key from there on. */
static uint32_t toeplitz(const uint8_t *key, const uint8_t *data, unsigned n)
{
    uint32_t hash = 0;
    for (unsigned bit = 0; bit < 8 * n; bit++)
        if (data[bit / 8] & 0x80 >> bit % 8)
            for (unsigned k = 0; k < 32; k++)
                hash ^= (uint32_t)(key[(bit + k) / 8] >> (7 - (bit + k) % 8) & 1) << (31 - k);
    return hash;
}

/* Of a frame of TCP over IPv4: addresses and ports, source first. */
static uint32_t hash_of(const struct rig_frame *frame)
{
    return toeplitz(rss_default_key, frame->data + 26, 12);
}

/* Hands out the table's entries to the pairs in turn, or all to `only` (below the number of pairs). */
static uint16_t owner(uint32_t entry, int only)
{
    return only >= 0 ? (uint16_t)only : (uint16_t)(entry % rig.pairs);
}

static enum control_result set_rss(uint32_t types, uint16_t unclassified, int only)
{
    struct {
        uint32_t types;
        uint16_t mask, unclassified, table[CONTROL_RSS_TABLE], max_tx;
        uint8_t length, key[CONTROL_RSS_KEY];
    } __attribute__((packed))
    data = { types, CONTROL_RSS_TABLE - 1, unclassified, { 0 }, rig.pairs, CONTROL_RSS_KEY, { 0 } };
    for (uint32_t i = 0; i < CONTROL_RSS_TABLE; i++)
        data.table[i] = owner(i, only);
    memcpy(data.key, rss_default_key, sizeof data.key);
    return control_run(&rig.control, VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_RSS_CONFIG, &data, sizeof data);
}

static enum verdict up_rss(int only)
{
    uint32_t types = 0;
    enum verdict v = up(RIG_MAX_PAIRS, true);
    if (v != PASS)
        return v;
    rig.transport.ops->config_read(&rig.transport, offsetof(struct virtio_net_config, supported_hash_types), &types, 4);
    if ((types & RX_TYPES) != RX_TYPES)
        return tap_skip("not offered: hash types IPv4 and TCPv4 (supported_hash_types is 0x%x)", types);
    enum control_result r = set_rss(RX_TYPES, (uint16_t)(rig.pairs - 1), only);
    return r == CONTROL_OK ? PASS : tap_fail("RSS_CONFIG answered with OK", "%s", control_result_text(r));
}

/* Every answer comes by the queue that the table names for its hash. */
static enum verdict by_table(int only)
{
    struct rig_frame frame;
    unsigned answered = 0;
    for (unsigned i = 0; i < FLOWS; i++) {
        if (!ask((uint16_t)(i % rig.pairs), (uint16_t)(FIRST_PORT + 200 + i), &frame))
            continue;
        uint32_t hash = hash_of(&frame);
        uint16_t want = owner(hash % CONTROL_RSS_TABLE, only);
        answered++;
        if (frame.pair == want)
            continue;
        tap_note("hash", "0x%08x, entry %u", hash, hash % CONTROL_RSS_TABLE);
        return tap_fail("the queue that the table names", "receiveq%u instead of receiveq%u", frame.pair + 1, want + 1);
    }
    tap_note("answers", "%u of %u", answered, FLOWS);
    return answered > 0 ? PASS : tap_fail("an answer", "none");
}

static enum verdict check_table(void)
{
    enum verdict v = up_rss(-1);
    return v == PASS ? by_table(-1) : v;
}

static enum verdict check_new_table(void)
{
    enum verdict v = up_rss(-1);
    if (v != PASS)
        return v;
    for (int only = rig.pairs - 1; only >= 0 && v == PASS; only--) {
        enum control_result r = set_rss(RX_TYPES, 0, only);
        v = r == CONTROL_OK ? by_table(only) : tap_fail("RSS_CONFIG answered with OK", "%s", control_result_text(r));
    }
    return v;
}

/* Types that were not asked for are not hashed: with none at all everything is unclassified. */
static enum verdict check_unclassified(void)
{
    struct rig_frame frame;
    enum verdict v = up_rss(0);
    if (v != PASS)
        return v;
    uint16_t last = (uint16_t)(rig.pairs - 1);
    enum control_result r = set_rss(0, last, 0);
    if (r != CONTROL_OK)
        return tap_fail("RSS_CONFIG answered with OK", "%s", control_result_text(r));
    if (!ask(0, FIRST_PORT + 300, &frame))
        return tap_fail("an answer", "none");
    return frame.pair == last
               ? PASS
               : tap_fail("unclassified_queue", "receiveq%u instead of receiveq%u", frame.pair + 1, last + 1);
}

static enum verdict check_report(void)
{
    struct rig_frame frame;
    unsigned answered = 0;
    struct rss_limits most = { CONTROL_RSS_KEY, 0, 0 };
    if (!rig_up(&(struct rig_options){ .features = rig_usable() }))
        return rig_failed();
    rig.transport.ops->config_read(&rig.transport, offsetof(struct virtio_net_config, supported_hash_types),
                                   &most.hash_types, 4);
    if ((most.hash_types & RX_TYPES) != RX_TYPES)
        return tap_skip("not offered: hash types IPv4 and TCPv4 (supported_hash_types is 0x%x)", most.hash_types);
    enum control_result r = control_set_hash(&rig.control, &most, rss_default_key, RX_TYPES);
    if (r != CONTROL_OK)
        return tap_fail("HASH_CONFIG answered with OK", "%s", control_result_text(r));
    for (unsigned i = 0; i < FLOWS; i++) {
        if (!ask(0, (uint16_t)(FIRST_PORT + 400 + i), &frame))
            continue;
        answered++;
        uint16_t report = frame.header.hash_report;
        uint32_t value = frame.header.hash_value, ours = hash_of(&frame);
        if (report != REPORT_TCP4 || value != ours)
            return tap_fail("hash_report 2 and our hash", "hash_report %u, 0x%08x instead of 0x%08x", report, value,
                            ours);
    }
    tap_note("answers", "%u of %u", answered, FLOWS);
    return answered > 0 ? PASS : tap_fail("an answer", "none");
}

#define MQ  NEEDS(VIRTIO_NET_F_MQ)
#define RSS NEEDS(VIRTIO_NET_F_RSS)

static const struct check checks[] = {
    { "5.1.6.5.6.2", "before VQ_PAIRS_SET frames come by receiveq1 only", true, MQ, check_default },
    { "5.1.6.5.6", "after VQ_PAIRS_SET frames come by enabled queues", true, MQ, check_all },
    { "5.1.6.5.6.2", "after VQ_PAIRS_SET 1 frames come by receiveq1 only", true, MQ, check_fewer },
    { "5.1.6.5.6", "frames go out by every transmit queue", true, MQ, check_transmit },
    { "5.1.6.5.6", "a flow comes by the queue it was last sent on (SHOULD)", true, MQ, check_learns },
    { "5.1.6.5.7.3", "with RSS a frame comes by the queue its hash's entry names", true, RSS, check_table },
    { "5.1.6.5.7.3", "a new indirection table holds when it is answered", true, RSS, check_new_table },
    { "5.1.6.5.7.3", "a frame without a hash comes by unclassified_queue", true, RSS, check_unclassified },
    { "5.1.6.4.3", "the hash that is reported is the one that is defined", true, NEEDS(VIRTIO_NET_F_HASH_REPORT),
      check_report },
};

const struct area area_steering = AREA("steering", checks);

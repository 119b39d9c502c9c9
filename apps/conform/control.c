/* The control queue (virtio 1.3, 5.1.6.5): every command that was negotiated is answered, and takes effect before it
 * is. */
#include <string.h>
#include "apps/conform/areas.h"
#include "apps/conform/rig.h"
#include "net/rss.h"

#define COMMANDS_IN_A_ROW 300u /* a control queue of QEMU has 64 descriptors: its ring goes round several times */

/* Everything that can be negotiated, on one pair. */
static bool up(void)
{
    return rig_up(&(struct rig_options){ .features = rig_usable() });
}

static enum verdict no_queue(void)
{
    return tap_fail("a control queue that can be used", "none");
}

/* Runs a command; the answer has to be OK. */
static enum verdict expect_ok(const char *name, uint8_t class, uint8_t command, const void *data, uint32_t n)
{
    enum control_result r = control_run(&rig.control, class, command, data, n);
    if (r == CONTROL_OK)
        return PASS;
    tap_note("command", "%s", name);
    return tap_fail("OK", "%s", control_result_text(r));
}

static enum verdict check_unknown_class(void)
{
    if (!up())
        return rig_failed();
    if (!rig.control.open)
        return no_queue();
    enum control_result r = control_run(&rig.control, 0xee, 0, &(uint8_t){ 0 }, 1);
    if (r != CONTROL_REFUSED)
        return tap_fail("ERR", "%s", control_result_text(r));
    return rig.control.open ? PASS : no_queue();
}

static enum verdict check_in_a_row(void)
{
    uint16_t pairs = 1;
    if (!up())
        return rig_failed();
    for (unsigned i = 0; i < COMMANDS_IN_A_ROW; i++)
        if (expect_ok("VQ_PAIRS_SET 1", VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &pairs, 2) != PASS) {
            tap_note("after", "%u commands", i);
            return FAIL;
        }
    return PASS;
}

/* A command as the driver likes to cut it: each of its bytes a piece of its own. */
static enum verdict check_pieces(void)
{
    static const uint8_t pairs_set[] = { VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, 1, 0 };
    enum { BYTES = sizeof pairs_set };
    struct virtq_buf piece[BYTES + 1];
    uint32_t written = 0;
    if (!up())
        return rig_failed();
    uint8_t *memory = rig_alloc(256, 64), *answer = memory + 128;
    struct virtqueue *vq = &rig.control.vq;
    if (!rig.control.open || memory == NULL || vq->size < BYTES + 1)
        return no_queue();
    for (unsigned i = 0; i < BYTES; i++) {
        memory[16 * i] = pairs_set[i];
        piece[i] = (struct virtq_buf){ (uint64_t)(uintptr_t)&memory[16 * i], 1 };
    }
    *answer = CONTROL_NO_ANSWER;
    piece[BYTES] = (struct virtq_buf){ (uint64_t)(uintptr_t)answer, 1 };
    if (virtqueue_add(vq, piece, BYTES, 1, memory) != VIRTQ_OK)
        return no_queue();
    if (virtqueue_publish(vq))
        rig.transport.ops->notify(&rig.transport, vq);
    struct rig_wait w = rig_for(1000);
    while (virtqueue_pop(vq, &written) == NULL)
        if (!rig_waiting(&w))
            return tap_fail("an answer within a second", "none");
    tap_note("used length", "%u", written);
    return *(volatile uint8_t *)answer == VIRTIO_NET_OK ? PASS : tap_fail("OK (0)", "%u", *answer);
}

/* The device says that it wrote the answer's byte. */
static enum verdict check_length(void)
{
    uint16_t pairs = 1;
    if (!up())
        return rig_failed();
    if (expect_ok("VQ_PAIRS_SET 1", VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &pairs, 2) != PASS)
        return FAIL;
    const struct virtq_fault *fault = &rig.control.vq.fault;
    if (fault->kind != VIRTQ_FAULT_NONE)
        return tap_fail("at most 1 byte written", "%u", fault->value);
    return PASS;
}

static enum verdict check_pairs(void)
{
    if (!rig_up(&(struct rig_options){ .features = rig_usable(), .pairs = RIG_MAX_PAIRS, .pairs_unset = true }))
        return rig_failed();
    for (uint16_t pairs = 1; pairs <= rig.pairs; pairs++)
        if (expect_ok("VQ_PAIRS_SET", VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &pairs, 2) != PASS) {
            tap_note("pairs", "%u", pairs);
            return FAIL;
        }
    tap_note("pairs", "1 to %u", rig.pairs);
    return PASS;
}

/* Each of the commands `first` to `last` of receive filtering, on and off. */
static enum verdict filters(uint8_t first, uint8_t last)
{
    static const char *const name[] = { "PROMISC", "ALLMULTI", "ALLUNI", "NOMULTI", "NOUNI", "NOBCAST" };
    if (!up())
        return rig_failed();
    for (uint8_t command = first; command <= last; command++)
        for (int on = 1; on >= 0; on--)
            if (expect_ok(name[command], VIRTIO_NET_CTRL_RX, command, &(uint8_t){ (uint8_t)on }, 1) != PASS) {
                tap_note("argument", "%d", on);
                return FAIL;
            }
    return PASS;
}

static enum verdict check_filters(void)
{
    return filters(VIRTIO_NET_CTRL_RX_PROMISC, VIRTIO_NET_CTRL_RX_ALLMULTI);
}

static enum verdict check_more_filters(void)
{
    return filters(VIRTIO_NET_CTRL_RX_ALLUNI, VIRTIO_NET_CTRL_RX_NOBCAST);
}

static enum verdict check_mac_table(void)
{
    struct {
        uint32_t unicasts;
        uint8_t unicast[6];
        uint32_t multicasts;
        uint8_t multicast[6];
    } __attribute__((packed)) one = { 1, { 0 }, 1, { 0x33, 0x33, 0, 0, 0, 1 } };
    static const uint32_t none[2];
    if (!up())
        return rig_failed();
    memcpy(one.unicast, rig.mac, 6);
    if (expect_ok("MAC_TABLE_SET, one address each", VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_TABLE_SET, &one,
                  sizeof one) != PASS)
        return FAIL;
    return expect_ok("MAC_TABLE_SET, empty", VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_TABLE_SET, none, sizeof none);
}

static enum verdict check_mac_set(void)
{
    uint8_t other[6], now[6];
    if (!up())
        return rig_failed();
    memcpy(other, rig.mac, 6);
    other[5] ^= 0x55;
    if (expect_ok("MAC_ADDR_SET", VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_ADDR_SET, other, 6) != PASS)
        return FAIL;
    bool read = rig.transport.ops->config_read(&rig.transport, 0, now, 6);
    enum verdict back = expect_ok("MAC_ADDR_SET", VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_ADDR_SET, rig.mac, 6);
    if (read && memcmp(now, other, 6) == 0)
        return back;
    return tap_fail("the new address in the configuration's mac", "%02x:%02x:%02x:%02x:%02x:%02x", now[0], now[1],
                    now[2], now[3], now[4], now[5]);
}

static enum verdict check_vlan(void)
{
    static const uint16_t ids[] = { 1, 2, 4094 };
    if (!up())
        return rig_failed();
    for (unsigned i = 0; i < 2 * sizeof ids / sizeof *ids; i++) {
        uint8_t command = i % 2 == 0 ? VIRTIO_NET_CTRL_VLAN_ADD : VIRTIO_NET_CTRL_VLAN_DEL;
        if (expect_ok(i % 2 == 0 ? "VLAN_ADD" : "VLAN_DEL", VIRTIO_NET_CTRL_VLAN, command, &ids[i / 2], 2) != PASS)
            return FAIL;
    }
    return PASS;
}

static enum verdict check_announce_ack(void)
{
    uint16_t status = 0;
    if (!up())
        return rig_failed();
    if (control_announce_ack(&rig.control) == CONTROL_CLOSED)
        return no_queue();
    rig.transport.ops->config_read(&rig.transport, offsetof(struct virtio_net_config, status), &status, 2);
    return status & VIRTIO_NET_S_ANNOUNCE ? tap_fail("status without ANNOUNCE", "0x%x", status) : PASS;
}

/* Off, and on again as negotiated. */
static enum verdict check_offloads(void)
{
    uint64_t all = rig_bit(VIRTIO_NET_F_GUEST_CSUM) | rig_bit(VIRTIO_NET_F_GUEST_TSO4) |
                   rig_bit(VIRTIO_NET_F_GUEST_TSO6) | rig_bit(VIRTIO_NET_F_GUEST_ECN) | rig_bit(VIRTIO_NET_F_GUEST_UFO),
             none = 0;
    if (!up())
        return rig_failed();
    all &= rig.features;
    if (all == 0)
        return tap_skip("not offered: a receive offload");
    if (expect_ok("GUEST_OFFLOADS_SET, none", VIRTIO_NET_CTRL_GUEST_OFFLOADS, VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET, &none,
                  8) != PASS)
        return FAIL;
    return expect_ok("GUEST_OFFLOADS_SET, as negotiated", VIRTIO_NET_CTRL_GUEST_OFFLOADS,
                     VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET, &all, 8);
}

/* What the device says it can hash, it takes. */
static struct rss_limits limits(void)
{
    struct rss_limits limits = { 0 };
    struct virtio_transport *t = &rig.transport;
    t->ops->config_read(t, offsetof(struct virtio_net_config, rss_max_key_size), &limits.max_key_size, 1);
    if (rig_has(VIRTIO_NET_F_RSS))
        t->ops->config_read(t, offsetof(struct virtio_net_config, rss_max_indirection_table_length),
                            &limits.max_table_length, 2);
    t->ops->config_read(t, offsetof(struct virtio_net_config, supported_hash_types), &limits.hash_types, 4);
    return limits;
}

static enum verdict check_hash(void)
{
    if (!up())
        return rig_failed();
    struct rss_limits most = limits();
    enum control_result r = control_set_hash(&rig.control, &most, rss_default_key, most.hash_types);
    return r == CONTROL_OK ? PASS : tap_fail("OK", "%s", control_result_text(r));
}

static enum verdict check_rss(void)
{
    static const uint8_t table[CONTROL_RSS_TABLE];
    if (!up())
        return rig_failed();
    struct rss_limits most = limits();
    enum control_result r = control_set_rss(&rig.control, &most, rss_default_key, table, 1, most.hash_types);
    return r == CONTROL_OK ? PASS : tap_fail("OK", "%s", control_result_text(r));
}

#define WITH(name) NEEDS(VIRTIO_NET_F_##name)

static const struct check checks[] = {
    { "5.1.6.5", "a command of no known class is answered with ERR", false, WITH(CTRL_VQ), check_unknown_class },
    { "5.1.6.5", "300 commands in a row are answered, around the ring", false, WITH(MQ), check_in_a_row },
    { "2.7.4.1", "a command cut into pieces of one byte is understood", false, WITH(MQ), check_pieces },
    { "2.7.8.2", "an answer's used length is within its room", false, WITH(MQ), check_length },
    { "5.1.6.5.6", "every number of queue pairs from 1 to all can be set", false, WITH(MQ), check_pairs },
    { "5.1.6.5.1.1", "PROMISC and ALLMULTI can be switched on and off", false, WITH(CTRL_RX), check_filters },
    { "5.1.6.5.1.1", "ALLUNI, NOMULTI, NOUNI, NOBCAST can be switched on and off", false, WITH(CTRL_RX_EXTRA),
      check_more_filters },
    { "5.1.6.5.2.1", "MAC_TABLE_SET takes addresses, and an empty table", false, WITH(CTRL_RX), check_mac_table },
    { "5.1.6.5.2.1", "MAC_ADDR_SET is in the configuration when it is answered", false, WITH(CTRL_MAC_ADDR),
      check_mac_set },
    { "5.1.6.5.3", "VLAN_ADD and VLAN_DEL are answered with OK", false, WITH(CTRL_VLAN), check_vlan },
    { "5.1.6.5.4.2", "after ANNOUNCE_ACK the bit ANNOUNCE of status is clear", false, WITH(GUEST_ANNOUNCE),
      check_announce_ack },
    { "5.1.6.5.8", "receive offloads can be switched off and on", false, WITH(CTRL_GUEST_OFFLOADS), check_offloads },
    { "5.1.6.5.6.4", "HASH_CONFIG takes every hash type that is supported", false, WITH(HASH_REPORT), check_hash },
    { "5.1.6.5.7.1", "RSS_CONFIG takes every hash type that is supported", false, WITH(RSS), check_rss },
};

const struct area area_control = AREA("control", checks);

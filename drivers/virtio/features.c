/* The feature table and the choice. Dependencies are those of virtio 1.3, 5.1.3.1; those of the control
 * queue's commands that the list leaves out are marked. Compiles on the host. */
#include "drivers/virtio/features.h"

#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>
#include <stdio.h>
#include <string.h>

#define VIRTIO_NET_F_HASH_TUNNEL_BIT 51 /* 5.1.3; not in the uapi headers either */

#define BIT(name)     FEATURE_BIT(VIRTIO_NET_F_##name)
#define CTRL_VQ       BIT(CTRL_VQ)
#define ANY_HOST_TSO  (BIT(HOST_TSO4) | BIT(HOST_TSO6))
#define ANY_GUEST_TSO (BIT(GUEST_TSO4) | BIT(GUEST_TSO6))
#define ANY_HASH      (BIT(RSS) | BIT(HASH_REPORT))

/* Rows in the order of bits. */
static const struct feature table[] = {
    { VIRTIO_NET_F_CSUM, true, "csum", 0, 0 },
    { VIRTIO_NET_F_GUEST_CSUM, true, "guest_csum", 0, 0 },
    { VIRTIO_NET_F_CTRL_GUEST_OFFLOADS, false, "ctrl_guest_offloads", CTRL_VQ, 0 }, /* its commands go there: 5.1.6.5 */
    { VIRTIO_NET_F_MTU, true, "mtu", 0, 0 },
    { VIRTIO_NET_F_MAC, true, "mac", 0, 0 },
    { VIRTIO_NET_F_GSO, false, "gso", 0, 0 }, /* legacy, 5.1.3.2 */
    { VIRTIO_NET_F_GUEST_TSO4, true, "guest_tso4", BIT(GUEST_CSUM), 0 },
    { VIRTIO_NET_F_GUEST_TSO6, true, "guest_tso6", BIT(GUEST_CSUM), 0 },
    { VIRTIO_NET_F_GUEST_ECN, true, "guest_ecn", 0, ANY_GUEST_TSO },
    { VIRTIO_NET_F_GUEST_UFO, false, "guest_ufo", BIT(GUEST_CSUM), 0 },
    { VIRTIO_NET_F_HOST_TSO4, true, "host_tso4", BIT(CSUM), 0 },
    { VIRTIO_NET_F_HOST_TSO6, true, "host_tso6", BIT(CSUM), 0 },
    { VIRTIO_NET_F_HOST_ECN, false, "host_ecn", 0, ANY_HOST_TSO },
    { VIRTIO_NET_F_HOST_UFO, false, "host_ufo", BIT(CSUM), 0 },
    { VIRTIO_NET_F_MRG_RXBUF, true, "mrg_rxbuf", 0, 0 },
    { VIRTIO_NET_F_STATUS, true, "status", 0, 0 },
    { VIRTIO_NET_F_CTRL_VQ, true, "ctrl_vq", 0, 0 },
    { VIRTIO_NET_F_CTRL_RX, false, "ctrl_rx", CTRL_VQ, 0 },
    { VIRTIO_NET_F_CTRL_VLAN, false, "ctrl_vlan", CTRL_VQ, 0 },
    { VIRTIO_NET_F_CTRL_RX_EXTRA, false, "ctrl_rx_extra", CTRL_VQ, 0 }, /* 5.1.4.1 */
    { VIRTIO_NET_F_GUEST_ANNOUNCE, false, "guest_announce", CTRL_VQ, 0 },
    { VIRTIO_NET_F_MQ, true, "mq", CTRL_VQ, 0 },
    { VIRTIO_NET_F_CTRL_MAC_ADDR, false, "ctrl_mac_addr", CTRL_VQ, 0 },
    { VIRTIO_F_NOTIFY_ON_EMPTY, false, "notify_on_empty", 0, 0 }, /* legacy, 6.3 */
    { VIRTIO_F_ANY_LAYOUT, false, "any_layout", 0, 0 },           /* legacy, 6.3 */
    { VIRTIO_RING_F_INDIRECT_DESC, true, "indirect_desc", 0, 0 },
    { VIRTIO_RING_F_EVENT_IDX, true, "event_idx", 0, 0 },
    { VIRTIO_F_VERSION_1, true, "version_1", 0, 0 },
    { VIRTIO_F_ACCESS_PLATFORM, false, "access_platform", 0, 0 },
    { VIRTIO_F_RING_PACKED, false, "packed", 0, 0 },
    { VIRTIO_F_IN_ORDER, false, "in_order", 0, 0 },
    { VIRTIO_F_ORDER_PLATFORM, false, "order_platform", 0, 0 },
    { VIRTIO_F_SR_IOV, false, "sr_iov", 0, 0 },
    { VIRTIO_F_NOTIFICATION_DATA_BIT, false, "notification_data", 0, 0 },
    { VIRTIO_F_NOTIF_CONFIG_DATA_BIT, false, "notif_config_data", 0, 0 },
    { VIRTIO_F_RING_RESET, false, "ring_reset", 0, 0 },
    { VIRTIO_F_ADMIN_VQ_BIT, false, "admin_vq", 0, 0 },
    { VIRTIO_NET_F_DEVICE_STATS_BIT, false, "device_stats", CTRL_VQ, 0 }, /* its commands go there: 5.1.6.5 */
    { VIRTIO_NET_F_HASH_TUNNEL_BIT, false, "hash_tunnel", CTRL_VQ, ANY_HASH },
    { VIRTIO_NET_F_VQ_NOTF_COAL_BIT, false, "vq_notf_coal", CTRL_VQ, 0 },
    { VIRTIO_NET_F_NOTF_COAL, false, "notf_coal", CTRL_VQ, 0 },
    { VIRTIO_NET_F_GUEST_USO4_BIT, true, "guest_uso4", BIT(GUEST_CSUM), 0 },
    { VIRTIO_NET_F_GUEST_USO6_BIT, true, "guest_uso6", BIT(GUEST_CSUM), 0 },
    { VIRTIO_NET_F_HOST_USO_BIT, true, "host_uso", BIT(CSUM), 0 },
    { VIRTIO_NET_F_HASH_REPORT, true, "hash_report", CTRL_VQ, 0 }, /* 5.1.4.1 */
    { VIRTIO_NET_F_GUEST_HDRLEN_BIT, true, "guest_hdrlen", 0, 0 }, /* see offload_segmentation() */
    { VIRTIO_NET_F_RSS, true, "rss", CTRL_VQ, 0 },
    { VIRTIO_NET_F_RSC_EXT, false, "rsc_ext", 0, ANY_HOST_TSO },
    { VIRTIO_NET_F_STANDBY, false, "standby", 0, 0 },
    { VIRTIO_NET_F_SPEED_DUPLEX, false, "speed_duplex", 0, 0 },
};

#define ROWS (sizeof(table) / sizeof(table[0]))

const struct feature *features_table(size_t *count)
{
    *count = ROWS;
    return table;
}

const struct feature *feature_by_name(const char *name, size_t len)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0)
            return &table[i];
    }
    return NULL;
}

/* Taking one bit out can orphan others, whatever their order, so it goes round until nothing changes; each round but
 * the last takes at least one of 64 bits. */
uint64_t features_closed(uint64_t set)
{
    uint64_t before;

    do {
        before = set;
        for (size_t i = 0; i < ROWS; i++) {
            const struct feature *f = &table[i];
            bool all = (set & f->needs_all) == f->needs_all;
            bool any = f->needs_any == 0 || (set & f->needs_any);

            if (!all || !any)
                set &= ~FEATURE_BIT(f->bit);
        }
    } while (set != before);
    return set;
}

struct feature_choice features_choose(uint64_t offered, const struct feature_request *request)
{
    struct feature_choice choice;
    uint64_t implemented = 0;

    for (size_t i = 0; i < ROWS; i++) {
        if (table[i].implemented)
            implemented |= FEATURE_BIT(table[i].bit);
    }
    choice.acknowledged = features_closed(offered & implemented & ~request->off);
    choice.missing = request->required & ~choice.acknowledged;
    choice.orphans = offered & ~features_closed(offered);
    return choice;
}

/* Appends a name to what features_format() has written so far; returns the new length, also when it did not fit. */
static size_t append(char *buf, size_t size, size_t at, const char *name)
{
    const char *comma = at ? "," : "";
    int n = snprintf(at < size ? buf + at : NULL, at < size ? size - at : 0, "%s%s", comma, name);

    return at + (n > 0 ? (size_t)n : 0);
}

size_t features_format(uint64_t set, char *buf, size_t size)
{
    char number[16];
    size_t at = 0;
    uint64_t rest = set;

    if (size)
        buf[0] = '\0';
    for (size_t i = 0; i < ROWS; i++) {
        if (set & FEATURE_BIT(table[i].bit))
            at = append(buf, size, at, table[i].name);
        rest &= ~FEATURE_BIT(table[i].bit);
    }
    for (unsigned bit = 0; bit < 64; bit++) {
        if (!(rest & FEATURE_BIT(bit)))
            continue;
        snprintf(number, sizeof(number), "bit%u", bit);
        at = append(buf, size, at, number);
    }
    return at ? at : append(buf, size, 0, "none");
}

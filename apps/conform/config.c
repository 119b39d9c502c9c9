/* Area config: the device's configuration space, and the PCI capabilities that say where everything lies. */
#include <stddef.h>
#include <string.h>
#include "apps/conform/areas.h"
#include "apps/conform/rig.h"

#define VALUE(field) value(offsetof(struct virtio_net_config, field), sizeof(((struct virtio_net_config *)0)->field))

/* A field of 1, 2 or 4 bytes; ones if it cannot be read. */
static uint32_t value(uint32_t offset, uint32_t width)
{
    uint32_t v = 0;
    return rig.transport.ops->config_read(&rig.transport, offset, &v, width) ? v : 0xffffffff;
}

static enum verdict range(const char *field, uint32_t got, uint32_t least, uint32_t most)
{
    tap_note(field, "%u", got);
    if (got >= least && got <= most)
        return PASS;
    tap_note("expected", "%u to %u", least, most);
    return FAIL;
}

static enum verdict station(void)
{
    uint8_t *m = rig.mac, any = 0;
    for (unsigned i = 0; i < 6; i++)
        any |= m[i];
    tap_note("mac", "%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5]);
    return any != 0 && (m[0] & 1) == 0 ? PASS : FAIL;
}

static enum verdict mtu(void)
{
    return range("mtu", VALUE(mtu), 68, 65535);
}

static enum verdict mtu_ipv6(void)
{
    return range("mtu", VALUE(mtu), 1280, 65535);
}

static enum verdict pairs(void)
{
    return range("max_virtqueue_pairs", VALUE(max_virtqueue_pairs), 1, 0x8000);
}

static enum verdict key_size(void)
{
    if (!rig_offers(VIRTIO_NET_F_RSS) && !rig_offers(VIRTIO_NET_F_HASH_REPORT))
        return tap_skip("not offered: rss, hash_report");
    return range("rss_max_key_size", VALUE(rss_max_key_size), 40, 255);
}

static enum verdict table_length(void)
{
    return range("rss_max_indirection_table_length", VALUE(rss_max_indirection_table_length), 128, 65535);
}

static enum verdict speed(void)
{
    uint32_t mbits = VALUE(speed);
    if (mbits != 0xffffffff && mbits > 0x7fffffff)
        return tap_fail("0 to 0x7fffffff, or 0xffffffff", "speed 0x%x", mbits);
    return PASS;
}

static enum verdict duplex(void)
{
    uint32_t got = VALUE(duplex);
    return got <= 1 || got == 0xff ? PASS : tap_fail("0, 1 or 0xff", "duplex 0x%x", got);
}

/* All fields that the offered features make there are. Returns bytes. */
static uint32_t copy_config(uint8_t to[64])
{
    uint32_t n = rig.transport.config_length < 64 ? rig.transport.config_length : 64;
    return rig.transport.ops->config_read(&rig.transport, 0, to, n) ? n : 0;
}

static enum verdict before_features_ok(void)
{
    uint8_t early[64], late[64];
    if (!virtio_start(&rig.transport, &rig.error))
        return rig_failed();
    uint32_t n = copy_config(early);
    if (!rig_up(&(struct rig_options){ .features = rig_usable() }))
        return rig_failed();
    copy_config(late);
    for (uint32_t i = 0; i < n && i < 12; i++)       /* up to mtu: what a running device does not change by itself, */
        if (early[i] != late[i] && i != 6 && i != 7) /* but for status */
            return tap_fail("the same before and after FEATURES_OK", "byte %u: 0x%x, then 0x%x", i, early[i], late[i]);
    return n > 0 ? PASS : tap_fail("a readable configuration", "config_generation does not stand still");
}

/* What one generation shows is one state: many readings between two equal generations are alike. */
static enum verdict generation(void)
{
    uint8_t first[64], again[64];
    if (!rig_up(&(struct rig_options){ .features = rig_usable() }))
        return rig_failed();
    uint8_t before = mmio_read8(RIG_COMMON(config_generation));
    uint32_t n = copy_config(first);
    for (unsigned i = 0; i < 50; i++) {
        copy_config(again);
        if (memcmp(first, again, n) != 0 && mmio_read8(RIG_COMMON(config_generation)) == before)
            return tap_fail("another config_generation", "other values of the configuration, generation %u", before);
    }
    return PASS;
}

static enum verdict mtu_kept(void)
{
    uint32_t first = VALUE(mtu);
    for (unsigned i = 0; i < 3; i++) {
        if (!rig_up(&(struct rig_options){ .features = i % 2 ? rig_usable() : 0 }))
            return rig_failed();
        if (VALUE(mtu) != first)
            return tap_fail("the same", "mtu %u, before %u", VALUE(mtu), first);
    }
    return PASS;
}

/* ---- PCI ---- */

#define CAP(at, field, width) pci_read(&rig.pci, (uint16_t)((at) + offsetof(struct virtio_pci_cap, field)), width)

/* The first capability of that type; 0: there is none. */
static uint8_t find_cap(unsigned type)
{
    uint8_t at = 0;
    for (unsigned n = 0; n < 48 && (at = pci_find_capability(&rig.pci, PCI_CAP_VENDOR, at)) != 0; n++)
        if (CAP(at, cfg_type, 1) == type)
            return at;
    return 0;
}

static enum verdict identity(void)
{
    const struct pci_device *p = &rig.pci;
    bool old = p->device == 0x1000;
    tap_note("device", "%04x:%04x revision %u, subsystem %04x", p->vendor, p->device, p->revision, p->subsystem);
    return p->vendor == 0x1af4 && (p->device == 0x1041 || old) ? PASS : FAIL;
}

static enum verdict aligned(void)
{
    static const uint8_t align[] = { 0, 4, 2, 1, 4 };
    for (unsigned type = VIRTIO_PCI_CAP_COMMON_CFG; type <= VIRTIO_PCI_CAP_DEVICE_CFG; type++) {
        uint8_t at = find_cap(type);
        if (at == 0)
            return tap_fail("a capability of each type", "none of type %u", type);
        uint32_t offset = CAP(at, offset, 4), length = CAP(at, length, 4);
        if (offset % align[type] != 0)
            return tap_fail("a multiple of 4 (notifications: of 2)", "offset 0x%x of type %u", offset, type);
        if (CAP(at, bar, 1) <= 5 && (uint64_t)offset + length > rig.pci.bar[CAP(at, bar, 1)].size)
            return tap_fail("it lies within its BAR", "type %u, offset 0x%x, length 0x%x", type, offset, length);
    }
    return PASS;
}

static enum verdict multiplier(void)
{
    uint32_t m = rig.transport.notify_multiplier;
    tap_note("notify_off_multiplier", "%u", m);
    return m % 2 == 0 && (m & (m - 1)) == 0 ? PASS : FAIL;
}

/* num_queues, read through PCI configuration space. */
static enum verdict window(void)
{
    uint8_t at = find_cap(VIRTIO_PCI_CAP_PCI_CFG), common = find_cap(VIRTIO_PCI_CAP_COMMON_CFG);
    if (at == 0)
        return tap_fail("a VIRTIO_PCI_CAP_PCI_CFG capability", "none");
    uint16_t there = mmio_read16(RIG_COMMON(num_queues));
    pci_write(&rig.pci, (uint16_t)(at + offsetof(struct virtio_pci_cap, bar)), 1, CAP(common, bar, 1));
    pci_write(&rig.pci, (uint16_t)(at + offsetof(struct virtio_pci_cap, offset)), 4,
              CAP(common, offset, 4) + (uint32_t)offsetof(struct virtio_pci_common_cfg, num_queues));
    pci_write(&rig.pci, (uint16_t)(at + offsetof(struct virtio_pci_cap, length)), 4, 2);
    uint32_t got = pci_read(&rig.pci, (uint16_t)(at + sizeof(struct virtio_pci_cap)), 2);
    return got == there ? PASS : tap_fail("what the BAR shows", "num_queues %u, in the BAR %u", got, there);
}

static const struct check checks[] = {
    { "4.1.2.1", "vendor and device are those of a network device", false, 0, identity },
    { "4.1.4.3.1", "each structure has a capability, aligned and within its BAR", false, 0, aligned },
    { "4.1.4.4.1", "notify_off_multiplier is 0 or an even power of two", false, 0, multiplier },
    { "4.1.4.9.1", "registers can be read through PCI configuration space", false, 0, window },
    { "2.5.2", "the configuration can be read before FEATURES_OK", false, 0, before_features_ok },
    { "4.1.4.3.1", "the configuration changes with config_generation only", false, 0, generation },
    { "5.1.4", "mac is an address that a station can have", false, NEEDS(VIRTIO_NET_F_MAC), station },
    { "5.1.4.1", "mtu is at least 68", false, NEEDS(VIRTIO_NET_F_MTU), mtu },
    { "5.1.4.1", "mtu is enough for IPv6", false, NEEDS(VIRTIO_NET_F_MTU), mtu_ipv6 },
    { "5.1.4.1", "mtu stays what it is", false, NEEDS(VIRTIO_NET_F_MTU), mtu_kept },
    { "5.1.4.1", "max_virtqueue_pairs is from 1 to 0x8000", false, NEEDS(VIRTIO_NET_F_MQ), pairs },
    { "5.1.4.1", "rss_max_key_size is at least 40", false, 0, key_size },
    { "5.1.4.1", "rss_max_indirection_table_length is at least 128", false, NEEDS(VIRTIO_NET_F_RSS), table_length },
    { "5.1.4.1", "speed is a speed or unknown", false, NEEDS(VIRTIO_NET_F_SPEED_DUPLEX), speed },
    { "5.1.4.1", "duplex is full, half or unknown", false, NEEDS(VIRTIO_NET_F_SPEED_DUPLEX), duplex },
};

const struct area area_config = AREA("config", checks);

/* Area features: what is offered, and what comes to stand when a driver chooses. */
#include <stddef.h>
#include "apps/conform/areas.h"
#include "apps/conform/rig.h"

static void note_features(const char *key, uint64_t set)
{
    char names[200];
    features_format(set, names, sizeof names);
    tap_note(key, "%s", names);
}

static uint64_t read_features(bool driver, uint32_t select)
{
    if (driver) {
        mmio_write32(RIG_COMMON(guest_feature_select), select);
        return mmio_read32(RIG_COMMON(guest_feature));
    }
    mmio_write32(RIG_COMMON(device_feature_select), select);
    return mmio_read32(RIG_COMMON(device_feature));
}

static enum verdict version_1(void)
{
    return rig_offers(VIRTIO_F_VERSION_1) ? PASS : tap_fail("version_1", "0x%llx", (unsigned long long)rig.offered);
}

static enum verdict dependencies(void)
{
    uint64_t orphans = rig.offered & ~features_closed(rig.offered);
    if (orphans == 0)
        return PASS;
    note_features("without what they need", orphans);
    return FAIL;
}

static enum verdict known_bits(void)
{
    size_t count;
    const struct feature *table = features_table(&count);
    uint64_t unknown = rig.offered;
    for (size_t i = 0; i < count; i++)
        unknown &= ~FEATURE_BIT(table[i].bit);
    if (unknown == 0)
        return PASS;
    note_features("got", unknown);
    return FAIL;
}

static enum verdict beyond_the_last(void)
{
    static const uint32_t select[] = { 4, 0x100, 0x10000000, 0xffffffff };
    for (unsigned i = 0; i < sizeof select / sizeof *select; i++) {
        uint32_t bits = (uint32_t)read_features(false, select[i]);
        if (bits != 0)
            return tap_fail("0", "device_feature 0x%x with device_feature_select 0x%x", bits, select[i]);
    }
    return PASS;
}

static enum verdict same_again(void)
{
    for (unsigned i = 0; i < 3; i++) {
        if (!rig_negotiate(i == 1 ? rig_usable() : rig_always()))
            return rig_failed();
        uint64_t now = rig.transport.ops->features(&rig.transport);
        if (now != rig.offered) {
            tap_note("before", "0x%llx", (unsigned long long)rig.offered);
            return tap_fail("the same", "0x%llx", (unsigned long long)now);
        }
    }
    return PASS;
}

static enum verdict read_back(void)
{
    if (!rig_negotiate(rig_usable() | rig_always()))
        return rig_failed();
    uint64_t got = read_features(true, 0) | read_features(true, 1) << 32, want = rig_usable() | rig_always();
    if (got == want)
        return PASS;
    tap_note("written", "0x%llx", (unsigned long long)want);
    return tap_fail("what was written", "0x%llx", (unsigned long long)got);
}

static enum verdict least(void)
{
    return rig_negotiate(rig_always()) ? PASS : rig_failed();
}

static enum verdict everything(void)
{
    return rig_negotiate(features_closed(rig.offered)) ? PASS : rig_failed();
}

/* The bit with what it needs, of what is offered. */
static uint64_t with_needs(const struct feature *table, size_t count, uint64_t set)
{
    for (uint64_t before = 0; before != set;) {
        before = set;
        for (size_t i = 0; i < count; i++) {
            if (!(set & FEATURE_BIT(table[i].bit)))
                continue;
            set |= table[i].needs_all;
            uint64_t any = table[i].needs_any & rig.offered;
            if (any != 0 && !(set & any))
                set |= any & -any;
        }
    }
    return set;
}

static enum verdict each_alone(void)
{
    size_t count;
    const struct feature *table = features_table(&count);
    for (size_t i = 0; i < count; i++) {
        uint64_t set = with_needs(table, count, FEATURE_BIT(table[i].bit) & rig.offered) | rig_always();
        if (set == features_closed(set & rig.offered) && !rig_negotiate(set)) {
            tap_note("feature", "%s", table[i].name);
            return rig_failed();
        }
    }
    return PASS;
}

static const struct check checks[] = {
    { "6.2", "the device offers VIRTIO_F_VERSION_1", false, 0, version_1 },
    { "2.2.2", "no feature is offered without those it depends on", false, 0, dependencies },
    { "2.2.2", "no reserved or undefined feature bit is offered", false, 0, known_bits },
    { "4.1.4.3.1", "device_feature is 0 behind the last feature bits", false, 0, beyond_the_last },
    { "2.2.2", "the same features are offered after each reset", false, 0, same_again },
    { "4.1.4.3.1", "driver_feature shows what was written", false, 0, read_back },
    { "2.2.2", "the least a driver can accept is accepted", false, 0, least },
    { "2.2.2", "all that is offered can be accepted together", false, 0, everything },
    { "2.2.2", "each feature can be accepted alone, with what it depends on", false, 0, each_alone },
};

const struct area area_features = AREA("features", checks);

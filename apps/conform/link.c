/* The link, announcements, the MTU: what changes while the device runs (virtio 1.3, 5.1.4, 2.5.3). Somebody outside has
 * to change them: what is wanted is said on the console (`# please: ...`). */
#include <linux/virtio_pci.h>
#include "apps/conform/areas.h"
#include "apps/conform/peer.h"
#include "apps/conform/rig.h"
#include "kernel/console.h"
#include "kernel/x86.h"

#define HAND_MS 5000u /* so long somebody may take to do what was asked for, */
#define LATE_MS 500u  /* and so long an interrupt about it */

static uint16_t status(void)
{
    uint16_t value = 0;
    rig.transport.ops->config_read(&rig.transport, offsetof(struct virtio_net_config, status), &value, 2);
    return value;
}

static uint8_t generation(void)
{
    return mmio_read8(rig.transport.common + offsetof(struct virtio_pci_common_cfg, config_generation));
}

/* Asks for `what`, and waits for the bit of status to be as `set` says. */
static bool await(const char *what, uint16_t bit, bool set)
{
    console_plain("# please: %s", what);
    struct rig_wait w = rig_for(HAND_MS);
    while (((status() & bit) != 0) != set)
        if (!rig_waiting(&w))
            return false;
    return true;
}

/* The same, with what has to come with each change: another generation, and an interrupt. */
static enum verdict change(const char *what, uint16_t bit, bool set)
{
    uint32_t before = rig_config_interrupts();
    uint8_t old = generation();
    if (!await(what, bit, set))
        return tap_skip("nobody did it: %s", what);
    uint8_t now = generation();
    tap_note("status", "0x%x", status());
    struct rig_wait w = rig_for(LATE_MS);
    while (rig_config_interrupts() == before)
        if (!rig_waiting(&w))
            return tap_fail("an interrupt of the configuration", "none in %u ms", LATE_MS);
    return now != old ? PASS : tap_fail("another config_generation", "%u before and after", old);
}

static bool up(void)
{
    return rig_up(&(struct rig_options){ .features = rig_usable() });
}

static bool taken_down; /* somebody does what is asked for */

static enum verdict check_down(void)
{
    if (!up())
        return rig_failed();
    if (!(status() & VIRTIO_NET_S_LINK_UP))
        return tap_fail("the link up at first", "status 0x%x", status());
    enum verdict v = change("link down", VIRTIO_NET_S_LINK_UP, false);
    taken_down = !(status() & VIRTIO_NET_S_LINK_UP);
    return v;
}

/* The device was not reset since it went down. */
static enum verdict check_up(void)
{
    return taken_down ? change("link up", VIRTIO_NET_S_LINK_UP, true) : tap_skip("nobody did it: link down");
}

static enum verdict check_traffic_after(void)
{
    if (!taken_down)
        return tap_skip("nobody did it: link down");
    return peer_works(PEER_PAYLOAD);
}

static enum verdict check_reset_while_down(void)
{
    if (!taken_down || !await("link down", VIRTIO_NET_S_LINK_UP, false))
        return tap_skip("nobody did it: link down");
    bool again = up();
    bool still_down = again && !(status() & VIRTIO_NET_S_LINK_UP);
    bool back = again && await("link up", VIRTIO_NET_S_LINK_UP, true);
    if (!again)
        return rig_failed();
    tap_note("after the reset", "link %s", still_down ? "down" : "up");
    return back ? peer_works(PEER_PAYLOAD) : tap_fail("the link up in the end", "status 0x%x", status());
}

static enum verdict check_announce(void)
{
    if (!up())
        return rig_failed();
    enum verdict v = change("announce", VIRTIO_NET_S_ANNOUNCE, true);
    if (v != PASS)
        return v;
    enum control_result r = control_announce_ack(&rig.control);
    if (r != CONTROL_OK)
        return tap_fail("ANNOUNCE_ACK answered with OK", "%s", control_result_text(r));
    return status() & VIRTIO_NET_S_ANNOUNCE ? tap_fail("status without ANNOUNCE", "0x%x", status()) : PASS;
}

/* A whole frame of the MTU, both ways. */
static enum verdict check_mtu(void)
{
    uint16_t mtu = 0;
    if (!rig_up(&(struct rig_options){ .features = rig_usable(), .buffer = 16384 }))
        return rig_failed();
    rig.transport.ops->config_read(&rig.transport, offsetof(struct virtio_net_config, mtu), &mtu, 2);
    tap_note("mtu", "%u", mtu);
    if (mtu < 68 || mtu > 9000)
        return tap_skip("an MTU of 68 to 9,000 is tried");
    return peer_works(mtu - 28u); /* less the headers of IPv4 and ICMP */
}

#define STATUS NEEDS(VIRTIO_NET_F_STATUS)

static const struct check checks[] = {
    { "2.5.3", "a link that goes down changes status and generation, and interrupts", false, STATUS, check_down },
    { "2.5.3", "a link that comes up changes status and generation, and interrupts", false, STATUS, check_up },
    { "5.1.4", "frames go both ways after the link was down", true, STATUS, check_traffic_after },
    { "2.4.1", "a device that is reset while its link is down works again", true, STATUS, check_reset_while_down },
    { "5.1.6.5.4.2", "ANNOUNCE comes with an interrupt, and goes when acknowledged", false,
      NEEDS(VIRTIO_NET_F_GUEST_ANNOUNCE), check_announce },
    { "5.1.4.1", "a frame as long as the MTU goes both ways", true, NEEDS(VIRTIO_NET_F_MTU), check_mtu },
};

const struct area area_link = AREA("link", checks);

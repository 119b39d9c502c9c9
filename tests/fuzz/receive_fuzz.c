/* A device that writes any virtio-net headers, lengths and numbers of buffers. What the driver makes of it is a frame
 * that lies within the buffers' written bytes, of flags only DATA_VALID where it was not negotiated; and no buffer is
 * lost or handed out twice. */
#include "tests/fuzz/fuzz.h"
#include "tests/unit/net_rig.h"

#define TSO4  FEATURE_BIT(VIRTIO_NET_F_GUEST_TSO4)
#define KNOWN (VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID | VIRTNET_FRAME_LARGE | VIRTNET_FRAME_UDP)

static void check_frame(const struct virtnet_frame *frame, uint64_t features)
{
    uint64_t bytes = 0;
    must(frame->count >= 1 && frame->count <= VIRTNET_FRAME_PIECES && (frame->count == 1 || features & MRG));
    for (uint16_t i = 0; i < frame->count; i++) {
        must(frame->length[i] <= net_rig.pair->pool.data_size && frame->length[i] > 0);
        bytes += frame->length[i];
    }
    must(bytes == frame->bytes + net_rig.pair->header && frame->bytes >= ETH_HLEN);
    must((frame->flags & ~KNOWN) == 0 && (features & CSUM || !(frame->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)));
    must(!(frame->flags & VIRTNET_FRAME_LARGE) || (features & TSO4));
}

static void receive(uint64_t features)
{
    struct virtnet_frame frame;
    while (virtnet_receive(net_rig.pair, &frame)) {
        check_frame(&frame, features);
        for (uint16_t i = 0; i < frame.count; i++)
            virtnet_release(frame.buffer[i]);
    }
    virtnet_refill(net_rig.pair);
    net_rig_flush();
    net_rig_check_buffers();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, data + size };
    uint8_t how = take8(&in);
    uint64_t features = (how & 1 ? MRG : 0) | (how & 2 ? CSUM : 0) | (how & 4 ? HASH : 0) | (how & 8 ? EVENT : 0);
    if ((how & 16) && (features & CSUM) && (features & MRG))
        features |= TSO4;
    net_rig_open(&(struct net_config){ .rx_size = 16, .tx_size = 4, .features = features });
    net_rig_flush();
    while (more(&in)) {
        uint8_t bytes[64];
        uint16_t claimed = take16(&in);
        uint8_t n = take8(&in) % sizeof bytes;
        for (uint8_t i = 0; i < n; i++)
            bytes[i] = take8(&in);
        if (claimed == 0xffff || !net_rig_write_raw(bytes, n, claimed & 0x1fff)) {
            fake_device_publish(&net_rig.rx);
            receive(features);
        }
    }
    fake_device_publish(&net_rig.rx);
    receive(features);
    net_rig_close();
    return 0;
}

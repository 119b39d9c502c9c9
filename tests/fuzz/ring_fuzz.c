/* The split ring with a device that writes whatever it likes, whenever it likes, into the used ring: no buffer comes
 * back that is not with the device, none twice, no more bytes than it has room for; and every descriptor is accounted
 * for. */
#include "drivers/virtio/ring.h"
#include "tests/fuzz/fuzz.h"

#define SIZE     8u
#define INDIRECT 3u

static _Alignas(4096) uint8_t memory[8192];
static struct {
    bool with_device;
    uint32_t writable;
} token[256];

static void *add(struct virtqueue *vq, uint8_t number, uint8_t shape)
{
    struct virtq_buf piece[12];
    uint16_t out = shape & 3, in = shape >> 2 & 7;
    uint32_t writable = 0;
    for (uint16_t i = 0; i < out + in; i++) {
        piece[i] = (struct virtq_buf){ 0x1000u * (i + 1u), (uint32_t)number * 3 + i };
        writable += i >= out ? piece[i].len : 0;
    }
    if (token[number].with_device)
        return NULL;
    uint16_t before = virtqueue_capacity(vq);
    int said = virtqueue_add(vq, piece, out, in, &token[number]);
    must(said == VIRTQ_OK || virtqueue_capacity(vq) == before);
    if (said != VIRTQ_OK)
        return NULL;
    must(out + in > 0 && out + in <= (int)SIZE && virtqueue_capacity(vq) < before);
    token[number].with_device = true;
    token[number].writable = writable;
    return &token[number];
}

static bool pop(struct virtqueue *vq)
{
    uint32_t len = 0;
    void *got = virtqueue_pop(vq, &len);
    if (got == NULL)
        return false;
    size_t i = ((char *)got - (char *)token) / sizeof *token;
    must(i < 256 && token[i].with_device && len <= token[i].writable);
    token[i].with_device = false;
    return true;
}

static unsigned outstanding(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < 256; i++)
        n += token[i].with_device;
    return n;
}

/* The device writes up to 8 bytes anywhere behind the available ring's entries: the used ring, avail_event. */
static void scribble(struct virtqueue *vq, struct input *in)
{
    uint8_t *used = (uint8_t *)vq->used;
    uint32_t room = (uint32_t)(6 + sizeof(struct vring_used_elem) * SIZE), at = take8(in) % room;
    for (uint8_t n = take8(in) & 7; n > 0 && at < room; n--)
        used[at++] = take8(in);
}

/* One entry as it may be, and the index behind it. */
static void use(struct virtqueue *vq, struct input *in)
{
    struct vring_used_elem *entry = &vq->used->ring[vq->used->idx % SIZE];
    entry->id = take8(in) % (SIZE + 1);
    entry->len = take8(in);
    vq->used->idx++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, data + size };
    struct virtqueue vq;
    uint8_t how = take8(&in);
    const struct virtqueue_config config = { 0, SIZE, how & 1, how & 2 ? INDIRECT : 0 };
    memset(token, 0, sizeof token);
    must(virtqueue_split_bytes(SIZE, INDIRECT) <= sizeof memory);
    must(virtqueue_split_init(&vq, &config, memory) == VIRTQ_OK);
    for (uint8_t number = 0; more(&in); number++) {
        uint8_t what = take8(&in);
        switch (what & 7) {
        case 0:
        case 1:
            add(&vq, number, what >> 3);
            break;
        case 2:
            virtqueue_publish(&vq);
            break;
        case 3:
            pop(&vq);
            break;
        case 4:
            scribble(&vq, &in);
            break;
        case 5:
            use(&vq, &in);
            break;
        case 6:
            virtqueue_disable_callbacks(&vq);
            break;
        default:
            virtqueue_enable_callbacks_after(&vq, (uint16_t)(what >> 3));
        }
        must(vq.in_flight == outstanding() && virtqueue_capacity(&vq) <= SIZE);
    }
    for (unsigned n = 0; pop(&vq); n++)
        must(n < 256);
    unsigned left = 0;
    while (virtqueue_detach(&vq) != NULL)
        left++;
    must(left == outstanding() && virtqueue_capacity(&vq) == SIZE);
    return 0;
}

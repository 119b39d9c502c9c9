/* Any frame: which core it belongs to, and what is asked of the device for it, is worked out from the frame's own
 * bytes. */
#include "net/offload.h"
#include "net/rss.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t key[RSS_KEY_BYTES] = { 0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b };
    static struct rss rss;
    static bool made;
    if (!made)
        rss_init(&rss, key, 4);
    made = true;
    uint8_t *exact = malloc(size); /* of just this size: who reads beyond is seen */
    if (size > 0)
        memcpy(exact, data, size);
    struct rss_result found = rss_parse(&rss, exact, (uint32_t)size);
    struct rss_result again = rss_parse(&rss, exact, (uint32_t)size);
    must(found.kind == again.kind && found.hash == again.hash && rss_owner(&rss, found.hash) < 4);
    struct virtio_net_hdr_v1 header = { 0 };
    if (offload_checksum(&header, exact, (uint32_t)size)) {
        must(header.flags == VIRTIO_NET_HDR_F_NEEDS_CSUM);
        must((uint32_t)header.csum_start + header.csum_offset + 2 <= size);
    }
    free(exact);
    return 0;
}

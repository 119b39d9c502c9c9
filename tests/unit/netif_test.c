/* lwIP's interface over a queue pair with a fake device behind it: what of a received frame gets to lwIP, and what
 * becomes of a frame that lwIP sends. The netif's input is the test's. */
#include "tests/unit/net_rig.h"

#include "kernel/core.h"
#include "kernel/public.h"
#include "kernel/memory.h"
#include "kernel/random.h"
#include "kernel/smp.h"
#include "lwip/etharp.h"
#include "lwip/init.h"
#include "lwip/netif.h"
#include "net/buffer.h"
#include "net/ether.h"
#include "net/netif.h"
#include "net/steer.h"

#define TSO4      FEATURE_BIT(VIRTIO_NET_F_GUEST_TSO4)
#define HOST_TSO4 FEATURE_BIT(VIRTIO_NET_F_HOST_TSO4)
#define HOST_TSO6 FEATURE_BIT(VIRTIO_NET_F_HOST_TSO6)
#define HOST_CSUM FEATURE_BIT(VIRTIO_NET_F_CSUM)

static struct netif *netif;
static struct pbuf *got; /* the last packet that lwIP was given */
static unsigned inputs;
static bool refuse;

/* ---- what net/netif.c is linked with ---- */

bool steer_frame(const struct virtnet_frame *frame, uint32_t header)
{
    (void)frame, (void)header;
    return false;
}

bool steer_swallows(const struct pbuf *p)
{
    (void)p;
    return false;
}

void steer_tell_link(bool up)
{
    (void)up;
}

const struct shared *core_shared(void)
{
    fail();
    return NULL;
}

void core_wake(const struct shared *shared, unsigned core)
{
    (void)shared, (void)core;
}

bool virtnet_link_up(struct virtnet *net)
{
    (void)net;
    return true;
}

/* In place of net/ether.c. */
err_t ether_input(struct pbuf *p, struct netif *n)
{
    (void)n;
    inputs++;
    if (refuse)
        return ERR_BUF;
    got = p;
    return ERR_OK;
}

err_t ether_output4(struct netif *n, struct pbuf *p, const ip4_addr_t *to)
{
    return etharp_output(n, p, to);
}

static void open_netif(uint16_t rx, uint16_t tx, uint64_t features)
{
    static bool started;
    if (!started)
        lwip_init();
    started = true;
    net_rig_open(&(struct net_config){ .rx_size = rx, .tx_size = tx, .features = features });
    netif = net_netif_add(net_rig.pair);
    assert_non_null(netif);
    inputs = 0;
    refuse = false;
    got = NULL;
}

static int close_netif(void **state)
{
    (void)state;
    if (got != NULL)
        pbuf_free(got);
    got = NULL;
    if (netif != NULL) {
        netif_remove(netif);
        net_rig_close();
    }
    netif = NULL;
    return 0;
}

static void check_all_home(void)
{
    virtnet_refill(net_rig.pair);
    net_rig_flush();
    net_rig_check_buffers();
    assert_int_equal(net_rig_buffers(), net_rig.pair->rx.size);
}

/* ---- receiving ---- */

static void check_contents(const struct net_frame *f)
{
    static uint8_t bytes[65536];
    uint32_t links = 0;
    for (const struct pbuf *p = got; p != NULL; p = p->next, links++)
        check(p->len > 0 && (p->next == NULL ? p->tot_len == p->len : p->tot_len == p->len + p->next->tot_len),
              "link %u", links);
    assert_int_equal(got->tot_len, f->bytes);
    assert_int_equal(pbuf_copy_partial(got, bytes, got->tot_len, 0), f->bytes);
    for (uint32_t i = 0; i < f->bytes; i++)
        if (bytes[i] != net_rig_byte(f->seed, i))
            check(false, "byte %u of %u", i, f->bytes);
}

/* Up to 65,535 bytes come whole, as a chain over the ring's own buffers; longer ones are dropped and counted. */
static void test_lengths(void **state)
{
    static const uint64_t sets[] = { MRG | CSUM | TSO4, MRG | CSUM | TSO4 | HASH, CSUM | TSO4, CSUM | TSO4 | HASH };

    for (unsigned i = 0; i < COUNT_OF(sets); i++) {
        open_netif(32, 16, sets[i]);
        unsigned expected = 0, long_ones = 0;
        struct netif_stats before = *net_netif_stats(netif);
        for (uint32_t bytes = 14; bytes <= (i < 2 ? 68000u : 65550u); bytes += bytes < 64000 || bytes > 65600 ? 1499
                                                                               : bytes < 65500                ? 37
                                                                                                              : 1) {
            struct net_frame f = { .header.hdr = { .gso_type = VIRTIO_NET_HDR_GSO_TCPV4, .gso_size = 1448 },
                                   .bytes = bytes,
                                   .seed = 9 };
            assert_true(net_rig_write(&f));
            fake_device_publish(&net_rig.rx);
            assert_int_equal(net_netif_receive(netif, 64), 1);
            expected += bytes <= 65535;
            long_ones += bytes > 65535;
            assert_int_equal(inputs, expected);
            assert_int_equal(net_netif_stats(netif)->rx_too_long - before.rx_too_long, long_ones);
            assert_int_equal(net_netif_stats(netif)->rx_copied, before.rx_copied);
            if (got != NULL) {
                assert_int_equal(got->gso_size, 0); /* the bytes are no TCP: test_marks */
                check_contents(&f);
                pbuf_free(got);
                got = NULL;
            }
            check_all_home();
        }
        assert_true(long_ones >= 15);
        close_netif(state);
    }
}

/* Which are marked as several: TCP that the device says is, and nothing else; by the flags, which checksums lwIP looks
 * at. */
static void test_marks(void **state)
{
    static const struct {
        uint16_t type;
        uint8_t at, protocol; /* where the IP header has it, and what it says */
        bool tcp;
    } kinds[] = { { 0x0800, 9, 6, true },   { 0x0800, 9, 17, false }, { 0x0800, 9, 1, false }, { 0x86dd, 6, 6, true },
                  { 0x86dd, 6, 17, false }, { 0x86dd, 9, 6, false },  { 0x0806, 9, 6, false } };
    static uint8_t bytes[VIRTNET_HEADER + 3000];
    open_netif(32, 16, MRG | CSUM | TSO4);
    uint16_t all = netif->chksum_flags, checks = NETIF_CHECKSUM_CHECK_TCP | NETIF_CHECKSUM_CHECK_UDP;
    for (unsigned i = 0; i < 8 * COUNT_OF(kinds); i++) {
        struct virtio_net_hdr_v1 h = { .flags = (i & 1 ? VIRTIO_NET_HDR_F_NEEDS_CSUM : 0) |
                                                (i & 2 ? VIRTIO_NET_HDR_F_DATA_VALID : 0),
                                       .gso_type = i & 4 ? VIRTIO_NET_HDR_GSO_TCPV4 : 0,
                                       .gso_size = 1000,
                                       .csum_start = 34,
                                       .csum_offset = 16,
                                       .num_buffers = 1 };
        uint8_t *frame = bytes + VIRTNET_HEADER;
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes, &h, sizeof h);
        frame[12] = (uint8_t)(kinds[i / 8].type >> 8);
        frame[13] = (uint8_t)kinds[i / 8].type;
        frame[14 + kinds[i / 8].at] = kinds[i / 8].protocol;
        assert_true(net_rig_write_raw(bytes, sizeof bytes, sizeof bytes));
        fake_device_publish(&net_rig.rx);
        net_netif_receive(netif, 64);
        check((got->gso_size != 0) == (kinds[i / 8].tcp && (i & 4) != 0), "kind %u, flags %u", i / 8, i & 7);
        assert_int_equal(netif->chksum_flags, i & 3 ? all & ~checks : all);
        assert_int_equal(netif->chksum_flags & NETIF_CHECKSUM_CHECK_IP, NETIF_CHECKSUM_CHECK_IP);
        pbuf_free(got);
        got = NULL;
        virtnet_refill(net_rig.pair);
        net_rig_flush();
    }
    close_netif(state);
}

/* When lwIP refuses a chain, or keeps so many that buffers run low, none is lost. */
static void test_kept_and_refused(void **state)
{
    struct pbuf *kept[200];
    unsigned count = 0;
    open_netif(32, 16, MRG | CSUM | TSO4);
    struct net_frame f = { .header.hdr = { .gso_type = VIRTIO_NET_HDR_GSO_TCPV4, .gso_size = 1448 },
                           .bytes = 60000,
                           .seed = 3 };
    uint64_t copied = net_netif_stats(netif)->rx_copied;
    while (count < COUNT_OF(kept)) {
        assert_true(net_rig_write(&f));
        fake_device_publish(&net_rig.rx);
        refuse = count % 5 == 4;
        net_netif_receive(netif, 64);
        net_rig_flush();
        kept[count] = refuse ? NULL : got;
        if (!refuse)
            check_contents(&f);
        got = NULL;
        count++;
    }
    assert_true(net_netif_stats(netif)->rx_copied > copied);
    assert_int_equal(net_rig_buffers(), 32); /* a hoarder does not make it deaf */
    while (count-- > 0)
        if (kept[count] != NULL)
            pbuf_free(kept[count]);
    check_all_home();
    close_netif(state);
}

/* ---- sending ---- */

/* A TCP segment with its headers from Ethernet's on; the data in pieces of `piece` bytes, or behind the headers (0). */
static struct pbuf *make_segment(bool six, uint32_t data, uint32_t piece, uint16_t gso_size)
{
    uint32_t ip = six ? 40 : 20, headers = 14 + ip + 32;
    struct pbuf *p = pbuf_alloc(PBUF_RAW, (u16_t)(headers + (piece ? 0 : data)), PBUF_RAM);
    uint8_t *b = p->payload;
    memset(b, 0, headers);
    b[12] = six ? 0x86 : 8;
    b[13] = six ? 0xdd : 0;
    b[14] = six ? 0x60 : 0x45;
    uint32_t length = (six ? 0 : 20) + 32 + data;
    b[six ? 18 : 16] = (uint8_t)(length >> 8);
    b[six ? 19 : 17] = (uint8_t)length;
    b[six ? 20 : 23] = 6;
    b[14 + ip + 12] = 0x80;
    for (uint32_t i = headers; i < p->len; i++)
        b[i] = net_rig_byte(5, i);
    for (uint32_t at = 0; piece != 0 && at < data; at += piece) {
        uint32_t n = data - at < piece ? data - at : piece;
        struct pbuf *q = pbuf_alloc(PBUF_RAW, (u16_t)n, PBUF_RAM);
        for (uint32_t i = 0; i < n; i++)
            ((uint8_t *)q->payload)[i] = net_rig_byte(5, headers + at + i);
        pbuf_cat(p, q);
    }
    p->gso_size = gso_size;
    return p;
}

/* The device returns the frame that it has: nobody but the test keeps the packet then. */
static void return_sent(struct pbuf *p)
{
    fake_device_return(&net_rig.tx, 0, 0);
    fake_device_publish(&net_rig.tx);
    net_netif_reclaim(netif);
    assert_int_equal(p->ref, 1);
    pbuf_free(p);
}

/* What the device gets: the header asks for the segmentation, the bytes are the segment's, in no more pieces than the
 * ring may take. */
static void test_segments(void **state)
{
    static const uint32_t pieces[] = { 0, 60000, 1460, 3000, 300, 64 };
    static const uint16_t rings[] = { 2, 4, 16, 256 };

    for (unsigned n = 0; n < COUNT_OF(rings) * COUNT_OF(pieces) * 4; n++) {
        bool six = n & 1;
        uint32_t headers = 14 + (six ? 40 : 20) + 32, data = 60000, piece = pieces[n / 4 % COUNT_OF(pieces)];
        open_netif(16, rings[n / 4 / COUNT_OF(pieces)], MRG | HOST_CSUM | HOST_TSO4 | HOST_TSO6 | (n & 2 ? INDIR : 0));
        struct pbuf *p = make_segment(six, data, piece, 1448);
        assert_int_equal(netif->linkoutput(netif, p), ERR_OK);
        net_rig_flush();
        struct fake_chain chain;
        assert_true(fake_device_take(&net_rig.tx, &chain));
        const struct virtio_net_hdr_v1 *h = (const void *)(uintptr_t)chain.piece[0].addr;
        assert_int_equal(h->flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
        assert_int_equal(h->gso_type, six ? VIRTIO_NET_HDR_GSO_TCPV6 : VIRTIO_NET_HDR_GSO_TCPV4);
        assert_int_equal(h->gso_size, 1448);
        assert_int_equal(h->hdr_len, headers);
        assert_int_equal(h->csum_start, headers - 32);
        assert_int_equal(h->csum_offset, 16);
        assert_int_equal(net_rig.pair->tx_stats.gso, 1);
        uint32_t at = 0;
        for (unsigned i = 0; i < chain.pieces; i++) {
            const uint8_t *b = (const uint8_t *)(uintptr_t)chain.piece[i].addr;
            for (uint32_t k = i == 0 ? net_rig.pair->header : 0; k < chain.piece[i].len; k++, at++)
                if (at >= headers && b[k] != net_rig_byte(5, at))
                    check(false, "byte %u", at);
        }
        assert_int_equal(at, headers + data);
        return_sent(p);
        net_rig_check_slots();
        close_netif(state);
    }
}

/* Of what is not segmented hdr_len is not below the headers' length, and not above the frame's, which a device may
 * refuse: whole frames that fit into a slot, else what of it is copied. (5.1.6.2.1) */
static void test_header_length(void **state)
{
    static const uint32_t pieces[] = { 0, 300, 1000 };

    for (unsigned n = 0; n < COUNT_OF(pieces) * 4; n++) {
        bool six = n & 1;
        uint32_t headers = 14 + (six ? 40 : 20) + 32;
        open_netif(16, 16, MRG | INDIR | (n & 2 ? HOST_CSUM : HASH));
        for (uint32_t data = 0; data <= 1500 - headers; data += 7) {
            struct pbuf *p = make_segment(six, data, pieces[n / 4], 0);
            assert_int_equal(netif->linkoutput(netif, p), ERR_OK);
            net_rig_flush();
            struct fake_chain chain;
            assert_true(fake_device_take(&net_rig.tx, &chain));
            const struct virtio_net_hdr_v1 *h = (const void *)(uintptr_t)chain.piece[0].addr;
            assert_int_equal(h->gso_type, VIRTIO_NET_HDR_GSO_NONE);
            check(h->hdr_len >= headers && h->hdr_len <= headers + data, "hdr_len %u of %u + %u", h->hdr_len, headers,
                  data);
            return_sent(p);
        }
        close_netif(state);
    }
}

/* Without indirect tables a frame that is not segmented is in one descriptor, however lwIP made it, and lwIP has its
 * memory back at once; with them a long one is sent from where it lies. */
static void test_one_descriptor(void **state)
{
    static const uint32_t pieces[] = { 0, 300, 100 };

    for (unsigned n = 0; n < COUNT_OF(pieces) * 4; n++) {
        bool six = n & 1, indirect = n & 2;
        uint32_t headers = 14 + (six ? 40 : 20) + 32;
        open_netif(16, 64, HASH | (indirect ? INDIR : 0));
        for (uint32_t data = 0; data <= 1514 - headers; data++) {
            struct pbuf *p = make_segment(six, data, pieces[n / 4], 0);
            assert_int_equal(netif->linkoutput(netif, p), ERR_OK);
            bool whole = !indirect || headers + data <= VIRTNET_INLINE - VIRTNET_HEADER_HASH;
            assert_int_equal(p->ref, whole ? 1 : 2);
            net_rig_flush();
            struct fake_chain chain;
            assert_true(fake_device_take(&net_rig.tx, &chain));
            assert_int_equal(chain.pieces == 1, whole);
            const uint8_t *b = (const uint8_t *)(uintptr_t)chain.piece[0].addr + VIRTNET_HEADER_HASH;
            assert_int_equal(chain.readable, VIRTNET_HEADER_HASH + headers + data);
            for (uint32_t i = headers; whole && i < headers + data; i++)
                if (b[i] != net_rig_byte(5, i))
                    check(false, "byte %u of %u", i, headers + data);
            return_sent(p);
        }
        net_rig_check_slots();
        close_netif(state);
    }
}

/* Without its mark a frame longer than the MTU allows is nothing that a device can send. */
static void test_mark_lost(void **state)
{
    open_netif(16, 16, MRG | HOST_CSUM | HOST_TSO4);
    for (uint32_t data = 1440; data < 1460; data++) {
        struct pbuf *p = make_segment(false, data, 0, 0);
        uint64_t dropped = net_netif_stats(netif)->tx_too_long, sent = net_rig.pair->tx_stats.packets;
        netif->linkoutput(netif, p);
        bool fits = 20 + 32 + data <= 1500;
        assert_int_equal(net_netif_stats(netif)->tx_too_long - dropped, !fits);
        assert_int_equal(net_rig.pair->tx_stats.packets - sent, fits);
        net_rig_flush();
        while (fits) {
            struct fake_chain chain;
            fits = fake_device_take(&net_rig.tx, &chain);
            if (fits)
                fake_device_return(&net_rig.tx, 0, 0);
        }
        fake_device_publish(&net_rig.tx);
        net_netif_reclaim(netif);
        pbuf_free(p);
    }
    close_netif(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_lengths, close_netif),
        cmocka_unit_test_teardown(test_marks, close_netif),
        cmocka_unit_test_teardown(test_kept_and_refused, close_netif),
        cmocka_unit_test_teardown(test_segments, close_netif),
        cmocka_unit_test_teardown(test_header_length, close_netif),
        cmocka_unit_test_teardown(test_one_descriptor, close_netif),
        cmocka_unit_test_teardown(test_mark_lost, close_netif),
    };

    return cmocka_run_group_tests_name("netif", tests, NULL, NULL);
}

/* Receive side scaling: the hash against published vectors and against its definition, the table, the choice of ports.
 * Frames are parsed in rss_frames_test.c. */
#include "tests/unit/rss_reference.h"

static struct rss rss;

static int setup(void **state)
{
    (void)state;
    rss_init(&rss, rss_default_key, 4);
    return 0;
}

/* ---- vectors ---- */

/* NDIS, "Verifying the RSS hash calculation". */
static void test_published_ip4(void **state)
{
    static const struct {
        uint8_t destination[4], source[4];
        uint16_t destination_port, source_port;
        uint32_t addresses, ports;
    } vectors[] = {
        { { 161, 142, 100, 80 }, { 66, 9, 149, 187 }, 1766, 2794, 0x323e8fc2, 0x51ccc178 },
        { { 65, 69, 140, 83 }, { 199, 92, 111, 2 }, 4739, 14230, 0xd718262a, 0xc626b0ea },
        { { 12, 22, 207, 184 }, { 24, 19, 198, 95 }, 38024, 12898, 0xd2d0a5de, 0x5c2b394a },
        { { 209, 142, 163, 6 }, { 38, 27, 205, 30 }, 2217, 48228, 0x82989176, 0xafc7327f },
        { { 202, 188, 127, 2 }, { 153, 39, 163, 191 }, 1303, 44251, 0x5d1809c5, 0x10e828a2 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(vectors); i++) {
        uint8_t ports[4];

        put_ports(ports, vectors[i].source_port, vectors[i].destination_port);
        assert_int_equal(rss_hash_ip4(&rss, vectors[i].source, vectors[i].destination, NULL), vectors[i].addresses);
        assert_int_equal(rss_hash_ip4(&rss, vectors[i].source, vectors[i].destination, ports), vectors[i].ports);
    }
}

static void test_published_ip6(void **state)
{
    static const struct {
        uint16_t destination[8], source[8];
        uint16_t destination_port, source_port;
        uint32_t addresses, ports;
    } vectors[] = {
        { { 0x3ffe, 0x2501, 0x200, 3, 0, 0, 0, 1 },
          { 0x3ffe, 0x2501, 0x200, 0x1fff, 0, 0, 0, 7 },
          1766,
          2794,
          0x2cc18cd5,
          0x40207d3d },
        { { 0xff02, 0, 0, 0, 0, 0, 0, 1 },
          { 0x3ffe, 0x501, 8, 0, 0x260, 0x97ff, 0xfe40, 0xefab },
          4739,
          14230,
          0x0f0c461c,
          0xdde51bbf },
        { { 0xfe80, 0, 0, 0, 0x200, 0xf8ff, 0xfe21, 0x67cf },
          { 0x3ffe, 0x1900, 0x4545, 3, 0x200, 0xf8ff, 0xfe21, 0x67cf },
          38024,
          44251,
          0x4b61e985,
          0x02d1feef },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(vectors); i++) {
        uint8_t ports[4], source[16], destination[16];

        put_ports(ports, vectors[i].source_port, vectors[i].destination_port);
        for (unsigned g = 0; g < 8; g++) {
            put16(source + 2 * g, vectors[i].source[g]);
            put16(destination + 2 * g, vectors[i].destination[g]);
        }
        assert_int_equal(rss_hash_ip6(&rss, source, destination, NULL), vectors[i].addresses);
        assert_int_equal(rss_hash_ip6(&rss, source, destination, ports), vectors[i].ports);
    }
}

/* ---- against the definition ---- */

static void test_against_the_definition(void **state)
{
    uint64_t seed = chance_seed(0x70e9);

    (void)state;
    for (unsigned k = 0; k < 20; k++) {
        static struct rss other;
        uint8_t key[RSS_KEY_BYTES], flow[36];

        fill(&seed, key, sizeof(key));
        rss_init(&other, key, 1 + k);
        assert_memory_equal(other.key, key, sizeof(key));
        for (unsigned n = 0; n < 500; n++) {
            fill(&seed, flow, sizeof(flow));
            assert_int_equal(rss_hash_ip4(&other, flow, flow + 4, flow + 8), slow_hash(key, flow, 12));
            assert_int_equal(rss_hash_ip4(&other, flow, flow + 4, NULL), slow_hash(key, flow, 8));
            assert_int_equal(rss_hash_ip6(&other, flow, flow + 16, flow + 32), slow_hash(key, flow, 36));
            assert_int_equal(rss_hash_ip6(&other, flow, flow + 16, NULL), slow_hash(key, flow, 32));
        }
    }
}

/* Every single bit of the input, where an error of one place in key or table shows. */
static void test_every_bit(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 8 * 36; i++) {
        uint8_t flow[36] = { 0 };

        flow[i / 8] = (uint8_t)(0x80 >> i % 8);
        assert_int_equal(rss_hash_ip6(&rss, flow, flow + 16, flow + 32), slow_hash(rss_default_key, flow, 36));
    }
}

static void test_table(void **state)
{
    static struct rss other;

    (void)state;
    for (unsigned queues = 0; queues <= 128; queues++) {
        unsigned count[128] = { 0 }, all = queues ? queues : 1; /* none is taken as one */

        rss_init(&other, rss_default_key, queues);
        for (uint32_t hash = 0; hash < 3 * RSS_TABLE; hash++) {
            unsigned owner = rss_owner(&other, hash * 0x01000100u + hash);

            assert_true(owner < all);
            assert_int_equal(owner, hash % RSS_TABLE % all);
            count[owner]++;
        }
        for (unsigned q = 0; q < all; q++)
            assert_in_range(count[q], 3 * (128 / all), 3 * ((128 + all - 1) / all));
    }
}

/* ---- ports for active opens ---- */

static void test_port_for(void **state)
{
    uint64_t seed = chance_seed(0x9047);

    (void)state;
    for (unsigned n = 0; n < 400; n++) {
        static struct rss other;
        unsigned queues = 1 + chance_below(&seed, 64), core = chance_below(&seed, queues), expected = 0;
        unsigned length = chance_below(&seed, 2) ? 16 : 4;
        uint32_t first = chance_below(&seed, 65536), count = chance_below(&seed, 600);
        uint8_t ends[32], ports[4];
        uint16_t remote_port = (uint16_t)chance(&seed), port;

        rss_init(&other, rss_default_key, queues);
        fill(&seed, ends, sizeof(ends));
        port = rss_port_for(&other, core, length, ends + 16, ends, remote_port, (uint16_t)first, (uint16_t)count);
        for (uint32_t p = first; p < first + count && p < 65536 && expected == 0; p++) {
            /* The answer: from the remote end to ours. */
            put_ports(ports, remote_port, p);
            if (p > 0 && slow_flow(rss_default_key, length, ends, ends + 16, ports) % 128 % queues == core)
                expected = p;
        }
        assert_int_equal(port, expected);
    }
}

static void test_port_for_edges(void **state)
{
    static const uint8_t local[16] = { 10, 0, 0, 1 }, remote[16] = { 10, 0, 0, 2 };
    static struct rss one;

    (void)state;
    rss_init(&one, rss_default_key, 1);
    assert_int_equal(rss_port_for(&one, 0, 4, local, remote, 80, 49152, 0), 0);
    assert_int_equal(rss_port_for(&one, 0, 4, local, remote, 80, 49152, 1), 49152);
    assert_int_equal(rss_port_for(&one, 1, 4, local, remote, 80, 49152, 16384), 0); /* there is no core 1 */
    assert_int_equal(rss_port_for(&one, 0, 4, local, remote, 80, 0, 1), 0);
    assert_int_equal(rss_port_for(&one, 0, 4, local, remote, 80, 0, 2), 1);
    assert_int_equal(rss_port_for(&one, 0, 4, local, remote, 80, 65535, 1), 65535);
    assert_int_equal(rss_port_for(&one, 0, 4, local, remote, 80, 65535, 65535), 65535);
    assert_int_equal(rss_port_for(&one, 1, 16, local, remote, 80, 65535, 65535), 0);
    assert_int_equal(rss_port_for(&one, 0, 0, local, remote, 80, 49152, 100), 0);
    assert_int_equal(rss_port_for(&one, 0, 6, local, remote, 80, 49152, 100), 0);
    /* Every core finds one within the 64 ports that a caller can afford to look at. */
    for (unsigned core = 0; core < 4; core++)
        assert_in_range(rss_port_for(&rss, core, 16, local, remote, 443, 50000, 64), 50000, 50063);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_ip4),
        cmocka_unit_test(test_published_ip6),
        cmocka_unit_test(test_against_the_definition),
        cmocka_unit_test(test_every_bit),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_port_for),
        cmocka_unit_test(test_port_for_edges),
    };
    return cmocka_run_group_tests_name("rss", tests, setup, NULL);
}

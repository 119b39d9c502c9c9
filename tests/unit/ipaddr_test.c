/* Internet addresses as text, against the C library's inet_pton(), and which of them a host may have. */
#include "tests/unit/unit.h"

#include "kernel/ipaddr.h"
#include <arpa/inet.h>

/* Parses `len` characters in an allocation that ends there; compares with inet_pton(). Returns what both said. */
static bool compare(int family, const char *text, size_t len)
{
    char *exact = malloc(len + 1), *limited = malloc(len ? len : 1);
    uint8_t ours[16] = { 0 }, theirs[16] = { 0 };

    memcpy(exact, text, len);
    exact[len] = '\0';
    memcpy(limited, text, len);
    bool we = family == AF_INET ? ip4_parse(limited, len, ours) : ip6_parse(limited, len, ours);
    bool they = inet_pton(family, exact, theirs) == 1;
    check(we == they, "\"%s\": %d, the C library says %d", exact, we, they);
    check(!we || !memcmp(ours, theirs, 16), "\"%s\" read differently", exact);
    free(exact);
    free(limited);
    return we;
}

static void test_ip4_rows(void **state)
{
    static const struct {
        const char *text;
        bool valid;
    } rows[] = {
        { "0.0.0.0", true },     { "255.255.255.255", true },
        { "1.2.3.4", true },     { "10.0.200.199", true },
        { "", false },           { "1", false },
        { "1.2.3", false },      { "1.2.3.", false },
        { "1.2.3.4.", false },   { ".1.2.3.4", false },
        { "1..2.3", false },     { "1.2.3.256", false },
        { "1.2.3.1000", false }, { "01.2.3.4", false },
        { "1.2.3.00", false },   { "1.2.3.4 ", false },
        { " 1.2.3.4", false },   { "+1.2.3.4", false },
        { "1.2.3.-4", false },   { "0x1.2.3.4", false },
        { "1.2.3.4.5", false },  { "1.2.3.4a", false },
        { "1,2,3,4", false },    { "4294967296.1.1.1", false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        check(compare(AF_INET, rows[i].text, strlen(rows[i].text)) == rows[i].valid, "%s", rows[i].text);
}

static void test_ip6_rows(void **state)
{
    static const struct {
        const char *text;
        bool valid;
    } rows[] = {
        { "::", true },
        { "::1", true },
        { "1::", true },
        { "fe80::1", true },
        { "ABCD:EF01:2345:6789:ABCD:EF01:2345:6789", true },
        { "2001:db8:0:0:8:800:200c:417a", true },
        { "1:2:3:4:5:6:7:8", true },
        { "1::3:4:5:6:7:8", true },
        { "1:2:3:4:5:6:7::", true },
        { "::2:3:4:5:6:7:8", true },
        { "::13.1.68.3", true },
        { "::FFFF:129.144.52.38", true },
        { "0:0:0:0:0:0:13.1.68.3", true },
        { "1:2:3:4:5:6:1.2.3.4", true },
        { "1::6:1.2.3.4", true },
        { "0001:0002::", true },
        { "", false },
        { ":", false },
        { ":::", false },
        { "1", false },
        { "1:", false },
        { ":1", false },
        { "1:2:3:4:5:6:7", false },
        { "1:2:3:4:5:6:7:8:9", false },
        { "1:2:3:4:5:6:7:8:", false },
        { ":1:2:3:4:5:6:7:8", false },
        { "1:2:3:4:5:6:7:8::", false },
        { "::1:2:3:4:5:6:7:8", false },
        { "1:2:3:4::5:6:7:8", false },
        { "1::2::3", false },
        { "::1::", false },
        { "1:::2", false },
        { "12345::", false },
        { "00001::", false },
        { "g::", false },
        { "::1.2.3", false },
        { "::1.2.3.4.5", false },
        { "::1.2.3.256", false },
        { "::01.2.3.4", false },
        { "::1.2.3.4:5", false },
        { "1.2.3.4::", false },
        { "1.2.3.4", false },
        { "1:2:3:4:5:6:7:1.2.3.4", false },
        { "1:2:3:4:5:1.2.3.4", false },
        { "::a.2.3.4", false },
        { "fe80::1%1", false },
        { "[::1]", false },
        { "::1/64", false },
        { " ::1", false },
        { "::1 ", false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        check(compare(AF_INET6, rows[i].text, strlen(rows[i].text)) == rows[i].valid, "%s", rows[i].text);
}

/* Random strings over the letters that addresses are made of; many come out valid by being mutated from valid ones. */
static void test_random(void **state)
{
    static const char *const start[] = {
        "1:2:3:4:5:6:7:8", "fe80::1", "::", "::ffff:1.2.3.4", "1::8", "192.168.10.255", "0.0.0.0", "1:2:3:4:5:6:1.2.3.4"
    };
    static const char letters[] = "0123456789abcdefABCDEF::::....g ";
    uint64_t seed = chance_seed(0x1ead);
    unsigned valid = 0;

    (void)state;
    for (unsigned n = 0; n < 400000; n++) {
        char text[64];
        size_t len;

        snprintf(text, sizeof(text), "%s", start[chance_below(&seed, COUNT_OF(start))]);
        for (unsigned m = chance_below(&seed, 4); m > 0; m--) {
            len = strlen(text);
            size_t at = chance_below(&seed, (uint32_t)len + 1);
            switch (chance_below(&seed, 3)) {
            case 0:
                memmove(text + at + 1, text + at, len - at + 1);
                text[at] = letters[chance_below(&seed, sizeof(letters) - 1)];
                break;
            case 1:
                memmove(text + at, text + at + (at < len), len - at + (at == len));
                break;
            default:
                if (at < len)
                    text[at] = letters[chance_below(&seed, sizeof(letters) - 1)];
                break;
            }
        }
        valid += compare(AF_INET6, text, strlen(text));
        valid += compare(AF_INET, text, strlen(text));
    }
    check(valid > 20000, "only %u valid: these strings test little", valid);
}

static void test_host_problem4(void **state)
{
    static const struct {
        uint8_t addr[4];
        unsigned prefix;
        bool usable;
    } rows[] = {
        { { 10, 0, 0, 1 }, 24, true },    { { 10, 0, 0, 0 }, 24, false },       { { 10, 0, 0, 255 }, 24, false },
        { { 10, 0, 0, 255 }, 23, true },  { { 10, 0, 1, 0 }, 23, true },        { { 10, 0, 1, 255 }, 23, false },
        { { 10, 0, 0, 0 }, 31, true },    { { 10, 0, 0, 1 }, 31, true },        { { 10, 0, 0, 0 }, 32, true },
        { { 10, 0, 0, 3 }, 30, false },   { { 10, 0, 0, 2 }, 30, true },        { { 10, 0, 0, 0 }, 0, true },
        { { 0, 0, 0, 1 }, 8, false },     { { 127, 1, 2, 3 }, 8, false },       { { 223, 255, 255, 254 }, 24, true },
        { { 224, 0, 0, 1 }, 24, false },  { { 240, 0, 0, 1 }, 24, false },      { { 255, 255, 255, 255 }, 32, false },
        { { 198, 18, 0, 0 }, 15, false }, { { 198, 19, 255, 255 }, 15, false }, { { 198, 19, 0, 0 }, 15, true },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const uint8_t *a = rows[i].addr;
        check((ip4_host_problem(a, rows[i].prefix) == NULL) == rows[i].usable, "%u.%u.%u.%u/%u", a[0], a[1], a[2], a[3],
              rows[i].prefix);
    }
}

static void test_host_problem6(void **state)
{
    static const struct {
        const char *text;
        bool usable;
    } rows[] = {
        { "::", false },     { "::1", false },   { "::2", true },         { "fe80::1", true }, { "ff02::1", false },
        { "ff00::", false }, { "fd00::", true }, { "2001:db8::1", true }, { "1::", true },     { "::1:0:0", true },
    };
    uint8_t addr[16], other[16];

    (void)state;
    assert_true(ip6_parse("fd00::99", 8, other));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_true(ip6_parse(rows[i].text, strlen(rows[i].text), addr));
        check((ip6_host_problem(addr) == NULL) == rows[i].usable, "%s", rows[i].text);
        check((ip6_gateway_problem(addr, other) == NULL) == rows[i].usable, "gateway %s", rows[i].text);
    }
    assert_non_null(ip6_gateway_problem(other, other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ip4_rows),      cmocka_unit_test(test_ip6_rows),      cmocka_unit_test(test_random),
        cmocka_unit_test(test_host_problem4), cmocka_unit_test(test_host_problem6),
    };

    return cmocka_run_group_tests_name("ipaddr", tests, NULL, NULL);
}

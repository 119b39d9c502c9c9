/* memcpy, memmove and memset of the guest, compared with the C library's at every size up to 1,100, every alignment and
 * overlap; no byte outside may be written or, at the edge of a page that is not there, even read. */
#include "tests/unit/unit.h"

#include <sys/mman.h>

#define SIZES  1100
#define MARGIN 80 /* on both sides: overlaps up to 64, alignment up to 15 */
#define ROOM   (MARGIN + SIZES + MARGIN)
#define PAGE   4096

void *tested_memcpy(void *restrict dest, const void *restrict src, size_t n);
void *tested_memmove(void *dest, const void *src, size_t n);
void *tested_memset(void *dest, int value, size_t n);

static _Alignas(64) uint8_t from[ROOM], to[ROOM], expected[ROOM], pattern[ROOM];

static int set_up(void **state)
{
    uint64_t seed = chance_seed(0x57a1);

    (void)state;
    for (unsigned i = 0; i < ROOM; i++)
        pattern[i] = (uint8_t)chance(&seed);
    return 0;
}

static void test_memcpy(void **state)
{
    (void)state;
    memcpy(from, pattern, ROOM);
    for (unsigned n = 0; n <= SIZES; n++) {
        for (unsigned i = 0; i < 16 * 16; i++) {
            uint8_t *d = to + MARGIN + i % 16, *s = from + MARGIN + i / 16;
            memset(to, 0xa5, ROOM);
            memset(expected, 0xa5, ROOM);
            memcpy(expected + (d - to), s, n);
            assert_ptr_equal(tested_memcpy(d, s, n), d);
            check(!memcmp(to, expected, ROOM), "%u bytes from +%u to +%u", n, i / 16, i % 16);
        }
    }
    assert_memory_equal(from, pattern, ROOM);
}

static void move(unsigned n, unsigned at, int by)
{
    uint8_t *s = to + MARGIN + at;

    memcpy(to, pattern, ROOM);
    memcpy(expected, pattern, ROOM);
    memcpy(expected + MARGIN + at + by, pattern + MARGIN + at, n);
    assert_ptr_equal(tested_memmove(s + by, s, n), s + by);
    check(!memcmp(to, expected, ROOM), "%u bytes from +%u by %d", n, at, by);
}

static void test_memmove(void **state)
{
    (void)state;
    for (unsigned n = 0; n <= SIZES; n++) {
        for (int by = -64; by <= 64; by++) {
            move(n, 0, by);
            move(n, n % 16, by);
        }
    }
}

/* Overlaps of about the whole size and of half of it: where forwards and backwards meet. */
static void test_memmove_far(void **state)
{
    (void)state;
    for (int n = 0; n <= SIZES / 2; n++) {
        for (int by = n - 2; by <= n + 2; by++) {
            move((unsigned)n, 2, by);
            move((unsigned)n, (unsigned)SIZES / 2 + 2, -by);
            move((unsigned)n, 2, by / 2);
            move((unsigned)n, (unsigned)SIZES / 2 + 2, -by / 2);
        }
    }
}

static void test_memset(void **state)
{
    static const int values[] = { 0, 0x5a, 0xff, -1, 0x180, 0x1234567f };

    (void)state;
    for (unsigned n = 0; n <= SIZES; n++) {
        for (unsigned i = 0; i < 16 * COUNT_OF(values); i++) {
            uint8_t *d = to + MARGIN + i % 16;
            memcpy(to, pattern, ROOM);
            memcpy(expected, pattern, ROOM);
            memset(expected + (d - to), values[i / 16], n);
            assert_ptr_equal(tested_memset(d, values[i / 16], n), d);
            check(!memcmp(to, expected, ROOM), "%u bytes of %x at +%u", n, values[i / 16], i % 16);
        }
    }
}

/* `pages` pages with one on each side that is not there. */
static uint8_t *fenced(unsigned pages)
{
    uint8_t *p = mmap(NULL, (pages + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(p != MAP_FAILED);
    assert_int_equal(mprotect(p + PAGE, pages * PAGE, PROT_READ | PROT_WRITE), 0);
    return p + PAGE;
}

static void unfence(uint8_t *p, unsigned pages)
{
    munmap(p - PAGE, (pages + 2) * PAGE);
}

/* Both areas begin, or end, where memory does. (A fault ends the program.) */
static void test_edges(void **state)
{
    uint8_t *a = fenced(1), *b = fenced(1);

    (void)state;
    for (unsigned n = 0; n <= SIZES; n++) {
        for (unsigned i = 0; i < 4; i++) {
            uint8_t *d = i & 1 ? a + PAGE - n : a, *s = i & 2 ? b + PAGE - n : b;
            memcpy(s, pattern, n);
            tested_memcpy(d, s, n);
            assert_memory_equal(d, pattern, n);
            tested_memset(d, 0x3c, n);
            tested_memmove(d, s, n);
            assert_memory_equal(d, pattern, n);
            tested_memmove(i & 1 ? a : a + PAGE - n, d, n); /* within one page: overlapping or not */
            if (n <= SIZES - 64)
                tested_memmove(i & 1 ? d - 64 : d + 64, d, n);
        }
    }
    unfence(a, 1);
    unfence(b, 1);
}

/* Sizes that packets and pages have, and beyond. */
static void test_large(void **state)
{
    static const size_t sizes[] = { 1514, 2047, 2048, 4095, 4096, 4097, 9014, 65535, 65536, 300001 };
    enum { PAGES = 80 };
    uint8_t *a = fenced(PAGES), *b = fenced(PAGES);
    uint64_t seed = chance_seed(0x1a46);

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        size_t n = sizes[i], end = PAGES * PAGE - n;
        for (size_t k = 0; k < n; k++)
            a[end + k] = (uint8_t)chance(&seed);
        memcpy(b, a + end, n);
        tested_memset(b + end, 0, n);
        tested_memcpy(b + end, a + end, n);
        assert_memory_equal(b + end, a + end, n);
        tested_memmove(b + end - 33, b + end, n);
        assert_memory_equal(b + end - 33, a + end, n);
        tested_memmove(b + end - 20, b + end - 33, n);
        assert_memory_equal(b + end - 20, a + end, n);
    }
    unfence(a, PAGES);
    unfence(b, PAGES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memcpy), cmocka_unit_test(test_memmove), cmocka_unit_test(test_memmove_far),
        cmocka_unit_test(test_memset), cmocka_unit_test(test_edges),   cmocka_unit_test(test_large),
    };

    return cmocka_run_group_tests_name("string", tests, set_up, NULL);
}

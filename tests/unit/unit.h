/* What every unit test includes: cmocka with what it wants before it, and a repeatable source of chance. */
#ifndef RINGSIDE_UNIT_H
#define RINGSIDE_UNIT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Fails the test with a sentence of one's own when `condition` does not hold. */
#define check(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            print_error("%s:%d: not true: %s: ", __FILE__, __LINE__, #condition);                                      \
            print_error(__VA_ARGS__);                                                                                  \
            print_error("\n");                                                                                         \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

/* UNIT_TEST=NAME in the environment: only that test of a program (tests/mutants). */
static __attribute__((constructor)) inline void unit_choose_test(void)
{
    if (getenv("UNIT_TEST"))
        cmocka_set_test_filter(getenv("UNIT_TEST"));
}

/* xorshift64*: the same numbers for the same seed on every machine. */
static inline uint64_t chance(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

/* A number in 0..n-1. */
static inline uint32_t chance_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((chance(state) >> 32) % n);
}

/* The seed of a random test: UNIT_SEED of the environment (to look for more), else a fixed one. Never 0. */
static inline uint64_t chance_seed(uint64_t fixed)
{
    const char *text = getenv("UNIT_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) * 0x9e3779b97f4a7c15ull + fixed : fixed;

    return seed ? seed : 1;
}
#endif

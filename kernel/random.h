/* Randomness: a keyed pseudo-random function (SipHash-2-4, Aumasson and Bernstein 2012) under a key that is new at
 * every start. */
#ifndef RINGSIDE_RANDOM_H
#define RINGSIDE_RANDOM_H
#include <stddef.h>
#include <stdint.h>

/* Makes the key from RDSEED or RDRAND, else from the jitter of the clock against the processor; says which (for the
 * console). */
const char *random_init(void);

/* The next number of the stream. */
uint64_t random_next(void);

/* The function's value for `n` bytes of input: the same input gives the same output until the next start. */
uint64_t random_hash(const void *input, size_t n);
#endif

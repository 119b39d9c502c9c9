/* What every fuzz target includes: it takes its input bit by bit, and ends with a sentence when something is not so. */
#ifndef RINGSIDE_FUZZ_H
#define RINGSIDE_FUZZ_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the run, so that the input is kept, when `condition` does not hold. */
#define must(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                                  \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

struct input {
    const uint8_t *at, *end;
};

static inline bool more(const struct input *in)
{
    return in->at < in->end;
}

/* The next byte; 0 when there is none left. */
static inline uint8_t take8(struct input *in)
{
    return more(in) ? *in->at++ : 0;
}

static inline uint16_t take16(struct input *in)
{
    uint8_t low = take8(in);
    return (uint16_t)(low | take8(in) << 8);
}

static inline uint32_t take32(struct input *in)
{
    uint16_t low = take16(in);
    return low | (uint32_t)take16(in) << 16;
}
#endif

#include <stdbool.h>
#include <string.h>
#include "kernel/clock.h"
#include "kernel/random.h"
#include "kernel/x86.h"

static uint64_t key[2];
static uint64_t counter;

static uint64_t rotl(uint64_t v, int by)
{
    return v << by | v >> (64 - by);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] = rotl(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] = rotl(v[2], 32);
}

static void sip_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sip_round(v);
    sip_round(v);
    v[0] ^= word;
}

uint64_t random_hash(const void *input, size_t n)
{
    const uint8_t *p = input;
    uint64_t v[4] = { key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
                      key[1] ^ 0x7465646279746573 };
    uint64_t last = (uint64_t)n << 56, word;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&word, p, 8);
        sip_word(v, word);
    }
    for (size_t i = 0; i < n; i++)
        last |= (uint64_t)p[i] << 8 * i;
    sip_word(v, last);
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint64_t random_next(void)
{
    counter++;
    return random_hash(&counter, sizeof counter);
}

/* RDSEED and RDRAND may have nothing to give for a moment (SDM 1, 7.3.17): a bounded number of tries. */
static bool rdseed(uint64_t *v)
{
    uint8_t ok = 0;
    for (int i = 0; i < 100 && !ok; i++)
        __asm__ volatile("rdseed %0; setc %1" : "=r"(*v), "=qm"(ok) : : "cc");
    return ok;
}

static bool rdrand(uint64_t *v)
{
    uint8_t ok = 0;
    for (int i = 0; i < 100 && !ok; i++)
        __asm__ volatile("rdrand %0; setc %1" : "=r"(*v), "=qm"(ok) : : "cc");
    return ok;
}

/* How long short stretches of work take by the TSC, hashed together: every sample adds a little of what the host does.
 */
static void jitter(void)
{
    for (int i = 0; i < 2048; i++) {
        uint64_t sample[3] = { rdtsc(), key[0], 0 };
        for (volatile int work = 0; work < (int)(sample[0] & 63); work++)
            ;
        sample[2] = rdtsc();
        key[i & 1] ^= random_hash(sample, sizeof sample);
    }
}

const char *random_init(void)
{
    bool has_seed = cpuid(0, 0).a >= 7 && (cpuid(7, 0).b >> 18 & 1) != 0, has_rand = (cpuid(1, 0).c >> 30 & 1) != 0;
    key[0] = rdtsc();
    key[1] = clock_ns();
    uint64_t a, b;
    if (has_seed && rdseed(&a) && rdseed(&b)) {
        key[0] ^= a;
        key[1] ^= b;
        return "rdseed";
    }
    if (has_rand && rdrand(&a) && rdrand(&b)) {
        key[0] ^= a;
        key[1] ^= b;
        return "rdrand";
    }
    jitter();
    return "jitter";
}

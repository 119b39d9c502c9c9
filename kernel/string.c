/* memcpy, memmove, memset: newlib's own for x86_64 use stores that bypass the cache from 256 bytes up, which is wrong
 * for packets that are looked at next. Small sizes by overlapping loads and stores, large ones by the processor's
 * string instructions. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define STRING_INSTRUCTION_FROM 512

typedef uint64_t u64_any __attribute__((aligned(1), may_alias));
typedef uint32_t u32_any __attribute__((aligned(1), may_alias));
typedef uint16_t u16_any __attribute__((aligned(1), may_alias));
typedef long long v128_any __attribute__((vector_size(16), aligned(1), may_alias));

/* Up to 16 bytes; all loads come before all stores, so the areas may overlap. */
static inline void copy_small(char *to, const char *from, size_t n)
{
    if (n >= 8) {
        uint64_t a = *(const u64_any *)from, b = *(const u64_any *)(from + n - 8);
        *(u64_any *)to = a;
        *(u64_any *)(to + n - 8) = b;
    } else if (n >= 4) {
        uint32_t a = *(const u32_any *)from, b = *(const u32_any *)(from + n - 4);
        *(u32_any *)to = a;
        *(u32_any *)(to + n - 4) = b;
    } else if (n >= 2) {
        uint16_t a = *(const u16_any *)from, b = *(const u16_any *)(from + n - 2);
        *(u16_any *)to = a;
        *(u16_any *)(to + n - 2) = b;
    } else if (n == 1) {
        *to = *from;
    }
}

/* 16 to 32 times `half` bytes: so many times 16 from the start and from the end, which may overlap in the middle; all
 * loads come first. `half` is a constant, so this is straight code. */
static inline __attribute__((always_inline)) void copy_ends(char *to, const char *from, size_t n, unsigned half)
{
    v128_any start[4], end[4];
#pragma GCC unroll 4
    for (unsigned i = 0; i < half; i++) {
        start[i] = *(const v128_any *)(from + 16 * i);
        end[i] = *(const v128_any *)(from + n - 16 * (half - i));
    }
#pragma GCC unroll 4
    for (unsigned i = 0; i < half; i++) {
        *(v128_any *)(to + 16 * i) = start[i];
        *(v128_any *)(to + n - 16 * (half - i)) = end[i];
    }
}

/* Copies from the lowest address up; right also for areas that overlap when `to` is below `from`: each load comes
 * before the stores that could reach its bytes. (Not memcpy itself: that promises the compiler that nothing overlaps.)
 */
static inline __attribute__((always_inline)) void copy_up(char *to, const char *from, size_t n)
{
    if (n <= 16) {
        copy_small(to, from, n);
    } else if (n <= 32) {
        copy_ends(to, from, n, 1);
    } else if (n <= 64) {
        copy_ends(to, from, n, 2);
    } else if (n <= 128) {
        copy_ends(to, from, n, 4);
    } else if (n < STRING_INSTRUCTION_FROM) {
        v128_any last = *(const v128_any *)(from + n - 16);
        for (size_t i = 0; i + 16 < n; i += 16)
            *(v128_any *)(to + i) = *(const v128_any *)(from + i);
        *(v128_any *)(to + n - 16) = last;
    } else {
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
    }
}

void *memcpy(void *restrict dest, const void *restrict src, size_t n)
{
    copy_up(dest, src, n);
    return dest;
}

void *memmove(void *dest, const void *src, size_t n)
{
    char *to = dest;
    const char *from = src;
    if ((uintptr_t)to - (uintptr_t)from >= n || n <= 16) { /* dest does not start within src: upwards is right */
        copy_up(to, from, n);
        return dest;
    }
    v128_any first = *(const v128_any *)from;
    for (; n > 16; n -= 16)
        *(v128_any *)(to + n - 16) = *(const v128_any *)(from + n - 16);
    *(v128_any *)to = first;
    return dest;
}

void *memset(void *dest, int value, size_t n)
{
    char *to = dest;
    uint64_t pattern = 0x0101010101010101ull * (uint8_t)value;
    if (n >= STRING_INSTRUCTION_FROM) {
        __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(value) : "memory");
    } else if (n >= 8) {
        for (size_t i = 0; i + 8 < n; i += 8)
            *(u64_any *)(to + i) = pattern;
        *(u64_any *)(to + n - 8) = pattern;
    } else {
        for (size_t i = 0; i < n; i++)
            ((volatile char *)to)[i] = (char)value;
    }
    return dest;
}

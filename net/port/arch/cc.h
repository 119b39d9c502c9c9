/* lwIP's view of the compiler and the C library. */
#ifndef RINGSIDE_ARCH_CC_H
#define RINGSIDE_ARCH_CC_H
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/types.h>
#include "chksum.h"
#include "kernel/memory.h"

#ifndef SSIZE_MAX /* newlib has ssize_t but not this, by which lwIP decides whether it does */
#define SSIZE_MAX LONG_MAX
#endif

#define LWIP_TIMEVAL_PRIVATE 0
#define LWIP_ERRNO_INCLUDE   <errno.h>

#define lwip_htons(x) __builtin_bswap16(x)
#define lwip_htonl(x) __builtin_bswap32(x)
#define LWIP_DONT_PROVIDE_BYTEORDER_FUNCTIONS

uint32_t net_random(void);
_Noreturn void net_assert(const char *message, const char *file, int line);
#define LWIP_RAND()             net_random()
#define LWIP_PLATFORM_ASSERT(x) net_assert(x, __FILE__, __LINE__)
#define LWIP_PLATFORM_DIAG(x)                                                                                          \
    do {                                                                                                               \
        printf x;                                                                                                      \
    } while (0)
#endif

/* lwIP's memory where a test does not want it to run out. */
#include <stdlib.h>
#include "kernel/memory.h"

void *heap_take(size_t n)
{
    return malloc(n);
}

void *heap_take_cleared(size_t n, size_t each)
{
    return calloc(n, each);
}

void heap_give(void *p)
{
    free(p);
}

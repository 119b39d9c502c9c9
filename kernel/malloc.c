/* The C library's names for the heap (kernel/heap.c). In a file of their own: what a compiler knows of malloc() must
 * not change them, nor can it take them into their callers. */
#include <errno.h>
#include <stdlib.h>
#include <reent.h>
#include "kernel/memory.h"

void *malloc(size_t n)
{
    return heap_take(n);
}

void free(void *p)
{
    heap_give(p);
}

void *calloc(size_t count, size_t size)
{
    return heap_take_cleared(count, size);
}

void *realloc(void *old, size_t n)
{
    return heap_resize(old, n);
}

/* newlib's own calls come through these. */
void *_malloc_r(struct _reent *r, size_t n)
{
    void *p = malloc(n);
    if (p == NULL)
        r->_errno = ENOMEM;
    return p;
}

void _free_r(struct _reent *r, void *p)
{
    (void)r;
    free(p);
}

void *_calloc_r(struct _reent *r, size_t count, size_t size)
{
    (void)r;
    return calloc(count, size);
}

void *_realloc_r(struct _reent *r, void *old, size_t n)
{
    (void)r;
    return realloc(old, n);
}

/* kernel/memory.c for the host: its malloc() and friends under other names, beside the C library's. */
#ifndef RINGSIDE_HEAP_RENAMED_H
#define RINGSIDE_HEAP_RENAMED_H
#include <reent.h>
#include <stddef.h>
#include "kernel/memory.h"

void *heap_malloc(size_t n);
void heap_free(void *p);
void *heap_calloc(size_t count, size_t size);
void *heap_realloc(void *old, size_t n);
void *_malloc_r(struct _reent *r, size_t n);
void _free_r(struct _reent *r, void *p);
void *_calloc_r(struct _reent *r, size_t count, size_t size);
void *_realloc_r(struct _reent *r, void *old, size_t n);

/* As before start-up: no heap, no physical memory. */
void heap_forget(void);
#endif

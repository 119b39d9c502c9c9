/* See heap_renamed.h. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/heap_renamed.h"

#define malloc  heap_malloc
#define free    heap_free
#define calloc  heap_calloc
#define realloc heap_realloc
#include "kernel/heap.c"
#include "kernel/malloc.c"
#include "kernel/memory.c"

void heap_forget(void)
{
    memset(available, 0, sizeof(available));
    available_count = 0;
    total = 0;
    memset(freed, 0, sizeof(freed));
    untouched = (struct range){ 0, 0 };
    first = credit = walked = 0;
    stats = (struct heap_stats){ 0 };
}

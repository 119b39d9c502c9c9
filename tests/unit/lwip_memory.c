/* lwIP's memory where a test does not want it to run out. */
#include <stdlib.h>
#include "tests/unit/lwip_host.h"

void *rig_malloc(size_t n)
{
    return malloc(n);
}

void *rig_calloc(size_t n, size_t each)
{
    return calloc(n, each);
}

void rig_free(void *p)
{
    free(p);
}

/* Included before every lwIP source of the host's build: memory that can run out when a test wants it to. */
#ifndef RINGSIDE_LWIP_HOST_H
#define RINGSIDE_LWIP_HOST_H
#include <stddef.h>

void *rig_malloc(size_t n);
void *rig_calloc(size_t n, size_t each);
void rig_free(void *p);
#define mem_clib_malloc rig_malloc
#define mem_clib_calloc rig_calloc
#define mem_clib_free   rig_free
#endif

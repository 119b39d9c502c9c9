/* kernel/string.c for the host: under other names, beside the C library's. */
#include <string.h>
#define memcpy  tested_memcpy
#define memmove tested_memmove
#define memset  tested_memset
#include "kernel/string.c"

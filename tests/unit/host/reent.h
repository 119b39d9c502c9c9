/* In place of newlib's header, where the host has none: what kernel/memory.c uses of it. */
#ifndef RINGSIDE_HOST_REENT_H
#define RINGSIDE_HOST_REENT_H
struct _reent {
    int _errno;
};
#endif

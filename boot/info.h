/* What the three ways of booting hand over, each brought into the same form. */
#ifndef RINGSIDE_BOOT_INFO_H
#define RINGSIDE_BOOT_INFO_H
#include <stdint.h>
#include "kernel/shared.h"

/* Fills protocol, ram, rsdp and cmdline of *shared from what the caller left: `magic` from eax, `info` from ebx.
 * Returns NULL, or what is wrong. Everything is copied: the originals lie in memory that is about to be used. (PVH:
 * Xen's start_info, version 1; Multiboot 0.6.96; Multiboot2 2.0) */
const char *boot_info(struct shared *shared, uint32_t magic, const void *info);
#endif

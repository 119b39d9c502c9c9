/* Loads one copy of the program (a static PIE with RELATIVE relocations only) to any page-aligned address. */
#ifndef RINGSIDE_BOOT_LOAD_H
#define RINGSIDE_BOOT_LOAD_H
#include <stdbool.h>
#include <stdint.h>
#include "kernel/shared.h"

#define WORLD_STACK 65536u
#define WORLD_IST   16384u
#define PAGE        4096u

/* In a segment's flags (for the operating system's own use, gABI): it belongs to the backend checks. linker.ld puts
 * them behind all others. */
#define WORLD_CHECKS 0x00100000u

/* Bytes that a world of this image takes, stacks and guard pages included, with or without the backend checks; 0 if the
 * image is not one that world_load() takes. *linked is the address the image is linked at. */
uint64_t world_size(const void *image, bool checks, uint64_t *linked);

/* Copies the image, with or without the backend checks, to `base` (world_size() bytes of zeroed or unzeroed memory,
 * page-aligned), relocates it, and fills in *world. Returns NULL, or what is wrong with the image. (System V gABI,
 * chapter 5) */
const char *world_load(const void *image, bool checks, uint64_t base, struct world *world);
#endif

/* Boot information: PVH, multiboot 1, multiboot 2. */
#include <stdbool.h>
#include <stddef.h>
#include "boot/info.h"

#define PVH_MAGIC        0x336ec578u
#define MULTIBOOT1_MAGIC 0x2BADB002u
#define MULTIBOOT2_MAGIC 0x36d76289u
#define RSDP_MIN         20u
#define E820_RAM         1u        /* all three use the same code for usable memory */
#define LOW_MEMORY       0x100000u /* below: firmware's data, and the page where further cores start */

struct pvh_start_info {
    uint32_t magic, version, flags, module_count;
    uint64_t modules, cmdline, rsdp, memmap;
    uint32_t memmap_count, reserved;
};

struct pvh_memmap {
    uint64_t addr, size;
    uint32_t type, reserved;
};

struct multiboot1_info {
    uint32_t flags, mem_lower, mem_upper, boot_device, cmdline, module_count, modules, syms[4], mmap_length, mmap_addr,
        drives_length, drives_addr, config_table, boot_loader_name;
};

struct __attribute__((packed)) multiboot1_mmap {
    uint32_t size;
    uint64_t addr, length;
    uint32_t type;
};

struct multiboot2_tag {
    uint32_t type, size;
};

struct multiboot2_mmap {
    uint64_t addr, length;
    uint32_t type, reserved;
};

static const void *at(uint64_t address)
{
    return (const void *)(uintptr_t)address;
}

/* Copies the boot line: at most `max` characters of it. */
static void copy_cmdline(struct shared *shared, const char *from, size_t max)
{
    size_t n = 0;
    for (; from != NULL && n < max && n < SHARED_CMDLINE - 1 && from[n] != '\0'; n++)
        shared->cmdline[n] = from[n];
    shared->cmdline[n] = '\0';
}

static void remove_range(struct shared *shared, uint32_t i)
{
    shared->ram_count--;
    for (; i < shared->ram_count; i++)
        shared->ram[i] = shared->ram[i + 1];
}

/* Keeps the highest usable page below 640 KiB for further cores to start in: above it firmware has its data. */
static void note_low_page(struct shared *shared, uint64_t start, uint64_t end)
{
    if (end > 0xa0000)
        end = 0xa0000;
    if (end >= start + 4096 && end - 4096 > shared->low_page) /* so never page 0 */
        shared->low_page = end - 4096;
}

/* Adds usable memory, whole pages of it, in order; ranges that touch or overlap become one. What does not fit in the
 * table is the smallest loss there is: the last, highest range. */
static void add_ram(struct shared *shared, uint64_t addr, uint64_t size)
{
    if (addr + size < addr || addr > UINT64_MAX - 4095) /* reaches beyond 64 bits, or does when rounded */
        return;
    uint64_t start = (addr + 4095) & ~4095ull, end = (addr + size) & ~4095ull;
    if (start < LOW_MEMORY) {
        note_low_page(shared, start, end < LOW_MEMORY ? end : LOW_MEMORY);
        start = LOW_MEMORY;
    }
    if (start >= end)
        return;
    uint32_t i = 0;
    while (i < shared->ram_count && shared->ram[i].end < start)
        i++;
    while (i < shared->ram_count && shared->ram[i].start <= end) {
        start = shared->ram[i].start < start ? shared->ram[i].start : start;
        end = shared->ram[i].end > end ? shared->ram[i].end : end;
        remove_range(shared, i);
    }
    if (shared->ram_count == SHARED_MAX_RAM) {
        if (i == SHARED_MAX_RAM)
            return;
        shared->ram_count--;
    }
    for (uint32_t k = shared->ram_count; k > i; k--)
        shared->ram[k] = shared->ram[k - 1];
    shared->ram[i] = (struct range){ start, end };
    shared->ram_count++;
}

static const char *from_pvh(struct shared *shared, const struct pvh_start_info *info)
{
    shared->protocol = BOOT_PVH;
    if (info->magic != PVH_MAGIC || info->version < 1)
        return "PVH start_info older than version 1: it has no memory map";
    const struct pvh_memmap *map = at(info->memmap);
    for (uint32_t i = 0; i < info->memmap_count; i++)
        if (map[i].type == E820_RAM)
            add_ram(shared, map[i].addr, map[i].size);
    shared->rsdp = info->rsdp;
    copy_cmdline(shared, at(info->cmdline), SIZE_MAX);
    return NULL;
}

static bool same(const char *a, const char *b)
{
    while (*a == *b && *a != '\0')
        a++, b++;
    return *a == *b;
}

static const char *from_multiboot1(struct shared *shared, const struct multiboot1_info *info)
{
    shared->protocol = BOOT_MULTIBOOT1;
    if (!(info->flags & 1u << 6))
        return "multiboot without a memory map";
    const struct multiboot1_mmap *m;
    for (uint64_t done = 0; done + sizeof *m <= info->mmap_length; done += m->size + 4ull) {
        m = at(info->mmap_addr + done);
        if (m->size + 4ull < sizeof *m) /* no entry, and nobody knows where the next one is */
            break;
        if (m->type == E820_RAM)
            add_ram(shared, m->addr, m->length);
    }
    const char *line = info->flags & 1u << 2 ? at(info->cmdline) : NULL;
    /* QEMU puts the image's file name before the line; GRUB does not. */
    if (line != NULL && info->flags & 1u << 9 && same(at(info->boot_loader_name), "qemu"))
        while (*line != '\0' && *line++ != ' ')
            ;
    copy_cmdline(shared, line, SIZE_MAX);
    return NULL;
}

/* ACPI's root pointer: 20 bytes in version 1, 36 since. What is shorter is none: it is better searched for. */
static void copy_rsdp(struct shared *shared, const struct multiboot2_tag *tag)
{
    const uint8_t *from = (const uint8_t *)(tag + 1);
    if (tag->size < sizeof *tag + RSDP_MIN)
        return;
    for (uint32_t i = 0; i < sizeof shared->rsdp_copy && i < tag->size - sizeof *tag; i++)
        shared->rsdp_copy[i] = from[i];
    shared->rsdp = (uint64_t)(uintptr_t)shared->rsdp_copy;
}

static void mmap_of_multiboot2(struct shared *shared, const struct multiboot2_tag *tag)
{
    const uint32_t *head = (const uint32_t *)(tag + 1); /* entry size, a multiple of 8; entry version */
    if (tag->size < 16 || head[0] < sizeof(struct multiboot2_mmap) || head[0] % 8 != 0)
        return;
    for (uint64_t done = 16; done + head[0] <= tag->size; done += head[0]) {
        const struct multiboot2_mmap *m = (const struct multiboot2_mmap *)((const char *)tag + done);
        if (m->type == E820_RAM)
            add_ram(shared, m->addr, m->length);
    }
}

static const char *from_multiboot2(struct shared *shared, const char *info)
{
    shared->protocol = BOOT_MULTIBOOT2;
    const char *end = info + *(const uint32_t *)info; /* total size */
    for (const char *p = info + 8; p + sizeof(struct multiboot2_tag) <= end;) {
        const struct multiboot2_tag *tag = (const struct multiboot2_tag *)p;
        if (tag->type == 0 || tag->size < sizeof *tag || tag->size > (size_t)(end - p))
            break;
        if (tag->type == 1)
            copy_cmdline(shared, p + 8, tag->size - sizeof *tag);
        if (tag->type == 6)
            mmap_of_multiboot2(shared, tag);
        if (tag->type == 15 || (tag->type == 14 && shared->rsdp == 0)) /* 15: ACPI 2.0's, the better one */
            copy_rsdp(shared, tag);
        p += (tag->size + 7ull) & ~7ull;
    }
    return shared->ram_count > 0 ? NULL : "multiboot2 without a memory map";
}

const char *boot_info(struct shared *shared, uint32_t magic, const void *info)
{
    switch (magic) {
    case PVH_MAGIC:
        return from_pvh(shared, info);
    case MULTIBOOT1_MAGIC:
        return from_multiboot1(shared, info);
    case MULTIBOOT2_MAGIC:
        return from_multiboot2(shared, info);
    default:
        return "started by neither PVH nor multiboot 1 or 2";
    }
}

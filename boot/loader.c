/* The loader: gathers what the boot protocol says into the shared structure, makes core 0's copy of the program and
 * enters it. */
#include <stddef.h>
#include "boot/info.h"
#include "boot/load.h"
#include "kernel/x86.h"

extern const char program_start[], program_end[], ringside_symbols[];
extern char __load_start[], __rodata_start[], __data_start[], __bss_end[];
_Noreturn void enter_world(uint64_t entry, uint64_t id, struct shared *shared, uint64_t stack_top);
void loader_main(uint32_t magic, const void *info, uint64_t tsc);

static struct shared shared;

/* Says why there is nothing to run, in the form of the program's own last words, and ends with the panic code. */
static _Noreturn void give_up(const char *why)
{
    const char *parts[] = { "panic: ", why, "\r\n" };
    for (size_t i = 0; i < 3; i++)
        for (const char *c = parts[i]; *c != '\0'; c++)
            outb(0x3f8, (uint8_t)*c);
    outl(0xf4, 1);
    for (;;)
        __asm__ volatile("cli; hlt");
}

/* True if [start, start + size) is usable memory that the loader does not lie in. */
static int is_free(uint64_t start, uint64_t size)
{
    if (start < shared.loader.end && start + size > shared.loader.start)
        return 0;
    for (uint32_t i = 0; i < shared.ram_count; i++)
        if (start >= shared.ram[i].start && start + size <= shared.ram[i].end)
            return 1;
    return 0;
}

/* Where core 0's copy goes: where it is linked, else the first place (by 2 MiB, below 4 GiB) that takes it. */
static uint64_t find_place(uint64_t linked, uint64_t size)
{
    if (is_free(linked, size))
        return linked;
    for (uint64_t at = 0x200000; at < 0xffe00000u; at += 0x200000)
        if (is_free(at, size))
            return at;
    return 0;
}

static void describe_loader(void)
{
    struct range text = { (uint64_t)__load_start, (uint64_t)__rodata_start };
    struct range rodata = { (uint64_t)__rodata_start, (uint64_t)__data_start };
    struct range data = { (uint64_t)__data_start, (uint64_t)__bss_end };
    shared.loader = (struct range){ text.start, data.end };
    shared.loader_segment[0] = (struct segment){ text, 5 };
    shared.loader_segment[1] = (struct segment){ rodata, 4 };
    shared.loader_segment[2] = (struct segment){ data, 6 };
    shared.loader_segment_count = 3;
    shared.image = (struct range){ (uint64_t)program_start, (uint64_t)program_end };
    shared.symbols = ringside_symbols;
}

/* True if the boot line may ask for the backend checks: the word's beginning is somewhere in it. What it means is found
 * out later. */
static bool wants_checks(const char *line)
{
    static const char word[] = "conform";
    for (; *line != '\0'; line++) {
        size_t same = 0;
        while (word[same] != '\0' && line[same] == word[same])
            same++;
        if (word[same] == '\0')
            return true;
    }
    return false;
}

void loader_main(uint32_t magic, const void *info, uint64_t tsc)
{
    shared.boot_tsc = tsc;
    describe_loader();
    const char *wrong = boot_info(&shared, magic, info);
    if (wrong != NULL)
        give_up(wrong);
    bool checks = wants_checks(shared.cmdline);
    uint64_t linked = 0, size = world_size(program_start, checks, &linked);
    if (size == 0)
        give_up("the program in the image is not a static PIE for x86_64");
    uint64_t place = find_place(linked, size);
    if (place == 0)
        give_up("not enough memory for the program");
    wrong = world_load(program_start, checks, place, &shared.world0);
    if (wrong != NULL)
        give_up(wrong);
    enter_world(shared.world0.entry, 0, &shared, shared.world0.stack.end);
}

/* See boot_rig.h. */
#include "tests/unit/boot_rig.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA (1u << 20)

static char *arena;
static uint32_t arena_used;
struct shared shared;
struct entry map[ENTRIES];
unsigned map_count;

int boot_make_arena(void **state)
{
    (void)state;
    arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    return arena == MAP_FAILED;
}

int boot_set_up(void **state)
{
    (void)state;
    memset(&shared, 0, sizeof(shared));
    ASAN_POISON_MEMORY_REGION(arena, ARENA);
    arena_used = 0;
    map_count = 0;
    alarm(60); /* a loop without end ends */
    return 0;
}

int boot_tear_down(void **state)
{
    (void)state;
    alarm(0);
    ASAN_UNPOISON_MEMORY_REGION(arena, ARENA);
    return 0;
}

/* `n` bytes, and not one more, at a multiple of 8 (multiboot2 asks for it). */
static void *place(const void *bytes, uint32_t n)
{
    char *at = arena + arena_used;

    arena_used += (n + 32 + 7) & ~7u;
    check(arena_used <= ARENA, "the arena is too small");
    ASAN_UNPOISON_MEMORY_REGION(at, n);
    memcpy(at, bytes, n);
    return at;
}

static uint32_t place_string(const char *text)
{
    return (uint32_t)(uintptr_t)place(text, (uint32_t)strlen(text) + 1);
}

/* ---- the three forms ---- */

void put32(char *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

static void put64(char *p, uint64_t v)
{
    memcpy(p, &v, 8);
}

char *pvh(uint32_t version, const char *cmdline, uint64_t rsdp)
{
    char info[56] = { 0 }, entries[ENTRIES * 24];

    for (unsigned i = 0; i < map_count; i++) {
        put64(entries + 24 * i, map[i].addr);
        put64(entries + 24 * i + 8, map[i].size);
        put32(entries + 24 * i + 16, map[i].type);
        put32(entries + 24 * i + 20, 0xdeadbeef);
    }
    put32(info, PVH);
    put32(info + 4, version);
    if (cmdline)
        put64(info + 24, place_string(cmdline));
    put64(info + 32, rsdp);
    put64(info + 40, (uintptr_t)place(entries, 24 * map_count));
    put32(info + 48, map_count);
    return place(info, sizeof(info));
}

char *multiboot1(uint32_t flags, const char *cmdline, const char *loader, uint32_t entry_size, uint32_t cut, char **at)
{
    char info[88] = { 0 }, entries[ENTRIES * 64];
    uint32_t length = (entry_size + 4) * map_count - cut;

    memset(entries, 0x5c, sizeof(entries));
    for (unsigned i = 0; i < map_count; i++) {
        char *e = entries + (entry_size + 4) * i;
        put32(e, entry_size);
        put64(e + 4, map[i].addr);
        put64(e + 12, map[i].size);
        put32(e + 20, map[i].type);
    }
    put32(info, flags);
    put32(info + 16, cmdline ? place_string(cmdline) : 0xfffff000);
    *at = place(entries, length);
    put32(info + 44, length);
    put32(info + 48, (uint32_t)(uintptr_t)*at);
    put32(info + 64, loader ? place_string(loader) : 0xfffff000);
    return place(info, sizeof(info));
}

struct multiboot2_blob mb2;

void mb2_begin(void)
{
    memset(&mb2, 0, sizeof(mb2));
    mb2.n = 8;
}

char *mb2_tag(uint32_t type, const void *contents, uint32_t n)
{
    char *tag = mb2.bytes + mb2.n;

    put32(tag, type);
    put32(tag + 4, n + 8);
    if (n)
        memcpy(tag + 8, contents, n);
    mb2.n += (n + 8 + 7) & ~7u;
    return tag;
}

char *mb2_map(uint32_t entry_size)
{
    static char contents[ENTRIES * 48];

    put32(contents, entry_size);
    put32(contents + 4, 0);
    for (unsigned i = 0; i < map_count; i++) {
        char *e = contents + 8 + entry_size * i;
        memset(e, 0x5c, entry_size);
        put64(e, map[i].addr);
        put64(e + 8, map[i].size);
        put32(e + 16, map[i].type);
    }
    return mb2_tag(6, contents, 8 + entry_size * map_count);
}

char *mb2_end(uint32_t n)
{
    mb2_tag(0, NULL, 0);
    put32(mb2.bytes, n ? n : mb2.n);
    return place(mb2.bytes, n ? n : mb2.n);
}

/* ---- what must come of it ---- */

void add(uint64_t addr, uint64_t size, uint32_t type)
{
    map[map_count++] = (struct entry){ addr, size, type };
}

static int by_start(const void *a, const void *b)
{
    const struct range *x = a, *y = b;

    return x->start < y->start ? -1 : x->start > y->start;
}

unsigned expected_map(struct range *want)
{
    unsigned n = 0, united = 0;

    for (unsigned i = 0; i < map_count; i++) {
        __extension__ unsigned __int128 end = (unsigned __int128)map[i].addr + map[i].size, start = map[i].addr;
        start = start < LOW ? LOW : (start + PAGE - 1) / PAGE * PAGE;
        end = end / PAGE * PAGE;
        if (map[i].type == 1 && end < (unsigned __int128)1 << 64 && start < end)
            want[n++] = (struct range){ (uint64_t)start, (uint64_t)end };
    }
    qsort(want, n, sizeof(*want), by_start);
    for (unsigned i = 0; i < n; i++) {
        if (united > 0 && want[i].start <= want[united - 1].end)
            want[united - 1].end = want[i].end > want[united - 1].end ? want[i].end : want[united - 1].end;
        else
            want[united++] = want[i];
    }
    return united;
}

void check_form(void)
{
    assert_true(shared.ram_count <= SHARED_MAX_RAM);
    for (uint32_t i = 0; i < shared.ram_count; i++) {
        const struct range *r = &shared.ram[i];
        check(r->start >= LOW && r->start < r->end && r->start % PAGE == 0 && r->end % PAGE == 0, "%llx to %llx",
              (unsigned long long)r->start, (unsigned long long)r->end);
        check(i == 0 || r->start > shared.ram[i - 1].end, "%llx follows %llx", (unsigned long long)r->start,
              (unsigned long long)shared.ram[i - 1].end);
    }
}

/* The highest whole page below 640 KiB of any usable entry, 0 if there is none but page 0. */
static uint64_t expected_low_page(void)
{
    uint64_t best = 0;

    for (unsigned i = 0; i < map_count; i++) {
        for (uint64_t page = PAGE; page < 0xa0000 && map[i].addr < 0xa0000; page += PAGE) {
            if (map[i].type == 1 && map[i].addr <= page && map[i].addr + map[i].size >= page + PAGE && page > best)
                best = page;
        }
    }
    return best;
}

void check_map(void)
{
    struct range want[ENTRIES];
    unsigned n = expected_map(want);

    check_form();
    assert_int_equal(shared.low_page, expected_low_page());
    assert_int_equal(shared.ram_count, n < SHARED_MAX_RAM ? n : SHARED_MAX_RAM);
    for (uint32_t i = 0; i < shared.ram_count; i++)
        check(shared.ram[i].start == want[i].start && shared.ram[i].end == want[i].end,
              "%llx to %llx, not %llx to %llx", (unsigned long long)shared.ram[i].start,
              (unsigned long long)shared.ram[i].end, (unsigned long long)want[i].start,
              (unsigned long long)want[i].end);
}

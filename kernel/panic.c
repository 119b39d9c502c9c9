#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "kernel/acpi.h"
#include "kernel/console.h"
#include "kernel/panic.h"
#include "kernel/x86.h"

#define BACKTRACE_MAX 24
#define DEBUG_EXIT    0xf4

/* The table that tools/symbols.py makes: the number of functions, their offsets from the image's start (rising), where
 * their names begin, the names. */
struct symbol_table {
    uint32_t count;
    uint32_t words[]; /* [count] offsets, [count] name offsets */
};

static const struct shared *shared;
static const struct world *world;
static bool panicking;

void panic_init(const struct shared *s, const struct world *w)
{
    shared = s;
    world = w;
}

static bool within(const struct range *r, uint64_t address)
{
    return address >= r->start && address < r->end;
}

/* Name of the function at `pc` and the distance into it; "?" when there is none. */
static const char *symbol_at(uint64_t pc, uint64_t *into)
{
    const struct symbol_table *t = shared != NULL ? shared->symbols : NULL;
    *into = 0;
    if (t == NULL || !within(&world->segment[0].at, pc))
        return "?";
    uint64_t offset = pc - world->at.start;
    uint32_t low = 0, high = t->count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (t->words[mid] <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == 0)
        return "?";
    *into = offset - t->words[low - 1];
    return (const char *)&t->words[2 * t->count] + t->words[t->count + low - 1];
}

/* What a word on the stack may be. */
enum word { NO_ADDRESS, CALL_OF_OTHER, CALL_OF_THIS };

/* Says whether `pc` is a return address: in the program's text, behind a call; and if that call goes to `function` (an
 * indirect one may). */
static enum word judge(uint64_t pc, uint64_t function)
{
    if (world == NULL || !within(&world->segment[0].at, pc - 7) || !within(&world->segment[0].at, pc))
        return NO_ADDRESS;
    const uint8_t *p = (const uint8_t *)pc;
    if (p[-5] == 0xe8) { /* call rel32 */
        int32_t distance;
        memcpy(&distance, p - 4, sizeof distance);
        return pc + (uint64_t)(int64_t)distance == function ? CALL_OF_THIS : CALL_OF_OTHER;
    }
    for (int length = 2; length <= 7; length++) /* call r/m64: ff /2, with any addressing */
        if (p[-length] == 0xff && (p[-length + 1] & 0x38) == 0x10)
            return CALL_OF_THIS;
    return NO_ADDRESS;
}

/* Prints one line; returns the address where the function starts. */
static uint64_t print_frame(unsigned number, uint64_t pc, const char *doubt)
{
    uint64_t into;
    const char *name = symbol_at(pc, &into);
    console_plain("  #%u %016llx %s%s+0x%llx", number, (unsigned long long)pc, doubt, name, (unsigned long long)into);
    return pc - into;
}

/* The stack that *sp points into. One that has run over into its guard page is looked at from its end. NULL: none of
 * ours. */
static const struct range *stack_of(uint64_t *sp)
{
    const struct range *stacks[] = { &world->stack, &world->ist };
    for (int i = 0; i < 2; i++) {
        if (within(stacks[i], *sp))
            return stacks[i];
        if (*sp - world->guard[i] < stacks[i]->start - world->guard[i]) {
            *sp = stacks[i]->start;
            return stacks[i];
        }
    }
    return NULL;
}

void backtrace(uint64_t pc, uint64_t sp)
{
    unsigned n = 0;
    console_plain("backtrace:");
    uint64_t function = print_frame(n++, pc, "");
    const struct range *stack = world != NULL ? stack_of(&sp) : NULL;
    for (sp = (sp + 7) & ~7ull; stack != NULL && sp < stack->end && n < BACKTRACE_MAX; sp += 8) {
        uint64_t value = *(const uint64_t *)sp;
        enum word word = value == pc && n == 1 ? NO_ADDRESS : judge(value, function);
        if (word == CALL_OF_THIS)
            function = print_frame(n++, value, "");
        else if (word == CALL_OF_OTHER)
            print_frame(n++, value, "? ");
    }
}

void panic(const char *format, ...)
{
    char text[600];
    va_list args;
    __asm__ volatile("cli");
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    console_plain("panic: %s", text);
    if (!panicking) { /* a fault on the way down must not go round */
        panicking = true;
        backtrace((uint64_t)__builtin_return_address(0), (uint64_t)__builtin_frame_address(0));
    }
    machine_exit(EXIT_PANIC);
}

void machine_exit(enum exit_value value)
{
    outl(DEBUG_EXIT, value);
    acpi_power_off();
    for (;;) /* both may act a little later */
        __asm__ volatile("cli; hlt");
}

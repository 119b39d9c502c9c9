/* Every core has its own copy of every variable. Each core puts its number into a variable and later, when all run and
 * packets could flow, finds it unchanged; core 0 looks into the others' copies of that same variable, which must hold
 * the others' numbers, at other addresses, and checks that the others' text is the same as its own. Ends well, or by
 * panic with what is wrong. */
#include <string.h>
#include "apps/app.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/panic.h"
#include "kernel/public.h"
#include "lwip/timeouts.h"

#define AFTER_MS 700 /* all cores have gone through their loops by then, if they are not many more than real ones */
#define LOOKS    30
#define NOBODY   0xffffffffu

static volatile unsigned mark = NOBODY;
static volatile uint64_t turns; /* a counter that every core counts up by itself */

/* Where core `core` has its copy of our object at `mine`. */
static const volatile void *copy_of(const volatile void *mine, unsigned core)
{
    uint64_t offset = (uint64_t)mine - core_world()->segment[0].at.start;
    return (const volatile void *)(core_shared()->core[core].world.segment[0].at.start + offset);
}

static bool has_counted(unsigned core)
{
    return *(const volatile uint64_t *)copy_of(&turns, core) != 0;
}

static void compare(unsigned core)
{
    unsigned theirs = *(const volatile unsigned *)copy_of(&mark, core);
    if (theirs != core)
        panic("core %u's copy of the variable holds %u", core, theirs);
    if (!has_counted(core))
        panic("core %u has not counted", core);
    /* Text has no relocations (the linker was told to refuse them), so the copies are the same to the byte. */
    const struct range *text = &core_world()->segment[0].at;
    if (memcmp((const void *)text->start, (const void *)copy_of((const void *)text->start, core),
               text->end - text->start) != 0)
        panic("core %u's text differs from core 0's", core);
}

static void look(void *argument)
{
    static unsigned looks;
    if (mark != core_number())
        panic("this core's variable holds %u", mark);
    if (core_number() != 0)
        return;
    for (unsigned core = 1; core < core_shared()->public_area->pairs; core++)
        if (!has_counted(core) && ++looks < LOOKS) {
            sys_timeout(AFTER_MS, look, argument);
            return;
        }
    for (unsigned core = 1; core < core_shared()->public_area->pairs; core++)
        compare(core);
    log_info("guest", "worlds are private: %u cores", core_shared()->public_area->pairs);
    machine_exit(EXIT_WELL);
}

static void count(void *argument)
{
    turns++;
    sys_timeout(20, count, argument);
}

static bool start(void)
{
    if (mark != NOBODY)
        panic("the variable held %u before this core set it", mark);
    mark = core_number();
    sys_timeout(AFTER_MS, look, NULL);
    sys_timeout(20, count, NULL);
    return true;
}

APP(worlds, .ports = "a check", .start = start);

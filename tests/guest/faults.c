/* Tiny applications that each do one forbidden thing as they start: the guest must end with a panic that names it. They
 * are linked into the test image only, and chosen by apps=. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "apps/app.h"
#include "kernel/console.h"
#include "kernel/core.h"
#include "kernel/panic.h"

/* If the deed goes unpunished the guest ends well, which the test takes for failure. */
static bool survived(const char *what)
{
    log_error("guest", "%s went unpunished", what);
    machine_exit(EXIT_WELL);
}

static bool store(const char *what, uint64_t address)
{
    log_info("guest", "about to write to %llx (%s)", (unsigned long long)address, what);
    *(volatile uint8_t *)address = 0xcc;
    return survived(what);
}

static bool load(const char *what, uint64_t address)
{
    volatile uint8_t sink = *(volatile uint8_t *)address;
    (void)sink;
    return survived(what);
}

static const uint8_t ret_instruction[] = { 0xc3 };

/* Puts a `ret` at `place` and calls it. */
static bool execute(const char *what, void *place)
{
    log_info("guest", "about to execute %p (%s)", place, what);
    memcpy(place, ret_instruction, sizeof ret_instruction);
    ((void (*)(void))place)();
    return survived(what);
}

static uint64_t segment_of(const struct segment *s, uint32_t count, uint32_t flags)
{
    for (uint32_t i = 0; i < count; i++)
        if (s[i].flags == flags)
            return s[i].at.start;
    panic("no segment with flags %u", flags);
}

static bool write_text(void)
{
    return store("text", (uint64_t)&write_text);
}

static bool write_rodata(void)
{
    return store("read-only data", (uint64_t)ret_instruction);
}

static bool write_relocated(void)
{
    return store("the table of applications", (uint64_t)apps_start);
}

static bool write_image(void)
{
    return store("the pristine image", core_shared()->image.start);
}

static bool write_loader(void)
{
    return store("the loader's text",
                 segment_of(core_shared()->loader_segment, core_shared()->loader_segment_count, 5));
}

static bool exec_data(void)
{
    static uint8_t place[16];
    return execute("data", place);
}

static bool exec_stack(void)
{
    uint8_t place[16];
    return execute("the stack", place);
}

static bool exec_heap(void)
{
    return execute("the heap", malloc(64));
}

static bool exec_loader_data(void)
{
    const struct shared *s = core_shared();
    return execute("the loader's data", (void *)segment_of(s->loader_segment, s->loader_segment_count, 6));
}

static bool exec_rodata(void)
{
    ((void (*)(void))(uintptr_t)ret_instruction)();
    return survived("executing read-only data");
}

static bool read_null(void)
{
    return load("reading page 0", 8);
}

static bool write_null(void)
{
    return store("page 0", 4095);
}

static bool read_guard(void)
{
    return load("reading the guard page under the stack", core_world()->guard[0] + 4095);
}

/* Goes deeper as long as it is asked to. */
static __attribute__((noinline)) uint64_t deeper(volatile const uint8_t *on)
{
    volatile uint8_t here[512];
    here[100] = on[0];
    return (on[0] != 0 ? deeper(on) : 0) + here[100];
}

static bool stack_overflow(void)
{
    volatile uint8_t on = 1;
    deeper(&on);
    return survived("using up the stack");
}

static bool divide(void)
{
    uint32_t quotient = 1, rest = 0;
    __asm__ volatile("divl %2" : "+a"(quotient), "+d"(rest) : "r"(0));
    return survived("dividing by zero");
}

static bool bad_opcode(void)
{
    __asm__ volatile("ud2");
    return survived("an invalid opcode");
}

static bool free_twice(void)
{
    void *p = malloc(64);
    free(p);
    free(p);
    return survived("freeing twice");
}

static bool plain_panic(void)
{
    panic("as asked");
}

#define FAULT(function) APP(function, .ports = "a fault", .start = function)
FAULT(write_text);
FAULT(write_rodata);
FAULT(write_relocated);
FAULT(write_image);
FAULT(write_loader);
FAULT(exec_data);
FAULT(exec_stack);
FAULT(exec_heap);
FAULT(exec_loader_data);
FAULT(exec_rodata);
FAULT(read_null);
FAULT(write_null);
FAULT(read_guard);
FAULT(stack_overflow);
FAULT(divide);
FAULT(bad_opcode);
FAULT(free_twice);
FAULT(plain_panic);

/* The end of a run: well, by panic, or with conformance failures. */
#ifndef RINGSIDE_PANIC_H
#define RINGSIDE_PANIC_H
#include <stdint.h>
#include "kernel/shared.h"

enum exit_value { EXIT_WELL = 0, EXIT_PANIC = 1, EXIT_CONFORM = 2 };

/* Tells the panic path what it needs to name addresses. */
void panic_init(const struct shared *shared, const struct world *world);

/* Prints `panic: text` and a backtrace, and leaves with the panic code. */
_Noreturn void panic(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints the functions whose calls are on the stack from `sp` on, `pc` first. The code has no frame pointers: the stack
 * is searched for addresses behind call instructions. One whose call does not go to the function above it is marked
 * `?`: it may be a leftover of an earlier call, or the function above was entered by a jump. */
void backtrace(uint64_t pc, uint64_t sp);

/* Leaves QEMU with exit code value * 2 + 1 through isa-debug-exit; without that device by ACPI power-off; without that
 * by halting. */
_Noreturn void machine_exit(enum exit_value value);
#endif

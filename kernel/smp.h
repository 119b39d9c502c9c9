/* Further cores: their copies of the program, their start (Intel SDM 3, 8.4.4; INIT, then SIPI). Core 0 only, but for
 * core_wake(). */
#ifndef RINGSIDE_SMP_H
#define RINGSIDE_SMP_H
#include <stdbool.h>
#include <stdint.h>
#include "kernel/shared.h"

/* Divides what memory is left among at most `want` cores (core 0 among them), makes the copies of those for which there
 * is WORLD_HEAP_MIN, and starts them, each given a second to answer. Fills shared->core[] and core_count, and says on
 * the console which cores stay parked and why. Returns how many run, core 0 counted. */
unsigned smp_start(struct shared *shared, unsigned want);

/* Waits, at most two seconds, until core `core`'s public state is no longer `state`. Returns the state. */
uint32_t smp_wait(const struct shared *shared, unsigned core, uint32_t state);

/* Sends core `core` an interrupt that ends its halt. */
void core_wake(const struct shared *shared, unsigned core);

#define WORLD_HEAP_MIN (2u << 20)
#endif

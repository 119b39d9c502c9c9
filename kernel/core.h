/* This core. */
#ifndef RINGSIDE_CORE_H
#define RINGSIDE_CORE_H
#include "kernel/shared.h"

/* What start-up found, the same for all cores. */
const struct shared *core_shared(void);

/* This core's number: 0 is the one that booted. */
unsigned core_number(void);

/* Where this core's copy of the program and its stacks lie. */
const struct world *core_world(void);
#endif

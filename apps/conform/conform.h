/* `conform` on the boot line: checks of the device and its backend as a driver sees them, printed as TAP
 * (docs/conform.md). */
#ifndef RINGSIDE_CONFORM_H
#define RINGSIDE_CONFORM_H
#include "kernel/bootline.h"
#include "kernel/pci.h"

/* NULL if the area is known or "" (all); else the sentence that says what is valid. */
const char *conform_problem(const char *area);

/* Runs the checks and ends the machine: EXIT_WELL, or EXIT_CONFORM if one failed. Core 0, before the heap and the stack
 * exist. */
_Noreturn void conform_run(const struct bootline *boot, const struct pci_device *pci);
#endif

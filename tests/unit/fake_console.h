/* The console's log_line(), kept instead of printed: what the code under test has said. */
#ifndef RINGSIDE_FAKE_CONSOLE_H
#define RINGSIDE_FAKE_CONSOLE_H
#include "kernel/console.h"

/* Forgets all lines. */
void fake_console_clear(void);

/* Lines since the last clearing that are at least as grave as `level`. */
unsigned fake_console_count(enum log_level level);

/* The last line at least as grave as `level` that has `part` in it, as `area: text`; NULL: none. Only the last 64 lines
 * are kept. */
const char *fake_console_find(enum log_level level, const char *part);
#endif

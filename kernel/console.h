/* The console: COM1, one line per event, `[seconds.micros cN] area: text`. */
#ifndef RINGSIDE_CONSOLE_H
#define RINGSIDE_CONSOLE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernel/bootline.h"

/* Sets up COM1 (115200 8N1, FIFO on; 16550 data sheet) for core `id`. Lines are cut at 1,000 characters. */
void console_init(unsigned id);

/* From now on lines of several cores are kept whole by this lock, which they share. It is waited for a moment only: the
 * core that has it may have died. */
void console_share(uint32_t *lock);

/* Lines below this level are not printed. */
void console_level(enum log_level level);

/* True if a line of this level would be printed. */
bool console_shows(enum log_level level);

/* Prints one line; control characters in it become '?'. `area` names the part that speaks: boot, net, virtio, ... */
void log_line(enum log_level level, const char *area, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define log_error(area, ...) log_line(LOG_ERROR, area, __VA_ARGS__)
#define log_warn(area, ...)  log_line(LOG_WARN, area, __VA_ARGS__)
#define log_info(area, ...)  log_line(LOG_INFO, area, __VA_ARGS__)
#define log_debug(area, ...) log_line(LOG_DEBUG, area, __VA_ARGS__)

/* Writes bytes as they are; '\n' becomes CR LF. For the panic path, and for lines that programs look for. */
void console_write(const char *text, size_t n);

/* Prints one line without the prefix (the `ringside:` and `panic:` lines of the contract), whatever the level. */
void console_plain(const char *format, ...) __attribute__((format(printf, 1, 2)));
#endif

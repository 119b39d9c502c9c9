/* Log lines, kept. See fake_console.h. */
#include "tests/unit/fake_console.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define KEPT 64

static struct {
    enum log_level level;
    char text[1100];
} line[KEPT];
static unsigned said, of_level[LOG_DEBUG + 1];

void fake_console_clear(void)
{
    said = 0;
    memset(of_level, 0, sizeof(of_level));
}

unsigned fake_console_count(enum log_level level)
{
    unsigned n = 0;

    for (unsigned i = 0; i <= (unsigned)level; i++)
        n += of_level[i];
    return n;
}

const char *fake_console_find(enum log_level level, const char *part)
{
    for (unsigned i = said; i > 0 && said - i < KEPT; i--) {
        if (line[(i - 1) % KEPT].level <= level && strstr(line[(i - 1) % KEPT].text, part))
            return line[(i - 1) % KEPT].text;
    }
    return NULL;
}

void log_line(enum log_level level, const char *area, const char *format, ...)
{
    char *text = line[said % KEPT].text;
    int n = snprintf(text, sizeof(line[0].text), "%s: ", area);
    va_list args;

    line[said % KEPT].level = level;
    va_start(args, format);
    vsnprintf(text + n, sizeof(line[0].text) - (size_t)n, format, args);
    va_end(args);
    said++;
    of_level[level]++;
}

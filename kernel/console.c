#include <stdarg.h>
#include <stdio.h>
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/x86.h"

#define COM1       0x3f8
#define LINE_MAX   1000
#define LOCK_TRIES 1000000u

static enum log_level shown = LOG_INFO;
static unsigned core_id;
static uint32_t *lock;

void console_init(unsigned id)
{
    core_id = id;
    outb(COM1 + 1, 0);    /* no interrupts */
    outb(COM1 + 3, 0x80); /* divisor latch */
    outb(COM1 + 0, 1);    /* 115200 */
    outb(COM1 + 1, 0);
    outb(COM1 + 3, 3); /* 8N1 */
    outb(COM1 + 2, 7); /* FIFOs on and cleared */
    outb(COM1 + 4, 3); /* DTR, RTS */
}

void console_share(uint32_t *l)
{
    lock = l;
}

void console_level(enum log_level level)
{
    shown = level;
}

bool console_shows(enum log_level level)
{
    return level <= shown;
}

static void put(char c)
{
    /* A transmitter that never gets ready costs a moment, not the guest. */
    for (unsigned tries = 0; tries < 10000 && !(inb(COM1 + 5) & 0x20); tries++)
        cpu_relax();
    outb(COM1, (uint8_t)c);
}

void console_write(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n')
            put('\r');
        put(text[i]);
    }
}

/* Lines of several cores are not to be torn. Whoever holds the lock for too long loses it: a panic must be seen. */
static void take_lock(void)
{
    for (unsigned tries = 0; lock != NULL && __atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE) != 0; tries++) {
        if (tries > LOCK_TRIES)
            break;
        cpu_relax();
    }
}

static void release_lock(void)
{
    if (lock != NULL)
        __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

/* Prints a formatted line, made harmless: what came from a device or a peer may hold any byte. */
static void write_line(char *line, int n)
{
    if (n < 0)
        return;
    size_t length = n < LINE_MAX ? (size_t)n : LINE_MAX - 1;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)line[i] < ' ' || (unsigned char)line[i] > '~')
            line[i] = '?';
    line[length] = '\n';
    console_write(line, length + 1);
}

static int prefix(char *line, const char *area)
{
    uint64_t us = clock_ns() / 1000;
    return snprintf(line, LINE_MAX, "[%llu.%06llu c%u] %s: ", (unsigned long long)(us / 1000000),
                    (unsigned long long)(us % 1000000), core_id, area);
}

void log_line(enum log_level level, const char *area, const char *format, ...)
{
    char line[LINE_MAX + 1];
    if (!console_shows(level))
        return;
    take_lock(); /* before the time is taken: it goes forward from line to line */
    int n = prefix(line, area);
    va_list args;
    va_start(args, format);
    n += vsnprintf(line + n, (size_t)(LINE_MAX - n), format, args);
    va_end(args);
    write_line(line, n);
    release_lock();
}

void console_plain(const char *format, ...)
{
    char line[LINE_MAX + 1];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, LINE_MAX, format, args);
    va_end(args);
    take_lock();
    write_line(line, n);
    release_lock();
}

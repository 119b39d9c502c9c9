/* The system interface that newlib expects (no underscore on x86_64-elf). There are no files: standard output is the
 * console. */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "kernel/console.h"
#include "kernel/panic.h"
#undef errno
extern int errno;

int write(int fd, const char *text, int n);
int read(int fd, char *to, int n);
int close(int fd);
int fstat(int fd, struct stat *st);
int isatty(int fd);
int lseek(int fd, int offset, int whence);
int getpid(void);
int kill(int pid, int signal);
void *sbrk(ptrdiff_t n);
_Noreturn void _exit(int code);

int write(int fd, const char *text, int n)
{
    (void)fd;
    console_write(text, (size_t)n);
    return n;
}

int read(int fd, char *to, int n)
{
    (void)fd, (void)to, (void)n;
    return 0;
}

int close(int fd)
{
    (void)fd;
    errno = EBADF;
    return -1;
}

int fstat(int fd, struct stat *st)
{
    (void)fd;
    st->st_mode = S_IFCHR;
    st->st_blksize = 0;
    return 0;
}

int isatty(int fd)
{
    (void)fd;
    return 1;
}

int lseek(int fd, int offset, int whence)
{
    (void)fd, (void)offset, (void)whence;
    return 0;
}

int getpid(void)
{
    return 1;
}

int kill(int pid, int signal)
{
    (void)pid, (void)signal;
    errno = EINVAL;
    return -1;
}

void *sbrk(ptrdiff_t n)
{
    (void)n; /* the heap is kernel/memory.c's */
    errno = ENOMEM;
    return (void *)-1;
}

_Noreturn void _exit(int code)
{
    panic("_exit(%d): the C library gave up", code);
}

_Noreturn void __assert_func(const char *file, int line, const char *function, const char *what)
{
    panic("newlib: %s (%s:%d, %s)", what, file, line, function != NULL ? function : "?");
}

_Noreturn void abort(void)
{
    panic("abort()");
}

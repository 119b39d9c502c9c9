// Uses the guest's C library on the host, in a program of its own (no other C library, system calls by hand), and
// prints what test_setup.py expects. What is defined here is all that the library asks of the kernel.
#include <ctype.h>
#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SYS_WRITE = 1, SYS_EXIT = 60 };

static long system_call(long number, long a, long b, long c)
{
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return r;
}

int write(int fd, const void *data, size_t size)
{
    return (int)system_call(SYS_WRITE, fd, (long)data, (long)size);
}

int read(int fd, void *data, size_t size)
{
    (void)fd, (void)data, (void)size;
    return 0;
}

int close(int fd)
{
    (void)fd;
    return 0;
}

off_t lseek(int fd, off_t offset, int whence)
{
    (void)fd, (void)offset, (void)whence;
    return 0;
}

int fstat(int fd, struct stat *s)
{
    (void)fd;
    s->st_mode = S_IFCHR;
    return 0;
}

int isatty(int fd)
{
    (void)fd;
    return 1;
}

void __assert_func(const char *file, int line, const char *function, const char *text)
{
    (void)file, (void)line, (void)function, (void)text;
    system_call(SYS_EXIT, 99, 0, 0);
    for (;;)
        ;
}

static char heap[1 << 16];
static size_t heap_used;

void *_malloc_r(struct _reent *r, size_t size)
{
    (void)r;
    void *p = heap + heap_used;
    heap_used += (size + 15) & ~(size_t)15;
    return p;
}

void *_calloc_r(struct _reent *r, size_t n, size_t size)
{
    return memset(_malloc_r(r, n * size), 0, n * size);
}

void *_realloc_r(struct _reent *r, void *old, size_t size)
{
    void *p = _malloc_r(r, size);
    return old ? memcpy(p, old, size) : p;
}

void _free_r(struct _reent *r, void *p)
{
    (void)r, (void)p;
}

void *malloc(size_t size)
{
    return _malloc_r(0, size);
}

void *realloc(void *p, size_t size)
{
    return _realloc_r(0, p, size);
}

void free(void *p)
{
    (void)p;
}

// The barriers keep the compiler from seeing the very function it is to call in these loops.
void *memcpy(void *to, const void *from, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        ((char *)to)[i] = ((const char *)from)[i];
        __asm__ volatile("");
    }
    return to;
}

void *memmove(void *to, const void *from, size_t size)
{
    if (to < from)
        return memcpy(to, from, size);
    while (size--) {
        ((char *)to)[size] = ((const char *)from)[size];
        __asm__ volatile("");
    }
    return to;
}

void *memset(void *to, int value, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        ((char *)to)[i] = (char)value;
        __asm__ volatile("");
    }
    return to;
}

static int by_value(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static void numbers(void)
{
    char text[160];
    int n = snprintf(text, sizeof text, "%5.2f|%g|%e|%a|%lld|%zu|%#x|%p|%-5d|%+d|%c|%.3s|%*d|%05u|%%", 3.14159, 1e300,
                     1.5, 1.5, -1234567890123LL, (size_t)7, 255, (void *)16, 3, 4, 'c', "abcdef", 4, 2, 42u);
    printf("%s %d\n", text, n);
    printf("%d\n", snprintf(text, 4, "%s", "cut off"));
    printf("%.3f %ld %lu %lld\n", strtod("2.5e3x", 0), strtol("-0x10", 0, 0), strtoul("077", 0, 8),
           strtoll("99", 0, 10));
    errno = 0;
    long most = strtol("99999999999999999999", 0, 10);
    printf("%d %d %s\n", most > 0, errno == ERANGE, strerror(ERANGE));
}

static void strings(void)
{
    char text[32] = "a,b";
    char *rest;
    printf("%s", strtok_r(text, ",", &rest));
    printf(" %s", strtok_r(0, ",", &rest));
    printf(" %s %d %d\n", strstr("hello", "ll"), isxdigit('f') != 0, isxdigit('g') != 0);
    int values[] = { 5, 3, 9, 1 };
    qsort(values, 4, sizeof values[0], by_value);
    printf("%d %d %d %d\n", values[0], values[1], values[2], values[3]);
}

static void jumps(void)
{
    static jmp_buf env;
    volatile int count = 0;
    int back = setjmp(env);
    if (back < 3) {
        count++;
        longjmp(env, back + 1);
    }
    printf("%d %d\n", back, count);
}

void check(void)
{
    numbers();
    strings();
    jumps();
    fflush(stdout);
    system_call(SYS_EXIT, 0, 0, 0);
}

__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call check");

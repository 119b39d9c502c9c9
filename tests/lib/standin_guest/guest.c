// A stand-in guest for the harness's own tests: speaks the contract's console and exit codes, drives nothing.
// The boot line's words choose what it does: "panic", "twice" (two ready lines), "hang" (ignores the power button).
#include <stdint.h>

enum {
    COM1 = 0x3f8,
    COM1_STATUS = COM1 + 5,
    EXIT_PORT = 0xf4,
    PM1_STATUS = 0x600,
    PM1_ENABLE = 0x602,
    POWER_BUTTON = 1 << 8
};

struct multiboot1 {
    uint32_t flags, lower, upper, boot_device;
    const char *command_line;
};

struct pvh {
    uint32_t magic, version, flags, modules;
    uint64_t module_list, command_line;
};

static inline void out8(uint16_t port, uint8_t v)
{
    __asm__ volatile("outb %0, %1" : : "a"(v), "Nd"(port));
}

static inline void out16(uint16_t port, uint16_t v)
{
    __asm__ volatile("outw %0, %1" : : "a"(v), "Nd"(port));
}

static inline uint8_t in8(uint16_t port)
{
    uint8_t v;
    __asm__ volatile("inb %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}

static inline uint16_t in16(uint16_t port)
{
    uint16_t v;
    __asm__ volatile("inw %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}

static void say(const char *text)
{
    for (; *text; text++) {
        while (!(in8(COM1_STATUS) & 0x20))
            ;
        out8(COM1, (uint8_t)*text);
    }
}

static int has(const char *line, const char *word)
{
    for (; *line; line++) {
        const char *a = line, *b = word;
        while (*b && *a == *b)
            a++, b++;
        if (!*b)
            return 1;
    }
    return 0;
}

static void leave(uint8_t value)
{
    out8(EXIT_PORT, value);
    for (;;)
        __asm__ volatile("cli; hlt");
}

// Multiboot 2, section 3.6.3: tag type 1 is the command line.
static const char *multiboot2_line(const uint8_t *info)
{
    for (const uint8_t *tag = info + 8; *(const uint32_t *)tag; tag += (((const uint32_t *)tag)[1] + 7) & ~7u)
        if (*(const uint32_t *)tag == 1)
            return (const char *)tag + 8;
    return "";
}

// magic: what the boot loader left in eax; info: ebx.
void guest_main(uint32_t magic, const void *info)
{
    const char *line = "", *by = "pvh";
    if (magic == 0x2BADB002) {
        line = ((const struct multiboot1 *)info)->command_line;
        by = "multiboot1";
    } else if (magic == 0x36d76289) {
        line = multiboot2_line(info);
        by = "multiboot2";
    } else if (((const struct pvh *)info)->command_line) {
        line = (const char *)(uint32_t)((const struct pvh *)info)->command_line;
    }
    say("[0.000001 c0] boot: by ");
    say(by);
    say(", line \"");
    say(line);
    say("\"\r\n");
    if (has(line, "panic")) {
        say("panic: bad value for panic\r\n");
        leave(1);
    }
    out16(PM1_ENABLE, POWER_BUTTON); // the status bit is only set while enabled
    for (int i = 0; i < (has(line, "twice") ? 2 : 1); i++)
        say("ringside: ready ip=none ip6=none mac=52:54:00:12:34:56 cores=1 queues=1 features=mac,status\r\n");
    while (has(line, "hang") || !(in16(PM1_STATUS) & POWER_BUTTON))
        ;
    leave(0);
}

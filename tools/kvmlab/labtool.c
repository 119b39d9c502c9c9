/* labtool: what the emulated machine of the nested-KVM lab needs beside busybox.
 *
 *   labtool exit VALUE           writes VALUE to QEMU's isa-debug-exit port, which ends the emulation
 *   labtool tap NAME QUEUES      makes a tap device that stays; with more than one queue, a multi-queue one
 *   labtool hmp SOCKET COMMAND   asks a QEMU monitor on a unix socket and prints the answer
 *
 * Exit status: 0 well, 1 failed (one line on standard error), 2 usage. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>
#include <unistd.h>

#define EXIT_PORT  0xf4
#define HMP_WAIT   5000 /* ms without a byte from the monitor */
#define HMP_PROMPT "(qemu) "

static int fail(const char *what)
{
    fprintf(stderr, "labtool: %s: %s\n", what, strerror(errno));
    return 1;
}

/* The cloud kernel has no /dev/port, hence iopl. What was printed is let out first: nothing runs after the write. */
static int leave(const char *value)
{
    tcdrain(STDOUT_FILENO);
    if (iopl(3) != 0)
        return fail("iopl");
    outb((unsigned char)atoi(value), EXIT_PORT);
    errno = ENODEV;
    return fail("isa-debug-exit");
}

static int make_tap(const char *name, int queues)
{
    struct ifreq ifr = { .ifr_flags = IFF_TAP | IFF_NO_PI | (queues > 1 ? IFF_MULTI_QUEUE : 0) };
    snprintf(ifr.ifr_name, sizeof ifr.ifr_name, "%s", name);
    int fd = open("/dev/net/tun", O_RDWR);
    if (fd < 0)
        return fail("/dev/net/tun");
    if (ioctl(fd, TUNSETIFF, &ifr) != 0 || ioctl(fd, TUNSETPERSIST, 1) != 0)
        return fail(name);
    close(fd);
    return 0;
}

/* Reads up to the monitor's next prompt; returns a string to free, without the prompt, or NULL. */
static char *read_answer(int fd)
{
    char *text = NULL;
    size_t length = 0;
    for (;;) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        char *more = realloc(text, length + 4096 + 1);
        if (!more || poll(&p, 1, HMP_WAIT) <= 0)
            break;
        text = more;
        ssize_t n = read(fd, text + length, 4096);
        if (n <= 0)
            break;
        length += (size_t)n;
        text[length] = '\0';
        size_t prompt = strlen(HMP_PROMPT);
        if (length >= prompt && strcmp(text + length - prompt, HMP_PROMPT) == 0) {
            text[length - prompt] = '\0';
            return text;
        }
    }
    free(text);
    return NULL;
}

static int ask_monitor(const char *path, const char *command)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        return fail(path);
    char *banner = read_answer(fd);
    if (!banner || dprintf(fd, "%s\n", command) < 0)
        return fail("no prompt from the monitor");
    char *answer = read_answer(fd);
    if (!answer)
        return fail("no answer from the monitor");
    /* The monitor's line editor echoes the command with every state of the line; the answer starts after that. */
    char *start = strchr(answer, '\n');
    fputs(start ? start + 1 : answer, stdout);
    free(banner);
    free(answer);
    close(fd);
    return 0;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (argc == 3 && strcmp(verb, "exit") == 0)
        return leave(argv[2]);
    if (argc == 4 && strcmp(verb, "tap") == 0)
        return make_tap(argv[2], atoi(argv[3]));
    if (argc == 4 && strcmp(verb, "hmp") == 0)
        return ask_monitor(argv[2], argv[3]);
    fputs("usage: labtool exit VALUE | tap NAME QUEUES | hmp SOCKET COMMAND\n", stderr);
    return 2;
}

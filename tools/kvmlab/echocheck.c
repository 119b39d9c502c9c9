/* echocheck: sends bytes to an echo server and compares what comes back.
 *
 *   echocheck tcp ADDRESS PORT BYTES [SECONDS]
 *   echocheck udp ADDRESS PORT DATAGRAMS [LARGEST [SECONDS]]
 *
 * tcp: one connection; sends and receives at once, then ends its half and wants the peer's end after the last byte.
 * udp: datagrams of 4 to LARGEST bytes (1472), at most WINDOW on the way; each must come back once, whole, from the
 *      address it went to. Nothing is sent again; LOSS_MS without any coming back is a failure.
 * ADDRESS is numeric, IPv4 or IPv6 (fe80::1%tap0). SECONDS is the deadline for all, 30 if not given.
 * Prints one line. Exit status: 0 all came back equal, 1 not (the line says what), 2 usage. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WINDOW       8
#define LOSS_MS      2000
#define UDP_MAX      65507
#define UDP_SMALLEST 4
#define UDP_ETHERNET 1472
#define DATAGRAMS    1000000 /* at most */
#define SECONDS      30

static double deadline, begun;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *form, ...)
{
    va_list ap;
    va_start(ap, form);
    fputs("echocheck: FAILED: ", stdout);
    vprintf(form, ap);
    printf(" (after %.2f s)\n", now() - begun);
    va_end(ap);
    exit(1);
}

/* The byte at an offset of the stream: no two places of the stream have the same surroundings, so that a lost,
 * doubled or moved piece shows, not only a changed byte. (splitmix64 of the word's number) */
static uint8_t byte_at(uint64_t offset)
{
    uint64_t z = (offset / 8 + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint8_t)((z ^ (z >> 31)) >> (8 * (offset % 8)));
}

static void fill(uint8_t *p, size_t n, uint64_t offset)
{
    for (size_t i = 0; i < n; i++)
        p[i] = byte_at(offset + i);
}

/* Index of the first byte that is not the stream's, n if all are. */
static size_t differs(const uint8_t *p, size_t n, uint64_t offset)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != byte_at(offset + i))
            return i;
    return n;
}

/* Waits for events until the deadline (seconds on now()'s clock); returns what is ready, 0 when the time is up. */
static short wait_for(int fd, short events, double until)
{
    struct pollfd p = { .fd = fd, .events = events };
    double left = until - now();
    if (left <= 0 || poll(&p, 1, (int)(left * 1000) + 1) <= 0)
        return 0;
    return p.revents;
}

/* Address and port as text; returns the size of what it put into *to, ends with status 2 if it is not one. */
static socklen_t parse_address(const char *address, uint16_t port, struct sockaddr_storage *to)
{
    struct sockaddr_in *v4 = (void *)to;
    struct sockaddr_in6 *v6 = (void *)to;
    char host[INET6_ADDRSTRLEN + IF_NAMESIZE + 1];
    memset(to, 0, sizeof *to);
    if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        return sizeof *v4;
    }
    snprintf(host, sizeof host, "%s", address);
    char *scope = strchr(host, '%');
    if (scope) {
        *scope++ = '\0';
        v6->sin6_scope_id = if_nametoindex(scope);
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) != 1 || (scope && v6->sin6_scope_id == 0)) {
        fprintf(stderr, "echocheck: %s: an IPv4 or IPv6 address in figures is wanted (fe80::1%%tap0)\n", address);
        exit(2);
    }
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    return sizeof *v6;
}

static int connected(const char *address, uint16_t port, int type)
{
    struct sockaddr_storage to;
    socklen_t length = parse_address(address, port, &to);
    int fd = socket(to.ss_family, type | SOCK_NONBLOCK, 0), error = 0;
    socklen_t size = sizeof error;
    if (fd < 0)
        fail("socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&to, length) != 0) {
        if (errno != EINPROGRESS)
            fail("connect: %s", strerror(errno));
        if (!wait_for(fd, POLLOUT, deadline))
            fail("connect: no answer");
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error)
            fail("connect: %s", strerror(error));
    }
    return fd;
}

static void tcp(const char *address, uint16_t port, uint64_t total)
{
    static uint8_t out[65536], in[65536];
    uint64_t sent = 0, back = 0;
    int fd = connected(address, port, SOCK_STREAM);
    if (total == 0)
        shutdown(fd, SHUT_WR);
    for (;;) {
        short ready = wait_for(fd, sent < total ? POLLIN | POLLOUT : POLLIN, deadline);
        if (!ready)
            fail("tcp: time up with %ju of %ju bytes sent and %ju back", sent, total, back);
        if (ready & POLLOUT) {
            size_t n = total - sent < sizeof out ? (size_t)(total - sent) : sizeof out;
            fill(out, n, sent);
            ssize_t done = send(fd, out, n, MSG_NOSIGNAL);
            if (done < 0 && errno != EAGAIN)
                fail("tcp: send after %ju bytes: %s", sent, strerror(errno));
            sent += done > 0 ? (uint64_t)done : 0;
            if (sent == total)
                shutdown(fd, SHUT_WR);
        }
        if (!(ready & ~POLLOUT))
            continue;
        ssize_t n = recv(fd, in, sizeof in, 0);
        if (n < 0 && errno == EAGAIN)
            continue;
        if (n < 0)
            fail("tcp: receive after %ju bytes: %s", back, strerror(errno));
        if (n == 0)
            break;
        size_t good = differs(in, (size_t)n, back);
        if (good < (size_t)n)
            fail("tcp: byte %ju is %02x, not %02x", back + good, in[good], byte_at(back + good));
        back += (uint64_t)n;
        if (back > sent)
            fail("tcp: %ju bytes back of %ju sent", back, sent);
    }
    if (back != total)
        fail("tcp: the peer ended after %ju of %ju bytes", back, total);
    printf("echocheck: tcp %ju bytes equal in %.2f s\n", total, now() - begun);
}

/* Length of datagram k: the largest first, then all over the range. */
static size_t length_of(uint32_t k, size_t largest)
{
    return k == 0 ? largest : UDP_SMALLEST + (size_t)k * 7919 % (largest - UDP_SMALLEST + 1);
}

/* A datagram is its number, then the stream from a place of its own. */
static void make_datagram(uint8_t *p, uint32_t k, size_t length)
{
    memcpy(p, &k, sizeof k);
    fill(p + sizeof k, length - sizeof k, (uint64_t)k << 17);
}

static uint32_t take_datagram(int fd, uint32_t next, size_t largest)
{
    static uint8_t in[UDP_MAX + 1];
    uint32_t k;
    ssize_t n = recv(fd, in, sizeof in, 0);
    if (n < 0)
        fail("udp: receive: %s", strerror(errno));
    if ((size_t)n < sizeof k)
        fail("udp: a datagram of %zd bytes came back", n);
    memcpy(&k, in, sizeof k);
    if (k >= next)
        fail("udp: datagram %u came back, only %u were sent", k, next);
    if ((size_t)n != length_of(k, largest))
        fail("udp: datagram %u has %zd bytes, not %zu", k, n, length_of(k, largest));
    size_t body = (size_t)n - sizeof k, good = differs(in + sizeof k, body, (uint64_t)k << 17);
    if (good < body)
        fail("udp: datagram %u differs at byte %zu", k, good + sizeof k);
    return k;
}

static uint32_t first_missing(const bool *seen)
{
    uint32_t k = 0;
    while (seen[k])
        k++;
    return k;
}

static void udp(const char *address, uint16_t port, uint32_t count, size_t largest)
{
    static uint8_t out[UDP_MAX];
    static bool seen[DATAGRAMS + 1];
    uint32_t next = 0, back = 0;
    double last = now();
    int fd = connected(address, port, SOCK_DGRAM), room = 2 * WINDOW * UDP_MAX;
    /* Else the kernel drops fragmented datagrams here when they come faster than they are read. */
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) != 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    while (back < count) {
        bool may_send = next < count && next - back < WINDOW;
        double until = last + LOSS_MS / 1e3 < deadline ? last + LOSS_MS / 1e3 : deadline;
        short ready = wait_for(fd, may_send ? POLLIN | POLLOUT : POLLIN, until);
        if (!ready)
            fail("udp: of %u datagrams sent %u came back, number %u did not", next, back, first_missing(seen));
        if (ready & ~POLLOUT) {
            uint32_t k = take_datagram(fd, next, largest);
            if (seen[k])
                fail("udp: datagram %u came back twice", k);
            seen[k] = true;
            back++;
            last = now();
        } else if (may_send) {
            size_t n = length_of(next, largest);
            make_datagram(out, next, n);
            if (send(fd, out, n, 0) != (ssize_t)n)
                fail("udp: send: %s", strerror(errno));
            next++;
        }
    }
    if (wait_for(fd, POLLIN, now() + 0.05)) {
        uint32_t k = take_datagram(fd, next, largest);
        fail("udp: datagram %u came back twice", k);
    }
    printf("echocheck: udp %u datagrams of %d to %zu bytes equal in %.2f s\n", count, UDP_SMALLEST, largest,
           now() - begun);
}

/* A whole number from low to high, or the end with status 2. */
static uint64_t number(const char *text, uint64_t low, uint64_t high)
{
    char *end;
    errno = 0;
    uint64_t n = strtoull(text, &end, 10);
    if (errno || *end || end == text || n < low || n > high) {
        fprintf(stderr, "echocheck: %s: a number from %ju to %ju is wanted\n", text, low, high);
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    bool is_udp = argc > 1 && strcmp(argv[1], "udp") == 0;
    if (argc < 5 || argc > (is_udp ? 7 : 6) || (!is_udp && strcmp(argv[1], "tcp") != 0)) {
        fputs("usage: echocheck tcp ADDRESS PORT BYTES [SECONDS] | udp ADDRESS PORT DATAGRAMS [LARGEST [SECONDS]]\n",
              stderr);
        return 2;
    }
    int seconds_at = is_udp ? 6 : 5;
    uint16_t port = (uint16_t)number(argv[3], 1, 65535);
    uint64_t amount = number(argv[4], 0, is_udp ? DATAGRAMS : UINT64_MAX / 2);
    size_t largest = is_udp && argc > 5 ? (size_t)number(argv[5], UDP_SMALLEST, UDP_MAX) : UDP_ETHERNET;
    begun = now();
    deadline = begun + (argc > seconds_at ? (double)number(argv[seconds_at], 1, 86400) : SECONDS);
    if (is_udp)
        udp(argv[2], port, (uint32_t)amount, largest);
    else
        tcp(argv[2], port, amount);
    return 0;
}

/* Internet addresses as text. See ipaddr.h. */
#include "kernel/ipaddr.h"

#include <string.h>

bool ip4_parse(const char *text, size_t len, uint8_t addr[4])
{
    size_t at = 0;

    for (unsigned i = 0; i < 4; i++) {
        unsigned n = 0, digits = 0;

        if (i > 0 && (at == len || text[at++] != '.'))
            return false;
        while (at < len && text[at] >= '0' && text[at] <= '9') {
            if (digits == 1 && n == 0) /* 010 is 8 to some and 10 to others */
                return false;
            n = n * 10 + (unsigned)(text[at++] - '0');
            digits++;
            if (n > 255)
                return false;
        }
        if (digits == 0)
            return false;
        addr[i] = (uint8_t)n;
    }
    return at == len;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Reads up to four hexadecimal digits at *at; returns how many. */
static unsigned read_group(const char *text, size_t len, size_t *at, unsigned *group)
{
    unsigned digits = 0;

    *group = 0;
    while (*at < len && digits < 4 && hex_digit(text[*at]) >= 0) {
        *group = *group << 4 | (unsigned)hex_digit(text[(*at)++]);
        digits++;
    }
    return digits;
}

/* Reads groups and what separates them into addr (16 bytes, cleared); returns how many bytes were read, and in *gap
 * where among them the "::" stood (-1: nowhere). 0: not an address. */
static size_t read_groups(const char *text, size_t len, uint8_t addr[16], int *gap)
{
    size_t at = 0, bytes = 0;

    *gap = -1;
    if (len >= 2 && text[0] == ':' && text[1] == ':') {
        *gap = 0;
        at = 2;
    }
    while (at < len) {
        size_t start = at;
        unsigned group;

        if (read_group(text, len, &at, &group) == 0 || bytes == 16)
            return 0;
        if (at < len && text[at] == '.') /* the last 32 bits as IPv4 */
            return bytes <= 12 && ip4_parse(text + start, len - start, addr + bytes) ? bytes + 4 : 0;
        addr[bytes++] = (uint8_t)(group >> 8);
        addr[bytes++] = (uint8_t)group;
        if (at == len)
            break;
        if (text[at++] != ':' || at == len) /* a single colon must not end it */
            return 0;
        if (text[at] == ':') {
            if (*gap >= 0) /* only one :: */
                return 0;
            *gap = (int)bytes;
            at++;
        }
    }
    return bytes;
}

bool ip6_parse(const char *text, size_t len, uint8_t addr[16])
{
    uint8_t read[16] = { 0 };
    int gap;
    size_t bytes = read_groups(text, len, read, &gap);

    memset(addr, 0, 16);
    if (gap < 0) {
        memcpy(addr, read, 16);
        return bytes == 16;
    }
    if (bytes == 16 || (bytes == 0 && len != 2)) /* "::" stands for at least one group */
        return false;
    memcpy(addr, read, (size_t)gap);
    memcpy(addr + 16 - (bytes - (size_t)gap), read + gap, bytes - (size_t)gap);
    return true;
}

const char *ip4_host_problem(const uint8_t addr[4], unsigned prefix)
{
    uint32_t value = (uint32_t)addr[0] << 24 | (uint32_t)addr[1] << 16 | (uint32_t)addr[2] << 8 | addr[3];
    uint32_t host_mask = prefix == 0 ? UINT32_MAX : ((uint32_t)1 << (32 - prefix)) - 1;

    if (addr[0] == 0 || addr[0] == 127 || addr[0] >= 224)
        return "a host's address, not one of 0/8, 127/8 or 224.0.0.0 and up";
    if (prefix <= 30 && ((value & host_mask) == 0 || (value & host_mask) == host_mask))
        return "a host's address, not the network's own or its broadcast address";
    return NULL;
}

static bool all_zero(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (bytes[i])
            return false;
    }
    return true;
}

const char *ip6_host_problem(const uint8_t addr[16])
{
    if (addr[0] == 0xff || (all_zero(addr, 15) && addr[15] <= 1))
        return "a host's address, not ::, ::1 or multicast";
    return NULL;
}

const char *ip4_gateway_problem(const uint8_t gw[4], const uint8_t own[4])
{
    const char *why = ip4_host_problem(gw, 32);

    return why ? why : memcmp(gw, own, 4) == 0 ? "a gateway other than the host itself" : NULL;
}

const char *ip6_gateway_problem(const uint8_t gw[16], const uint8_t own[16])
{
    const char *why = ip6_host_problem(gw);

    return why ? why : memcmp(gw, own, 16) == 0 ? "a gateway other than the host itself" : NULL;
}

/* Internet addresses as text, and which of them an interface may have. Compiles on the host. */
#ifndef RINGSIDE_IPADDR_H
#define RINGSIDE_IPADDR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Four decimal numbers with dots, no leading zeros, exactly `len` characters; network order. False: not of that form.
 */
bool ip4_parse(const char *text, size_t len, uint8_t addr[4]);

/* An IPv6 address in the forms of RFC 4291, 2.2 (groups, ::, embedded IPv4), exactly `len` characters; network order.
 * No zone. */
bool ip6_parse(const char *text, size_t len, uint8_t addr[16]);

/* Why a host cannot have this address, as what would be valid instead; NULL: it can. (RFC 1122, 3.2.1.3; RFC 4291, 2.5
 * and 2.7) */
const char *ip4_host_problem(const uint8_t addr[4], unsigned prefix);
const char *ip6_host_problem(const uint8_t addr[16]);

/* The same for the gateway of a host that has the address `own`. */
const char *ip4_gateway_problem(const uint8_t gw[4], const uint8_t own[4]);
const char *ip6_gateway_problem(const uint8_t gw[16], const uint8_t own[16]);
#endif

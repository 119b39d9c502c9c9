#include <string.h>
#include <linux/if_ether.h>
#include "lwip/mem.h"
#include "net/datagrams.h"

#define IP4_BYTES  20u
#define IP6_BYTES  40u
#define UDP_BYTES  8u
#define PROTO_UDP  17
#define HOP_BY_HOP 0 /* IPv6 extension headers that may precede UDP: RFC 8200, 4.1 */
#define ROUTING    43
#define OPTIONS    60
#define COPY_MAX   512u /* so few bytes are copied: that costs less than pbufs over them, of which a buffer takes 255 */

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

/* Each of these finds where UDP begins and returns where the packet ends by what IP says; 0: it is not UDP, or a
 * fragment. */
static uint32_t find4(const uint8_t *frame, uint32_t n, uint32_t *udp)
{
    const uint8_t *ip = frame + ETH_HLEN;
    if (n < ETH_HLEN + IP4_BYTES || ip[0] >> 4 != 4 || (ip[0] & 15) < 5 || (get16(ip + 6) & 0x3fff) != 0 ||
        ip[9] != PROTO_UDP)
        return 0;
    *udp = ETH_HLEN + (ip[0] & 15u) * 4;
    return ETH_HLEN + (uint32_t)get16(ip + 2);
}

static uint32_t find6(const uint8_t *frame, uint32_t n, uint32_t *udp)
{
    const uint8_t *ip = frame + ETH_HLEN;
    if (n < ETH_HLEN + IP6_BYTES || ip[0] >> 4 != 6)
        return 0;
    uint8_t next = ip[6];
    *udp = ETH_HLEN + IP6_BYTES;
    while (next == HOP_BY_HOP || next == ROUTING || next == OPTIONS) {
        if (*udp + 8 > n)
            return 0;
        next = frame[*udp];
        *udp += (frame[*udp + 1] + 1u) * 8;
    }
    return next == PROTO_UDP ? ETH_HLEN + IP6_BYTES + (uint32_t)get16(ip + 4) : 0;
}

bool datagrams_begin(struct datagrams *d, struct pbuf *p, uint16_t size)
{
    const uint8_t *frame = p->payload;
    uint32_t n = p->len, udp = 0, end = 0;
    uint16_t type = n >= ETH_HLEN ? get16(frame + 12) : 0;
    if (type == ETH_P_IP || type == ETH_P_IPV6)
        end = (type == ETH_P_IP ? find4 : find6)(frame, n, &udp);
    if (size == 0 || end > p->tot_len || udp + UDP_BYTES > n || end < udp + UDP_BYTES ||
        udp + UDP_BYTES > DATAGRAMS_HEADERS || get16(frame + udp + 4) != end - udp)
        return false;
    pbuf_realloc(p, (u16_t)end); /* without what the link has added */
    d->is_ip6 = type == ETH_P_IPV6;
    d->ip = ETH_HLEN;
    d->udp = (uint16_t)udp;
    d->bytes = (uint16_t)(udp + UDP_BYTES);
    d->size = size;
    d->told = (uint16_t)(end - d->bytes);
    memcpy(d->headers, frame, d->bytes);
    d->rest = pbuf_free_header(p, d->bytes);
    return true;
}

/* Makes the headers tell of `n` bytes of data. IPv4's checksum changes by what its field changes (RFC 1624), so that a
 * header that came in with a wrong one keeps it wrong. UDP's is not looked at: the device vouches for it, or it has yet
 * to be filled in. */
static void tell(struct datagrams *d, uint16_t n)
{
    uint8_t *ip = d->headers + d->ip;
    put16(d->headers + d->udp + 4, UDP_BYTES + n);
    d->told = n;
    if (d->is_ip6) {
        put16(ip + 4, d->bytes - d->ip - IP6_BYTES + n);
        return;
    }
    uint32_t total = (uint32_t)d->bytes - d->ip + n,
             sum = (uint16_t)~get16(ip + 10) + (uint32_t)(uint16_t)~get16(ip + 2) + total;
    put16(ip + 2, total);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    put16(ip + 10, ~sum);
}

/* Bytes that lie in another pbuf, which is kept for them. */
struct piece {
    struct pbuf_custom custom;
    struct pbuf *of;
};

static void on_piece_free(struct pbuf *p)
{
    struct piece *piece = (struct piece *)p;
    pbuf_free(piece->of);
    mem_free(piece);
}

/* The first `n` bytes of `q`, which loses them. */
static struct pbuf *cut_off(struct pbuf *q, uint16_t n)
{
    struct piece *piece = mem_malloc(sizeof *piece);
    if (piece == NULL)
        return NULL;
    piece->custom.custom_free_function = on_piece_free;
    piece->of = q;
    pbuf_ref(q);
    struct pbuf *p = pbuf_alloced_custom(PBUF_RAW, n, PBUF_REF, &piece->custom, q->payload, n);
    pbuf_remove_header(q, n);
    return p;
}

/* Appends the next `n` bytes to the headers. A buffer's last bytes are its own pbuf, so that it goes home as soon as
 * nothing of it is kept. */
static bool move(struct datagrams *d, struct pbuf *head, uint16_t n)
{
    while (n > 0) {
        struct pbuf *q = d->rest, *p = q;
        uint16_t part = n < q->len ? n : q->len;
        if (part == q->len) {
            d->rest = q->next;
            q->next = NULL;
            q->tot_len = q->len;
        } else {
            p = cut_off(q, part);
        }
        if (p == NULL)
            return false;
        pbuf_cat(head, p);
        n = (uint16_t)(n - part);
    }
    return true;
}

struct pbuf *datagrams_next(struct datagrams *d)
{
    if (d->rest == NULL)
        return NULL;
    uint16_t n = d->size < d->rest->tot_len ? d->size : d->rest->tot_len, copied = n <= COPY_MAX ? n : 0;
    if (n != d->told)
        tell(d, n);
    struct pbuf *head = pbuf_alloc(PBUF_RAW, (u16_t)(d->bytes + copied), PBUF_RAM);
    if (head == NULL)
        return NULL;
    memcpy(head->payload, d->headers, d->bytes);
    if (copied > 0) {
        pbuf_copy_partial(d->rest, (uint8_t *)head->payload + d->bytes, copied, 0);
        d->rest = pbuf_free_header(d->rest, copied);
    } else if (!move(d, head, n)) {
        pbuf_free(head);
        return NULL;
    }
    return head;
}

void datagrams_end(struct datagrams *d)
{
    if (d->rest != NULL)
        pbuf_free(d->rest);
    d->rest = NULL;
}

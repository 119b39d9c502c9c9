#include <string.h>
#include "apps/netserver/record.h"

#define FLAG_NODELAY   0x00000001u
#define FLAG_CONN      0x00000004u
#define FLAG_CPU       0x00000008u
#define FLAG_KEEPALIVE 0x80000000u
#define FLAG_ALL_RATE  100.0f /* "units of work per second when idle": any number above 0 means measured */

#define DIRECTION_TX 2u /* the server transmits */
#define DIRECTION_RX 4u

#define FAMILY_ANY     0
#define FAMILY_IPV4    4
#define FAMILY_IPV6    6
#define SOCKET_STREAM  1
#define SOCKET_DGRAM   2
#define PROTOCOL_TCP   6
#define PROTOCOL_UDP   17
#define UNSET          0xffffffffu
#define SEND_DEFAULT   16384u
#define UDP_MAX        65507u /* what fits into the largest IPv4 datagram */
#define CPU_BY_COUNTER 1u     /* method "I": idle time is counted */

/* ---- numbers in records ---- */

static uint32_t get(const uint8_t *record, unsigned at)
{
    const uint8_t *b = record + at;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static void put(uint8_t *record, unsigned at, uint32_t value)
{
    uint8_t *b = record + at;
    b[0] = (uint8_t)(value >> 24);
    b[1] = (uint8_t)(value >> 16);
    b[2] = (uint8_t)(value >> 8);
    b[3] = (uint8_t)value;
}

static void put64(uint8_t *record, unsigned at, uint64_t value)
{
    put(record, at, (uint32_t)(value >> 32));
    put(record, at + 4, (uint32_t)value);
}

static void put_float(uint8_t *record, unsigned at, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(record, at, bits);
}

static void put_double(uint8_t *record, unsigned at, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put64(record, at, bits);
}

static uint32_t at_least_1(uint32_t value)
{
    return value == 0 || value == UNSET ? 1 : value;
}

/* A size of a message: 0, -1 and anything negative stand for the default. */
static uint32_t size_or(uint32_t asked, uint32_t fallback)
{
    return asked == 0 || asked > INT32_MAX ? fallback : asked;
}

/* ---- requests ---- */

static uint32_t check_family(uint32_t family, const struct np_server *server)
{
    if (family == FAMILY_ANY || family == FAMILY_IPV4 || (family == FAMILY_IPV6 && server->ipv6))
        return 0;
    return NP_EAFNOSUPPORT;
}

/* Fills in what a direction does not ask for, and checks the rest; returns what is wrong, or 0. */
static uint32_t finish(struct np_spec *s, const struct np_server *server, uint32_t port)
{
    s->request_size = size_or(s->request_size, 1);
    s->response_size = size_or(s->response_size, 1);
    s->receive_size = size_or(s->asked_receive, s->udp ? UDP_MAX : server->tcp_receive_buffer);
    s->send_size = size_or(s->asked_send, s->udp ? 1472 : SEND_DEFAULT);
    if (port > UINT16_MAX)
        return NP_EINVAL;
    s->port = (uint16_t)port;
    if (!s->udp)
        return 0;
    if (s->tx && (s->rx ? s->response_size : s->send_size) > UDP_MAX)
        return NP_EMSGSIZE;
    if ((!s->rx && !s->tx) || (s->tx && !s->rx && s->peer_port == 0))
        return NP_EINVAL;
    s->conn = false;
    return 0;
}

static uint32_t omni_protocol(const uint8_t *r, struct np_spec *s)
{
    uint32_t socket = get(r, 96), protocol = get(r, 100);
    s->udp = socket == SOCKET_DGRAM;
    if ((socket == SOCKET_STREAM && protocol == PROTOCOL_TCP) || (socket == SOCKET_DGRAM && protocol == PROTOCOL_UDP))
        return 0;
    return NP_EPROTONOSUPPORT;
}

static uint32_t parse_omni(const uint8_t *r, const struct np_server *server, struct np_spec *s)
{
    uint32_t flags = get(r, 56), direction = get(r, 104), peer_port = get(r, 108);
    uint32_t error = omni_protocol(r, s);
    if (error == 0)
        error = check_family(get(r, 92), server);
    if (error == 0 && ((direction & ~(DIRECTION_RX | DIRECTION_TX)) != 0 || peer_port > UINT16_MAX))
        error = NP_EINVAL;
    if (error != 0)
        return error;
    s->rx = (direction & DIRECTION_RX) != 0;
    s->tx = (direction & DIRECTION_TX) != 0;
    s->conn = (flags & FLAG_CONN) != 0 || direction == 0;
    s->nodelay = (flags & FLAG_NODELAY) != 0;
    s->cpu = (flags & FLAG_CPU) != 0;
    s->keepalive = (flags & FLAG_KEEPALIVE) != 0;
    s->asked_send = get(r, 12);
    s->send_width = get(r, 24);
    s->request_size = get(r, 28);
    s->asked_receive = get(r, 36);
    s->receive_width = get(r, 48);
    s->response_size = get(r, 52);
    s->test_length = (int32_t)get(r, 64);
    s->receive_avoid = get(r, 68);
    s->send_avoid = get(r, 72);
    s->peer_port = (uint16_t)peer_port;
    s->priority = get(r, 152);
    s->type_of_service = get(r, 156);
    return finish(s, server, get(r, 88));
}

static uint32_t parse_classic_stream(const uint8_t *r, const struct np_server *server, struct np_spec *s)
{
    s->rx = s->type == NP_TCP_STREAM;
    s->tx = !s->rx;
    *(s->rx ? &s->asked_receive : &s->asked_send) = get(r, 16);
    s->nodelay = get(r, 28) != 0;
    s->cpu = get(r, 32) != 0;
    s->test_length = (int32_t)get(r, 40);
    s->receive_avoid = get(r, 44);
    s->send_avoid = get(r, 48);
    uint32_t error = check_family(get(r, 64), server);
    return error != 0 ? error : finish(s, server, get(r, 60));
}

static uint32_t parse_classic_udp_stream(const uint8_t *r, const struct np_server *server, struct np_spec *s)
{
    s->udp = s->rx = true;
    s->message_size = size_or(get(r, 12), 0);
    s->asked_receive = s->message_size;
    s->cpu = get(r, 32) != 0;
    s->test_length = (int32_t)get(r, 40);
    s->receive_avoid = get(r, 44);
    s->send_avoid = get(r, 48);
    uint32_t error = check_family(get(r, 56), server);
    return error != 0 ? error : finish(s, server, get(r, 52));
}

static uint32_t parse_classic_rr(const uint8_t *r, const struct np_server *server, struct np_spec *s)
{
    s->udp = s->type == NP_UDP_RR;
    s->conn = s->type == NP_TCP_CRR || s->type == NP_TCP_CC;
    s->rx = s->tx = s->type != NP_TCP_CC;
    s->request_size = get(r, 32);
    s->response_size = get(r, 36);
    s->nodelay = get(r, 40) != 0;
    s->cpu = get(r, 44) != 0;
    s->test_length = (int32_t)get(r, 52);
    s->receive_avoid = get(r, 56);
    s->send_avoid = get(r, 60);
    uint32_t error = check_family(get(r, 68), server);
    return error != 0 ? error : finish(s, server, get(r, 64));
}

static void parse_test(const uint8_t *record, const struct np_server *server, struct np_request *q,
                       uint32_t (*parse)(const uint8_t *, const struct np_server *, struct np_spec *))
{
    q->spec.type = q->type;
    q->spec.priority = q->spec.type_of_service = UNSET;
    q->error = parse(record, server, &q->spec);
    q->kind = q->error == 0 ? NP_IS_TEST : NP_IS_WRONG;
}

void np_parse(const uint8_t record[NP_RECORD], const struct np_server *server, struct np_request *q)
{
    memset(q, 0, sizeof *q);
    q->type = get(record, 0);
    switch (q->type) {
    case NP_OMNI:
        parse_test(record, server, q, parse_omni);
        break;
    case NP_TCP_STREAM:
    case NP_TCP_MAERTS:
        parse_test(record, server, q, parse_classic_stream);
        break;
    case NP_UDP_STREAM:
        parse_test(record, server, q, parse_classic_udp_stream);
        break;
    case NP_TCP_RR:
    case NP_TCP_CRR:
    case NP_TCP_CC:
    case NP_UDP_RR:
        parse_test(record, server, q, parse_classic_rr);
        break;
    case NP_CPU_CALIBRATE:
    case NP_SYSINFO:
    case NP_DEBUG_ON:
    case NP_DEBUG_OFF:
        q->kind = NP_IS_ANSWERED;
        break;
    case NP_PASSPHRASE:
        q->kind = NP_IS_UNANSWERED;
        break;
    default:
        q->kind = NP_IS_WRONG;
        q->error = NP_UNKNOWN;
    }
}

/* ---- answers ---- */

static uint32_t receive_buffer(const struct np_spec *s, const struct np_server *server)
{
    return s->udp ? server->udp_receive_buffer : server->tcp_receive_buffer;
}

static uint32_t send_buffer(const struct np_spec *s, const struct np_server *server)
{
    return s->udp ? server->udp_send_buffer : server->tcp_send_buffer;
}

static void answer_omni(const struct np_spec *s, const struct np_server *server, uint16_t port, uint8_t *r)
{
    put(r, 8, receive_buffer(s, server));
    put(r, 12, !s->rx ? s->asked_receive : s->tx ? s->request_size : s->receive_size);
    put(r, 16, at_least_1(s->receive_width));
    put(r, 20, send_buffer(s, server));
    put(r, 24, !s->tx ? s->asked_send : s->rx ? s->response_size : s->send_size);
    put(r, 28, at_least_1(s->send_width));
    put(r, 32, (s->nodelay && !s->udp ? FLAG_NODELAY : 0) | (s->cpu ? FLAG_CPU : 0));
    put_float(r, 36, s->cpu ? FLAG_ALL_RATE : 0);
    put(r, 40, (uint32_t)s->test_length);
    put(r, 44, s->receive_avoid);
    put(r, 48, s->send_avoid);
    put(r, 52, port);
    put(r, 72, s->priority);
    put(r, 76, s->type_of_service);
}

static void answer_classic_stream(const struct np_spec *s, const struct np_server *server, uint16_t port, uint8_t *r)
{
    put(r, 8, receive_buffer(s, server));
    put(r, 12, s->rx ? s->receive_size : s->send_size);
    put(r, 16, s->nodelay);
    put(r, 20, s->cpu);
    put(r, 24, (uint32_t)s->test_length);
    put(r, 28, send_buffer(s, server));
    put(r, 32, port);
    put_float(r, 36, s->cpu ? FLAG_ALL_RATE : 0);
    put(r, 40, s->receive_avoid);
    put(r, 44, s->send_avoid);
}

static void answer_classic_udp_stream(const struct np_spec *s, const struct np_server *server, uint16_t port,
                                      uint8_t *r)
{
    put(r, 8, receive_buffer(s, server));
    put(r, 12, send_buffer(s, server));
    put(r, 16, s->cpu);
    put(r, 20, (uint32_t)s->test_length);
    put(r, 24, port);
    put_float(r, 28, s->cpu ? FLAG_ALL_RATE : 0);
    put(r, 32, s->receive_avoid);
    put(r, 36, s->send_avoid);
}

static void answer_classic_rr(const struct np_spec *s, const struct np_server *server, uint16_t port, uint8_t *r)
{
    put(r, 8, receive_buffer(s, server));
    put(r, 12, s->nodelay);
    put(r, 16, s->cpu);
    put(r, 20, (uint32_t)s->test_length);
    put(r, 24, send_buffer(s, server));
    put(r, 28, port);
    put_float(r, 32, s->cpu ? FLAG_ALL_RATE : 0);
    put(r, 36, s->receive_avoid);
    put(r, 40, s->send_avoid);
}

void np_answer(const struct np_spec *s, const struct np_server *server, uint16_t port, uint8_t record[NP_RECORD])
{
    np_error(s->type, 0, record);
    switch (s->type) {
    case NP_OMNI:
        answer_omni(s, server, port, record);
        break;
    case NP_TCP_STREAM:
    case NP_TCP_MAERTS:
        answer_classic_stream(s, server, port, record);
        break;
    case NP_UDP_STREAM:
        answer_classic_udp_stream(s, server, port, record);
        break;
    default:
        answer_classic_rr(s, server, port, record);
    }
}

void np_answer_simple(uint32_t type, const struct np_server *server, uint8_t record[NP_RECORD])
{
    static const char system[] = ",Ringside,1,1,x86_64"; /* separator; name, release, version, machine */
    np_error(type, 0, record);
    if (type == NP_CPU_CALIBRATE) {
        put_float(record, 8, FLAG_ALL_RATE);
        put(record, 12, server->cores);
    } else if (type == NP_SYSINFO) {
        memcpy(record + 8, system, sizeof system);
    }
}

void np_error(uint32_t type, uint32_t error, uint8_t record[NP_RECORD])
{
    memset(record, 0, NP_RECORD);
    switch (type) {
    case NP_DEBUG_ON:
    case NP_DEBUG_OFF:
        type = NP_DEBUG_ANSWER;
        break;
    case NP_OMNI:
    case NP_SYSINFO:
    case NP_TCP_STREAM:
    case NP_TCP_MAERTS:
    case NP_UDP_STREAM:
    case NP_TCP_RR:
    case NP_TCP_CRR:
    case NP_TCP_CC:
    case NP_UDP_RR:
        type++;
        break;
    default: /* the type itself */
        break;
    }
    put(record, 0, type);
    put(record, 4, error);
}

/* ---- results ---- */

static float cpu_or_none(const struct np_outcome *o, float value)
{
    return o->cpu ? value : -1.0f;
}

static void results_omni(const struct np_spec *s, const struct np_server *server, const struct np_outcome *o,
                         uint8_t *r)
{
    put64(r, 8, o->rx_bytes);
    put(r, 16, (uint32_t)o->rx_calls);
    put(r, 20, receive_buffer(s, server));
    put64(r, 24, o->tx_bytes);
    put(r, 32, (uint32_t)o->tx_calls);
    put(r, 36, send_buffer(s, server));
    put(r, 44, (uint32_t)o->transactions);
    put_float(r, 48, o->elapsed);
    put_float(r, 52, cpu_or_none(o, o->busy));
    put_float(r, 60, o->cpu ? o->busy : 0);     /* all that is busy is system time; */
    put_float(r, 64, o->cpu ? o->spinning : 0); /* looking for work before a halt counts as idle, shown as I/O wait */
    put(r, 80, o->cpu ? CPU_BY_COUNTER : 0);
    put(r, 84, server->cores);
    put(r, 88, o->cpu ? o->peak_core : UNSET);
    put_float(r, 92, cpu_or_none(o, o->peak_busy));
    put(r, 112, UNSET); /* retransmitted segments: not counted per connection */
    if (!s->udp)
        memcpy(r + 276, "reno", 5);
}

static void results_classic_stream(const struct np_spec *s, const struct np_server *server, const struct np_outcome *o,
                                   uint8_t *r)
{
    put_double(r, 8, (double)(s->rx ? o->rx_bytes : o->tx_bytes));
    put(r, 16, (uint32_t)(s->rx ? o->rx_calls : o->tx_calls));
    put_float(r, 20, o->elapsed);
    put_float(r, 24, cpu_or_none(o, o->busy));
    put_float(r, 28, 0);
    put(r, 32, o->cpu ? CPU_BY_COUNTER : 0);
    put(r, 36, server->cores);
    if (s->rx) {
        put(r, 40, receive_buffer(s, server));
        put(r, 44, send_buffer(s, server));
    }
}

static void results_classic_udp_stream(const struct np_server *server, const struct np_outcome *o, uint8_t *r)
{
    put(r, 8, (uint32_t)o->rx_calls);
    put(r, 12, (uint32_t)o->rx_bytes);
    put_float(r, 16, o->elapsed);
    put_float(r, 20, cpu_or_none(o, o->busy));
    put(r, 24, o->cpu ? CPU_BY_COUNTER : 0);
    put(r, 28, server->cores);
}

static void results_classic_rr(const struct np_server *server, const struct np_outcome *o, uint8_t *r)
{
    put(r, 8, (uint32_t)(o->rx_bytes + o->tx_bytes));
    put(r, 12, (uint32_t)o->rx_calls);
    put(r, 16, (uint32_t)o->transactions);
    put_float(r, 20, o->elapsed);
    put_float(r, 24, cpu_or_none(o, o->busy));
    put_float(r, 28, 0);
    put(r, 32, o->cpu ? CPU_BY_COUNTER : 0);
    put(r, 36, server->cores);
}

void np_results(const struct np_spec *s, const struct np_server *server, const struct np_outcome *o,
                uint8_t record[NP_RECORD])
{
    memset(record, 0, NP_RECORD);
    put(record, 0, s->type + 2); /* 99 of an omni test, too */
    switch (s->type) {
    case NP_OMNI:
        results_omni(s, server, o, record);
        break;
    case NP_TCP_STREAM:
    case NP_TCP_MAERTS:
        results_classic_stream(s, server, o, record);
        break;
    case NP_UDP_STREAM:
        results_classic_udp_stream(server, o, record);
        break;
    default:
        results_classic_rr(server, o, record);
    }
}

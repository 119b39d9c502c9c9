/* The boot line: words separated by blanks, from QEMU's -append or GRUB's multiboot2 line (docs/boot-line.md lists
 * them). Compiles on the host. */
#ifndef RINGSIDE_BOOTLINE_H
#define RINGSIDE_BOOTLINE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
enum ip_mode { IP_AUTO, IP_STATIC, IP_OFF }; /* IP_AUTO: DHCP for IPv4, link-local and router advertisement for IPv6 */

#define POLL_AUTO           UINT32_MAX
#define BOOTLINE_MAX        4096
#define BOOTLINE_APP_MAX    16      /* names in apps= */
#define BOOTLINE_APP_LEN    32      /* bytes of a name with its argument and the ending 0: txonly:1514,1000000 */
#define BOOTLINE_NUMBER_MAX 32768   /* of cores= and queues=: the most queue pairs that virtio knows (5.1.4.1) */
#define BOOTLINE_POLL_MAX   1000000 /* us */

struct bootline {
    enum ip_mode ip;    /* IP_AUTO or IP_STATIC */
    uint8_t ip_addr[4]; /* network order */
    uint8_t ip_prefix;  /* 0..32 */
    bool ip_has_gw;
    uint8_t ip_gw[4];
    enum ip_mode ip6;
    uint8_t ip6_addr[16];
    uint8_t ip6_prefix; /* 0..128 */
    bool ip6_has_gw;
    uint8_t ip6_gw[16];
    uint32_t cores;                                /* at most; 0: all */
    uint32_t queues;                               /* at most; 0: all */
    uint32_t ring;                                 /* at most; 0: the device's; else a power of two, 2..32768 */
    uint32_t poll_us;                              /* or POLL_AUTO */
    uint64_t features_off;                         /* features=-x */
    uint64_t features_required;                    /* features=+x */
    char apps[BOOTLINE_APP_MAX][BOOTLINE_APP_LEN]; /* name or name:argument, terminated; app_count 0: all servers */
    unsigned app_count;
    bool conform;
    char conform_area[16]; /* "" : all */
    bool has_peer;         /* peer=: who answers its questions; network order */
    uint8_t peer[4];
    bool tx_next; /* txirq=next: see virtnet_sleep() */
    bool trace;   /* trace=on: the rings' operations are recorded (drivers/virtio/recorder.h) */
    enum log_level log;
};

/* What was wrong with a value: the text after "panic: ". */
struct bootline_error {
    char text[256]; /* "bad value ip=300.1.1.1/24: valid is dhcp or A.B.C.D/N[,gw=A.B.C.D]" */
};

/* How parsing talks to its surroundings. */
struct bootline_env {
    /* Called once per unknown word with a complete sentence: `unknown word "ipp=dhcp" ignored; nearest valid word:
     * ip=`. */
    void (*unknown)(void *context, const char *sentence);
    /* True if an application of this name (without argument) exists; NULL: any name will do. */
    bool (*app_known)(void *context, const char *name);
    /* Comma-separated names for the error text of apps=. */
    const char *app_names;
    void *context;
};

/* Parses `line` (any bytes; everything after BOOTLINE_MAX characters, and a word that this would cut in two, is left
 * out and reported through env->unknown) into *out, starting from the defaults. Of the same word given twice the later
 * one holds, whole: features=-a features=-b switches off b only. Returns true, or false with *error filled at the first
 * bad value; *out is then of no use. Control and non-ASCII bytes in a word are shown as \xNN. */
bool bootline_parse(const char *line, struct bootline *out, const struct bootline_env *env,
                    struct bootline_error *error);
#endif

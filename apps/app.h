/* Applications: each is one file that registers itself in a table; which of them start, the boot line says (apps=). */
#ifndef RINGSIDE_APPS_APP_H
#define RINGSIDE_APPS_APP_H
#include <stdbool.h>

struct app_message; /* net/steer.h */
struct bootline;    /* kernel/bootline.h */
struct layer2;      /* net/layer2.h */

struct app {
    const char *name;
    const char *ports;    /* for the console: "tcp/7 udp/7" */
    bool by_default;      /* started when the boot line has no apps= */
    bool (*start)(void);  /* opens its ports; false: it could not (the reason is on the console) */
    const char *argument; /* what stands behind its name in apps=, for the error text; NULL: nothing does */
    bool (*check)(const char *argument); /* takes note of its argument (""); false: that is a bad one */
    const struct layer2 *layer2; /* it takes all frames instead of the stack: it has no start(), and runs alone */
    void (*message)(unsigned from,
                    const struct app_message *message); /* from its other self on core `from`; NULL: it gets none */
};

/* Puts an application into the table. (The alignment is said, or the compiler makes it larger than the structure's and
 * leaves gaps.) */
#define APP(id, ...)                                                                                                   \
    extern const struct app app_##id;                                                                                  \
    const struct app app_##id __attribute__((used, aligned(8), section(".apps." #id))) = { .name = #id, __VA_ARGS__ }

extern const struct app apps_start[], apps_end[];

/* True if there is an application of this name. */
bool app_exists(const char *name);

/* The application's number: its place in the table, the same on every core. */
unsigned app_number(const struct app *app);

/* Reads which applications the boot line wants, with their arguments. Returns the one that takes all frames, or NULL.
 * On false *problem says what is wrong, and what is valid. On every core, before anything else here. */
bool apps_choose(const struct bootline *boot, const struct app **layer2, const char **problem);

/* Starts the applications that the boot line wants, and says so on core 0. */
void apps_start_all(const struct bootline *boot);

/* Gives a message of core `from` to application `number`; one of no application, or of one that takes none, is dropped.
 */
void app_deliver(unsigned number, unsigned from, const struct app_message *message);

/* Comma-separated names of all applications. */
const char *app_names(void);
#endif

/* Applications: each is one file that registers itself in a table; which of them start, the boot line says (apps=). */
#ifndef RINGSIDE_APPS_APP_H
#define RINGSIDE_APPS_APP_H
#include <stdbool.h>

struct app_message; /* net/steer.h */

struct app {
    const char *name;
    const char *ports;   /* for the console: "tcp/7 udp/7" */
    bool by_default;     /* started when the boot line has no apps= */
    bool (*start)(void); /* opens its ports; false: it could not (the reason is on the console) */
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

/* Gives a message of core `from` to application `number`; one of no application, or of one that takes none, is dropped.
 */
void app_deliver(unsigned number, unsigned from, const struct app_message *message);

/* Comma-separated names of all applications. */
const char *app_names(void);
#endif

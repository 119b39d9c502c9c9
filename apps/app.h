/* Applications: each is one file that registers itself in a table; which of them start, the boot line says (apps=). */
#ifndef RINGSIDE_APPS_APP_H
#define RINGSIDE_APPS_APP_H
#include <stdbool.h>

struct app {
    const char *name;
    const char *ports;   /* for the console: "tcp/7 udp/7" */
    bool by_default;     /* started when the boot line has no apps= */
    bool (*start)(void); /* opens its ports; false: it could not (the reason is on the console) */
};

/* Puts an application into the table. */
#define APP(id, ...)                                                                                                   \
    extern const struct app app_##id;                                                                                  \
    const struct app app_##id __attribute__((used, section(".apps." #id))) = { .name = #id, __VA_ARGS__ }

extern const struct app apps_start[], apps_end[];

/* True if there is an application of this name. */
bool app_exists(const char *name);

/* Comma-separated names of all applications. */
const char *app_names(void);
#endif

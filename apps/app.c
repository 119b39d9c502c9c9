#include <stdio.h>
#include <string.h>
#include "apps/app.h"
#include "kernel/bootline.h"
#include "kernel/console.h"
#include "kernel/core.h"

bool app_exists(const char *name)
{
    for (const struct app *a = apps_start; a < apps_end; a++)
        if (strcmp(a->name, name) == 0)
            return true;
    return false;
}

unsigned app_number(const struct app *app)
{
    return (unsigned)(app - apps_start);
}

void app_deliver(unsigned number, unsigned from, const struct app_message *message)
{
    if (number < app_number(apps_end) && apps_start[number].message != NULL)
        apps_start[number].message(from, message);
}

const char *app_names(void)
{
    static char names[256];
    size_t n = 0;
    for (const struct app *a = apps_start; a < apps_end && n < sizeof names; a++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n > 0 ? "," : "", a->name);
    return names;
}

/* The item of the boot line that names the application; NULL: there is none. */
static const char *item_of(const struct bootline *boot, const struct app *app)
{
    size_t n = strlen(app->name);
    for (unsigned i = 0; i < boot->app_count; i++)
        if (strncmp(boot->apps[i], app->name, n) == 0 && (boot->apps[i][n] == '\0' || boot->apps[i][n] == ':'))
            return boot->apps[i];
    return NULL;
}

/* False: the item's argument is not one for this application. */
static bool check_argument(const struct app *app, const char *item)
{
    const char *colon = strchr(item, ':');
    if (app->argument == NULL)
        return colon == NULL;
    return app->check(colon != NULL ? colon + 1 : "");
}

bool apps_choose(const struct bootline *boot, const struct app **layer2, const char **problem)
{
    static char text[160];
    *layer2 = NULL;
    *problem = text;
    for (const struct app *a = apps_start; a < apps_end; a++) {
        const char *item = item_of(boot, a);
        if (item == NULL)
            continue;
        if (!check_argument(a, item)) {
            snprintf(text, sizeof text, "bad value apps=%s: valid is %s%s%s", item, a->name,
                     a->argument != NULL ? ":" : " without an argument", a->argument != NULL ? a->argument : "");
            return false;
        }
        if (a->layer2 != NULL)
            *layer2 = a;
    }
    if (*layer2 != NULL && boot->app_count > 1) {
        snprintf(text, sizeof text, "bad value apps=...: %s takes every frame; valid is to name it alone",
                 (*layer2)->name);
        return false;
    }
    return true;
}

void apps_start_all(const struct bootline *boot)
{
    for (const struct app *a = apps_start; a < apps_end; a++) {
        bool wanted = boot->app_count == 0 ? a->by_default : item_of(boot, a) != NULL;
        if (wanted && (a->start == NULL || a->start()) && core_number() == 0)
            log_info("app", "%s on %s", a->name, a->ports);
    }
}

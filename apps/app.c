#include <stdio.h>
#include <string.h>
#include "apps/app.h"

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

/* TAP: see tap.h. Lines are made whole before they are printed, since evidence comes below the verdict. */
#include <stdarg.h>
#include <stdio.h>
#include "apps/conform/tap.h"
#include "drivers/virtio/features.h"
#include "kernel/console.h"

static struct {
    unsigned count[3]; /* by verdict */
    unsigned at;       /* bytes of evidence */
    char reason[96];
    char evidence[800];
} tap;

/* Appends to the evidence; what does not fit is left out. */
static void append(const char *key, const char *format, va_list args)
{
    char line[220];
    vsnprintf(line, sizeof line, format, args);
    int n = snprintf(tap.evidence + tap.at, sizeof tap.evidence - tap.at, "# %s: %s\n", key, line);
    if (n > 0 && (unsigned)n < sizeof tap.evidence - tap.at)
        tap.at += (unsigned)n;
    tap.evidence[tap.at] = '\0';
}

void tap_note(const char *key, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append(key, format, args);
    va_end(args);
}

enum verdict tap_fail(const char *expected, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append("got", format, args);
    va_end(args);
    tap_note("expected", "%s", expected);
    return FAIL;
}

enum verdict tap_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(tap.reason, sizeof tap.reason, format, args);
    va_end(args);
    return SKIP;
}

void tap_begin(void)
{
    console_plain("TAP version 14");
}

enum verdict tap_run(const struct area *area, const struct check *check, uint64_t offered, bool peer)
{
    static const char *const skip[] = { "", "", " # SKIP " };
    enum verdict verdict;
    tap.at = 0;
    tap.reason[0] = tap.evidence[0] = '\0';
    uint64_t needs = check->needs != 0 ? FEATURE_BIT(check->needs - 1) : 0;
    if (needs & ~offered) {
        char names[32];
        features_format(needs, names, sizeof names);
        verdict = tap_skip("not offered: %s", names);
    } else if (check->peer && !peer) {
        verdict = tap_skip("no peer");
    } else {
        verdict = check->run();
    }
    tap.count[verdict]++;
    console_plain("%s %u - %s %s %s%s%s", verdict == FAIL ? "not ok" : "ok",
                  tap.count[PASS] + tap.count[FAIL] + tap.count[SKIP], area->name, check->section, check->text,
                  skip[verdict], verdict == SKIP ? tap.reason : "");
    console_write(tap.evidence, tap.at);
    return verdict;
}

unsigned tap_end(void)
{
    console_plain("1..%u", tap.count[PASS] + tap.count[FAIL] + tap.count[SKIP]);
    console_plain("# passed %u, failed %u, skipped %u", tap.count[PASS], tap.count[FAIL], tap.count[SKIP]);
    return tap.count[FAIL];
}

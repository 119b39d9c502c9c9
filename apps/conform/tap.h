/* What `conform` prints: TAP version 14, one line per check, its evidence below it (docs/conform.md). */
#ifndef RINGSIDE_CONFORM_TAP_H
#define RINGSIDE_CONFORM_TAP_H
#include <stdbool.h>
#include <stdint.h>

enum verdict { PASS, FAIL, SKIP };

/* One check. Its text and section (virtio 1.3) are the same on every backend: they are the row of a report. */
struct check {
    char section[14], text[72]; /* here and not pointed to: the program is relocated for each core, and a pointer costs
                                 * more than what is left free */
    bool peer;                  /* it needs something that answers, or reflects frames */
    uint8_t needs;              /* NEEDS(bit): a feature that must be offered, else the check is skipped; 0: none */
    /* Does it, and says what was seen by tap_note(); a skip says why by tap_skip(). */
    enum verdict (*run)(void);
};
#define NEEDS(bit) ((bit) + 1)

/* The checks of one area; one file each. */
struct area {
    const char *name;
    const struct check *check;
    unsigned count;
};

#define AREA(name, checks)                                                                                             \
    {                                                                                                                  \
        name, checks, sizeof(checks) / sizeof *(checks)                                                                \
    }

void tap_begin(void);

/* Runs one check and prints its line and its evidence. `offered`: the device's features; `peer`: something answers. */
enum verdict tap_run(const struct area *area, const struct check *check, uint64_t offered, bool peer);

/* Prints plan and sums. Returns how many failed. */
unsigned tap_end(void);

/* A line of evidence, `# key: value`, for the check that runs: printed below its line. */
void tap_note(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "got" and "expected" as evidence. Returns FAIL: `return tap_fail(...)`. */
enum verdict tap_fail(const char *expected, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The reason of a skip; it begins with one of: not offered, no peer, nobody, ... Returns SKIP. */
enum verdict tap_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
#endif

/* The counters of all cores (net/counters.h) and the state of the machine as text: Prometheus' format, and JSON with
 * the same names and numbers. docs/metrics.md lists them. */
#ifndef RINGSIDE_APPS_METRICS_H
#define RINGSIDE_APPS_METRICS_H
#include <stddef.h>
#include <stdint.h>

/* Text that is being written. With `at` NULL nothing is written: `used` is then the most bytes that the same calls can
 * take, whatever the numbers are by then. */
struct text {
    char *at;
    size_t size, used;
};

/* Appends `n` bytes; what does not fit any more is left out. */
void text_bytes(struct text *t, const char *bytes, size_t n);

/* Prometheus' text format, version 0.0.4. */
void metrics_prometheus(struct text *t);

/* One JSON object: names as in Prometheus' format, without "ringside_" and "_total". */
void metrics_json(struct text *t);
#endif

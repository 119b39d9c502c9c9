/* The rings' last operations (drivers/virtio/recorder.h), of all queues of all cores, as text: for /trace
 * (apps/http.c), and on the console when the device is reset. */
#ifndef RINGSIDE_TRACE_H
#define RINGSIDE_TRACE_H
#include <stddef.h>
#include "drivers/virtio/recorder.h"

/* Prints all queues, each with a line before it that says whose it is. Any core, once the device runs. */
void trace_print(recorder_print_fn print, void *context);

/* Bytes that trace_print()'s lines take at most, a line feed after each. */
size_t trace_bytes(void);

/* Core 0, while all rings stand still: keeps the text of now, which goes to the console from the loop, a bit at a time:
 * a console is slow, and the device is not to wait for it. Not more often than every TRACE_REST_NS: a device that
 * breaks again and again leaves the console readable. */
void trace_keep(void);
#define TRACE_REST_NS 10000000000ull

/* Prints the rest of what was kept, now: the guest is about to end. */
void trace_drain(void);
#endif

/* Segments, exceptions and interrupts of one core (Intel SDM volume 3, chapters 3 and 6). */
#ifndef RINGSIDE_TRAPS_H
#define RINGSIDE_TRAPS_H
#include <stdbool.h>
#include <stdint.h>
#include "kernel/shared.h"

/* Interrupt vectors: the 8259's sixteen, the core's own, devices'. */
#define VECTOR_PIC      0x20
#define VECTOR_TIMER    0x30
#define VECTOR_SCI      0x31
#define VECTOR_WAKE     0x32 /* from another core: nothing but the end of a halt */
#define VECTOR_CONFIG   0x40 /* of the network device, and its queues: the same on every core */
#define VECTOR_RX       0x41
#define VECTOR_TX       0x42
#define VECTOR_QUEUES   0x43
#define VECTOR_SPURIOUS 0xff

/* Loads this core's GDT, TSS (exceptions run on world->ist, so that an overflown stack can still be reported) and IDT.
 */
void traps_init(const struct world *world);

/* Installs handler(argument) for a vector. Handlers run with interrupts off, only while the core is in cpu_halt(); they
 * acknowledge and take note. */
void irq_install(uint8_t vector, void (*handler)(void *argument), void *argument);

/* Sleeps until an interrupt has been handled. Interrupts are off everywhere else: they are let in here and nowhere
 * else, so no code has to guard against them. If one is pending already, it is handled and the call returns at once. */
void cpu_halt(void);

/* Handles what is pending, without sleeping. */
void cpu_poll_interrupts(void);
#endif

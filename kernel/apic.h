/* Interrupt controllers: the core's local APIC (xAPIC or x2APIC), the I/O APIC for ACPI's interrupt, the two 8259s for
 * devices without MSI-X (Intel SDM 3, chapter 10; 82093AA and 8259A data sheets). */
#ifndef RINGSIDE_APIC_H
#define RINGSIDE_APIC_H
#include <stdbool.h>
#include <stdint.h>

/* Moves the 8259s to VECTOR_PIC and masks them. Core 0 only. */
void pic_init(void);

/* Switches the core's local APIC on (x2APIC where the processor has it) and masks its sources. `base`: the address of
 * the xAPIC's registers. Returns the APIC id. */
uint32_t lapic_init(uint64_t base);

/* Interprocessor interrupts (SDM 3, 10.6): INIT; start-up at 4 KiB page `page` below 1 MiB; an ordinary interrupt. */
void lapic_send_init(uint32_t apic_id);
void lapic_send_startup(uint32_t apic_id, uint8_t page);
void lapic_send(uint32_t apic_id, uint8_t vector);

bool lapic_is_x2apic(void);

/* End of interrupt. */
void lapic_acknowledge(void);

/* Sets the timer up. `hz` is its rate as another core found it; 0: it is measured with the (calibrated) clock, in 5 ms,
 * unless there is a TSC deadline timer. Returns the rate; 0 with a deadline timer. */
uint64_t lapic_timer_init(uint64_t hz);

/* Arms the one-shot timer: an interrupt on VECTOR_TIMER in about `ns` nanoseconds. At most 4 s are armed: it may come
 * early. */
void lapic_timer_arm(uint64_t ns);

/* True from arming until the interrupt has been handled. */
bool lapic_timer_is_armed(void);

/* The message that makes a device's MSI-X interrupt arrive on this vector of that core (SDM 3, 10.11). */
uint64_t lapic_msi_address(uint32_t apic_id);
uint32_t lapic_msi_data(uint8_t vector);

/* Lets interrupt line `irq` (0..15) of the 8259s through, as an external interrupt on VECTOR_PIC + irq of this core. */
void pic_enable(uint8_t irq);

void pic_acknowledge(uint8_t irq);

/* Routes global system interrupt `gsi` to a vector of this core. `level` and `low` as the MADT says. False: no I/O APIC
 * has it. */
bool ioapic_route(uint32_t gsi, uint8_t vector, bool level, bool low);
#endif

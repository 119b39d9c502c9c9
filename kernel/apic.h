/* Interrupt controllers: the core's local APIC (xAPIC or x2APIC), the I/O APIC for ACPI's interrupt, the two 8259s for
 * devices without MSI-X (Intel SDM 3, chapter 10; 82093AA and 8259A data sheets). */
#ifndef RINGSIDE_APIC_H
#define RINGSIDE_APIC_H
#include <stdbool.h>
#include <stdint.h>

/* Switches the core's local APIC on (x2APIC where the processor has it) and masks its sources. The 8259s are moved to
 * VECTOR_PIC and masked. Returns the APIC id. */
uint32_t lapic_init(uint64_t base);

bool lapic_is_x2apic(void);

/* End of interrupt. */
void lapic_acknowledge(void);

/* Finds the timer's rate with the (calibrated) clock; with a TSC deadline timer there is nothing to find. Takes up to
 * 10 ms. */
void lapic_timer_init(void);

/* Arms the one-shot timer: an interrupt on VECTOR_TIMER in about `ns` nanoseconds. At most 4 s are armed: it may come
 * early. */
void lapic_timer_arm(uint64_t ns);

/* True from arming until the interrupt has been handled. */
bool lapic_timer_is_armed(void);

/* The message that makes a device's MSI-X interrupt arrive on this vector of this core (SDM 3, 10.11). */
uint64_t lapic_msi_address(void);
uint32_t lapic_msi_data(uint8_t vector);

/* Lets interrupt line `irq` (0..15) of the 8259s through, as an external interrupt on VECTOR_PIC + irq of this core. */
void pic_enable(uint8_t irq);

void pic_acknowledge(uint8_t irq);

/* Routes global system interrupt `gsi` to a vector of this core. `level` and `low` as the MADT says. False: no I/O APIC
 * has it. */
bool ioapic_route(uint32_t gsi, uint8_t vector, bool level, bool low);
#endif

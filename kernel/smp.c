#include <stddef.h>
#include <string.h>
#include "boot/load.h"
#include "kernel/acpi.h"
#include "kernel/apic.h"
#include "kernel/clock.h"
#include "kernel/console.h"
#include "kernel/memory.h"
#include "kernel/paging.h"
#include "kernel/public.h"
#include "kernel/smp.h"
#include "kernel/traps.h"
#include "kernel/x86.h"

#define INIT_NS   200000ull      /* between INIT and the first start-up */
#define AGAIN_NS  10000000ull    /* after which a second start-up is sent */
#define ANSWER_NS 1000000000ull  /* after which a core counts as dead */
#define READY_NS  10000000000ull /* after which one that started counts as failed: 64 may share two real ones */

/* What the page in which cores start holds (kernel/ap.S). */
extern const char ap_start_begin[], ap_start_end[], ap_start_cr3[], ap_start_ticket[], ap_start_fix32[],
    ap_start_fix64[], ap_start_gdtr[];

/* What the next core to start finds: its stack (taken by exchange: a core that comes too late finds 0 and sleeps),
 * entry, arguments. */
static volatile struct {
    uint64_t stack, entry, id;
    struct shared *shared;
} ticket;

/* ---- memory ---- */

/* Which range of what is left each core gets. Returns for how many there is enough. */
static unsigned divide(struct shared *shared, unsigned want, uint64_t world)
{
    struct range all = phys_take_largest();
    uint64_t least = world + WORLD_HEAP_MIN, room = all.end - all.start;
    unsigned count = want;
    while (count > 1 && room / count < least)
        count--;
    uint64_t share = room / count & ~(uint64_t)(PAGE - 1);
    for (unsigned i = 0; i < count; i++)
        shared->core[i].heap = (struct range){ all.start + i * share, all.start + (i + 1) * share };
    return count;
}

/* Protects a copy as the loader's description of it says: text executable, constants read-only, nothing under the
 * stacks. */
static bool protect(const struct world *w)
{
    bool ok = true;
    for (uint32_t i = 0; i < w->segment_count; i++)
        ok = ok && paging_protect(w->segment[i].at, w->segment[i].flags);
    for (unsigned i = 0; i < 2; i++)
        ok = ok && paging_protect((struct range){ w->guard[i], w->guard[i] + PAGE }, 0);
    return ok;
}

/* Makes core `i`'s copy of the program at the start of its memory; what is behind it is its heap. */
static bool make_world(struct shared *shared, unsigned i, uint64_t size)
{
    struct core_info *core = &shared->core[i];
    const char *wrong = world_load((const void *)shared->image.start, false, core->heap.start, &core->world);
    core->heap.start += size;
    if (wrong == NULL && !protect(&core->world))
        wrong = "no memory for page tables";
    if (wrong != NULL)
        log_error("smp", "core %u's copy of the program: %s", i, wrong);
    return wrong == NULL;
}

/* ---- start ---- */

static void patch32(char *page, const char *at, uint32_t add)
{
    uint32_t v;
    memcpy(&v, page + (at - ap_start_begin), 4);
    v += add;
    memcpy(page + (at - ap_start_begin), &v, 4);
}

static void put64(char *page, const char *at, uint64_t v)
{
    memcpy(page + (at - ap_start_begin), &v, 8);
}

/* Copies the start code to its page, makes its addresses absolute, and then makes it read-only and executable. */
static bool make_start_page(const struct shared *shared)
{
    char *page = (char *)shared->low_page;
    struct range range = { shared->low_page, shared->low_page + PAGE };
    if (shared->low_page == 0 || !paging_protect(range, 4 | 2))
        return false;
    memcpy(page, ap_start_begin, (size_t)(ap_start_end - ap_start_begin));
    patch32(page, ap_start_fix32, (uint32_t)shared->low_page);
    patch32(page, ap_start_fix64, (uint32_t)shared->low_page);
    patch32(page, ap_start_gdtr + 2, (uint32_t)shared->low_page);
    put64(page, ap_start_cr3, paging_root());
    put64(page, ap_start_ticket, (uint64_t)&ticket);
    return paging_protect(range, 4 | 1);
}

static bool wait_while(const uint32_t *state, uint32_t is, uint64_t ns)
{
    uint64_t until = clock_ns() + ns;
    while (__atomic_load_n(state, __ATOMIC_ACQUIRE) == is) {
        if (clock_ns() > until)
            return false;
        cpu_relax();
    }
    return true;
}

static bool start(struct shared *shared, unsigned i, uint32_t apic_id)
{
    const uint32_t *state = &shared->public_area->core[i].state;
    uint8_t page = (uint8_t)(shared->low_page >> 12);
    ticket.entry = shared->core[i].world.entry;
    ticket.id = i;
    ticket.shared = shared;
    shared->core[i].apic_id = apic_id;
    __atomic_store_n(&ticket.stack, shared->core[i].world.stack.end, __ATOMIC_RELEASE);
    lapic_send_init(apic_id);
    for (uint64_t until = clock_ns() + INIT_NS; clock_ns() < until;)
        cpu_relax();
    lapic_send_startup(apic_id, page);
    if (wait_while(state, CORE_ABSENT, AGAIN_NS))
        return true;
    if (ticket.stack != 0) /* else it is on its way already and must not be started over */
        lapic_send_startup(apic_id, page);
    if (wait_while(state, CORE_ABSENT, ANSWER_NS))
        return true;
    if (__atomic_exchange_n(&ticket.stack, 0, __ATOMIC_ACQ_REL) == 0 && wait_while(state, CORE_ABSENT, ANSWER_NS))
        return true;
    log_warn("smp", "the processor with APIC id %u does not start: it stays parked", apic_id);
    return false;
}

/* All processors, the one that booted first: it is core 0. */
static unsigned list_processors(uint32_t *list, uint32_t self)
{
    const struct acpi *acpi = acpi_tables();
    unsigned n = 0;
    list[n++] = self;
    for (unsigned i = 0; i < acpi->core_count && n < MAX_CORES; i++)
        if (acpi->core[i] != self)
            list[n++] = acpi->core[i];
    return n;
}

unsigned smp_start(struct shared *shared, unsigned want)
{
    uint32_t processor[MAX_CORES];
    uint64_t linked, size = world_size((const void *)shared->image.start, false, &linked);
    unsigned processors = list_processors(processor, shared->core[0].apic_id), next = 1, running = 1;
    bool can = want > 1 && make_start_page(shared);
    if (want > 1 && !can)
        log_warn("smp", "no page below 1 MiB to start cores in: one core is used");
    unsigned count = divide(shared, can ? want : 1, size);
    shared->core[0].world = shared->world0;
    while (running < count && next < processors && make_world(shared, running, size)) {
        bool started = false;
        while (!started && next < processors)
            started = start(shared, running, processor[next++]);
        if (!started)
            break;
        running++;
    }
    if (count < want && can)
        log_warn("smp", "memory for %u cores of %u: the processors from APIC id %u on stay parked", count, want,
                 processor[next < processors ? next : processors - 1]);
    shared->core_count = running;
    return running;
}

uint32_t smp_wait(const struct shared *shared, unsigned core, uint32_t state)
{
    const uint32_t *now = &shared->public_area->core[core].state;
    wait_while(now, state, READY_NS);
    return __atomic_load_n(now, __ATOMIC_ACQUIRE);
}

void core_wake(const struct shared *shared, unsigned core)
{
    lapic_send(shared->core[core].apic_id, VECTOR_WAKE);
}

#include "tests/unit/setup_rig.h"

#include "kernel/apic.h"
#include "kernel/clock.h"
#include "kernel/memory.h"
#include "kernel/random.h"
#include "kernel/traps.h"

struct setup setup;

/* ---- what the device's driver is linked with ---- */

uint64_t clock_ns(void)
{
    static uint64_t now;
    now += 1000000;
    return now;
}

uint64_t random_next(void)
{
    return 0xffffffffffffffff; /* so that bits that must be cleared are seen */
}

void irq_install(uint8_t vector, void (*handler)(void *argument), void *argument)
{
    setup.irq[vector].handler = handler;
    setup.irq[vector].argument = argument;
}

void pic_enable(uint8_t line)
{
    setup.pic_line = line;
}

void *heap_alloc_aligned(size_t size, size_t align)
{
    void *p = NULL;

    check(setup.memory_count < COUNT_OF(setup.memory) && posix_memalign(&p, align, size ? size : 1) == 0, "no memory");
    memset(p, 0, size);
    setup.memory[setup.memory_count++] = p;
    return p;
}

struct heap_stats heap_stats(void)
{
    return (struct heap_stats){ .untouched = 1 << 20 };
}

/* ---- a device ---- */

int set_up(void **state)
{
    modern_set_up(state);
    modern_add_all_good_but(0);
    memset(&setup.net, 0x5a, sizeof(setup.net));
    memset(&setup.error, 0, sizeof(setup.error));
    memset(&setup.config, 0, sizeof(setup.config));
    memcpy(setup.config.mac, "\x52\x54\x00\x12\x34\x56", 6);
    setup.config.mtu = 1500;
    setup.config.status = VIRTIO_NET_S_LINK_UP;
    setup.config.max_virtqueue_pairs = 1;
    modern.dev.config = (const uint8_t *)&setup.config;
    modern.dev.offered = VERSION1 | F(MAC) | F(STATUS) | F(MRG_RXBUF);
    memset(setup.irq, 0, sizeof(setup.irq));
    setup.pic_line = -1;
    setup.shared_interrupts = 0;
    return 0;
}

int tear_down(void **state)
{
    (void)state;
    while (setup.memory_count > 0)
        free(setup.memory[--setup.memory_count]);
    return 0;
}

/* MSI-X with so many vectors, its table at the beginning of BAR 0, all entries masked. */
void setup_add_msix(unsigned count)
{
    unsigned at = modern_add_cap(0x11, 12);

    fake_pci_set(modern.function, at + 2, 2, count - 1, 0xc000);
    memset(modern.bar[0], 0, BAR_SIZE);
    for (unsigned i = 0; i < count; i++)
        modern.bar[0][16 * i + 12] = 1;
}

bool setup_probe_asking(uint64_t off, uint64_t required, uint16_t ring_max, uint16_t want)
{
    struct feature_request request = { off, required };

    fake_console_clear();
    modern_find_device();
    return virtnet_probe(&setup.net, &modern.device, &request, ring_max, want, &setup.error);
}

bool setup_probe(void)
{
    return setup_probe_asking(0, 0, 0, 1);
}

void setup_check_reason(const char *part, const char *another)
{
    check(strstr(setup.error.text, part) && strstr(setup.error.text, another), "\"%s\" does not say %s and %s",
          setup.error.text, part, another);
}

void setup_check_warned(const char *part, const char *another)
{
    const char *line = fake_console_find(LOG_WARN, part);

    check(line && strstr(line, another), "%s", line ? line : "nothing said");
    assert_int_equal(fake_console_count(LOG_WARN), 1);
}

void setup_offer_pairs(uint16_t pairs)
{
    modern.dev.offered |= F(MQ) | F(CTRL_VQ);
    modern.dev.queue_count = MODERN_QUEUES;
    setup.config.max_virtqueue_pairs = pairs;
}

uint32_t setup_entry(unsigned i, unsigned word)
{
    uint32_t value;

    memcpy(&value, modern.bar[0] + 16 * i + 4 * word, 4);
    return value;
}

/* Sets everything up with MSI-X, with one pair per core: core i has APIC id 10 + i. */
bool setup_start_with_rings(unsigned vectors, uint16_t pairs, uint16_t ring_max)
{
    static struct virtnet core[4];
    struct virtnet_peer peer[4];
    static const uint8_t key[CONTROL_RSS_KEY], table[CONTROL_RSS_TABLE];

    set_up(NULL);
    if (vectors > 0)
        setup_add_msix(vectors);
    if (pairs > 1)
        setup_offer_pairs(4);
    assert_true(setup_probe_asking(0, 0, ring_max, pairs));
    virtnet_plan(&setup.net, pairs);
    for (uint16_t i = 0; i < pairs; i++) {
        struct virtnet *own = i == 0 ? &setup.net : &core[i];
        if (i > 0)
            virtnet_attach(own, &setup.net);
        assert_true(virtnet_layout(own, i, &setup.error));
        peer[i] = (struct virtnet_peer){ &own->pair, 10u + i };
    }
    return virtnet_start(&setup.net, peer, pairs, key, table, &setup.error);
}

bool setup_start(unsigned vectors, uint16_t pairs)
{
    return setup_start_with_rings(vectors, pairs, 16);
}

void setup_check_entry(unsigned i, uint32_t apic_id, uint8_t vector)
{
    assert_int_equal(setup_entry(i, 0), 0xfee00000 | apic_id << 12);
    assert_int_equal(setup_entry(i, 1), 0);
    assert_int_equal(setup_entry(i, 2), vector);
    assert_int_equal(setup_entry(i, 3) & 1, 0);
}

/* See clauses_rig.h. */
#include "tests/unit/clauses_rig.h"

#include "kernel/apic.h"
#include "kernel/clock.h"
#include "kernel/memory.h"
#include "kernel/random.h"
#include "kernel/traps.h"
#include "tests/unit/fake_device.h"

struct clauses_rig rig;
static void *memory[64];
static unsigned memory_count;
static struct fake_device control;
static bool control_there;

/* ---- what the driver is linked with ---- */

static void serve_control(void);

/* The driver looks at the clock while it waits for an answer: the device's turn. */
uint64_t clock_ns(void)
{
    static uint64_t now;

    serve_control();
    return now += 100000;
}

uint64_t random_next(void)
{
    return 0x0102030405060708;
}

void irq_install(uint8_t vector, void (*handler)(void *argument), void *argument)
{
    rig.irq[vector].handler = handler;
    rig.irq[vector].argument = argument;
}

void pic_enable(uint8_t line)
{
    (void)line;
}

void *heap_alloc_aligned(size_t size, size_t align)
{
    void *p = NULL;

    check(memory_count < COUNT_OF(memory) && posix_memalign(&p, align, size ? size : 1) == 0, "no memory");
    memset(p, 0, size);
    memory[memory_count++] = p;
    return p;
}

struct heap_stats heap_stats(void)
{
    return (struct heap_stats){ .untouched = 1 << 20 };
}

/* ---- the device ---- */

static unsigned enabled_queues(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < MODERN_QUEUES; i++)
        n += modern.dev.queue[i].enabled;
    return n;
}

const struct vring_avail *clauses_available(unsigned queue)
{
    return (const struct vring_avail *)(uintptr_t)modern.dev.queue[queue].area[1];
}

static uint16_t in_transmit_queues(void)
{
    uint16_t n = 0;

    for (unsigned i = 1; i < 2u * rig.config.max_virtqueue_pairs && i < MODERN_QUEUES; i += 2)
        n = (uint16_t)(n + (modern.dev.queue[i].enabled ? clauses_available(i)->idx : 0));
    return n;
}

/* Takes a command, notes it, answers OK. */
static void serve_control(void)
{
    unsigned index = 2u * rig.config.max_virtqueue_pairs;
    struct fake_chain chain;

    if (!(modern.dev.status & DRIVER_OK) || index >= MODERN_QUEUES || !modern.dev.queue[index].enabled)
        return;
    const struct modern_queue *q = &modern.dev.queue[index];
    if (!control_there)
        fake_device_init(&control, (void *)(uintptr_t)q->area[0], (void *)(uintptr_t)q->area[1],
                         (void *)(uintptr_t)q->area[2], q->size, false, false);
    if (!control_there)
        control.violation[0] = '\0'; /* it comes late: the indices are no longer 0 */
    control_there = true;
    if (!fake_device_take(&control, &chain))
        return;
    check(!control.violation[0] && rig.commands < COUNT_OF(rig.command), "%s", control.violation);
    const uint8_t *header = (const uint8_t *)(uintptr_t)chain.piece[0].addr;
    rig.command[rig.commands].class = header[0];
    rig.command[rig.commands].command = header[1];
    if (chain.pieces == 3)
        memcpy(&rig.command[rig.commands].word, (const void *)(uintptr_t)chain.piece[1].addr, 2);
    rig.command[rig.commands].status = modern.dev.status;
    rig.command[rig.commands].enabled = enabled_queues();
    rig.command[rig.commands++].transmitting = in_transmit_queues();
    *(uint8_t *)(uintptr_t)chain.piece[chain.pieces - 1].addr = VIRTIO_NET_OK;
    fake_device_return(&control, 0, 1);
    fake_device_publish(&control);
}

/* A reset takes the queues from the device (2.4.1). When it is to run, nobody must have rung a bell. */
static void see_status(uint8_t status)
{
    if (status == 0) {
        for (unsigned i = 0; i < MODERN_QUEUES; i++)
            modern.dev.queue[i] = (struct modern_queue){ .size = modern.dev.queue[i].size,
                                                         .vector = VIRTIO_NO_VECTOR,
                                                         .notify_off = modern.dev.queue[i].notify_off };
        if (control_there)
            fake_device_free(&control);
        control_there = false;
        memset(modern.bar[4] + NOTIFY_AT, 0xee, NOTIFY_LENGTH);
    }
    if (!(status & DRIVER_OK) || (modern.dev.status & DRIVER_OK))
        return;
    for (unsigned i = 0; i < NOTIFY_LENGTH; i++)
        rig.early_bells += (uint8_t)modern.bar[4][NOTIFY_AT + i] != 0xee;
}

int clauses_tear_down(void **state)
{
    (void)state;
    while (memory_count > 0)
        free(memory[--memory_count]);
    if (control_there)
        fake_device_free(&control);
    control_there = false;
    return 0;
}

int clauses_set_up(void **state)
{
    clauses_tear_down(state);
    modern_set_up(state);
    memset(&rig.net, 0x5a, sizeof(rig.net));
    memset(&rig.error, 0, sizeof(rig.error));
    memset(&rig.config, 0, sizeof(rig.config));
    memcpy(rig.config.mac, "\x52\x54\x00\x12\x34\x56", 6);
    rig.config.mtu = 1400;
    rig.config.status = VIRTIO_NET_S_LINK_UP;
    rig.config.max_virtqueue_pairs = 1;
    rig.config.rss_max_key_size = 40;
    rig.config.rss_max_indirection_table_length = 128;
    rig.config.supported_hash_types = 0x1ff;
    modern.dev.config = (const uint8_t *)&rig.config;
    modern.dev.offered = VERSION1 | F(MAC) | F(STATUS) | F(MRG_RXBUF);
    modern.dev.on_status = see_status;
    memset(rig.irq, 0, sizeof(rig.irq));
    memset(rig.command, 0, sizeof(rig.command));
    rig.commands = rig.early_bells = 0;
    return 0;
}

void clauses_plain(unsigned vectors)
{
    clauses_set_up(NULL);
    modern_add_all_good_but(0);
    if (vectors == 0)
        return;
    unsigned at = modern_add_cap(0x11, 12);
    fake_pci_set(modern.function, at + 2, 2, vectors - 1, 0xc000);
    memset(modern.bar[0], 0, BAR_SIZE);
}

void clauses_offer_pairs(uint16_t pairs)
{
    modern.dev.offered |= F(MQ) | F(CTRL_VQ);
    modern.dev.queue_count = MODERN_QUEUES;
    rig.config.max_virtqueue_pairs = pairs;
}

bool clauses_probe(uint64_t off, uint16_t ring_max, uint16_t pairs)
{
    struct feature_request request = { off, 0 };

    fake_console_clear();
    modern_find_device();
    return virtnet_probe(&rig.net, &modern.device, &request, ring_max, pairs, &rig.error);
}

bool clauses_start(uint16_t pairs)
{
    struct virtnet_peer peer[4];
    static uint8_t key[CONTROL_RSS_KEY], table[CONTROL_RSS_TABLE];

    for (uint16_t i = 0; i < pairs; i++)
        peer[i] = (struct virtnet_peer){ i == 0 ? &rig.net.pair : &rig.core[i].pair, 10u + i };
    return virtnet_start(&rig.net, peer, pairs, key, table, &rig.error);
}

bool clauses_bring_up(uint16_t pairs)
{
    virtnet_plan(&rig.net, pairs);
    for (uint16_t i = 0; i < pairs; i++) {
        struct virtnet *own = i == 0 ? &rig.net : &rig.core[i];
        if (i > 0)
            virtnet_attach(own, &rig.net);
        assert_true(virtnet_layout(own, i, &rig.error));
    }
    return clauses_start(pairs);
}

void clauses_run(unsigned vectors, uint16_t pairs)
{
    clauses_plain(vectors);
    if (pairs > 1)
        clauses_offer_pairs(4);
    assert_true(clauses_probe(0, 16, pairs));
    check(clauses_bring_up(pairs), "%s", rig.error.text);
}

void clauses_raise(uint8_t vector)
{
    if (rig.irq[vector].handler)
        rig.irq[vector].handler(rig.irq[vector].argument);
}

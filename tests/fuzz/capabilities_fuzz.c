/* The PCI function's configuration space: any capability list, any structures. What is taken for a structure lies
 * within a BAR. */
#include "tests/fuzz/fuzz.h"
#include "tests/unit/modern_rig.h"

static bool within(const volatile char *at, uint32_t length)
{
    for (unsigned bar = 0; bar < 6; bar++)
        if (modern.bar[bar] != NULL && at >= modern.bar[bar] && at + length <= modern.bar[bar] + BAR_SIZE)
            return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool made;
    if (!made)
        modern_make_bars(NULL);
    made = true;
    modern_set_up(NULL);
    fake_console_clear();
    memcpy(modern.function->space + 0x34, data, size < 1 ? size : 1);
    if (size > 1)
        memcpy(modern.function->space + 0x40, data + 1, size - 1 < 0xc0 ? size - 1 : 0xc0);
    modern_find_device();
    if (virtio_pci_modern_init(&modern.transport, &modern.device) != NULL)
        return 0;
    const struct virtio_transport *t = &modern.transport;
    must(within(t->common, COMMON_LENGTH) && within(t->notify, t->notify_length) && within(t->isr, 1));
    must(within(t->config, t->config_length));
    return 0;
}

#include <stdarg.h>
#include <stdio.h>
#include <linux/virtio_config.h>
#include "drivers/virtio/device.h"
#include "kernel/clock.h"
#include "kernel/console.h"

#define RESET_DEADLINE_NS 1000000000ull

bool virtio_fail(struct virtio_transport *t, struct virtio_error *error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    t->ops->set_status(t, t->ops->status(t) | VIRTIO_CONFIG_S_FAILED);
    return false;
}

static void add_status(struct virtio_transport *t, uint8_t bit)
{
    t->ops->set_status(t, t->ops->status(t) | bit);
}

bool virtio_start(struct virtio_transport *t, struct virtio_error *error)
{
    t->ops->set_status(t, 0);
    uint64_t deadline = clock_ns() + RESET_DEADLINE_NS;
    for (;;) {
        bool late = clock_ns() > deadline; /* before the look: who was stopped in between has still looked in time */
        uint8_t status = t->ops->status(t);
        if (status == 0)
            break;
        if (late) {
            snprintf(error->text, sizeof error->text, "reset: device_status is 0x%x a second after 0 was written",
                     status);
            return false;
        }
    }
    add_status(t, VIRTIO_CONFIG_S_ACKNOWLEDGE);
    add_status(t, VIRTIO_CONFIG_S_DRIVER);
    return true;
}

/* Says which features the user insists on and cannot have. */
static bool refuse_missing(struct virtio_transport *t, uint64_t offered, uint64_t missing, struct virtio_error *error)
{
    char names[96];
    features_format(missing, names, sizeof names);
    return virtio_fail(t, error, "features=+%s cannot be had: device_feature is 0x%llx, and this driver may lack it",
                       names, (unsigned long long)offered);
}

bool virtio_negotiate(struct virtio_transport *t, const struct feature_request *request, struct feature_choice *choice,
                      struct virtio_error *error)
{
    uint64_t offered = t->ops->features(t);
    if (!(offered & FEATURE_BIT(VIRTIO_F_VERSION_1)))
        return virtio_fail(t, error, "device_feature 0x%llx: a device with modern registers does not offer version_1",
                           (unsigned long long)offered);
    *choice = features_choose(offered, request);
    if (choice->missing != 0)
        return refuse_missing(t, offered, choice->missing, error);
    if (!(choice->acknowledged & FEATURE_BIT(VIRTIO_F_VERSION_1))) /* 6.1 */
        return virtio_fail(t, error, "features=-version_1: it must be accepted where it is offered");
    if (choice->orphans != 0) {
        char names[96];
        features_format(choice->orphans, names, sizeof names);
        log_warn("virtio", "device_feature 0x%llx offers %s without what it depends on: left alone",
                 (unsigned long long)offered, names);
    }
    log_debug("virtio", "device_feature 0x%llx, driver_feature 0x%llx", (unsigned long long)offered,
              (unsigned long long)choice->acknowledged);
    t->ops->set_features(t, choice->acknowledged);
    add_status(t, VIRTIO_CONFIG_S_FEATURES_OK);
    uint8_t status = t->ops->status(t);
    if (!(status & VIRTIO_CONFIG_S_FEATURES_OK))
        return virtio_fail(t, error,
                           "device_status is 0x%x after FEATURES_OK: the device refuses driver_feature 0x%llx", status,
                           (unsigned long long)choice->acknowledged);
    return true;
}

bool virtio_go(struct virtio_transport *t, struct virtio_error *error)
{
    add_status(t, VIRTIO_CONFIG_S_DRIVER_OK);
    uint8_t status = t->ops->status(t);
    if (status & VIRTIO_CONFIG_S_NEEDS_RESET)
        return virtio_fail(t, error, "device_status is 0x%x after DRIVER_OK: the device needs a reset", status);
    return true;
}

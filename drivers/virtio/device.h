/* Bringing a virtio device up, in the order the specification gives (virtio 1.3, 3.1.1). */
#ifndef RINGSIDE_VIRTIO_DEVICE_H
#define RINGSIDE_VIRTIO_DEVICE_H
#include <stdbool.h>
#include <stdint.h>
#include "drivers/virtio/features.h"
#include "drivers/virtio/transport.h"

/* One sentence that says what failed, with register and value. */
struct virtio_error {
    char text[192];
};

/* Steps 1 to 3: resets the device and waits (at most a second) for status 0; sets ACKNOWLEDGE and DRIVER. */
bool virtio_start(struct virtio_transport *t, struct virtio_error *error);

/* Steps 4 to 6: reads what is offered, chooses (features_choose), writes the choice, sets FEATURES_OK and checks that
 * it stands. A modern transport insists on VERSION_1. On false the device's status has FAILED set. */
bool virtio_negotiate(struct virtio_transport *t, const struct feature_request *request, struct feature_choice *choice,
                      struct virtio_error *error);

/* Step 8: sets DRIVER_OK; from here on the device serves. */
bool virtio_go(struct virtio_transport *t, struct virtio_error *error);

/* Says that the driver has given up (FAILED, 2.1), with the reason in *error: printf's arguments. Returns false. */
bool virtio_fail(struct virtio_transport *t, struct virtio_error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#endif

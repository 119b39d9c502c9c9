/* Feature negotiation: one table of the bits a virtio-net device may offer, and the rule that chooses among them.
 * acknowledged = offered AND implemented AND not switched off, closed under the dependencies of virtio 1.3, 5.1.3.1.
 * Nothing else in the driver tests raw masks. Compiles on the host. */
#ifndef RINGSIDE_VIRTIO_FEATURES_H
#define RINGSIDE_VIRTIO_FEATURES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FEATURE_BIT(bit) (1ull << (bit))

/* Bits that the uapi headers of linux-libc-dev 6.1 do not name yet (virtio 1.3, 5.1.3 and 6). */
#define VIRTIO_F_NOTIFICATION_DATA_BIT 38
#define VIRTIO_F_NOTIF_CONFIG_DATA_BIT 39
#define VIRTIO_F_ADMIN_VQ_BIT          41
#define VIRTIO_NET_F_DEVICE_STATS_BIT  50
#define VIRTIO_NET_F_VQ_NOTF_COAL_BIT  52
#define VIRTIO_NET_F_GUEST_USO4_BIT    54
#define VIRTIO_NET_F_GUEST_USO6_BIT    55
#define VIRTIO_NET_F_HOST_USO_BIT      56
#define VIRTIO_NET_F_GUEST_HDRLEN_BIT  59

/* One row of the table. */
struct feature {
    uint8_t bit;
    bool implemented;   /* this driver acknowledges it when offered */
    const char *name;   /* the specification's, lower case, without prefix */
    uint64_t needs_all; /* it may be acknowledged only with all of these, */
    uint64_t needs_any; /* and with at least one of these (0: no such rule) */
};

/* What the user asked for (boot line features=+a,-b). */
struct feature_request {
    uint64_t off;      /* never acknowledge */
    uint64_t required; /* refuse to run without */
};

/* Outcome of features_choose(). */
struct feature_choice {
    uint64_t acknowledged;
    uint64_t missing; /* required, but not to be had: the caller refuses to run */
    uint64_t orphans; /* offered by the device without what they depend on (a fault of the device): left alone */
};

/* The table; *count rows. */
const struct feature *features_table(size_t *count);

/* The row of a name of `len` characters, or NULL. */
const struct feature *feature_by_name(const char *name, size_t len);

/* The largest part of `set` in which each bit has what it depends on. Unknown bits depend on nothing. (5.1.3.1) */
uint64_t features_closed(uint64_t set);

/* Chooses among `offered` (64 bits of device_feature). VIRTIO_F_VERSION_1 is part of `offered` for a modern device.
 * Never fails; what cannot be satisfied is in the outcome. (3.1.1, 5.1.3.1) */
struct feature_choice features_choose(uint64_t offered, const struct feature_request *request);

/* Writes the names of the bits in `set`, comma-separated, table order, unknown bits as bitN, into buf (size bytes,
 * always terminated). An empty set gives "none". Returns the length it would have had, like snprintf. */
size_t features_format(uint64_t set, char *buf, size_t size);
#endif

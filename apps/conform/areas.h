/* The areas, in the order in which they run; conform.c lists them. */
#ifndef RINGSIDE_CONFORM_AREAS_H
#define RINGSIDE_CONFORM_AREAS_H
#include "apps/conform/tap.h"

extern const struct area area_features, area_reset, area_config, area_queues, area_ring, area_events, area_receive;
extern const struct area area_control, area_steering, area_link;
#endif

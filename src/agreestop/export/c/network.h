/* What a session needs to know of the network. */
#ifndef AG_NETWORK_H
#define AG_NETWORK_H

#include <stddef.h>

#include "answer.h"
#include "model.h"

#define AG_FRAME_WORDS ((AG_INPUTS + 31) / 32)

/* Bring the neurons of all members to rest. */
void ag_start_network(void);

/* The events of a step as bits. Returns AG_BAD_EVENT, or AG_MORE where all of them are inputs of the network. */
int ag_read_events(const uint16_t *events, size_t n, uint32_t *bits);

/* Run one step of a member. Returns its read-out spikes [AG_CLASSES], each 0 or 1, which the next call overwrites. */
const uint8_t *ag_run_member(size_t member, const uint32_t *bits);

#endif

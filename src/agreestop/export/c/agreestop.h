/* An ensemble of spiking networks watches one input, step by step, and a calibrated rule says when enough was seen.
 *
 *     int state = AG_MORE;
 *     ag_init();
 *     while (state == AG_MORE) {
 *         count = wait_for_the_next_step(events);
 *         state = ag_push(events, count);
 *     }
 *     if (state == AG_DECIDED) {
 *         const ag_answer *answer = ag_decision();
 *         ...
 *     } else {
 *         ... AG_BAD_EVENT: the step was not taken; push it again without the wrong event, or begin again ...
 *     }
 *
 * C99, no allocation: all memory is static, and one input is watched at a time. Numbers, their order and their roundings are those of the
 * event-driven engine of the Python package `agreestop`, so the read-out spikes have the same bits, and so the same decision follows.
 * Compile without -ffast-math and with -ffp-contract=off, as the Makefile does.
 */
#ifndef AGREESTOP_H
#define AGREESTOP_H

#include <stddef.h>
#include <stdint.h>

#include "answer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Forget the last input and begin a new one. */
void ag_init(void);

/* Run one step. `events` are the flat indices of the inputs that are active in it; their order has no meaning, and one that comes twice
 * counts once. n = 0 is a pause. Returns AG_DECIDED or AG_MORE; AG_BAD_EVENT if an event is not below AG_INPUTS, or if one comes twice
 * although the members read counts (AG_COUNTS), which this code cannot. Then nothing has changed, and the input goes on with the next push.
 * A push after the decision changes nothing and returns AG_DECIDED. The first push of a program without ag_init begins an input. */
int ag_push(const uint16_t *events, size_t n);

/* The decision, never NULL. Before there is one its time and size are 0. */
const ag_answer *ag_decision(void);

/* The read-out spikes [AG_MEMBERS][AG_CLASSES] of the members so far. Members that have not joined yet have none. */
const uint16_t *ag_counts(void);

#ifdef __cplusplus
}
#endif

#endif

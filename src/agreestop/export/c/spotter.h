/* A spotter: an alarm where a score is above the calibrated threshold, and then a rest. Its numbers are in spotter_data.h.
 *
 *     ag_spotter spotter;
 *     ag_spotter_init(&spotter);
 *     for (;;)
 *         if (ag_spotter_push(&spotter, next_score()) == AG_ALARM)
 *             alarm_at(spotter.steps - 1);
 *
 * C99 and C++, no allocation; one `ag_spotter` for each stream, whose size does not grow. Push one score for each step. `steps` is the number
 * of the next one: where your clock tells another, steps were lost, so begin anew with ag_spotter_init.
 */
#ifndef AG_SPOTTER_H
#define AG_SPOTTER_H

#include <stdint.h>

typedef struct {
    uint64_t steps;  /* steps so far */
    uint32_t alarms; /* alarms so far */
    uint32_t rest;   /* steps that are left of the rest after the last alarm */
} ag_spotter;

enum {
    AG_BAD_SCORE = -1, /* the score is NaN or infinite; the step was not taken, and nothing has changed */
    AG_QUIET = 0,
    AG_ALARM = 1
};

#ifdef __cplusplus
extern "C" {
#endif

/* Begin a stream. */
void ag_spotter_init(ag_spotter *spotter);

/* The score of the next step. Returns AG_ALARM, AG_QUIET or AG_BAD_SCORE. */
int ag_spotter_push(ag_spotter *spotter, double score);

/* The same where it is known whether the score is above the threshold. */
int ag_spotter_step(ag_spotter *spotter, int above);

#ifdef __cplusplus
}
#endif

#endif

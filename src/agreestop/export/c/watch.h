/* An ensemble of spiking networks watches a stream without an end. A spotter detects; then a calibrated rule names what follows.
 *
 *     ag_watch_init();
 *     for (;;) {
 *         count = wait_for_the_next_step(events);
 *         switch (ag_watch_push(events, count)) {
 *         case AG_DETECTED: wake(ag_watch_detection()->step); break;
 *         case AG_DECIDED: use(ag_watch_decision()); break;
 *         case AG_BAD_EVENT: report("an event is not below AG_INPUTS"); break;
 *         }
 *     }
 *
 * C99, no allocation: all memory is static, does not grow, and one stream is watched at a time. See agreestop.h of an export without a
 * spotter for what is equal to Python. The headers may be included from C++.
 */
#ifndef AG_WATCH_H
#define AG_WATCH_H

#include <stddef.h>
#include <stdint.h>

#include "answer.h"

typedef struct {
    uint64_t step;   /* the step of the stream, counted from 0 */
    uint32_t number; /* how many detections the stream had before */
    double score;    /* the score that was above the threshold */
} ag_detection;

#ifdef __cplusplus
extern "C" {
#endif

/* Forget the stream and begin a new one: at a start, or where steps were lost. */
void ag_watch_init(void);

/* Run one step, as ag_push of agreestop.h: `events` are the flat indices of the active inputs, n = 0 is a pause. Returns
 *
 *     AG_DETECTED   at this step the score is above the threshold: from AG_SKIP steps later on, the rule counts
 *     AG_DECIDED    the rule stops here; its time counts from where it began
 *     AG_MORE       neither
 *     AG_BAD_EVENT  an event is wrong; the step was not taken, and nothing has changed
 *
 * The first push of a program without ag_watch_init begins a stream. */
int ag_watch_push(const uint16_t *events, size_t n);

/* The last detection, never NULL. */
const ag_detection *ag_watch_detection(void);

/* The last decision, never NULL. Before there is one, and from a detection until its decision, its time and size are 0. */
const ag_answer *ag_watch_decision(void);

/* The score of the last step: the log-odds of the event in the mean confidence of the members, from the last AG_WINDOW steps. */
double ag_watch_score(void);

#ifdef __cplusplus
}
#endif

#endif

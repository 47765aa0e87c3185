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

#include "model.h"

typedef struct {
    uint16_t time;                /* the step of the decision, counted from 1 */
    uint16_t members;             /* how many members were asked */
    uint16_t size;                /* how many classes the answer holds */
    uint16_t classes[AG_CLASSES]; /* these classes, the lowest first */
} ag_answer;

/* Forget the last input and begin a new one. */
void ag_init(void);

enum {
    AG_BAD_EVENT = -1, /* an event is wrong; the step was not taken, and nothing has changed */
    AG_MORE = 0,       /* more steps are needed */
    AG_DECIDED = 1     /* there is a decision */
};

/* Run one step. `events` are the flat indices of the inputs that are active in it; their order has no meaning, and one that comes twice
 * counts once. n = 0 is a pause. Returns AG_DECIDED or AG_MORE; AG_BAD_EVENT if an event is not below AG_INPUTS, or if one comes twice
 * although the members read counts (AG_COUNTS), which this code cannot. Then nothing has changed, and the input goes on with the next push.
 * A push after the decision changes nothing and returns AG_DECIDED. The first push of a program without ag_init begins an input. */
int ag_push(const uint16_t *events, size_t n);

/* The decision, never NULL. Before there is one its time and size are 0. */
const ag_answer *ag_decision(void);

/* The read-out spikes [AG_MEMBERS][AG_CLASSES] of the members so far. Members that have not joined yet have none. */
const uint16_t *ag_counts(void);

/* How near the rule came to deciding otherwise, over all inputs since the program started: see rule.c. */
typedef struct {
    double nearest;     /* the smallest distance of a risk or score to its threshold, ties left out; INFINITY where there was none */
    unsigned long ties; /* how often both were equal, up to rounding */
} ag_distance;

ag_distance ag_margin(void);

extern const char *const ag_class_names[AG_CLASSES];

#endif

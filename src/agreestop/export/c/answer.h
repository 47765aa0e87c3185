/* What a rule answers, and what a push returns. */
#ifndef AG_ANSWER_H
#define AG_ANSWER_H

#include <stddef.h>
#include <stdint.h>

#include "sizes.h"

typedef struct {
    uint16_t time;                /* the step of the decision, counted from 1 */
    uint16_t members;             /* how many members were asked */
    uint16_t size;                /* how many classes the answer holds */
    uint16_t classes[AG_CLASSES]; /* these classes, the lowest first */
} ag_answer;

enum {
    AG_BAD_EVENT = -1, /* an event is wrong; the step was not taken, and nothing has changed */
    AG_MORE = 0,       /* more steps are needed */
    AG_DECIDED = 1,    /* there is a decision */
    AG_DETECTED = 2    /* only of ag_watch_push: there is a detection */
};

/* How near the rule came to deciding otherwise, over all inputs since the program started: see rule.c. */
typedef struct {
    double nearest;     /* the smallest distance of a risk or score to its threshold, ties left out; INFINITY where there was none */
    unsigned long ties; /* how often both were equal, up to rounding */
} ag_distance;

#ifdef __cplusplus
extern "C" {
#endif

ag_distance ag_margin(void);

extern const char *const ag_class_names[AG_CLASSES];

#ifdef __cplusplus
}
#endif

#endif

/* What a session needs to know of the rule. */
#ifndef AG_RULE_H
#define AG_RULE_H

#include "answer.h"

/* The rule looks at the first ag_look_members[i] members after step ag_look_times[i]. The last look always decides. */
extern const uint16_t ag_look_times[];
extern const uint16_t ag_look_members[];

/* Forget what the rule remembers of an input. */
void ag_start_rule(void);

/* Judge a look from the spike counts [members][AG_CLASSES]. Returns 1 and fills in the classes of the answer if the rule stops here. */
int ag_judge(uint16_t look, const uint16_t *counts, ag_answer *answer);

/* -1, 0 or 1: whether a value is below its threshold, equal to it up to rounding, or above it. `ag_margin` counts these comparisons. */
int ag_compare(double value, double limit);

#endif

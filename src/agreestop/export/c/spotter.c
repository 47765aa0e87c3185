/* See spotter.h. After an alarm at step i the next is at step i + AG_REST + 1 at the earliest. */
#include "spotter.h"

#include <math.h>

#include "spotter_data.h"

void ag_spotter_init(ag_spotter *spotter)
{
    spotter->steps = 0;
    spotter->alarms = spotter->rest = 0;
}

int ag_spotter_push(ag_spotter *spotter, double score)
{
    return isfinite(score) ? ag_spotter_step(spotter, score > AG_THRESHOLD) : AG_BAD_SCORE;
}

int ag_spotter_step(ag_spotter *spotter, int above)
{
    spotter->steps++;
    if (spotter->rest) {
        spotter->rest--;
        return AG_QUIET;
    }
    if (!above)
        return AG_QUIET;
    spotter->rest = AG_REST;
    spotter->alarms++;
    return AG_ALARM;
}

/* Watch, then decide.
 *
 *     recent     read-out spikes of the last AG_WINDOW steps
 *     score      log sum_k p_k(event) - log sum_k (1 - p_k(event)),  p_k = softmax(recent of k)
 *     counted    read-out spikes from AG_SKIP steps after the detection on, which the rule judges
 *
 * The network never starts again. Its spikes are kept as bits in a ring of AG_WINDOW steps.
 */
#include "watch.h"

#include <math.h>
#include <string.h>

#include "network.h"
#include "rule.h"
#include "spotter.h"
#include "spotter_data.h"

#define CELLS (AG_MEMBERS * AG_CLASSES)

static struct {
    uint32_t ring[AG_WINDOW][(CELLS + 31) / 32];
    uint16_t recent[CELLS], counted[CELLS];
    uint16_t place;      /* in the ring */
    uint16_t skip;       /* steps after the detection that are left to skip */
    uint16_t time, look; /* steps that the rule has counted, and its looks */
    uint8_t begun, open;        /* whether there is a stream, and a detection without a decision */
    ag_spotter spotter;
    ag_detection detection;
    ag_answer answer;
} watch;

static const uint8_t event[AG_CLASSES] = AG_EVENT; /* 1 for the classes that are to be detected */
static uint32_t frame[AG_FRAME_WORDS]; /* the events of a step as bits */

/* ---- the score */

static double log_sum(const double *values, size_t n)
{
    double top = values[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        top = fmax(top, values[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp(values[i] - top);
    return top + log(sum);
}

double ag_watch_score(void)
{
    static double sides[2][AG_CLASSES], logs[2][AG_MEMBERS];
    for (size_t member = 0; member < AG_MEMBERS; member++) {
        size_t n[2] = {0, 0};
        for (size_t label = 0; label < AG_CLASSES; label++) {
            size_t side = event[label] ? 0 : 1;
            sides[side][n[side]++] = watch.recent[member * AG_CLASSES + label];
        }
        double both[2] = {log_sum(sides[0], n[0]), log_sum(sides[1], n[1])}, total = log_sum(both, 2);
        logs[0][member] = both[0] - total;
        logs[1][member] = both[1] - total;
    }
    return log_sum(logs[0], AG_MEMBERS) - log_sum(logs[1], AG_MEMBERS);
}

/* ---- one step */

/* Run the members, and let the spikes of this step take the place of the oldest in the ring. */
static void run_members(void)
{
    uint32_t *oldest = watch.ring[watch.place];
    for (size_t member = 0; member < AG_MEMBERS; member++) {
        const uint8_t *spikes = ag_run_member(member, frame);
        for (size_t label = 0; label < AG_CLASSES; label++) {
            size_t cell = member * AG_CLASSES + label;
            uint32_t bit = (uint32_t)1 << cell % 32, *word = &oldest[cell / 32];
            watch.recent[cell] = (uint16_t)(watch.recent[cell] - ((*word & bit) != 0) + spikes[label]);
            watch.counted[cell] = (uint16_t)(watch.counted[cell] + spikes[label]);
            *word = spikes[label] ? *word | bit : *word & ~bit;
        }
    }
    watch.place = (uint16_t)((watch.place + 1u) % AG_WINDOW);
}

static int judge(void)
{
    if (watch.skip) {
        watch.skip--;
        memset(watch.counted, 0, sizeof watch.counted);
        return AG_MORE;
    }
    watch.time++;
    if (ag_look_times[watch.look] != watch.time)
        return AG_MORE;
    if (!ag_judge(watch.look++, watch.counted, &watch.answer))
        return AG_MORE;
    watch.answer.time = watch.time;
    watch.answer.members = AG_MEMBERS;
    watch.open = 0;
    return AG_DECIDED;
}

static int detect(double score)
{
    watch.detection.step = watch.spotter.steps - 1;
    watch.detection.number = watch.spotter.alarms - 1;
    watch.detection.score = score;
    memset(watch.counted, 0, sizeof watch.counted);
    memset(&watch.answer, 0, sizeof watch.answer);
    watch.time = watch.look = 0;
    watch.skip = AG_SKIP;
    watch.open = 1;
    ag_start_rule();
    return AG_DETECTED;
}

int ag_watch_push(const uint16_t *events, size_t n)
{
    if (!watch.begun)
        ag_watch_init();
    if (ag_read_events(events, n, frame) == AG_BAD_EVENT)
        return AG_BAD_EVENT;
    run_members();
    double score = watch.spotter.rest ? -INFINITY : ag_watch_score(); /* nobody asks for it during a rest */
    int found = ag_spotter_step(&watch.spotter, ag_compare(score, AG_THRESHOLD) > 0);
    if (watch.open)
        return judge();
    return found == AG_ALARM ? detect(score) : AG_MORE;
}

/* ---- the interface */

void ag_watch_init(void)
{
    memset(&watch, 0, sizeof watch);
    watch.begun = 1;
    ag_start_network();
    ag_spotter_init(&watch.spotter);
}

const ag_detection *ag_watch_detection(void)
{
    return &watch.detection;
}

const ag_answer *ag_watch_decision(void)
{
    return &watch.answer;
}

/* The session: events in, a look at the read-out spikes where the rule asks for one. A member that joins late replays the steps that it has
 * missed. The network is in network.c.
 */
#include "agreestop.h"

#include <string.h>

#include "network.h"
#include "rule.h"

static struct {
    uint16_t counts[AG_MEMBERS][AG_CLASSES];
    uint16_t time, joined, look;
    ag_answer answer;
} session;

static uint32_t frame[AG_FRAME_WORDS]; /* the events of a step as bits */
#if AG_HISTORY
static uint32_t history[AG_HISTORY][AG_FRAME_WORDS]; /* the first steps, for members that join */
#endif

static void run_member(uint16_t member, const uint32_t *bits)
{
    const uint8_t *spikes = ag_run_member(member, bits);
    for (size_t label = 0; label < AG_CLASSES; label++)
        session.counts[member][label] = (uint16_t)(session.counts[member][label] + spikes[label]);
}

/* Let members join, and bring each to the time of the others. */
static void join(uint16_t members)
{
    for (; session.joined < members; session.joined++) {
#if AG_HISTORY
        for (uint16_t step = 0; step < session.time; step++)
            run_member(session.joined, history[step]);
#endif
    }
}

void ag_init(void)
{
    memset(&session, 0, sizeof session);
    ag_start_network();
    ag_start_rule();
    join(ag_look_members[0]);
}

int ag_push(const uint16_t *events, size_t n)
{
    if (session.answer.time)
        return AG_DECIDED;
    if (!session.joined)
        ag_init();
    if (ag_read_events(events, n, frame) == AG_BAD_EVENT)
        return AG_BAD_EVENT;
#if AG_HISTORY
    if (session.time < AG_HISTORY)
        memcpy(history[session.time], frame, sizeof frame);
#endif
    session.time++;
    for (uint16_t member = 0; member < session.joined; member++)
        run_member(member, frame);
    while (ag_look_times[session.look] == session.time) {
        if (ag_judge(session.look, session.counts[0], &session.answer)) {
            session.answer.time = session.time;
            session.answer.members = ag_look_members[session.look];
            return AG_DECIDED;
        }
        session.look++;
        join(ag_look_members[session.look]);
    }
    return AG_MORE;
}

const ag_answer *ag_decision(void)
{
    return &session.answer;
}

const uint16_t *ag_counts(void)
{
    return session.counts[0];
}

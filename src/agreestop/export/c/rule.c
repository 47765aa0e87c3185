/* The calibrated rule: from spike counts to "not yet" or a set of classes. Its numbers are in rule_data.h.
 *
 *     f_k    log-softmax of the spike counts of member k
 *     g      log M_r(f_1 ... f_K), the generalised mean over the members that the look asks for; r = 1 averages their confidences
 *     S      score of a class: -g, or with temperatures -log-softmax(tau g); less the offset of the look
 *     rho    posterior mass, softmax(tau g), of a class and of all less probable ones; e = rho of rank I + 1, the risk; both in logarithms,
 *            less the offset of the look
 *
 * All in double. exp, log1p and expm1 come from the C library, whose last bits may differ from those of numpy. Rules are calibrated on
 * risks of examples, and counts are small integers, so a risk may well be equal to its threshold. So two numbers that differ by less than
 * TIED are taken as equal, as they are in Python unless rounding tells them apart. `ag_margin` reports how near all others came.
 */
#include "rule.h"

#include <math.h>

#include "rule_data.h"

#define TIED 1e-11
#define LARGEST_LOGIT 1e300

static ag_distance distance = {INFINITY, 0};

/* ---- comparisons with a threshold */

int ag_compare(double value, double limit)
{
    if (isinf(limit) || isinf(value))
        return (value > limit) - (value < limit);
    double gap = fabs(value - limit), scale = 1 + fabs(limit);
    if (gap <= TIED * scale) {
        distance.ties++;
        return 0;
    }
    if (gap < distance.nearest)
        distance.nearest = gap;
    return value < limit ? -1 : 1;
}

/* ---- confidences */

static void sort(double *values, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        double moved = values[i];
        size_t j = i;
        for (; j > 0 && values[j - 1] > moved; j--)
            values[j] = values[j - 1];
        values[j] = moved;
    }
}

/* log(1 + sum of exp(value - top) over all values but one of the largest), and the largest value in *top. Sums run over sorted values, so
 * equal values give equal bits in any order. Sorts the values. */
static double log_total(double *values, size_t n, double *top)
{
    double sum = 0;
    sort(values, n);
    *top = values[n - 1];
    for (size_t i = 0; i + 1 < n; i++)
        sum += exp(values[i] - *top);
    return log1p(sum);
}

/* log M_r of n logarithms. Sorts them. */
static double mean(double *logs, size_t n)
{
    double sum = 0;
    if (n == 1)
        return logs[0];
    sort(logs, n);
    if (isinf(AG_EXPONENT))
        return AG_EXPONENT > 0 ? logs[n - 1] : logs[0];
    if (AG_EXPONENT == 0) {
        for (size_t k = 0; k < n; k++)
            sum += logs[k];
        return sum / (double)n;
    }
    double top = AG_EXPONENT > 0 ? logs[n - 1] : logs[0];
    size_t first = AG_EXPONENT > 0 ? 0 : 1;
    for (size_t k = first; k < first + n - 1; k++)
        sum += expm1((logs[k] - top) * AG_EXPONENT);
    return log1p(sum / (double)n) / AG_EXPONENT + top;
}

/* The pooled log-confidence g of every class. */
static void pool_members(const uint16_t *counts, size_t members, double *pooled)
{
    static double top[AG_MEMBERS], total[AG_MEMBERS], sorted[AG_CLASSES], logs[AG_MEMBERS];
    for (size_t k = 0; k < members; k++) {
        for (size_t label = 0; label < AG_CLASSES; label++)
            sorted[label] = counts[k * AG_CLASSES + label];
        total[k] = log_total(sorted, AG_CLASSES, &top[k]);
    }
    for (size_t label = 0; label < AG_CLASSES; label++) {
        for (size_t k = 0; k < members; k++)
            logs[k] = counts[k * AG_CLASSES + label] - top[k] - total[k];
        pooled[label] = mean(logs, members);
    }
}

/* ---- what the rule reads off: evidence */

#if AG_TEMPERED
static void temper(double *pooled, uint16_t look)
{
    for (size_t label = 0; label < AG_CLASSES; label++)
        pooled[label] = fmax(temperatures[look] * pooled[label], -LARGEST_LOGIT);
}
#endif

#if AG_POLICY == AG_RISK || AG_POLICY == AG_CONFIDENCE
/* The classes from the most to the least probable, the lowest first on ties. */
static void order_classes(const double *logits, uint16_t *order)
{
    for (uint16_t label = 0; label < AG_CLASSES; label++) {
        size_t j = label;
        for (; j > 0 && logits[order[j - 1]] < logits[label]; j--)
            order[j] = order[j - 1];
        order[j] = label;
    }
}
#endif

#if AG_POLICY == AG_RISK
static double log_add(double x, double y)
{
    double larger = fmax(x, y), gap = fabs(x - y);
    return x == y ? x + 0.693147180559945309417 : larger + log1p(exp(-gap));
}

/* Fills in log rho of every class and returns log e. An offset of -INFINITY keeps the look from stopping. */
static double risk(const double *logits, uint16_t look, double *mass)
{
    static uint16_t order[AG_CLASSES];
    double tail = 0, total, found = -INFINITY;
    order_classes(logits, order);
    for (size_t rank = AG_CLASSES; rank-- > 0;) {
        double logit = logits[order[rank]];
        tail = rank == AG_CLASSES - 1 ? logit : log_add(tail, logit);
        mass[order[rank]] = tail;
    }
    total = tail;
    for (size_t label = 0; label < AG_CLASSES; label++)
        mass[label] = isinf(offsets[look]) ? INFINITY : mass[label] - total - offsets[look];
    if (AG_FIXED_TIME)
        found = 1.0 / (look + 1.0) - offsets[look];
    else if (AG_MAX_SET_SIZE < AG_CLASSES)
        found = mass[order[AG_MAX_SET_SIZE % AG_CLASSES]];
    return isinf(offsets[look]) ? INFINITY : found;
}
#elif AG_POLICY != AG_CONFIDENCE
/* The score of every class: the less a class fits, the larger. */
static void score(double *pooled, uint16_t look)
{
    double top = 0, total = 0;
#if AG_TEMPERED
    static double sorted[AG_CLASSES];
    temper(pooled, look);
    for (size_t label = 0; label < AG_CLASSES; label++)
        sorted[label] = pooled[label];
    total = log_total(sorted, AG_CLASSES, &top);
#endif
    for (size_t label = 0; label < AG_CLASSES; label++)
        pooled[label] = -(pooled[label] - top - total) - offsets[look];
}
#endif

/* ---- what the rule then does */

static void answer_with(const uint8_t *set, ag_answer *answer)
{
    answer->size = 0;
    for (uint16_t label = 0; label < AG_CLASSES; label++)
        if (set[label])
            answer->classes[answer->size++] = label;
}

#if AG_POLICY == AG_RISK

#if AG_GATED
static int block; /* the block of the input; -1 before its gate opens */
#endif

void ag_start_rule(void)
{
#if AG_GATED
    block = -1;
#endif
}

/* Stop where log e is below the threshold. Of the I most probable classes, the answer holds the best and those whose rho reaches the
 * threshold. If nothing stopped, the last answer is the I most probable classes and all whose rho reaches the threshold. */
int ag_judge(uint16_t look, const uint16_t *counts, ag_answer *answer)
{
    static double pooled[AG_CLASSES], mass[AG_CLASSES], sorted[AG_CLASSES];
    static uint8_t set[AG_CLASSES];
    int last = look == AG_LOOKS - 1;
    pool_members(counts, ag_look_members[look], pooled);
#if AG_TEMPERED
    temper(pooled, look);
#endif
    double log_risk = risk(pooled, look, mass);
    size_t row = AG_THRESHOLD_FOR_EACH_LOOK ? look : 0;
#if AG_GATED
    if (block < 0) {
        if (ag_compare(log_risk, AG_GATE_SLACK) < 0)
            block = blocks[look];
        else if (last)
            block = AG_BLOCKS - 1, log_risk = INFINITY;
        else
            return 0;
    }
    row = (size_t)block;
#endif
    double limit = thresholds[row];
    int stops = ag_compare(log_risk, limit) < 0;
    if (!stops && !last)
        return 0;
    for (size_t label = 0; label < AG_CLASSES; label++)
        sorted[label] = mass[label];
    sort(sorted, AG_CLASSES);
    double best = sorted[AG_CLASSES - 1], least = sorted[AG_CLASSES - AG_MAX_SET_SIZE];
    for (size_t label = 0; label < AG_CLASSES; label++) {
        int among = mass[label] >= least;
        if (stops)
            set[label] = among && (AG_FILL || mass[label] == best || ag_compare(mass[label] - AG_LOG_TRIM, limit) >= 0);
        else
            set[label] = AG_FINAL ? mass[label] == best : among || ag_compare(mass[label], limit) >= 0;
    }
    answer_with(set, answer);
    return 1;
}

#elif AG_POLICY == AG_CONFIDENCE

void ag_start_rule(void)
{
}

/* Stop where the largest confidence reaches the threshold, and answer the I most probable classes. */
int ag_judge(uint16_t look, const uint16_t *counts, ag_answer *answer)
{
    static double pooled[AG_CLASSES];
    static uint16_t order[AG_CLASSES];
    static uint8_t set[AG_CLASSES];
    pool_members(counts, ag_look_members[look], pooled);
    order_classes(pooled, order);
    if (ag_compare(pooled[order[0]], thresholds[0]) < 0 && look < AG_LOOKS - 1)
        return 0;
    for (size_t rank = 0; rank < AG_CLASSES; rank++)
        set[order[rank]] = rank < AG_MAX_SET_SIZE;
    answer_with(set, answer);
    return 1;
}

#else /* AG_CHECKPOINTS, AG_RUNNING, AG_STOPPING: sets of classes */

#if AG_POLICY == AG_RUNNING
static double largest[AG_CLASSES]; /* the largest score of each class so far */
#endif

void ag_start_rule(void)
{
#if AG_POLICY == AG_RUNNING
    for (size_t label = 0; label < AG_CLASSES; label++)
        largest[label] = -INFINITY;
#endif
}

/* The set holds the classes whose score is at most the threshold. Stop at a set of at most I classes. */
int ag_judge(uint16_t look, const uint16_t *counts, ag_answer *answer)
{
    static double scores[AG_CLASSES];
    static uint8_t set[AG_CLASSES];
    int last = look == AG_LOOKS - 1, size = 0, small;
    size_t best = 0, row = AG_THRESHOLD_FOR_EACH_LOOK ? look : 0;
    pool_members(counts, ag_look_members[look], scores);
    score(scores, look);
    for (size_t label = 0; label < AG_CLASSES; label++) {
#if AG_POLICY == AG_RUNNING
        scores[label] = largest[label] = fmax(largest[label], scores[label]);
#endif
        set[label] = ag_compare(scores[label], thresholds[row * AG_COLUMNS + label % AG_COLUMNS]) <= 0;
        size += set[label];
        best = scores[label] < scores[best] ? label : best;
    }
    small = size <= AG_MAX_SET_SIZE && (size > 0 || AG_POLICY != AG_STOPPING); /* a stop-aware rule waits for a set that is not empty */
    if (!small && !last)
        return 0;
    if (AG_FINAL && !small) {
        for (size_t label = 0; label < AG_CLASSES; label++)
            set[label] = 0;
        size = 0;
    }
    if (size == 0 && AG_POLICY != AG_CHECKPOINTS)
        set[best] = 1;
    answer_with(set, answer);
    return 1;
}

#endif

ag_distance ag_margin(void)
{
    return distance;
}

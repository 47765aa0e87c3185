/* The network: the events of a step in, read-out spikes out.
 *
 *     x_t = scale * (sum of the weight rows of the events of step t) + bias
 *     SRM:          i_t = b i_{t-1} + x_t,  m_t = a m_{t-1} + i_t,  spike where c m_t + q h_{t-1} >= theta,  h_t = r h_{t-1} + spike
 *     integrators:  i_t = b i_{t-1} + x_t,  v_t = a v_{t-1} + c i_t + r,  spike where v_t >= theta; then v_t = q, or v_t = v_t - q
 *
 * A sum adds the rows of its events in the order of their indices, and every multiply-add below is rounded once (fmaf). This is what the
 * Python engine does.
 */
#include "network.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "float arithmetic must be done in float: on a 32-bit x86 processor, compile with -msse2 -mfpmath=sse"
#endif

#define LISTED 256 /* events that are added together; the sum of 256 int8 weights fits into 16 bits */

static struct {
    float synapse[AG_MEMBERS][AG_NEURONS];
    float membrane[AG_MEMBERS][AG_NEURONS];
    float last[AG_MEMBERS][AG_NEURONS]; /* the refractory state of SRM neurons, the last spikes of integrators */
} state;

static uint8_t spikes[2][AG_SPIKES]; /* what a layer receives and what it emits, channels of a position together */
static float current[AG_WIDEST];
#if AG_INTEGER_WEIGHTS
static int16_t part[AG_WIDEST];
#endif
static uint16_t list[LISTED]; /* weight rows that are still to be added */
static size_t listed;

/* ---- sums of weight rows */

#if AG_BFLOAT16_WEIGHTS
static inline float value(uint16_t weight)
{
    uint32_t bits = (uint32_t)weight << 16;
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}
#else
#define value(weight) (weight)
#endif

/* Add the listed rows to the sums, four at a time: each sum is read and written once for four additions, in their order. */
static void add_rows(const ag_weight *weights, size_t outputs)
{
    size_t n = 0;
#if AG_INTEGER_WEIGHTS
    int16_t *restrict sum = part;
    memset(part, 0, outputs * sizeof *part);
#define ADD(sum, weight) (int16_t)((sum) + (weight))
#else
    float *restrict sum = current;
#define ADD(sum, weight) ((sum) + value(weight))
#endif
    for (; n + 4 <= listed; n += 4) {
        const ag_weight *restrict w0 = weights + outputs * list[n], *restrict w1 = weights + outputs * list[n + 1];
        const ag_weight *restrict w2 = weights + outputs * list[n + 2], *restrict w3 = weights + outputs * list[n + 3];
        for (size_t j = 0; j < outputs; j++)
            sum[j] = ADD(ADD(ADD(ADD(sum[j], w0[j]), w1[j]), w2[j]), w3[j]);
    }
    for (; n < listed; n++) {
        const ag_weight *restrict w = weights + outputs * list[n];
        for (size_t j = 0; j < outputs; j++)
            sum[j] = ADD(sum[j], w[j]);
    }
#if AG_INTEGER_WEIGHTS
    for (size_t j = 0; j < outputs; j++)
        current[j] += (float)part[j];
#endif
    listed = 0;
}

static inline void add_row(size_t row, const ag_weight *weights, size_t outputs)
{
    list[listed++] = (uint16_t)row;
    if (listed == LISTED)
        add_rows(weights, outputs);
}

/* ---- lists of events */

static inline unsigned lowest_bit(uint32_t bits)
{
#if defined(__GNUC__)
    return (unsigned)__builtin_ctz(bits);
#else
    unsigned index = 0;
    while (!(bits >> index & 1))
        index++;
    return index;
#endif
}

static void add_frame(const uint32_t *bits, const ag_weight *weights, size_t outputs)
{
    for (size_t word = 0; word < AG_FRAME_WORDS; word++)
        for (uint32_t left = bits[word]; left; left &= left - 1)
            add_row(32 * word + lowest_bit(left), weights, outputs);
}

/* Add the weight rows from `first` on of those of `n` channels that spike. Most spike rarely, so eight are tested at once. */
static void add_spikes(const uint8_t *from, size_t n, size_t first, const ag_weight *weights, size_t outputs)
{
    size_t j = 0;
    for (; j + 8 <= n; j += 8) {
        uint64_t eight;
        memcpy(&eight, from + j, sizeof eight);
        if (eight)
            for (size_t k = j; k < j + 8; k++)
                if (from[k])
                    add_row(first + k, weights, outputs);
    }
    for (; j < n; j++)
        if (from[j])
            add_row(first + j, weights, outputs);
}

/* Add the weight rows of the spikes that reach position (y, x): row by row of the window, position by position, channel by channel. */
static void add_window(const ag_layer *layer, const uint8_t *from, int y, int x, const ag_weight *weights)
{
    int top = y * layer->stride_y - layer->pad_y, left = x * layer->stride_x - layer->pad_x;
    for (int row = 0; row < layer->window_y; row++) {
        if (top + row < 0 || top + row >= layer->in_height)
            continue;
        for (int column = 0; column < layer->window_x; column++) {
            if (left + column < 0 || left + column >= layer->in_width)
                continue;
            size_t position = (size_t)(top + row) * layer->in_width + (size_t)(left + column);
            size_t first = (size_t)(row * layer->window_x + column) * layer->in_channels;
            add_spikes(from + position * layer->in_channels, layer->in_channels, first, weights, layer->outputs);
        }
    }
}

/* ---- neurons */

/* One step of SRM neurons that receive `current`. Their constants are a, b, r, theta, c and q = -theta r. */
static void run_srm(const ag_layer *layer, float *restrict synapse, float *restrict membrane, float *restrict last, uint8_t *restrict spike)
{
    const float *restrict scale = layer->scale, *restrict bias = layer->bias, *restrict x = current, *k = layer->constants;
    const float a = k[0], b = k[1], r = k[2], threshold = k[3], c = k[4], q = k[5];
    for (size_t j = 0; j < layer->outputs; j++) {
        float i = fmaf(synapse[j], b, fmaf(x[j], scale[j], bias[j]));
        float m = fmaf(membrane[j], a, i);
        int fired = fmaf(last[j], q, m * c) >= threshold;
        synapse[j] = i;
        membrane[j] = m;
        last[j] = fmaf(last[j], r, fired ? 1.0f : 0.0f);
        spike[j] = (uint8_t)fired;
    }
}

/* One step of integrators. Each neuron has its own constants: first all a, then all b, r, theta, c and q. */
static void run_integrators(const ag_layer *layer, float *restrict synapse, float *restrict membrane, float *restrict last,
                            uint8_t *restrict spike)
{
    const float *restrict scale = layer->scale, *restrict bias = layer->bias, *restrict x = current;
    const size_t n = layer->outputs;
    const float *a = layer->constants, *b = a + n, *r = b + n, *threshold = r + n, *c = threshold + n, *q = c + n;
    const int subtracts = layer->neuron == AG_SUBTRACTS;
    for (size_t j = 0; j < n; j++) {
        float i = fmaf(synapse[j], b[j], fmaf(x[j], scale[j], bias[j]));
        float v = fmaf(membrane[j], a[j], fmaf(i, c[j], r[j]));
        int fired = v >= threshold[j];
        synapse[j] = i;
        membrane[j] = fired ? (subtracts ? v - q[j] : q[j]) : v;
        last[j] = fired ? 1.0f : 0.0f;
        spike[j] = (uint8_t)fired;
    }
}

/* ---- one member */

/* A spike wherever the 2 x 2 window has one; an odd last row or column is left out. `to` may be `from`: it is written behind what is read. */
static void pool(const ag_layer *layer, const uint8_t *from, uint8_t *to)
{
    size_t width = layer->width, channels = layer->outputs;
    for (size_t y = 0; y < layer->height / 2u; y++)
        for (size_t x = 0; x < width / 2; x++)
            for (size_t j = 0; j < channels; j++) {
                const uint8_t *corner = from + ((2 * y * width + 2 * x) * channels + j);
                uint8_t any = corner[0] | corner[channels] | corner[width * channels] | corner[(width + 1) * channels];
                to[(y * (width / 2) + x) * channels + j] = any;
            }
}

/* Whether a layer looks at its input through windows. The input of one that does not may stay a list. */
static int convolves(const ag_layer *layer)
{
    return layer->in_height > 1 || layer->in_width > 1 || layer->window_y > 1 || layer->window_x > 1;
}

const uint8_t *ag_run_member(size_t member, const uint32_t *bits)
{
    const ag_layer *layers = ag_members[member].layers;
    uint8_t *received = spikes[0], *emitted = spikes[1];
    size_t neuron = 0;
    int windows = convolves(layers);
    if (windows) { /* events are numbered channel by channel, and a window wants the channels of a position together */
        size_t channels = layers->in_channels, positions = AG_INPUTS / channels;
        for (size_t event = 0; event < AG_INPUTS; event++)
            received[event % positions * channels + event / positions] = bits[event / 32] >> event % 32 & 1;
    }
    for (size_t index = 0; index < ag_members[member].count; index++) {
        const ag_layer *layer = &layers[index];
        const ag_weight *weights = layer->weights;
        size_t outputs = layer->outputs;
        for (int y = 0; y < layer->height; y++)
            for (int x = 0; x < layer->width; x++, neuron += outputs) {
                float *synapse = state.synapse[member] + neuron, *membrane = state.membrane[member] + neuron;
                float *last = state.last[member] + neuron;
                uint8_t *spike = emitted + (size_t)(y * layer->width + x) * outputs;
                memset(current, 0, outputs * sizeof *current);
                if (index || windows)
                    add_window(layer, received, y, x, weights);
                else
                    add_frame(bits, weights, outputs);
                for (size_t own = 0; own < layer->recurrent; own++)
                    if (last[own] != 0)
                        add_row(layer->rows - layer->recurrent + own, weights, outputs);
                add_rows(weights, outputs);
                if (layer->neuron == AG_SRM)
                    run_srm(layer, synapse, membrane, last, spike);
                else
                    run_integrators(layer, synapse, membrane, last, spike);
            }
        if (layer->pool)
            pool(layer, emitted, emitted);
        uint8_t *swapped = received;
        received = emitted;
        emitted = swapped;
    }
    return received;
}

/* ---- the interface */

void ag_start_network(void)
{
    memset(&state, 0, sizeof state);
}

int ag_read_events(const uint16_t *events, size_t n, uint32_t *bits)
{
    for (size_t index = 0; index < n; index++)
        if (events[index] >= AG_INPUTS)
            return AG_BAD_EVENT;
    memset(bits, 0, AG_FRAME_WORDS * sizeof *bits);
    for (size_t index = 0; index < n; index++) {
        uint32_t bit = (uint32_t)1 << events[index] % 32;
        if (AG_COUNTS && bits[events[index] / 32] & bit)
            return AG_BAD_EVENT;
        bits[events[index] / 32] |= bit;
    }
    return AG_MORE;
}

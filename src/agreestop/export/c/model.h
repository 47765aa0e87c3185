/* The layers of each member. Their numbers are in model.c, and the sizes of all memory in sizes.h; `agreestop export` writes both. */
#ifndef AG_MODEL_H
#define AG_MODEL_H

#include <stdint.h>

#include "sizes.h"

#if AG_INTEGER_WEIGHTS
typedef int8_t ag_weight; /* in units that `scale` contains */
#elif AG_BFLOAT16_WEIGHTS
typedef uint16_t ag_weight; /* the upper half of a float */
#else
typedef float ag_weight;
#endif

enum { AG_SRM, AG_RESETS, AG_SUBTRACTS }; /* kinds of neurons: see agreestop.c */

typedef struct {
    const ag_weight *weights; /* [rows][outputs] */
    const float *scale;       /* [outputs] */
    const float *bias;        /* [outputs] */
    const float *constants;   /* SRM: [6]; integrators: [6][outputs] */
    uint16_t neuron;          /* AG_SRM, AG_RESETS or AG_SUBTRACTS */
    uint16_t rows, outputs;   /* weight rows; neurons at each position */
    uint16_t recurrent;       /* the last weight rows, for the layer's own spikes of the step before */
    uint16_t height, width;   /* positions; 1 x 1 for a fully connected layer */
    uint16_t in_channels, in_height, in_width;
    uint16_t window_y, window_x, stride_y, stride_x, pad_y, pad_x; /* a fully connected layer has one window, its whole input */
    uint16_t pool;            /* 1 if a 2 x 2 max-pool follows */
} ag_layer;

typedef struct {
    const ag_layer *layers;
    uint16_t count;
} ag_member;

extern const ag_member ag_members[AG_MEMBERS];

#endif

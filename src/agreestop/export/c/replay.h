/* What replay.c and watch_replay.c share: reading events and printing classes. */
#ifndef AG_REPLAY_H
#define AG_REPLAY_H

#include <stdio.h>
#include <string.h>

#include "answer.h"

static uint8_t raw[2 * AG_INPUTS + 24];
static uint16_t events[AG_INPUTS];

static int fail(const char *sentence)
{
    fprintf(stderr, "replay: %s\n", sentence);
    return 1;
}

static uint32_t number(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Read the events of one step. Returns 0 where the file ends before. */
static int read_events(FILE *file, uint32_t size)
{
    if (fread(raw, 2, size, file) != size)
        return 0;
    for (uint32_t index = 0; index < size; index++)
        events[index] = (uint16_t)(raw[2 * index] | raw[2 * index + 1] << 8);
    return 1;
}

/* Names joined by semicolons; in quotes where a name has a comma or a quote, as in every CSV. */
static void print_classes(const ag_answer *answer)
{
    int quoted = 0;
    for (uint16_t index = 0; index < answer->size; index++)
        quoted |= strpbrk(ag_class_names[answer->classes[index]], ",\"") != NULL;
    if (quoted)
        putchar('"');
    for (uint16_t index = 0; index < answer->size; index++) {
        if (index)
            putchar(';');
        for (const char *letter = ag_class_names[answer->classes[index]]; *letter; letter++) {
            if (*letter == '"')
                putchar('"');
            putchar(*letter);
        }
    }
    if (quoted)
        putchar('"');
    putchar('\n');
}

#endif

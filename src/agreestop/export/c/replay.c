/* replay FILE: decide on the recorded inputs of a file that `agreestop export --inputs` wrote, as CSV: that of `agreestop decide`.
 *
 *     8 bytes     AGINPUTS
 *     4 numbers   format (1), inputs n, steps T, cells of a step; every number is little-endian and unsigned, 32 bits
 *     then for every input: T numbers, the events of each step; and the events of all steps, 16 bits each
 *
 * A file with T = 1 holds images, each of which is shown at every step. The time is that of all steps, reading and printing included.
 */
#include <time.h>

#include "agreestop.h"
#include "replay.h"

static uint32_t sizes[AG_STEPS];

int main(int count, char **arguments)
{
    unsigned long pushed = 0;
    if (count != 2)
        return fail("give the file of inputs: replay inputs.bin");
    FILE *file = fopen(arguments[1], "rb");
    if (!file)
        return fail("the file of inputs cannot be opened: check the path");
    if (fread(raw, 1, 24, file) != 24 || memcmp(raw, "AGINPUTS", 8) || number(raw + 8) != 1)
        return fail("this is no file of inputs: write one with agreestop export --inputs");
    uint32_t inputs = number(raw + 12), steps = number(raw + 16);
    if ((steps != AG_STEPS && steps != 1) || number(raw + 20) != AG_INPUTS)
        return fail("the inputs are of another size than the network and the rule: export both again");
    clock_t begin = clock();
    puts("input,stop_time,set_size,classes");
    for (uint32_t input = 0; input < inputs; input++) {
        int state = AG_MORE;
        ag_init();
        for (uint32_t step = 0; step < steps; step++) {
            if (fread(raw, 1, 4, file) != 4)
                return fail("the file ends before its last input: export it again");
            sizes[step] = number(raw);
            if (sizes[step] > AG_INPUTS)
                return fail("a step has more events than inputs: export the file again");
        }
        for (uint32_t step = 0; step < steps; step++) {
            if (!read_events(file, sizes[step]))
                return fail("the file ends before its last input: export it again");
            for (uint32_t shown = 0; state == AG_MORE && shown < (steps == 1 ? AG_STEPS : 1); shown++, pushed++)
                state = ag_push(events, sizes[step]);
            if (state == AG_BAD_EVENT)
                return fail("an event is not an input of the network: export the file again");
        }
        const ag_answer *answer = ag_decision();
        printf("%lu,%u,%u,", (unsigned long)input, answer->time, answer->size);
        print_classes(answer);
    }
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    int more = fgetc(file) != EOF;
    fclose(file);
    if (more)
        return fail("the file goes on after its last input: export it again");
    ag_distance margin = ag_margin();
    fprintf(stderr, "%lu steps, %.3g us each; smallest distance to a threshold %.3g, ties %lu\n", pushed,
            pushed ? 1e6 * seconds / (double)pushed : 0, margin.nearest, margin.ties);
    return 0;
}

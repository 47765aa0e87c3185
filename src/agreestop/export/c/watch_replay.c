/* replay FILE: watch the recorded streams of a file that `agreestop export --spotter --inputs` wrote, and print what is found as CSV.
 *
 *     8 bytes     AGSTREAM
 *     3 numbers   format (1), streams n, cells of a step; every number is little-endian and unsigned, 32 bits
 *     then for every stream: the number of its steps; and for every step the number of its events, and its events, 16 bits each
 *
 * The time is that of all steps, reading and printing included.
 */
#include <time.h>

#include "replay.h"
#include "watch.h"

static int read_number(FILE *file, uint32_t *to)
{
    if (fread(raw, 1, 4, file) != 4)
        return 0;
    *to = number(raw);
    return 1;
}

static void print_found(uint32_t stream, uint32_t step, int state)
{
    printf("%lu,%lu,", (unsigned long)stream, (unsigned long)step);
    if (state == AG_DETECTED) {
        puts("detection,,");
        return;
    }
    printf("decision,%u,", ag_watch_decision()->size);
    print_classes(ag_watch_decision());
}

int main(int count, char **arguments)
{
    unsigned long pushed = 0, unnamed = 0;
    uint32_t streams, steps = 0, size;
    if (count != 2)
        return fail("give the file of streams: replay inputs.bin");
    FILE *file = fopen(arguments[1], "rb");
    if (!file)
        return fail("the file of streams cannot be opened: check the path");
    if (fread(raw, 1, 20, file) != 20 || memcmp(raw, "AGSTREAM", 8) || number(raw + 8) != 1)
        return fail("this is no file of streams: write one with agreestop export --spotter --inputs");
    streams = number(raw + 12);
    if (number(raw + 16) != AG_INPUTS)
        return fail("the streams are of another size than the network: export both again");
    clock_t begin = clock();
    puts("stream,step,found,set_size,classes");
    for (uint32_t stream = 0; stream < streams; stream++) {
        int open = 0;
        ag_watch_init();
        if (!read_number(file, &steps))
            return fail("the file ends before its last stream: export it again");
        for (uint32_t step = 0; step < steps; step++, pushed++) {
            if (!read_number(file, &size))
                return fail("the file ends before its last stream: export it again");
            if (size > AG_INPUTS)
                return fail("a step has more events than inputs: export the file again");
            if (!read_events(file, size))
                return fail("the file ends before its last stream: export it again");
            int state = ag_watch_push(events, size);
            if (state == AG_BAD_EVENT)
                return fail("an event is not an input of the network: export the file again");
            if (state != AG_MORE) {
                print_found(stream, step, state);
                open = state == AG_DETECTED;
            }
        }
        unnamed += (unsigned)open;
    }
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    int more = fgetc(file) != EOF;
    fclose(file);
    if (more)
        return fail("the file goes on after its last stream: export it again");
    ag_distance margin = ag_margin();
    fprintf(stderr, "%lu steps, %.3g us each; smallest distance to a threshold %.3g, ties %lu\n", pushed,
            pushed ? 1e6 * seconds / (double)pushed : 0, margin.nearest, margin.ties);
    if (unnamed)
        fprintf(stderr, "%lu detections have no decision, since their streams ended before the rule decided\n", unnamed);
    return 0;
}

// SPDX-License-Identifier: MIT
// What an entry of the flight recorder costs, in memory and in a file.
// usage: bench_recorder [FOLDER]; with a folder the ring lies in a file there
#include "../../src/base/recording.h"
#include "bench_util.h"

#include <isotherm.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 15, ENTRIES = 1000000 };

int main(int argc, char **argv) {
    double ns[BLOCKS];
    if (argc > 1) {
        setenv("ISO_RECORDER", argv[1], 1);
        bench_require(iso__recorder_open(0, 1));
    }
    uint16_t stream = iso__recorder_stream(1, 0, 1, "bench");
    for (int b = 0; b < BLOCKS; b++) {
        int64_t start = iso_now();
        for (int i = 0; i < ENTRIES; i++)
            iso__record_posted(stream, (uint32_t)i, 64, "conv1+conv2");
        ns[b] = (double)(iso_now() - start) / ENTRIES;
    }
    double median = bench_quantile(ns, BLOCKS, 0.5);
    printf(
        "{\"entries\": %d, \"blocks\": %d, \"ns_p50\": %.1f, \"ns_min\": %.1f, \"ns_max\": %.1f}\n",
        ENTRIES, BLOCKS, median, ns[0], ns[BLOCKS - 1]);
    return EXIT_SUCCESS;
}

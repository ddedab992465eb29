// SPDX-License-Identifier: MIT
// The memory of this process, as the system counts it.
#ifndef ISO_PROCESS_MEMORY_H
#define ISO_PROCESS_MEMORY_H

#include <stdio.h>

// The resident memory in bytes; 0 if the system does not tell.
static inline size_t process_bytes(void) {
    char line[256];
    size_t kb = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    if (!file) return 0;
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "Rss: %zu", &kb) == 1) break;
    fclose(file);
    return kb * 1024;
}

#endif

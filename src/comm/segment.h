// SPDX-License-Identifier: MIT
// Private to src/comm: POSIX shared memory, named by a number until all ranks have mapped it.
#ifndef ISO_SEGMENT_H
#define ISO_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

// Creates and maps zeroed memory, with all of its pages. *id: its name. NULL if there is no room.
void *iso__segment_create(size_t bytes, int64_t *id);
// at: NULL, or the memory that the mapping replaces. NULL if it cannot be mapped.
void *iso__segment_map(int64_t id, size_t bytes, void *at);
void iso__segment_unlink(int64_t id); // 0: nothing

#endif

// SPDX-License-Identifier: MIT
// Files of a test, in a folder that is removed at its end.
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

// The folder (made on the first call), or a name in it. Each result lives until scratch_remove.
const char *scratch_folder(void);
const char *scratch_path(const char *name);
// A file of these bytes; returns its path.
const char *scratch_write(const char *name, const void *data, size_t bytes);
// The bytes of a file, with a 0 behind them; free with free().
char *scratch_read(const char *path, size_t *bytes);
// Files now in the folder.
int scratch_count(void);
// Standard error goes to a file from now on, and until release_stderr, which tells whether anything
// was printed. Call it before scratch_remove.
void scratch_take_stderr(void);
bool scratch_release_stderr(void);
// Removes the folder and what is in it. For the .fini of a suite.
void scratch_remove(void);

#endif

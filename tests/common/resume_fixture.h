// SPDX-License-Identifier: MIT
// For tests of saved state on several ranks: a folder that all share, and a small list of entries.
#ifndef ISO_TEST_RESUME_FIXTURE_H
#define ISO_TEST_RESUME_FIXTURE_H

#include <isotherm/resume.h>

// Suite fixtures: those of mpi_fixture, with a folder that is removed at the end.
void resume_setup(void);
void resume_teardown(void);
// PATH of all sets of a test: "run" in that folder.
const char *resume_path(void);
// From now on, resume_path uses another folder.
void resume_use_folder(const char *folder);
// The name of a file of the set of `step`; rank -1: the shared one. Valid until the eighth call
// after it.
const char *resume_file(int step, int rank, const char *suffix);
// Collective. The number of files that rank 0 sees in the folder after all ranks have called this.
int resume_files(void);

// A shared array and an own one of rank + 1 elements.
typedef struct numbers {
    iso_state *state;
    double shared[4];
    int64_t own[64];
    bool with_own;
    int variant; // distinguishes sets of the same step
} numbers;

iso_status numbers_create(numbers *n, bool with_own);
void numbers_destroy(numbers *n);
// fill: writes values that depend on step, variant and rank. are: whether the values are those of
// `step`, all of one variant.
void numbers_fill(numbers *n, int step);
bool numbers_are(const numbers *n, int step);
iso_status numbers_save(numbers *n, iso_comm *comm, int step); // fills them for `step`
// Loads into numbers with other values. *step: the loaded step, whose values they then have.
iso_status numbers_load(iso_comm *comm, bool with_own, int64_t *step);

// From now on, keeps the library's log messages on this rank.
void log_capture(void);
// Whether a kept message contains text, and at most `lines` lines were written.
bool log_said(const char *text, int lines);

#endif

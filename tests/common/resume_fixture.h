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
// The same name in another folder, from here on.
void resume_use_folder(const char *folder);
// The name of a file of the set of `step`; rank -1: the shared one. Valid until the eighth call
// after it.
const char *resume_file(int step, int rank, const char *suffix);
// Files now in the folder, as rank 0 sees them once every rank has called this; collective.
int resume_files(void);

// A shared array and an own one of rank + 1 elements.
typedef struct numbers {
    iso_state *state;
    double shared[4];
    int64_t own[64];
    bool with_own;
    int variant; // what makes two sets of one step different
} numbers;

iso_status numbers_create(numbers *n, bool with_own);
void numbers_destroy(numbers *n);
// Values that belong to step, variant and rank; whether they are there, all of one variant.
void numbers_fill(numbers *n, int step);
bool numbers_are(const numbers *n, int step);
iso_status numbers_save(numbers *n, iso_comm *comm, int step); // filled for it
// Into numbers that were something else; *step is what was loaded, and they are that step's.
iso_status numbers_load(iso_comm *comm, bool with_own, int64_t *step);

// From here to the end of capture, messages of the library are kept on this rank.
void log_capture(void);
// Whether one of them contains this, and no more than this many lines were written.
bool log_said(const char *text, int lines);

#endif

// SPDX-License-Identifier: MIT
// For tests of saved state on several ranks: a folder that all share, and a small list of entries.
#include "common/resume_fixture.h"

#include "base/base.h"
#include "common/mpi_fixture.h"
#include "common/scratch.h"

#include <math.h>
#include <string.h>

static char path[300];
static FILE *captured;
static char *text;
static size_t text_bytes;

static void end_capture(void) {
    if (!captured) return;
    iso_log_set_stream(stderr);
    fclose(captured);
    free(text);
    captured = NULL;
}

void resume_setup(void) {
    test_mpi_setup();
    if (test_rank == 0) snprintf(path, sizeof(path), "%s/run", scratch_folder());
    MPI_Bcast(path, sizeof(path), MPI_CHAR, 0, MPI_COMM_WORLD);
}

void resume_teardown(void) {
    end_capture();
    MPI_Barrier(MPI_COMM_WORLD);
    if (test_rank == 0) scratch_remove();
    test_mpi_teardown();
}

const char *resume_path(void) { return path; }

void resume_use_folder(const char *folder) { snprintf(path, sizeof(path), "%s/run", folder); }

const char *resume_file(int step, int rank, const char *suffix) {
    static char name[8][400];
    static int next;
    char *out = name[next++ % 8];
    if (rank < 0)
        snprintf(out, sizeof(name[0]), "%s.step-%012d%s", path, step, suffix);
    else
        snprintf(out, sizeof(name[0]), "%s.step-%012d.rank-%05d%s", path, step, rank, suffix);
    return out;
}

int resume_files(void) {
    int count = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (test_rank == 0) count = scratch_count();
    MPI_Bcast(&count, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return count;
}

// ---- Numbers ------------------------------------------------------------------------------------

iso_status numbers_create(numbers *n, bool with_own) {
    *n = (numbers){.with_own = with_own};
    ISO_TRY(iso_state_create(&n->state));
    ISO_TRY(iso_state_add(n->state, ISO_STATE_SHARED, "user/shared", ISO_STATE_F64, 4, n->shared));
    if (with_own)
        ISO_TRY(iso_state_add(n->state, ISO_STATE_OWN, "user/own", ISO_STATE_I64, test_rank + 1,
                              n->own));
    return ISO_OK;
}

void numbers_destroy(numbers *n) { iso_state_destroy(&n->state); }

void numbers_fill(numbers *n, int step) {
    for (int i = 0; i < 4; i++) n->shared[i] = n->variant + (step + i) / 3.0;
    for (int i = 0; i <= test_rank; i++)
        n->own[i] = 100000 * n->variant + 1000 * step + 10 * test_rank + i;
}

bool numbers_are(const numbers *n, int step) {
    numbers wanted = {.variant = (int)lrint(n->shared[0] - step / 3.0)};
    numbers_fill(&wanted, step);
    return memcmp(n->shared, wanted.shared, sizeof(n->shared)) == 0 &&
           (!n->with_own ||
            memcmp(n->own, wanted.own, (size_t)(test_rank + 1) * sizeof(n->own[0])) == 0);
}

iso_status numbers_save(numbers *n, iso_comm *comm, int step) {
    numbers_fill(n, step);
    return iso_resume_save(comm, path, step, n->state);
}

iso_status numbers_load(iso_comm *comm, bool with_own, int64_t *step) {
    numbers n;
    ISO_TRY(numbers_create(&n, with_own));
    numbers_fill(&n, -1);
    iso_status status = iso_resume_load(comm, path, n.state, step);
    bool right = numbers_are(&n, status < 0 ? -1 : (int)*step);
    numbers_destroy(&n);
    if (status < 0 && right) return status;
    ISO_CHECK(right, ISO_ERR_STATE, status < 0 ? "changed by a load that failed" : "other numbers");
    return ISO_OK;
}

// ---- Messages -----------------------------------------------------------------------------------

void log_capture(void) {
    end_capture();
    captured = open_memstream(&text, &text_bytes);
    iso_log_set_stream(captured);
}

bool log_said(const char *what, int lines) {
    fflush(captured);
    int count = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++) count++;
    if (strstr(text, what) && count <= lines) return true;
    fprintf(stderr, "not \"%s\" in at most %d lines: %s\n", what, lines, text);
    return false;
}

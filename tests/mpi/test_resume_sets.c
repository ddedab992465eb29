// SPDX-License-Identifier: MIT
// Sets of files of saved state: damaged, incomplete, foreign; and runs stopped while they save.
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(np1_resume_sets, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_resume_sets, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_resume_sets, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_resume_sets, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

static void save(int step, bool with_own) {
    numbers n;
    iso_assert_ok(numbers_create(&n, with_own));
    iso_assert_ok(numbers_save(&n, test_comm, step));
    numbers_destroy(&n);
}

static void expect_step(int wanted, bool with_own) {
    int64_t step = -1;
    iso_assert_ok(numbers_load(test_comm, with_own, &step));
    if (step != wanted) fprintf(stderr, "step %d instead of %d\n", (int)step, wanted);
    iso_assert_all(step == wanted);
}

static void expect_failure(iso_status code, const char *words, bool with_own) {
    int64_t step = -1;
    iso_status status = numbers_load(test_comm, with_own, &step);
    bool said = status < 0 && strstr(iso_last_error()->message, words);
    if (!said) fprintf(stderr, "%d, not \"%s\": %s\n", status, words, iso_last_error()->message);
    iso_assert_all(status == code && said && step == -1);
}

static bool exists(const char *file) { return access(file, F_OK) == 0; }

// ---- Whole sets ---------------------------------------------------------------------------------

static void comes_back(void) {
    for (int own = 0; own < 2; own++) {
        save(10 + own, own);
        expect_step(10 + own, own);
    }
    // Nothing but the shared file of step 10, and the whole set of step 11.
    iso_assert_all(resume_files() == 2 + test_size);
}

Test(np1_resume_sets, comes_back_on_every_rank) { comes_back(); }
Test(np2_resume_sets, comes_back_on_every_rank) { comes_back(); }
Test(np3_resume_sets, comes_back_on_every_rank) { comes_back(); }
Test(np4_resume_sets, comes_back_on_every_rank) { comes_back(); }

// One bad parameter on one rank, and the last good set stays on all.
Test(np3_resume_sets, what_is_not_finite_is_not_saved) {
    float w[2] = {1, test_rank == 1 ? __builtin_nanf("") : 2};
    numbers n;
    save(10, true);
    iso_assert_ok(numbers_create(&n, true));
    iso_assert_ok(iso_state_add(n.state, ISO_STATE_OWN, "param/fc.weight", ISO_STATE_F32, 2, w));
    iso_assert_all(numbers_save(&n, test_comm, 20) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "fc.weight is not finite"));
    numbers_destroy(&n);
    expect_step(10, true);
}

Test(np3_resume_sets, keeps_the_last_two) {
    for (int step = 10; step <= 50; step += 10) {
        save(step, true);
        expect_step(step, true);
    }
    iso_assert_all(resume_files() == 2 * (1 + test_size));
    iso_assert_all(exists(resume_file(40, 1, "")) && exists(resume_file(50, 1, "")));
}

// A name that only begins like ours, and other things in the folder.
Test(np2_resume_sets, leaves_the_files_of_others_alone) {
    static const char *const names[] = {
        ".step-10", ".step-000000000010x", "2.step-000000000010", ".step-000000000010.rank-1", "",
        ".log"};
    char name[400];
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof(name), "%s%s", resume_path(), names[i]);
        if (test_rank == 0) fclose(fopen(name, "w"));
    }
    for (int step = 20; step <= 50; step += 10) save(step, true);
    iso_assert_all(resume_files() == 6 + 2 * (1 + test_size));
    expect_step(50, true);
}

Test(np2_resume_sets, needs_a_set) {
    expect_failure(ISO_ERR_IO, "there is no saved state", true);
    resume_use_folder("/nowhere/at/all");
    expect_failure(ISO_ERR_IO, "cannot read the folder", true);
    resume_use_folder("");
}

Test(np2_resume_sets, needs_a_path_with_a_name) {
    numbers n;
    iso_assert_ok(numbers_create(&n, false));
    iso_assert_all(iso_resume_save(test_comm, "/tmp/", 1, n.state) == ISO_ERR_ARG);
    iso_assert_all(iso_resume_save(test_comm, resume_path(), -1, n.state) == ISO_ERR_ARG);
    numbers_destroy(&n);
}

// ---- Ranks that disagree ------------------------------------------------------------------------

static void expect_refused_save(const iso_state *state, int64_t step, const char *words) {
    iso_status status = iso_resume_save(test_comm, resume_path(), step, state);
    bool said = status < 0 && strstr(iso_last_error()->message, words);
    if (!said) fprintf(stderr, "not \"%s\": %s\n", words, iso_last_error()->message);
    iso_assert_all(status == ISO_ERR_MISMATCH && said);
    iso_assert_all(resume_files() == 0);
}

Test(np3_resume_sets, shared_entries_must_be_the_same) {
    double x = test_rank == 2 ? 1 : 0, y[2] = {0};
    iso_state *state;
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_state_add(state, ISO_STATE_SHARED, "x", ISO_STATE_F64, 1, &x));
    expect_refused_save(state, 1, "shared entry x of the state is not what it is on rank 0");
    x = 0;
    expect_refused_save(state, test_rank == 1 ? 2 : 1, "ranks disagree: step");
    int count = test_rank == 2 ? 2 : 1;
    iso_assert_ok(iso_state_add(state, ISO_STATE_SHARED, "y", ISO_STATE_F64, count, y));
    expect_refused_save(state, 1, "shared entry 1 of the state is y");
    if (test_rank == 1)
        cr_assert(iso_state_add(state, ISO_STATE_SHARED, "z", ISO_STATE_F64, 1, y) >= 0);
    expect_refused_save(state, 1, "ranks disagree");
    iso_state_destroy(&state);
}

Test(np4_resume_sets, another_number_of_ranks_is_refused) {
    MPI_Comm half;
    iso_comm *two;
    int64_t step = -1;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank / 2, 0, &half);
    iso_assert_ok(iso_comm_create(half, NULL, &two));
    save(10, false);
    iso_status status = numbers_load(two, false, &step);
    iso_assert_all(status == ISO_ERR_MISMATCH && step == -1 &&
                   strstr(iso_last_error()->message, "was saved by 4 ranks and this run has 2"));
    iso_comm_destroy(&two);
    MPI_Comm_free(&half);
}

Test(np2_resume_sets, another_list_of_entries_is_refused) {
    numbers n;
    double more = 0;
    int64_t step = -1;
    save(10, true);
    iso_assert_ok(numbers_create(&n, true));
    numbers_fill(&n, -1);
    // Own entries need not be the same on all ranks, but what they were there.
    if (test_rank == 1)
        cr_assert(iso_state_add(n.state, ISO_STATE_OWN, "m", ISO_STATE_F64, 1, &more) >= 0);
    iso_status status = iso_resume_load(test_comm, resume_path(), n.state, &step);
    iso_assert_all(status == ISO_ERR_MISMATCH && numbers_are(&n, -1) &&
                   strstr(iso_last_error()->message, "1 tensor is missing: m"));
    numbers_destroy(&n);
    expect_failure(ISO_ERR_MISMATCH, "and this run has none", false);
}

// ---- Damaged sets -------------------------------------------------------------------------------

typedef enum damage { CUT, EMPTY, LONGER, FLIPPED, MISSING, FOREIGN, DAMAGES } damage;

// A file of step 20 as it was.
typedef struct saved_file {
    const char *name;
    char *bytes;
    size_t size;
} saved_file;

static void write_file(const char *name, const char *bytes, size_t size) {
    FILE *file = fopen(name, "wb");
    cr_assert(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

static void harm(saved_file *f, damage how, size_t byte) {
    size_t size;
    char *other = NULL;
    switch (how) {
    case CUT: write_file(f->name, f->bytes, byte); break;
    case EMPTY: write_file(f->name, f->bytes, 0); break;
    case LONGER: write_file(f->name, f->bytes, f->size + 1); break; // there is a 0 behind
    case FLIPPED:
        f->bytes[byte] = (char)(f->bytes[byte] ^ 1 << byte % 8);
        write_file(f->name, f->bytes, f->size);
        f->bytes[byte] = (char)(f->bytes[byte] ^ 1 << byte % 8);
        break;
    case MISSING: unlink(f->name); break;
    case FOREIGN: // of step 10, under the name of step 20
        other = scratch_read(resume_file(10, f->name[strlen(f->name) - 1] - '0', ""), &size);
        write_file(f->name, other, size);
        free(other);
        break;
    case DAMAGES: break;
    }
}

// With step 20 harmed, step 10 is loaded, and rank 0 says why.
static void expect_passed_over(const char *name, int rank, damage how) {
    char who[16] = "";
    if (rank > 0) snprintf(who, sizeof(who), "rank %d: ", rank);
    MPI_Barrier(MPI_COMM_WORLD);
    log_capture();
    expect_step(10, true);
    if (test_rank == 0) cr_assert(log_said(name, 1), "damage %d", (int)how);
    if (test_rank == 0) cr_assert(log_said("state of step 20 is skipped: ", 1));
    if (test_rank == 0) cr_assert(log_said(who, 1));
    MPI_Barrier(MPI_COMM_WORLD);
}

static void damage_file(int rank) { // -1: the shared one
    saved_file f = {.name = resume_file(20, rank, "")};
    if (test_rank == 0) f.bytes = scratch_read(f.name, &f.size);
    unsigned long size = f.size;
    MPI_Bcast(&size, 1, MPI_UNSIGNED_LONG, 0, MPI_COMM_WORLD);
    for (int how = 0; how < DAMAGES; how++) {
        if (how == FOREIGN && rank < 0) continue;
        size_t step = how == CUT || how == FLIPPED ? 41 : size;
        for (size_t byte = 1; byte < size; byte += step) {
            if (test_rank == 0) harm(&f, (damage)how, byte);
            expect_passed_over(f.name, rank, (damage)how);
        }
    }
    if (test_rank == 0) write_file(f.name, f.bytes, f.size);
    free(f.bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    expect_step(20, true);
}

Test(np3_resume_sets, damaged_sets_are_passed_over) {
    save(10, true);
    save(20, true);
    damage_file(-1);
    damage_file(0);
    damage_file(2);
}

// The same step of another run, sound in itself.
Test(np3_resume_sets, files_of_two_sets_are_not_mixed) {
    char *bytes = NULL;
    size_t size = 0;
    save(10, true);
    save(20, true);
    if (test_rank == 0) bytes = scratch_read(resume_file(20, 1, ""), &size);
    MPI_Barrier(MPI_COMM_WORLD);
    save(20, true);
    if (test_rank == 0) write_file(resume_file(20, 1, ""), bytes, size);
    free(bytes);
    expect_passed_over("the other files of step 20 belong to different sets", 1, FOREIGN);
}

// A whole set of step 10 under the name of step 20.
Test(np2_resume_sets, a_set_under_another_name_is_passed_over) {
    save(10, true);
    for (int rank = -1; test_rank == 0 && rank < test_size; rank++)
        cr_assert(link(resume_file(10, rank, ""), resume_file(20, rank, "")) == 0);
    expect_passed_over("is not what its name says", 0, FOREIGN);
}

Test(np2_resume_sets, says_so_when_no_set_is_sound) {
    save(10, true);
    save(20, true);
    if (test_rank == 0) unlink(resume_file(10, 1, ""));
    if (test_rank == 0) unlink(resume_file(20, -1, ""));
    MPI_Barrier(MPI_COMM_WORLD);
    log_capture();
    expect_failure(ISO_ERR_IO, "complete and intact (the newest: ", true);
    expect_failure(ISO_ERR_IO, resume_file(20, -1, ""), true);
}

// ---- Saving that fails --------------------------------------------------------------------------

// A folder of that name is in the way.
static void expect_no_save(int rank) {
    const char *blocked = resume_file(20, rank, "");
    numbers n;
    iso_assert_ok(numbers_create(&n, true));
    if (test_rank == 0) cr_assert(mkdir(blocked, 0777) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    iso_status status = numbers_save(&n, test_comm, 20);
    iso_assert_all(status == ISO_ERR_IO && strstr(iso_last_error()->message, blocked));
    expect_step(10, true);
    MPI_Barrier(MPI_COMM_WORLD);
    if (test_rank == 0) cr_assert(rmdir(blocked) == 0);
    iso_assert_all(resume_files() == 1 + test_size); // those of step 10 alone
    numbers_destroy(&n);
}

Test(np3_resume_sets, a_save_that_fails_on_one_rank_fails_on_all) {
    save(10, true);
    expect_no_save(2);
    expect_no_save(-1);
    save(30, true);
    expect_step(30, true);
    iso_assert_all(resume_files() == 2 * (1 + test_size));
}

Test(np2_resume_sets, a_folder_that_is_not_there_is_an_error_on_all) {
    numbers n;
    char folder[400];
    snprintf(folder, sizeof(folder), "%s.none", resume_path());
    resume_use_folder(folder);
    for (int own = 0; own < 2; own++) {
        iso_assert_ok(numbers_create(&n, own));
        iso_status status = numbers_save(&n, test_comm, 1);
        iso_assert_all(status == ISO_ERR_IO && strstr(iso_last_error()->message, "No such file"));
        numbers_destroy(&n);
    }
}

// ---- Tidying ------------------------------------------------------------------------------------

static pid_t dead_process(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
    return child;
}

Test(np2_resume_sets, removes_what_dead_processes_left) {
    const long of[3] = {(long)dead_process(), (long)getpid(), (long)getppid()};
    char left[3][32];
    int kept = 0, last = test_rank == 0 ? -1 : test_rank;
    for (int i = 0; i < 3; i++) snprintf(left[i], sizeof(left[i]), ".tmp.%ld", of[i]);
    for (int i = 0; i < 3; i++)
        for (int k = test_rank; k >= last; k--) fclose(fopen(resume_file(5, k, left[i]), "w"));
    save(10, true);
    for (int k = test_rank; k >= last; k--)
        for (int i = 0; i < 3; i++) kept += exists(resume_file(5, k, left[i])) << 4 * i;
    iso_assert_all(kept == (test_rank - last + 1)
                               << 8); // our own number: in a container it repeats
}

// Files of ranks without a shared file: of a run that was stopped, and of one with more ranks.
Test(np2_resume_sets, removes_sets_that_were_never_whole) {
    if (test_rank == 0) {
        fclose(fopen(resume_file(5, 0, ""), "w"));
        fclose(fopen(resume_file(5, 1, ""), "w"));
        fclose(fopen(resume_file(5, 7, ""), "w"));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    save(10, true);
    iso_assert_all(resume_files() == 1 + test_size);
}

Test(np2_resume_sets, later_sets_give_way) {
    save(10, true);
    save(30, true);
    log_capture();
    save(20, true);
    if (test_rank == 0) cr_assert(log_said("step-000000000030 is removed", 1));
    expect_step(20, true);
    iso_assert_all(resume_files() == 2 * (1 + test_size) && !exists(resume_file(30, 1, "")));
}

// ---- Stopped at any moment ----------------------------------------------------------------------
// These take the place of libc's functions in this program. Before a file changes its name or goes,
// the folder as it is now is kept: what would be found if the machine stopped here.

static bool watching;
static int moments;
static char lock_name[320];

static void moment_folder(int rank, int moment, char name[400]) {
    snprintf(name, 400, "%s-moment-%d-%d", lock_name, rank, moment);
}

static void keep_moment(void) {
    char to[400], command[1600];
    moment_folder(test_rank, moments++, to);
    // Links do: finished files are never written to again.
    snprintf(command, sizeof(command),
             "mkdir %s && for f in %s.*; do case $f in *.tmp.*|*'*') ;; *) ln $f %s/;; esac; done",
             to, resume_path(), to);
    cr_assert_eq(system(command), 0);
}

// One change at a time over all ranks, so that every moment is one that has been.
static int begin_change(void) {
    if (!watching) return -1;
    int lock = open(lock_name, O_RDWR | O_CREAT, 0666);
    flock(lock, LOCK_EX);
    keep_moment();
    return lock;
}

int rename(const char *from, const char *to) {
    int lock = begin_change(), result = renameat(AT_FDCWD, from, AT_FDCWD, to);
    if (lock >= 0) close(lock);
    return result;
}

int unlink(const char *name) {
    int lock = begin_change(), result = unlinkat(AT_FDCWD, name, 0);
    if (lock >= 0) close(lock);
    return result;
}

static void shell(const char *command, const char *first, const char *second) {
    char text[1000];
    snprintf(text, sizeof(text), "%s %s %s", command, first, second);
    cr_assert_eq(system(text), 0, "%s", text);
}

// The folder of this test, and a lock beside it.
static void start_watching(char folder[300]) {
    snprintf(folder, 300, "%.*s", (int)(strlen(resume_path()) - 4), resume_path());
    snprintf(lock_name, sizeof(lock_name), "%s-lock", folder);
    log_capture(); // what is passed over is not of interest
}

static void save_watched(numbers *n, int step) {
    moments = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    watching = true;
    iso_assert_ok(numbers_save(n, test_comm, step));
    watching = false;
    iso_assert_all(moments > 0);
}

// Every moment of every rank has a whole set of one of these two steps.
static void expect_sets(int before, int after) {
    char folder[400];
    for (int rank = 0; rank < test_size; rank++) {
        int count = moments;
        MPI_Bcast(&count, 1, MPI_INT, rank, MPI_COMM_WORLD);
        for (int moment = 0; moment < count; moment++) {
            int64_t step = -1;
            moment_folder(rank, moment, folder);
            resume_use_folder(folder);
            iso_assert_ok(numbers_load(test_comm, true, &step));
            iso_assert_all(step == before || step == after);
            if (rank == test_rank) shell("rm -r", folder, "");
        }
    }
}

static void stopped(void) {
    static const struct {
        int step, before, after;
    } saves[] = {{20, 10, 20}, {20, 20, 20}, {20, 20, 20}, {30, 20, 30}, {25, 30, 25}};
    char folder[300];
    numbers n;
    start_watching(folder);
    iso_assert_ok(numbers_create(&n, true));
    iso_assert_ok(numbers_save(&n, test_comm, 10));
    for (int i = 0; i < 5; i++) {
        n.variant = i;
        if (i == 1 && test_rank == 0) remove(resume_file(10, -1, "")); // the only set is replaced
        save_watched(&n, saves[i].step);
        expect_sets(saves[i].before, saves[i].after);
        resume_use_folder(folder);
        expect_step(saves[i].after, true);
    }
    iso_assert_all(resume_files() == 2 * (1 + test_size));
    if (test_rank == 0) remove(lock_name);
    numbers_destroy(&n);
}

Test(np1_resume_sets, a_run_may_be_stopped_at_any_moment) { stopped(); }
Test(np2_resume_sets, a_run_may_be_stopped_at_any_moment) { stopped(); }
Test(np3_resume_sets, a_run_may_be_stopped_at_any_moment) { stopped(); }

// Stopped while the only set was replaced by one of the same step, before its shared file was, and
// stopped again while it saves the next one.
Test(np2_resume_sets, a_run_may_be_stopped_again) {
    char folder[300], stop[400], again[320];
    numbers n;
    start_watching(folder);
    snprintf(again, sizeof(again), "%s-again", folder);
    iso_assert_ok(numbers_create(&n, true));
    iso_assert_ok(numbers_save(&n, test_comm, 20));
    n.variant = 1;
    save_watched(&n, 20);
    moment_folder(0, 2, stop);
    if (test_rank == 0) shell("cp -r", stop, again);
    expect_sets(20, 20);
    resume_use_folder(again);
    iso_assert_all(exists(resume_file(20, test_rank, "")) &&
                   exists(resume_file(20, test_rank, ".old")));
    n.variant = 2;
    save_watched(&n, 30);
    expect_sets(20, 30);
    resume_use_folder(again);
    expect_step(30, true);
    resume_use_folder(folder);
    MPI_Barrier(MPI_COMM_WORLD);
    if (test_rank == 0) shell("rm -r", lock_name, again);
    numbers_destroy(&n);
}

// SPDX-License-Identifier: MIT
// Private to optim: the list of state, how optimizers add to it, and the files of a path.
#ifndef ISO_RESUME_IMPL_H
#define ISO_RESUME_IMPL_H

#include "io/safetensors.h"

#include <isotherm/resume.h>

// ---- The list (state_list.c) ----------------------------------------------------------------------

// What an own array becomes on another number of ranks. kept: with ISO_OWN_ZERO, how many of the
// first elements become rank 0's instead of zero.
typedef struct iso__own_merge {
    iso_own_rule rule;
    int64_t kept;
} iso__own_merge;

struct iso_state {
    // One list for each iso_state_owner. A name and its shape are one allocation; tensors are
    // retained.
    iso__array *array[2];
    int count[2], room[2];
    iso__index named[2];   // finds arrays by their names
    iso_state_owner owner; // of the arrays that iso__state_add adds; at first ISO_STATE_SHARED
    // Numbers of 8 bytes in several modules. They are saved as one entry, a table with a row for
    // each rank; `row` is this rank's.
    void **place;
    int64_t *table;
    int places, place_room, row;
    iso__index placed; // modules whose numbers are in it
    // Of each array of ISO_STATE_OWN.
    iso__own_merge *merge;
    int merge_room;
    int64_t *saved_ranks; // NULL: sets of another number of ranks are refused
    // Identifies which ranks share a node; a shared entry. A set with another layout is loaded like
    // one of another number of ranks. NULL: the layout does not matter.
    int64_t *layout;
    const char *layout_name;
    bool *relaid; // NULL: sets with another one are refused
    // On another number of ranks, own arrays of iso__state_add and the like become their mean, and
    // bytes become rank 0's.
    bool averages;
    // Called after what another number of ranks had has been loaded; NULL: nothing.
    void (*moved)(void *user);
    void *moved_user;
};

// The number of an array of this owner; -1: there is none of this name.
int iso__state_find(const iso_state *state, iso_state_owner owner, const char *name);
// As iso_state_add, with a shape, and a name formatted as by printf.
iso_status iso__state_add(iso_state *state, iso_state_type type, int ndim, const int64_t *shape,
                          void *data, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
// The same for the contents of a tensor on any device; the state retains the tensor.
iso_status iso__state_add_tensor(iso_state *state, iso_tensor *tensor, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// The same for one number.
iso_status iso__state_add_f64(iso_state *state, double *number, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
iso_status iso__state_add_i64(iso_state *state, int64_t *number, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// A number that files of older versions lack; loading such a file sets all its bits, so an integer
// becomes -1 and a byte ISO__STATE_NO_BYTE.
#define ISO__STATE_NO_BYTE 0xff
iso_status iso__state_add_new(iso_state *state, iso_state_type type, void *number,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));
// Adds state->layout, always as a shared entry. Files of older versions lack it.
iso_status iso__state_add_layout(iso_state *state, int64_t *layout, const char *name);
// Adds a number of 8 bytes to the table.
iso_status iso__state_add_place(iso_state *state, void *place);
// iso_state_add of an own array, with its rule.
iso_status iso__state_add_own(iso_state *state, iso_own_rule rule, const char *name,
                              iso_state_type type, int64_t count, void *data);
// The rule of the array that was added last, which is an own one.
void iso__state_rule(iso_state *state, iso_own_rule rule, int64_t kept);
// After loading: writes the numbers of this rank's row back to their modules (resume_state.c).
void iso__state_scatter(const iso_state *state);

// ---- Files of a path (resume_folder.c) -----------------------------------------------------------------------

enum { ISO__SHARED_FILE = -1, ISO__PATH_ROOM = 4400 };

// A file of a path that this rank sees: PATH.step-STEP[.rank-RANK][.old][.tmp.PID].
typedef struct iso__set_file {
    char name[200]; // without the folder
    int64_t step;
    int rank; // ISO__SHARED_FILE
    bool old; // of an earlier set with the same step
    long pid; // of the process that was writing it; 0: a finished file
} iso__set_file;

// ISO_ERR_ARG for a path that is empty, ends in '/', or is too long.
iso_status iso__set_path_check(const char *path);
// PATH.step-STEP for ISO__SHARED_FILE, else PATH.step-STEP.rank-RANK, and `suffix`.
void iso__set_path(const char *path, int64_t step, int rank, const char *suffix,
                   char text[ISO__PATH_ROOM]);
// Lists all files of a path; free *out with iso__free. ISO_ERR_IO if the folder cannot be read.
iso_status iso__set_list(const char *path, iso__set_file **out, int *count);
// Removes the file from the folder of path. Logs a warning if it cannot.
void iso__set_remove(const char *path, const iso__set_file *file);
// The distinct steps of shared files (all: of all finished files), highest first; free *out with
// iso__free.
iso_status iso__set_steps(const iso__set_file *files, int count, bool all, int64_t **out,
                          int *step_count);

// ---- One file (resume_file.c) ---------------------------------------------------------------------

// The description of its set in a file.
typedef struct iso__set_head {
    int64_t step;
    int ranks, rank; // rank: ISO__SHARED_FILE
    bool own;        // the set has a file of every rank
    uint64_t set;    // identifies the set: equal in its files only
} iso__set_head;

// hash[i] is a hash of the contents of arrays[i].
iso_status iso__set_hashes(const iso__array *arrays, int count, uint64_t *hash);
iso_status iso__set_write(const char *file, const iso__set_head *head, const iso__array *arrays,
                          int count, const uint64_t *hash);
// Opens the file and checks its header. Close it on success only.
iso_status iso__set_open(const char *file, iso__safetensors *out, iso__set_head *head);
// Reads the data. ISO_ERR_FORMAT if a checksum differs.
iso_status iso__set_load(iso__safetensors *file);
// The same for one array instead of all. Call it right after opening.
iso_status iso__set_load_one(iso__safetensors *file, const iso__stored *stored, void *data);

// ---- Another number of ranks (resume_ranks.c) -----------------------------------------------------

// The file of a rank in the set of `shared`, the head of its shared file. A run that was stopped
// while it saved this step again may have put it aside.
void iso__set_own_path(const char *path, const iso__set_head *shared, int rank,
                       char text[ISO__PATH_ROOM]);
// iso__own_kept: the bytes of own array i that are merged; with ISO_OWN_ZERO only those that are
// kept. iso__own_room: room for them, a multiple of 8. iso__own_bytes: room for all own arrays.
size_t iso__own_kept(const iso_state *state, int i);
size_t iso__own_room(const iso_state *state, int i);
size_t iso__own_bytes(const iso_state *state);
int iso__own_zeros(const iso_state *state); // the number of those with ISO_OWN_ZERO
// Reads the files of all ranks of a set and writes to `out` what the own arrays become, one after
// the other. ISO_ERR_FORMAT or ISO_ERR_IO: the set is damaged or incomplete.
iso_status iso__own_merge_all(const char *path, const iso__set_head *shared, const iso_state *state,
                              char *out);
// Collective. ISO_ERR_MISMATCH unless all ranks list the same own entries with the same rules.
iso_status iso__own_match(iso_comm *comm, const iso_state *state);
// Like iso__safetensors_match, for the shared arrays. Their forward_counters may have another
// number of rows, which goes to *rows.
iso_status iso__shared_match(const iso__safetensors *file, const iso_state *state, int saved_ranks,
                             int64_t *rows);

// ---- All ranks ------------------------------------------------------------------------------------

// resume_match.c. Collective. ISO_ERR_MISMATCH, naming the entry, unless all ranks list the same
// shared entries for the same step and, if hash is not NULL, with the same contents.
iso_status iso__state_match(iso_comm *comm, const iso_state *state, int64_t step,
                            const uint64_t *hash);
// resume_tidy.c. Collective. saved NULL: removes files that belong to no set, before a set is
// saved. Otherwise removes all sets except `saved`, which is complete, and the one before it.
iso_status iso__set_tidy(iso_comm *comm, const char *path, const iso__set_head *saved);

#endif

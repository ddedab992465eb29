// SPDX-License-Identifier: MIT
// Loads a set that another number of ranks saved: what each rank had of its own becomes the same on
// all ranks, by the rules of the entries.
#include "optim/resume/resume_impl.h"
#include "tensor/element.h"

#include <inttypes.h>
#include <string.h>

// ---- Files --------------------------------------------------------------------------------------

void iso__set_own_path(const char *path, const iso__set_head *shared, int rank,
                       char text[ISO__PATH_ROOM]) {
    iso__safetensors old;
    iso__set_head head;
    iso__set_path(path, shared->step, rank, ".old", text);
    if (iso__set_open(text, &old, &head) >= 0) {
        iso__safetensors_close(&old);
        if (head.set == shared->set) return;
    }
    iso__set_path(path, shared->step, rank, "", text);
}

static iso_status open_own(const char *path, const iso__set_head *shared, int rank,
                           iso__safetensors *out) {
    char name[ISO__PATH_ROOM];
    iso__set_head head;
    iso__set_own_path(path, shared, rank, name);
    ISO_TRY(iso__set_open(name, out, &head));
    iso_status status = ISO_OK;
    if (head.step != shared->step || head.rank != rank || head.set != shared->set)
        status = ISO_FAIL(ISO_ERR_FORMAT,
                          "%s and the other files of step %" PRId64 " belong to different sets",
                          name, shared->step);
    if (status >= 0) status = iso__set_load(out);
    if (status < 0) iso__safetensors_close(out);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Rules --------------------------------------------------------------------------------------

// An own array over the ranks that saved it.
typedef struct target {
    const iso__array *array;
    iso__own_merge merge;
    char *out;   // at first what rank 0 had
    double *sum; // of the differences of the other ranks from it
    int64_t count;
} target;

static bool is_integer(const target *t) { return strcmp(t->array->dtype, "I64") == 0; }

// Arrays of a file may lie at any address, and sums of what it says may overflow.
static void add_integers(const target *t, const char *from) {
    int64_t *to = (int64_t *)t->out;
    for (int64_t i = 0; i < t->count; i++) {
        int64_t x;
        memcpy(&x, from + (size_t)i * sizeof(x), sizeof(x));
        to[i] = t->merge.rule == ISO_OWN_SUM ? (int64_t)((uint64_t)to[i] + (uint64_t)x)
                                             : iso__larger(to[i], x);
    }
}

static void add_rank(const target *t, const char *from) {
    if (t->merge.rule != ISO_OWN_MEAN && t->merge.rule != ISO_OWN_SUM) return;
    if (is_integer(t)) {
        add_integers(t, from);
        return;
    }
    iso_dtype type = iso__safetensors_type(t->array->dtype);
    for (int64_t i = 0; i < t->count; i++) {
        double x = iso__element_get(type, from, i), first = iso__element_get(type, t->out, i);
        if (x != first) t->sum[i] += x - first; // infinities may be equal
    }
}

// Summing differences from rank 0 makes the mean of equal numbers exactly that number.
static void end_sums(const target *t, int ranks) {
    bool sum = t->merge.rule == ISO_OWN_SUM;
    if ((!sum && t->merge.rule != ISO_OWN_MEAN) || is_integer(t)) return;
    iso_dtype type = iso__safetensors_type(t->array->dtype);
    for (int64_t i = 0; i < t->count; i++) {
        double first = iso__element_get(type, t->out, i);
        iso__element_put(type, t->out, i,
                         sum ? ranks * first + t->sum[i] : first + t->sum[i] / ranks);
    }
}

// ---- The ranks of a set -------------------------------------------------------------------------

size_t iso__own_kept(const iso_state *state, int i) {
    const iso__array *array = &state->array[ISO_STATE_OWN][i];
    int64_t bytes = 0;
    if (state->merge[i].rule != ISO_OWN_ZERO) return iso__array_bytes(array);
    iso__safetensors_dtype_named(array->dtype, &bytes);
    return (size_t)(state->merge[i].kept * bytes);
}

size_t iso__own_room(const iso_state *state, int i) {
    return (iso__own_kept(state, i) + 7) / 8 * 8;
}

int iso__own_zeros(const iso_state *state) {
    int zeros = 0;
    for (int i = 0; i < state->count[ISO_STATE_OWN]; i++)
        zeros += state->merge[i].rule == ISO_OWN_ZERO;
    return zeros;
}

size_t iso__own_bytes(const iso_state *state) {
    size_t bytes = 0;
    for (int i = 0; i < state->count[ISO_STATE_OWN]; i++) bytes += iso__own_room(state, i);
    return bytes;
}

static iso_status check_rules(const iso_state *state, const iso__set_head *shared) {
    for (int i = 0; i < state->count[ISO_STATE_OWN]; i++) {
        const char *name = state->array[ISO_STATE_OWN][i].name;
        iso_own_rule rule = state->merge[i].rule;
        ISO_CHECK(rule != ISO_OWN_REFUSED, ISO_ERR_MISMATCH,
                  "the state was saved by %d rank%s, each with its own %s, which another number of "
                  "ranks cannot have: resume with the same number, distributed over nodes as then",
                  shared->ranks, ISO_PLURAL(shared->ranks), name);
        ISO_CHECK(shared->own || rule == ISO_OWN_ZERO, ISO_ERR_MISMATCH,
                  "the state was saved by another kind of training: its ranks had no %s", name);
    }
    return ISO_OK;
}

static iso_status check_stored(const target *t, const iso__safetensors *file,
                               const iso__stored *stored) {
    if (t->merge.rule == ISO_OWN_ZERO || (!stored && t->array->optional)) return ISO_OK;
    ISO_CHECK(stored && stored->end - stored->begin == (int64_t)iso__array_bytes(t->array) &&
                  strcmp(stored->dtype, t->array->dtype) == 0,
              ISO_ERR_MISMATCH, "%s is of another model: it has no %s of the same size and type",
              file->path, t->array->name);
    return ISO_OK;
}

// Whether a saved entry may be dropped. Error feedback and gossip's copies exist on some numbers of
// ranks only. Any other entry that this run does not list would be lost.
static bool may_vanish(const char *name) {
    const char *end = strrchr(name, '/');
    return strcmp(name, "hook_state") == 0 ||
           (strncmp(name, "daso/", 5) == 0 && end &&
            (strstr(end, "residual") || strcmp(end, "/copies") == 0 || strstr(end, "_copies")));
}

static iso_status check_unlisted(const iso_state *state, const iso__safetensors *file) {
    for (int k = 0; k < file->header.count; k++) {
        const char *name = file->header.stored[k].name;
        bool listed = may_vanish(name) || iso__state_find(state, ISO_STATE_OWN, name) >= 0;
        ISO_CHECK(listed, ISO_ERR_MISMATCH,
                  "%s is of another kind of training: this run has no %s of each rank", file->path,
                  name);
    }
    return ISO_OK;
}

static target target_of(const iso_state *state, int i, char *out, double *sum) {
    const iso__array *array = &state->array[ISO_STATE_OWN][i];
    target t = {.array = array, .merge = state->merge[i], .out = out, .sum = sum, .count = 1};
    for (int d = 0; d < array->ndim; d++) t.count *= array->shape[d];
    return t;
}

// Adds what one rank had. last: it is the last rank of the set.
static iso_status add_file(const iso_state *state, const iso__safetensors *file, int rank,
                           bool last, char *out, double *sum) {
    ISO_TRY(check_unlisted(state, file));
    for (int i = 0; i < state->count[ISO_STATE_OWN]; i++) {
        target t = target_of(state, i, out, sum);
        const iso__stored *stored = iso__safetensors_find(file, t.array->name);
        ISO_TRY(check_stored(&t, file, stored));
        const char *data = stored ? (const char *)file->data + stored->begin : NULL;
        if (!data && t.array->optional) memset(out, 0xff, iso__array_bytes(t.array)); // -1
        size_t kept = iso__own_kept(state, i);
        if (data && rank == 0 && (int64_t)kept <= stored->end - stored->begin)
            memcpy(out, data, kept);
        if (data && rank > 0) add_rank(&t, data);
        if (last) end_sums(&t, rank + 1);
        out += iso__own_room(state, i);
        sum += t.count;
    }
    return ISO_OK;
}

static int64_t count_numbers(const iso_state *state) {
    int64_t numbers = 0;
    for (int i = 0; i < state->count[ISO_STATE_OWN]; i++)
        numbers += target_of(state, i, NULL, NULL).count;
    return numbers;
}

iso_status iso__own_merge_all(const char *path, const iso__set_head *shared, const iso_state *state,
                              char *out) {
    void *sum;
    ISO_TRY(check_rules(state, shared));
    memset(out, 0, iso__own_bytes(state));
    if (!shared->own) return ISO_OK;
    ISO_TRY(iso__alloc_zero((size_t)count_numbers(state) * sizeof(double), &sum));
    iso_status status = ISO_OK;
    for (int rank = 0; rank < shared->ranks && status >= 0; rank++) {
        iso__safetensors file;
        status = open_own(path, shared, rank, &file);
        if (status < 0) break;
        status = add_file(state, &file, rank, rank == shared->ranks - 1, out, sum);
        iso__safetensors_close(&file);
    }
    iso__free(sum);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__own_match(iso_comm *comm, const iso_state *state) {
    uint64_t hash = ISO_HASH_START;
    for (int i = 0; i < state->count[ISO_STATE_OWN]; i++) {
        const iso__array *array = &state->array[ISO_STATE_OWN][i];
        int64_t rule[2] = {state->merge[i].rule, state->merge[i].kept};
        if (iso__own_kept(state, i) == 0) continue; // of any size, and only on some ranks
        hash = iso__hash(hash, array->name, strlen(array->name) + 1);
        hash = iso__hash(hash, array->dtype, strlen(array->dtype) + 1);
        if (rule[0] != ISO_OWN_ZERO)
            hash = iso__hash(hash, array->shape, (size_t)array->ndim * sizeof(int64_t));
        hash = iso__hash(hash, rule, sizeof(rule));
    }
    ISO_TRY(iso_comm_check_same(comm, hash, "the list of entries that each rank has of its own"));
    return ISO_OK;
}

// ---- Shared entries -----------------------------------------------------------------------------

iso_status iso__shared_match(const iso__safetensors *file, const iso_state *state, int saved_ranks,
                             int64_t *rows) {
    int count = state->count[ISO_STATE_SHARED];
    void *memory;
    int64_t shape[2] = {0};
    ISO_TRY(iso__alloc((size_t)count * sizeof(iso__array), &memory));
    iso__array *arrays = memory;
    memcpy(arrays, state->array[ISO_STATE_SHARED], (size_t)count * sizeof(iso__array));
    for (int i = 0; i < count; i++) {
        if (!state->table || arrays[i].data != state->table) continue;
        const iso__stored *stored = iso__safetensors_find(file, arrays[i].name);
        memcpy(shape, arrays[i].shape, sizeof(shape));
        if (stored && stored->ndim == 2 &&
            (stored->shape[0] == 1 || stored->shape[0] == saved_ranks))
            shape[0] = stored->shape[0];
        arrays[i].shape = shape;
    }
    *rows = shape[0];
    iso_status status = iso__safetensors_match(file, arrays, count);
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}

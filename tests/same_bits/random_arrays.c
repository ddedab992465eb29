// SPDX-License-Identifier: MIT
// Trains random arrays with the gradient engine: SEED decides everything. Prints hashes of the
// result.
//
// usage: random_arrays SEED; what it chose goes to standard error (rank 0)
#include "random_case.h"

#include <isotherm/reducer.h>

enum { MOST_PARAMS = 14, MOST_APPLIERS = 2, STEPS = 9 };

typedef struct array {
    char name[24];
    size_t count;
    iso_dtype dtype;
    void *value, *moment; // the moment is this program's own optimizer state
    bool local;
    int applier;
} array;

typedef struct hyper {
    double lr;
} hyper;

// Equal on all ranks.
typedef struct plan {
    iso_reducer_param param[MOST_PARAMS];
    array array[MOST_PARAMS];
    int count, appliers, id[MOST_APPLIERS];
    iso_reducer_config config;
    size_t list[3];
    bool by_piece, zero_grad, pieces_ready, needs_back_to_front, reads_between, uneven, mixed;
    double unused; // part of parameters without a gradient in a step
} plan;

static plan p;
static uint64_t seed, shared; // shared: the state of choices that all ranks make
static int rank, ranks;

// ---- What is trained ------------------------------------------------------------------------------

static void add_array(int i, int layer) {
    array *a = &p.array[i];
    size_t row = one_in(&shared, 3) ? (size_t)(1 + choose(&shared, 40)) : 0;
    size_t rows = (size_t)(1 + choose(&shared, one_in(&shared, 4) ? 600 : 60));
    snprintf(a->name, sizeof(a->name), "layer%d.%d", layer, i);
    a->count = row ? rows * row : rows * (size_t)(1 + choose(&shared, 30));
    a->dtype = p.mixed && one_in(&shared, 3) ? ISO_F64 : ISO_F32;
    a->local = one_in(&shared, 12);
    a->value = calloc(a->count, iso_dtype_size(a->dtype));
    a->moment = calloc(a->count, iso_dtype_size(a->dtype));
    for (size_t k = 0; k < a->count; k++) {
        double x = value_at(seed, (uint64_t)i, k);
        if (a->dtype == ISO_F64)
            ((double *)a->value)[k] = x;
        else
            ((float *)a->value)[k] = (float)x;
    }
    p.param[i] = (iso_reducer_param){a->name,        a->value,   a->count,         a->dtype,
                                     .layer = layer, .row = row, .local = a->local};
}

static void choose_arrays(void) {
    p.mixed = one_in(&shared, 3);
    p.count = 3 + choose(&shared, MOST_PARAMS - 2);
    for (int i = 0, layer = 0; i < p.count; i++) {
        add_array(i, layer);
        if (choose(&shared, 3)) layer++;
    }
}

// ---- How it travels -------------------------------------------------------------------------------

static void choose_buckets(void) {
    static const size_t sizes[] = {0, 1000, 16384, 65536, 1 << 20};
    iso_reducer_config *c = &p.config;
    c->bucket_bytes = sizes[choose(&shared, 5)];
    if (one_in(&shared, 3)) c->first_bucket_bytes = sizes[1 + choose(&shared, 4)];
    if (one_in(&shared, 3)) c->last_bucket_bytes = sizes[1 + choose(&shared, 4)];
    if (one_in(&shared, 6)) {
        for (int i = 0; i < 3; i++) p.list[i] = sizes[1 + choose(&shared, 4)];
        c->bucket_list = p.list;
        c->bucket_list_count = 3;
        c->bucket_bytes = c->first_bucket_bytes = c->last_bucket_bytes = 0;
    }
    c->piece_bytes = one_in(&shared, 2) ? 1000u << choose(&shared, 4) : 0;
}

static void choose_config(void) {
    static const iso_comm_hook *const hooks[] = {&iso_hook_f16, &iso_hook_bf16,
                                                 &iso_hook_bf16_feedback, &iso_hook_noop};
    iso_reducer_config *c = &p.config;
    c->sync = one_in(&shared, 2) ? ISO_SYNC_LAZY
                                 : (iso_sync[]){ISO_SYNC_LAZY, ISO_SYNC_BLOCKING,
                                                ISO_SYNC_EXPLICIT}[choose(&shared, 3)];
    c->scope = one_in(&shared, 5) ? ISO_SCOPE_NODE : ISO_SCOPE_WORLD;
    c->order = one_in(&shared, 3) ? ISO_ORDER_REVERSE : ISO_ORDER_NEED;
    c->average = (iso_average_mode)choose(&shared, 4);
    c->split_factor = 1.5;
    c->unused = (iso_unused)choose(&shared, 3);
    if (one_in(&shared, 2)) c->hook = hooks[choose(&shared, 4)];
    // Without an exchange there is nobody to negotiate with.
    if (c->hook == &iso_hook_noop && c->unused == ISO_UNUSED_NEGOTIATE) c->unused = ISO_UNUSED_ZERO;
    p.unused = c->unused == ISO_UNUSED_ERROR ? 0 : 0.3;
    p.appliers = choose(&shared, MOST_APPLIERS + 1);
    for (int i = 0; i < p.count; i++) p.array[i].applier = i * p.appliers / p.count;
    p.by_piece = one_in(&shared, 2);
    p.zero_grad = choose(&shared, 3) > 0;
    p.pieces_ready = one_in(&shared, 2);
    p.needs_back_to_front = one_in(&shared, 4);
    p.reads_between = one_in(&shared, 4);
    // Ranks without a batch, and weights: of sums over all ranks.
    p.uneven = c->scope == ISO_SCOPE_WORLD && c->sync != ISO_SYNC_EXPLICIT && one_in(&shared, 4);
    choose_buckets();
}

static void tell_plan(void) {
    const iso_reducer_config *c = &p.config;
    if (rank > 0) return;
    fprintf(stderr,
            "seed %llu: %d arrays%s, sync %d, scope %d, order %d, average %d, unused %d, hook %s, "
            "buckets %zu/%zu/%zu list %d, pieces %zu, appliers %d%s%s%s%s\n",
            (unsigned long long)seed, p.count, p.mixed ? " of two types" : "", (int)c->sync,
            (int)c->scope, (int)c->order, (int)c->average, (int)c->unused,
            c->hook ? c->hook->name : "plain", c->first_bucket_bytes, c->bucket_bytes,
            c->last_bucket_bytes, c->bucket_list_count, c->piece_bytes, p.appliers,
            p.by_piece ? ", by piece" : "", p.zero_grad ? ", zero_grad" : "",
            p.uneven ? ", uneven" : "", p.reads_between ? ", read between" : "");
}

// ---- Updates --------------------------------------------------------------------------------------

static iso_status update_part(int i, size_t first, size_t count, void *gradient, double scale,
                              const void *h, void *user) {
    (void)user;
    array *a = &p.array[i];
    double lr = ((const hyper *)h)->lr;
    for (size_t k = 0; k < count; k++) {
        if (a->dtype == ISO_F64) {
            double *m = (double *)a->moment + first + k;
            *m = 0.9 * *m + ((double *)gradient)[k] * scale;
            ((double *)a->value)[first + k] -= lr * *m;
        } else {
            float *m = (float *)a->moment + first + k;
            *m = 0.9f * *m + ((float *)gradient)[k] * (float)scale;
            ((float *)a->value)[first + k] -= (float)lr * *m;
        }
    }
    return ISO_OK;
}

static iso_status update_whole(int i, void *gradient, double scale, const void *h, void *user) {
    return update_part(i, 0, p.array[i].count, gradient, scale, h, user);
}

static void add_appliers(iso_reducer *r) {
    for (int a = 0; a < p.appliers; a++) {
        int mine[MOST_PARAMS], count = 0;
        for (int i = 0; i < p.count; i++)
            if (p.array[i].applier == a) mine[count++] = i;
        check(iso_reducer_add_apply(r, mine, count, update_whole, sizeof(hyper), NULL, &p.id[a]));
        if (p.by_piece) check(iso_reducer_set_apply_piece(r, p.id[a], update_part));
    }
}

// ---- Steps ----------------------------------------------------------------------------------------

static void forward(iso_reducer *r) {
    for (int n = 0; n < p.count; n++) {
        int i = p.needs_back_to_front ? p.count - 1 - n : n, pieces = iso_reducer_pieces(r, i);
        for (int k = 0; p.by_piece && k < pieces; k++) check(iso_reducer_piece_needed(r, i, k));
        check(iso_reducer_param_needed(r, i));
    }
}

// Depends on the value, so that an error in one step shows in all that follow.
static void write_gradient(iso_reducer *r, int i, int step) {
    array *a = &p.array[i];
    void *gradient = iso_reducer_grad(r, i);
    uint64_t where = (uint64_t)(1000 * step + rank);
    for (size_t k = 0; k < a->count; k++) {
        double x = value_at(where, (uint64_t)i, k);
        if (a->dtype == ISO_F64)
            ((double *)gradient)[k] = x + 0.1 * ((double *)a->value)[k];
        else
            ((float *)gradient)[k] = (float)x + 0.1f * ((float *)a->value)[k];
    }
}

static void report_gradient(iso_reducer *r, int i) {
    int pieces = iso_reducer_pieces(r, i);
    for (int k = pieces - 1; p.pieces_ready && k > 0; k--) check(iso_reducer_piece_ready(r, i, k));
    check(iso_reducer_grad_ready(r, i));
}

// In an order that is this rank's own; a part of them has none. Without an optimizer no step()
// tells the engine that a backward without any gradient has been.
static void backward(iso_reducer *r, int step) {
    int reported = 0;
    uint64_t own = seed * 77 + (uint64_t)(100 * step + rank);
    for (int i = p.count - 1; i >= 0; i--) {
        bool swap = i > 0 && one_in(&own, 4);
        for (int n = swap ? 1 : 0; n >= 0; n--) {
            int k = i - n;
            if ((double)choose(&own, 1000) < 1000 * p.unused) continue;
            write_gradient(r, k, step);
            report_gradient(r, k);
            reported++;
        }
        if (swap) i--;
    }
    if (reported == 0 && p.appliers != 1)
        check(iso_reducer_shadow(r)); // whose step closes the list
}

static uint64_t hash_gradients(iso_reducer *r, uint64_t hash) {
    for (int i = 0; i < p.count; i++)
        hash = hash_bytes(hash, iso_reducer_grad(r, i),
                          p.array[i].count * iso_dtype_size(p.array[i].dtype));
    return hash;
}

static uint64_t make_step(iso_reducer *r, int step, uint64_t hash) {
    bool has_batch = !p.uneven || (rank + step) % (ranks + 1) > 0 || step < 2;
    hyper h = {0.05 / (1 + step)};
    forward(r);
    if (p.uneven) {
        check(iso_reducer_finish(r));
        check(iso_reducer_set_weight(r, has_batch ? 1 + rank : 0, 3 + step));
    }
    if (has_batch)
        backward(r, step);
    else
        check(iso_reducer_shadow(r));
    if (p.config.sync == ISO_SYNC_EXPLICIT) check(iso_reducer_all_reduce(r));
    for (int a = 0; a < p.appliers; a++) check(iso_reducer_step_of(r, p.id[a], &h));
    if (p.zero_grad && p.appliers > 0) iso_reducer_zero_grad(r);
    if (p.appliers > 0 && !(p.reads_between && step % 3 == 0)) return hash;
    check(iso_reducer_finish(r));
    return p.appliers > 0 ? hash : hash_gradients(r, hash);
}

static uint64_t hash_values(uint64_t hash) {
    for (int i = 0; i < p.count; i++)
        hash =
            hash_bytes(hash, p.array[i].value, p.array[i].count * iso_dtype_size(p.array[i].dtype));
    return hash;
}

int main(int argc, char **argv) {
    int provided;
    iso_comm *comm;
    iso_reducer *r;
    uint64_t hash = HASH_START;
    if (argc != 2) return 2;
    seed = strtoull(argv[1], NULL, 10);
    shared = seed;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    check(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    rank = iso_comm_rank(comm);
    ranks = iso_comm_size(comm);
    choose_arrays();
    choose_config();
    tell_plan();
    check(iso_reducer_create(comm, p.param, p.count, &p.config, &r));
    add_appliers(r);
    for (int step = 0; step < STEPS; step++) hash = make_step(r, step, hash);
    check(iso_reducer_finish(r));
    print_hash(comm, "gradients", hash);
    print_hash(comm, "values", hash_values(HASH_START));
    iso_reducer_destroy(&r);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    for (int i = 0; i < p.count; i++) {
        free(p.array[i].value);
        free(p.array[i].moment);
    }
    return EXIT_SUCCESS;
}

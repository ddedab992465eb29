// SPDX-License-Identifier: MIT
#include "common/hook_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <isotherm/status.h>
#include <stdlib.h>
#include <string.h>

// ---- Hooks whose result is known ----------------------------------------------------------------------

static hook_way way_of(const iso_comm_hook_bucket *b, const hook_user *user) {
    return user->way == HOOK_MIXED ? (hook_way)(b->index % HOOK_MIXED) : user->way;
}

static size_t shard_elements(const iso_comm_hook_bucket *b) {
    return (b->count + (size_t)b->ranks - 1) / (size_t)b->ranks;
}

static iso_status declare_known(const iso_comm_hook_bucket *b, iso_comm_hook_plan *plan,
                                void *user) {
    hook_way way = way_of(b, user);
    size_t shard = shard_elements(b);
    iso_comm_phase *phase = plan->phase;
    plan->state_floats = 1;
    if (((const hook_user *)user)->way == HOOK_MIXED && b->index == 2) {
        plan->plain = true;
        return ISO_OK;
    }
    if (way == HOOK_SUM) *phase++ = (iso_comm_phase){ISO_COMM_SUM, b->count, b->dtype};
    if (way == HOOK_GATHER) *phase++ = (iso_comm_phase){ISO_COMM_GATHER, b->count, b->dtype};
    if (way == HOOK_THREE) *phase++ = (iso_comm_phase){ISO_COMM_SUM, 1, ISO_F64};
    if (way == HOOK_THREE || way == HOOK_EXCHANGE) {
        *phase++ = (iso_comm_phase){ISO_COMM_ALLTOALL, shard, b->dtype};
        *phase++ = (iso_comm_phase){ISO_COMM_GATHER, shard, b->dtype};
    }
    plan->phase_count = (int)(phase - plan->phase);
    return ISO_OK;
}

static double get(const iso_comm_hook_bucket *b, const void *x, size_t i) {
    return b->dtype == ISO_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}
static void put(const iso_comm_hook_bucket *b, void *x, size_t i, double value) {
    if (b->dtype == ISO_F64)
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}

static void copy_scaled(const iso_comm_hook_bucket *b, void *to, size_t at, const void *from,
                        double factor) {
    for (size_t i = 0; i < b->count; i++) put(b, to, at + i, get(b, from, i) * factor);
}

// Element i of the sum over blocks that lie `stride` apart.
static double sum_over_ranks(const iso_comm_hook_bucket *b, const void *blocks, size_t stride,
                             size_t i) {
    double sum = get(b, blocks, i);
    for (int r = 1; r < b->ranks; r++) {
        sum += get(b, blocks, (size_t)r * stride + i);
        if (b->dtype == ISO_F32) sum = (double)(float)sum;
    }
    return sum;
}

static void run_gather(const iso_comm_hook_bucket *b, int phase, double factor) {
    if (phase == 0) copy_scaled(b, b->data[0], (size_t)b->rank * b->count, b->gradient, factor);
    for (size_t i = 0; phase == 1 && i < b->count; i++)
        put(b, b->gradient, i, sum_over_ranks(b, b->data[0], b->count, i) * factor);
}

// first: the phase of the all-to-all.
static void run_exchange(const iso_comm_hook_bucket *b, int first, int phase, double factor) {
    size_t shard = shard_elements(b);
    if (phase == first) copy_scaled(b, b->data[first], 0, b->gradient, factor);
    for (size_t i = 0; phase == first + 1 && i < shard; i++)
        put(b, b->data[first + 1], (size_t)b->rank * shard + i,
            sum_over_ranks(b, b->data[first], shard, i));
    if (phase == first + 2) copy_scaled(b, b->gradient, 0, b->data[first + 1], factor);
}

// The factor of the first call, kept in the sum of one element until it is needed.
static void run_three(const iso_comm_hook_bucket *b, int phase, double factor) {
    double *one = b->data[0];
    if (phase == 0) *one = factor;
    if (phase > 0) run_exchange(b, 1, phase, phase == 1 ? *one / b->ranks : factor);
}

static iso_status run_known(const iso_comm_hook_bucket *b, int phase, double factor, void *user) {
    const hook_user *u = user;
    if (phase == u->fail_phase && b->index == u->fail_bucket)
        return iso_error_set(ISO_ERR_STATE, "the hook failed as it was told to");
    switch (way_of(b, u)) {
    case HOOK_SUM:
        if (phase == 0) copy_scaled(b, b->data[0], 0, b->gradient, factor);
        if (phase == 1) copy_scaled(b, b->gradient, 0, b->data[0], factor);
        break;
    case HOOK_GATHER: run_gather(b, phase, factor); break;
    case HOOK_EXCHANGE: run_exchange(b, 0, phase, factor); break;
    default: run_three(b, phase, factor);
    }
    return ISO_OK;
}

iso_comm_hook hook_of_way(hook_user *user, hook_way way) {
    static const char *const name[] = {"sum", "gather", "exchange", "three", "mixed"};
    *user = (hook_user){.way = way, .fail_phase = -1};
    return (iso_comm_hook){.name = name[way],
                           .wire = ISO_F32,
                           .declare = declare_known,
                           .run = run_known,
                           .user = user,
                           .user_bytes = sizeof(*user)};
}

// ---- Ranks that one process plays ---------------------------------------------------------------------

static iso_comm_hook_bucket see_bucket(const played *p, int rank) {
    return (iso_comm_hook_bucket){.count = p->count,
                                  .dtype = ISO_F32,
                                  .name = "fc1",
                                  .is_last = true,
                                  .rank = rank,
                                  .ranks = p->ranks,
                                  .tensor = p->tensor,
                                  .tensor_count = p->tensor_count};
}

static size_t elements_of(const played *p, const iso_comm_phase *phase) {
    return phase->count * (phase->operation == ISO_COMM_SUM ? 1 : (size_t)p->ranks);
}

void played_open(played *p) {
    for (int r = 0; r < p->ranks; r++) {
        iso_comm_hook_bucket b = see_bucket(p, r);
        iso_comm_hook_plan plan = {0};
        cr_assert_eq(p->hook.declare(&b, &plan, p->hook.user), ISO_OK);
        cr_assert(r == 0 || memcmp(&plan, &p->plan, sizeof(plan)) == 0);
        p->plan = plan;
        p->gradient[r] = calloc(p->count, sizeof(float));
        p->state[r] = calloc(plan.state_floats + 1, sizeof(float));
        for (int k = 0; k < plan.phase_count; k++)
            p->data[r][k] =
                calloc(elements_of(p, &plan.phase[k]), iso_dtype_size(plan.phase[k].dtype));
    }
}

void played_close(played *p) {
    for (int r = 0; r < p->ranks; r++) {
        free(p->gradient[r]);
        free(p->state[r]);
        for (int k = 0; k < p->plan.phase_count; k++) free(p->data[r][k]);
    }
}

static void play_sum(played *p, int k) {
    for (size_t i = 0; i < p->plan.phase[k].count; i++) {
        float sum = 0;
        for (int r = 0; r < p->ranks; r++) sum += ((float *)p->data[r][k])[i];
        for (int r = 0; r < p->ranks; r++) ((float *)p->data[r][k])[i] = sum;
    }
}

static char *block_of(const played *p, int k, int rank, int block) {
    size_t bytes = p->plan.phase[k].count * iso_dtype_size(p->plan.phase[k].dtype);
    return (char *)p->data[rank][k] + (size_t)block * bytes;
}

// Block `from` of each rank, or, of an all-to-all, what lies there for that rank.
static void play_blocks(played *p, int k) {
    size_t bytes = p->plan.phase[k].count * iso_dtype_size(p->plan.phase[k].dtype);
    bool all_to_all = p->plan.phase[k].operation == ISO_COMM_ALLTOALL;
    char *copy = malloc(bytes * (size_t)(p->ranks * p->ranks));
    for (int from = 0; from < p->ranks; from++)
        for (int to = 0; to < p->ranks; to++)
            memcpy(copy + (size_t)(from * p->ranks + to) * bytes,
                   block_of(p, k, from, all_to_all ? to : from), bytes);
    for (int from = 0; from < p->ranks; from++)
        for (int to = 0; to < p->ranks; to++)
            memcpy(block_of(p, k, to, from), copy + (size_t)(from * p->ranks + to) * bytes, bytes);
    free(copy);
}

void played_exchange(played *p) { played_exchange_with(p, 1, 1.0 / p->ranks); }

void played_exchange_with(played *p, double before, double after) {
    for (int k = 0; k <= p->plan.phase_count; k++) {
        for (int r = 0; r < p->ranks; r++) {
            iso_comm_hook_bucket b = see_bucket(p, r);
            double factor = k == p->plan.phase_count ? after : k == 0 ? before : 1;
            b.gradient = b.wire = p->gradient[r];
            b.state = p->state[r];
            b.exchange = p->exchange;
            memcpy(b.data, p->data[r], sizeof(b.data));
            cr_assert_eq(p->hook.run(&b, k, factor, p->hook.user), ISO_OK);
        }
        if (k == p->plan.phase_count) break;
        if (p->plan.phase[k].operation == ISO_COMM_SUM)
            play_sum(p, k);
        else
            play_blocks(p, k);
    }
    p->exchange++;
}

float played_drawn(uint32_t key, uint32_t rank, uint32_t step, size_t i) {
    uint32_t counter[4] = {(uint32_t)i, rank, step}, bits[4];
    iso__philox(iso__philox_key_make(key, ISO_RNG_TEST, 0), counter, bits);
    return 2 * iso__uniform(bits[0]) - 1;
}

void played_draw(played *p, uint32_t key, uint32_t step) {
    for (int r = 0; r < p->ranks; r++)
        for (size_t i = 0; i < p->count; i++)
            p->gradient[r][i] = played_drawn(key, (uint32_t)r, step, i);
}

double played_mean(const played *p, uint32_t key, uint32_t step, size_t i) {
    double sum = 0;
    for (int r = 0; r < p->ranks; r++) sum += (double)played_drawn(key, (uint32_t)r, step, i);
    return sum / p->ranks;
}

void played_assert_equal(const played *p) {
    for (int r = 1; r < p->ranks; r++)
        cr_assert_arr_eq(p->gradient[r], p->gradient[0], p->count * sizeof(float));
}

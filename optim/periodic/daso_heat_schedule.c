// SPDX-License-Identifier: MIT
// HeAT's DASO as a state machine: what to do after a batch, and how the skips change with the loss.
#include "optim/periodic/sync_plan.h"
#include "optim/plateau_impl.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { FIRST_SKIP = 4, NO_GROUP = -1 };

// ---- Checks ---------------------------------------------------------------------------------------

iso_status iso__heat_config_check(const iso_daso_heat_config *config) {
    iso_dtype type = config->downcast_type;
    double level = config->stability_level;
    ISO_TRY(iso__daso_at_least("total_epochs", config->total_epochs, 1));
    ISO_TRY(iso__daso_at_least("warmup_epochs", config->warmup_epochs, 0));
    ISO_TRY(iso__daso_at_least("cooldown_epochs", config->cooldown_epochs, 0));
    ISO_TRY(iso__daso_at_least("max_global_skips", config->max_global_skips, 0));
    ISO_TRY(iso__daso_at_least("sending_chunk_size", config->sending_chunk_size, 1));
    ISO_TRY(iso__daso_at_least("skip_reduction_factor", config->skip_reduction_factor, 1));
    ISO_TRY(iso__daso_at_least("local_skip_factor", config->local_skip_factor, 1));
    ISO_TRY(iso__daso_at_least("last_batch", config->last_batch, -1));
    ISO_CHECK(isfinite(level) && level >= 0, ISO_ERR_ARG,
              "daso: stability_level is %g, it must be a finite number of at least 0", level);
    ISO_CHECK(type == ISO_BF16 || type == ISO_F16 || type == ISO_F32, ISO_ERR_ARG,
              "daso: downcast_type is element type %d, it must be ISO_BF16, ISO_F16 or ISO_F32",
              (int)type);
    return ISO_OK;
}

// ---- Batches --------------------------------------------------------------------------------------

void iso__heat_schedule_init(iso__heat_schedule *s, const iso_daso_heat_config *config,
                             int groups) {
    assert(groups >= 1);
    memset(s, 0, sizeof(*s));
    s->config = *config;
    s->groups = groups;
    iso__plateau_of_loss(&s->plateau, config->stability_level);
    iso__heat_schedule_reset(s);
}

void iso__heat_schedule_reset(iso__heat_schedule *s) {
    s->epoch = s->batch = 0;
    s->global_skip = s->local_skip = s->batches_to_wait = 0;
    s->send_group = 0;
    s->pending = false;
    s->pending_group = NO_GROUP;
    s->pending_batch = s->pending_weight = 0;
    s->local_sync = true;
    iso_plateau_reset(&s->plateau);
}

void iso__heat_schedule_load(iso__heat_schedule *s, const iso__heat_schedule *saved) {
    iso__heat_schedule before = *s;
    *s = *saved;
    s->config = before.config;
    s->groups = before.groups;
    s->send_group %= s->groups;
    if (s->pending_group != NO_GROUP) s->pending_group %= s->groups;
}

static void receive_pending(iso__heat_schedule *s, iso__sync_plan *out) {
    if (!s->pending) return;
    iso__action *merge = iso__plan_add(out, ISO__MERGE);
    merge->group = s->pending_group;
    merge->age = s->batch - s->pending_batch;
    merge->weight = s->pending_weight;
    s->pending = false;
}

// HeAT starts the new exchange before it merges the last one, and copies within the node even where
// that one is merged already.
static void global_sync(iso__heat_schedule *s, int64_t wait, bool last, iso__sync_plan *out) {
    int group = s->send_group, before = s->pending_group;
    iso__plan_add(out, ISO__SEND)->group = group;
    bool copy = before != NO_GROUP && (s->batches_to_wait != 0 || s->pending);
    receive_pending(s, out);
    if (copy) iso__plan_add(out, ISO__NODE_COPY)->group = before;
    s->pending = !last && s->batches_to_wait > 0;
    s->pending_group = s->pending ? group : NO_GROUP;
    s->pending_batch = s->batch;
    s->pending_weight = wait;
    if (!s->pending) {
        iso__plan_add(out, ISO__FULL)->group = group;
        iso__plan_add(out, ISO__NODE_COPY)->group = group;
    }
    s->send_group = (group + 1) % s->groups;
    s->local_sync = true;
}

static void plan_cycle(iso__heat_schedule *s, int64_t wait, iso__sync_plan *out) {
    int64_t since_send = s->batch % s->global_skip, skip = s->local_skip;
    if (since_send + 1 == s->global_skip) {
        s->local_sync = true; // what is sent next is the mean of a node; nothing is merged yet
        return;
    }
    if (since_send < wait) return;
    if (since_send == wait && s->pending) {
        receive_pending(s, out);
        iso__plan_add(out, ISO__NODE_COPY)->group = s->pending_group;
        if (skip > 1) s->local_sync = false;
    }
    if (skip <= 1 || (s->batch + 1) % skip == 0)
        s->local_sync = true;
    else if (s->batch % skip == 0)
        s->local_sync = false;
}

static void advance_batch(iso__heat_schedule *s, bool last) {
    s->batch++;
    if (!last) return;
    s->batch = 0;
    s->epoch++;
    s->send_group = 0;
}

iso_status iso__heat_schedule_step(iso__heat_schedule *s, iso__sync_plan *out) {
    int64_t left = s->config.last_batch - s->batch;
    ISO_CHECK(s->config.last_batch >= 0, ISO_ERR_STATE,
              "daso: last_batch is not set: call iso_daso_heat_set_last_batch with the number of "
              "batches of an epoch less one before the first step");
    bool last = left <= 0;
    int64_t wait = last ? 0 : s->batches_to_wait < left ? s->batches_to_wait : left;
    out->count = 0;
    if (last || s->global_skip == 0 || s->batch % s->global_skip == 0)
        global_sync(s, wait, last, out);
    else
        plan_cycle(s, wait, out);
    if (left == 1) s->local_sync = true;
    advance_batch(s, last);
    out->next = s->local_sync ? ISO_SCOPE_NODE : ISO_SCOPE_RANK;
    return ISO_OK;
}

// ---- Epochs ---------------------------------------------------------------------------------------

static int64_t at_least_1(int64_t n) { return n > 1 ? n : 1; }

static void set_rhythm(iso__heat_schedule *s, int64_t global_skip, int64_t local_skip,
                       int64_t wait) {
    s->global_skip = global_skip;
    s->local_skip = local_skip;
    s->batches_to_wait = wait;
}

// Differs from HeAT where it halves: HeAT lets the global skip fall to 0, where it stays, and the
// wait below 0.
static void on_plateau(iso__heat_schedule *s) {
    const iso_daso_heat_config *c = &s->config;
    if (s->global_skip > 1) {
        set_rhythm(s, at_least_1(s->global_skip / c->skip_reduction_factor),
                   at_least_1(s->local_skip / c->skip_reduction_factor),
                   at_least_1(s->batches_to_wait - 1));
    } else {
        int64_t wait = c->max_global_skips / c->local_skip_factor;
        set_rhythm(s, at_least_1(c->max_global_skips), at_least_1(wait), wait);
    }
}

static void start_cycling(iso__heat_schedule *s) {
    int64_t most = at_least_1(s->config.max_global_skips);
    set_rhythm(s, most < FIRST_SKIP ? most : FIRST_SKIP, 1, 1);
}

// Sets the skips for the next epoch. Returns the reason; "" if the loss changed nothing.
static const char *next_skips(iso__heat_schedule *s, double loss) {
    if (s->epoch < at_least_1(s->config.warmup_epochs)) {
        set_rhythm(s, 0, 0, 0);
        return "warm-up";
    }
    if (s->epoch >= s->config.total_epochs - s->config.cooldown_epochs) {
        set_rhythm(s, 0, 0, 0);
        return "cool-down";
    }
    bool begins = s->global_skip == 0;
    if (begins) start_cycling(s);
    if (!iso_plateau_test(&s->plateau, loss)) return begins ? "warm-up is over" : "";
    on_plateau(s);
    return "loss on a plateau";
}

bool iso__heat_schedule_epoch_loss(iso__heat_schedule *s, double loss, char *reason, size_t room) {
    int64_t skip = s->global_skip, local_skip = s->local_skip, wait = s->batches_to_wait;
    const char *why = next_skips(s, loss);
    if (s->global_skip == skip && s->local_skip == local_skip && s->batches_to_wait == wait)
        return false;
    if (s->global_skip == 0)
        snprintf(reason, room, "loss %.4g, %s: full average after every batch", loss, why);
    else
        snprintf(reason, room, "loss %.4g, %s: wait %lld, skip %lld", loss, why,
                 (long long)s->batches_to_wait, (long long)s->global_skip);
    return true;
}

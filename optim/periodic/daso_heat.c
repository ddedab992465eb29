// SPDX-License-Identifier: MIT
// HeAT's DASO: its schedule in epochs and batches on the periodic engine.
#include "optim/periodic/daso_impl.h"
#include "optim/periodic/daso_settings.h"
#include "optim/resume/resume_impl.h"

#include <string.h>

const iso_daso_heat_config iso_daso_heat_default = ISO_DASO_HEAT_DEFAULT;

typedef struct daso_heat {
    iso__periodic engine; // first: its base is the optimizer
    iso_daso_heat_config config;
    iso_schedule scheduler; // a copy of the config's
    iso__heat_schedule schedule;
    iso__heat_schedule saved; // what stands in a saved state: the schedule without its config
    char reason[128];
} daso_heat;

static daso_heat *self_of(iso_optimizer *optimizer) {
    return iso_container_of(optimizer, daso_heat, engine.base);
}

static void apply_scheduler(daso_heat *self) {
    if (!self->config.scheduler) return;
    iso_schedule_step(&self->scheduler, &self->engine.base);
}

// downcast_type applies to the blocking phases only, as in HeAT. While cycling, f32 travels.
static iso_status step_daso(iso_optimizer *optimizer) {
    daso_heat *self = self_of(optimizer);
    iso__sync_plan plan;
    bool blocking = self->schedule.global_skip < 1;
    // Checked before the parameters change.
    ISO_CHECK(self->schedule.config.last_batch >= 0, ISO_ERR_STATE,
              "daso-heat does not know the number of batches of an epoch: call "
              "iso_daso_heat_set_last_batch before the first step");
    apply_scheduler(self);
    ISO_TRY(iso__periodic_step(&self->engine));
    ISO_TRY(iso__heat_schedule_step(&self->schedule, &plan));
    return iso__periodic_run(&self->engine, &plan,
                             blocking ? ISO__PAYLOAD_FULL : ISO__PAYLOAD_WIRE);
}

static iso_status take_epoch_loss(iso_optimizer *optimizer, double loss) {
    daso_heat *self = self_of(optimizer);
    char reason[sizeof(self->reason)];
    if (!iso__heat_schedule_epoch_loss(&self->schedule, loss, reason, sizeof(reason)))
        return ISO_OK;
    memcpy(self->reason, reason, sizeof(reason));
    if (iso_comm_rank(self->engine.comm) == 0)
        iso__log(self->config.verbose ? ISO_LOG_WARN : ISO_LOG_INFO,
                 "daso-heat: epoch %lld: global_skip %lld, local_skip %lld, batches_to_wait %lld: "
                 "%s",
                 (long long)self->schedule.epoch, (long long)self->schedule.global_skip,
                 (long long)self->schedule.local_skip, (long long)self->schedule.batches_to_wait,
                 reason);
    return ISO_OK;
}

static iso_status reset_daso(iso_optimizer *optimizer) {
    daso_heat *self = self_of(optimizer);
    ISO_TRY(iso__periodic_finish(&self->engine, true));
    iso__heat_schedule_reset(&self->schedule);
    self->reason[0] = 0;
    ISO_TRY(iso__periodic_set_scope(&self->engine, ISO_SCOPE_NODE));
    iso_optimizer_zero_grad(optimizer);
    return ISO_OK;
}

static void get_stats(const iso_optimizer *optimizer, iso_daso_stats *out) {
    const daso_heat *self = iso_container_of(optimizer, daso_heat, engine.base);
    const iso__heat_schedule *s = &self->schedule;
    iso__periodic_stats(&self->engine, out);
    bool blocking = s->global_skip < 1;
    out->phase = s->epoch >= s->config.total_epochs                              ? "done"
                 : !blocking                                                     ? "cycling"
                 : s->epoch < s->config.total_epochs - s->config.cooldown_epochs ? "warm-up"
                                                                                 : "cool-down";
    out->global_skip = s->global_skip;
    out->local_skip = s->local_skip;
    out->batches_to_wait = s->batches_to_wait;
    out->global_skip_requested = out->batches_to_wait_requested = -1; // HeAT's rule
    snprintf(out->reason, sizeof(out->reason), "%s", self->reason);
}

// ---- The optimizer --------------------------------------------------------------------------------

static iso_status list_state(iso_optimizer *optimizer, iso_state *to) {
    daso_heat *self = self_of(optimizer);
    ISO_TRY(iso__periodic_state(&self->engine, to));
    self->saved = self->schedule;
    memset(&self->saved.config, 0, sizeof(self->saved.config)); // it holds a pointer
    ISO_TRY(iso__state_add_own(to, ISO_OWN_RANK0, "daso/schedule", ISO_STATE_U8,
                               sizeof(self->saved), &self->saved));
    return iso__state_add_own(to, ISO_OWN_RANK0, "daso/reason", ISO_STATE_U8, sizeof(self->reason),
                              self->reason);
}

static iso_status take_loaded(iso_optimizer *optimizer) {
    daso_heat *self = self_of(optimizer);
    self->reason[sizeof(self->reason) - 1] = 0;
    iso__heat_schedule_load(&self->schedule, &self->saved);
    return iso__periodic_loaded(&self->engine);
}

static const iso__daso_ops daso_heat_ops = {
    .base.name = "daso-heat",
    ISO__DASO_OPS,
    .base.step = step_daso,
    .base.state = list_state,
    .base.loaded = take_loaded,
    .epoch_loss = take_epoch_loss,
    .reset = reset_daso,
    .stats = get_stats,
};

static iso__periodic_config engine_config(const iso_daso_heat_config *config) {
    size_t chunk = (size_t)config->sending_chunk_size;
    return (iso__periodic_config){
        .topology = {.unit = ISO_SCOPE_NODE, .use_mpi_groups = config->use_mpi_groups},
        .wire = {.wire = &iso__codec_f32, .chunk = chunk},
        .full = {.wire = iso__codec_of(config->downcast_type),
                 .round_sums = config->downcast_type != ISO_F32,
                 .chunk = chunk},
        .merge = ISO_MERGE_HEAT,
        .state = ISO_STATE_SYNC_KEEP,
        .ranks_part = true,
    };
}

static iso_status make_engine(daso_heat *self, iso_optimizer *taken, iso_module *data_parallel) {
    iso__periodic_config engine = engine_config(&self->config);
    char settings[ISO__SETTINGS_ROOM] = "";
    iso_status valid = iso__heat_config_check(&self->config);
    if (valid == ISO_OK) iso__heat_settings_write(&self->config, settings, sizeof(settings));
    ISO_TRY(iso__periodic_init(&self->engine, taken, data_parallel, &engine, valid, settings));
    iso__heat_schedule_init(&self->schedule, &self->config, self->engine.layout->groups);
    iso_status status = iso__periodic_set_scope(&self->engine, ISO_SCOPE_NODE);
    if (status < 0) iso__periodic_destroy(&self->engine);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_daso_heat_create_take(iso_optimizer *wrapped, iso_module *data_parallel,
                                     const iso_daso_heat_config *config, iso_optimizer **out) {
    iso_status status;
    void *memory = NULL;
    ISO_TRY_GOTO(iso__periodic_alloc_owner(data_parallel, sizeof(daso_heat), &memory));
    daso_heat *self = memory;
    self->engine.base.ops = &daso_heat_ops.base;
    self->config = *config;
    if (config->scheduler) {
        self->scheduler = *config->scheduler;
        self->config.scheduler = &self->scheduler;
    }
    iso_optimizer *taken = wrapped;
    wrapped = NULL;
    ISO_TRY_GOTO(make_engine(self, taken, data_parallel));
    *out = &self->engine.base;
    return ISO_OK;
fail:
    iso_optimizer_destroy(&wrapped);
    iso__free(memory);
    *out = NULL; // often the caller's pointer to the optimizer that is gone
    return status;
}

iso_status iso_daso_heat_set_last_batch(iso_optimizer *optimizer, int64_t last_batch) {
    ISO_CHECK(optimizer->ops == &daso_heat_ops.base, ISO_ERR_ARG,
              "iso_daso_heat_set_last_batch needs a daso-heat optimizer, not %s",
              optimizer->ops->name);
    ISO_CHECK(last_batch >= 0, ISO_ERR_ARG,
              "last_batch %lld: give the number of batches of an epoch less one",
              (long long)last_batch);
    self_of(optimizer)->config.last_batch = last_batch;
    self_of(optimizer)->schedule.config.last_batch = last_batch;
    return ISO_OK;
}

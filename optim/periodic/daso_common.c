// SPDX-License-Identifier: MIT
// The calls of both kinds of DASO optimizers.
#include "optim/periodic/daso_impl.h"

static bool owns_engine(const iso_optimizer *optimizer) {
    return optimizer->ops->destroy == iso__periodic_free;
}

// Finds the DASO optimizer: `optimizer` itself, or one that it wraps.
static iso_status find_daso(iso_optimizer *optimizer, iso_optimizer **out) {
    const char *name = optimizer->ops->name;
    while (optimizer && !owns_engine(optimizer))
        optimizer = optimizer->ops->inner ? optimizer->ops->inner(optimizer) : NULL;
    *out = optimizer;
    ISO_CHECK(optimizer, ISO_ERR_ARG,
              "a %s optimizer has no global synchronisation: wrap it with iso_daso_create_take or "
              "iso_daso_heat_create_take",
              name);
    return ISO_OK;
}

static const iso__daso_ops *ops_of(const iso_optimizer *daso) {
    return iso_container_of(daso->ops, iso__daso_ops, base);
}

iso_status iso_daso_get_stats(iso_optimizer *optimizer, iso_daso_stats *out) {
    iso_optimizer *daso;
    ISO_TRY(find_daso(optimizer, &daso));
    ops_of(daso)->stats(daso, out);
    return ISO_OK;
}

iso_status iso_daso_epoch_loss(iso_optimizer *optimizer, double loss, bool globally_averaged) {
    iso_optimizer *daso;
    ISO_TRY(find_daso(optimizer, &daso));
    // Makes the bits equal on every rank, so that all ranks decide alike.
    if (globally_averaged)
        ISO_TRY(iso_comm_bcast(iso__periodic_of(daso)->comm, &loss, sizeof(loss), 0));
    else
        ISO_TRY(iso__periodic_mean_number(iso__periodic_of(daso), &loss));
    ISO_CHECK(isfinite(loss), ISO_ERR_STATE,
              "the loss of the epoch is not finite: the training diverged, try a lower learning "
              "rate");
    return ops_of(daso)->epoch_loss(daso, loss);
}

iso_status iso_daso_complete(iso_optimizer *optimizer) {
    iso_optimizer *daso;
    ISO_TRY(find_daso(optimizer, &daso));
    return iso__periodic_hold(iso__periodic_of(daso));
}

iso_status iso_daso_finish(iso_optimizer *optimizer) {
    iso_optimizer *daso;
    ISO_TRY(find_daso(optimizer, &daso));
    return iso__periodic_finish(iso__periodic_of(daso), false);
}

iso_status iso_daso_reset(iso_optimizer *optimizer) {
    iso_optimizer *daso;
    ISO_TRY(find_daso(optimizer, &daso));
    return ops_of(daso)->reset(daso);
}

// Field by field: what lies between the fields of a struct may differ between ranks.
uint64_t iso__daso_hash_changes(const iso_daso_config *config) {
    uint64_t hash = ISO_HASH_START;
    for (int64_t i = 0; i < config->replay_count; i++) {
        const iso_daso_change *c = &config->replay[i];
        int64_t fields[] = {c->step, c->cause,  c->global_skip, c->local_skip, c->batches_to_wait,
                            c->rank, c->actions};
        hash = iso__hash(hash, fields, sizeof(fields));
    }
    return hash;
}

// What can be asked of a DASO optimizer of either kind.
#include "optim/periodic/daso_impl.h"

// The daso or daso-heat optimizer among optimizer and what it wraps, NULL if there is none.
static iso_optimizer *find(iso_optimizer *optimizer) {
    while (optimizer && !iso__daso_engine(optimizer) && !iso__daso_heat_engine(optimizer))
        optimizer = optimizer->ops->inner ? optimizer->ops->inner(optimizer) : NULL;
    return optimizer;
}

static iso_status need(iso_optimizer *optimizer, iso_optimizer **out) {
    *out = find(optimizer);
    ISO_CHECK(*out, ISO_ERR_ARG,
              "a %s optimizer has no global synchronisation: wrap it with iso_daso_create_take or "
              "iso_daso_heat_create_take",
              optimizer->ops->name);
    return ISO_OK;
}

static iso__periodic *engine_of(iso_optimizer *daso) {
    iso__periodic *engine = iso__daso_engine(daso);
    return engine ? engine : iso__daso_heat_engine(daso);
}

iso_status iso_daso_get_stats(iso_optimizer *optimizer, iso_daso_stats *out) {
    iso_optimizer *daso;
    ISO_TRY(need(optimizer, &daso));
    if (iso__daso_engine(daso))
        iso__daso_stats(daso, out);
    else
        iso__daso_heat_stats(daso, out);
    return ISO_OK;
}

iso_status iso_daso_epoch_loss(iso_optimizer *optimizer, double loss, bool globally_averaged) {
    iso_optimizer *daso;
    ISO_TRY(need(optimizer, &daso));
    // The same bits on every rank: what they decide must not differ.
    if (globally_averaged)
        ISO_TRY(iso_comm_bcast(engine_of(daso)->comm, &loss, sizeof(loss), 0));
    else
        ISO_TRY(iso__periodic_mean_number(engine_of(daso), &loss));
    ISO_CHECK(isfinite(loss), ISO_ERR_STATE,
              "the loss of the epoch is not finite: the training diverged, try a lower learning "
              "rate");
    return iso__daso_engine(daso) ? iso__daso_epoch_loss(daso, loss)
                                  : iso__daso_heat_epoch_loss(daso, loss);
}

iso_status iso_daso_complete(iso_optimizer *optimizer) {
    iso_optimizer *daso;
    ISO_TRY(need(optimizer, &daso));
    return iso__periodic_hold(engine_of(daso));
}

iso_status iso_daso_finish(iso_optimizer *optimizer) {
    iso_optimizer *daso;
    ISO_TRY(need(optimizer, &daso));
    return iso__periodic_finish(engine_of(daso), false);
}

iso_status iso_daso_reset(iso_optimizer *optimizer) {
    iso_optimizer *daso;
    ISO_TRY(need(optimizer, &daso));
    return iso__daso_engine(daso) ? iso__daso_reset(daso) : iso__daso_heat_reset(daso);
}

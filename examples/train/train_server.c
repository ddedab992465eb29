// SPDX-License-Identifier: MIT
// --servers: ranks that only serve a parameter server.
#include "train_server.h"

#include <math.h>
#include <stdlib.h>

static int64_t count_servers(const train_options *options) {
    const char *text = train_setting_text(options, "servers");
    return text ? strtoll(text, NULL, 10) : 0;
}

iso_status train_server_check(const train_options *o) {
    const char *what = o->finite              ? "--finite"
                       : !isnan(o->skip_loss) ? "--skip-loss"
                       : !isnan(o->skip_norm) ? "--skip-norm"
                       : o->sync_batchnorm    ? "--sync-batchnorm"
                       : o->grad_scaler       ? "--grad-scaler"
                                              : NULL;
    if (count_servers(o) == 0 || !what) return ISO_OK;
    return train_error(ISO_ERR_ARG,
                       "%s needs all ranks in every step, and with --servers %lld some make none: "
                       "remove one of them",
                       what, (long long)count_servers(o));
}

iso_status train_server_setup(train_run *run) {
    int64_t servers = count_servers(run->options), ranks = run->world->ranks;
    run->workers = (int)(ranks - servers);
    if (run->workers > 0) return ISO_OK;
    return train_error(ISO_ERR_ARG,
                       "--servers %lld leaves no rank to train, as this run has %lld: start more "
                       "ranks, or lower it",
                       (long long)servers, (long long)ranks);
}

iso_status train_server_step(train_run *run) {
    int64_t batches = iso_loader_batches(run->train_loader);
    int64_t next = run->at.batch + run->options->accumulate;
    TRY(iso_optimizer_step(run->optimizer));
    run->at.step++;
    run->at.batch = next < batches ? next : batches;
    return ISO_OK;
}

// SPDX-License-Identifier: MIT
// The asynchronous parameter server: what a config needs.
#include "optim/periodic/sync_plan.h"

#include <float.h>

iso_status iso__daso_server_check(const iso_daso_config *c) {
    ISO_CHECK(c->push_scale >= 0 && c->push_scale <= FLT_MAX, ISO_ERR_ARG,
              "daso: push_scale is %g, it must be a number of at least 0 that fits into f32",
              c->push_scale);
    ISO_CHECK(c->server || c->push_scale == 0, ISO_ERR_ARG,
              "daso: push_scale is %g without server: set it, or leave push_scale 0",
              c->push_scale);
    ISO_CHECK(!c->server || (c->asynchronous && c->wire == ISO_WIRE_F32 && c->interval_ms == 0 &&
                             c->global_skip >= 1),
              ISO_ERR_ARG,
              "daso: server needs asynchronous, ISO_WIRE_F32, an interval_ms of 0 and a given "
              "global_skip, as iso_server_config sets them");
    return ISO_OK;
}

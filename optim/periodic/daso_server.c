// SPDX-License-Identifier: MIT
// The asynchronous parameter server: what a config needs.
#include "optim/periodic/sync_plan.h"

#include <float.h>

static iso_status check_servers(const iso_daso_config *c, int ranks) {
    bool warms = c->warmup_steps > 0 || (c->warmup_steps < 0 && c->warmup > 0);
    bool cools = c->cooldown_steps > 0 || (c->cooldown_steps < 0 && c->cooldown > 0);
    ISO_CHECK(c->servers >= 0, ISO_ERR_ARG, "daso: servers is %d, it must be 0 or more",
              c->servers);
    ISO_CHECK(c->server || c->servers == 0, ISO_ERR_ARG,
              "daso: servers is %d without server: set it, or leave servers 0", c->servers);
    ISO_CHECK(ranks == 0 || c->servers < ranks, ISO_ERR_ARG,
              "%d rank%s would only serve, but there %s %d: at least one rank must train",
              c->servers, ISO_PLURAL(c->servers), ranks == 1 ? "is" : "are", ranks);
    ISO_CHECK(c->servers == 0 || (!warms && !cools), ISO_ERR_ARG,
              "a parameter server with ranks that only serve has no warm-up and no cool-down, in "
              "which every rank trains: remove them, or let all ranks train (servers 0)");
    return ISO_OK;
}

iso_status iso__daso_server_check(const iso_daso_config *c, int ranks) {
    ISO_TRY(check_servers(c, ranks));
    ISO_CHECK(c->push_scale >= 0 && c->push_scale <= FLT_MAX, ISO_ERR_ARG,
              "daso: push_scale is %g, it must be a number of at least 0 that fits into f32",
              c->push_scale);
    ISO_CHECK(c->server || c->push_scale == 0, ISO_ERR_ARG,
              "daso: push_scale is %g without server: set it, or leave push_scale 0",
              c->push_scale);
    bool sync = c->push == ISO_PUSH_SYNC;
    ISO_CHECK(c->push == ISO_PUSH_ASYNC || (sync && c->server), ISO_ERR_ARG,
              "daso: push is %d%s: use ISO_PUSH_ASYNC or, with server, ISO_PUSH_SYNC", (int)c->push,
              c->server ? "" : " without server");
    ISO_CHECK(!sync || c->replay_count == 0, ISO_ERR_ARG,
              "a synchronous parameter server repeats by itself, without the changes of an earlier "
              "run: give it none");
    ISO_CHECK(!c->server || (c->asynchronous && c->wire == ISO_WIRE_F32 && c->interval_ms == 0 &&
                             c->global_skip >= 1),
              ISO_ERR_ARG,
              "daso: server needs asynchronous, ISO_WIRE_F32, an interval_ms of 0 and a given "
              "global_skip, as iso_server_config sets them");
    return ISO_OK;
}

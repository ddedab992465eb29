// SPDX-License-Identifier: MIT
// Private to optim: the engine of periodic synchronisation. It carries out plans; when and what is
// decided by its owner's schedule, how the mean is merged by merge.h, on which wire by average.h.
#ifndef ISO_PERIODIC_H
#define ISO_PERIODIC_H

#include "optim/periodic/merge.h"
#include "optim/optim_impl.h"
#include "optim/periodic/sync_plan.h"
#include "exchange/average.h"

#include <isotherm/resume.h>

// Memory that travels: a parameter, a buffer of the module, or an arena of optimizer state.
typedef struct iso__span {
    float *data; // of the device
    float *host; // while it is mapped
    size_t count;
} iso__span;

// What an exchange carries, and how.
typedef enum iso__payload {
    ISO__PAYLOAD_WIRE,  // what is sent while cycling
    ISO__PAYLOAD_FULL,  // what is sent to be waited for at once
    ISO__PAYLOAD_EXACT, // parameters in f32
    ISO__PAYLOAD_STATE, // parameters, buffers and optimizer state in f32
    ISO__PAYLOADS
} iso__payload;

// Consecutive parameters that are exchanged on their own, and what of them is under way.
typedef struct iso__periodic_exchange {
    int first, last;         // spans
    size_t offset, elements; // of the engine's flat arrays
    iso__average *average;   // by the wire
    // `held`: complete, its mean copied to `mean`, not yet merged. `dropped`: it failed while it
    // was to be held, and its merge is still to come. `queued`: what is to be sent after the merge
    // of what is pending lies in `room`.
    bool pending, queued, held, member, dropped;
    iso__payload payload, queued_payload;
    int queued_group;
    int64_t saved[4]; // what stands in a saved state
} iso__periodic_exchange;

typedef struct iso__periodic_config {
    iso_topology_config topology;
    iso__average_config wire, full;
    iso_merge merge;
    iso_state_sync state;
    // So many nearly equal exchanges that may all be under way; 0: one. Above 1 nothing but
    // parameters travels by the wire: `state` is ISO_STATE_KEEP, and no plan has FULL after SEND.
    int exchanges;
} iso__periodic_config;

enum { ISO__PERIODIC_NUMBERS = 16 };

typedef struct iso__periodic {
    iso_optimizer base; // of its owner, which embeds the engine as its first member
    iso__periodic_config config;
    iso_optimizer *inner;      // owned
    iso_module *data_parallel; // retained
    iso_comm *comm;            // borrowed from it: blocking collectives, in program order
    iso_comm *node;            // the same for the node; owned
    iso__routes *routes;       // of the averages, one for each exchange
    const iso_topology *layout;
    iso__average *average[ISO__PAYLOADS]; // FULL, EXACT and STATE; the last two when first needed
    iso__periodic_exchange *exchange;
    int exchange_count;
    iso_device *device; // of the parameters; borrowed
    iso__span *span;
    int span_count, parameter_count, buffer_count; // parameters come first, then buffers
    size_t elements, parameter_elements, buffer_elements;
    float *first_buffers; // the contents of the buffers in the beginning, to reset them to
    iso_scope scope;      // of the gradients of the next backward
    // Whether all ranks, or those of a node, have the same parameters, and optimizer state.
    bool equal, equal_state, node_equal, node_equal_state;

    float *sent, *room, *mean; // as long as what ISO__PAYLOAD_WIRE carries
    float *own;                // what evaluation mode has put aside
    int64_t *steps; // [parameters]: room; NULL: each step updates all of them on every rank
    // On a device with memory of its own, where the arrays above but `mean` are pinned: what is
    // mapped or on its way to the device, and places in its queues.
    float *stage;
    size_t stage_elements;
    iso__device_event *computed, *fetched, *put;
    bool shown; // parameters are the mean of all ranks

    double metrics[ISO__METRICS]; // the largest of all ranks, of the last exchange
    double last_wait_ms, own_divergence;
    double step_ms_sum; // since the last send, without waits
    int64_t step_ms_count, last_step_ns;
    double reducer_wait_ms; // when the step under way began
    iso_daso_stats stats;   // bytes: what the averages do not count
    struct {
        int64_t number[ISO__PERIODIC_NUMBERS];
        double metric[ISO__METRICS + 4];
    } saved; // what stands in a saved state, see periodic_state.c
} iso__periodic;

static inline iso__periodic *iso__periodic_of(iso_optimizer *owner) {
    return iso_container_of(owner, iso__periodic, base);
}

enum { ISO__EXCHANGE_MS, ISO__STEP_MS, ISO__WAIT_MS, ISO__DIVERGENCE }; // of metrics

// ---- periodic_create.c ----------------------------------------------------------------------------

// Collective. Takes inner, on failure too (p is then empty). ISO_ERR_ARG unless inner is a
// dp_optimizer tied to data_parallel.
// owner: whether this rank's owner is well so far; an error on any rank is one on all.
// ISO_ERR_MISMATCH where ranks have other settings (a line of text).
iso_status iso__periodic_init(iso__periodic *p, iso_optimizer *inner, iso_module *data_parallel,
                              const iso__periodic_config *config, iso_status owner,
                              const char *settings);
void iso__periodic_destroy(iso__periodic *p);
// The slots of optimizers that own an engine. free: destroys it, and frees its owner.
void iso__periodic_zero_grad(iso_optimizer *owner);
iso_status iso__periodic_update(iso_optimizer *owner, int i, const void *gradient, double scale,
                                const iso_hyper *hyper);
iso_optimizer *iso__periodic_inner(iso_optimizer *owner);
void iso__periodic_free(iso_optimizer *owner);

// ---- periodic.c -----------------------------------------------------------------------------------

// Collective. How far the gradients of the next backward reach.
iso_status iso__periodic_set_scope(iso__periodic *p, iso_scope scope);
// All ranks hold the same parameters: what travels from here on are differences to them.
iso_status iso__periodic_set_reference(iso__periodic *p);
// ISO_ERR_STATE in evaluation mode. Local.
iso_status iso__periodic_check_training(const iso__periodic *p);
// One step of the inner optimizer; then, once its owner has a plan, the plan.
iso_status iso__periodic_step(iso__periodic *p);
iso_status iso__periodic_run(iso__periodic *p, const iso__sync_plan *plan, iso__payload payload);
// Median ms of the first exchange by the wire, and of a step without waits; the largest of all
// ranks.
iso_status iso__periodic_measure(iso__periodic *p, double *exchange_ms, double *step_ms);
// The mean of this number over all ranks.
iso_status iso__periodic_mean_number(iso__periodic *p, double *value);
// Every rank gets the mean of parameters, and of optimizer state if wanted.
iso_status iso__periodic_finish(iso__periodic *p, bool state);
// Waits for what is under way and forgets it.
iso_status iso__periodic_drop(iso__periodic *p);
void iso__periodic_stats(const iso__periodic *p, iso_daso_stats *out);
// Waits for what is under way and keeps the means aside until they are merged. Where an exchange
// failed that is an error once, and its merge then changes nothing.
iso_status iso__periodic_hold(iso__periodic *p);
// Room for the means of exchanges that are held.
iso_status iso__periodic_reserve_mean(iso__periodic *p);
// Train hook: the mean in evaluation mode, one's own parameters in training mode.
iso_status iso__periodic_show(bool training, void *periodic);

// ---- periodic_state.c -----------------------------------------------------------------------------

iso_status iso__periodic_state(iso__periodic *p, iso_state *state);
iso_status iso__periodic_loaded(iso__periodic *p);

// ---- periodic_mean.c ------------------------------------------------------------------------------

// Parameters (and buffers and state, if elements says so) to and from one flat array. `to` is
// pinned (iso__pinned_alloc); `from` is free again at once.
iso_status iso__periodic_pack(const iso__periodic *p, size_t elements, float *to);
iso_status iso__periodic_unpack(iso__periodic *p, size_t elements, const float *from);
// The spans that hold so many elements: those below the number returned.
int iso__periodic_spans(const iso__periodic *p, size_t elements);
// The mean over all ranks, waiting for it, without touching the parameters; *mean is valid until
// the next exchange. No exchange may be under way.
iso_status iso__periodic_exact_mean(iso__periodic *p, iso__payload payload, const float **mean);
iso_status iso__periodic_node_average(iso__periodic *p);
// After ranks of comm got the mean of their optimizer states: each parameter counts as many updates
// as on the rank that had made the most.
iso_status iso__periodic_agree_on_steps(iso__periodic *p, iso_comm *comm);
// Buffers become their mean over comm; ranks of a node have statistics of their own too.
iso_status iso__periodic_mean_buffers(iso__periodic *p, iso_comm *comm);
iso_status iso__periodic_node_copy(iso__periodic *p, int group);
size_t iso__periodic_elements(const iso__periodic *p, iso__payload payload); // elements
// Of the whole array: not ISO__PAYLOAD_WIRE.
iso_status iso__periodic_average_of(iso__periodic *p, iso__payload payload, iso__average **out);

// ---- periodic_memory.c ----------------------------------------------------------------------------

iso_status iso__periodic_memory_open(iso__periodic *p);
void iso__periodic_memory_close(iso__periodic *p);
// Spans [first, last), to a pinned array, which waits for the device, and from any array, which the
// device may still be receiving afterwards.
iso_status iso__periodic_fetch(const iso__periodic *p, int first, int last, float *to);
iso_status iso__periodic_put(iso__periodic *p, int first, int last, const float *from);
iso_status iso__periodic_clear(const iso__periodic *p, int first, int last);
// Spans [first, last) to be read and written by the host, at span.host; no put in between.
iso_status iso__periodic_map(iso__periodic *p, int first, int last);
iso_status iso__periodic_unmap(iso__periodic *p, int first, int last);

#endif

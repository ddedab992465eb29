// SPDX-License-Identifier: MIT
// HeAT's DASO (Coquelin et al., J. Big Data 9:14, 2022), with its schedule of skips and waits. The
// functions of isotherm/daso.h that take a daso optimizer take this one, too.
#ifndef ISOTHERM_DASO_HEAT_H
#define ISOTHERM_DASO_HEAT_H

#include <isotherm/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

// The constructor arguments of HeAT's DASO, with HeAT's names and defaults. After the warm-up
// global_skip is 4, as in HeAT, but at most max_global_skips. Differences from HeAT:
//   - Frozen parameters are excluded.
//   - Chunks may split parameters anywhere.
//   - Without a warm-up, cycling begins after the first epoch.
//   - batches_to_wait is at least 0, global_skip at least 1.
//   - Nodes may have different numbers of ranks. Means weight a node by its number of ranks.
typedef struct iso_daso_heat_config {
    int64_t total_epochs;    // required, > 0
    int64_t warmup_epochs;   // first epochs, with a blocking full average after every batch
    int64_t cooldown_epochs; // last epochs, with the same
    // Copied, but its milestones are borrowed. Applied before every update. NULL: none.
    const iso_schedule *scheduler;
    double stability_level; // threshold of the plateau detector (min, rel, patience 2)
    int64_t max_global_skips;
    int64_t sending_chunk_size; // elements, > 0
    iso_dtype downcast_type;    // of f32 in blocking averages: ISO_BF16, ISO_F16 or ISO_F32
    bool use_mpi_groups;
    int64_t skip_reduction_factor, local_skip_factor; // > 0
    bool verbose;       // log changes at the level of warnings; false: only at ISO_LOG=info
    int64_t last_batch; // batches per epoch - 1; -1: set it before the first step
} iso_daso_heat_config;
extern const iso_daso_heat_config iso_daso_heat_default; // the default as an object, for C++
#ifdef __cplusplus
#define ISO_DASO_HEAT_DEFAULT iso_daso_heat_default
#else
#define ISO_DASO_HEAT_DEFAULT                                                                      \
    ((iso_daso_heat_config){.warmup_epochs = 4,                                                    \
                            .cooldown_epochs = 4,                                                  \
                            .stability_level = 0.05,                                               \
                            .max_global_skips = 8,                                                 \
                            .sending_chunk_size = 10000000,                                        \
                            .downcast_type = ISO_BF16,                                             \
                            .use_mpi_groups = true,                                                \
                            .skip_reduction_factor = 2,                                            \
                            .local_skip_factor = 4,                                                \
                            .last_batch = -1})
#endif

// Takes inner (a dp_optimizer tied to data_parallel), also on failure; retains data_parallel.
// ISO_ERR_ARG for an invalid value; the message names the option. ISO_ERR_MISMATCH if the ranks
// pass different configs. ISO_ERR_UNSUPPORTED for buffers that are neither f32, f64 nor
// i64, and with ZeRO.
iso_status iso_daso_heat_create_take(iso_optimizer *inner, iso_module *data_parallel,
                                     const iso_daso_heat_config *config, iso_optimizer **out);
// Local. Sets the number of batches per epoch, minus 1. Before that, step() is ISO_ERR_STATE.
iso_status iso_daso_heat_set_last_batch(iso_optimizer *daso, int64_t last_batch);

#ifdef __cplusplus
}
#endif
#endif

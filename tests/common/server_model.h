// SPDX-License-Identifier: MIT
// For tests of the parameter server: a serial model of all ranks, which serves pushes and merges
// answers in the order that a run has told, with the bits of the elements' types.
#ifndef ISO_TEST_SERVER_MODEL_H
#define ISO_TEST_SERVER_MODEL_H

#include <isotherm/daso.h>

enum { SERVER_RANKS = 4 };

typedef struct server_model {
    int ranks, first; // the first rank that serves
    bool all_train;   // otherwise those that serve make no updates
    int64_t count, steps, period;
    double scale;
    bool *narrow;                        // of each element: f32
    int *shard;                          // of each element: who serves it
    double *start, *copy;                // what ranks begin with; what servers have
    double *now[SERVER_RANKS];           // parameters of each rank,
    double *known[SERVER_RANKS];         // what it knows,
    double *changes[SERVER_RANKS];       // pushed,
    double *answer[SERVER_RANKS];        // and was answered
    int way[SERVER_RANKS][SERVER_RANKS]; // of the push of a rank to a server
    int64_t pushed_at[SERVER_RANKS][SERVER_RANKS];
    double *kept, *wanted[SERVER_RANKS]; // parameters after each step: of this rank; of the model
} server_model;

// Begins with the parameters of module, which all ranks have. servers: so many ranks only serve.
// scale 0: 1 / ranks that train.
bool server_model_open(server_model *m, iso_module *module, int ranks, int servers, int64_t steps,
                       double scale, int64_t period);
void server_model_close(server_model *m);
// Keeps this rank's parameters after a step, from 1.
bool server_model_keep(server_model *m, iso_module *module, int64_t step);
// Runs all ranks; `drift` times (k mod 7) is what an update adds to element k (daso_drift); an
// update of a rank that only serves adds nothing. Every rank ends where ranks meet. Returns false
// if what was told is impossible.
bool server_model_run(server_model *m, const iso_daso_change *told, int count,
                      float (*drift)(int rank, int64_t step));
// Whether what was kept has the bits of that rank in the model.
bool server_model_agrees(const server_model *m, int rank);

#endif

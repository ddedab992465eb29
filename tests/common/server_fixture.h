// SPDX-License-Identifier: MIT
// For tests of the parameter server: runs whose ranks make their steps each for itself, what they
// tell, and the comparison with the serial model.
#ifndef ISO_TEST_SERVER_FIXTURE_H
#define ISO_TEST_SERVER_FIXTURE_H

#include "common/daso_fixture.h"

enum { SERVER_STEPS = 22, SERVER_PERIOD = 2, SERVER_CHANGES = 2048 };

// Set c.daso.servers for ranks that only serve.
daso_case server_case(int64_t warmup);
// Whether this rank only serves.
bool server_only(const daso_case *c);
// Local: ranks need not be at the same step. A rank that only serves trains nothing.
iso_status server_try(trainer *t, const daso_case *c, int from, int to);
// The same on all ranks, of which none may fail.
void server_train(trainer *t, const daso_case *c, int from, int to);
// With one other rank, so that each serves what the other has pushed. Local for this pair.
iso_status server_step_with(trainer *t, const daso_case *c, int other, int from, int to);

// What all ranks did, as rank 0 is told, and then all know.
typedef struct server_script {
    iso_daso_change change[SERVER_CHANGES];
    int count;
} server_script;
void server_note(daso_case *c, server_script *s);
void server_share(server_script *s);
// How often a rank did this (1: served, 2: merged), anywhere.
int server_events(const server_script *s, int rank, int64_t kind);

// Collective. Parameters after each step have the bits of the serial model, which serves and merges
// as the run has told. scale 0: the default.
void server_follows_the_model(iso_status (*build)(iso_device *, bool, iso_module **), double scale,
                              int64_t period, int servers);
// Collective. A run with evaluations has its bits when it is repeated, all at once and with a
// break, and tells the same again.
void server_repeats(iso_status (*build)(iso_device *, bool, iso_module **), int64_t warmup,
                    int servers);

#endif

// SPDX-License-Identifier: MIT
// The weights of the ranks in a list of gradients, and their total.
#include "parallel/reducer/weights.h"

#include "comm/comm_calls.h"

#include <math.h>

struct iso__weights {
    double next; // this rank's, for the list that leaves next
    bool given;  // it has one, which may be 0
    bool left;   // the weight of the list that is being issued, or is under way, has left
    double own;
    iso_status failed; // a sum that iso__weights_are_here saw fail
    iso_request *request;
    iso_comm *comm; // the communicator of the request, retained
    double total[]; // and zeros, see iso__comm_reduction_room
};

iso_status iso__weights_create(const iso_comm *world, iso__weights **out) {
    size_t room = iso__comm_reduction_room(world, 1);
    return iso__alloc_zero(sizeof(iso__weights) + room * sizeof(double), (void **)out);
}

bool iso__weights_destroy(iso__weights **pointer) {
    iso__weights *w = *pointer;
    double total;
    *pointer = NULL;
    if (!w) return true;
    if (w->request && iso__weights_wait(w, &total) < 0) return false;
    iso_comm_destroy(&w->comm);
    iso__free(w);
    return true;
}

iso_status iso__weights_add(iso__weights *w, double weight, bool open) {
    ISO_CHECK(isfinite(weight) && weight >= 0, ISO_ERR_ARG,
              "a weight of %g: give the number of tokens or samples of this rank, at least 0",
              weight);
    ISO_CHECK(!open || !w->left, ISO_ERR_STATE,
              "the weight of this backward has left already, with its first gradients: call "
              "iso_reducer_add_weight before iso_reducer_grad_ready (of a module: "
              "iso_data_parallel_add_weight before the backward)");
    w->next += weight;
    w->given = true;
    return ISO_OK;
}

iso_status iso__weights_check(const iso__weights *w, bool next, const char *name) {
    if (!w) return ISO_OK;
    ISO_CHECK(w->given || (w->left && !next), ISO_ERR_STATE,
              "the gradient of \"%s\" was reported ready before the weight of its backward: call "
              "iso_reducer_add_weight (of a module: iso_data_parallel_add_weight) first, with the "
              "number of tokens or samples (0 is one, too)",
              name);
    return ISO_OK;
}

void iso__weights_drop(iso__weights *w) {
    if (!w) return;
    w->next = 0;
    w->given = false;
}

void iso__weights_go_on(iso__weights *w, const iso__weights *from) {
    if (!w) return;
    w->next = from->next;
    w->given = from->given;
}

iso_status iso__weights_leave(iso__weights *w, iso_comm *comm) {
    if (!w || w->left) return ISO_OK;
    w->own = w->total[0] = w->next;
    w->left = true;
    w->failed = ISO_OK;
    iso__weights_drop(w);
    if (!comm || iso_comm_size(comm) == 1) return ISO_OK;
    w->comm = iso_comm_retain(comm);
    return iso_comm_iallreduce(comm, w->total, iso__comm_reduction_room(comm, 1), ISO_F64,
                               "weights", &w->request);
}

void iso__weights_restart(iso__weights *w) {
    if (w) w->left = false;
}

static void forget_request(iso__weights *w) {
    if (!w->request) iso_comm_destroy(&w->comm);
}

bool iso__weights_are_here(iso__weights *w) {
    if (!w || !w->request) return true;
    iso_status status = iso_request_test(&w->request);
    forget_request(w);
    w->failed = status < 0 ? status : ISO_OK;
    return status != ISO_PENDING;
}

iso_status iso__weights_wait(iso__weights *w, double *total) {
    iso_status status = w->request ? iso_request_wait(&w->request) : ISO_OK;
    forget_request(w);
    ISO_TRY(status);
    ISO_CHECK(w->failed == ISO_OK, w->failed, "the sum of the weights of all ranks failed (%s)",
              iso_status_string(w->failed));
    *total = w->total[0];
    return ISO_OK;
}

double iso__weights_own(const iso__weights *w) { return w->own; }

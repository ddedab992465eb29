// SPDX-License-Identifier: MIT
// Exchanges made of messages in several stages: stages.h.
#include "comm/stages.h"

iso_status iso__stages_promise(iso__engine *engine, int messages) {
    pthread_mutex_lock(&engine->lock);
    iso_status status = iso__engine_promise(engine, messages);
    pthread_mutex_unlock(&engine->lock);
    return status;
}

void iso__stages_take_back(iso__engine *engine, int messages) {
    pthread_mutex_lock(&engine->lock);
    iso__engine_take_back(engine, messages);
    pthread_mutex_unlock(&engine->lock);
}

// Progress looks at it next.
static void list_stages(iso__stages *s) {
    iso__engine *engine = s->engine;
    if (s->listed) return;
    s->listed = true;
    s->next = NULL;
    *(engine->stages_done ? &engine->last_stage_done->next : &engine->stages_done) = s;
    engine->last_stage_done = s;
}

static int list_message(iso__stages *s, int rc) {
    iso__engine *engine = s->engine;
    if (rc != MPI_SUCCESS) return rc;
    engine->owner[engine->in_flight++] = (iso__owner){s->request, s};
    s->messages++;
    return MPI_SUCCESS;
}

int iso__stages_send(iso__stages *s, const void *data, int count, MPI_Datatype type, int to,
                     int tag) {
    iso__engine *engine = s->engine;
    if (count == 0) return MPI_SUCCESS;
    MPI_Request *request = &engine->mpi[engine->in_flight];
    return list_message(s, MPI_Isend(data, count, type, to, tag, s->mpi, request));
}

int iso__stages_receive(iso__stages *s, void *data, int count, MPI_Datatype type, int from,
                        int tag) {
    iso__engine *engine = s->engine;
    if (count == 0) return MPI_SUCCESS;
    MPI_Request *request = &engine->mpi[engine->in_flight];
    return list_message(s, MPI_Irecv(data, count, type, from, tag, s->mpi, request));
}

int iso__stages_begun(iso__stages *s, int rc) {
    if (rc == MPI_SUCCESS) {
        s->request->under_way++;
        if (s->messages == 0) list_stages(s);
    } else {
        s->request = NULL;
        s->taken = s->messages > 0;
    }
    return rc;
}

void iso__stages_end(iso__stages *s, int error) {
    iso_request *request = s->request;
    s->request = NULL;
    s->taken = s->messages > 0;
    if (error != MPI_SUCCESS) request->mpi_error = error;
    request->under_way--;
    if (request->hierarchy) return; // coll_hierarchy.c still has to copy the slice
    if (request->under_way == 0 && request->state == ISO_REQUEST_POSTED)
        iso__request_complete(request);
}

void iso__stages_count(iso__stages *s, int error) {
    s->messages--;
    if (error != MPI_SUCCESS) s->error = error;
    if (s->messages == 0 || error != MPI_SUCCESS) list_stages(s);
}

bool iso__stages_progress(iso__engine *engine) {
    bool any = engine->stages_done != NULL;
    while (engine->stages_done) {
        iso__stages *s = engine->stages_done;
        engine->stages_done = s->next;
        s->listed = false;
        if (s->request)
            s->advance(s);
        else // given up
            s->taken = s->messages > 0;
    }
    return any;
}

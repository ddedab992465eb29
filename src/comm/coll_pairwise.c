// SPDX-License-Identifier: MIT
// Sums by pairwise exchange: pairwise.h.
#include "comm/pairwise.h"

#include "comm/channel_impl.h"
#include "comm/traffic.h"

#include <string.h>

// With ISO_IALLREDUCE=5, up to ISO_PAIRWISE_MOST ranks sum directly, and more ranks sum by halves.
// With 6, ranks always sum by halves.
int iso__pairwise_choice(const iso__engine *engine, int size) {
    bool power = (size & (size - 1)) == 0;
    if (engine->pairwise == 0 || power) return 0;
    return engine->pairwise == ISO_SUM_HALVING || size > ISO_PAIRWISE_MOST ? ISO_SUM_HALVING
                                                                           : ISO_SUM_PAIRWISE;
}

size_t iso__pairwise_least_bytes(const iso__engine *engine, int size) {
    bool directly = iso__pairwise_choice(engine, size) == ISO_SUM_PAIRWISE;
    return directly ? (size_t)size * ISO_PAIRWISE_SLICE : 0;
}

// ---- Directly: slices ---------------------------------------------------------------------------------------

static size_t slice_at(const iso__pairwise_sum *s, int rank) {
    size_t units = s->count / ISO_SLICE_UNIT, size = (size_t)s->pool->size;
    return rank == s->pool->size ? s->count : units * (size_t)rank / size * ISO_SLICE_UNIT;
}

static size_t slice_count(const iso__pairwise_sum *s, int rank) {
    return slice_at(s, rank + 1) - slice_at(s, rank);
}

static char *slice_of(const iso__pairwise_sum *s, int rank) {
    return s->data + slice_at(s, rank) * s->base.request->unit;
}

// Where this rank receives its slice from another rank.
static char *block_of(const iso__pairwise_sum *s, int rank) {
    int own = s->pool->rank;
    return s->blocks + (size_t)(rank - (rank > own)) * slice_count(s, own) * s->base.request->unit;
}

// ---- Messages -------------------------------------------------------------------------------------

static int send_slice(iso__pairwise_sum *s, int slice, int to) {
    return iso__stages_send(&s->base, slice_of(s, slice), (int)slice_count(s, slice),
                            iso__mpi_type(s->base.request->dtype), to, s->tag + s->stage);
}

static int receive_slice(iso__pairwise_sum *s, int slice, int from, char *to) {
    return iso__stages_receive(&s->base, to, (int)slice_count(s, slice),
                               iso__mpi_type(s->base.request->dtype), from, s->tag + s->stage);
}

// Begins the messages of a stage. In step k each rank sends to the k-th rank after it, so that no
// rank receives from all others at once.
static int post_stage(iso__pairwise_sum *s) {
    int own = s->pool->rank, size = s->pool->size;
    if (iso__engine_reserve(s->pool->engine, s->pool->messages) < 0) return MPI_ERR_NO_MEM;
    for (int k = 1; k < size; k++) {
        int to = (own + k) % size, from = (own - k + size) % size;
        int rc = s->stage == 1 ? receive_slice(s, from, from, slice_of(s, from))
                               : receive_slice(s, own, from, block_of(s, from));
        if (rc == MPI_SUCCESS) rc = send_slice(s, s->stage == 1 ? own : to, to);
        if (rc != MPI_SUCCESS) return rc;
    }
    return MPI_SUCCESS;
}

// ---- Sum ------------------------------------------------------------------------------------------

// Adds up this rank's slice in the order of isotherm/comm.h.
static int add_slices(iso__pairwise_sum *s) {
    int own = s->pool->rank, size = s->pool->size;
    if (s->stage == 1) return MPI_SUCCESS;
    size_t count = slice_count(s, own);
    char **block = s->pool->block;
    for (int r = 0; r < size; r++) block[r] = r == own ? slice_of(s, own) : block_of(s, r);
    int rc = iso__sum_in_order(s->pool->engine, block, size, (int)count, s->base.request->dtype);
    if (block[0] != slice_of(s, own))
        memcpy(slice_of(s, own), block[0], count * s->base.request->unit);
    return rc;
}

// ---- Directly: schedule ---------------------------------------------------------------------------

static void shape_stages(iso__pairwise *p) {
    p->stages = 2;
    p->messages = 2 * (p->size - 1);
}

static size_t block_bytes(const iso__pairwise *p, size_t bytes) {
    size_t ranks = (size_t)p->size, each = bytes / ranks + 2 * ISO_SLICE_UNIT * sizeof(double);
    return (ranks - 1) * each;
}

static const iso__pairwise_schedule directly = {
    .shape = shape_stages, .block_bytes = block_bytes, .post = post_stage, .add = add_slices};

// ---- Progress -------------------------------------------------------------------------------------

static void advance_sum(iso__stages *stages) {
    iso__pairwise_sum *s = iso_container_of(stages, iso__pairwise_sum, base);
    const iso__pairwise *p = s->pool;
    int rc = stages->error;
    while (rc == MPI_SUCCESS && s->stage < p->stages) {
        rc = p->schedule->add(s);
        s->stage++;
        if (rc == MPI_SUCCESS && s->stage < p->stages) rc = p->schedule->post(s);
        if (rc == MPI_SUCCESS && stages->messages > 0) return;
    }
    iso__stages_end(stages, rc);
}

// ---- Post -----------------------------------------------------------------------------------------

static iso__pairwise_sum *free_sum(const iso__pairwise *pairwise, int place) {
    int first = pairwise->fixed ? place : 0, end = pairwise->fixed ? place + 1 : pairwise->count;
    for (int i = first; i < end; i++)
        if (!pairwise->sum[i].base.taken) return &pairwise->sum[i];
    return NULL;
}

bool iso__pairwise_has_room(const iso__pairwise *pairwise, int place) {
    return !pairwise || free_sum(pairwise, place);
}

bool iso__pairwise_is_in_use(const iso__pairwise *pairwise) {
    for (int i = 0; pairwise && i < pairwise->count; i++)
        if (pairwise->sum[i].base.taken) return true;
    return false;
}

int iso__pairwise_post(iso__pairwise *pairwise, int place, iso_request *request, size_t count,
                       MPI_Comm mpi) {
    iso__pairwise_sum *s = free_sum(pairwise, place);
    s->base = (iso__stages){.engine = pairwise->engine,
                            .request = request,
                            .mpi = mpi,
                            .taken = true,
                            .advance = advance_sum};
    s->data = request->next;
    s->count = count;
    s->tag = ISO_STAGES_PAIRWISE + (int)(2 * (pairwise->turn++ % ISO_STAGES_TURNS));
    s->stage = 0;
    return iso__stages_begun(&s->base, pairwise->schedule->post(s));
}

static iso_status post_chunk(iso_request *request) {
    iso__pairwise *pairwise = request->channel->pairwise;
    int rc =
        iso__pairwise_post(pairwise, request->channel_chunk, request, request->left, request->mpi);
    ISO_TRY_MPI_CODE(rc, "a sum by pairwise exchange");
    request->left = 0;
    return ISO_OK;
}

const iso__collective_ops iso__collective_pairwise = {.post = post_chunk,
                                                      .progress = iso__stages_progress};

// ---- Life -----------------------------------------------------------------------------------------

static iso_status make_blocks(iso__pairwise *p, const size_t *bytes, int count) {
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(*p->sum), (void **)&p->sum));
    ISO_TRY(iso__alloc_zero((size_t)p->size * sizeof(*p->block), (void **)&p->block));
    p->count = count;
    for (int i = 0; i < count; i++) {
        p->sum[i].pool = p;
        if (bytes[i] == 0) continue;
        ISO_TRY(iso__alloc(p->schedule->block_bytes(p, bytes[i]), (void **)&p->sum[i].blocks));
        p->promised += p->messages;
    }
    return ISO_OK;
}

iso_status iso__pairwise_create(iso__engine *engine, const iso__pairwise_config *config,
                                iso__pairwise **out) {
    iso__pairwise *p;
    *out = NULL;
    ISO_TRY(iso__alloc_zero(sizeof(*p), (void **)&p));
    *p = (iso__pairwise){
        .engine = engine, .rank = config->rank, .size = config->size, .fixed = config->fixed};
    bool halves = iso__pairwise_choice(engine, p->size) == ISO_SUM_HALVING;
    p->schedule = halves ? &iso__pairwise_by_halves : &directly;
    p->schedule->shape(p);
    iso_status status = make_blocks(p, config->bytes, config->count);
    if (status < 0) p->promised = 0;
    if (status == ISO_OK) status = iso__stages_promise(engine, p->promised);
    if (status < 0) iso__pairwise_destroy(&p);
    ISO_TRY(status);
    *out = p;
    return ISO_OK;
}

void iso__pairwise_destroy(iso__pairwise **pointer) {
    iso__pairwise *p = *pointer;
    *pointer = NULL;
    if (!p) return;
    iso__stages_take_back(p->engine, p->promised);
    for (int i = 0; i < p->count; i++) iso__free(p->sum[i].blocks);
    iso__free(p->block);
    iso__free(p->sum);
    iso__free(p);
}

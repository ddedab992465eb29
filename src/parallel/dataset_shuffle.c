// SPDX-License-Identifier: MIT
// Exchanges samples between the shards of all ranks.
#include "comm/comm_calls.h"
#include "data/data_impl.h"

#include <isotherm/shuffle.h>
#include <string.h>

// With these, the random numbers differ from those for the order of an epoch with the same seed.
#define OF_RANK  UINT64_C(0xd1b54a32d192ed03)
#define OF_PEERS UINT64_C(0x8cb92ba72f3d8dd7)

enum { BLOCK_UNIT = 64 };

struct iso_shuffle {
    iso_dataset *dataset;
    iso_comm *comm; // its own, so that its messages and those of training need no common order
    uint64_t seed;
    int64_t rounds;       // finished
    int peers;            // ranks that each rank sends to
    int64_t each;         // samples for each of them
    size_t sample, block; // bytes
    int64_t *order;       // [count]; its first peers * each samples leave
    int64_t *offsets;     // [size - 1]; peer p of rank r is r + offsets[p]
    char *send, *recv;    // [size][block]; block b goes to, or comes from, rank b
    iso_request *request;
    bool under_way, failed;
};

// ---- Who gives what to whom -----------------------------------------------------------------------

// The first `wanted` of 0 .. count - 1 in a random order, without bias.
static void draw_order(iso__philox_key key, uint32_t word, int64_t count, int64_t wanted,
                       int64_t *order) {
    for (int64_t i = 0; i < count; i++) order[i] = i;
    for (int64_t i = 0; i < wanted; i++) {
        uint64_t left = (uint64_t)(count - i);
        int64_t j = i + (int64_t)iso__draw_below(key, word, (uint64_t)i, left);
        int64_t moved = order[i];
        order[i] = order[j];
        order[j] = moved;
    }
}

// Offsets are the same on all ranks, so each rank sends as much as it receives.
static void draw_round(iso_shuffle *self) {
    int others = iso_comm_size(self->comm) - 1, rank = iso_comm_rank(self->comm);
    uint64_t round = (uint64_t)self->rounds;
    iso__philox_key samples = iso__philox_key_make(self->seed ^ OF_RANK, ISO_RNG_SHUFFLE, round);
    iso__philox_key peers = iso__philox_key_make(self->seed ^ OF_PEERS, ISO_RNG_SHUFFLE, round);
    draw_order(samples, (uint32_t)rank, self->dataset->info.count, self->peers * self->each,
               self->order);
    draw_order(peers, 0, others, self->peers, self->offsets);
    for (int p = 0; p < self->peers; p++) self->offsets[p]++;
}

static int find_peer(const iso_shuffle *self, int p, int sign) {
    int size = iso_comm_size(self->comm), offset = (int)self->offsets[p];
    return (iso_comm_rank(self->comm) + (sign > 0 ? offset : size - offset)) % size;
}

// ---- Copies ---------------------------------------------------------------------------------------

// Copies between a block and the samples for, or from, peer p.
static void copy_block(const iso_shuffle *self, int p, char *block, bool out) {
    const iso_dataset *set = self->dataset;
    for (int64_t i = 0; i < self->each; i++)
        for (int t = 0; t < set->info.inputs + set->info.targets; t++) {
            size_t bytes = set->columns[t].bytes;
            int64_t number = self->order[p * self->each + i];
            // The data set owns its arrays.
            void *place = (void *)(uintptr_t)iso__dataset_place(set, t, number);
            memcpy(out ? block : place, out ? place : block, bytes);
            block += bytes;
        }
}

static char *block_at(const iso_shuffle *self, char *blocks, int rank) {
    return blocks + (size_t)rank * self->block;
}

// ---- Creation -------------------------------------------------------------------------------------

static iso_status check_shard(const iso_dataset *dataset, const iso_comm *comm) {
    const iso__shards *shards = &dataset->shards;
    ISO_CHECK(
        shards->ranks == iso_comm_size(comm) && shards->rank == iso_comm_rank(comm), ISO_ERR_STATE,
        "samples are exchanged between shards, and this data set is none of these %d ranks: call "
        "iso_dataset_set_shard first",
        iso_comm_size(comm));
    const iso_dataset *owner = dataset->parent ? dataset->parent : dataset;
    ISO_CHECK(!dataset->read, ISO_ERR_UNSUPPORTED,
              "samples of a callback or in a file cannot move to another rank: read them into "
              "memory");
    ISO_CHECK(owner->owned, ISO_ERR_UNSUPPORTED,
              "samples in borrowed arrays cannot move to another rank: let "
              "iso_dataset_create_arrays copy them");
    return ISO_OK;
}

static void plan_rounds(iso_shuffle *self) {
    const iso_dataset *set = self->dataset;
    int64_t half = iso__larger(set->shards.least / 2, 1);
    self->peers = (int)iso__smaller(iso_comm_size(self->comm) - 1, half);
    self->each = self->peers > 0 ? half / self->peers : 0;
    for (int t = 0; t < set->info.inputs + set->info.targets; t++)
        self->sample += set->columns[t].bytes;
    self->block = iso__round_up((size_t)self->each * self->sample, BLOCK_UNIT);
}

static iso_status make_room(iso_shuffle *self) {
    void *memory;
    size_t ranks = (size_t)iso_comm_size(self->comm), blocks = ranks * self->block;
    ISO_TRY(iso__alloc((size_t)self->dataset->info.count * sizeof(int64_t), &memory));
    self->order = memory;
    ISO_TRY(iso__alloc(ranks * sizeof(int64_t), &memory));
    self->offsets = memory;
    ISO_TRY(iso__alloc_zero(blocks, &memory));
    self->send = memory;
    ISO_TRY(iso__alloc_zero(blocks, &memory));
    self->recv = memory;
    return ISO_OK;
}

// Collective. Takes the status of what came before on this rank.
static iso_status set_up(iso_shuffle *self, iso_comm *comm, iso_status status) {
    ISO_TRY(iso_comm_agree(comm, status));
    ISO_TRY(iso_comm_check_same(comm, self->seed, "the seed of iso_shuffle_create"));
    ISO_TRY(iso__comm_create_like(comm, iso_comm_mpi(comm), true, &self->comm));
    plan_rounds(self);
    ISO_TRY(iso_comm_agree(comm, make_room(self)));
    return ISO_OK;
}

iso_status iso_shuffle_create(iso_dataset *dataset, iso_comm *comm, uint64_t seed,
                              iso_shuffle **out) {
    void *memory = NULL;
    iso_shuffle none = {.seed = seed}, *self = &none;
    iso_status status = check_shard(dataset, comm);
    if (status >= 0) status = iso__alloc_zero(sizeof(iso_shuffle), &memory);
    if (status >= 0) {
        self = memory;
        self->seed = seed;
        self->dataset = iso_dataset_retain(dataset);
    }
    status = set_up(self, comm, status);
    if (status < 0 && memory) iso_shuffle_destroy(&self);
    ISO_TRY(status);
    *out = self;
    return ISO_OK;
}

void iso_shuffle_destroy(iso_shuffle **shuffle) {
    iso_shuffle *self = shuffle ? *shuffle : NULL;
    if (!self) return;
    *shuffle = NULL;
    // MPI may still write to the blocks of an exchange that has not come to its end, and its
    // request needs the communicator.
    iso_request_wait(&self->request);
    if (!self->request) {
        iso__free(self->send);
        iso__free(self->recv);
        iso_comm_destroy(&self->comm);
    }
    iso__free(self->order);
    iso__free(self->offsets);
    iso_dataset_destroy(&self->dataset);
    iso__free(self);
}

// ---- A round --------------------------------------------------------------------------------------

static iso_status check_failure(const iso_shuffle *self) {
    ISO_CHECK(!self->failed, ISO_ERR_STATE,
              "an earlier round of the shuffle failed, so no other can follow: end the program");
    return ISO_OK;
}

static iso_status check_readers(const iso_shuffle *self) {
    ISO_CHECK(self->dataset->readers == 0, ISO_ERR_STATE,
              "a loader still reads the shard, whose samples are to be exchanged: end its epoch "
              "first");
    return ISO_OK;
}

static iso_status post_round(iso_shuffle *self) {
    if (self->peers == 0) return ISO_OK;
    return iso__comm_ialltoall(self->comm, self->send, self->recv, self->block,
                               "a shuffle of samples", &self->request);
}

iso_status iso_shuffle_start(iso_shuffle *self) {
    ISO_TRY(check_failure(self));
    ISO_CHECK(!self->under_way, ISO_ERR_STATE,
              "a round of the shuffle is under way: call iso_shuffle_finish first");
    draw_round(self);
    for (int p = 0; p < self->peers; p++)
        copy_block(self, p, block_at(self, self->send, find_peer(self, p, 1)), true);
    // Where one rank could not post, the requests of the others have no end.
    iso_status status = iso_comm_agree(self->comm, post_round(self));
    self->failed = status < 0;
    ISO_TRY(status);
    self->under_way = true;
    return ISO_OK;
}

// All ranks move samples, or none.
iso_status iso_shuffle_finish(iso_shuffle *self) {
    ISO_TRY(check_failure(self));
    ISO_CHECK(self->under_way, ISO_ERR_STATE,
              "no round of the shuffle is under way: call iso_shuffle_start first");
    ISO_TRY(iso_comm_agree(self->comm, check_readers(self)));
    iso_status status = iso_comm_agree(self->comm, iso_request_wait(&self->request));
    self->failed = status < 0 && status != ISO_ERR_TIMEOUT; // a late rank may still come
    ISO_TRY(status);
    for (int p = 0; p < self->peers; p++)
        copy_block(self, p, block_at(self, self->recv, find_peer(self, p, -1)), false);
    self->under_way = false;
    self->rounds++;
    return ISO_OK;
}

int64_t iso_shuffle_rounds(const iso_shuffle *self) { return self->rounds; }

iso_status iso_shuffle_repeat(iso_shuffle *self, int64_t rounds) {
    ISO_CHECK(rounds >= self->rounds, ISO_ERR_ARG,
              "%lld rounds of the shuffle are finished, so %lld cannot be repeated: read the shard "
              "again",
              (long long)self->rounds, (long long)rounds);
    while (self->rounds < rounds) {
        ISO_TRY(iso_shuffle_start(self));
        ISO_TRY(iso_shuffle_finish(self));
    }
    return ISO_OK;
}

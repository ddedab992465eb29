// SPDX-License-Identifier: MIT
// Buffers under data_parallel: synchronises all of them in one exchange.
#include "parallel/parallel_impl.h"

#include "comm/comm_calls.h"
#include "comm/same_lines.h"
#include "tensor/tensor_impl.h"

#include <string.h>

#define LINE 320

iso_status iso__buffers_describe(const iso_buffer_list *list, char **out) {
    void *memory;
    size_t room = (size_t)(list->count + 1) * LINE, used = 0;
    ISO_TRY(iso__alloc_zero(room, &memory));
    *out = memory;
    used += (size_t)snprintf(*out, LINE, "the number of buffers: %d\n", list->count);
    for (int i = 0; i < list->count; i++) {
        const iso_tensor *t = list->item[i]->value;
        char shape[48];
        iso__shape_text(t->ndim, t->shape, shape, sizeof(shape));
        used += (size_t)snprintf(*out + used, LINE, "buffer %d: %.192s %s %s\n", i, list->name[i],
                                 shape, iso_dtype_name(t->dtype));
    }
    return ISO_OK;
}

uint64_t iso__buffers_fingerprint(const iso_buffer_list *list) {
    uint64_t hash = ISO_HASH_START;
    for (int i = 0; i < list->count; i++) {
        const iso_tensor *t = list->item[i]->value;
        hash = iso__hash(hash, list->name[i], strlen(list->name[i]) + 1);
        hash = iso__hash(hash, t->shape, (size_t)t->ndim * sizeof(t->shape[0]));
    }
    return hash;
}

iso_status iso__buffers_broadcast(iso_comm *comm, const iso_buffer_list *list) {
    iso__tensor_batch batch = {.comm = comm};
    for (int i = 0; i < list->count; i++)
        ISO_TRY(iso__tensor_batch_add(&batch, list->item[i]->value));
    return iso__tensor_batch_end(&batch);
}

static bool is_count(const iso_tensor *t) { return t->dtype == ISO_I64; }

static size_t count_elements(const iso_buffer_list *list, bool counts) {
    size_t sum = 0;
    for (int i = 0; i < list->count; i++)
        if (is_count(list->item[i]->value) == counts) sum += (size_t)list->item[i]->value->count;
    return sum;
}

// Processes the memory of one buffer, at `packed` in the packed array. Returns the number of bytes
// that the buffer takes there.
typedef size_t (*visit)(const iso_tensor *t, void *data, void *packed,
                        const iso__buffer_sync *sync);

static iso_status for_each(const iso__buffer_sync *sync, iso_access access, visit each) {
    char *packed = sync->packed;
    for (int i = 0; i < sync->list->count; i++) {
        iso_tensor *t = sync->list->item[i]->value;
        void *data;
        ISO_TRY(iso_tensor_map(t, access, &data));
        packed += each(t, data, packed, sync);
        ISO_TRY(iso_tensor_unmap(t));
    }
    return ISO_OK;
}

// ---- Rank 0's -------------------------------------------------------------------------------------

static size_t put_bytes(const iso_tensor *t, void *data, void *packed,
                        const iso__buffer_sync *sync) {
    (void)sync;
    memcpy(packed, data, iso__tensor_bytes(t));
    return iso__tensor_bytes(t);
}

static size_t take_bytes(const iso_tensor *t, void *data, void *packed,
                         const iso__buffer_sync *sync) {
    (void)sync;
    memcpy(data, packed, iso__tensor_bytes(t));
    return iso__tensor_bytes(t);
}

static iso_status broadcast_buffers(const iso__buffer_sync *sync) {
    bool root = iso_comm_rank(sync->comm) == sync->root;
    if (root) ISO_TRY(for_each(sync, ISO_READ, put_bytes));
    ISO_TRY(iso_comm_bcast(sync->comm, sync->packed, sync->bytes, sync->root));
    return root ? ISO_OK : for_each(sync, ISO_WRITE, take_bytes);
}

// ---- The mean, and the largest count --------------------------------------------------------------

// A sum can also compute the maximum of counts, if each rank has its own place in the array. A
// count travels as two halves, which are exact in double.
static size_t put_counts(const iso_tensor *t, const int64_t *count, double *packed,
                         const iso_comm *comm) {
    size_t n = 2 * (size_t)t->count, all = n * (size_t)iso_comm_size(comm);
    memset(packed, 0, all * sizeof(double));
    packed += n * (size_t)iso_comm_rank(comm);
    for (int64_t i = 0; i < t->count; i++) {
        packed[2 * i] = (double)(count[i] >> 32);
        packed[2 * i + 1] = (double)(count[i] & 0xffffffff);
    }
    return all * sizeof(double);
}

static size_t take_counts(const iso_tensor *t, int64_t *count, const double *packed,
                          const iso_comm *comm) {
    size_t n = 2 * (size_t)t->count, all = n * (size_t)iso_comm_size(comm);
    for (int64_t i = 0; i < t->count; i++) {
        count[i] = INT64_MIN;
        for (size_t at = 2 * (size_t)i; at < all; at += n) {
            int64_t c = (int64_t)packed[at] * ((int64_t)1 << 32) + (int64_t)packed[at + 1];
            if (c > count[i]) count[i] = c;
        }
    }
    return all * sizeof(double);
}

static size_t put_numbers(const iso_tensor *t, void *data, void *packed,
                          const iso__buffer_sync *sync) {
    double *to = packed;
    if (is_count(t)) return put_counts(t, data, packed, sync->comm);
    for (int64_t i = 0; i < t->count; i++)
        to[i] =
            sync->weight * (t->dtype == ISO_F64 ? ((double *)data)[i] : (double)((float *)data)[i]);
    return (size_t)t->count * sizeof(double);
}

static size_t take_numbers(const iso_tensor *t, void *data, void *packed,
                           const iso__buffer_sync *sync) {
    const double *from = packed;
    double factor = 1 / (sync->request_made ? sync->sent_total : sync->total);
    if (is_count(t)) return take_counts(t, data, packed, sync->comm);
    for (int64_t i = 0; i < t->count; i++) {
        if (t->dtype == ISO_F64)
            ((double *)data)[i] = from[i] * factor;
        else
            ((float *)data)[i] = (float)(from[i] * factor);
    }
    return (size_t)t->count * sizeof(double);
}

static iso_status average_buffers(const iso__buffer_sync *sync) {
    ISO_TRY(for_each(sync, ISO_READ, put_numbers));
    ISO_TRY(
        iso_comm_allreduce_f64(sync->comm, sync->packed, sync->bytes / sizeof(double), ISO_SUM));
    return for_each(sync, ISO_WRITE, take_numbers);
}

// ---- Modes ----------------------------------------------------------------------------------------

static size_t packed_bytes(const iso__buffer_sync *sync) {
    const iso_buffer_list *list = sync->list;
    size_t bytes = 0, places = 2 * (size_t)iso_comm_size(sync->comm);
    if (sync->config.mode == ISO_BUFFERS_AVERAGE)
        return (count_elements(list, false) + count_elements(list, true) * places) * sizeof(double);
    for (int i = 0; i < list->count; i++) bytes += iso__tensor_bytes(list->item[i]->value);
    return bytes;
}

// Broadcasts that do not block have whole blocks of this size.
enum { BLOCK = 64 };

static size_t round_up(size_t bytes) { return (bytes + BLOCK - 1) / BLOCK * BLOCK; }

static iso_status check_config(const iso_buffer_config *c) {
    ISO_CHECK((int)c->mode >= 0 && c->mode <= ISO_BUFFERS_NONE, ISO_ERR_ARG,
              "unknown mode %d for buffers", (int)c->mode);
    ISO_CHECK((int)c->when >= 0 && c->when <= ISO_BUFFERS_AFTER_FORWARD, ISO_ERR_ARG,
              "unknown value %d of buffers.when", (int)c->when);
    return ISO_OK;
}

iso_status iso__buffer_sync_create(iso_comm *comm, const iso_buffer_list *list,
                                   const iso_buffer_config *config, iso__buffer_sync *out) {
    iso__buffer_sync sync = {.comm = comm,
                             .list = list,
                             .config = *config,
                             .due = true,
                             .weight = 1,
                             .total = iso_comm_size(comm)};
    iso_status status = check_config(config);
    bool alone = iso_comm_size(comm) == 1 || list->count == 0;
    if (status == ISO_OK && !alone && config->mode != ISO_BUFFERS_NONE && !config->function) {
        sync.bytes = packed_bytes(&sync);
        status = iso__alloc_zero(round_up(sync.bytes), &sync.packed);
    }
    *out = sync;
    ISO_TRY(iso_comm_agree(comm, status));
    static const char *const mode[] = {"average", "rank0", "none"};
    static const char *const when[] = {"at evaluation", "before forward", "after backward",
                                       "on call", "after forward"};
    char settings[160];
    snprintf(settings, sizeof(settings),
             "config.buffers.mode: %s\nconfig.buffers.when: %s\nconfig.buffers.function: %s\n",
             mode[config->mode], when[config->when], config->function ? "given" : "NULL");
    return iso__comm_check_lines(comm, &(iso__lines){.settings = settings});
}

bool iso__buffer_sync_destroy(iso__buffer_sync *sync) {
    if (iso__buffer_sync_finish(sync) < 0)
        iso__log(ISO_LOG_ERROR, "while synchronising buffers: %s", iso_last_error()->message);
    if (sync->request) return false;
    iso__free(sync->packed);
    *sync = (iso__buffer_sync){0};
    return true;
}

void iso__buffer_sync_weigh(iso__buffer_sync *sync, double weight, double total, int root) {
    sync->weight = weight;
    sync->total = total;
    sync->root = root;
}

// ---- Without blocking -----------------------------------------------------------------------------

// Sends this rank's buffers as they are now.
static iso_status post_buffers(iso__buffer_sync *sync) {
    bool root = iso_comm_rank(sync->comm) == sync->root;
    bool average = sync->config.mode == ISO_BUFFERS_AVERAGE;
    if (average || root) ISO_TRY(for_each(sync, ISO_READ, average ? put_numbers : put_bytes));
    if (average) {
        iso__count_sum(&sync->traffic, sync->comm, sync->bytes);
        return iso_comm_iallreduce(sync->comm, sync->packed, sync->bytes / sizeof(double), ISO_F64,
                                   "buffers", &sync->request);
    }
    if (root) iso__count_blocks(&sync->traffic, sync->comm, sync->bytes);
    return iso__comm_ibcast(sync->comm, sync->packed, round_up(sync->bytes), sync->root, "buffers",
                            &sync->request);
}

// Buffers that a function synchronises, or that do not travel, are not sent here.
static iso_status start_sync(iso__buffer_sync *sync) {
    ISO_TRY(iso__buffer_sync_finish(sync));
    if (!sync->packed) return iso__buffer_sync_run(sync);
    sync->sent_total = sync->total;
    sync->sent_root = sync->root;
    ISO_TRY(post_buffers(sync));
    sync->request_made = true;
    return ISO_OK;
}

iso_status iso__buffer_sync_finish(iso__buffer_sync *sync) {
    if (!sync->request_made) return ISO_OK;
    iso_status status = iso_request_wait(&sync->request);
    if (status == ISO_OK && sync->config.mode == ISO_BUFFERS_AVERAGE)
        status = for_each(sync, ISO_WRITE, take_numbers);
    else if (status == ISO_OK && iso_comm_rank(sync->comm) != sync->sent_root)
        status = for_each(sync, ISO_WRITE, take_bytes);
    sync->request_made = sync->request != NULL; // after a time-out it is still under way
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Now ------------------------------------------------------------------------------------------

iso_status iso__buffer_sync_run(iso__buffer_sync *sync) {
    const iso_buffer_config *c = &sync->config;
    ISO_TRY(iso__buffer_sync_finish(sync));
    if (c->mode == ISO_BUFFERS_NONE || sync->list->count == 0) return ISO_OK;
    if (c->function) return c->function(sync->list, sync->comm, c->user);
    if (!sync->packed) return ISO_OK; // one rank
    if (c->mode == ISO_BUFFERS_AVERAGE) {
        ISO_TRY(average_buffers(sync));
        iso__count_sum(&sync->traffic, sync->comm, sync->bytes);
        return ISO_OK;
    }
    ISO_TRY(broadcast_buffers(sync));
    if (iso_comm_rank(sync->comm) == sync->root)
        iso__count_blocks(&sync->traffic, sync->comm, sync->bytes);
    return ISO_OK;
}

iso_status iso__buffer_sync_at(iso__buffer_sync *sync, iso_buffer_when now) {
    iso_buffer_when when = sync->config.when;
    // The buffers of the last forward are not synchronised yet.
    if (now == ISO_BUFFERS_AT_EVALUATION && when == ISO_BUFFERS_BEFORE_FORWARD) when = now;
    if (now == ISO_BUFFERS_AT_EVALUATION) ISO_TRY(iso__buffer_sync_finish(sync));
    if (when != now) return ISO_OK;
    if (when == ISO_BUFFERS_AFTER_FORWARD) return start_sync(sync);
    iso_traffic before = sync->traffic;
    iso_status status = iso__buffer_sync_run(sync);
    if (now == ISO_BUFFERS_AT_EVALUATION) sync->traffic = before;
    return status;
}

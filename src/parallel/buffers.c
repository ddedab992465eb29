// Buffers under data_parallel: equal when training starts, and again in evaluation.
#include "parallel/parallel_impl.h"

#include "tensor/tensor_impl.h"

#include <isotherm/comm.h>
#include <string.h>

uint64_t iso__buffers_fingerprint(const iso_buffer_list *list) {
    uint64_t hash = ISO_HASH_START;
    for (int i = 0; i < list->count; i++) {
        const iso_tensor *t = list->item[i]->value;
        int64_t numbers[2] = {t->dtype, t->ndim};
        hash = iso__hash(hash, list->name[i], strlen(list->name[i]) + 1);
        hash = iso__hash(hash, numbers, sizeof(numbers));
        hash = iso__hash(hash, t->shape, (size_t)t->ndim * sizeof(t->shape[0]));
    }
    return hash;
}

iso_status iso__buffers_broadcast(iso_comm *comm, const iso_buffer_list *list) {
    for (int i = 0; i < list->count; i++) {
        iso_tensor *t = list->item[i]->value;
        void *data;
        ISO_TRY(iso_tensor_map(t, ISO_READ_WRITE, &data));
        iso_status status =
            iso_comm_bcast(comm, data, (size_t)t->count * iso_dtype_size(t->dtype), 0);
        ISO_TRY(iso_tensor_unmap(t));
        ISO_TRY(status);
    }
    return ISO_OK;
}

static bool is_count(const iso_tensor *t) { return t->dtype == ISO_I64; }

static size_t elements(const iso_buffer_list *list, bool counts) {
    size_t sum = 0;
    for (int i = 0; i < list->count; i++)
        if (is_count(list->item[i]->value) == counts) sum += (size_t)list->item[i]->value->count;
    return sum;
}

static void move_float(const iso_tensor *t, void *data, double *packed, double factor, bool out) {
    for (int64_t i = 0; i < t->count; i++) {
        float *f = (float *)data + i;
        double *d = (double *)data + i;
        if (out)
            packed[i] = t->dtype == ISO_F64 ? *d : (double)*f;
        else if (t->dtype == ISO_F64)
            *d = packed[i] * factor;
        else
            *f = (float)(packed[i] * factor);
    }
}

// Buffers to one array (out) or back, times factor unless they count.
static iso_status move(const iso_buffer_list *list, bool counts, void *packed, double factor,
                       bool out) {
    for (int i = 0; i < list->count; i++) {
        iso_tensor *t = list->item[i]->value;
        if (is_count(t) != counts) continue;
        void *data;
        ISO_TRY(iso_tensor_map(t, out ? ISO_READ : ISO_WRITE, &data));
        if (counts)
            memcpy(out ? packed : data, out ? data : packed, (size_t)t->count * sizeof(int64_t));
        else
            move_float(t, data, packed, factor, out);
        ISO_TRY(iso_tensor_unmap(t));
        packed = (double *)packed + t->count; // both kinds have 8 bytes
    }
    return ISO_OK;
}

static iso_status reduce(iso_comm *comm, const iso_buffer_list *list, bool counts, void *packed) {
    size_t n = elements(list, counts);
    if (n == 0) return ISO_OK;
    ISO_TRY(move(list, counts, packed, 1, true));
    if (counts)
        ISO_TRY(iso_comm_allreduce_i64(comm, packed, n, ISO_MAX));
    else
        ISO_TRY(iso_comm_allreduce_f64(comm, packed, n, ISO_SUM));
    return move(list, counts, packed, 1 / (double)iso_comm_size(comm), false);
}

iso_status iso__buffers_average(iso_comm *comm, const iso_buffer_list *list) {
    size_t floats = elements(list, false), counts = elements(list, true);
    if (iso_comm_size(comm) == 1 || floats + counts == 0) return ISO_OK;
    void *packed;
    ISO_TRY(iso__alloc((floats > counts ? floats : counts) * sizeof(double), &packed));
    iso_status status = reduce(comm, list, false, packed);
    if (status == ISO_OK) status = reduce(comm, list, true, packed);
    iso__free(packed);
    ISO_TRY(status);
    return ISO_OK;
}

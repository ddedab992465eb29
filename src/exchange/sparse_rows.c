// SPDX-License-Identifier: MIT
// Finds, packs and adds the non-zero rows of sparse buckets.
#include "exchange/sparse_rows.h"

#include <string.h>

typedef struct head {
    uint64_t rank, found; // found: non-zero rows; more than the limit: some are not in the block
} head;

static size_t row_bytes(const iso__bucket *b) {
    return b->tensor[0].row * iso_dtype_size(b->dtype);
}

static size_t index_bytes(const iso__bucket *b) {
    return iso__round_up(b->sparse_rows * sizeof(uint32_t), sizeof(uint64_t));
}

size_t iso__rows_bytes(const iso__bucket *b) {
    size_t rows = iso__round_up(b->sparse_rows * row_bytes(b), sizeof(uint64_t));
    return sizeof(head) + index_bytes(b) + rows;
}

size_t iso__rows_count(const iso__bucket *b) { return b->tensor[0].count / b->tensor[0].row; }

// ---- One block --------------------------------------------------------------------------------------

static bool is_zero(const char *row, size_t bytes) {
    return row[0] == 0 && memcmp(row, row + 1, bytes - 1) == 0;
}

static void scale_row(const iso__bucket *b, const void *from, double factor, void *to) {
    const float *x = from;
    const double *x64 = from;
    float *y = to;
    double *y64 = to;
    if (b->dtype == ISO_F64)
        for (size_t k = 0; k < b->tensor[0].row; k++) y64[k] = x64[k] * factor;
    else
        for (size_t k = 0; k < b->tensor[0].row; k++) y[k] = x[k] * (float)factor;
}

void iso__rows_write(const iso__bucket *b, const void *gradient, double factor, int rank,
                     void *block) {
    const char *row = gradient;
    uint32_t *index = (uint32_t *)(void *)((char *)block + sizeof(head));
    char *out = (char *)index + index_bytes(b);
    size_t rows = iso__rows_count(b), bytes = row_bytes(b), found = 0;
    for (size_t i = 0; i < rows; i++, row += bytes) {
        if (is_zero(row, bytes) || found++ >= b->sparse_rows) continue;
        *index++ = (uint32_t)i;
        scale_row(b, row, factor, out);
        out += bytes;
    }
    *(head *)block = (head){(uint64_t)rank, found};
}

// ---- Blocks of all ranks ----------------------------------------------------------------------------

typedef struct block {
    const head *head;
    const uint32_t *index;
    const char *row;
} block;

static block block_of(const iso__bucket *b, const void *blocks, int rank) {
    const char *at = (const char *)blocks + (size_t)rank * iso__rows_bytes(b);
    const char *index = at + sizeof(head);
    return (block){(const void *)at, (const void *)index, index + index_bytes(b)};
}

iso_status iso__rows_check(const iso__bucket *b, const void *blocks, int ranks) {
    for (int r = 0; r < ranks; r++) {
        const head *h = block_of(b, blocks, r).head;
        ISO_CHECK(h->found <= b->sparse_rows, ISO_ERR_ARG,
                  "the gradient of \"%s\" has %llu non-zero rows on rank %llu, but its sparse_rows "
                  "is %zu: give the largest number of rows that one exchange can have, or 0 to "
                  "exchange the whole gradient",
                  b->tensor[0].name, (unsigned long long)h->found, (unsigned long long)h->rank,
                  b->sparse_rows);
    }
    return ISO_OK;
}

static void add_row(const iso__bucket *b, const void *from, void *to) {
    const float *x = from;
    const double *x64 = from;
    float *y = to;
    double *y64 = to;
    if (b->dtype == ISO_F64)
        for (size_t k = 0; k < b->tensor[0].row; k++) y64[k] += x64[k];
    else
        for (size_t k = 0; k < b->tensor[0].row; k++) y[k] += x[k];
}

static void add_zeros(const iso__bucket *b, void *to) {
    float *y = to;
    double *y64 = to;
    if (b->dtype == ISO_F64)
        for (size_t k = 0; k < b->tensor[0].row; k++) y64[k] += 0.0;
    else
        for (size_t k = 0; k < b->tensor[0].row; k++) y[k] += 0.0F;
}

// A rank that did not send a row has zeros in it. Adding them changes a sum of -0 to +0, wherever
// in the order of the ranks they are.
static void finish_rows(const iso__bucket *b, const block *from, int ranks, uint32_t *seen,
                        char *gradient) {
    for (size_t k = 0; k < from->head->found; k++) {
        uint32_t i = from->index[k];
        if (seen[i] > 0 && seen[i] < (uint32_t)ranks) add_zeros(b, gradient + i * row_bytes(b));
        seen[i] = 0;
    }
}

void iso__rows_add(const iso__bucket *b, const void *blocks, int ranks, uint32_t *seen,
                   void *gradient) {
    size_t bytes = row_bytes(b);
    for (int r = 0; r < ranks; r++) {
        block from = block_of(b, blocks, r);
        for (size_t k = 0; k < from.head->found; k++, from.row += bytes) {
            char *to = (char *)gradient + from.index[k] * bytes;
            if (seen[from.index[k]]++ == 0)
                memcpy(to, from.row, bytes);
            else
                add_row(b, from.row, to);
        }
    }
    for (int r = 0; r < ranks; r++) {
        block from = block_of(b, blocks, r);
        finish_rows(b, &from, ranks, seen, gradient);
    }
}

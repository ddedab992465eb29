// SPDX-License-Identifier: MIT
// Private to src/exchange: the rows of a sparse bucket (iso__bucket.sparse_rows) that travel. Pure
// functions. A rank sends a block: a head, the numbers of its non-zero rows, and these rows.
#ifndef ISO_SPARSE_ROWS_H
#define ISO_SPARSE_ROWS_H

#include "exchange/transport.h"

// The bytes of a block: a multiple of 8. They do not depend on how many rows are non-zero.
size_t iso__rows_bytes(const iso__bucket *b);
// The rows of the bucket's matrix.
size_t iso__rows_count(const iso__bucket *b);
// Writes the block of a rank: the rows in which a bit is set, each multiplied by `factor`. A row of
// -0 is such a row, so that sums have the bits of dense ones. Counts all of these rows, also those
// above the limit.
void iso__rows_write(const iso__bucket *b, const void *gradient, double factor, int rank,
                     void *block);
// ISO_ERR_ARG if a rank has more rows than the limit; names the first such rank.
iso_status iso__rows_check(const iso__bucket *b, const void *blocks, int ranks);
// Sets the rows of all blocks, one for each rank, to their sums in the order of the ranks. The
// other rows of gradient must be 0. seen: [iso__rows_count], 0 before and after.
void iso__rows_add(const iso__bucket *b, const void *blocks, int ranks, uint32_t *seen,
                   void *gradient);

#endif

// SPDX-License-Identifier: MIT
// Reads all samples of a batch at once, from a data set whose samples are in a file.
#include "data/data_impl.h"

#include <stdlib.h>

static int compare_numbers(const void *a, const void *b) {
    const iso__pick *left = a, *right = b;
    if (left->number != right->number) return left->number < right->number ? -1 : 1;
    return left->place < right->place ? -1 : left->place > right->place;
}

// In the order of the file, so that it is read in one direction, and what lies together is read
// together.
iso_status iso__dataset_read_batch(const iso_dataset *self, const iso__transform *transform,
                                   const int64_t *indices, int64_t n, iso__pick *picks,
                                   void *const *arrays) {
    for (int64_t i = 0; i < n; i++)
        picks[i] = (iso__pick){
            .number = self->indices ? self->indices[indices[i]] : indices[i],
            .place = i,
            .crop = transform->crop,
            .random = transform->crop > 0 ? iso__transform_random_crop(transform, indices[i]) : 0};
    qsort(picks, (size_t)n, sizeof(*picks), compare_numbers);
    return self->reader->read(self->user, picks, n, arrays);
}

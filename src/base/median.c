// SPDX-License-Identifier: MIT
// The median of measured times.
#include "base/base.h"

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double iso__median(double *numbers, int count) {
    qsort(numbers, (size_t)count, sizeof(*numbers), compare_numbers);
    return numbers[count / 2];
}

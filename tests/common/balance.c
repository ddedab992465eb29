// SPDX-License-Identifier: MIT
// Checks at the end of a test that the library has freed everything.
#include "common/balance.h"

#include <isotherm/status.h>
#include <stdlib.h>

void balance_check(void) {
    long long blocks, bytes;
    iso_memory_balance(&blocks, &bytes, NULL);
    if (blocks == 0) return;
    fprintf(stderr, "%lld blocks (%lld bytes) of the library were not freed\n", blocks, bytes);
    abort();
}

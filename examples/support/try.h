// SPDX-License-Identifier: MIT
// Forwards errors in programs.
#ifndef EXAMPLES_TRY_H
#define EXAMPLES_TRY_H

#include <isotherm/status.h>

// Returns from the function if expr is an error; ISO_PENDING passes as success.
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        iso_status try_status_ = (expr);                                                           \
        if (try_status_ < 0) return try_status_;                                                   \
    } while (0)

#endif

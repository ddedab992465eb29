// SPDX-License-Identifier: MIT
// Private to the library: ranks that must all say the same, in lines of text.
#ifndef ISO_SAME_LINES_H
#define ISO_SAME_LINES_H

#include "base/base.h"

#include <isotherm/comm.h>

// What one rank says; borrowed for the call. Lines end in "\n". Messages show at most 319
// characters of a line, and 80 of a value.
typedef struct iso__lines {
    const char *list;     // lines of which the order counts; NULL: none
    const char *element;  // what a line of the list describes: "parameter"
    const char *settings; // lines "NAME: VALUE"; NULL: none
    uint64_t further;     // a hash of what the lines leave out...
    const char *omitted;  // ...and the words for it: "names or shapes"; NULL: "settings"
} iso__lines;

// Collective. ISO_ERR_MISMATCH on every rank unless all say the same. The message names the first
// rank that differs from what most say, and the first line of the list that differs; where the
// lists are equal, it names the settings that differ.
iso_status iso__comm_check_lines(iso_comm *comm, const iso__lines *mine);

#endif

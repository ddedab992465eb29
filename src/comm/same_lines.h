// SPDX-License-Identifier: MIT
// Private to the library: checks that all ranks have the same lines of text.
#ifndef ISO_SAME_LINES_H
#define ISO_SAME_LINES_H

#include "base/base.h"

#include <isotherm/comm.h>

// What one rank has; borrowed for the call. Lines end in "\n". Messages show at most 319 characters
// of a line, and 80 of a value.
typedef struct iso__lines {
    const char *list;     // lines whose order matters; NULL: none
    const char *element;  // what a line of the list describes: "parameter"
    const char *settings; // lines "NAME: VALUE"; NULL: none
    uint64_t further;     // a hash of what the lines leave out...
    const char *omitted;  // ...and the words for it: "names or shapes"; NULL: "settings"
} iso__lines;

// Collective. ISO_ERR_MISMATCH on every rank unless all ranks have the same. The message names the
// first rank that differs from the majority, and the first line of the list that differs; if the
// lists are equal, it names the settings that differ.
iso_status iso__comm_check_lines(iso_comm *comm, const iso__lines *mine);

#endif

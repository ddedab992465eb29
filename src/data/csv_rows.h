// SPDX-License-Identifier: MIT
// Private to src/data: a text file as rows of cells (RFC 4180; a cell may not contain a line end).
#ifndef ISO_CSV_ROWS_H
#define ISO_CSV_ROWS_H

#include "base/base.h"

typedef struct iso__cell {
    char *text; // without its quotes; not ended by a 0
    size_t length;
} iso__cell;

typedef struct iso__csv {
    const char *path; // borrowed
    char delimiter;
    char *text; // of the whole file
    size_t bytes;
    char *next;       // where the next line begins
    int64_t line;     // of the last row, from 1
    int columns;      // of each row
    iso__cell *cells; // [columns], the last row
} iso__csv;

// Reads a plain or gzip file. `path` is borrowed until close. ISO_ERR_IO: missing or unreadable;
// ISO_ERR_FORMAT: empty.
iso_status iso__csv_open(const char *path, char delimiter, iso__csv *out);
void iso__csv_close(iso__csv *csv);
// The number of remaining rows.
int64_t iso__csv_rows_left(const iso__csv *csv);
// Cuts the next row into cells; *more false: there is none. Skips empty lines. ISO_ERR_FORMAT, with
// file and line: a row of another length than the first one, or a quote that is not closed.
iso_status iso__csv_next(iso__csv *csv, bool *more);

#endif

// SPDX-License-Identifier: MIT
// Cuts a CSV file into rows and cells, and names the line of an error.
#include "data/csv_rows.h"

#include "data/data_impl.h"

#include <string.h>

// ---- The file -----------------------------------------------------------------------------------

#define FIRST_READ ((size_t)1 << 20) // of contents whose size is not known beforehand

static iso_status read_all(iso__source *source, iso__csv *out) {
    iso_status status;
    int64_t size = iso__source_size(source);
    size_t room = size > 0 ? (size_t)size + 1 : FIRST_READ, got = 0;
    void *text;
    ISO_TRY(iso__alloc(room, &text));
    for (;;) {
        size_t now;
        ISO_TRY_GOTO(iso__source_read(source, (char *)text + got, room - got, &now));
        got += now;
        if (got < room) break;
        ISO_TRY_GOTO(iso__realloc(&text, got, 2 * room));
        room *= 2;
    }
    out->text = text;
    out->bytes = got;
    return ISO_OK;
fail:
    iso__free(text);
    return status;
}

// What some programs write before UTF-8.
static size_t mark_length(const iso__csv *csv) {
    return csv->bytes >= 3 && memcmp(csv->text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

iso_status iso__csv_open(const char *path, char delimiter, iso__csv *out) {
    iso_status status;
    iso__csv csv = {.path = path, .delimiter = delimiter};
    iso__source *source;
    ISO_TRY(iso__source_open(path, &source));
    ISO_TRY_GOTO(read_all(source, &csv));
    csv.next = csv.text + mark_length(&csv);
    ISO_CHECK_GOTO(iso__csv_rows_left(&csv) > 0, ISO_ERR_FORMAT, "%s is empty", path);
    iso__source_close(&source);
    *out = csv;
    return ISO_OK;
fail:
    iso__source_close(&source);
    iso__csv_close(&csv);
    return status;
}

void iso__csv_close(iso__csv *csv) {
    iso__free(csv->text);
    iso__free(csv->cells);
    *csv = (iso__csv){0};
}

// ---- Lines --------------------------------------------------------------------------------------

// The line from `begin`, without its end, which is LF, CR LF or the end of the file.
static char *end_of_line(const iso__csv *csv, char *begin, char **next) {
    char *file_end = csv->text + csv->bytes;
    char *end = memchr(begin, '\n', (size_t)(file_end - begin));
    *next = end ? end + 1 : file_end;
    if (!end) end = file_end;
    return end > begin && end[-1] == '\r' ? end - 1 : end;
}

int64_t iso__csv_rows_left(const iso__csv *csv) {
    int64_t rows = 0;
    for (char *at = csv->next, *next; at < csv->text + csv->bytes; at = next)
        rows += end_of_line(csv, at, &next) > at;
    return rows;
}

// ---- Cells --------------------------------------------------------------------------------------

// Reads a quoted cell: removes its quotes, keeps one of two in a row, and moves *at behind it.
static iso_status cut_quoted(const iso__csv *csv, int column, char **at, const char *end,
                             iso__cell *out) {
    char *from = *at + 1, *to = from;
    out->text = to;
    for (; from < end; *to++ = *from++) {
        if (*from != '"') continue;
        if (from + 1 == end || from[1] != '"') break;
        from++;
    }
    ISO_CHECK(from < end, ISO_ERR_FORMAT,
              "%s:%lld: column %d begins with a quote that is not closed in this line", csv->path,
              (long long)csv->line, column + 1);
    *at = from + 1;
    ISO_CHECK(*at == end || **at == csv->delimiter, ISO_ERR_FORMAT,
              "%s:%lld: column %d goes on behind its closing quote", csv->path,
              (long long)csv->line, column + 1);
    out->length = (size_t)(to - out->text);
    return ISO_OK;
}

static iso_status cut_cell(const iso__csv *csv, int column, char **at, char *end, iso__cell *out) {
    if (*at < end && **at == '"') return cut_quoted(csv, column, at, end, out);
    char *stop = memchr(*at, csv->delimiter, (size_t)(end - *at));
    if (!stop) stop = end;
    *out = (iso__cell){*at, (size_t)(stop - *at)};
    *at = stop;
    return ISO_OK;
}

// Cuts a row into all of its cells; the array grows in the first one.
static iso_status cut_row(iso__csv *csv, char *at, char *end, int *cells) {
    bool first = csv->columns == 0;
    int count = 0, room = 0;
    for (bool more = true; more; count++) {
        iso__cell cell;
        void *memory = csv->cells;
        ISO_TRY(cut_cell(csv, count, &at, end, &cell));
        if (first) ISO_TRY(iso__grow(&memory, count, &room, sizeof(cell)));
        csv->cells = memory;
        if (first || count < csv->columns) csv->cells[count] = cell;
        more = at++ < end;
    }
    *cells = count;
    return ISO_OK;
}

iso_status iso__csv_next(iso__csv *csv, bool *more) {
    char *begin, *end;
    int cells = 0;
    do {
        *more = csv->next < csv->text + csv->bytes;
        if (!*more) return ISO_OK;
        begin = csv->next;
        end = end_of_line(csv, begin, &csv->next);
        csv->line++;
    } while (end == begin);
    ISO_TRY(cut_row(csv, begin, end, &cells));
    if (csv->columns == 0) csv->columns = cells;
    ISO_CHECK(cells == csv->columns, ISO_ERR_FORMAT,
              "%s:%lld: this row has %d cell%s and the first one has %d: give every row the same "
              "number",
              csv->path, (long long)csv->line, cells, cells == 1 ? "" : "s", csv->columns);
    return ISO_OK;
}

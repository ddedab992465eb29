// SPDX-License-Identifier: MIT
// Creates a data set from the columns of a CSV file.
#include "data/csv_rows.h"
#include "data/data_impl.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

enum { CELL_ROOM = 80, LIST_ROOM = 200 };

// What becomes of a column.
typedef enum use { INPUT, TARGET, IGNORED } use;

typedef struct table {
    const iso_csv_config *config;
    iso__csv csv;
    char **names; // [columns], of the header; NULL: there is none
    use *uses;    // [columns]
    int *places;  // [columns], among the inputs or the targets of a sample
    int inputs, targets;
    void *arrays[2]; // inputs and targets of all samples
} table;

// ---- Names --------------------------------------------------------------------------------------

// Without the blanks around it, ended by a 0, and cut short where there is no room.
static void copy_trimmed(const char *from, size_t length, char *to, size_t room) {
    while (length > 0 && (*from == ' ' || *from == '\t')) from++, length--;
    while (length > 0 && (from[length - 1] == ' ' || from[length - 1] == '\t')) length--;
    if (length >= room) length = room - 1;
    memcpy(to, from, length);
    to[length] = 0;
}

static iso_status keep_names(table *t) {
    void *memory;
    char name[LIST_ROOM];
    ISO_TRY(iso__alloc_zero((size_t)t->csv.columns * sizeof(char *), &memory));
    t->names = memory;
    for (int c = 0; c < t->csv.columns; c++) {
        copy_trimmed(t->csv.cells[c].text, t->csv.cells[c].length, name, sizeof(name));
        ISO_TRY(iso__strdup(name, &t->names[c]));
    }
    return ISO_OK;
}

// "3" or "3 (price)".
static const char *column_text(const table *t, int c, char text[CELL_ROOM]) {
    if (t->names)
        snprintf(text, CELL_ROOM, "%d (%.60s)", c + 1, t->names[c]);
    else
        snprintf(text, CELL_ROOM, "%d", c + 1);
    return text;
}

static iso_status fail_unknown(const table *t, const char *name) {
    char list[LIST_ROOM] = "";
    size_t used = 0;
    if (!t->names)
        return ISO_FAIL(ISO_ERR_ARG,
                        "%s has no column \"%s\": without a header, columns are numbers from 1 to "
                        "%d",
                        t->csv.path, name, t->csv.columns);
    for (int c = 0; c < t->csv.columns && used < sizeof(list); c++)
        used +=
            (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", c ? ", " : "", t->names[c]);
    return ISO_FAIL(ISO_ERR_ARG, "%s has no column \"%s\": its columns are %s%s", t->csv.path, name,
                    list, used < sizeof(list) ? "" : "...");
}

// A name of the header, or else a number from 1.
static iso_status find_column(const table *t, const char *name, int *out) {
    int found = -1;
    for (int c = 0; t->names && c < t->csv.columns; c++) {
        if (strcmp(t->names[c], name) != 0) continue;
        ISO_CHECK(found < 0, ISO_ERR_ARG,
                  "%s has two columns \"%s\", %d and %d: give the number of one", t->csv.path, name,
                  found + 1, c + 1);
        found = c;
    }
    if (found < 0) {
        char *end;
        long number = strtol(name, &end, 10);
        if (end == name || *end || number < 1 || number > t->csv.columns)
            return fail_unknown(t, name);
        found = (int)number - 1;
    }
    *out = found;
    return ISO_OK;
}

// ---- Which columns ------------------------------------------------------------------------------

// The next name of a list that commas separate; false: it has ended.
static bool next_name(const char **list, char name[LIST_ROOM]) {
    const char *at = *list;
    if (!at || !*at) return false;
    size_t length = strcspn(at, ",");
    *list = at + length + (at[length] == ',');
    copy_trimmed(at, length, name, LIST_ROOM);
    return true;
}

static iso_status use_columns(table *t, const char *list, use what) {
    char name[LIST_ROOM], text[CELL_ROOM];
    while (next_name(&list, name)) {
        int c = 0;
        ISO_TRY(find_column(t, name, &c));
        ISO_CHECK(t->uses[c] == INPUT, ISO_ERR_ARG, "column %s of %s is listed twice",
                  column_text(t, c, text), t->csv.path);
        t->uses[c] = what;
        if (what == TARGET) t->places[c] = t->targets++;
    }
    return ISO_OK;
}

static iso_status choose_columns(table *t) {
    void *memory;
    char last[CELL_ROOM];
    const char *targets = t->config->targets;
    size_t columns = (size_t)t->csv.columns;
    ISO_TRY(iso__alloc_zero(columns * sizeof(use), &memory));
    t->uses = memory;
    ISO_TRY(iso__alloc_zero(columns * sizeof(int), &memory));
    t->places = memory;
    snprintf(last, sizeof(last), "%d", t->csv.columns);
    if (targets)
        ISO_TRY(use_columns(t, targets, TARGET));
    else
        t->uses[columns - 1] = TARGET, t->targets = 1;
    ISO_TRY(use_columns(t, t->config->ignore, IGNORED));
    for (int c = 0; c < t->csv.columns; c++)
        if (t->uses[c] == INPUT) t->places[c] = t->inputs++;
    ISO_CHECK(
        t->inputs > 0, ISO_ERR_ARG,
        "%s has %d column%s, and none is left for the input: name fewer targets, or check the "
        "delimiter",
        t->csv.path, t->csv.columns, columns == 1 ? "" : "s");
    ISO_CHECK(t->config->classes == 0 || t->targets == 1, ISO_ERR_ARG,
              "%s: labels are one column, but %d targets were named: name one", t->csv.path,
              t->targets);
    return ISO_OK;
}

// ---- Numbers ------------------------------------------------------------------------------------

static iso_status fail_cell(const table *t, int c, const char *why) {
    char column[CELL_ROOM];
    const iso__cell *cell = &t->csv.cells[c];
    return ISO_FAIL(ISO_ERR_FORMAT, "%s:%lld: column %s holds \"%.*s\": %s", t->csv.path,
                    (long long)t->csv.line, column_text(t, c, column),
                    (int)(cell->length < 60 ? cell->length : 60), cell->text, why);
}

// A text that fills the room was cut, and is too long to be a number.
static iso_status read_number(const table *t, int c, double *out) {
    char text[CELL_ROOM], *end;
    const iso__cell *cell = &t->csv.cells[c];
    copy_trimmed(cell->text, cell->length, text, sizeof(text));
    if (!text[0]) return fail_cell(t, c, "give a number, or remove the row or the column");
    double value = strtod(text, &end);
    bool whole =
        *end == 0 && strlen(text) < sizeof(text) - 1 && !memchr(cell->text, 0, cell->length);
    if (!whole && t->csv.line == 1)
        return fail_cell(t, c,
                         "this is not a number: if the first line names the columns, say that "
                         "there is a header");
    if (!whole) return fail_cell(t, c, "this is not a number");
    if (!isfinite(value)) return fail_cell(t, c, "numbers must be finite");
    *out = value;
    return ISO_OK;
}

static iso_status store_number(const table *t, int c, double value, void *array, int64_t i) {
    if (t->config->dtype == ISO_F64) {
        ((double *)array)[i] = value;
        return ISO_OK;
    }
    if (!isfinite((float)value)) return fail_cell(t, c, "this is too large for f32: read f64");
    ((float *)array)[i] = (float)value;
    return ISO_OK;
}

static iso_status store_label(const table *t, int c, double value, int64_t row) {
    char why[CELL_ROOM];
    snprintf(why, sizeof(why), "labels are the numbers 0 to %d", t->config->classes - 1);
    if (value != floor(value) || value < 0 || value >= t->config->classes)
        return fail_cell(t, c, why);
    ((int32_t *)t->arrays[1])[row] = (int32_t)value;
    return ISO_OK;
}

static iso_status store_row(const table *t, int64_t row) {
    for (int c = 0; c < t->csv.columns; c++) {
        double value = 0;
        if (t->uses[c] == IGNORED) continue;
        ISO_TRY(read_number(t, c, &value));
        if (t->uses[c] == INPUT)
            ISO_TRY(store_number(t, c, value, t->arrays[0], row * t->inputs + t->places[c]));
        else if (t->config->classes > 0)
            ISO_TRY(store_label(t, c, value, row));
        else
            ISO_TRY(store_number(t, c, value, t->arrays[1], row * t->targets + t->places[c]));
    }
    return ISO_OK;
}

// ---- The file -----------------------------------------------------------------------------------

static void free_table(table *t) {
    for (int c = 0; t->names && c < t->csv.columns; c++) iso__free(t->names[c]);
    iso__free(t->names);
    iso__free(t->uses);
    iso__free(t->places);
    for (int a = 0; a < 2; a++) iso__free(t->arrays[a]);
    iso__csv_close(&t->csv);
}

// The first row is cut already.
static iso_status store_rows(table *t, int64_t count) {
    bool more = true;
    for (int64_t row = 0; row < count && more; row++) {
        ISO_TRY(store_row(t, row));
        ISO_TRY(iso__csv_next(&t->csv, &more));
    }
    return ISO_OK;
}

static iso_status read_table(table *t, int64_t *count) {
    bool more;
    size_t size = iso_dtype_size(t->config->dtype);
    ISO_TRY(iso__csv_next(&t->csv, &more));
    if (t->config->header) {
        ISO_TRY(keep_names(t));
        ISO_TRY(iso__csv_next(&t->csv, &more));
        ISO_CHECK(more, ISO_ERR_FORMAT, "%s has no rows below its header", t->csv.path);
    }
    ISO_TRY(choose_columns(t));
    *count = iso__csv_rows_left(&t->csv) + 1;
    ISO_TRY(iso__alloc((size_t)*count * (size_t)t->inputs * size, &t->arrays[0]));
    ISO_TRY(iso__alloc((size_t)*count * (size_t)t->targets * size, &t->arrays[1]));
    return store_rows(t, *count);
}

static iso_status check_config(const iso_csv_config *config) {
    ISO_CHECK(config->dtype == ISO_F32 || config->dtype == ISO_F64, ISO_ERR_UNSUPPORTED,
              "a CSV file is read as f32 or f64, not as %s", iso_dtype_name(config->dtype));
    ISO_CHECK(!config->delimiter || (!isalnum((unsigned char)config->delimiter) &&
                                     !strchr("\"\r\n.+-", config->delimiter)),
              ISO_ERR_ARG, "'%c' cannot separate the cells of a CSV file", config->delimiter);
    return ISO_OK;
}

static iso_status make_dataset(table *t, int64_t count, iso_dataset **out) {
    bool labels = t->config->classes > 0;
    iso_tensor_spec tensors[2] = {{t->config->dtype, 1, {t->inputs}},
                                  {t->config->dtype, 1, {t->targets}}};
    if (labels) tensors[1] = (iso_tensor_spec){.dtype = ISO_I32};
    iso_dataset_config config = {.count = count,
                                 .inputs = 1,
                                 .targets = t->targets > 0,
                                 .tensors = tensors,
                                 .classes = t->config->classes};
    void *const arrays[2] = {t->arrays[0], t->arrays[1]};
    t->arrays[0] = NULL;
    if (t->targets > 0) t->arrays[1] = NULL;
    ISO_TRY(iso__dataset_create_take(&config, arrays, out));
    return ISO_OK;
}

iso_status iso_dataset_read_csv(const char *path, const iso_csv_config *config, iso_dataset **out) {
    static const iso_csv_config plain;
    iso_status status;
    int64_t count = 0;
    table t = {.config = config ? config : &plain};
    ISO_TRY(check_config(t.config));
    ISO_TRY(iso__csv_open(path, t.config->delimiter ? t.config->delimiter : ',', &t.csv));
    ISO_TRY_GOTO(read_table(&t, &count));
    ISO_TRY_GOTO(make_dataset(&t, count, out));
    free_table(&t);
    return ISO_OK;
fail:
    free_table(&t);
    return status;
}

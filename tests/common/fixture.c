// SPDX-License-Identifier: MIT
// Reads the golden values of tests/fixtures: named arrays of numbers in plain text.
#include "common/fixture.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ARRAYS 256

typedef struct array {
    char name[64];
    int ndim;
    int64_t shape[ISO_MAX_DIMS];
    int64_t count;
    double *value;
} array;

struct fixture {
    char file[64];
    int count;
    array item[MAX_ARRAYS];
};

// "NAME 3 4 5" after the '@'.
static void parse_head(fixture *f, char *line) {
    cr_assert_lt(f->count, MAX_ARRAYS, "%s: more than %d arrays", f->file, MAX_ARRAYS);
    array *a = &f->item[f->count++];
    char *name = strtok(line, " \n"), *size;
    snprintf(a->name, sizeof(a->name), "%s", name);
    a->count = 1;
    while ((size = strtok(NULL, " \n"))) {
        cr_assert_lt(a->ndim, ISO_MAX_DIMS);
        a->shape[a->ndim++] = strtoll(size, NULL, 10);
        a->count *= a->shape[a->ndim - 1];
    }
    a->value = malloc((size_t)a->count * sizeof(double));
    cr_assert_not_null(a->value);
}

// Appends a line of numbers to the last array, of which `have` are there already.
static int64_t parse_numbers(fixture *f, char *line, int64_t have) {
    array *a = &f->item[f->count - 1];
    for (char *text = strtok(line, " \n"); text; text = strtok(NULL, " \n")) {
        char *end;
        cr_assert_lt(have, a->count, "%s: %s has too many numbers", f->file, a->name);
        a->value[have++] = strtod(text, &end);
        cr_assert(*end == 0, "%s: %s: \"%s\" is no number", f->file, a->name, text);
    }
    return have;
}

static void check_complete(const fixture *f, int64_t have) {
    if (f->count > 0)
        cr_assert_eq(have, f->item[f->count - 1].count, "%s: %s has too few numbers", f->file,
                     f->item[f->count - 1].name);
}

fixture *fixture_open(const char *file) {
    const char *folder = getenv("ISO_TEST_FIXTURES");
    cr_assert_not_null(folder, "set ISO_TEST_FIXTURES to the folder tests/fixtures");
    char path[1024], line[256];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    FILE *in = fopen(path, "r");
    fixture *f = calloc(1, sizeof(*f));
    cr_assert(in && f, "%s cannot be read", path);
    snprintf(f->file, sizeof(f->file), "%s", file);
    int64_t have = 0;
    while (fgets(line, sizeof(line), in)) {
        if (line[0] == '#') continue;
        if (line[0] == '@') {
            check_complete(f, have);
            parse_head(f, line + 1);
            have = 0;
        } else {
            have = parse_numbers(f, line, have);
        }
    }
    check_complete(f, have);
    fclose(in);
    return f;
}

void fixture_close(fixture **f) {
    for (int i = 0; i < (*f)->count; i++) free((*f)->item[i].value);
    free(*f);
    *f = NULL;
}

static const array *find(const fixture *f, const char *prefix, const char *name) {
    char full[64];
    snprintf(full, sizeof(full), "%s%s%s", prefix ? prefix : "", prefix ? "." : "", name);
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->item[i].name, full) == 0) return &f->item[i];
    cr_assert_fail("%s has no array \"%s\"", f->file, full);
    return NULL;
}

const double *fixture_get(fixture *f, const char *prefix, const char *name, int64_t *count) {
    const array *a = find(f, prefix, name);
    if (count) *count = a->count;
    return a->value;
}

static void check_shape(const fixture *f, const array *a, const iso_tensor *tensor) {
    cr_assert_eq(iso_tensor_ndim(tensor), a->ndim, "%s: %s: %d dimensions, not %d", f->file,
                 a->name, iso_tensor_ndim(tensor), a->ndim);
    for (int i = 0; i < a->ndim; i++)
        cr_assert_eq(iso_tensor_shape(tensor)[i], a->shape[i],
                     "%s: %s: dimension %d is %" PRId64 ", not %" PRId64, f->file, a->name, i,
                     iso_tensor_shape(tensor)[i], a->shape[i]);
}

static void write_values(const array *a, iso_tensor *to) {
    void *memory;
    cr_assert_eq(iso_tensor_map(to, ISO_WRITE, &memory), ISO_OK);
    for (int64_t i = 0; i < a->count; i++)
        if (iso_tensor_dtype(to) == ISO_F64)
            ((double *)memory)[i] = a->value[i];
        else
            ((float *)memory)[i] = (float)a->value[i];
    cr_assert_eq(iso_tensor_unmap(to), ISO_OK);
}

iso_tensor *fixture_tensor_of(fixture *f, iso_device *device, iso_dtype dtype, const char *prefix,
                              const char *name) {
    const array *a = find(f, prefix, name);
    iso_tensor *tensor;
    cr_assert_eq(iso_tensor_create(device, dtype, a->ndim, a->shape, &tensor), ISO_OK);
    write_values(a, tensor);
    return tensor;
}

iso_tensor *fixture_tensor(fixture *f, iso_device *device, const char *prefix, const char *name) {
    return fixture_tensor_of(f, device, ISO_F32, prefix, name);
}

void fixture_load(fixture *f, const char *prefix, const char *name, iso_tensor *to) {
    const array *a = find(f, prefix, name);
    check_shape(f, a, to);
    write_values(a, to);
}

void fixture_compare(fixture *f, const char *prefix, const char *name, iso_tensor *tensor,
                     double tolerance) {
    const array *a = find(f, prefix, name);
    void *memory;
    double largest = 0;
    check_shape(f, a, tensor);
    for (int64_t i = 0; i < a->count; i++) largest = fmax(largest, fabs(a->value[i]));
    cr_assert_eq(iso_tensor_map(tensor, ISO_READ, &memory), ISO_OK);
    for (int64_t i = 0; i < a->count; i++) {
        double got = iso_tensor_dtype(tensor) == ISO_F64 ? ((double *)memory)[i]
                                                         : (double)((float *)memory)[i];
        cr_assert(fabs(got - a->value[i]) <= tolerance * largest,
                  "%s: %s[%" PRId64 "] is %.17g, not %.17g (largest %.3g, tolerance %.1g)", f->file,
                  a->name, i, got, a->value[i], largest, tolerance);
    }
    cr_assert_eq(iso_tensor_unmap(tensor), ISO_OK);
}

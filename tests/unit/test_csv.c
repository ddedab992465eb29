// SPDX-License-Identifier: MIT
// CSV files: which columns become what, and every kind of damage with its file and line.
#include "common/balance.h"
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void clean_up(void) {
    scratch_remove();
    balance_check();
}
TestSuite(csv, .fini = clean_up, .timeout = 60);

static iso_status read_text(const char *text, const iso_csv_config *config, iso_dataset **out) {
    return iso_dataset_read_csv(scratch_write("table.csv", text, strlen(text)), config, out);
}

static iso_dataset *read_well(const char *text, const iso_csv_config *config) {
    iso_dataset *out = NULL;
    cr_assert_eq(read_text(text, config, &out), ISO_OK, "%s: %s", text, iso_last_error()->message);
    return out;
}

static void refuse(const char *text, const iso_csv_config *config, iso_status code,
                   const char *words) {
    iso_dataset *dataset = NULL;
    const char *message = iso_last_error()->message;
    iso_status status = read_text(text, config, &dataset);
    cr_assert_eq(status, code, "%s: got %d, message: %s", text, status, message);
    cr_assert(strstr(message, words), "no \"%s\" in: %s", words, message);
    cr_assert(strstr(message, "table.csv"), "no file in: %s", message);
    cr_assert_null(dataset);
}

// The input has `inputs` numbers, which are 1, 2, 3, ... in the first row, 11, 12, ... in the
// second one; the target is their last one.
static void expect_rows(iso_dataset *dataset, int64_t rows, int64_t inputs, int64_t targets) {
    iso_dataset_info info;
    float x[8], y[8];
    void *const room[2] = {x, y};
    iso_dataset_get_info(dataset, &info);
    cr_assert(info.count == rows && info.inputs == 1 && info.classes == 0);
    cr_assert_eq(info.targets, targets > 0);
    cr_assert(info.tensors[0].ndim == 1 && info.tensors[0].shape[0] == inputs);
    cr_assert(targets == 0 || info.tensors[1].shape[0] == targets);
    for (int64_t i = 0; i < rows; i++) {
        cr_assert_eq(iso_dataset_sample(dataset, i, room), ISO_OK);
        for (int64_t k = 0; k < inputs; k++) cr_assert_eq(x[k], (float)(10 * i + k + 1));
        for (int64_t k = 0; k < targets; k++) cr_assert_eq(y[k], (float)(10 * i + inputs + k + 1));
    }
    iso_dataset_destroy(&dataset);
}

static const iso_csv_config with_header = {.header = true};
static const iso_csv_config semicolons = {.delimiter = ';'};

Test(csv, the_last_column_is_the_target) {
    expect_rows(read_well("1,2,3\n11,12,13\n", NULL), 2, 2, 1);
    expect_rows(read_well("a,b,c\n1,2,3\n11,12,13\n", &with_header), 2, 2, 1);
}

Test(csv, lines_end_in_any_of_the_usual_ways) {
    expect_rows(read_well("1,2,3\n11,12,13", NULL), 2, 2, 1);
    expect_rows(read_well("1,2,3\r\n11,12,13\r\n", NULL), 2, 2, 1);
    expect_rows(read_well("a,b,c\r\n1,2,3\r\n11,12,13", &with_header), 2, 2, 1);
    expect_rows(read_well("\n1,2,3\n\n\r\n11,12,13\n\n\n", NULL), 2, 2, 1);
}

Test(csv, cells_may_be_quoted_and_have_blanks_around) {
    expect_rows(read_well("\"1\",\"2\",3\n 11 ,\t12,\"13\"\n", NULL), 2, 2, 1);
    const iso_csv_config named = {.header = true, .targets = "say \"c\""};
    expect_rows(read_well("\"a,b\", b ,\"say \"\"c\"\"\"\n1,2,3\n11,12,13\n", &named), 2, 2, 1);
}

Test(csv, other_delimiters_are_possible) {
    expect_rows(read_well("1;2;3\n11;12;13\n", &semicolons), 2, 2, 1);
    const iso_csv_config tabs = {.delimiter = '\t'};
    expect_rows(read_well("1\t2\t3\n11\t12\t13\n", &tabs), 2, 2, 1);
}

Test(csv, a_mark_of_utf8_is_skipped) {
    const iso_csv_config named = {.header = true, .targets = "c", .ignore = "a"};
    expect_rows(read_well("\xEF\xBB\xBF"
                          "a,b,c\n9,1,2\n9,11,12\n",
                          &named),
                2, 1, 1);
}

Test(csv, columns_are_chosen_by_name_or_number) {
    const iso_csv_config configs[] = {{.header = true, .targets = "y, z", .ignore = "id"},
                                      {.header = true, .targets = "3,1", .ignore = "5"},
                                      {.header = true, .targets = "y,1", .ignore = " id "}};
    for (int i = 0; i < 3; i++)
        expect_rows(read_well("z,x,y,w,id\n4,1,3,2,7\n14,11,13,12,7\n", &configs[i]), 2, 2, 2);
    const iso_csv_config all = {.targets = ""};
    expect_rows(read_well("1,2,3\n11,12,13\n", &all), 2, 3, 0);
    const iso_csv_config year = {.header = true, .targets = "2"}; // a name comes first
    expect_rows(read_well("2,a,b\n3,1,2\n13,11,12\n", &year), 2, 2, 1);
}

// What is ignored may be text.
Test(csv, ignored_columns_are_not_read) {
    const iso_csv_config config = {.ignore = "2"};
    expect_rows(read_well("1,north,2\n11,,12\n", &config), 2, 1, 1);
}

Test(csv, numbers_are_read_to_the_last_bit) {
    const iso_csv_config config = {.dtype = ISO_F64};
    iso_dataset *dataset = read_well("0.1,-1e-300\n+2.5E3,1e300\n", &config);
    double x, y;
    cr_assert_eq(iso_dataset_sample(dataset, 0, (void *const[]){&x, &y}), ISO_OK);
    cr_assert(x == 0.1 && y == -1e-300);
    cr_assert_eq(iso_dataset_sample(dataset, 1, (void *const[]){&x, &y}), ISO_OK);
    cr_assert(x == 2500 && y == 1e300);
    iso_dataset_destroy(&dataset);
    refuse("0.1,1\n2,1e300\n", NULL, ISO_ERR_FORMAT, "too large for f32");
}

Test(csv, labels_are_whole_numbers_below_classes) {
    const iso_csv_config config = {.header = true, .targets = "kind", .classes = 3};
    iso_dataset *dataset = read_well("kind,x\n2,0.5\n0,1.5\n1.0,2.5\n", &config);
    iso_dataset_info info;
    int32_t label;
    float x;
    iso_dataset_get_info(dataset, &info);
    cr_assert(info.classes == 3 && info.tensors[1].dtype == ISO_I32 && info.tensors[1].ndim == 0);
    const int32_t wanted[] = {2, 0, 1};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(iso_dataset_sample(dataset, i, (void *const[]){&x, &label}), ISO_OK);
        cr_assert(label == wanted[i] && x == (float)i + 0.5f);
    }
    iso_dataset_destroy(&dataset);
    refuse("kind,x\n2,0\n3,0\n", &config, ISO_ERR_FORMAT,
           "table.csv:3: column 1 (kind) holds \"3\": labels are the numbers 0 to 2");
    refuse("kind,x\n1.5,0\n", &config, ISO_ERR_FORMAT, "\"1.5\": labels are");
    refuse("kind,x\n-1,0\n", &config, ISO_ERR_FORMAT, "\"-1\": labels are");
    const iso_csv_config two = {.targets = "1,2", .classes = 3};
    refuse("1,2,3\n", &two, ISO_ERR_ARG,
           "labels are one column, but 2 targets were named: name one");
}

// The sum of three times 0.1 is not 0.3; equal numbers have no deviation all the same.
Test(csv, statistics_are_of_each_column) {
    const iso_csv_config config = {.dtype = ISO_F64};
    iso_dataset *dataset = read_well("0,0.1,1\n2,0.1,1\n4,0.1,1\n", &config);
    iso_dataset_info info;
    iso_dataset_get_info(dataset, &info);
    cr_assert(info.channels == 2 && info.mean[0] == 2 && fabs(info.std[0] - sqrt(8.0 / 3)) < 1e-15);
    cr_assert(info.mean[1] == 0.1 && info.std[1] == 0);
    iso_dataset_destroy(&dataset);
}

// ---- Damage -------------------------------------------------------------------------------------

Test(csv, cells_that_are_no_numbers_are_named) {
    refuse("1,2\n3,x4\n", NULL, ISO_ERR_FORMAT,
           "table.csv:2: column 2 holds \"x4\": this is not a number");
    refuse("a,b\n1,2\n\n3,4 5\n", &with_header, ISO_ERR_FORMAT,
           "table.csv:4: column 2 (b) holds \"4 5\": this is not a number");
    refuse("a,b\n1,2\n", NULL, ISO_ERR_FORMAT,
           "table.csv:1: column 1 holds \"a\": this is not a number: if the first line names the "
           "columns, say that there is a header");
    refuse("1,2\n,4\n", NULL, ISO_ERR_FORMAT, "table.csv:2: column 1 holds \"\": give a number");
    refuse("1,2\n3, \n", NULL, ISO_ERR_FORMAT, "table.csv:2: column 2 holds \" \": give a number");
    refuse("1,2\nnan,4\n", NULL, ISO_ERR_FORMAT, "\"nan\": numbers must be finite");
    refuse("1,2\n3,-inf\n", NULL, ISO_ERR_FORMAT, "\"-inf\": numbers must be finite");
    refuse("1,2\n3,1e999\n", NULL, ISO_ERR_FORMAT, "\"1e999\": numbers must be finite");
    refuse("1;2\n3;4,5\n", &semicolons, ISO_ERR_FORMAT, "table.csv:2: column 2 holds \"4,5\"");
}

Test(csv, a_zero_byte_or_a_long_cell_is_no_number) {
    iso_dataset *dataset = NULL;
    const char text[] = "1,2\n3,4\0005\n";
    const char *path = scratch_write("table.csv", text, sizeof(text) - 1);
    cr_assert_eq(iso_dataset_read_csv(path, NULL, &dataset), ISO_ERR_FORMAT);
    cr_assert(strstr(iso_last_error()->message, "table.csv:2: column 2"));
    char line[400] = "1,";
    memset(line + 2, '1', 300);
    refuse(line, NULL, ISO_ERR_FORMAT, "table.csv:1: column 2 holds \"1111");
    cr_assert(strstr(iso_last_error()->message, "this is not a number"));
}

Test(csv, rows_of_other_lengths_are_named) {
    refuse("1,2,3\n1,2\n", NULL, ISO_ERR_FORMAT,
           "table.csv:2: this row has 2 cells and the first one has 3");
    refuse("1,2\n1,2\n1,2,3\n", NULL, ISO_ERR_FORMAT,
           "table.csv:3: this row has 3 cells and the first one has 2");
    refuse("a,b\n\n1\n", &with_header, ISO_ERR_FORMAT,
           "table.csv:3: this row has 1 cell and the first one has 2");
    refuse("1,2\n1,2,\n", NULL, ISO_ERR_FORMAT, "table.csv:2: this row has 3 cells");
}

Test(csv, quotes_must_be_closed) {
    refuse("1,\"2\n3,4\"\n", NULL, ISO_ERR_FORMAT,
           "table.csv:1: column 2 begins with a quote that is not closed in this line");
    refuse("1,2\n\"3\"4,5\n", NULL, ISO_ERR_FORMAT,
           "table.csv:2: column 1 goes on behind its closing quote");
}

Test(csv, files_without_rows_are_refused) {
    refuse("", NULL, ISO_ERR_FORMAT, "is empty");
    refuse("\n\r\n\n", NULL, ISO_ERR_FORMAT, "is empty");
    refuse("a,b\n", &with_header, ISO_ERR_FORMAT, "has no rows below its header");
    iso_dataset *dataset = NULL;
    cr_assert_eq(iso_dataset_read_csv(scratch_path("none.csv"), NULL, &dataset), ISO_ERR_IO);
    cr_assert(strstr(iso_last_error()->message, "none.csv: No such file"));
    cr_assert_eq(iso_dataset_read_csv(scratch_folder(), NULL, &dataset), ISO_ERR_IO);
    cr_assert(strstr(iso_last_error()->message, "it is a folder"));
}

Test(csv, columns_that_are_not_there_are_refused) {
    const char *const text = "a,b,b\n1,2,3\n";
    refuse(text, &(iso_csv_config){.header = true, .targets = "price"}, ISO_ERR_ARG,
           "has no column \"price\": its columns are a, b, b");
    refuse(text, &(iso_csv_config){.header = true, .ignore = "4"}, ISO_ERR_ARG,
           "has no column \"4\"");
    refuse(text, &(iso_csv_config){.header = true, .targets = "0"}, ISO_ERR_ARG,
           "has no column \"0\"");
    refuse(text, &(iso_csv_config){.header = true, .targets = "b"}, ISO_ERR_ARG,
           "has two columns \"b\", 2 and 3: give the number of one");
    refuse(text, &(iso_csv_config){.header = true, .targets = "a", .ignore = "1"}, ISO_ERR_ARG,
           "column 1 (a) of");
    refuse("1,2\n", &(iso_csv_config){.targets = "price"}, ISO_ERR_ARG,
           "has no column \"price\": without a header, columns are numbers from 1 to 2");
    refuse("1,2\n", &(iso_csv_config){.targets = "1,2"}, ISO_ERR_ARG,
           "has 2 columns, and none is left for the input");
    refuse("1;2\n", NULL, ISO_ERR_ARG,
           "has 1 column, and none is left for the input: name fewer "
           "targets, or check the delimiter");
}

Test(csv, settings_that_cannot_be_are_refused) {
    const iso_csv_config configs[] = {{.dtype = ISO_I64}, {.delimiter = '"'}, {.delimiter = '7'}};
    const char *const words[] = {"not as i64", "'\"' cannot separate", "'7' cannot separate"};
    for (int i = 0; i < 3; i++) {
        iso_dataset *dataset = NULL;
        cr_assert(read_text("1,2\n", &configs[i], &dataset) < 0);
        cr_assert(strstr(iso_last_error()->message, words[i]), "%s", iso_last_error()->message);
    }
}

Test(csv, compressed_files_are_read_too) {
    char command[600];
    const char text[] = "1,2,3\n11,12,13\n";
    const char *path = scratch_write("table.csv", text, sizeof(text) - 1);
    iso_dataset *dataset = NULL;
    snprintf(command, sizeof(command), "gzip -f '%s'", path);
    if (system(command) != 0) cr_skip_test("there is no gzip");
    iso_status status = iso_dataset_read_csv(scratch_path("table.csv.gz"), NULL, &dataset);
    if (status == ISO_ERR_UNSUPPORTED) cr_skip_test("this build has no zlib");
    cr_assert_eq(status, ISO_OK, "%s", iso_last_error()->message);
    expect_rows(dataset, 2, 2, 1);
}

// A file longer than what is read at once, of which the last line is damaged.
Test(csv, long_files_are_read_whole) {
    enum { ROWS = 200000, ROOM = ROWS * 24 };
    char *text = malloc(ROOM);
    size_t used = 0;
    cr_assert_not_null(text);
    for (int i = 0; i < ROWS; i++)
        used += (size_t)snprintf(text + used, ROOM - used, "%d,%d\n", i, 2 * i);
    iso_dataset *dataset = read_well(text, NULL);
    float x, y;
    for (int64_t i = 0; i < ROWS; i += 999) {
        cr_assert_eq(iso_dataset_sample(dataset, i, (void *const[]){&x, &y}), ISO_OK);
        cr_assert(x == (float)i && y == (float)(2 * i));
    }
    iso_dataset_destroy(&dataset);
    text[used - 2] = 'x';
    refuse(text, NULL, ISO_ERR_FORMAT, "table.csv:200000: column 2");
    free(text);
}

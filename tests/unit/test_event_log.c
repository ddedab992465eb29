// SPDX-License-Identifier: MIT
// Event files of TensorBoard: checksums, records and events, byte by byte.
#include "common/balance.h"
#include "common/scratch.h"
#include "io/event_log.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <isotherm/metrics.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static void clean_up(void) {
    scratch_remove();
    balance_check();
}
TestSuite(event_log, .fini = clean_up, .timeout = 60);

// ---- The only event file of a folder ------------------------------------------------------------

static char *read_only_file(size_t *bytes) {
    char path[512] = "";
    DIR *from = opendir(scratch_folder());
    for (const struct dirent *entry; (entry = readdir(from));)
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0)
            snprintf(path, sizeof(path), "%s/%s", scratch_folder(), entry->d_name);
    closedir(from);
    return scratch_read(path, bytes);
}

static iso_event_log *create_log(void) {
    iso_event_log *log = NULL;
    cr_assert_eq(iso_event_log_create(scratch_folder(), &log), ISO_OK, "%s",
                 iso_last_error()->message);
    return log;
}

static uint64_t little(const char *from, int size) {
    uint64_t value = 0;
    for (int i = size - 1; i >= 0; i--) value = value << 8 | (unsigned char)from[i];
    return value;
}

static uint32_t masked(const char *data, size_t size) {
    uint32_t crc = iso__crc32c(data, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// Checks the record at *at, goes past it, and returns its event behind the wall time.
static const char *take_record(const char *text, size_t bytes, size_t *at, size_t *size) {
    cr_assert(*at + 12 <= bytes, "no further record");
    const char *head = text + *at, *event = head + 12;
    uint64_t length = little(head, 8);
    double wall;
    cr_assert_eq(little(head + 8, 4), masked(head, 8));
    cr_assert(*at + 16 + length <= bytes, "half a record");
    cr_assert_eq(little(event + length, 4), masked(event, length));
    cr_assert_eq(event[0], 0x09);
    uint64_t bits = little(event + 1, 8);
    memcpy(&wall, &bits, 8);
    cr_assert(fabs(wall - (double)time(NULL)) < 60, "wall time %f", wall);
    *at += 16 + length;
    *size = length - 9;
    return event + 9;
}

static void expect_record(const char *text, size_t bytes, size_t *at, const char *event,
                          size_t size) {
    size_t got;
    const char *found = take_record(text, bytes, at, &got);
    cr_assert_eq(got, size, "%zu bytes, not %zu", got, size);
    cr_assert_arr_eq(found, event, size);
}
#define EXPECT(...)                                                                                \
    expect_record(text, bytes, &at, (const char[]){__VA_ARGS__},                                   \
                  sizeof((const char[]){__VA_ARGS__}))

// ---- Tests --------------------------------------------------------------------------------------

// The check value of CRC catalogues, and RFC 3720, appendix B.4.
Test(event_log, checksum_is_crc32c) {
    char zeros[32] = {0}, ones[32];
    memset(ones, 0xFF, sizeof(ones));
    cr_assert_eq(iso__crc32c("123456789", 9), 0xE3069283u);
    cr_assert_eq(iso__crc32c(zeros, 32), 0x8A9136AAu);
    cr_assert_eq(iso__crc32c(ones, 32), 0x62A8AB43u);
    cr_assert_eq(iso__crc32c("", 0), 0u);
}

// Every event file of TensorFlow begins with these 12 bytes: the length of its first event, 24,
// and the checksum of this length.
Test(event_log, begins_with_the_version) {
    static const char head[12] = {0x18, 0, 0, 0, 0, 0, 0, 0, (char)0xA3, 0x7F, 0x4B, 0x22};
    size_t bytes, at = 0;
    iso_event_log *log = create_log();
    cr_assert_eq(iso_event_log_close(&log), ISO_OK);
    cr_assert_null(log);
    char *text = read_only_file(&bytes);
    cr_assert_arr_eq(text, head, 12);
    EXPECT(0x1A, 13, 'b', 'r', 'a', 'i', 'n', '.', 'E', 'v', 'e', 'n', 't', ':', '2');
    cr_assert_eq(at, bytes);
    free(text);
}

Test(event_log, numbers_are_values_of_a_summary) {
    size_t bytes, at = 0, size;
    iso_event_log *log = create_log();
    iso_event_begin(log, 300);
    iso_event_number(log, "a/b", 1.5);
    iso_event_number(log, "left/out", NAN);
    iso_event_number(log, "c", -2);
    iso_event_end(log);
    iso_event_begin(log, 301);
    iso_event_number(log, "left/out", INFINITY);
    iso_event_end(log); // of nothing
    iso_event_restart(log, 5);
    char *text = read_only_file(&bytes); // all is flushed
    take_record(text, bytes, &at, &size);
    EXPECT(0x10, (char)0xAC, 2, 0x2A, 22,                                  // step 300
           0x0A, 10, 0x0A, 3, 'a', '/', 'b', 0x15, 0, 0, (char)0xC0, 0x3F, //
           0x0A, 8, 0x0A, 1, 'c', 0x15, 0, 0, 0, (char)0xC0);
    EXPECT(0x10, 5, 0x3A, 2, 0x08, 1); // SessionLog: START
    cr_assert_eq(at, bytes);
    free(text);
    cr_assert_eq(iso_event_log_close(&log), ISO_OK);
}

// A DT_STRING tensor of shape (1), with the text plugin's name. What is no UTF-8 is replaced.
Test(event_log, text_is_a_string_tensor) {
    size_t bytes, at = 0, size;
    iso_event_log *log = create_log();
    iso_event_begin(log, 0);
    iso_event_text(log, "t", "a\xFF\xC3\xA4");
    iso_event_end(log);
    cr_assert_eq(iso_event_log_close(&log), ISO_OK);
    char *text = read_only_file(&bytes);
    take_record(text, bytes, &at, &size);
    EXPECT(0x2A, 31, 0x0A, 29, 0x0A, 1, 't',              //
           0x4A, 8, 0x0A, 6, 0x0A, 4, 't', 'e', 'x', 't', // SummaryMetadata
           0x42, 14, 0x08, 7, 0x12, 4, 0x12, 2, 0x08, 1, 0x42, 4, 'a', '?', (char)0xC3, (char)0xA4);
    cr_assert_eq(at, bytes);
    free(text);
}

// Longer than the room there is at first; lengths of several bytes.
Test(event_log, long_events_stay_whole) {
    static char long_text[5001];
    size_t bytes, at = 0, size;
    iso_event_log *log = create_log();
    memset(long_text, 'x', 5000);
    iso_event_begin(log, 1);
    iso_event_text(log, "t", long_text);
    for (int i = 0; i < 200; i++) iso_event_number(log, "many/numbers", i);
    iso_event_end(log);
    cr_assert_eq(iso_event_log_close(&log), ISO_OK);
    char *text = read_only_file(&bytes);
    take_record(text, bytes, &at, &size);
    take_record(text, bytes, &at, &size);
    cr_assert_eq(at, bytes);
    cr_assert(size > 5000 + 200 * 21 && size < 5100 + 200 * 21, "%zu", size);
    free(text);
}

Test(event_log, each_log_is_a_file_of_its_own) {
    char folder[512];
    int64_t files = -1;
    iso_event_log *log[3];
    snprintf(folder, sizeof(folder), "%s/new//folder/", scratch_folder());
    cr_assert_eq(iso_event_log_count(folder, &files), ISO_OK);
    cr_assert_eq(files, 0);
    for (int i = 0; i < 3; i++) cr_assert_eq(iso_event_log_create(folder, &log[i]), ISO_OK);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(iso_event_log_remove(folder), ISO_ERR_STATE, "while one is being written");
        cr_assert_eq(iso_event_log_close(&log[i]), ISO_OK);
    }
    cr_assert_eq(iso_event_log_count(folder, &files), ISO_OK);
    cr_assert_eq(files, 3);
    scratch_write("new/folder/mine", "", 0);
    cr_assert_eq(iso_event_log_remove(folder), ISO_OK);
    cr_assert_eq(iso_event_log_count(folder, &files), ISO_OK);
    cr_assert_eq(files, 0);
    free(scratch_read(scratch_path("new/folder/mine"), NULL));
    remove(scratch_path("new/folder/mine"));
    remove(scratch_path("new/folder"));
}

Test(event_log, a_bad_folder_is_named) {
    iso_event_log *log = NULL;
    const char *file = scratch_write("file", "", 0);
    cr_assert_eq(iso_event_log_create(file, &log), ISO_ERR_IO);
    cr_assert(strstr(iso_last_error()->message, file), "%s", iso_last_error()->message);
    cr_assert_eq(iso_event_log_create("", &log), ISO_ERR_ARG);
    cr_assert_null(log);
    cr_assert_eq(iso_event_log_close(&log), ISO_OK);
    iso_event_begin(NULL, 1);
    iso_event_number(NULL, "a", 1);
    iso_event_text(NULL, "a", "b");
    iso_event_end(NULL);
    iso_event_restart(NULL, 1);
}

// The limit of a file's size is a full disk.
Test(event_log, a_full_disk_is_told_when_the_log_is_closed) {
    signal(SIGXFSZ, SIG_IGN);
    iso_event_log *log = create_log();
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){100, 100}), 0);
    for (int i = 0; i < 10; i++) {
        iso_event_begin(log, i);
        iso_event_number(log, "a", i);
        iso_event_end(log);
    }
    cr_assert_eq(iso_event_log_close(&log), ISO_ERR_IO);
    cr_assert(strstr(iso_last_error()->message, "cannot write the event file"), "%s",
              iso_last_error()->message);
}

// ---- The log that is watched --------------------------------------------------------------------

static void write_down(const char *event, const char *key, double value, void *user) {
    char *text = user;
    size_t used = strlen(text);
    snprintf(text + used, 200 - used, "%s.%s=%g ", event, key ? key : "end", key ? value : 0);
}

Test(event_log, a_watched_json_log_passes_its_numbers_on) {
    char seen[200] = "";
    iso_json_log *log;
    cr_assert_eq(iso_json_log_create(NULL, &log), ISO_OK);
    iso_json_log_watch(log, write_down, seen);
    iso_json_begin(log, "eval");
    iso_json_int(log, "step", 3);
    iso_json_string(log, "no", "number");
    iso_json_double(log, "loss", 0.5);
    iso_json_double(log, "none", NAN);
    iso_json_end(log);
    cr_assert_eq(iso_json_log_close(&log), ISO_OK);
    for (char *at; (at = strstr(seen, "-nan"));) memmove(at, at + 1, strlen(at));
    cr_assert_str_eq(seen, "eval.step=3 eval.loss=0.5 eval.none=nan eval.end=0 ");
    iso_json_log_watch(NULL, write_down, seen);
}

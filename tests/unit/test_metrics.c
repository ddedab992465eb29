// SPDX-License-Identifier: MIT
// JSON lines for machines, the progress bar for people, peak memory.
#define _GNU_SOURCE
#include "common/balance.h"
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <isotherm/metrics.h>
#include <isotherm/trace.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static void clean_up(void) {
    scratch_remove();
    balance_check();
}
TestSuite(json_log, .fini = clean_up, .timeout = 60);
TestSuite(progress_bar, .fini = clean_up, .timeout = 60);
TestSuite(peak_rss, .timeout = 60);

static iso_json_log *create_log(void) {
    iso_json_log *log = NULL;
    cr_assert_eq(iso_json_log_create(scratch_path("log"), &log), ISO_OK, "%s",
                 iso_last_error()->message);
    return log;
}

static void expect_text(const char *expected) {
    char *text = scratch_read(scratch_path("log"), NULL);
    cr_assert_str_eq(text, expected);
    free(text);
}

Test(json_log, writes_one_object_a_line) {
    iso_json_log *log = create_log();
    iso_json_begin(log, "epoch");
    iso_json_int(log, "epoch", 1);
    iso_json_double(log, "loss", 0.25);
    iso_json_string(log, "sync", "lazy");
    iso_json_end(log);
    iso_json_begin(log, "summary");
    iso_json_int(log, "least", INT64_MIN);
    iso_json_end(log);
    cr_assert_eq(iso_json_log_close(&log), ISO_OK);
    cr_assert_null(log);
    expect_text("{\"event\":\"epoch\",\"epoch\":1,\"loss\":0.25,\"sync\":\"lazy\"}\n"
                "{\"event\":\"summary\",\"least\":-9223372036854775808}\n");
}

// Another program may read the line as soon as the object ends.
Test(json_log, flushes_each_line) {
    iso_json_log *log = create_log();
    iso_json_begin(log, "epoch");
    iso_json_end(log);
    expect_text("{\"event\":\"epoch\"}\n");
    cr_assert_eq(iso_json_log_close(&log), ISO_OK);
}

Test(json_log, escapes_what_json_needs_escaped) {
    iso_json_log *log = create_log();
    iso_json_begin(log, "e");
    iso_json_string(log, "a\"b", "q\" b\\ n\n t\t \x01 \x7f");
    iso_json_string(log, "unicode", "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
    iso_json_string(log, "none", NULL);
    iso_json_end(log);
    cr_assert_eq(iso_json_log_close(&log), ISO_OK);
    expect_text("{\"event\":\"e\",\"a\\\"b\":\"q\\\" b\\\\ n\\u000a t\\u0009 \\u0001 \x7f\","
                "\"unicode\":\"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\",\"none\":null}\n");
}

// Lone, overlong, surrogate, too large, and cut sequences.
Test(json_log, replaces_what_is_not_utf8) {
    iso_json_log *log = create_log();
    iso_json_begin(log, "e");
    iso_json_string(log, "a", "\xFF|\xC0\x80|\xED\xA0\x80|\xF4\x90\x80\x80|\xE2\x82");
    iso_json_end(log);
    cr_assert_eq(iso_json_log_close(&log), ISO_OK);
    expect_text("{\"event\":\"e\",\"a\":\"\\ufffd|\\ufffd\\ufffd|\\ufffd\\ufffd\\ufffd|"
                "\\ufffd\\ufffd\\ufffd\\ufffd|\\ufffd\\ufffd\"}\n");
}

Test(json_log, doubles_read_back_the_same) {
    double values[2000] = {0.1, 1.0 / 3, 1e300, -5e-324, 1e22, 123456789012345678.0, 0.1 + 0.2};
    uint64_t state = 1;
    for (int i = 7; i < 2000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = ldexp((double)(int64_t)state, (int)(state >> 57) - 100);
    }
    iso_json_log *log = create_log();
    iso_json_begin(log, "e");
    for (int i = 0; i < 2000; i++) iso_json_double(log, "x", values[i]);
    iso_json_end(log);
    cr_assert_eq(iso_json_log_close(&log), ISO_OK);
    char *text = scratch_read(scratch_path("log"), NULL), *at = text;
    cr_assert(strstr(text, "\"x\":0.1,") && strstr(text, "\"x\":1e+300,"), "not the shortest");
    for (int i = 0; i < 2000; i++) {
        at = strstr(at, "\"x\":") + 4;
        cr_assert_eq(strtod(at, &at), values[i]);
    }
    free(text);
}

Test(json_log, writes_null_for_what_is_no_number) {
    iso_json_log *log = create_log();
    iso_json_begin(log, "e");
    iso_json_double(log, "a", NAN);
    iso_json_double(log, "b", -INFINITY);
    iso_json_end(log);
    cr_assert_eq(iso_json_log_close(&log), ISO_OK);
    expect_text("{\"event\":\"e\",\"a\":null,\"b\":null}\n");
}

Test(json_log, a_null_log_does_nothing) {
    iso_json_log *log = NULL;
    iso_json_begin(log, "e");
    iso_json_string(log, "a", "b");
    iso_json_double(log, "a", 1);
    iso_json_int(log, "a", 1);
    iso_json_end(log);
    cr_assert_eq(iso_json_log_close(&log), ISO_OK);
}

Test(json_log, names_a_path_that_cannot_be_created) {
    iso_json_log *log = NULL;
    cr_assert_eq(iso_json_log_create("/nowhere/at/all", &log), ISO_ERR_IO);
    cr_assert_null(log);
    cr_assert(strstr(iso_last_error()->message, "/nowhere/at/all: No such file"), "%s",
              iso_last_error()->message);
}

Test(json_log, does_not_empty_what_another_log_writes) {
    iso_json_log *log = create_log(), *other = NULL;
    iso_json_begin(log, "a");
    iso_json_end(log);
    cr_assert_eq(iso_json_log_create(scratch_path("log"), &other), ISO_ERR_STATE);
    cr_assert_null(other);
    cr_assert(strstr(iso_last_error()->message, "another process writes it"), "%s",
              iso_last_error()->message);
    cr_assert_eq(iso_json_log_append(scratch_path("log"), &other), ISO_OK);
    iso_json_begin(other, "b");
    iso_json_end(other);
    cr_assert_eq(iso_json_log_close(&other), ISO_OK);
    iso_json_begin(log, "c");
    iso_json_end(log);
    cr_assert_eq(iso_json_log_close(&log), ISO_OK);
    expect_text("{\"event\":\"a\"}\n{\"event\":\"b\"}\n{\"event\":\"c\"}\n");
    log = create_log();
    cr_assert_eq(iso_json_log_close(&log), ISO_OK);
    expect_text("");
}

Test(json_log, reports_a_full_disk_when_closed) {
    iso_json_log *log;
    if (access("/dev/full", W_OK) != 0) cr_skip_test("there is no /dev/full");
    cr_assert_eq(iso_json_log_create("/dev/full", &log), ISO_OK);
    iso_json_begin(log, "e");
    iso_json_end(log);
    cr_assert_eq(iso_json_log_sync(log), ISO_ERR_IO);
    cr_assert_eq(iso_json_log_close(&log), ISO_ERR_IO);
    cr_assert_null(log);
    cr_assert(strstr(iso_last_error()->message, "No space left"), "%s", iso_last_error()->message);
}

// What cannot be synced, such as a device, is as good as synced.
Test(json_log, is_synced_where_that_can_be) {
    const char *paths[] = {scratch_path("log"), NULL};
    cr_assert_eq(iso_json_log_sync(NULL), ISO_OK);
    for (int i = 0; i < 2; i++) {
        iso_json_log *log;
        cr_assert_eq(iso_json_log_create(paths[i], &log), ISO_OK);
        iso_json_begin(log, "e");
        iso_json_end(log);
        cr_assert_eq(iso_json_log_sync(log), ISO_OK, "%s", iso_last_error()->message);
        cr_assert_eq(iso_json_log_sync(log), ISO_OK);
        cr_assert_eq(iso_json_log_close(&log), ISO_OK);
    }
    expect_text("{\"event\":\"e\"}\n");
}

// ---- Going on with a log ------------------------------------------------------------------------

static iso_status append_log(iso_json_log **log) {
    return iso_json_log_append(scratch_path("log"), log);
}

// Appends one event and returns what is in the file then.
static void expect_appended(const char *before, const char *after) {
    iso_json_log *log = NULL;
    if (before) scratch_write("log", before, strlen(before));
    cr_assert_eq(append_log(&log), ISO_OK, "%s", iso_last_error()->message);
    iso_json_begin(log, "resume");
    iso_json_end(log);
    cr_assert_eq(iso_json_log_close(&log), ISO_OK);
    expect_text(after);
}

Test(json_log, goes_on_behind_what_is_there) {
    expect_appended(NULL, "{\"event\":\"resume\"}\n");
    expect_appended("", "{\"event\":\"resume\"}\n");
    expect_appended("{\"event\":\"a\"}\n", "{\"event\":\"a\"}\n{\"event\":\"resume\"}\n");
}

// Wherever the program was stopped while it wrote a line.
Test(json_log, drops_a_line_that_was_not_finished) {
    static const char half[] = "{\"event\":\"epoch\",\"loss\":0.25}";
    for (size_t n = 0; n < sizeof(half); n++) {
        char before[128];
        snprintf(before, sizeof(before), "{\"event\":\"a\"}\n%.*s", (int)n, half);
        expect_appended(before, "{\"event\":\"a\"}\n{\"event\":\"resume\"}\n");
        snprintf(before, sizeof(before), "%.*s", (int)n, half);
        expect_appended(before, "{\"event\":\"resume\"}\n");
    }
}

// Longer than what is read at once.
Test(json_log, drops_a_long_line_that_was_not_finished) {
    char *before = calloc(20000, 1);
    strcpy(before, "{\"event\":\"a\"}\n{\"event\":\"");
    memset(before + strlen(before), 'x', 15000);
    expect_appended(before, "{\"event\":\"a\"}\n{\"event\":\"resume\"}\n");
    free(before);
}

Test(json_log, cuts_no_other_file) {
    static const char *const others[] = {"words", "a,b\n1,2", "{\"loss\":1}", "{\"evens"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        iso_json_log *log = NULL;
        scratch_write("log", others[i], strlen(others[i]));
        cr_assert_eq(append_log(&log), ISO_ERR_FORMAT);
        cr_assert(strstr(iso_last_error()->message, "cannot append to"));
        expect_text(others[i]);
    }
}

// ---- Progress bar -------------------------------------------------------------------------------

static const char clear[] = "clear"; // as a summary: the line is removed instead

static void finish(iso_progress_bar **bar, const char *summary) {
    if (summary == clear)
        iso_progress_bar_clear(bar);
    else if (summary)
        iso_progress_bar_finish(bar, "%s", summary);
    else
        iso_progress_bar_finish(bar, NULL);
}

// What a bar writes to a file in 100 steps; free with free().
static char *plain_text(int64_t total, double loss, const char *summary) {
    FILE *to = fopen(scratch_path("bar"), "w");
    iso_progress_bar *bar;
    cr_assert_eq(iso_progress_bar_create(to, "epoch 1", total, "images", &bar), ISO_OK);
    for (int64_t i = 1; i <= 100; i++) iso_progress_bar_update(bar, i * total / 100, loss);
    finish(&bar, summary);
    cr_assert_null(bar);
    fclose(to);
    return scratch_read(scratch_path("bar"), NULL);
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (; (text = strstr(text, what)); text++) n++;
    return n;
}

Test(progress_bar, writes_a_plain_line_each_tenth) {
    char *text = plain_text(2000, 0.5, "done, accuracy 98 %");
    cr_assert_eq(count(text, "\n"), 11, "%s", text);
    cr_assert_eq(count(text, "loss 0.5000"), 10);
    cr_assert(strstr(text, "epoch 1 200/2000 images") && strstr(text, "epoch 1 2000/2000 images"));
    cr_assert(strstr(text, "/s  ") && strstr(text, "ETA 0:0"));
    cr_assert(strstr(text, "\nepoch 1 done, accuracy 98 %\n"));
    cr_assert(!strchr(text, '\r') && !strchr(text, '\033'));
    free(text);
}

// 900 of 1000 steps were made before: half a second for 10 more is 20 a second, and not 1820.
Test(progress_bar, rate_is_of_what_was_done_since_it_was_made) {
    double rate = 0;
    FILE *to = fopen(scratch_path("bar"), "w");
    iso_progress_bar *bar;
    cr_assert_eq(iso_progress_bar_create(to, "epoch 1", 1000, "steps", &bar), ISO_OK);
    iso_progress_bar_begin_at(bar, 890);
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    iso_progress_bar_update(bar, 899, NAN); // in the same tenth
    iso_progress_bar_line(bar, "a word on step %d", 899);
    iso_progress_bar_update(bar, 900, NAN);
    iso_progress_bar_finish(&bar, NULL);
    fclose(to);
    char *text = scratch_read(scratch_path("bar"), NULL);
    cr_assert_eq(count(text, "\n"), 2, "%s", text);
    cr_assert(strstr(text, "a word on step 899\nepoch 1 900/1000 steps"), "%s", text);
    const char *at = strstr(text, "steps  ");
    cr_assert(at && sscanf(at, "steps  %lf/s", &rate) == 1 && rate > 0 && rate <= 20, "%s", text);
    free(text);
}

Test(progress_bar, shows_no_loss_that_is_not_there) {
    char *text = plain_text(3, NAN, NULL);
    cr_assert_eq(count(text, "loss"), 0);
    cr_assert_eq(count(text, "\n"), 3, "%s", text);
    free(text);
}

// Runs a bar on a terminal of this width for half a second, updated every millisecond.
static char *terminal_text(unsigned short width, const char *summary, double *seconds) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        cr_skip_test("there are no pseudo-terminals");
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    struct winsize size = {.ws_row = 24, .ws_col = width};
    cr_assert_eq(ioctl(slave, TIOCSWINSZ, &size), 0);
    FILE *to = fdopen(slave, "w");
    iso_progress_bar *bar;
    cr_assert_eq(iso_progress_bar_create(to, "epoch 1", 1000, "images", &bar), ISO_OK);
    int64_t start = iso_now();
    for (int i = 1; i <= 450; i++) {
        iso_progress_bar_update(bar, i, 0.125);
        usleep(1000);
    }
    *seconds = (double)(iso_now() - start) / 1e9;
    finish(&bar, summary);
    fclose(to);
    // The terminal hands its text over bit by bit, and an error (EIO) after the last.
    char *text = calloc(65536, 1);
    size_t used = 0;
    for (ssize_t n; (n = read(master, text + used, 65535 - used)) > 0;) used += (size_t)n;
    close(master);
    return text;
}

// The columns of the longest line drawn: text between carriage returns, without "\033[K".
static size_t longest(const char *text) {
    size_t most = 0;
    for (const char *at = text; (at = strchr(at, '\r')); at++) {
        size_t length = strcspn(at + 1, "\033\r\n");
        if (length > most) most = length;
    }
    return most;
}

Test(progress_bar, redraws_a_terminal_at_most_ten_times_a_second) {
    double seconds;
    char *text = terminal_text(100, "done", &seconds);
    int drawn = count(text, "ETA");
    cr_assert(drawn >= 2, "%d drawings: %s", drawn, text);
    cr_assert_leq(drawn, 1 + 10 * seconds);
    cr_assert(strstr(text, "epoch 1 [=") && strstr(text, "loss 0.1250"));
    cr_assert(strstr(text, "\repoch 1 done\033[K"), "%s", text);
    cr_assert_lt(longest(text), 100);
    free(text);
}

Test(progress_bar, fits_a_narrow_terminal) {
    double seconds;
    char *text = terminal_text(30, NULL, &seconds);
    cr_assert_gt(longest(text), 20);
    cr_assert_lt(longest(text), 30);
    cr_assert_eq(count(text, "\n"), 1);
    free(text);
}

Test(progress_bar, leaves_an_empty_line_to_the_next_bar_when_it_is_cleared) {
    double seconds;
    char *text = terminal_text(100, clear, &seconds);
    size_t length = strlen(text);
    cr_assert(length > 4 && strcmp(text + length - 4, "\r\033[K") == 0, "%s", text);
    cr_assert_eq(count(text, "\n"), 0);
    free(text);
    text = plain_text(2000, NAN, clear);
    cr_assert_eq(count(text, "\n"), 10, "%s", text);
    cr_assert(!strchr(text, '\r') && !strchr(text, '\033'));
    free(text);
}

Test(progress_bar, writes_nothing_without_a_stream) {
    iso_progress_bar *bar;
    cr_assert_eq(iso_progress_bar_create(NULL, "a", 10, "b", &bar), ISO_OK);
    iso_progress_bar_update(bar, 5, 1);
    iso_progress_bar_finish(&bar, "c");
    cr_assert_null(bar);
    iso_progress_bar_finish(&bar, NULL);
    iso_progress_bar_clear(&bar);
    cr_assert_eq(iso_progress_bar_create(NULL, "a", 0, "b", &bar), ISO_ERR_ARG);
}

// ---- Memory -------------------------------------------------------------------------------------

Test(peak_rss, grows_with_touched_memory) {
    double before = iso_peak_rss_mb();
    char *memory = malloc(100000000);
    memset(memory, 1, 100000000);
    double during = iso_peak_rss_mb();
    cr_assert_eq(memory[99999999], 1);
    free(memory);
    cr_assert_gt(before, 1);
    cr_assert(during - before > 90 && during - before < 200, "from %g to %g", before, during);
    cr_assert_geq(iso_peak_rss_mb(), during);
}

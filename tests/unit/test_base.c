// SPDX-License-Identifier: MIT
// Error records, log, memory balance, random numbers and trace text.
#define _GNU_SOURCE // pipe2
#include "common/balance.h"
#include "base/base.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <isotherm/trace.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

TestSuite(base, .timeout = 60, .fini = balance_check);

// What `write` puts into a stream, in a buffer for one test.
static char captured[16384];
static const char *capture(void (*write)(FILE *to)) {
    memset(captured, 0, sizeof(captured));
    FILE *to = fmemopen(captured, sizeof(captured) - 1, "w");
    write(to);
    fclose(to);
    return captured;
}

// ---- Status and error record --------------------------------------------------------------------

static iso_status decide(int n) {
    ISO_CHECK(n < 3, ISO_ERR_SHAPE, "n is %d: give less than 3", n);
    return ISO_OK;
}
static iso_status forward(int n) {
    ISO_TRY(decide(n));
    return ISO_OK;
}
static iso_status forward_to_label(int n) {
    iso_status status = ISO_OK;
    ISO_TRY_GOTO(forward(n));
    return ISO_OK;
fail:
    return status;
}

Test(base, an_error_carries_its_message_and_trail) {
    cr_assert(forward_to_label(2) == ISO_OK);
    cr_assert(forward_to_label(7) == ISO_ERR_SHAPE);
    const iso_error *e = iso_last_error();
    cr_assert(e->code == ISO_ERR_SHAPE);
    cr_assert_str_eq(e->message, "n is 7: give less than 3");
    cr_assert(e->frame_count == 3);
    cr_assert_str_eq(e->frame[0].function, "decide");
    cr_assert_str_eq(e->frame[1].function, "forward");
    cr_assert_str_eq(e->frame[2].function, "forward_to_label");
}

static iso_status descend(int depth) {
    if (depth == 0) return ISO_FAIL(ISO_ERR_IO, "deep");
    ISO_TRY(descend(depth - 1));
    return ISO_OK;
}

Test(base, a_user_may_write_the_record) {
    cr_assert_eq(iso_error_set(ISO_ERR_SHAPE, "Square expects %d columns", 4), ISO_ERR_SHAPE);
    cr_expect_str_eq(iso_last_error()->message, "Square expects 4 columns");
    cr_expect_eq(iso_last_error()->code, ISO_ERR_SHAPE);
}

Test(base, a_text_is_no_format) {
    cr_assert_eq(iso_error_set_text(ISO_ERR_IO, "100 %s"), ISO_ERR_IO);
    cr_expect_str_eq(iso_last_error()->message, "100 %s");
    cr_expect_eq(iso_last_error()->code, ISO_ERR_IO);
}

Test(base, a_trail_longer_than_the_record_is_cut) {
    setenv("ISO_LOG", "debug", 1);
    cr_assert(descend(40) == ISO_ERR_IO);
    cr_assert_eq(iso_last_error()->frame_count, ISO_ERROR_FRAMES);
    const char *text = capture(iso_error_print);
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    cr_assert(lines == 1 + ISO_ERROR_FRAMES);
}

// A pipe whose reads give one write each.
Test(base, an_error_is_printed_in_one_write) {
    int end[2];
    char text[4096];
    cr_assert(pipe2(end, O_DIRECT) == 0);
    FILE *to = fdopen(end[1], "w");
    setvbuf(to, NULL, _IONBF, 0); // as stderr
    setenv("ISO_LOG", "debug", 1);
    cr_assert(descend(3) == ISO_ERR_IO);
    iso_error_print(to);
    fclose(to);
    ssize_t n = read(end[0], text, sizeof(text) - 1), rest = read(end[0], text, sizeof(text));
    cr_assert(n > 0 && rest == 0, "%zd bytes, and %zd more", n, rest);
    close(end[0]);
}

Test(base, a_message_may_quote_the_one_it_replaces) {
    (void)ISO_FAIL(ISO_ERR_IO, "first");
    (void)ISO_FAIL(ISO_ERR_MPI, "rank 3 says: %s", iso_last_error()->message);
    cr_assert_str_eq(iso_last_error()->message, "rank 3 says: first");
}

static void *fail_elsewhere(void *user) {
    (void)ISO_FAIL(ISO_ERR_NOMEM, "other thread");
    return user;
}

Test(base, threads_have_records_of_their_own) {
    pthread_t thread;
    (void)ISO_FAIL(ISO_ERR_ARG, "mine");
    cr_assert(pthread_create(&thread, NULL, fail_elsewhere, NULL) == 0);
    pthread_join(thread, NULL);
    cr_assert_str_eq(iso_last_error()->message, "mine");
}

Test(base, pending_is_not_an_error) {
    (void)ISO_FAIL(ISO_ERR_ARG, "old");
    iso_status status;
    ISO_TRY_GOTO(ISO_PENDING);
    cr_assert(status == ISO_PENDING);
    return;
fail:
    cr_assert(false, "jumped");
}

Test(base, every_status_has_a_text) {
#define CHECK_TEXT(name, value, text) cr_assert_str_eq(iso_status_string(name), text);
    ISO_STATUS_LIST(CHECK_TEXT)
    cr_assert_not_null(iso_status_string((iso_status)-999));
}

// ---- Log --------------------------------------------------------------------------------------------

static void log_some(FILE *to) {
    iso_log_set_stream(to);
    iso_log_set_level(ISO_LOG_WARN);
    iso__log(ISO_LOG_INFO, "hidden");
    iso__log(ISO_LOG_WARN, "before %d", 1);
    iso_log_set_rank(5);
    iso__log(ISO_LOG_ERROR, "after");
    iso_log_set_stream(NULL);
    iso__log(ISO_LOG_ERROR, "silenced");
}

static void log_at_a_level_that_is_none(FILE *to) {
    setenv("ISO_LOG", "loud", 1);
    iso_log_set_stream(to);
    iso_log_set_rank(0);
    iso__log(ISO_LOG_INFO, "hidden");
    iso__log(ISO_LOG_WARN, "shown");
}

Test(base, a_level_that_is_none_is_warn) {
    cr_assert_str_eq(capture(log_at_a_level_that_is_none), "isotherm[0] warn: shown\n");
}

Test(base, log_lines_have_level_and_rank) {
    cr_assert_str_eq(capture(log_some), "isotherm warn: before 1\nisotherm[5] error: after\n");
}

// ---- Memory -------------------------------------------------------------------------------------

Test(base, memory_is_aligned_and_counted) {
    long long blocks, bytes, before, after;
    void *a, *b;
    iso_memory_balance(NULL, NULL, &before);
    cr_assert(iso__alloc(100, &a) == ISO_OK && iso__alloc_zero(0, &b) == ISO_OK);
    cr_assert((uintptr_t)a % 64 == 0 && b != NULL);
    iso_memory_balance(&blocks, &bytes, &after);
    cr_assert(blocks == 2 && bytes == 100 && after - before == 2);
    iso__free(a);
    iso__free(b);
    iso__free(NULL);
}

// Bytes in the middle of pages become zero and take no memory, but for the pages of their ends.
Test(base, pages_are_given_back) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 64 * page;
    long long blocks, before;
    void *memory;
    iso_memory_balance(&before, NULL, NULL);
    cr_assert(iso__pages_alloc(bytes, &memory) == ISO_OK);
    iso_memory_balance(&blocks, NULL, NULL);
    cr_assert_eq(blocks, before + 1);
    cr_assert_eq(iso__pages_resident(memory, bytes), 0);
    unsigned char *at = memory;
    for (size_t k = 0; k < bytes; k++) cr_assert_eq(at[k], 0);
    memset(at, 7, bytes);
    cr_assert_eq(iso__pages_resident(memory, bytes), bytes);
    iso__pages_clear(at + 100, 10 * page);      // the parts of two pages, and nine between them
    iso__pages_clear(at + 32 * page, 8 * page); // whole pages
    iso__pages_clear(at + 50 * page + 5, 10);   // a part of one
    iso__pages_clear(at + 60 * page + 5, page); // two parts
    iso__pages_clear(at + 63 * page, 0);        // nothing
    cr_assert_eq(iso__pages_resident(memory, bytes), bytes - 17 * page);
    cr_assert_eq(iso__pages_resident(at + 32 * page + 1, 8 * page), page);
    for (size_t k = 0; k < bytes; k++) {
        bool cleared = (k >= 100 && k < 100 + 10 * page) || (k >= 32 * page && k < 40 * page) ||
                       (k >= 50 * page + 5 && k < 50 * page + 15) ||
                       (k >= 60 * page + 5 && k < 61 * page + 5);
        cr_assert_eq(at[k], cleared ? 0 : 7, "byte %zu", k);
    }
    iso__pages_free(memory, bytes);
    iso_memory_balance(&blocks, NULL, NULL);
    cr_assert_eq(blocks, before);
}

Test(base, growing_keeps_the_contents) {
    void *p;
    cr_assert(iso__alloc(10, &p) == ISO_OK);
    memcpy(p, "isotherms", 10);
    cr_assert(iso__realloc(&p, 10, 5000) == ISO_OK);
    cr_assert_str_eq((char *)p, "isotherms");
    void *old = p;
    cr_assert(iso__realloc(&p, 5000, SIZE_MAX - 1) == ISO_ERR_NOMEM && p == old);
    iso__free(p);
}

Test(base, impossible_sizes_are_refused) {
    void *p = NULL;
    cr_assert(iso__alloc(SIZE_MAX, &p) == ISO_ERR_NOMEM);
    cr_assert(iso__alloc(SIZE_MAX / 4, &p) == ISO_ERR_NOMEM && p == NULL);
}

// ---- Random numbers -----------------------------------------------------------------------------

// Known answers of philox4x32-10: kat_vectors of Random123 (Salmon et al., SC'11).
Test(base, philox_gives_the_known_answers) {
    static const uint32_t counter[3][4] = {{0, 0, 0, 0},
                                           {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                                           {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
    static const iso__philox_key key[3] = {
        {{0, 0}}, {{0xffffffff, 0xffffffff}}, {{0xa4093822, 0x299f31d0}}};
    static const uint32_t answer[3][4] = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                          {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                          {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        iso__philox(key[i], counter[i], out);
        cr_assert(memcmp(out, answer[i], sizeof(out)) == 0, "vector %d", i);
    }
}

Test(base, keys_of_close_seeds_purposes_and_streams_differ) {
    iso__philox_key seen[4 * 4 * 4];
    int count = 0;
    for (uint64_t seed = 0; seed < 4; seed++)
        for (uint32_t purpose = 1; purpose <= 4; purpose++)
            for (uint64_t stream = 0; stream < 4; stream++)
                seen[count++] = iso__philox_key_make(seed, purpose, stream);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++) cr_assert(memcmp(&seen[i], &seen[j], sizeof(seen[i])) != 0);
}

// Mean and variance of 400,000 draws within 4.5 standard errors, and 20 equal bins by chi-square:
// 19 degrees of freedom exceed 50 with probability 1e-4. The draws are fixed, so the test cannot be
// flaky.
Test(base, uniform_draws_are_uniform) {
    enum { CALLS = 100000, BINS = 20 };
    double sum = 0, squares = 0, chi = 0, n = 4.0 * CALLS;
    int bin[BINS] = {0};
    for (uint32_t i = 0; i < CALLS; i++) {
        uint32_t bits[4], counter[4] = {i, 0, 0, 0};
        iso__philox(iso__philox_key_make(1, ISO_RNG_TEST, 0), counter, bits);
        for (int l = 0; l < 4; l++) {
            double u = (double)iso__uniform(bits[l]);
            cr_assert(u >= 0 && u < 1);
            sum += u;
            squares += (u - 0.5) * (u - 0.5);
            bin[(int)(u * BINS)]++;
        }
    }
    for (int i = 0; i < BINS; i++) chi += pow(bin[i] - n / BINS, 2) / (n / BINS);
    cr_assert(fabs(sum / n - 0.5) < 4.5 * sqrt(1.0 / 12 / n));
    cr_assert(fabs(squares / n - 1.0 / 12) < 4.5 * sqrt(1.0 / 180 / n));
    cr_assert(chi < 50, "chi-square %g", chi);
}

// Test vectors of the FNV authors (http://www.isthe.com/chongo/tech/comp/fnv).
Test(base, hash_is_fnv_1a) {
    cr_assert(iso__hash(ISO_HASH_START, "", 0) == 0xcbf29ce484222325u);
    cr_assert(iso__hash(ISO_HASH_START, "a", 1) == 0xaf63dc4c8601ec8cu);
    cr_assert(iso__hash(iso__hash(ISO_HASH_START, "foo", 3), "bar", 3) == 0x85944171f73967e8u);
}

// Also where one change could take back what the other did: the same bit, in words of one chain.
Test(base, checksum_shows_one_and_two_changed_bits) {
    uint8_t data[96] = {0};
    uint64_t sum = iso__checksum(0, data, 96);
    for (int bit = 0; bit < 8 * 96; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_neq(iso__checksum(0, data, 96), sum, "bit %d", bit);
        for (int other = bit + 64; other < 8 * 96; other += 64) {
            data[other / 8] ^= (uint8_t)(1 << other % 8);
            cr_assert_neq(iso__checksum(0, data, 96), sum, "bits %d and %d", bit, other);
            data[other / 8] ^= (uint8_t)(1 << other % 8);
        }
        data[bit / 8] = 0;
    }
}

Test(base, checksum_depends_on_length_and_start) {
    const uint8_t zeros[40] = {0};
    for (size_t a = 0; a <= 40; a++)
        for (size_t b = 0; b < a; b++)
            cr_assert_neq(iso__checksum(0, zeros, a), iso__checksum(0, zeros, b), "%zu and %zu", a,
                          b);
    cr_assert_neq(iso__checksum(1, zeros, 40), iso__checksum(0, zeros, 40));
}

// Whatever the pieces: empty, smaller than a word, across words, and at once.
Test(base, checksum_of_pieces_is_that_of_all) {
    uint8_t data[200];
    for (int i = 0; i < 200; i++) data[i] = (uint8_t)(i * i + 3 * i);
    for (size_t bytes = 0; bytes <= sizeof(data); bytes += 7)
        for (size_t piece = 1; piece < 80; piece++) {
            iso__checksum_state state = iso__checksum_begin(5);
            for (size_t at = 0; at < bytes; at += piece) {
                iso__checksum_add(&state, data + at, bytes - at < piece ? bytes - at : piece);
                iso__checksum_add(&state, NULL, 0);
            }
            cr_assert_eq(iso__checksum_end(&state), iso__checksum(5, data, bytes),
                         "%zu bytes in pieces of %zu", bytes, piece);
        }
    // The value of the first version, which saved states contain.
    cr_assert_eq(iso__checksum(5, data, sizeof(data)), UINT64_C(0x155c712c504f0d5a));
}

// ---- Trace --------------------------------------------------------------------------------------

// A strict little JSON reader: returns the end of the value at `s`, NULL if it is not one.
static const char *skip_space(const char *s) { return s + strspn(s, " \t\r\n"); }
static const char *json_string(const char *s) {
    if (*s++ != '"') return NULL;
    for (; *s != '"'; s++) {
        if ((unsigned char)*s < 32) return NULL;
        if (*s == '\\' && !strchr("\"\\/bfnrt", *++s)) return NULL;
    }
    return s + 1;
}
static const char *json_value(const char *s);
static const char *json_members(const char *s, bool object) {
    char close = object ? '}' : ']';
    s = skip_space(s + 1);
    if (*s == close) return s + 1;
    for (;; s = skip_space(s + 1)) {
        if (object) {
            if (!(s = json_string(s))) return NULL;
            s = skip_space(s);
            if (*s++ != ':') return NULL;
        }
        if (!(s = json_value(s))) return NULL;
        s = skip_space(s);
        if (*s == close) return s + 1;
        if (*s != ',') return NULL;
    }
}
static const char *json_value(const char *s) {
    s = skip_space(s);
    if (*s == '{' || *s == '[') return json_members(s, *s == '{');
    if (*s == '"') return json_string(s);
    char *end;
    strtod(s, &end);
    return end != s && strchr("-0123456789", *s) ? end : NULL;
}

// The spans recorded so far as a JSON array; free with iso__free.
static char *trace_array(void) {
    char *text;
    size_t size;
    cr_assert(iso_trace_text(3, &text, &size) == ISO_OK);
    cr_assert(strlen(text) == size);
    void *array;
    cr_assert(iso__alloc(size + 3, &array) == ISO_OK);
    snprintf(array, size + 3, "[%s]", text);
    iso_trace_free_text(text);
    return array;
}

Test(base, trace_text_is_json) {
    static const char *const names[] = {
        "conv1", "quote\"back\\slash", "line\nfeed",
        "a name that is much longer than the forty-seven characters kept"};
    cr_assert(iso_trace_start(10) == ISO_OK);
    for (int i = 0; i < 4; i++) {
        int64_t now = iso_now();
        iso_trace_span(ISO_LANE_WAIT, names[i], now, now + 1500);
    }
    char *text = trace_array();
    const char *end = json_value(text);
    cr_assert(end && !*end, "not JSON: %s", text);
    cr_assert(strstr(text, "\"conv1\"") && strstr(text, "\"pid\":3") &&
              strstr(text, "\"dur\":1.500"));
    iso__free(text);
    iso_trace_stop();
}

Test(base, spans_begin_and_end) {
    iso_trace_end(ISO_LANE_COMPUTE, "unseen", iso_trace_begin(ISO_LANE_COMPUTE, "unseen"));
    cr_assert(iso_trace_start(10) == ISO_OK);
    int64_t early = iso_now(), outer = iso_trace_begin(ISO_LANE_COMPUTE, "outer");
    int64_t inner = iso_trace_begin(ISO_LANE_UPDATE, "inner");
    iso_trace_end(ISO_LANE_UPDATE, "inner", inner);
    iso_trace_end(ISO_LANE_COMPUTE, "outer", outer);
    iso_trace_end(ISO_LANE_COMPUTE, "unseen", 0);
    cr_assert(early <= outer && outer <= inner && inner <= iso_now());
    char *text = trace_array();
    cr_assert(strstr(text, "\"cat\":\"compute\",\"name\":\"outer\"") &&
              strstr(text, "\"cat\":\"update\",\"name\":\"inner\"") && !strstr(text, "unseen"));
    iso__free(text);
    iso_trace_stop();
    cr_assert(iso_trace_begin(ISO_LANE_COMPUTE, "late") == 0);
}

// A name that cannot be read at first: who copies it is held up in the middle of a span.
static char *name_page;
static atomic_bool copying, copied;

static void let_it_be_read(int signal) {
    (void)signal;
    copying = true;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    copied = true;
    mprotect(name_page, 4096, PROT_READ);
}

static void *record_slowly(void *unused) {
    iso_trace_span(ISO_LANE_EXCHANGE, name_page, 1, 2);
    return unused;
}

static void hold_a_span(pthread_t *thread) {
    copying = copied = false;
    cr_assert(mprotect(name_page, 4096, PROT_NONE) == 0);
    cr_assert(pthread_create(thread, NULL, record_slowly, NULL) == 0);
    while (!copying) sched_yield();
}

Test(base, a_trace_waits_for_spans_that_others_are_writing) {
    pthread_t thread;
    struct sigaction action = {.sa_handler = let_it_be_read};
    name_page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(name_page != MAP_FAILED && sigaction(SIGSEGV, &action, NULL) == 0);
    cr_assert(iso_trace_start(4) == ISO_OK);
    hold_a_span(&thread);
    iso__free(trace_array());
    cr_assert(copied);
    pthread_join(thread, NULL);
    hold_a_span(&thread);
    iso_trace_stop();
    cr_assert(copied);
    pthread_join(thread, NULL);
    munmap(name_page, 4096);
}

Test(base, a_full_trace_drops_the_rest) {
    cr_assert(iso_trace_start(3) == ISO_OK);
    iso_log_set_stream(NULL);
    for (int i = 0; i < 9; i++) iso_trace_span(ISO_LANE_COMPUTE, "span", i, i + 1);
    char *text = trace_array();
    int spans = 0;
    for (const char *at = text; (at = strstr(at, "\"span\"")); at++) spans++;
    cr_assert(spans == 3);
    iso__free(text);
    iso_trace_stop();
}

Test(base, nothing_is_recorded_before_start_and_after_stop) {
    char *text = NULL;
    size_t size;
    iso_trace_span(ISO_LANE_COMPUTE, "early", 0, 1);
    cr_assert(!iso_trace_on());
    cr_assert(iso_trace_text(0, &text, &size) == ISO_ERR_STATE && text == NULL);
    cr_assert(iso_trace_start(2) == ISO_OK && iso_trace_on());
    cr_assert(iso_trace_start(2) == ISO_ERR_STATE);
    iso_trace_stop();
    iso_trace_span(ISO_LANE_COMPUTE, "late", 0, 1);
    cr_assert(!iso_trace_on());
}

// SPDX-License-Identifier: MIT
// The flight recorder in memory: its ring, its streams, and several threads.
#include "common/balance.h"
#include "base/recording.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

TestSuite(recorder, .timeout = 60, .fini = balance_check);

static const iso_recorder_entry *entry_of(uint64_t n) {
    return &iso_recorder_memory()->entry[(n - 1) % ISO_RECORDER_RECORDS];
}

static uint64_t count_now(void) { return iso_recorder_memory()->count; }

Test(recorder, keeps_the_last_entries_in_order) {
    enum { MORE = ISO_RECORDER_RECORDS + 100 };
    uint64_t before = count_now();
    for (uint32_t i = 0; i < MORE; i++) iso_recorder_note("step", i);
    cr_assert_eq(count_now(), before + MORE);
    int64_t last = 0;
    for (uint64_t n = before + 101; n <= before + MORE; n++) {
        const iso_recorder_entry *e = entry_of(n);
        cr_assert(e->number == n && e->event == ISO_RECORDER_NOTE && e->time_ns >= last);
        cr_assert(e->sequence == n - before - 1 && strcmp(e->name, "step") == 0);
        last = e->time_ns;
    }
}

Test(recorder, long_names_are_cut_and_short_ones_leave_no_rest) {
    iso_recorder_note("a name that is much longer than the room for it", 1);
    cr_assert_str_eq(entry_of(count_now())->name, "a name that is much longer than");
    iso_recorder_wait("b");
    const iso_recorder_entry *e = entry_of(count_now());
    for (size_t i = 1; i < sizeof(e->name); i++) cr_assert_eq(e->name[i], 0);
    iso_recorder_woke(NULL);
    cr_assert_str_eq(entry_of(count_now())->name, "");
}

Test(recorder, streams_of_a_group_are_numbered_and_count) {
    uint16_t a = iso__recorder_stream(7, 0, 2, "first"), other = iso__recorder_stream(9, 0, 3, "x");
    uint16_t b = iso__recorder_stream(7, 0, 2, "second");
    const iso_recorder_stream *all = iso_recorder_memory()->stream;
    cr_assert(all[a].ordinal == 0 && all[b].ordinal == 1 && all[other].ordinal == 0);
    iso__record_posted(a, 1, 10, "p");
    iso__record_posted(a, 2, 20, "q");
    iso__record_posted(b, 1, 30, "r");
    iso__record_done(a, 2, 20, "q");
    cr_assert(entry_of(count_now())->sequence == 2 && entry_of(count_now())->stream == a);
    iso__record_call(a, "a barrier");
    cr_assert(all[a].posted == 2 && all[a].done == 1 && all[a].called == 1 && all[b].posted == 1);
    for (int i = 0; i < 2 * ISO_RECORDER_STREAMS; i++) (void)iso__recorder_stream(5, 0, 1, "many");
    cr_assert_eq(iso__recorder_stream(5, 0, 1, "many"), ISO_RECORDER_STREAMS - 1);
    cr_assert_eq(all[ISO_RECORDER_STREAMS - 1].group, 0, "the last one stands for all others");
}

// Places are taken again, in the order of closing; ordinals are not.
Test(recorder, places_of_closed_streams_are_taken_again) {
    const iso_recorder_stream *all = iso_recorder_memory()->stream;
    for (uint32_t i = 0; i < 10 * ISO_RECORDER_STREAMS; i++) {
        uint16_t at = iso__recorder_stream(5, 0, 1, "one of many");
        cr_assert(at < ISO_RECORDER_STREAMS - 1 && all[at].ordinal == i && all[at].posted == 0);
        cr_assert(all[at].since == (i < ISO_RECORDER_STREAMS - 1 ? 0 : count_now()));
        iso__record_posted(at, 1, 10, "p");
        iso__recorder_close(at);
    }
    uint16_t open = iso__recorder_stream(6, 0, 1, "stays"), first = 0;
    for (int i = 0; i < ISO_RECORDER_STREAMS - 2; i++) {
        uint16_t at = iso__recorder_stream(5, 0, 1, "more");
        cr_assert(at != open && at < ISO_RECORDER_STREAMS - 1);
        if (i == 0) first = at;
    }
    cr_assert_eq(iso__recorder_stream(5, 0, 1, "too many"), ISO_RECORDER_STREAMS - 1);
    cr_assert_str_eq(all[open].name, "stays");
    iso__recorder_close(first);
    cr_assert_eq(iso__recorder_stream(7, 0, 1, "again"), first);
}

Test(recorder, the_first_reason_stays) {
    iso_recorder_fail(ISO_ERR_IO, "first");
    iso_recorder_fail(ISO_ERR_IO, "second");
    cr_assert_str_eq(iso_recorder_memory()->reason, "first");
    cr_assert(iso_recorder_memory()->failed_ns > 0);
}

Test(recorder, errors_are_entries_and_time_outs_are_reasons) {
    (void)ISO_FAIL(ISO_ERR_STATE, "not now");
    cr_assert(entry_of(count_now())->event == ISO_RECORDER_ERROR);
    cr_assert(entry_of(count_now())->sequence == 7 && iso_recorder_memory()->failed_ns == 0);
    (void)ISO_FAIL(ISO_ERR_TIMEOUT, "too late");
    cr_assert_str_eq(iso_recorder_memory()->reason, "too late");
    cr_assert_eq(iso_recorder_memory()->failed_code, ISO_ERR_TIMEOUT);
    (void)ISO_FAIL(ISO_ERR_TIMEOUT, "again");
    cr_assert_str_eq(iso_recorder_memory()->reason, "too late");
    iso_recorder_fail(ISO_ERR_IO, "the end"); // the program has survived the time-out
    cr_assert_str_eq(iso_recorder_memory()->reason, "the end");
}

enum { THREADS = 4, NOTES = 20000 };

static void *write_notes(void *argument) {
    for (uint32_t i = 0; i < NOTES; i++) iso_recorder_note(argument, i);
    return NULL;
}

// Each thread has a name of one letter, repeated: a mixture of two would show. A thread that the
// system holds up while the others go once around the ring spoils an entry, which its number shows.
Test(recorder, threads_do_not_mix_entries) {
    static char name[THREADS][8] = {"aaaaaaa", "bbbbbbb", "ccccccc", "ddddddd"};
    pthread_t thread[THREADS];
    for (int t = 0; t < THREADS; t++) pthread_create(&thread[t], NULL, write_notes, name[t]);
    for (int t = 0; t < THREADS; t++) pthread_join(thread[t], NULL);
    cr_assert_eq(count_now(), THREADS * NOTES);
    int whole = 0;
    for (uint64_t n = count_now() - ISO_RECORDER_RECORDS + 1; n <= count_now(); n++) {
        const char *said = entry_of(n)->name;
        if (entry_of(n)->number != n) continue;
        whole++;
        cr_assert(strlen(said) == 7 && strspn(said, (char[2]){said[0], 0}) == 7);
    }
    cr_assert(whole > ISO_RECORDER_RECORDS - 2 * THREADS);
}

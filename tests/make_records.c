// SPDX-License-Identifier: MIT
// Writes flight records of a made-up job of three ranks, for check_postmortem.sh: make_records
// FOLDER CASE same: all ranks have started the same. differs: exchange 3 differs on rank 1. behind:
// rank 2 lacks two exchanges and a call. torn: as same, with incomplete entries and wild numbers.
// earlier: as same, of another job, an hour before. wrapped: as behind, but the ring holds only the
// end. woke: as same, and all have timed out: rank 0 found rank 1 stopped, which woke at the end.
#include <isotherm/recorder.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3 };
static const int64_t second = 1000000000, start = (int64_t)1700000000 * 1000000000;

static iso_recorder_file file;

static void add(iso_recorder_event event, int stream, uint32_t sequence, uint64_t bytes,
                const char *name, double seconds) {
    uint64_t n = ++file.count;
    iso_recorder_entry *e = &file.entry[(n - 1) % ISO_RECORDER_RECORDS];
    *e = (iso_recorder_entry){.number = n,
                              .time_ns = file.started_ns + (int64_t)(seconds * (double)second),
                              .bytes = bytes,
                              .sequence = sequence,
                              .event = (uint16_t)event,
                              .stream = (uint16_t)stream};
    snprintf(e->name, sizeof(e->name), "%s", name);
}

static void begin(int rank, int64_t started, uint64_t job) {
    memset(&file, 0, sizeof(file));
    memcpy(file.magic, ISO_RECORDER_MAGIC, sizeof(file.magic));
    file.bytes = sizeof(file);
    file.rank = rank;
    file.size = RANKS;
    file.pid = 1000 + rank;
    file.started_ns = started;
    file.job = job;
    snprintf(file.host, sizeof(file.host), "host%d", rank / 2);
    // Rank 0 alone has a stream before the common one, so that its index differs between ranks.
    int at = rank == 0;
    if (rank == 0) file.stream[0] = (iso_recorder_stream){.group = 99, .size = 1};
    file.stream[at] = (iso_recorder_stream){.group = 5, .rank = rank, .size = RANKS};
}

static void exchange(int rank, uint32_t sequence, const char *name, double seconds) {
    int at = rank == 0;
    file.stream[at].posted = file.stream[at].done = sequence;
    add(ISO_RECORDER_POSTED, at, sequence, 64, name, seconds);
    add(ISO_RECORDER_DONE, at, sequence, 64, name, seconds + 0.01);
}

static void call(int rank, uint32_t sequence, double seconds) {
    file.stream[rank == 0].called = sequence;
    add(ISO_RECORDER_CALL, rank == 0, sequence, 0, "a barrier", seconds);
}

static void fill(int rank, const char *kind) {
    static const char *const name[] = {"fc1", "fc2", "fc3", "fc4", "fc5"};
    bool behind = rank == 2 && (strcmp(kind, "behind") == 0 || strcmp(kind, "wrapped") == 0);
    bool differs = rank == 1 && strcmp(kind, "differs") == 0;
    int notes = strcmp(kind, "wrapped") == 0 ? ISO_RECORDER_RECORDS : 0;
    call(rank, 1, 0.5);
    for (int i = 0; i < notes; i++) add(ISO_RECORDER_NOTE, 0, 1, 0, "step", 0.6);
    for (uint32_t e = 1; e <= (behind ? 3 : 5); e++)
        exchange(rank, e, differs && e == 3 ? "fc2" : name[e - 1], e);
    if (behind) return;
    call(rank, 2, 6);
    add(ISO_RECORDER_WAIT, 0, 0, 0, "a barrier", 6.01);
    add(ISO_RECORDER_NOTE, 0, 17, 0, "epoch", 10);
}

// Numbers that no record has: a reader must not follow them.
static void tear(void) {
    file.entry[2].number = 0;
    file.entry[3].stream = 60000;
    file.entry[4].event = 77;
    memset(file.entry[5].name, 'x', sizeof(file.entry[5].name));
    memset(file.host, 'y', sizeof(file.host));
    memset(file.reason, 'z', sizeof(file.reason));
}

static void time_out(int rank) {
    file.failed_code = ISO_ERR_TIMEOUT;
    file.failed_ns = start + (rank == 1 ? 13 : 12) * second;
    snprintf(file.reason, sizeof(file.reason), "rank %d of 3 waited 8 s for a barrier%s", rank,
             rank == 0   ? ": rank 1 on host0 is stopped by a signal (ISO_TIMEOUT sets the limit)"
             : rank == 1 ? ": the process of rank 0 on host0 has ended"
                         : "");
}

int main(int argc, char **argv) {
    if (argc != 3) return EXIT_FAILURE;
    bool earlier = strcmp(argv[2], "earlier") == 0;
    for (int rank = 0; rank < RANKS; rank++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/rank-%d%s.rec", argv[1], rank, earlier ? "-old" : "");
        begin(rank, earlier ? start - 3600 * second : start, earlier ? 1 : 2);
        fill(rank, argv[2]);
        if (strcmp(argv[2], "torn") == 0) tear();
        if (strcmp(argv[2], "woke") == 0) time_out(rank);
        FILE *to = fopen(path, "wb");
        if (!to || fwrite(&file, sizeof(file), 1, to) != 1 || fclose(to) != 0) return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

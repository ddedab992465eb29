// SPDX-License-Identifier: MIT
// The table of all ISO_* environment variables: reads and checks their values, and finds unknown
// names.
#include "base/base.h"

#include <stdio.h>
#include <string.h>

extern char **environ;

typedef struct env_entry {
    const char *name, *fallback, *meaning;
    const char *words; // the allowed words, separated by spaces; NULL: a number or any text
    double low, high;
    bool whole; // only whole numbers are allowed
    bool text;  // any text is allowed
    // Whether ranks that have different values would exchange in different ways, or compute
    // different bits. Other variables may differ: those for progress (by a thread or the program,
    // how often) only decide when an exchange is complete, and a time-out only decides when a rank
    // gives up. A CUDA graph launches the same kernels.
    bool alike;
} env_entry;

static const env_entry env_table[ISO_ENV_COUNT] = {
    [ISO_ENV_LOG] = {"ISO_LOG", "warn", "level of the library's log: error, warn, info, debug",
                     .words = "error warn info debug"},
    [ISO_ENV_DEBUG] =
        {"ISO_DEBUG", "off",
         "off; info: log environment, buckets, order and statistics; detail: also compare "
         "the collectives of all ranks",
         .words = "off info detail", .alike = true},
    [ISO_ENV_PROGRESS] = {"ISO_PROGRESS", "auto",
                          "who drives communication during computation: auto, off, poll, thread",
                          .words = "auto off poll thread"},
    [ISO_ENV_PROGRESS_US] = {"ISO_PROGRESS_US", "adaptive",
                             "microseconds that the progress thread sleeps between tests",
                             .high = 999999},
    [ISO_ENV_PROGRESS_CORE] =
        {"ISO_PROGRESS_CORE", "shared",
         "shared; own: iso-train gives the progress thread a core of its own, "
         "if a rank has more cores than compute threads",
         .words = "shared own"},
    [ISO_ENV_TIMEOUT] = {"ISO_TIMEOUT", "300",
                         "seconds before a wait fails and names what is pending; 0: never",
                         .high = 1e9},
    [ISO_ENV_RECORDER] = {"ISO_RECORDER", "none",
                          "folder for the flight recorder's files, which iso-postmortem reads",
                          .text = true},
    [ISO_ENV_STALL_WARN] = {"ISO_STALL_WARN", "30",
                            "seconds after which a waiting rank warns and names the ranks that it "
                            "waits for, and again whenever the wait has doubled; 0: never",
                            .high = 1e9},
    [ISO_ENV_STEP_TIMEOUT] = {"ISO_STEP_TIMEOUT", "0",
                              "seconds without progress of training or evaluation after which a "
                              "rank ends itself, and says so; 0: never",
                              .high = 1e9},
    [ISO_ENV_WATCHDOG] =
        {"ISO_WATCHDOG", "0",
         "seconds after which iso-train and iso-sweep end mpirun, if it still runs "
         "so long after a rank has ended; 0: never",
         .high = 1e9},
    [ISO_ENV_RANKS_PER_NODE] = {"ISO_RANKS_PER_NODE", "the ranks of a host",
                                "number of consecutive ranks that form a node", .low = 1,
                                .high = 1e6, .whole = true, .alike = true},
    [ISO_ENV_NODE_COLLECTIVE] = {"ISO_NODE_COLLECTIVE", "auto",
                                 "how ranks sum gradients: auto (NCCL between the GPUs of a node, "
                                 "shared memory on CPUs), nccl, nccl-all (NCCL between nodes, "
                                 "too), shm, mpi",
                                 "auto nccl nccl-all shm mpi", .alike = true},
    [ISO_ENV_IALLREDUCE] = {"ISO_IALLREDUCE", "5",
                            "value for Open MPI's coll_libnbc_iallreduce_algorithm, unless you set "
                            "that yourself: 0 automatic, "
                            "1 ring, 2 binomial, 3 Rabenseifner, 4 recursive doubling, 5 "
                            "Rabenseifner, but pairwise exchange of gradients between hosts "
                            "whose number is no power of two (directly between up to 128, "
                            "otherwise by halves), 6 the same, but always by halves",
                            .high = 6, .whole = true, .alike = true},
    [ISO_ENV_CPU_KERNELS] = {"ISO_CPU_KERNELS", "best available",
                             "CPU kernels: onednn, cblas, reference (plain C)",
                             "onednn cblas reference", .alike = true},
    [ISO_ENV_DIGITS] =
        {"ISO_DIGITS", "60000",
         "number of generated digits for training, at least 600; a sixth as many are for "
         "tests",
         .low = 600, .high = 1e8, .whole = true, .alike = true},
    [ISO_ENV_CUDA_CONV] = {"ISO_CUDA_CONV", "cudnn if installed",
                           "convolutions on a GPU: cudnn, gemm (cuBLAS)", "cudnn gemm",
                           .alike = true},
    [ISO_ENV_CUDA_GRAPHS] = {"ISO_CUDA_GRAPHS", "1",
                             "launch recurring work on a GPU as CUDA graphs: 0, 1", .high = 1,
                             .whole = true},
};

// Prefixes of variables that other programs and tests read, and the library does not.
static const char *const others[] = {"ISO_TEST_", "ISO_EMULATED_", "ISO_MNIST_"};

const char *iso__env_name(iso__env variable) { return env_table[variable].name; }

const char *iso__env_string(iso__env variable) {
    const char *value = getenv(env_table[variable].name);
    return value && value[0] ? value : NULL;
}

// ---- Values -----------------------------------------------------------------------------------------

// Whether `text` is one of the words.
static bool is_word(const char *words, const char *text) {
    size_t length = strlen(text);
    for (const char *at = words; length > 0 && at && *at;) {
        size_t n = strcspn(at, " ");
        if (n == length && strncmp(at, text, n) == 0) return true;
        at += n + strspn(at + n, " ");
    }
    return false;
}

// "auto, off, poll or thread"
static void list_words(const char *words, char *out, size_t room) {
    size_t used = 0;
    out[0] = 0;
    for (const char *at = words; *at && used < room;) {
        size_t n = strcspn(at, " "), gap = strspn(at + n, " ");
        const char *before = used == 0 ? "" : at[n + gap] ? ", " : " or ";
        int written = snprintf(out + used, room - used, "%s%.*s", before, (int)n, at);
        used += written > 0 ? (size_t)written : 0;
        at += n + gap;
    }
}

static iso_status read_number(const env_entry *e, const char *text, double *out) {
    char *end;
    double value = strtod(text, &end);
    bool right = end != text && !*end && value >= e->low && value <= e->high;
    if (right && e->whole) right = value == (double)(long long)value;
    ISO_CHECK(right, ISO_ERR_ARG,
              "environment variable %s is \"%s\": give a %snumber from %.10g to %.10g", e->name,
              text, e->whole ? "whole " : "", e->low, e->high);
    *out = value;
    return ISO_OK;
}

iso_status iso__env_number(iso__env variable, double fallback, double *out) {
    const char *text = iso__env_string(variable);
    if (text) return read_number(&env_table[variable], text, out);
    *out = fallback;
    return ISO_OK;
}

iso_status iso__env_check(iso__env variable) {
    const env_entry *e = &env_table[variable];
    const char *text = iso__env_string(variable);
    char known[128];
    double number;
    if (!text || e->text) return ISO_OK;
    if (!e->words) return read_number(e, text, &number);
    list_words(e->words, known, sizeof(known));
    ISO_CHECK(is_word(e->words, text), ISO_ERR_ARG, "environment variable %s is \"%s\": give %s",
              e->name, text, known);
    return ISO_OK;
}

iso_status iso__env_check_all(void) {
    for (int i = 0; i < ISO_ENV_COUNT; i++) ISO_TRY(iso__env_check((iso__env)i));
    return ISO_OK;
}

// ---- Ranks ------------------------------------------------------------------------------------------

bool iso__env_is_alike(iso__env variable) { return env_table[variable].alike; }

static bool is_value(const env_entry *e, const char *text) {
    char *end;
    if (e->words) return is_word(e->words, text);
    return strtod(text, &end) >= e->low && end != text && !*end;
}

const char *iso__env_effective(iso__env variable) {
    const env_entry *e = &env_table[variable];
    const char *text = iso__env_string(variable);
    return text ? text : is_value(e, e->fallback) ? e->fallback : NULL;
}

// ---- Names ------------------------------------------------------------------------------------------

#define NAME_ROOM 64

static int least_of(int a, int b, int c) {
    int m = a < b ? a : b;
    return m < c ? m : c;
}

// How many letters must be put in, left out or replaced to make one name of the other.
static int distance_of(const char *a, size_t length, const char *b) {
    int row[NAME_ROOM + 1];
    size_t n = strlen(b) < NAME_ROOM ? strlen(b) : NAME_ROOM;
    for (size_t k = 0; k <= n; k++) row[k] = (int)k;
    for (size_t i = 1; i <= length; i++) {
        int corner = row[0];
        row[0] = (int)i;
        for (size_t k = 1; k <= n; k++) {
            int above = row[k];
            row[k] = least_of(above + 1, row[k - 1] + 1, corner + (a[i - 1] != b[k - 1]));
            corner = above;
        }
    }
    return row[n];
}

static const char *nearest_name(const char *name, size_t length) {
    int best = 0;
    for (int i = 1; i < ISO_ENV_COUNT; i++)
        if (distance_of(name, length, env_table[i].name) <
            distance_of(name, length, env_table[best].name))
            best = i;
    return env_table[best].name;
}

static bool is_known(const char *name, size_t length) {
    for (int i = 0; i < ISO_ENV_COUNT; i++)
        if (strlen(env_table[i].name) == length && strncmp(env_table[i].name, name, length) == 0)
            return true;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strncmp(others[i], name, strlen(others[i])) == 0) return true;
    return false;
}

uint64_t iso__env_unknown(bool warn) {
    uint64_t sum = 0; // a sum, because variables may be in any order
    for (char **at = environ; at && *at; at++) {
        size_t length = strcspn(*at, "=");
        if (strncmp(*at, "ISO_", 4) != 0 || is_known(*at, length)) continue;
        sum += iso__hash(ISO_HASH_START, *at, length);
        if (warn)
            iso__log(ISO_LOG_WARN,
                     "environment variable %.*s is unknown and has no effect: did you mean "
                     "%s?",
                     (int)length, *at, nearest_name(*at, length));
    }
    return sum;
}

// ---- Help -------------------------------------------------------------------------------------------

void iso_env_print(FILE *to) {
    for (int i = 0; i < ISO_ENV_COUNT; i++) {
        const char *value = iso__env_string((iso__env)i);
        fprintf(to, "%-20s %s\n%-20s default %s%s%s\n", env_table[i].name, env_table[i].meaning, "",
                env_table[i].fallback, value ? ", now " : "", value ? value : "");
    }
}

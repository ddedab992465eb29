// Log levels with rank prefix, and the one table of all ISO_* environment variables.
#include "base/base.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

typedef struct env_entry {
    const char *name, *fallback, *meaning;
} env_entry;

static const env_entry env_table[ISO_ENV_COUNT] = {
    [ISO_ENV_LOG] = {"ISO_LOG", "warn",
                     "level of the library's messages: error, warn, info, debug"},
    [ISO_ENV_PROGRESS] =
        {"ISO_PROGRESS", "auto",
         "who drives exchanges while the program computes: auto, off, poll, thread"},
    [ISO_ENV_PROGRESS_US] = {"ISO_PROGRESS_US", "adaptive",
                             "fixed sleep of the progress thread between tests, in microseconds"},
    [ISO_ENV_TIMEOUT] = {"ISO_TIMEOUT", "300",
                         "seconds before a wait gives up and names what is pending; 0: never"},
    [ISO_ENV_RANKS_PER_NODE] = {"ISO_RANKS_PER_NODE", "what shares memory",
                                "ranks that count as one node (consecutive ranks)"},
    [ISO_ENV_NODE_COLLECTIVE] = {"ISO_NODE_COLLECTIVE", "auto",
                                 "how the ranks of a node sum gradients: auto (NCCL between GPUs, "
                                 "shared memory on the host, "
                                 "where possible), nccl, shm, mpi"},
    [ISO_ENV_IALLREDUCE] =
        {"ISO_IALLREDUCE", "3",
         "Open MPI's coll_libnbc_iallreduce_algorithm, unless that is set itself: 0 its own "
         "choice, 1 ring, 2 binomial, 3 Rabenseifner, 4 recursive doubling"},
    [ISO_ENV_CPU_KERNELS] = {"ISO_CPU_KERNELS", "best available",
                             "CPU kernels: onednn, cblas, reference (plain C)"},
    [ISO_ENV_CUDA_CONV] = {"ISO_CUDA_CONV", "cudnn where it is there",
                           "convolutions on a GPU: cudnn, gemm (products by cuBLAS)"},
    [ISO_ENV_CUDA_GRAPHS] = {"ISO_CUDA_GRAPHS", "0",
                             "whether steps on a GPU that come again are launched as CUDA graphs: "
                             "0, 1"},
};

static _Atomic int level = -1; // -1: not yet read from ISO_LOG
static _Atomic int rank = -1;
static FILE *_Atomic stream;
static _Atomic int silenced;

const char *iso__env_string(iso__env variable) {
    const char *value = getenv(env_table[variable].name);
    return value && value[0] ? value : NULL;
}

iso_status iso__env_number(iso__env variable, double low, double high, double fallback,
                           double *out) {
    const char *text = iso__env_string(variable);
    if (!text) {
        *out = fallback;
        return ISO_OK;
    }
    char *end;
    double value = strtod(text, &end);
    ISO_CHECK(end != text && !*end && value >= low && value <= high, ISO_ERR_ARG,
              "environment variable %s is \"%s\": give a number from %g to %g",
              env_table[variable].name, text, low, high);
    *out = value;
    return ISO_OK;
}

void iso_env_print(FILE *to) {
    for (int i = 0; i < ISO_ENV_COUNT; i++) {
        const char *value = iso__env_string((iso__env)i);
        fprintf(to, "%-20s %s\n%-20s default %s%s%s\n", env_table[i].name, env_table[i].meaning, "",
                env_table[i].fallback, value ? ", now " : "", value ? value : "");
    }
}

static const char *const level_name[] = {"error", "warn", "info", "debug"};

// A value that is none is warn, and rank 0 says so.
static void read_level(void) {
    const char *text = iso__env_string(ISO_ENV_LOG);
    level = ISO_LOG_WARN;
    for (int i = 0; text && i <= ISO_LOG_DEBUG; i++) {
        if (strcmp(text, level_name[i]) != 0) continue;
        level = i;
        return;
    }
    if (text && rank <= 0)
        iso__log(ISO_LOG_WARN,
                 "environment variable ISO_LOG is \"%s\": give error, warn, info or debug: it "
                 "is taken as warn",
                 text);
}

int iso__log_level(void) {
    if (level < 0) read_level();
    return level;
}

void iso_log_set_level(iso_log_level new_level) { level = (int)new_level; }
void iso_log_set_stream(FILE *to) {
    stream = to;
    silenced = to == NULL;
}
void iso_log_set_rank(int new_rank) {
    rank = new_rank;
    iso__log_level(); // says what is wrong with ISO_LOG
}
int iso__log_rank(void) { return rank; }

void iso__log(iso_log_level at, const char *format, ...) {
    if ((int)at > iso__log_level() || silenced) return;
    FILE *to = stream ? stream : stderr;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    // One call, so that lines of ranks sharing a terminal do not mix.
    if (rank >= 0)
        fprintf(to, "isotherm[%d] %s: %s\n", rank, level_name[at], text);
    else
        fprintf(to, "isotherm %s: %s\n", level_name[at], text);
}

// SPDX-License-Identifier: MIT
// Cores: asks the system which ones a rank may use, exchanges this with the other ranks, and keeps
// threads on the rank's share.
#include <config.h> // before all others: sched.h shows sets of processors to GNU sources only

#include "comm/comm_calls.h"
#include "comm/comm_state.h"
#include "comm/cores_impl.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

_Static_assert(ISO_CORES_WORDS == sizeof(((iso_cores *)0)->share) / sizeof(uint64_t), "one mask");

static bool get_bit(const uint64_t *mask, int i) { return mask[i / 64] >> i % 64 & 1; }
static void set_bit(uint64_t *mask, int i) { mask[i / 64] |= UINT64_C(1) << i % 64; }

// ---- This rank ------------------------------------------------------------------------------------

// The system's number `what` of a hardware thread; if it is unknown, a number that no other thread
// has.
static int64_t topology_number(int cpu, const char *what) {
    char path[96];
    long long number;
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what);
    FILE *file = fopen(path, "r");
    int read = file ? fscanf(file, "%lld", &number) : 0;
    if (file) fclose(file);
    return read == 1 ? number : -1 - cpu;
}

// A number of the core that a hardware thread belongs to.
static int64_t core_of(int cpu) {
    return topology_number(cpu, "physical_package_id") * 65536 + topology_number(cpu, "core_id");
}

// Finds the first hardware thread of each core, and counts the cores.
static void find_cores(iso__cores_record *r) {
    int64_t seen[ISO_CORES_WORDS * 64];
    for (int cpu = 0; cpu < ISO_CORES_WORDS * 64; cpu++) {
        if (!get_bit(r->mask, cpu)) continue;
        int64_t core = core_of(cpu);
        int i = 0;
        while (i < r->cores && seen[i] != core) i++;
        if (i < r->cores) continue;
        seen[r->cores++] = core;
        set_bit(r->first, cpu);
    }
}

static int read_mask(pid_t process, uint64_t *mask) {
    cpu_set_t set;
    // Fails if the system's mask is longer than cpu_set_t; then the cores are unknown, and nothing
    // is reported.
    if (sched_getaffinity(process, sizeof(set), &set) != 0) return 0;
    for (int cpu = 0; cpu < ISO_CORES_WORDS * 64 && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &set)) set_bit(mask, cpu);
    return CPU_COUNT(&set);
}

static void describe_rank(iso__cores_record *r, const iso_comm *comm, int threads) {
    char host[MPI_MAX_PROCESSOR_NAME] = "";
    int length;
    *r = (iso__cores_record){.threads = threads};
    const char *core = iso__env_string(ISO_ENV_PROGRESS_CORE);
    r->helper = comm->size > 1 && comm->engine->mode == ISO_PROGRESS_THREAD;
    r->own = r->helper && core && strcmp(core, "own") == 0;
    if (MPI_Get_processor_name(host, &length) == MPI_SUCCESS)
        memcpy(r->host, host, strnlen(host, sizeof(r->host) - 1));
    // A launcher binds the processes that it starts but not itself, so its mask has all cores.
    uint64_t launcher[ISO_CORES_WORDS] = {0};
    r->reach = read_mask(getppid(), launcher);
    int own = read_mask(0, r->mask);
    if (own > r->reach) r->reach = own;
    find_cores(r);
}

// ---- All ranks ------------------------------------------------------------------------------------

iso_status iso_cores_survey(iso_comm *comm, int threads, iso_cores *out) {
    const size_t words = sizeof(iso__cores_record) / sizeof(int64_t);
    void *memory = NULL;
    size_t bytes = (size_t)comm->size * sizeof(iso__cores_record);
    ISO_TRY(iso__comm_alloc_zero(comm, bytes, &memory));
    iso__cores_record *records = memory;
    describe_rank(&records[comm->rank], comm, threads);
    iso_status status = iso_comm_allreduce_i64(comm, memory, words * (size_t)comm->size, ISO_SUM);
    if (status == ISO_OK) status = iso__cores_judge(records, comm->size, comm->rank, out);
    iso__free(memory);
    ISO_TRY(iso_comm_agree(comm, status));
    iso__log(ISO_LOG_INFO, "%s, %d compute thread%s", out->mine, threads, threads > 1 ? "s" : "");
    return ISO_OK;
}

// Returns whether there is any.
static bool fill_set(const uint64_t *mask, cpu_set_t *set) {
    CPU_ZERO(set);
    for (int cpu = 0; cpu < ISO_CORES_WORDS * 64 && cpu < CPU_SETSIZE; cpu++)
        if (get_bit(mask, cpu)) CPU_SET((size_t)cpu, set);
    return CPU_COUNT(set) > 0;
}

bool iso_cores_bind(const iso_cores *cores) {
    static const char *const others[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
                                         "KMP_AFFINITY"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (getenv(others[i])) return false;
    cpu_set_t set;
    return fill_set(cores->share, &set) && sched_setaffinity(0, sizeof(set), &set) == 0;
}

bool iso_cores_pin_progress(iso_comm *comm, const iso_cores *cores) {
    cpu_set_t set;
    const iso__engine *engine = comm->engine;
    if (!engine->thread_runs || !fill_set(cores->progress, &set)) return false;
    if (pthread_setaffinity_np(engine->thread, sizeof(set), &set) != 0) return false;
    iso__log(ISO_LOG_INFO, "the progress thread has a core of its own");
    return true;
}

// SPDX-License-Identifier: MIT
// Chooses kernels by time: measures candidates on the caller's data, and keeps the choices as bytes
// that can be sent to other ranks.
#include "device/cpu/onednn/onednn_impl.h"

#include <isotherm/trace.h>
#include <string.h>

#define ROUNDS 5
// The rule's kernel stays unless another takes less than this part of its time, so that noise does
// not change the choice from run to run.
#define WORTHWHILE 0.97

// A choice as sent to other ranks.
typedef struct choice {
    int64_t key[ISO_ONEDNN_RULE]; // of the kernel, with the rows and what is added to as zero
    int64_t candidate;
} choice;

struct iso__tuner {
    bool measuring;
    int count, capacity;
    choice *list;
};

iso_status iso__tuner_create(struct iso__tuner **out) {
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(struct iso__tuner), &memory));
    *out = memory;
    return ISO_OK;
}

void iso__tuner_destroy(struct iso__tuner **tuner) {
    if (*tuner) iso__free((*tuner)->list);
    iso__free(*tuner);
    *tuner = NULL;
}

// ---- What was chosen --------------------------------------------------------------------------------

static choice choice_of(const iso__onednn_key *key) {
    choice c;
    memcpy(c.key, key->value, sizeof(c.key));
    c.key[ISO_ONEDNN_FLAGS] &= ~(int64_t)ISO_ONEDNN_ACCUMULATE;
    c.key[ISO_ONEDNN_ROWS] = 0;
    c.candidate = ISO_ONEDNN_BY_RULE;
    return c;
}

static const choice *find_choice(const struct iso__tuner *tuner, const choice *wanted) {
    for (int i = 0; i < tuner->count; i++)
        if (memcmp(tuner->list[i].key, wanted->key, sizeof(wanted->key)) == 0)
            return &tuner->list[i];
    return NULL;
}

static iso_status keep_choice(struct iso__tuner *tuner, const choice *chosen) {
    if (tuner->count == tuner->capacity) {
        int more = tuner->capacity ? 2 * tuner->capacity : 32;
        void *list = tuner->list;
        ISO_TRY(iso__realloc(&list, (size_t)tuner->count * sizeof(choice),
                             (size_t)more * sizeof(choice)));
        tuner->list = list;
        tuner->capacity = more;
    }
    tuner->list[tuner->count++] = *chosen;
    return ISO_OK;
}

// ---- Measuring --------------------------------------------------------------------------------------

typedef struct timing {
    int64_t best; // nanoseconds; 0: there is no such kernel
    const char *name;
} timing;

// Candidates take turns, so that other load on the machine affects all alike.
static iso_status measure_candidates(iso__cpu *cpu, const iso__onednn_problem *problem,
                                     timing *timings) {
    for (int round = 0; round <= ROUNDS; round++)
        for (int c = ISO_ONEDNN_BY_RULE; c < problem->candidates; c++) {
            timing *t = &timings[c - ISO_ONEDNN_BY_RULE];
            if (round > 0 && t->best == 0) continue;
            int64_t start = iso_now();
            iso_status status = problem->run(cpu, problem, c);
            int64_t took = iso_now() - start;
            if (status == ISO_ERR_UNSUPPORTED && c != ISO_ONEDNN_BY_RULE) continue;
            ISO_TRY(status);
            // The first round makes the kernel and fills caches.
            if (round <= 1 || took < t->best) t->best = took;
            t->name = cpu->base.kernel;
        }
    return ISO_OK;
}

static int choose_fastest(const timing *timings, int count) {
    int best = 0;
    for (int i = 1; i < count; i++) {
        double limit = (double)timings[best].best * (best == 0 ? WORTHWHILE : 1.0);
        if (timings[i].best > 0 && (double)timings[i].best < limit) best = i;
    }
    return best;
}

static void log_timings(const iso__onednn_problem *problem, const timing *timings, int count,
                        int best) {
    char text[512], what[128];
    size_t used = 0;
    problem->describe(problem, what, sizeof(what));
    text[0] = 0;
    for (int i = 0; i < count && used < sizeof(text); i++)
        if (timings[i].best > 0)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s%s %.3f ms",
                                     used ? ", " : "", i == 0 ? "by rule " : "", timings[i].name,
                                     (double)timings[i].best / 1e6);
    iso__log(ISO_LOG_INFO, "kernel for %s: %s (%s)", what, timings[best].name, text);
}

static iso_status tune_problem(iso__cpu *cpu, const iso__onednn_problem *problem, choice *chosen) {
    timing timings[ISO_ONEDNN_CANDIDATES + 1] = {0};
    int count = problem->candidates - ISO_ONEDNN_BY_RULE;
    ISO_TRY(measure_candidates(cpu, problem, timings));
    int best = choose_fastest(timings, count);
    chosen->candidate = best + ISO_ONEDNN_BY_RULE;
    log_timings(problem, timings, count, best);
    return keep_choice(cpu->tuner, chosen);
}

iso_status iso__onednn_execute(iso__cpu *cpu, const iso__onednn_problem *problem) {
    choice wanted = choice_of(&problem->key);
    const choice *known = cpu->tuner->count > 0 ? find_choice(cpu->tuner, &wanted) : NULL;
    // A kernel that accumulates cannot run several times.
    bool adds = problem->key.value[ISO_ONEDNN_FLAGS] & ISO_ONEDNN_ACCUMULATE;
    if (!known && cpu->tuner->measuring && !adds) {
        ISO_TRY(tune_problem(cpu, problem, &wanted));
        known = &wanted;
    }
    int candidate = known ? (int)known->candidate : ISO_ONEDNN_BY_RULE;
    iso_status status = problem->run(cpu, problem, candidate);
    // The choice was made on a machine unlike this one.
    if (status == ISO_ERR_UNSUPPORTED && candidate != ISO_ONEDNN_BY_RULE)
        status = problem->run(cpu, problem, ISO_ONEDNN_BY_RULE);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- The device's slots -----------------------------------------------------------------------------

static iso_status tune_slot(iso_device *self, bool on) {
    iso__cpu_of(self)->tuner->measuring = on;
    return ISO_OK;
}

static const void *get_choices(iso_device *self, size_t *bytes) {
    const struct iso__tuner *tuner = iso__cpu_of(self)->tuner;
    *bytes = (size_t)tuner->count * sizeof(choice);
    return tuner->list;
}

static iso_status set_choices(iso_device *self, const void *data, size_t bytes) {
    struct iso__tuner *tuner = iso__cpu_of(self)->tuner;
    ISO_CHECK(bytes % sizeof(choice) == 0, ISO_ERR_FORMAT,
              "%zu bytes are no choices of kernels: ranks must run the same build", bytes);
    const size_t count = bytes / sizeof(choice);
    choice c;
    for (size_t i = 0; i < count; i++) {
        memcpy(&c, (const char *)data + i * sizeof(c), sizeof(c));
        ISO_CHECK(c.candidate >= ISO_ONEDNN_BY_RULE && c.candidate < ISO_ONEDNN_CANDIDATES,
                  ISO_ERR_FORMAT, "choice %zu of kernels is %lld: ranks must run the same build", i,
                  (long long)c.candidate);
    }
    tuner->count = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(&c, (const char *)data + i * sizeof(c), sizeof(c));
        ISO_TRY(keep_choice(tuner, &c));
    }
    return ISO_OK;
}

void iso__onednn_fill_tune(iso_device_ops *ops) {
    ops->tune = tune_slot;
    ops->choices = get_choices;
    ops->set_choices = set_choices;
}

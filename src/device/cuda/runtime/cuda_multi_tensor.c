// SPDX-License-Identifier: MIT
// Collects updates that are launched as one kernel, and divides its blocks among them.
#include "device/cuda/runtime/cuda_graph.h"

#include <string.h>

_Static_assert(sizeof(iso__cuda_table) <= 4096, "kernels take 4 KiB");

// ---- Which updates go together ------------------------------------------------------------------

static uintptr_t begin_of(const iso__cuda_segment *s, int array) { return (uintptr_t)s->at[array]; }

// Bytes of an element; all updates of a table have the same.
static size_t element_of(const iso__cuda_multi_tensor *m, int array) {
    return m->halves && array == m->arrays - 1 ? sizeof(uint16_t) : m->element;
}

static uintptr_t end_of(const iso__cuda_multi_tensor *m, const iso__cuda_segment *s, int array) {
    return begin_of(s, array) + (size_t)s->count * element_of(m, array);
}

// Whether an array of the update shares memory with array `j` of one that waits. Parameters come in
// the order of their addresses, or in the opposite one, so that the bounds of all mostly tell.
static bool overlaps_array(const iso__cuda_multi_tensor *m, const iso__cuda_update *u, int array,
                           int j) {
    uintptr_t begin = begin_of(&u->segment, array), end = end_of(m, &u->segment, array);
    if (end <= m->lowest[j] || m->end[j] <= begin) return false;
    for (unsigned k = 0; k < m->table.segments; k++) {
        const iso__cuda_segment *s = &m->table.segment[k];
        if (begin_of(s, j) < end && begin < end_of(m, s, j)) return true;
    }
    return false;
}

// Segments of one kernel have no order: what one writes, no other may touch.
static bool depends_on_waiting(const iso__cuda_multi_tensor *m, const iso__cuda_update *u) {
    for (int i = 0; i < u->arrays; i++)
        for (int j = 0; j < m->arrays; j++)
            if ((i > 0 || j > 0) && overlaps_array(m, u, i, j)) return true;
    return false;
}

// Where its numbers are, or would go.
static unsigned place_of_rule(const iso__cuda_table *t, const iso__cuda_rule *rule) {
    unsigned i = 0;
    while (i < t->rules && memcmp(&t->rule[i], rule, sizeof(*rule)) != 0) i++;
    return i;
}

static bool has_room(const iso__cuda_multi_tensor *m, const iso__cuda_update *u) {
    const iso__cuda_table *t = &m->table;
    return m->kernel == u->kernel && t->segments < ISO_CUDA_UPDATES &&
           place_of_rule(t, &u->rule) < ISO_CUDA_RULES && !depends_on_waiting(m, u);
}

static void begin_table(iso__cuda_multi_tensor *m, const iso__cuda_update *u) {
    memset(m, 0, sizeof(*m)); // of what a graph compares, nothing is left of the table before
    m->kernel = u->kernel;
    m->arrays = u->arrays;
    m->element = u->element;
    m->halves = u->halves;
    for (int i = 0; i < u->arrays; i++) m->lowest[i] = UINTPTR_MAX;
}

static bool is_adjacent(const iso__cuda_multi_tensor *m, const iso__cuda_segment *a,
                        const iso__cuda_segment *b) {
    for (int i = 0; i < m->arrays; i++)
        if (end_of(m, a, i) != begin_of(b, i)) return false;
    return true;
}

// A large parameter comes in pieces, which become one segment again.
static bool extend_last(iso__cuda_multi_tensor *m, const iso__cuda_update *u, unsigned rule) {
    iso__cuda_table *t = &m->table;
    if (t->segments == 0 || t->rule_of[t->segments - 1] != rule) return false;
    iso__cuda_segment *last = &t->segment[t->segments - 1], piece = u->segment;
    bool before = is_adjacent(m, &piece, last);
    if (!before && !is_adjacent(m, last, &piece)) return false;
    int64_t count = last->count + piece.count;
    if (before) *last = piece;
    last->count = count;
    return true;
}

static void add_update(iso__cuda_multi_tensor *m, const iso__cuda_update *u) {
    iso__cuda_table *t = &m->table;
    unsigned rule = place_of_rule(t, &u->rule);
    t->rule[rule] = u->rule;
    if (rule == t->rules) t->rules++;
    if (!extend_last(m, u, rule)) {
        t->rule_of[t->segments] = (unsigned char)rule;
        t->segment[t->segments++] = u->segment;
    }
    for (int i = 0; i < u->arrays; i++) {
        uintptr_t first = begin_of(&u->segment, i), end = end_of(m, &u->segment, i);
        if (first < m->lowest[i]) m->lowest[i] = first;
        if (end > m->end[i]) m->end[i] = end;
    }
}

// A table that is full waits too: a launch that fails must not come after its update was taken.
iso_status iso__cuda_multi_tensor_add(iso__cuda *cuda, const iso__cuda_update *update) {
    iso__cuda_multi_tensor *m = &cuda->multi_tensor;
    if (!has_room(m, update)) {
        ISO_TRY(iso__cuda_multi_tensor_launch(cuda));
        begin_table(m, update);
    }
    add_update(m, update);
    return ISO_OK;
}

// ---- Launching ------------------------------------------------------------------------------------

// Threads move 16 bytes at a time.
static int64_t blocks_wanted(const iso__cuda_multi_tensor *m, unsigned k) {
    int64_t packs = m->table.segment[k].count * (int64_t)m->element / 16;
    return packs > ISO_CUDA_BLOCK ? (packs + ISO_CUDA_BLOCK - 1) / ISO_CUDA_BLOCK : 1;
}

// Where there are fewer blocks than are wanted, each segment gets its part of them.
static void share_blocks(const iso__cuda *cuda, iso__cuda_multi_tensor *m) {
    iso__cuda_table *t = &m->table;
    int64_t wanted = 0;
    for (unsigned k = 0; k < t->segments; k++) wanted += blocks_wanted(m, k);
    int64_t most = iso__cuda_blocks(cuda, wanted * ISO_CUDA_BLOCK);
    for (unsigned k = 0; k < t->segments; k++) {
        int64_t part = blocks_wanted(m, k) * most / wanted;
        t->first[k + 1] = t->first[k] + (part > 1 ? (unsigned)part : 1);
    }
}

iso_status iso__cuda_multi_tensor_launch(iso__cuda *cuda) {
    iso__cuda_multi_tensor *m = &cuda->multi_tensor;
    if (!m->kernel) return ISO_OK;
    share_blocks(cuda, m);
    iso__cuda_kernel kernel = {.function = m->kernel,
                               .grid = {m->table.first[m->table.segments], 1, 1},
                               .block = ISO_CUDA_BLOCK,
                               .args = &m->table,
                               .bytes = sizeof(m->table)};
    ISO_TRY(iso__cuda_submit_command(cuda, &(iso__cuda_command){.kernel = kernel}));
    m->kernel = NULL;
    return ISO_OK;
}

// SPDX-License-Identifier: MIT
// Broadcasts of many arrays: short ones leave together, in packs.
#include "comm/comm_calls.h"

#include <string.h>

#define PACK_BYTES  ((size_t)1 << 20)
#define SHORT_BYTES (PACK_BYTES / 4) // of an array that is packed

static bool is_short(const iso__block *b) { return b->bytes <= SHORT_BYTES; }

// The end of the pack that begins at `first`, and its bytes.
static int find_end(const iso__block *block, int first, int count, size_t *bytes) {
    int i = first;
    for (*bytes = 0; i < count; i++) {
        if (!is_short(&block[i])) continue;
        if (*bytes + block[i].bytes > PACK_BYTES) break;
        *bytes += block[i].bytes;
    }
    return i;
}

static void copy_pack(const iso__block *block, int first, int end, char *pack, bool out) {
    for (int i = first; i < end; i++) {
        if (!is_short(&block[i]) || block[i].bytes == 0) continue;
        memcpy(out ? pack : block[i].data, out ? block[i].data : pack, block[i].bytes);
        pack += block[i].bytes;
    }
}

static iso_status broadcast_packs(iso_comm *comm, const iso__block *block, int count, char *pack) {
    bool root = iso_comm_rank(comm) == 0;
    size_t bytes;
    for (int first = 0, end; first < count; first = end) {
        end = find_end(block, first, count, &bytes);
        if (root) copy_pack(block, first, end, pack, true);
        ISO_TRY(iso_comm_bcast(comm, pack, bytes, 0));
        if (!root) copy_pack(block, first, end, pack, false);
    }
    return ISO_OK;
}

iso_status iso__comm_bcast_list(iso_comm *comm, const iso__block *block, int count) {
    size_t total = 0;
    void *pack = NULL;
    for (int i = 0; i < count; i++) {
        if (is_short(&block[i]))
            total += block[i].bytes;
        else
            ISO_TRY(iso_comm_bcast(comm, block[i].data, block[i].bytes, 0));
    }
    if (total == 0) return ISO_OK;
    ISO_TRY(iso__comm_alloc_zero(comm, total < PACK_BYTES ? total : PACK_BYTES, &pack));
    iso_status status = broadcast_packs(comm, block, count, pack);
    // After these errors MPI may still use the pack, if iso_comm_bcast had no memory for a copy.
    if (status != ISO_ERR_TIMEOUT && status != ISO_ERR_MPI) iso__free(pack);
    ISO_TRY(status);
    return ISO_OK;
}

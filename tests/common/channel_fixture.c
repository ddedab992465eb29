// SPDX-License-Identifier: MIT
// For tests of channels: buffers of several types, random plans, and ranks of random speed.
#include "common/channel_fixture.h"

#include "base/half.h"
#include "common/mpi_fixture.h"
#include "common/shared_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <unistd.h>

static uint32_t draw(uint32_t stream, uint32_t *at, uint32_t below) {
    uint32_t counter[4] = {(*at)++, stream, 0, 0}, bits[4];
    iso__philox(iso__philox_key_make(11, ISO_RNG_TEST, 0), counter, bits);
    return bits[0] % below;
}

uint32_t channel_draw(channel_rig *rig, uint32_t below) { return draw(0, &rig->drawn, below); }

uint32_t channel_draw_mine(channel_rig *rig, uint32_t below) {
    return draw((uint32_t)test_rank + 1, &rig->mine, below);
}

void channel_rig_create(channel_rig *rig, iso_comm *comm, int items, size_t most, bool shared) {
    *rig = (channel_rig){.comm = comm, .items = items};
    if (shared) rig->shared = shared_create(comm, most * (size_t)items);
    for (int i = 0; i < items; i++) {
        const iso_dtype dtypes[] = {ISO_F32, ISO_F64, ISO_F32, ISO_BF16};
        iso_dtype dtype = dtypes[i % 4];
        size_t bytes = (channel_draw(rig, (uint32_t)most) + 1) * iso_dtype_size(dtype);
        bool in = shared && dtype == ISO_F32;
        void *data = in ? rig->shared + most * (size_t)i : malloc(bytes);
        snprintf(rig->label[i], sizeof(rig->label[i]), "item %d", i);
        rig->item[i] = (iso__channel_item){
            .data = data, .bytes = bytes, .dtype = dtype, .label = rig->label[i]};
    }
    iso_assert_ok(iso__channel_create(comm, rig->item, items, 400, 1000, &rig->channel));
}

void channel_rig_destroy(channel_rig *rig) {
    iso__channel_destroy(&rig->channel);
    for (int i = 0; i < rig->items; i++)
        if (!rig->shared || rig->item[i].dtype != ISO_F32) free(rig->item[i].data);
    if (rig->shared) shared_destroy(rig->comm, &rig->shared);
}

int channel_random_plan(channel_rig *rig, iso__chunk *chunk) {
    size_t done[CHANNEL_ITEMS] = {0};
    uint32_t pieces = (uint32_t)(CHANNEL_CHUNKS / rig->items / 2);
    int count = 0;
    for (int left = rig->items; left > 0;) {
        int i = (int)channel_draw(rig, (uint32_t)rig->items);
        const iso__channel_item *item = &rig->item[i];
        size_t unit = iso_dtype_size(item->dtype), rest = (item->bytes - done[i]) / unit;
        if (rest == 0) continue;
        // At least so many that the chunks of all items fit.
        size_t least = item->bytes / unit / pieces + 1;
        size_t n = least + channel_draw(rig, (uint32_t)(item->bytes / unit));
        if (n > rest) n = rest;
        chunk[count++] = (iso__chunk){.item = i, .offset = done[i], .bytes = n * unit};
        done[i] += n * unit;
        left -= done[i] == item->bytes;
    }
    return count;
}

void channel_shuffle_mine(channel_rig *rig, int *order, int count) {
    for (int i = 0; i < count; i++) order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int j = (int)channel_draw_mine(rig, (uint32_t)i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

void channel_stumble(channel_rig *rig, uint32_t most) {
    if (channel_draw_mine(rig, 4) == 0) usleep(channel_draw_mine(rig, most));
}

static double value(int rank, int item, int round, size_t i) {
    return (double)((rank + 1) * ((round + 3 * item) % 17 + 1)) + (double)(i % 9); // <= 76
}

void channel_fill(channel_rig *rig, int item) {
    const iso__channel_item *m = &rig->item[item];
    int round = ++rig->rounds[item];
    float *f = m->data;
    double *d = m->data;
    uint16_t *h = m->data;
    for (size_t i = 0; i < m->bytes / iso_dtype_size(m->dtype); i++) {
        double x = value(test_rank, item, round, i);
        if (m->dtype == ISO_F64)
            d[i] = x;
        else if (m->dtype == ISO_BF16)
            h[i] = (uint16_t)iso__bf16_of((float)x);
        else
            f[i] = (float)x;
    }
}

static double element(const iso__channel_item *m, size_t i) {
    const float *f = m->data;
    const double *d = m->data;
    const uint16_t *h = m->data;
    if (m->dtype == ISO_F64) return d[i];
    return (double)(m->dtype == ISO_BF16 ? iso__of_bf16(h[i]) : f[i]);
}

bool channel_is_summed(const channel_rig *rig, int item) {
    const iso__channel_item *m = &rig->item[item];
    for (size_t i = 0; i < m->bytes / iso_dtype_size(m->dtype); i++) {
        double sum = 0;
        for (int r = 0; r < test_size; r++) sum += value(r, item, rig->rounds[item], i);
        if (element(m, i) != sum) return false;
    }
    return true;
}

iso_status channel_complete(channel_rig *rig, int item) {
    for (int tries = (int)channel_draw_mine(rig, 4); tries > 0; tries--)
        if (iso__channel_is_done(rig->channel, item)) return ISO_OK;
    return iso__channel_wait(rig->channel, item, NULL, NULL);
}

iso_status channel_give(channel_rig *rig, int item) {
    channel_stumble(rig, 300);
    channel_fill(rig, item);
    return iso__channel_ready(rig->channel, item);
}

bool channel_random_round(channel_rig *rig) {
    int order[CHANNEL_ITEMS];
    iso_status status = ISO_OK;
    channel_shuffle_mine(rig, order, rig->items);
    for (int k = 0; k < rig->items && status >= 0; k++) status = channel_give(rig, order[k]);
    channel_shuffle_mine(rig, order, rig->items);
    bool right = true;
    for (int k = 0; k < rig->items && status >= 0; k++) {
        status = channel_complete(rig, order[k]);
        right = right && status == ISO_OK && channel_is_summed(rig, order[k]);
    }
    if (status < 0) iso_error_print(stderr);
    return right && status == ISO_OK;
}

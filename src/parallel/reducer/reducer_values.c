// SPDX-License-Identifier: MIT
// ZeRO stage 3: the calls of a reducer for the module whose values it holds.
#include "parallel/reducer/reducer_impl.h"

#include <string.h>

bool iso__reducer_divides_values(const iso_reducer *r) { return r->values != NULL; }

void *iso__reducer_take_value(iso_reducer *r, int i, const void *value) {
    const iso__layout *l = &r->layout;
    for (int k = 0; k < l->place[i].pieces; k++) {
        int slot = iso__layout_at(l, i, k);
        const iso__grad_slot *s = &l->slot[slot];
        size_t size = iso_dtype_size(s->type);
        iso__own own = iso__zero_own(r->zero, l, slot);
        const char *from = (const char *)value + (s->first + own.first) * size;
        if (own.count == 0) continue;
        memcpy((char *)iso__value_shards_at(r->values, slot) + own.first * size, from,
               own.count * size);
    }
    void *place = iso__value_shards_at(r->values, iso__layout_at(l, i, 0));
    iso__layout_move_value(&r->layout, i, place);
    return place;
}

void iso__reducer_leave_values(iso_reducer *r) { iso__value_shards_leave(r->values); }

int iso__reducer_bucket_count(const iso_reducer *r) { return r->layout.bucket_count; }

int iso__reducer_bucket_of_piece(const iso_reducer *r, int i, int k) {
    return iso__layout_piece(&r->layout, i, k)->bucket;
}

iso__pass iso__reducer_pass(const iso_reducer *r) {
    return r->values ? iso__value_shards_pass(r->values) : ISO__NO_PASS;
}

iso_status iso__reducer_begin_pass(iso_reducer *r, iso__pass pass) {
    return iso__value_shards_begin(r->values, pass);
}

iso_status iso__reducer_end_uses(iso_reducer *r) { return iso__value_shards_rest(r->values); }

iso_status iso__reducer_end_pass(iso_reducer *r) { return iso__value_shards_end(r->values); }

void iso__reducer_fail_pass(iso_reducer *r, iso_status status) {
    iso_error before = *iso_last_error();
    if (iso__value_shards_fail(r->values, status == ISO_ERR_TIMEOUT) < 0)
        iso__log_new_error(&before, "while sending values that other ranks need");
    iso__error_restore(&before);
}

iso_status iso__reducer_need_values(iso_reducer *r, int bucket) {
    return iso__value_shards_need(r->values, bucket);
}

void iso__reducer_release_values(iso_reducer *r, int bucket) {
    iso__value_shards_release(r->values, bucket);
}

iso_status iso__reducer_gather_values(iso_reducer *r) {
    if (!r->values) return ISO_OK;
    if (!r->in_backward) ISO_TRY(iso__reducer_finish(r));
    return iso__value_shards_gather(r->values);
}

bool iso__reducer_has_whole_values(const iso_reducer *r) {
    return !r->values || iso__value_shards_are_whole(r->values);
}

size_t iso__reducer_resident_values(const iso_reducer *r) {
    return r->values ? iso__value_shards_resident(r->values) : 0;
}

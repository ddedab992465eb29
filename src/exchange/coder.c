// SPDX-License-Identifier: MIT
// Runs a communication hook on buckets.
#include "exchange/coder.h"

iso_status iso__coder_check(const iso_comm_hook *hook) {
    const char *name = hook->name;
    ISO_CHECK(name, ISO_ERR_ARG, "a communication hook needs a name");
    ISO_CHECK(hook->compress || (hook->wire == ISO_F32 && hook->state_floats == 0), ISO_ERR_ARG,
              "communication hook %s has another element type or a state, but no compress", name);
    ISO_CHECK(!hook->compress == !hook->decompress, ISO_ERR_ARG,
              "communication hook %s has one of compress and decompress: it needs both or neither",
              name);
    ISO_CHECK(
        !hook->compress || hook->wire == ISO_F32 || hook->wire == ISO_BF16 || hook->wire == ISO_F16,
        ISO_ERR_TYPE, "communication hook %s: %s cannot travel", name, iso_dtype_name(hook->wire));
    ISO_CHECK(hook->state_floats >= 0, ISO_ERR_ARG,
              "communication hook %s asks for %d floats of state", name, hook->state_floats);
    return ISO_OK;
}

iso_status iso__coder_create(const iso_comm_hook *hook, const iso__buckets *buckets,
                             iso__coder *out) {
    size_t wire = 0, state = 0, count = (size_t)buckets->count;
    *out = (iso__coder){.hook = *hook};
    ISO_TRY(iso__alloc_zero(count * sizeof(*out->place), (void **)&out->place));
    for (int i = 0; i < buckets->count; i++) {
        const iso__bucket *b = &buckets->item[i];
        if (!iso__coder_converts(out, b)) continue;
        out->place[i] = (iso__coder_place){wire, state};
        wire += (iso__coder_wire_bytes(out, b) + 63) / 64 * 64;
        state += b->bytes / sizeof(float) * (size_t)hook->state_floats;
    }
    if (wire > 0) ISO_TRY(iso__alloc_zero(wire, (void **)&out->wire));
    if (state > 0) ISO_TRY(iso__alloc_zero(state * sizeof(float), (void **)&out->state));
    out->state_count = state;
    return ISO_OK;
}

void iso__coder_destroy(iso__coder *c) {
    iso__free(c->wire);
    iso__free(c->state);
    iso__free(c->place);
    *c = (iso__coder){0};
}

static iso_comm_hook_bucket bucket_for_hook(const iso__coder *c, int i, const iso__bucket *bucket,
                                            void *gradient) {
    return (iso_comm_hook_bucket){.count = bucket->bytes / iso_dtype_size(bucket->dtype),
                                  .dtype = bucket->dtype,
                                  .gradient = gradient,
                                  .wire = c->wire + c->place[i].wire,
                                  .state = c->state ? c->state + c->place[i].state : NULL,
                                  .name = bucket->label};
}

iso_status iso__coder_encode(const iso__coder *c, int i, const iso__bucket *bucket, void *gradient,
                             double factor) {
    iso_comm_hook_bucket what = bucket_for_hook(c, i, bucket, gradient);
    return c->hook.compress(&what, factor, c->hook.user);
}

iso_status iso__coder_decode(const iso__coder *c, int i, const iso__bucket *bucket, void *gradient,
                             double factor) {
    iso_comm_hook_bucket what = bucket_for_hook(c, i, bucket, gradient);
    return c->hook.decompress(&what, factor, c->hook.user);
}

// SPDX-License-Identifier: MIT
// The communication hooks that are shipped, and their names.
#include "exchange/codec.h"
#include "exchange/coder.h"

#include <isotherm/comm_hook.h>
#include <string.h>

static iso_status check_f32(const iso_comm_hook_bucket *bucket, const char *hook) {
    ISO_CHECK(bucket->dtype == ISO_F32, ISO_ERR_UNSUPPORTED,
              "hook %s was given bucket %s of %s gradients: it rounds f32 only", hook, bucket->name,
              iso_dtype_name(bucket->dtype));
    return ISO_OK;
}

// Values that are not finite travel unchanged: all ranks then see them in the sum and make the same
// decision.
static iso_status compress_bucket(const iso_comm_hook_bucket *b, iso_dtype wire, double factor) {
    ISO_TRY(check_f32(b, iso_dtype_name(wire)));
    iso__codec_of(wire)->encode(b->count, b->gradient, (float)factor, b->wire);
    return ISO_OK;
}

static iso_status decompress_bucket(const iso_comm_hook_bucket *b, iso_dtype wire, double factor) {
    ISO_TRY(check_f32(b, iso_dtype_name(wire)));
    iso__codec_of(wire)->decode_scaled(b->count, b->wire, (float)factor, b->gradient);
    return ISO_OK;
}

static iso_status compress_f16(const iso_comm_hook_bucket *b, double factor, void *user) {
    (void)user;
    return compress_bucket(b, ISO_F16, factor);
}

static iso_status decompress_f16(const iso_comm_hook_bucket *b, double factor, void *user) {
    (void)user;
    return decompress_bucket(b, ISO_F16, factor);
}

static iso_status compress_bf16(const iso_comm_hook_bucket *b, double factor, void *user) {
    (void)user;
    return compress_bucket(b, ISO_BF16, factor);
}

static iso_status decompress_bf16(const iso_comm_hook_bucket *b, double factor, void *user) {
    (void)user;
    return decompress_bucket(b, ISO_BF16, factor);
}

static iso_status compress_feedback(const iso_comm_hook_bucket *b, double factor, void *user) {
    (void)user;
    ISO_TRY(check_f32(b, "bf16-feedback"));
    ISO_CHECK(b->state, ISO_ERR_ARG, "hook bf16-feedback was given bucket %s without state",
              b->name);
    iso__codec_bf16.encode_feedback(b->count, b->gradient, (float)factor, b->state, b->wire);
    return ISO_OK;
}

const iso_comm_hook iso_hook_plain = {.name = "plain", .wire = ISO_F32};

const iso_comm_hook iso_hook_f16 = {.name = "f16",
                                    .wire = ISO_F16,
                                    .divides = true,
                                    .compress = compress_f16,
                                    .decompress = decompress_f16};

const iso_comm_hook iso_hook_bf16 = {.name = "bf16",
                                     .wire = ISO_BF16,
                                     .divides = true,
                                     .compress = compress_bf16,
                                     .decompress = decompress_bf16};

const iso_comm_hook iso_hook_bf16_feedback = {.name = "bf16-feedback",
                                              .wire = ISO_BF16,
                                              .state_floats = 1,
                                              .divides = true,
                                              .compress = compress_feedback,
                                              .decompress = decompress_bf16};

const iso_comm_hook iso_hook_noop = {.name = "noop", .wire = ISO_F32, .silent = true};

iso_status iso_comm_hook_parse(const char *name, const iso_comm_hook **out) {
    const iso_comm_hook *const shipped[] = {
        &iso_hook_adasum,         &iso_hook_plain, &iso_hook_f16,      &iso_hook_bf16,
        &iso_hook_bf16_feedback,  &iso_hook_int8,  &iso_hook_fp8,      &iso_hook_dithering,
        &iso_hook_onebit,         &iso__hook_topk, &iso__hook_randomk, &iso__hook_powersgd,
        &iso__hook_powersgd_bf16, &iso_hook_noop};
    if (strcmp(name, "f32") == 0) name = iso_hook_plain.name;
    for (size_t i = 0; i < sizeof(shipped) / sizeof(shipped[0]); i++)
        if (strcmp(name, shipped[i]->name) == 0) {
            *out = shipped[i];
            return ISO_OK;
        }
    return ISO_FAIL(ISO_ERR_ARG,
                    "unknown communication hook \"%s\": give plain (or f32), f16, bf16, "
                    "bf16-feedback, int8, fp8, dithering, onebit, topk, randomk, powersgd, "
                    "powersgd+bf16, adasum or noop",
                    name);
}

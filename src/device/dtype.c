// SPDX-License-Identifier: MIT
// Names and sizes of element types.
#include "device/device_impl.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[ISO_DTYPE_COUNT] = {
    [ISO_F32] = {"f32", 4}, [ISO_F64] = {"f64", 8}, [ISO_BF16] = {"bf16", 2},
    [ISO_F16] = {"f16", 2}, [ISO_I64] = {"i64", 8}, [ISO_I32] = {"i32", 4},
    [ISO_U8] = {"u8", 1},
};

size_t iso_dtype_size(iso_dtype dtype) { return dtypes[dtype].size; }
const char *iso_dtype_name(iso_dtype dtype) {
    return (int)dtype >= 0 && dtype < ISO_DTYPE_COUNT ? dtypes[dtype].name : "of an unknown type";
}

iso_status iso_dtype_parse(const char *name, iso_dtype *out) {
    for (int i = 0; name && i < ISO_DTYPE_COUNT; i++) {
        if (strcmp(name, dtypes[i].name) != 0) continue;
        *out = (iso_dtype)i;
        return ISO_OK;
    }
    return ISO_FAIL(ISO_ERR_ARG,
                    "unknown element type \"%s\": use f32, f64, bf16, f16, i64, i32 or u8",
                    name ? name : "");
}

// SPDX-License-Identifier: MIT
// Checks the metadata of a checkpoint, entry by entry.
#include "predict_metadata.h"

#include "support/models.h"
#include "support/try.h"

#include <ctype.h>
#include <isotherm/layers.h>
#include <isotherm/strategy.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 60 };

static bool is_model(const char *text) { return iso_setting_among(text, MODEL_NAMES); }
static bool is_dtype(const char *text) { return iso_setting_among(text, "f32|f64|bf16|f16"); }

// The number of numbers from `least` on, with one blank between them; -1: something else is there.
static int count_numbers(const char *text, double least) {
    for (int count = 1;; count++) {
        char *end;
        double number = strtod(text, &end);
        bool fits = isfinite(number) && number >= least;
        if (end == text || isspace((unsigned char)*text) || !fits) return -1;
        if (!*end) return count;
        if (*end != ' ') return -1;
        text = end + 1;
    }
}

static bool are_whole(const char *text) { return text[strspn(text, "0123456789 ")] == 0; }
static bool is_count(const char *text) { return are_whole(text) && count_numbers(text, 1) == 1; }
static bool is_shape(const char *text) { return are_whole(text) && count_numbers(text, 1) == 3; }
static bool are_numbers(const char *text) { return count_numbers(text, -INFINITY) > 0; }

static const struct {
    const char *key, *wanted;
    bool (*fits)(const char *text);
} entries[] = {
    {"isotherm.model", MODEL_NAMES, is_model},
    {"isotherm.activations", MODEL_ACTIVATIONS_RULE, model_activations_fit},
    {"isotherm.dtype", "f32|f64|bf16|f16", is_dtype},
    {"isotherm.shape", "channels, height and width", is_shape},
    {"isotherm.classes", "a number of classes", is_count},
    {"isotherm.mean", "a number for each channel", are_numbers},
    {"isotherm.std", "a number for each channel", are_numbers},
};

iso_status predict_metadata_refuse(const char *file, const char *key, const char *value,
                                   const char *wanted) {
    char shown[SHOWN + 1];
    snprintf(shown, sizeof(shown), "%s", value);
    for (char *at = shown; *at; at++)
        if (iscntrl((unsigned char)*at)) *at = '?';
    return iso_error_set(ISO_ERR_FORMAT,
                         "%s has a damaged metadata entry %s: \"%s\" is not %s: give another "
                         "checkpoint",
                         file, key, shown, wanted);
}

iso_status predict_metadata_check(const iso_state_dict *dict, const char *file, const char *key) {
    const char *value = iso_state_dict_metadata(dict, key);
    for (size_t i = 0; value && i < sizeof(entries) / sizeof(entries[0]); i++)
        if (strcmp(entries[i].key, key) == 0 && !entries[i].fits(value))
            return predict_metadata_refuse(file, key, value, entries[i].wanted);
    return ISO_OK;
}

iso_status predict_metadata_convert(const iso_state_dict *dict, iso_module **model) {
    const char *name = iso_state_dict_metadata(dict, "isotherm.dtype");
    iso_dtype type = ISO_F32;
    if (name) TRY(iso_dtype_parse(name, &type));
    bool half = type == ISO_BF16 || type == ISO_F16;
    TRY(iso_module_to(*model, type));
    return half ? iso_autocast_create_take(*model, type, model) : ISO_OK;
}

iso_status predict_channels_parse(const char *option, const char *text, int64_t channels,
                                  double *out) {
    int64_t count = 0;
    for (const char *at = text; *at; count++) {
        char *end;
        double value = strtod(at, &end);
        if (end == at || (*end && *end != ',' && *end != ' ') || !isfinite(value))
            return iso_error_set(ISO_ERR_ARG, "%s %s: give numbers separated by commas", option,
                                 text);
        if (count < channels) out[count] = value;
        at = *end ? end + 1 : end;
    }
    if (count != 1 && count != channels)
        return iso_error_set(ISO_ERR_ARG,
                             "%s %s: these are %lld numbers for images of %lld channel%s", option,
                             text, (long long)count, (long long)channels, channels == 1 ? "" : "s");
    for (int64_t c = count; c < channels; c++) out[c] = out[0];
    return ISO_OK;
}

// SPDX-License-Identifier: MIT
// Initial values of parameters, as PyTorch draws them by default and on demand.
#include "nn/nn_impl.h"
#include "tensor/element.h"

#include <math.h>

// torch.nn.init.kaiming_uniform_(a = sqrt(5)) has gain sqrt(1/3) and bound gain * sqrt(3 / fan_in),
// which is 1 / sqrt(fan_in), the bound of the bias too.
iso_status iso__init_uniform(iso_parameter *parameter, int64_t fan_in, iso_rng *rng) {
    return iso__init_within(parameter, 1 / sqrt((double)fan_in), rng);
}

iso_status iso__init_within(iso_parameter *parameter, double limit, iso_rng *rng) {
    iso__philox_key key = iso__philox_key_make(rng->seed, ISO_RNG_INIT, rng->next_stream++);
    float bound = (float)limit;
    void *mapped;
    ISO_TRY(iso_tensor_map(parameter->value, ISO_WRITE, &mapped));
    float *value = mapped;
    int64_t count = iso_tensor_count(parameter->value);
    for (int64_t i = 0; i < count; i += 4) {
        uint64_t block = (uint64_t)i / 4;
        uint32_t draw[4], counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
        iso__philox(key, counter, draw);
        for (int64_t k = 0; k < 4 && i + k < count; k++)
            value[i + k] = (2 * iso__uniform(draw[k]) - 1) * bound;
    }
    return iso_tensor_unmap(parameter->value);
}

// Two normal numbers from two draws (Box and Muller, Ann. Math. Stat. 29, 1958). 1 - u is in (0,
// 1].
static void box_muller(const uint32_t draw[2], double out[2]) {
    double radius = sqrt(-2 * log(1 - (double)iso__uniform(draw[0])));
    double angle = 2 * acos(-1.0) * (double)iso__uniform(draw[1]);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

// Element i is number i % 4 of block i / 4.
static iso_status init_normal(iso_tensor *tensor, double std, iso_rng *rng) {
    iso__philox_key key = iso__philox_key_make(rng->seed, ISO_RNG_INIT, rng->next_stream++);
    void *value;
    ISO_TRY(iso_tensor_map(tensor, ISO_WRITE, &value));
    for (int64_t i = 0; i < tensor->count; i += 4) {
        uint64_t block = (uint64_t)i / 4;
        uint32_t draw[4], counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
        double normal[4];
        iso__philox(key, counter, draw);
        box_muller(draw, normal);
        box_muller(draw + 2, normal + 2);
        for (int64_t k = 0; k < 4 && i + k < tensor->count; k++) {
            float rounded = (float)(normal[k] * std); // the same in f32 and f64
            iso__element_put(tensor->dtype, value, i + k, (double)rounded);
        }
    }
    return iso_tensor_unmap(tensor);
}

iso_status iso_init_kaiming_normal(iso_parameter *parameter, iso_fan fan, iso_rng *rng) {
    iso_tensor *value;
    ISO_TRY(iso_parameter_value(parameter, &value));
    ISO_CHECK(value->ndim >= 2, ISO_ERR_SHAPE,
              "%s has %d dimension%s, so its fan is undefined: only weights of at least 2 "
              "dimensions can be initialised this way",
              parameter->name, value->ndim, ISO_PLURAL(value->ndim));
    int64_t taps = value->count / (value->shape[0] * value->shape[1]);
    int64_t ways = value->shape[fan == ISO_FAN_IN ? 1 : 0] * taps;
    ISO_TRY(init_normal(value, sqrt(2 / (double)ways), rng));
    return ISO_OK;
}

iso_status iso_init_normal(iso_parameter *parameter, double std, iso_rng *rng) {
    iso_tensor *value;
    ISO_CHECK(std >= 0 && isfinite(std), ISO_ERR_ARG,
              "%s with standard deviation %g: give a finite number of at least 0", parameter->name,
              std);
    ISO_TRY(iso_parameter_value(parameter, &value));
    return init_normal(value, std, rng);
}

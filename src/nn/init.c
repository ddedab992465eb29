// Initial values of parameters, as PyTorch draws them by default.
#include "nn/nn_impl.h"

#include <math.h>

// torch.nn.init.kaiming_uniform_(a = sqrt(5)) has gain sqrt(1/3) and bound gain * sqrt(3 / fan_in),
// which is 1 / sqrt(fan_in), the bound of the bias too.
iso_status iso__init_uniform(iso_parameter *parameter, int64_t fan_in, iso_rng *rng) {
    iso__philox_key key = iso__philox_key_make(rng->seed, ISO_RNG_INIT, rng->next_stream++);
    float bound = (float)(1 / sqrt((double)fan_in));
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

// SPDX-License-Identifier: MIT
// For tests: a small GPT of the library's layers.
#include "common/gpt_fixture.h"

#include "base/base.h"

#include <stdio.h>

// Adds what was just made.
static iso_status add(iso_module *to, const char *name, iso_status made, iso_module *module) {
    ISO_TRY(made);
    return iso_sequential_add_take(to, name, module);
}

static iso_status add_norm(iso_module *to, const char *name) {
    iso_layer_norm_config config = {.ndim = 1, .normalized_shape = {GPT_EMBED}};
    iso_module *m;
    iso_status made = iso_layer_norm_create(to->device, &config, &m);
    return add(to, name, made, m);
}

static iso_status add_linear(iso_module *to, const char *name, int64_t in, int64_t out, bool bias,
                             iso_rng *rng) {
    iso_module *m;
    iso_status made = iso_linear_create(to->device, in, out, bias, rng, &m);
    return add(to, name, made, m);
}

static iso_status fill_attention(iso_module *body, iso_rng *rng) {
    iso_attention_config config = {.embed_dim = GPT_EMBED, .num_heads = GPT_HEADS, .causal = true};
    iso_module *m;
    ISO_TRY(add_norm(body, "ln"));
    iso_status made = iso_multihead_attention_create(body->device, &config, rng, &m);
    return add(body, "attn", made, m);
}

static iso_status fill_mlp(iso_module *body, iso_rng *rng) {
    iso_module *m;
    ISO_TRY(add_norm(body, "ln"));
    ISO_TRY(add_linear(body, "fc", GPT_EMBED, 4 * GPT_EMBED, true, rng));
    iso_status made = iso_gelu_create(body->device, false, &m);
    ISO_TRY(add(body, "gelu", made, m));
    return add_linear(body, "out", 4 * GPT_EMBED, GPT_EMBED, true, rng);
}

static iso_status add_block(iso_module *net, const char *kind, int number,
                            iso_status (*fill)(iso_module *, iso_rng *), iso_rng *rng) {
    iso_module *body, *residual;
    char name[16];
    snprintf(name, sizeof(name), "%s%d", kind, number);
    ISO_TRY(iso_sequential_create(net->device, &body));
    iso_status status = fill(body, rng);
    if (status < 0) iso_module_destroy(&body);
    ISO_TRY(status);
    ISO_TRY(iso_residual_create_take(net->device, body, NULL, false, &residual));
    return iso_sequential_add_take(net, name, residual);
}

static iso_status fill_gpt(iso_module *net, double p, iso_rng *rng) {
    iso_embedding_config tokens = {.num_embeddings = GPT_VOCABULARY, .embedding_dim = GPT_EMBED};
    iso_module *m;
    iso_status made = iso_embedding_create(net->device, &tokens, rng, &m);
    ISO_TRY(add(net, "wte", made, m));
    made = iso_position_embedding_create(net->device, GPT_LENGTH, GPT_EMBED, rng, &m);
    ISO_TRY(add(net, "wpe", made, m));
    if (p > 0) {
        made = iso_dropout_create(net->device, p, rng, &m);
        ISO_TRY(add(net, "dropout", made, m));
    }
    for (int b = 0; b < GPT_BLOCKS; b++) {
        ISO_TRY(add_block(net, "attn", b, fill_attention, rng));
        ISO_TRY(add_block(net, "mlp", b, fill_mlp, rng));
    }
    ISO_TRY(add_norm(net, "ln_f"));
    return add_linear(net, "head", GPT_EMBED, GPT_VOCABULARY, false, rng);
}

iso_status build_gpt(iso_device *device, double p, iso_rng *rng, iso_module **out) {
    iso_module *net;
    ISO_TRY(iso_sequential_create(device, &net));
    iso_status status = fill_gpt(net, p, rng);
    if (status < 0) iso_module_destroy(&net);
    ISO_TRY(status);
    *out = net;
    return ISO_OK;
}

// SPDX-License-Identifier: MIT
// For tests: a small GPT of the library's layers.
#ifndef ISO_TEST_GPT_FIXTURE_H
#define ISO_TEST_GPT_FIXTURE_H

#include <isotherm/nn.h>

enum { GPT_VOCABULARY = 11, GPT_EMBED = 8, GPT_HEADS = 2, GPT_LENGTH = 6, GPT_BLOCKS = 2 };

// wte, wpe, for each block attnB (ln, attn) and mlpB (ln, fc, gelu, out), ln_f, head: tokens [N, L]
// to logits [N, L, V]. p: of a dropout behind wpe (0: none).
iso_status build_gpt(iso_device *device, double p, iso_rng *rng, iso_module **out);

#endif

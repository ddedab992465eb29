// SPDX-License-Identifier: MIT
// Private to src/exchange/codec_*.c: the functions and the table of a codec that encodes groups of
// elements (see exchange/codec.h). Included once for each codec, after exchange/codec_groups.h and
// these definitions, in which CODEC_OF(x) adds the codec's name to x:
//
//   CODEC, CODEC_WORD, CODEC_GROUP   its name, as an identifier and as a text; elements of a group
//   CODEC_CLONES                     ISO_CLONES, or nothing
//   CODEC_OF(group)                  the type of an encoded group
//   bool CODEC_OF(encode_group)(size_t n, float *v, CODEC_OF(group) *out)
//       out = v, encoded, padded with zeros; v = v - out. If something is not finite: v = 0, and
//       the result is false.
//   void CODEC_OF(read_group)(const CODEC_OF(group) *in, float value[CODEC_GROUP])

#define GROUP     CODEC_GROUP
#define encoded   CODEC_OF(group)
#define NEXT_SIZE group_size(count, at, GROUP)
_Static_assert(sizeof(encoded) % 4 == 0, "blocks of a mean are multiples of 4 bytes");

static size_t CODEC_OF(bytes)(size_t count) {
    return (count + GROUP - 1) / GROUP * sizeof(encoded);
}

// ---- Encoding -------------------------------------------------------------------------------------

CODEC_CLONES static bool CODEC_OF(encode)(size_t count, const float *x, float factor, void *out) {
    bool finite = true;
    encoded *to = out;
    for (size_t at = 0; at < count; at += GROUP, to++) {
        float v[GROUP];
        size_t n = NEXT_SIZE;
        for (size_t i = 0; i < n; i++) v[i] = x[at + i] * factor;
        finite = CODEC_OF(encode_group)(n, v, to) && finite;
    }
    return finite;
}

CODEC_CLONES static bool CODEC_OF(encode_feedback)(size_t count, const float *x, float factor,
                                                   float *state, void *out) {
    bool finite = true;
    encoded *to = out;
    for (size_t at = 0; at < count; at += GROUP, to++) {
        size_t n = NEXT_SIZE;
        for (size_t i = 0; i < n; i++) state[at + i] = x[at + i] * factor + state[at + i];
        finite = CODEC_OF(encode_group)(n, state + at, to) && finite;
    }
    return finite;
}

ISO_INLINE bool CODEC_OF(encode_between)(size_t count, const float *restrict x, float factor,
                                         const float *restrict reference,
                                         const float *restrict residual, float *restrict left,
                                         encoded *restrict to) {
    bool finite = true;
    for (size_t at = 0; at < count; at += GROUP, to++) {
        size_t n = NEXT_SIZE;
        for (size_t i = at; i < at + n; i++) left[i] = (x[i] - reference[i]) * factor + residual[i];
        finite = CODEC_OF(encode_group)(n, left + at, to) && finite;
    }
    return finite;
}

CODEC_CLONES static bool CODEC_OF(encode_difference)(size_t count, const float *x, float factor,
                                                     const float *reference,
                                                     const iso__codec_feedback *feedback,
                                                     void *out) {
    return CODEC_OF(encode_between)(count, x, factor, reference, feedback->residual, feedback->left,
                                    out);
}

// ---- The mean of shares ---------------------------------------------------------------------------

// sum = group g of all nodes
ISO_INLINE void CODEC_OF(add_nodes)(const iso__codec_shares *shares, size_t g,
                                    float *restrict sum) {
    const encoded *from = (const encoded *)shares->data + g;
    CODEC_OF(read_group)(from, sum);
    for (int k = 1; k < shares->nodes; k++) {
        float value[GROUP];
        CODEC_OF(read_group)(from += shares->count / GROUP, value);
        for (size_t i = 0; i < GROUP; i++) sum[i] += value[i];
    }
}

ISO_INLINE bool CODEC_OF(encode_mean)(const float *restrict sum, float nodes,
                                      const float *restrict residual, float *restrict left,
                                      encoded *out) {
    for (size_t i = 0; i < GROUP; i++) left[i] = sum[i] / nodes + residual[i];
    return CODEC_OF(encode_group)(GROUP, left, out);
}

CODEC_CLONES static bool CODEC_OF(mean)(const iso__codec_shares *shares,
                                        const iso__codec_feedback *feedback, void *out) {
    bool finite = true;
    static const float none[GROUP];
    for (size_t g = 0; g < shares->count / GROUP; g++) {
        float sum[GROUP], lost[GROUP];
        const float *residual = feedback ? feedback->residual + g * GROUP : none;
        float *left = feedback ? feedback->left + g * GROUP : lost;
        CODEC_OF(add_nodes)(shares, g, sum);
        finite =
            CODEC_OF(encode_mean)(sum, (float)shares->nodes, residual, left, (encoded *)out + g) &&
            finite;
    }
    return finite;
}

// ---- Decoding -------------------------------------------------------------------------------------

// Writes `expression` of each value[i].
#define DECODE(expression)                                                                         \
    uint32_t bad = 0;                                                                              \
    const encoded *from = in;                                                                      \
    for (size_t at = 0; at < count; at += GROUP, from++) {                                         \
        float value[GROUP];                                                                        \
        size_t n = NEXT_SIZE;                                                                      \
        CODEC_OF(read_group)(from, value);                                                         \
        for (size_t i = 0; i < n; i++) {                                                           \
            out[at + i] = expression;                                                              \
            bad |= !is_finite(out[at + i]);                                                        \
        }                                                                                          \
    }                                                                                              \
    return bad == 0

CODEC_CLONES static bool CODEC_OF(decode)(size_t count, const void *in, float *out) {
    DECODE(value[i]);
}

CODEC_CLONES static bool CODEC_OF(decode_scaled)(size_t count, const void *in, float factor,
                                                 float *out) {
    DECODE(value[i] * factor);
}

CODEC_CLONES static bool CODEC_OF(decode_difference)(size_t count, const void *in,
                                                     const float *reference, float *out) {
    DECODE(reference[at + i] + value[i]);
}

CODEC_CLONES static bool CODEC_OF(decode_add)(size_t count, const void *in, float *out) {
    DECODE(out[at + i] + value[i]);
}

const iso__codec CODEC_OF(iso__codec) = {.name = CODEC_WORD,
                                         .group = GROUP,
                                         .bytes = CODEC_OF(bytes),
                                         .encode = CODEC_OF(encode),
                                         .encode_feedback = CODEC_OF(encode_feedback),
                                         .encode_difference = CODEC_OF(encode_difference),
                                         .mean = CODEC_OF(mean),
                                         .decode = CODEC_OF(decode),
                                         .decode_scaled = CODEC_OF(decode_scaled),
                                         .decode_difference = CODEC_OF(decode_difference),
                                         .decode_add = CODEC_OF(decode_add)};

#undef DECODE
#undef NEXT_SIZE
#undef encoded
#undef GROUP
#undef CODEC
#undef CODEC_WORD
#undef CODEC_GROUP
#undef CODEC_CLONES

// SPDX-License-Identifier: MIT
// The 16-bit wire: every value, every tie, and passes that do what their parts do.
#include "common/balance.h"
#include "exchange/codec.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

TestSuite(wire, .fini = balance_check, .timeout = 60);

static const iso_dtype wires[] = {ISO_BF16, ISO_F16, ISO_F32};

static float f32_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint16_t encoded(iso_dtype wire, float x) {
    uint16_t h;
    iso__codec_of(wire)->encode(1, &x, 1, &h);
    return h;
}

// ---- An oracle that knows only IEEE 754's definition ----------------------------------------------

// A positive finite value from sign, exponent and fraction fields.
static double value_of(iso_dtype wire, unsigned h) {
    int fraction_bits = wire == ISO_BF16 ? 7 : 10, bias = wire == ISO_BF16 ? 127 : 15;
    int exponent = (int)(h >> fraction_bits), fraction = (int)h & ((1 << fraction_bits) - 1);
    if (exponent == 0) return ldexp(fraction, 1 - bias - fraction_bits);
    return ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

static unsigned infinity_of(iso_dtype wire) { return wire == ISO_BF16 ? 0x7f80 : 0x7c00; }

// The nearest of all values, ties to the even one.
static unsigned nearest(iso_dtype wire, double x) {
    unsigned low = 0, high = infinity_of(wire); // value(low) <= |x| < value(high)
    double size = fabs(x);
    unsigned sign = signbit(x) ? 0x8000 : 0;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (value_of(wire, middle) <= size)
            low = middle;
        else
            high = middle;
    }
    double under = size - value_of(wire, low), over = value_of(wire, high) - size;
    return sign | (under < over || (under == over && low % 2 == 0) ? low : high);
}

// ---- One value ------------------------------------------------------------------------------------

static void round_trips(iso_dtype wire) {
    static uint16_t all[65536], again[65536];
    static float x[65536];
    for (unsigned h = 0; h < 65536; h++) all[h] = (uint16_t)h;
    cr_assert(!iso__codec_of(wire)->decode(65536, all, x), "infinities are not finite");
    iso__codec_of(wire)->encode(65536, x, 1, again);
    unsigned infinite = infinity_of(wire), quiet = wire == ISO_BF16 ? 0x40 : 0x200;
    for (unsigned h = 0; h < 65536; h++) {
        unsigned size = h & 0x7fff;
        if (size < infinite) cr_assert_eq(fabs((double)x[h]), value_of(wire, size), "%04x", h);
        cr_assert_eq(!isnan(x[h]), size <= infinite, "%04x", h);
        cr_assert_eq(signbit(x[h]) != 0, h >= 0x8000, "%04x", h);
        cr_assert_eq(again[h], size > infinite ? h | quiet : h, "%04x gives %04x", h, again[h]);
    }
}

Test(wire, all_bf16_values_round_trip) { round_trips(ISO_BF16); }
Test(wire, all_f16_values_round_trip) { round_trips(ISO_F16); }

// Alone and in a row: the loops for vectors and for what they leave over are not the same code.
static void check_row(iso_dtype wire, const float *row, size_t n) {
    static uint16_t all[256];
    iso__codec_of(wire)->encode(n, row, 1, all);
    for (size_t i = 0; i < n; i++) {
        unsigned expected = nearest(wire, row[i]);
        cr_assert_eq(all[i], expected, "%a in a row gives %04x, not %04x", row[i], all[i],
                     expected);
        cr_assert_eq(encoded(wire, row[i]), expected, "%a", row[i]);
    }
}

// Between all neighbours: the middle, and the floats next to it.
static void rounds_to_nearest(iso_dtype wire) {
    float row[6];
    for (unsigned h = 0; h < infinity_of(wire); h++) {
        double above = value_of(wire, h + 1); // behind the largest: what infinity stands for
        float middle = (float)((value_of(wire, h) + above) / 2);
        cr_assert_eq((double)middle, (value_of(wire, h) + above) / 2);
        cr_assert_eq(encoded(wire, middle) % 2, 0, "a tie goes to the even one: %a", middle);
        float around[64];
        row[0] = nextafterf(middle, 0), row[1] = middle, row[2] = nextafterf(middle, INFINITY);
        for (int i = 0; i < 3; i++) row[3 + i] = -row[i];
        for (int i = 0; i < 64; i++) around[i] = isinf(row[i % 6]) ? 0 : row[i % 6];
        check_row(wire, around, h % 8 ? 6 : 64);
    }
}

Test(wire, bf16_rounds_to_nearest_even) { rounds_to_nearest(ISO_BF16); }
Test(wire, f16_rounds_to_nearest_even) { rounds_to_nearest(ISO_F16); }

Test(wire, random_floats_round_to_nearest) {
    iso__philox_key key = iso__philox_key_make(1, ISO_RNG_TEST, 0);
    float wide[256], halves[256];
    for (uint32_t i = 0; i < 50000; i++) {
        uint32_t counter[4] = {i}, bits[4];
        iso__philox(key, counter, bits);
        wide[i % 256] = isfinite(f32_of(bits[0])) ? f32_of(bits[0]) : 0;
        // From subnormal halves to beyond the largest.
        halves[i % 256] = ldexpf(2 * iso__uniform(bits[1]) - 1, (int)(bits[2] % 44) - 26);
        if (i % 256 != 255) continue;
        check_row(ISO_BF16, wide, 256);
        check_row(ISO_F16, halves, 256);
    }
}

// Values of the Wikipedia articles on the two formats and of IEEE 754.
Test(wire, golden_values) {
    cr_assert_eq(encoded(ISO_F16, 1.0f / 3), 0x3555);
    cr_assert_eq(encoded(ISO_F16, 65504), 0x7bff);
    cr_assert_eq(encoded(ISO_F16, 0x1p-24f), 0x0001);
    cr_assert_eq(encoded(ISO_F16, 0x1p-14f), 0x0400);
    cr_assert_eq(encoded(ISO_F16, -2), 0xc000);
    cr_assert_eq(encoded(ISO_F16, 65519.99f), 0x7bff);
    cr_assert_eq(encoded(ISO_F16, 65520), 0x7c00);
    cr_assert_eq(encoded(ISO_F16, -FLT_MAX), 0xfc00);
    cr_assert_eq(encoded(ISO_F16, FLT_MIN / 8), 0);
    cr_assert_eq(encoded(ISO_BF16, 1.0f / 3), 0x3eab);
    cr_assert_eq(encoded(ISO_BF16, 3.14159265f), 0x4049);
    cr_assert_eq(encoded(ISO_BF16, -2), 0xc000);
    cr_assert_eq(encoded(ISO_BF16, FLT_MAX), 0x7f80);
    // Payloads at which adding would run over into the sign.
    cr_assert_eq(encoded(ISO_BF16, f32_of(0x7fffffff)), 0x7fff);
    cr_assert_eq(encoded(ISO_BF16, f32_of(0xff800001)), 0xffc0);
    cr_assert_eq(encoded(ISO_F16, f32_of(0xff800001)), 0xfe00);
}

// ---- Passes ---------------------------------------------------------------------------------------

enum { MOST = 1200 }; // more than one tile
static float x[MOST], reference[MOST], residual[MOST], left[MOST], back[MOST];
static float sent[3 * MOST + 1];

static float draw(uint32_t i, uint32_t which) {
    uint32_t counter[4] = {i, which}, bits[4];
    iso__philox(iso__philox_key_make(2, ISO_RNG_TEST, 0), counter, bits);
    return (2 * iso__uniform(bits[0]) - 1) * ldexpf(1, (int)(bits[1] % 16) - 8);
}

static float read_at(iso_dtype wire, const void *data, size_t i) {
    float out;
    iso__codec_of(wire)->decode(1, (const char *)data + i * iso_dtype_size(wire), &out);
    return out;
}

static float rounded(iso_dtype wire, float v) {
    uint32_t room;
    iso__codec_of(wire)->encode(1, &v, 1, &room);
    return read_at(wire, &room, 0);
}

// For every length, so that also what is left over by vectors is right and nothing behind is
// written.
Test(wire, difference_is_its_parts) {
    for (int w = 0; w < 3; w++) {
        for (size_t n = 0; n < 140; n++) {
            size_t size = iso_dtype_size(wires[w]);
            for (uint32_t i = 0; i < n; i++) {
                x[i] = draw(i, 0);
                reference[i] = draw(i, 1);
                residual[i] = draw(i, 2) / 256;
            }
            left[n] = 77;
            memset(sent, 0x55, (n + 1) * size);
            iso__codec_feedback feedback = {residual, left};
            cr_assert(
                iso__codec_of(wires[w])->encode_difference(n, x, 1.5f, reference, &feedback, sent));
            for (size_t i = 0; i < n; i++) {
                float v = (x[i] - reference[i]) * 1.5f;
                v = v + residual[i];
                float travels = read_at(wires[w], sent, i);
                cr_assert_eq(travels, rounded(wires[w], v));
                cr_assert_eq((double)travels + left[i], (double)v, "nothing gets lost");
            }
            cr_assert_eq(left[n], 77);
            cr_assert_eq(((char *)sent)[n * size], 0x55);
            back[n] = 77;
            cr_assert(iso__codec_of(wires[w])->decode_difference(n, sent, reference, back));
            for (size_t i = 0; i < n; i++)
                cr_assert_eq(back[i], reference[i] + read_at(wires[w], sent, i));
            cr_assert_eq(back[n], 77);
        }
    }
}

static void write_shares(iso_dtype wire, int nodes, size_t n) {
    for (int k = 0; k < nodes; k++) {
        for (uint32_t i = 0; i < n; i++) x[i] = draw(i, 10 + (uint32_t)k);
        iso__codec_of(wire)->encode(n, x, 1, (char *)sent + (size_t)k * n * iso_dtype_size(wire));
    }
}

static float serial_sum(iso_dtype wire, int nodes, size_t n, size_t i, bool round) {
    float s = read_at(wire, sent, i);
    for (int k = 1; k < nodes; k++) {
        s += read_at(wire, sent, (size_t)k * n + i);
        if (round) s = rounded(wire, s);
    }
    return s;
}

static const size_t lengths[] = {0, 1, 7, 64, 511, 512, 513, MOST};

Test(wire, mean_is_the_serial_one) {
    for (int c = 0; c < 9 * 8; c++) {
        iso_dtype wire = wires[c % 3];
        int nodes = 1 + c / 3 % 3;
        size_t n = lengths[c / 9];
        static float out[MOST];
        write_shares(wire, nodes, n);
        iso__codec_shares shares = {sent, nodes, n};
        cr_assert(iso__codec_of(wire)->mean(&shares, NULL, out));
        for (size_t i = 0; i < n; i++)
            cr_assert_eq(read_at(wire, out, i),
                         rounded(wire, serial_sum(wire, nodes, n, i, false) / (float)nodes));
        cr_assert(iso__codec_of(wire)->mean_rounded(&shares, out));
        for (size_t i = 0; i < n; i++)
            cr_assert_eq(read_at(wire, out, i),
                         rounded(wire, serial_sum(wire, nodes, n, i, true) / (float)nodes));
        for (uint32_t i = 0; i < n; i++) residual[i] = draw(i, 2) / 256;
        iso__codec_feedback feedback = {residual, left};
        cr_assert(iso__codec_of(wire)->mean(&shares, &feedback, out));
        for (size_t i = 0; i < n; i++) {
            float v = serial_sum(wire, nodes, n, i, false) / (float)nodes + residual[i];
            cr_assert_eq(read_at(wire, out, i), rounded(wire, v));
            cr_assert_eq((double)read_at(wire, out, i) + left[i], (double)v);
        }
    }
}

// A sum of two 16-bit values rounded from f32 is the one rounded from the exact sum.
Test(wire, sums_round_once) {
    for (int w = 0; w < 2; w++) {
        for (uint32_t i = 0; i < 20000; i++) {
            uint16_t pair[2] = {encoded(wires[w], draw(i, 3)), encoded(wires[w], draw(i, 4))}, out;
            double exact = (double)read_at(wires[w], pair, 0) + read_at(wires[w], pair, 1);
            iso__codec_shares shares = {pair, 2, 1};
            iso__codec_of(wires[w])->mean_rounded(&shares, &out);
            double half = value_of(wires[w], nearest(wires[w], fabs(exact))) / 2;
            cr_assert_eq(out & 0x7fff, nearest(wires[w], half));
        }
    }
}

Test(wire, one_value_that_is_not_finite_is_seen) {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t at = 0; at < 100; at++) {
        for (int b = 0; b < 9; b++) {
            iso_dtype wire = wires[b % 3];
            iso__codec_feedback feedback = {residual, left};
            for (size_t i = 0; i < 100; i++) x[i] = reference[i] = residual[i] = 1;
            cr_assert(iso__codec_of(wire)->encode(100, x, 1, sent));
            x[at] = bad[b / 3];
            cr_assert(!iso__codec_of(wire)->encode(100, x, 1, sent));
            cr_assert(!iso__codec_of(wire)->decode(100, sent, back));
            cr_assert(!iso__codec_of(wire)->decode_difference(100, sent, reference, back));
            iso__codec_shares shares = {sent, 2, 50};
            static float out[50];
            cr_assert(!iso__codec_of(wire)->mean(&shares, NULL, out));
            cr_assert(!iso__codec_of(wire)->mean(&shares, &feedback, out));
            cr_assert(!iso__codec_of(wire)->mean_rounded(&shares, out));
            cr_assert(
                !iso__codec_of(wire)->encode_difference(100, x, 1, reference, &feedback, sent));
        }
    }
}

Test(wire, what_overflows_is_seen) {
    x[0] = 65520;
    cr_assert(!iso__codec_f16.encode(1, x, 1, sent));
    cr_assert(iso__codec_bf16.encode(1, x, 1, sent));
    x[0] = x[1] = 40000; // their sum is too large, their mean is not
    cr_assert(iso__codec_f16.encode(2, x, 1, sent));
    iso__codec_shares shares = {sent, 2, 1};
    cr_assert(iso__codec_f16.mean(&shares, NULL, back));
    cr_assert_eq(read_at(ISO_F16, back, 0), 40000);
    cr_assert(!iso__codec_f16.mean_rounded(&shares, back));
}

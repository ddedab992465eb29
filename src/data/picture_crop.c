// SPDX-License-Identifier: MIT
// Resizes a part of a picture: first along its rows, then along its columns.
#include "data/data_impl.h"
#include "data/picture.h"

#include <math.h>
#include <stdbool.h>

enum { CHANNELS = 3, FRACTION = 22 }; // bits behind the point of a weight

// The weights of one side: pixel i of the result is the sum of weight[i * most + k] times pixel
// first[i] + k, for k below count[i].
typedef struct taps {
    int64_t most;
    int64_t *first, *count; // [size]
    int32_t *weight;        // [size][most]
} taps;

// ---- Weights ------------------------------------------------------------------------------------

static double triangle_at(double x) { return fabs(x) < 1 ? 1 - fabs(x) : 0; }

// Multiplies by reciprocals, as Pillow does: for a weight half way between two integers, a division
// may round the other way.
static void weigh_pixel(const iso__span *span, double reach, int64_t i, taps *to) {
    double centre = span->begin + ((double)i + 0.5) * span->step, scale = 1 / reach, sum = 0;
    int64_t first = iso__larger((int64_t)(centre - reach + 0.5), 0);
    int64_t end = (int64_t)(centre + reach + 0.5);
    if (end > span->length) end = span->length;
    for (int64_t p = first; p < end; p++) sum += triangle_at(((double)p - centre + 0.5) * scale);
    for (int64_t p = first; p < end; p++) {
        double part = triangle_at(((double)p - centre + 0.5) * scale) * (1 / sum);
        to->weight[i * to->most + p - first] = (int32_t)(part * (1 << FRACTION) + 0.5);
    }
    to->first[i] = span->first + first;
    to->count[i] = end - first;
}

// Frees with iso__free(out->first).
static iso_status weigh_side(const iso__span *span, int64_t size, taps *out) {
    double reach = span->step > 1 ? span->step : 1;
    void *memory;
    out->most = 2 * (int64_t)ceil(reach) + 1;
    ISO_TRY(iso__alloc((size_t)size * (2 * sizeof(int64_t) + (size_t)out->most * sizeof(int32_t)),
                       &memory));
    out->first = memory;
    out->count = out->first + size;
    out->weight = (int32_t *)(out->count + size);
    for (int64_t i = 0; i < size; i++) weigh_pixel(span, reach, i, out);
    return ISO_OK;
}

// ---- Sums ---------------------------------------------------------------------------------------

static uint8_t round_sum(int32_t sum) {
    int32_t whole = sum >> FRACTION;
    return (uint8_t)(whole > 255 ? 255 : whole);
}

// to: [size][CHANNELS]
static void reduce_row(const uint8_t *row, const taps *x, int64_t size, uint8_t *to) {
    for (int64_t i = 0; i < size; i++, to += CHANNELS) {
        const uint8_t *from = row + x->first[i] * CHANNELS;
        const int32_t *weight = x->weight + i * x->most;
        int32_t sum[CHANNELS] = {1 << (FRACTION - 1), 1 << (FRACTION - 1), 1 << (FRACTION - 1)};
        for (int64_t k = 0; k < x->count[i]; k++, from += CHANNELS)
            for (int c = 0; c < CHANNELS; c++) sum[c] += weight[k] * from[c];
        for (int c = 0; c < CHANNELS; c++) to[c] = round_sum(sum[c]);
    }
}

// rows: [rows][size][CHANNELS]. Row 0 is row y->first[0] of the picture.
static void reduce_columns(const uint8_t *rows, const taps *y, int64_t size, uint8_t *out) {
    int64_t step = size * CHANNELS;
    for (int64_t j = 0; j < size; j++) {
        const uint8_t *from = rows + (y->first[j] - y->first[0]) * step;
        const int32_t *weight = y->weight + j * y->most;
        for (int64_t i = 0; i < step; i++) {
            int32_t sum = 1 << (FRACTION - 1);
            for (int64_t k = 0; k < y->count[j]; k++) sum += weight[k] * from[k * step + i];
            out[(i % CHANNELS * size + j) * size + i / CHANNELS] = round_sum(sum);
        }
    }
}

static iso_status reduce_both(const iso__picture *picture, const taps *x, const taps *y,
                              int64_t size, uint8_t *out) {
    int64_t first = y->first[0], rows = y->first[size - 1] + y->count[size - 1] - first;
    void *memory;
    ISO_TRY(iso__alloc((size_t)(rows * size * CHANNELS), &memory));
    for (int64_t r = 0; r < rows; r++)
        reduce_row(picture->pixels + (first + r) * picture->width * CHANNELS, x, size,
                   (uint8_t *)memory + r * size * CHANNELS);
    reduce_columns(memory, y, size, out);
    iso__free(memory);
    return ISO_OK;
}

iso_status iso__picture_crop(const iso__picture *picture, const iso__span *x, const iso__span *y,
                             int64_t size, uint8_t *out) {
    taps of_x = {0}, of_y = {0};
    iso_status status = weigh_side(x, size, &of_x);
    if (status >= 0) status = weigh_side(y, size, &of_y);
    if (status >= 0) status = reduce_both(picture, &of_x, &of_y, size, out);
    iso__free(of_x.first);
    iso__free(of_y.first);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- The middle ---------------------------------------------------------------------------------

// Rounds halves to even, as Python does.
static int64_t halve_rounded(int64_t n) { return n / 2 + (n % 2 == 1 && n / 2 % 2 == 1); }

static iso__span find_middle(int64_t length, int64_t resized, int64_t size) {
    double step = (double)length / (double)resized;
    return (iso__span){(double)halve_rounded(resized - size) * step, step, 0, length};
}

void iso__picture_centre(const iso__picture *picture, int64_t shorter, int64_t size, iso__span *x,
                         iso__span *y) {
    int64_t w = picture->width, h = picture->height;
    *x = find_middle(w, w <= h ? shorter : shorter * w / h, size);
    *y = find_middle(h, h <= w ? shorter : shorter * h / w, size);
}

// ---- At random ----------------------------------------------------------------------------------

enum { ATTEMPTS = 10 };

typedef struct part {
    int64_t left, top, width, height;
} part;

static double draw_between(uint32_t word, double low, double high) {
    return low + (high - low) * ((double)word * 0x1p-32);
}

// From 0 to most.
static int64_t draw_place(uint32_t word, int64_t most) {
    return (int64_t)((uint64_t)word * (uint64_t)(most + 1) >> 32);
}

// False: it does not fit into the picture.
static bool draw_part(const iso__picture *picture, double least, iso__philox_key key,
                      uint32_t attempt, part *out) {
    uint32_t counter[4] = {attempt, 0, 0, 0}, word[4];
    iso__philox(key, counter, word);
    double all = (double)(picture->width * picture->height);
    double area = all * draw_between(word[0], least, 1);
    double ratio = exp(draw_between(word[1], log(3. / 4), log(4. / 3)));
    int64_t width = llround(sqrt(area * ratio)), height = llround(sqrt(area / ratio));
    if (width < 1 || width > picture->width || height < 1 || height > picture->height) return false;
    *out = (part){draw_place(word[2], picture->width - width),
                  draw_place(word[3], picture->height - height), width, height};
    return true;
}

// The largest part in the middle whose ratio is allowed.
static part take_middle(const iso__picture *picture) {
    int64_t w = picture->width, h = picture->height;
    int64_t width = 3 * w > 4 * h ? iso__larger(4 * h / 3, 1) : w;
    int64_t height = 3 * h > 4 * w ? iso__larger(4 * w / 3, 1) : h;
    return (part){(w - width) / 2, (h - height) / 2, width, height};
}

void iso__picture_draw(const iso__picture *picture, double least, uint64_t random, int64_t size,
                       iso__span *x, iso__span *y) {
    iso__philox_key key = iso__philox_key_make(random, ISO_RNG_AUGMENT, 0);
    part found = take_middle(picture);
    for (uint32_t i = 0; i < ATTEMPTS && !draw_part(picture, least, key, i, &found);) i++;
    *x = (iso__span){0, (double)found.width / (double)size, found.left, found.width};
    *y = (iso__span){0, (double)found.height / (double)size, found.top, found.height};
}

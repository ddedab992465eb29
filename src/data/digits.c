// SPDX-License-Identifier: MIT
// Generates the built-in data set: handwriting-like digits, drawn with integers only so that every
// machine gets the same bytes.
//
// Placement and clutter make better models visibly better: trained on 12,000 images, a linear model
// classifies 82 % of 2,000 test images correctly (5 epochs), two hidden layers of 512 reach 98.5 %
// (3 epochs), and a small convolutional network 99.5 % (3 epochs).
#include "base/half.h"
#include "data/data_impl.h"

#include <math.h>

#define SIDE        28
#define PIXELS      (SIDE * SIDE)
#define ONE         256 // a pixel in the fixed-point coordinates of an image
#define MAX_POINTS  12
#define MAX_STROKES 3

// ---- Glyphs: strokes over a grid 10 wide and 14 high, y downwards -------------------------------

typedef struct stroke {
    bool curved; // a quadratic B-spline of its points instead of straight lines between them
    int count;
    int8_t xy[MAX_POINTS][2];
} stroke;

typedef struct glyph {
    int digit, count;
    stroke strokes[MAX_STROKES];
} glyph;

static const glyph glyphs[] = {
    {0,
     1,
     {{true, 9, {{5, 0}, {1, 0}, {0, 5}, {0, 10}, {3, 14}, {8, 14}, {10, 8}, {9, 0}, {5, 0}}}}},
    {0,
     1,
     {{true, 9, {{7, 1}, {3, 0}, {1, 4}, {1, 11}, {4, 14}, {8, 13}, {9, 7}, {8, 1}, {4, 1}}}}},
    {1, 1, {{false, 2, {{5, 0}, {5, 14}}}}},
    {1, 1, {{false, 3, {{2, 3}, {6, 0}, {6, 14}}}}},
    {1, 2, {{false, 3, {{2, 3}, {5, 0}, {5, 14}}}, {false, 2, {{2, 14}, {8, 14}}}}},
    {2, 1, {{true, 8, {{1, 3}, {2, 0}, {8, 0}, {9, 5}, {5, 9}, {1, 14}, {1, 14}, {10, 14}}}}},
    {2,
     1,
     {{true,
       10,
       {{1, 2}, {5, -1}, {9, 1}, {8, 7}, {4, 13}, {0, 14}, {1, 11}, {4, 12}, {7, 15}, {10, 13}}}}},
    {3,
     1,
     {{true,
       10,
       {{1, 1}, {4, -1}, {9, 0}, {9, 6}, {4, 7}, {4, 7}, {10, 7}, {10, 14}, {4, 15}, {0, 12}}}}},
    {3,
     2,
     {{false, 3, {{1, 0}, {9, 0}, {5, 6}}},
      {true, 6, {{5, 6}, {10, 6}, {10, 13}, {6, 15}, {2, 14}, {0, 12}}}}},
    {4, 2, {{false, 3, {{6, 0}, {0, 9}, {10, 9}}}, {false, 2, {{7, 4}, {7, 14}}}}},
    {4, 2, {{false, 3, {{2, 0}, {1, 7}, {9, 7}}}, {false, 2, {{8, 0}, {8, 14}}}}},
    {4, 2, {{true, 5, {{1, 0}, {0, 6}, {3, 8}, {7, 8}, {9, 6}}}, {false, 2, {{9, 0}, {8, 14}}}}},
    {5,
     2,
     {{false, 2, {{2, 0}, {9, 0}}},
      {true, 9, {{2, 0}, {1, 6}, {1, 6}, {4, 5}, {9, 5}, {10, 12}, {6, 15}, {2, 14}, {0, 12}}}}},
    {5,
     1,
     {{true,
       11,
       {{9, 0},
        {9, 0},
        {3, 0},
        {3, 0},
        {2, 6},
        {2, 6},
        {6, 5},
        {10, 8},
        {8, 14},
        {3, 15},
        {0, 12}}}}},
    {6,
     1,
     {{true,
       10,
       {{8, 0}, {3, 2}, {0, 8}, {1, 14}, {7, 15}, {10, 11}, {7, 7}, {3, 8}, {1, 11}, {1, 11}}}}},
    {6,
     1,
     {{true,
       10,
       {{6, 0}, {2, 4}, {0, 10}, {3, 15}, {9, 14}, {9, 8}, {5, 7}, {2, 9}, {1, 12}, {2, 13}}}}},
    {7, 1, {{false, 3, {{0, 0}, {10, 0}, {4, 14}}}}},
    {7, 2, {{false, 3, {{0, 1}, {9, 0}, {4, 14}}}, {false, 2, {{3, 7}, {9, 7}}}}},
    {7, 1, {{true, 7, {{0, 3}, {1, 0}, {1, 0}, {10, 0}, {10, 0}, {5, 6}, {5, 14}}}}},
    {8,
     1,
     {{true,
       12,
       {{9, 2},
        {5, -1},
        {1, 1},
        {1, 5},
        {5, 7},
        {9, 9},
        {10, 14},
        {4, 15},
        {0, 12},
        {2, 8},
        {8, 6},
        {9, 2}}}}},
    {8,
     2,
     {{true, 7, {{5, 0}, {1, 0}, {1, 7}, {9, 7}, {9, 0}, {5, 0}, {5, 0}}},
      {true, 7, {{5, 6}, {0, 7}, {0, 14}, {10, 14}, {10, 7}, {5, 6}, {5, 6}}}}},
    {9,
     1,
     {{true,
       10,
       {{9, 2}, {6, -1}, {1, 0}, {0, 6}, {4, 8}, {8, 6}, {9, 2}, {9, 2}, {9, 8}, {8, 14}}}}},
    {9,
     1,
     {{true,
       11,
       {{9, 3},
        {7, 0},
        {2, 0},
        {0, 5},
        {3, 8},
        {8, 7},
        {9, 2},
        {10, 8},
        {9, 13},
        {5, 15},
        {1, 13}}}}},
};
#define GLYPHS ((int)(sizeof(glyphs) / sizeof(glyphs[0])))

// ---- Random draws of one image ------------------------------------------------------------------

typedef struct draws {
    iso__philox_key key;
    uint32_t counter[4], word[4];
    int used;
} draws;

static uint32_t draw_word(draws *self) {
    if (self->used == 4) {
        iso__philox(self->key, self->counter, self->word);
        self->counter[0]++;
        self->used = 0;
    }
    return self->word[self->used++];
}

// In [low, high]; the bias of at most 2^-20 does not matter here.
static int draw_between(draws *self, int low, int high) {
    uint64_t span = (uint64_t)(high - low + 1);
    return low + (int)((uint64_t)draw_word(self) * span >> 32);
}

// Like between, but the middle is likelier than the ends.
static int draw_around(draws *self, int low, int high) {
    return (draw_between(self, low, high) + draw_between(self, low, high)) / 2;
}

// ---- Ink ----------------------------------------------------------------------------------------

typedef struct pen {
    int radius; // in 1/ONE pixel
    int ink;    // 0 to 255
} pen;

typedef struct point {
    int x, y;
} point;

static int clamp_to(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

// Squared distance from p to the segment ab.
static int64_t squared_distance(point p, point a, point b) {
    int64_t dx = b.x - a.x, dy = b.y - a.y, px = p.x - a.x, py = p.y - a.y;
    int64_t length2 = dx * dx + dy * dy, along = px * dx + py * dy;
    if (along <= 0) return px * px + py * py;
    if (along >= length2)
        return (p.x - b.x) * (int64_t)(p.x - b.x) + (p.y - b.y) * (int64_t)(p.y - b.y);
    int64_t across = px * dy - py * dx;
    return across * across / length2;
}

// How much of a pixel at this squared distance a line covers, of ONE. Its edge fades over one
// pixel.
static int cover_of(pen with, int64_t far2) {
    int64_t inside = with.radius - ONE / 2, outside = with.radius + ONE / 2;
    if (far2 >= outside * outside) return 0;
    if (inside >= 0 && far2 <= inside * inside) return ONE;
    // IEEE 754 rounds sqrt correctly, so this is as exact as an integer root.
    return clamp_to((int)outside - (int)sqrt((double)far2), 0, ONE);
}

static void draw_segment(uint8_t *image, pen with, point a, point b) {
    int reach = with.radius + ONE;
    int left = clamp_to(((a.x < b.x ? a.x : b.x) - reach) / ONE, 0, SIDE - 1);
    int right = clamp_to(((a.x > b.x ? a.x : b.x) + reach) / ONE, 0, SIDE - 1);
    int top = clamp_to(((a.y < b.y ? a.y : b.y) - reach) / ONE, 0, SIDE - 1);
    int bottom = clamp_to(((a.y > b.y ? a.y : b.y) + reach) / ONE, 0, SIDE - 1);
    for (int y = top; y <= bottom; y++) {
        for (int x = left; x <= right; x++) {
            uint8_t *pixel = &image[y * SIDE + x];
            if (*pixel >= with.ink) continue; // the line makes nothing darker than its ink
            point centre = {x * ONE + ONE / 2, y * ONE + ONE / 2};
            int value = cover_of(with, squared_distance(centre, a, b)) * with.ink / ONE;
            if (value > *pixel) *pixel = (uint8_t)value;
        }
    }
}

static point middle_of(point a, point b) { return (point){(a.x + b.x) / 2, (a.y + b.y) / 2}; }

// From `start` to `end` bending towards `control`, as four straight pieces.
static void draw_bend(uint8_t *image, pen with, point start, point control, point end) {
    point last = start;
    for (int t = 1; t <= 4; t++) {
        int s = 4 - t;
        point next = {(s * s * start.x + 2 * s * t * control.x + t * t * end.x) / 16,
                      (s * s * start.y + 2 * s * t * control.y + t * t * end.y) / 16};
        draw_segment(image, with, last, next);
        last = next;
    }
}

static void draw_stroke(uint8_t *image, pen with, bool curved, int count, const point *points) {
    if (!curved || count < 3) {
        for (int i = 1; i < count; i++) draw_segment(image, with, points[i - 1], points[i]);
        return;
    }
    point start = points[0];
    for (int i = 1; i < count - 1; i++) {
        point end = i == count - 2 ? points[count - 1] : middle_of(points[i], points[i + 1]);
        draw_bend(image, with, start, points[i], end);
        start = end;
    }
}

// ---- One image ----------------------------------------------------------------------------------

// From glyph units around the glyph's centre to 1/ONE pixel: scale, slant and rotation as one
// matrix (in 1/ONE pixel per glyph unit), then a shift.
typedef struct placement {
    int xx, xy, yx, yy, shift_x, shift_y;
} placement;

static placement draw_placement(draws *random) {
    int width = draw_around(random, 250, 440),
        height = draw_around(random, 250, 380); // 1/ONE pixel per unit
    int slant = draw_around(random, -100, 130), turn = draw_around(random, -100, 100); // 1/ONE
    placement place;
    place.xx = width;
    place.xy = -(slant + turn) * height / ONE;
    place.yx = turn * width / ONE;
    place.yy = height;
    place.shift_x = SIDE * ONE / 2 + draw_around(random, -5 * ONE, 5 * ONE);
    place.shift_y = SIDE * ONE / 2 + draw_around(random, -9 * ONE / 2, 9 * ONE / 2);
    return place;
}

#define WOBBLE 16 // parts of a glyph unit in which control points wobble

static void draw_glyph(uint8_t *image, draws *random, const glyph *what) {
    placement place = draw_placement(random);
    pen with = {draw_around(random, 130, 360), draw_between(random, 150, 255)};
    for (int s = 0; s < what->count; s++) {
        const stroke *from = &what->strokes[s];
        point points[MAX_POINTS];
        for (int i = 0; i < from->count; i++) {
            int x = (from->xy[i][0] - 5) * WOBBLE + draw_around(random, -WOBBLE, WOBBLE);
            int y = (from->xy[i][1] - 7) * WOBBLE + draw_around(random, -WOBBLE, WOBBLE);
            points[i].x = (place.xx * x + place.xy * y) / WOBBLE + place.shift_x;
            points[i].y = (place.yx * x + place.yy * y) / WOBBLE + place.shift_y;
        }
        draw_stroke(image, with, from->curved, from->count, points);
    }
}

// Short strokes that belong to no digit, anywhere.
static void draw_clutter(uint8_t *image, draws *random) {
    int count = draw_between(random, 0, 3);
    for (int i = 0; i < count; i++) {
        pen with = {draw_between(random, 90, 200), draw_between(random, 60, 200)};
        point points[2];
        points[0].x = draw_between(random, 0, SIDE * ONE);
        points[0].y = draw_between(random, 0, SIDE * ONE);
        points[1].x = points[0].x + draw_between(random, -5 * ONE, 5 * ONE);
        points[1].y = points[0].y + draw_between(random, -5 * ONE, 5 * ONE);
        draw_stroke(image, with, false, 2, points);
    }
}

// Each pixel takes 16 random bits: the difference of their two bytes has a triangular distribution.
ISO_CLONES static void add_words(const uint16_t *half, int strength, uint8_t *image) {
    for (int p = 0; p < PIXELS; p++) {
        int difference = (half[p] & 255) - (half[p] >> 8);
        int value = image[p] + difference * strength / 256;
        image[p] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
}

static void add_noise(uint8_t *image, draws *random) {
    int strength = draw_between(random, 0, 60);
    uint16_t half[PIXELS];
    for (int p = 0; p < PIXELS; p += 2) {
        uint32_t word = draw_word(random);
        half[p] = (uint16_t)word;
        half[p + 1] = (uint16_t)(word >> 16);
    }
    add_words(half, strength, image);
}

// Image i of its stream, whatever the number of images asked for. `image` is zero.
static int32_t draw_digit(bool train, int64_t i, uint8_t *image) {
    draws random = {.key = iso__philox_key_make(train ? 1 : 2, ISO_RNG_DIGITS, (uint64_t)i),
                    .used = 4};
    int digit = draw_between(&random, 0, 9), first = 0, variants = 0;
    while (glyphs[first].digit != digit) first++;
    while (first + variants < GLYPHS && glyphs[first + variants].digit == digit) variants++;
    draw_glyph(image, &random, &glyphs[draw_between(&random, first, first + variants - 1)]);
    draw_clutter(image, &random);
    add_noise(image, &random);
    return digit;
}

iso_status iso_dataset_create_digits(bool train, int64_t count, iso_dataset **out) {
    ISO_CHECK(count > 0 && count <= INT32_MAX, ISO_ERR_ARG,
              "a set of %lld digits cannot be made: give 1 to %d", (long long)count, INT32_MAX);
    iso_status status;
    void *images = NULL, *labels = NULL;
    iso_dataset_info info = {
        .count = count, .channels = 1, .height = SIDE, .width = SIDE, .classes = 10};
    ISO_TRY_GOTO(iso__alloc_zero((size_t)count * PIXELS, &images));
    ISO_TRY_GOTO(iso__alloc((size_t)count * sizeof(int32_t), &labels));
    for (int64_t i = 0; i < count; i++)
        ((int32_t *)labels)[i] = draw_digit(train, i, (uint8_t *)images + i * PIXELS);
    return iso__image_set_create_take(images, labels, &info, out);
fail:
    iso__free(images);
    iso__free(labels);
    return status;
}

// SPDX-License-Identifier: MIT
// Communication hooks that own their exchange, on ranks that one process plays: golden values of
// PyTorch, and what error feedback promises.
#include "base/base.h"
#include "common/balance.h"
#include "common/hook_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(hook_phases, .fini = balance_check, .timeout = 60);

enum { KEY = 5 }; // of the gradients that are drawn

// ---- PowerSGD -----------------------------------------------------------------------------------------

// PyTorch 2.15's powerSGD_hook over gloo, 2 ranks, one 8 x 6 weight, error feedback and warm start:
// row 0 of the result and its Frobenius norm, from the given Q on. The hook begins at step 2.
enum { ROWS = 8, COLUMNS = 6, GOLDEN_STEPS = 4 };
typedef struct golden {
    float row[COLUMNS], norm;
} golden;
// Row by row, of 6 x rank.
static const float first_q[2 * COLUMNS] = {-.81030238f, .41339946f,  -1.2778252f, .33025196f,
                                           .33864617f,  -.64343667f, -.97558731f, -.95916772f,
                                           .074384302f, 1.4682914f,  -1.8973178f, .34869167f};
static const golden golden_runs[2][GOLDEN_STEPS] = {
    {{{-.141434f, .1145025f, -.2527368f, .2082977f, -.05745376f, -.08019882f}, 1.273961f},
     {{-.02667968f, .1772749f, .01819222f, .2110233f, .006573665f, .1195974f}, 1.147977f},
     {{.1177275f, -.4768f, .2646238f, -.1761949f, -.4242511f, -.07135137f}, 1.570225f},
     {{.09693085f, .5574282f, -.5622895f, .1897048f, .579505f, -.283794f}, 1.624787f}},
    {{{.00141183f, -.04094315f, -.02503456f, -.01661612f, -.0147552f, -.02778003f}, 1.650968f},
     {{-.1752962f, -.0778433f, -.09205728f, .1327981f, -.2080528f, .05160493f}, 1.522784f},
     {{.2244364f, .5868233f, -.04089373f, -.280656f, .2114314f, -.608675f}, 1.910391f},
     {{-.02736874f, -.360979f, .003349453f, .3165192f, .4129533f, .1505673f}, 2.270356f}}};

static float golden_gradient(int r, int t, int i, int j) {
    return (float)((3 * i + 5 * j + 7 * r + 11 * t + i * j * (r + 1)) % 13 - 6) / 8;
}

static double norm_of(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static void open_matrix(played *p, const iso_powersgd_config *config, size_t rows, size_t row,
                        int ranks) {
    *p = (played){.ranks = ranks, .count = rows * row, .hook = iso_hook_powersgd(config)};
    p->tensor[p->tensor_count++] = (iso_comm_hook_tensor){"fc1.weight", 0, rows * row, row};
    played_open(p);
}

// The state of a matrix: what was left out, and Q by columns.
static void set_columns(played *p, int columns) {
    for (int r = 0; r < p->ranks; r++)
        for (int i = 0; i < columns * COLUMNS; i++)
            p->state[r][p->count + (size_t)(i % columns * COLUMNS + i / columns)] = first_q[i];
}

static void trains_as_pytorch(int rank) {
    iso_powersgd_config config = {.rank = rank, .least_saving = 1};
    played p;
    open_matrix(&p, &config, ROWS, COLUMNS, 2);
    set_columns(&p, rank);
    for (int t = 0; t < GOLDEN_STEPS; t++) {
        const golden *want = &golden_runs[rank - 1][t];
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < ROWS; i++)
                for (int j = 0; j < COLUMNS; j++)
                    p.gradient[r][i * COLUMNS + j] = golden_gradient(r, t + 2, i, j);
        played_exchange(&p);
        played_assert_equal(&p);
        for (int j = 0; j < COLUMNS; j++)
            cr_assert_float_eq(p.gradient[0][j], want->row[j], 1e-5, "step %d column %d: %.8g", t,
                               j, (double)p.gradient[0][j]);
        cr_assert_float_eq(norm_of(p.gradient[0], p.count), (double)want->norm, 1e-5);
    }
    played_close(&p);
}

Test(hook_phases, powersgd_of_rank_1_is_that_of_pytorch) { trains_as_pytorch(1); }
Test(hook_phases, powersgd_of_rank_2_is_that_of_pytorch) { trains_as_pytorch(2); }

// All directions there are: nothing is left out.
Test(hook_phases, powersgd_of_full_rank_is_the_average) {
    iso_powersgd_config config = {.rank = 100, .least_saving = .1};
    played p;
    open_matrix(&p, &config, 9, 13, 3);
    for (uint32_t step = 0; step < 5; step++) {
        played_draw(&p, KEY, step);
        played_exchange(&p);
        played_assert_equal(&p);
        for (size_t i = 0; i < p.count; i++)
            cr_assert_float_eq((double)p.gradient[0][i], played_mean(&p, KEY, step, i), 2e-6);
    }
    played_close(&p);
}

// PRE, SUM and SPLIT on four ranks: powers of two, so the bits are those of POST, multiplied.
Test(hook_phases, powersgd_leaves_out_the_same_with_every_factor) {
    static const double factors[][2] = {{0.25, 1}, {1, 1}, {0.5, 0.5}};
    iso_powersgd_config config = {.rank = 2, .least_saving = 1};
    for (int i = 0; i < 3; i++) {
        double before = factors[i][0], after = factors[i][1];
        played post, other;
        open_matrix(&post, &config, 20, 30, 4);
        open_matrix(&other, &config, 20, 30, 4);
        for (uint32_t step = 0; step < 6; step++) {
            played_draw(&post, KEY, step);
            played_draw(&other, KEY, step);
            played_exchange(&post);
            played_exchange_with(&other, before, after);
            played_assert_equal(&other);
            float multiple = (float)(before * after * 4);
            for (size_t k = 0; k < post.count; k++)
                cr_assert_eq(other.gradient[0][k], multiple * post.gradient[0][k],
                             "factors %d, step %u, element %zu: %.9g and %.9g", i, step, k,
                             (double)other.gradient[0][k], (double)post.gradient[0][k]);
        }
        played_close(&post);
        played_close(&other);
    }
}

// Weights, a bias and a thin matrix that would not get shorter: these travel as they are.
Test(hook_phases, powersgd_leaves_what_gets_no_shorter) {
    iso_powersgd_config config = {.rank = 2, .least_saving = 2};
    played p = {.ranks = 2, .count = 1200, .hook = iso_hook_powersgd(&config)};
    p.tensor[0] = (iso_comm_hook_tensor){"a.weight", 0, 1000, 50};
    p.tensor[1] = (iso_comm_hook_tensor){"a.bias", 1008, 20, 0};
    p.tensor[2] = (iso_comm_hook_tensor){"b.weight", 1040, 60, 3};
    p.tensor_count = 3;
    played_open(&p);
    cr_assert_eq(p.plan.phase[0].count, 2 * 20 + 20 + 60);
    cr_assert_eq(p.plan.phase[1].count, 2 * 50);
    played_draw(&p, KEY, 0);
    played_exchange(&p);
    for (size_t i = 1040; i < 1100; i++)
        cr_assert_float_eq((double)p.gradient[1][i], played_mean(&p, KEY, 0, i), 1e-7);
    played_close(&p);
    p.tensor[0].row = 0; // nothing is a matrix that gets shorter
    played_open(&p);
    cr_assert(p.plan.plain);
    played_close(&p);
}

// A gradient of zeros has no direction. The next one counts again.
Test(hook_phases, powersgd_survives_zeros) {
    iso_powersgd_config config = {.rank = 2, .least_saving = 1};
    played p;
    open_matrix(&p, &config, 30, 40, 2);
    for (int t = 0; t < 2; t++) {
        for (int r = 0; r < p.ranks; r++) memset(p.gradient[r], 0, p.count * sizeof(float));
        played_exchange(&p);
        cr_assert(norm_of(p.gradient[0], p.count) == 0);
    }
    played_draw(&p, KEY, 1);
    played_exchange(&p);
    cr_assert(norm_of(p.gradient[0], p.count) > 1);
    played_close(&p);
}

// ---- What all of them promise -------------------------------------------------------------------------

static void open_all(played *p, const iso_comm_hook *hook, int ranks, size_t count) {
    size_t half = count / 2 / 40 * 40;
    *p = (played){.ranks = ranks, .count = count, .hook = *hook};
    p->tensor[0] = (iso_comm_hook_tensor){"a.weight", 0, half, 40};
    p->tensor[1] = (iso_comm_hook_tensor){"b.weight", half, count - half, 0};
    p->tensor_count = 2;
    played_open(p);
}

// Of element i, what has been left out so far, over the ranks.
static double left_out(const played *p, size_t i) {
    double sum = 0;
    if (strcmp(p->hook.name, "powersgd") == 0 && i >= p->tensor[0].count) return 0;
    for (int r = 0; r < p->ranks; r++) sum += (double)p->state[r][i];
    return sum;
}

// Sum over the steps: results + what was left out / ranks = averages.
static void nothing_is_lost(const iso_comm_hook *hook, int ranks, size_t count, double bound) {
    static double sum[PLAYED_COUNT];
    enum { STEPS = 12 };
    played p;
    open_all(&p, hook, ranks, count);
    memset(sum, 0, sizeof(sum));
    for (uint32_t step = 0; step < STEPS; step++) {
        played_draw(&p, KEY, step);
        played_exchange(&p);
        played_assert_equal(&p);
        for (size_t i = 0; i < count; i++)
            sum[i] += (double)p.gradient[0][i] - played_mean(&p, KEY, step, i);
    }
    for (size_t i = 0; i < count; i++) {
        double left = sum[i] + left_out(&p, i) / ranks;
        cr_assert(fabs(left) < bound, "%s, %d ranks, element %zu: %g", hook->name, ranks, i, left);
    }
    played_close(&p);
}

Test(hook_phases, what_int8_leaves_out_comes_later) {
    nothing_is_lost(&iso_hook_int8, 1, 700, 1e-5);
    nothing_is_lost(&iso_hook_int8, 2, 2000, 1e-5);
    nothing_is_lost(&iso_hook_int8, 3, 1999, 1e-5);
    nothing_is_lost(&iso_hook_int8, 5, 1024, 1e-5); // one rank has no shard
}

Test(hook_phases, what_fp8_leaves_out_comes_later) {
    nothing_is_lost(&iso_hook_fp8, 1, 700, 1e-5);
    nothing_is_lost(&iso_hook_fp8, 3, 1999, 1e-5);
    nothing_is_lost(&iso_hook_fp8, 5, 513, 1e-5); // ranks without a shard
}

Test(hook_phases, what_topk_leaves_out_comes_later) {
    iso_topk_config config = {.ratio = .05};
    iso_comm_hook hook = iso_hook_topk(&config);
    nothing_is_lost(&hook, 2, 2000, 1e-5);
    nothing_is_lost(&hook, 3, 1999, 1e-5);
}

Test(hook_phases, what_powersgd_leaves_out_comes_later) {
    iso_powersgd_config config = {.rank = 2, .least_saving = 1};
    iso_comm_hook hook = iso_hook_powersgd(&config);
    nothing_is_lost(&hook, 2, 2000, 3e-5);
    nothing_is_lost(&hook, 3, 1999, 3e-5);
}

// NaN and infinity reach all ranks, and are gone with the next exchange.
static void tells_of_what_is_not_finite(const iso_comm_hook *hook, float value) {
    played p;
    open_all(&p, hook, 2, 1000);
    played_draw(&p, KEY, 0);
    for (size_t i = 0; i < 200; i++) p.gradient[1][77 + i] = value; // more than topk sends
    played_exchange(&p);
    for (int r = 0; r < 2; r++) cr_assert(!isfinite(p.gradient[r][77]), "%s", hook->name);
    for (uint32_t step = 1; step < 3; step++) {
        played_draw(&p, KEY, step);
        played_exchange(&p);
        for (size_t i = 0; i < p.count; i++)
            cr_assert(isfinite(p.gradient[0][i]), "%s: element %zu", hook->name, i);
    }
    cr_assert(norm_of(p.gradient[0], p.count) > .5);
    played_close(&p);
}

Test(hook_phases, nothing_stays_infinite) {
    iso_topk_config topk = {.ratio = .05};
    iso_powersgd_config powersgd = {.rank = 2, .least_saving = 1};
    const iso_comm_hook hook[] = {iso_hook_int8, iso_hook_fp8, iso_hook_topk(&topk),
                                  iso_hook_powersgd(&powersgd)};
    for (int h = 0; h < 4; h++) {
        tells_of_what_is_not_finite(&hook[h], NAN);
        tells_of_what_is_not_finite(&hook[h], INFINITY);
    }
}

// A gradient whose square is infinite does not freeze its matrix.
Test(hook_phases, powersgd_survives_large_gradients) {
    iso_powersgd_config config = {.rank = 1, .least_saving = 1};
    played p;
    open_matrix(&p, &config, 80, 50, 2);
    for (int t = 0; t < 4; t++) {
        float value = t == 0 ? 1e20f : 1;
        for (int r = 0; r < p.ranks; r++)
            for (size_t i = 0; i < p.count; i++) p.gradient[r][i] = value;
        played_exchange(&p);
        cr_assert(t > 0 || fabsf(p.gradient[0][7] / value - 1) < 1e-4f);
    }
    cr_assert(p.gradient[0][7] > 0 && p.gradient[0][7] < 1e20f);
    played_close(&p);
}

// ---- int8, fp8 and top-k -------------------------------------------------------------------------------

// The first time, each value is off by at most half a step of its group on each rank, and of the
// group of sums.
Test(hook_phases, int8_is_off_by_half_a_step) {
    played p;
    open_all(&p, &iso_hook_int8, 3, 1500);
    played_draw(&p, KEY, 0);
    played_exchange(&p);
    double step = 1.0 / 127, worst = 0;
    for (size_t i = 0; i < p.count; i++) {
        double off = fabs((double)p.gradient[0][i] - played_mean(&p, KEY, 0, i));
        worst = off > worst ? off : worst;
    }
    cr_assert(worst > .1 * step && worst <= step * 1.001, "%g steps", worst / step);
    cr_assert_eq(p.plan.phase[0].count, 2 * 260); // two groups of 256 are a rank's shard
    played_close(&p);
}

// The first time, each value is off by at most 1/16 of itself, or half of 1/229376 of the largest,
// on each rank; and so is the sum.
Test(hook_phases, fp8_is_off_by_a_sixteenth) {
    played p;
    open_all(&p, &iso_hook_fp8, 3, 1500);
    played_draw(&p, KEY, 0);
    played_exchange(&p);
    double worst = 0;
    for (size_t i = 0; i < p.count; i++) {
        double sizes = 0, mean = played_mean(&p, KEY, 0, i);
        for (uint32_t r = 0; r < 3; r++) sizes += fabs((double)played_drawn(KEY, r, 0, i)) / 3;
        double bound = sizes / 16 + (fabs(mean) + sizes / 16) / 16 + 2. / 458752;
        worst = fmax(worst, fabs((double)p.gradient[0][i] - mean) / bound);
    }
    cr_assert(worst > .3 && worst <= 1, "%g of what is allowed", worst);
    cr_assert_eq(p.plan.phase[0].count, 4 * 132); // four groups of 128 are a rank's shard
    played_close(&p);
}

// 8 bits for each magnitude, whatever it is.
static void takes_all_magnitudes(const iso_comm_hook *hook) {
    static const float magnitude[] = {1e-45f, 1e-42f, 1e-38f, 1e-20f, 1, 1e20f, 3e38f};
    for (size_t m = 0; m < sizeof(magnitude) / sizeof(magnitude[0]); m++) {
        played p;
        open_all(&p, hook, 1, 512);
        for (size_t i = 0; i < p.count; i++)
            p.gradient[0][i] = magnitude[m] * (float)(i % 2 ? 1 : -1);
        played_exchange(&p);
        for (size_t i = 0; i < p.count; i++) {
            double want = (double)magnitude[m] * (i % 2 ? 1 : -1);
            double got = (double)p.gradient[0][i] + left_out(&p, i);
            cr_assert(fabs(got - want) <= 1e-6 * fabs(want) && isfinite(p.gradient[0][i]), "%g: %g",
                      want, got);
        }
        played_close(&p);
    }
}

Test(hook_phases, int8_takes_all_magnitudes) { takes_all_magnitudes(&iso_hook_int8); }
Test(hook_phases, fp8_takes_all_magnitudes) { takes_all_magnitudes(&iso_hook_fp8); }

static int count_nonzero(const played *p) {
    int count = 0;
    for (size_t i = 0; i < p->count; i++) count += p->gradient[0][i] != 0;
    return count;
}

Test(hook_phases, topk_sends_the_largest) {
    iso_topk_config config = {.ratio = .1};
    iso_comm_hook hook = iso_hook_topk(&config);
    played p;
    open_all(&p, &hook, 1, 1000);
    for (size_t i = 0; i < 1000; i++)
        p.gradient[0][i] = (float)((i * 37) % 1000) * (i % 2 ? -1 : 1);
    played_exchange(&p);
    cr_assert_eq(count_nonzero(&p), 100);
    for (size_t i = 0; i < 1000; i++)
        cr_assert_eq(p.gradient[0][i] != 0, (i * 37) % 1000 >= 900, "element %zu", i);
    for (size_t i = 0; i < 1000; i++) p.gradient[0][i] = p.state[0][i] = 0;
    for (size_t i = 200; i < 600; i++) p.gradient[0][i] = 1; // equals: the first of them
    played_exchange(&p);
    for (size_t i = 0; i < 1000; i++)
        cr_assert_eq(p.gradient[0][i] != 0, i >= 200 && i < 300, "element %zu", i);
    played_close(&p);
}

Test(hook_phases, wrong_configurations_are_refused) {
    iso_topk_config topk = {.ratio = 1.5};
    iso_powersgd_config powersgd = {.rank = 0, .least_saving = 2};
    iso_comm_hook hook[] = {iso_hook_topk(&topk), iso_hook_powersgd(&powersgd)};
    iso_comm_hook_bucket b = {.count = 100, .dtype = ISO_F32, .ranks = 2, .name = "fc1"};
    for (int h = 0; h < 2; h++) {
        iso_comm_hook_plan plan = {0};
        cr_assert_eq(hook[h].declare(&b, &plan, hook[h].user), ISO_ERR_ARG);
        cr_assert(strstr(iso_last_error()->message, hook[h].name));
    }
}

// SPDX-License-Identifier: MIT
// Batched PowerSGD on ranks that one process plays: golden values of PyTorch, a model in double
// precision, and what error feedback promises.
#include "base/base.h"
#include "common/balance.h"
#include "common/hook_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(hook_batched, .fini = balance_check, .timeout = 60);

// ---- PyTorch ------------------------------------------------------------------------------------------

// PyTorch 2.15's batched_powerSGD_hook over gloo, 2 ranks, one 8 x 8 weight, error feedback and
// warm start, from the given Q on; the hook begins at step 2. (It passes _orthogonalize a matrix
// where a stack of matrices is expected; it was given a stack of one.) The first and the last
// element of the result, and its norm.
enum { SIDE = 8, GOLDEN_STEPS = 4 };
typedef struct golden {
    float row[SIDE], last, norm;
} golden;
static const golden golden_runs[2][GOLDEN_STEPS] = {
    {{{-.11100181f, .12152436f, -.16566278f, .15189405f, -.015009461f, -.12272304f, -.1176574f,
       -.00027100666f},
      .0004388864f,
      1.1870357f},
     {{.021909472f, .32635832f, .010570982f, .18513723f, .059928961f, -.093722485f, -.078135885f,
       .25122273f},
      -.14731495f,
      1.7191969f},
     {{-.021411443f, -.21922779f, .018573003f, .036517289f, -.13350458f, .091991268f, -.0070665181f,
       -.1122345f},
      .12102012f,
      2.1503198f},
     {{.035327777f, .32574522f, -.11274187f, -.14544356f, .19783458f, -.17733465f, .051375434f,
       .13566384f},
      -.026199777f,
      1.0850805f}},
    {{{.024325874f, -.17372078f, -.29231972f, .14605907f, -.089923754f, -.053489123f, -.23025781f,
       .38669893f},
      -.037378408f,
      1.6078972f},
     {{.11585886f, .31821311f, .21963529f, .031151241f, .16003066f, -.00582527f, -.078371778f,
       .018492321f},
      -.10032372f,
      2.1276743f},
     {{.065722778f, .1165438f, .081429005f, -.18486533f, -.22586045f, -.30831319f, .15179875f,
       -.19663113f},
      .44418445f,
      2.4649081f},
     {{-.036083255f, -.20899153f, -.55942756f, .35052028f, .57304889f, -.078239262f, -.37348142f,
       .1593674f},
      -.039053679f,
      2.5324824f}}};
// Column by column.
static const float first_q[2][2 * SIDE] = {{-.81030238f, .41339946f, -1.2778252f, .33025196f,
                                            .33864617f, -.64343667f, -.97558731f, -.95916772f},
                                           {-.63946176f, 1.2295761f, .24970402f, -.3450546f,
                                            .8418563f, .22684817f, .82003093f, -.17847201f,
                                            -.11337342f, -.96229577f, .94104129f, .43018699f,
                                            -1.1502645f, .27327135f, -.70550972f, -2.074434f}};

static float golden_gradient(int r, int t, int i, int j) {
    return (float)((3 * i + 5 * j + 7 * r + 11 * t + i * j * (r + 1)) % 13 - 6) / 8;
}

static double norm_of(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static void assert_golden(const played *p, const golden *want, int t) {
    for (int j = 0; j < SIDE; j++)
        cr_assert_float_eq(p->gradient[1][j], want->row[j], 1e-5, "step %d column %d: %.8g", t, j,
                           (double)p->gradient[1][j]);
    cr_assert_float_eq(p->gradient[1][SIDE * SIDE - 1], want->last, 1e-5);
    cr_assert_float_eq(norm_of(p->gradient[1], p->count), (double)want->norm, 1e-5);
}

// The tensors of the bucket do not count.
static void trains_as_pytorch(int rank) {
    iso_powersgd_config config = {.rank = rank, .least_saving = 1, .batched = true};
    played p = {.ranks = 2, .count = SIDE * SIDE, .hook = iso_hook_powersgd(&config)};
    p.tensor[0] = (iso_comm_hook_tensor){"a.weight", 0, 40, 5};
    p.tensor[1] = (iso_comm_hook_tensor){"a.bias", 40, 24, 0};
    p.tensor_count = 2;
    played_open(&p);
    for (int r = 0; r < 2; r++)
        memcpy(p.state[r] + p.count, first_q[rank - 1], sizeof(float) * SIDE * (size_t)rank);
    for (int t = 0; t < GOLDEN_STEPS; t++) {
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < SIDE * SIDE; i++)
                p.gradient[r][i] = golden_gradient(r, t + 2, i / SIDE, i % SIDE);
        played_exchange(&p);
        assert_golden(&p, &golden_runs[rank - 1][t], t);
    }
    played_close(&p);
}

Test(hook_batched, of_rank_1_is_that_of_pytorch) { trains_as_pytorch(1); }
Test(hook_batched, of_rank_2_is_that_of_pytorch) { trains_as_pytorch(2); }

// ---- A model ------------------------------------------------------------------------------------------

static float drawn(uint32_t rank, uint32_t step, size_t i) {
    uint32_t counter[4] = {(uint32_t)i, rank, step}, bits[4];
    iso__philox(iso__philox_key_make(6, ISO_RNG_TEST, 0), counter, bits);
    return 2 * iso__uniform(bits[0]) - 1;
}

// A bucket with padding before, between and after its tensors, whose last rows are incomplete.
static void open_padded(played *p, const iso_powersgd_config *config, int ranks, size_t count) {
    *p = (played){.ranks = ranks, .count = count, .hook = iso_hook_powersgd(config)};
    p->tensor[0] = (iso_comm_hook_tensor){"a.weight", 0, 300, 20};
    p->tensor[1] = (iso_comm_hook_tensor){"a.bias", 304, 17, 0};
    p->tensor[2] = (iso_comm_hook_tensor){"b.weight", 336, count - 336 - 9, 0};
    p->tensor_count = 3;
    played_open(p);
}

static bool is_padding(const played *p, size_t i) {
    for (int k = 0; k < p->tensor_count; k++)
        if (i >= p->tensor[k].offset && i < p->tensor[k].offset + p->tensor[k].count) return false;
    return true;
}

static void draw_padded(played *p, uint32_t step) {
    for (int r = 0; r < p->ranks; r++)
        for (size_t i = 0; i < p->count; i++)
            p->gradient[r][i] = is_padding(p, i) ? 0 : drawn((uint32_t)r, step, i);
}

// As the library does after a hook has run.
static void clear_padding(played *p) {
    for (int r = 0; r < p->ranks; r++)
        for (size_t i = 0; i < p->count; i++)
            if (is_padding(p, i)) p->gradient[r][i] = 0;
}

enum { MODEL_SIDE = 45, MODEL_RANK = 2, MODEL_RANKS = 3, MODEL_STEPS = 4 };
typedef double model_matrix[MODEL_SIDE][MODEL_SIDE];
typedef double thin_matrix[MODEL_RANK][MODEL_SIDE]; // by columns
static struct {
    model_matrix m[MODEL_RANKS], error[MODEL_RANKS], out;
    thin_matrix p, q;
} model;

static double dot_columns(const double *a, const double *b) {
    double sum = 0;
    for (int i = 0; i < MODEL_SIDE; i++) sum += a[i] * b[i];
    return sum;
}

static void orthonormalise(thin_matrix x) {
    for (int k = 0; k < MODEL_RANK; k++) {
        for (int j = 0; j < k; j++) {
            double along = dot_columns(x[k], x[j]);
            for (int i = 0; i < MODEL_SIDE; i++) x[k][i] -= along * x[j][i];
        }
        double norm = sqrt(dot_columns(x[k], x[k]));
        for (int i = 0; i < MODEL_SIDE; i++) x[k][i] /= norm;
    }
}

// Q = GS(Q), P = GS(sum of M Q), Q = mean of M' P, out = P Q', error = M - out
static void step_model(void) {
    orthonormalise(model.q);
    for (int k = 0; k < MODEL_RANK; k++)
        for (int i = 0; i < MODEL_SIDE; i++) {
            model.p[k][i] = 0;
            for (int r = 0; r < MODEL_RANKS; r++)
                model.p[k][i] += dot_columns(model.m[r][i], model.q[k]);
        }
    orthonormalise(model.p);
    for (int k = 0; k < MODEL_RANK; k++)
        for (int j = 0; j < MODEL_SIDE; j++) {
            model.q[k][j] = 0;
            for (int r = 0; r < MODEL_RANKS; r++)
                for (int i = 0; i < MODEL_SIDE; i++)
                    model.q[k][j] += model.m[r][i][j] * model.p[k][i] / MODEL_RANKS;
        }
    for (int i = 0; i < MODEL_SIDE; i++)
        for (int j = 0; j < MODEL_SIDE; j++) {
            model.out[i][j] = 0;
            for (int k = 0; k < MODEL_RANK; k++) model.out[i][j] += model.p[k][i] * model.q[k][j];
        }
}

static double *place_of(model_matrix m, size_t i) { return &m[i / MODEL_SIDE][i % MODEL_SIDE]; }

static void feed_model(const played *p) {
    for (int r = 0; r < MODEL_RANKS; r++) {
        memset(model.m[r], 0, sizeof(model.m[r]));
        for (size_t i = 0; i < p->count; i++)
            *place_of(model.m[r], i) = (double)p->gradient[r][i] + *place_of(model.error[r], i);
    }
}

static void keep_model(const played *p) {
    for (int r = 0; r < MODEL_RANKS; r++)
        for (size_t i = 0; i < p->count; i++)
            if (!is_padding(p, i))
                *place_of(model.error[r], i) = *place_of(model.m[r], i) - *place_of(model.out, i);
}

Test(hook_batched, equals_the_model) {
    iso_powersgd_config config = {.rank = MODEL_RANK, .least_saving = 2, .batched = true};
    played p;
    open_padded(&p, &config, MODEL_RANKS, 1999);
    cr_assert_eq(p.plan.phase_count, 2);
    cr_assert_eq(p.plan.phase[0].count, MODEL_SIDE * MODEL_RANK);
    cr_assert_eq(p.plan.phase[1].count, MODEL_SIDE * MODEL_RANK);
    cr_assert_eq(p.plan.state_floats, 1999 + MODEL_SIDE * MODEL_RANK);
    for (size_t i = 0; i < MODEL_SIDE * MODEL_RANK; i++) {
        float q = drawn(7, 7, i);
        model.q[i / MODEL_SIDE][i % MODEL_SIDE] = (double)q;
        for (int r = 0; r < MODEL_RANKS; r++) p.state[r][1999 + i] = q;
    }
    for (uint32_t step = 0; step < MODEL_STEPS; step++) {
        draw_padded(&p, step);
        feed_model(&p);
        step_model();
        keep_model(&p);
        played_exchange(&p);
        clear_padding(&p);
        for (int r = 0; r < MODEL_RANKS; r++)
            for (size_t i = 0; i < p.count; i++) {
                double want = is_padding(&p, i) ? 0 : *place_of(model.out, i);
                cr_assert_float_eq((double)p.gradient[r][i], want, 2e-5, "step %u element %zu: %g",
                                   step, i, (double)p.gradient[r][i] - want);
            }
    }
    played_close(&p);
}

// ---- Properties ---------------------------------------------------------------------------------------

// Sum over the steps: results + what was left out / ranks = averages; nothing of the padding is
// left out.
static void nothing_is_lost(int ranks, size_t count) {
    static double sum[PLAYED_COUNT];
    iso_powersgd_config config = {.rank = 2, .least_saving = 1, .batched = true};
    played p;
    open_padded(&p, &config, ranks, count);
    memset(sum, 0, sizeof(sum));
    for (uint32_t step = 0; step < 12; step++) {
        draw_padded(&p, step);
        for (size_t i = 0; i < count; i++)
            for (int r = 0; r < ranks; r++) sum[i] -= (double)p.gradient[r][i] / ranks;
        played_exchange(&p);
        clear_padding(&p);
        for (size_t i = 0; i < count; i++) sum[i] += (double)p.gradient[0][i];
    }
    for (size_t i = 0; i < count; i++) {
        double left = 0;
        for (int r = 0; r < ranks; r++) left += (double)p.state[r][i] / ranks;
        cr_assert(fabs(sum[i] + left) < 3e-5, "element %zu: %g", i, sum[i] + left);
        cr_assert(!is_padding(&p, i) || left == 0, "padding %zu", i);
    }
    played_close(&p);
}

Test(hook_batched, what_is_left_out_comes_later) {
    nothing_is_lost(1, 1936); // a square
    nothing_is_lost(2, 1937); // two rows are empty, or nearly so
    nothing_is_lost(3, 1999);
    nothing_is_lost(5, 2000);
}

Test(hook_batched, leaves_buckets_that_get_no_shorter) {
    iso_powersgd_config config = {.rank = 2, .least_saving = 2, .batched = true};
    played p;
    open_padded(&p, &config, 2, 350); // 19 rows: 2 * 2 * 19 * 2 < 350
    cr_assert(!p.plan.plain);
    played_close(&p);
    config.rank = 5;
    open_padded(&p, &config, 2, 350);
    cr_assert(p.plan.plain);
    played_close(&p);
}

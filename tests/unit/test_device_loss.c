// SPDX-License-Identifier: MIT
// The losses of every device, set of kernels and element type against the double-precision oracle.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "common/oracle.h"

#include <math.h>

TestSuite(device_loss, .timeout = 60, .fini = balance_check);

static void compare_value(const target *on, double value, double wanted, const char *what) {
    double tolerance = on->dtype == ISO_F64 ? 1e-14 : 1e-7;
    cr_assert_float_eq(value, wanted, tolerance * fmax(1, fabs(wanted)),
                       "%s in %s is %.17g, not %.17g", what, iso_dtype_name(on->dtype), value,
                       wanted);
}

static void losses(const target *on) {
    static const iso_loss_config configs[] = {{.kind = ISO_CROSS_ENTROPY},
                                              {.kind = ISO_NLL},
                                              {.kind = ISO_MSE},
                                              {.kind = ISO_CROSS_ENTROPY, .label_smoothing = 1},
                                              {.kind = ISO_CROSS_ENTROPY, .label_smoothing = 0.1},
                                              {.kind = ISO_CROSS_ENTROPY, .label_smoothing = 0.37},
                                              {.kind = ISO_BCE_WITH_LOGITS},
                                              {.kind = ISO_L1},
                                              {.kind = ISO_HUBER}};
    int32_t labels[23];
    for (int i = 0; i < 23; i++) labels[i] = (int32_t)((i * 7) % 5);
    for (int i = 0; i < COUNT(configs); i++) {
        pair x = pair_create(on, 2, (int64_t[]){23, 5}, ISO_LAYOUT_LOGICAL, 2),
             g = pair_2d(on, 23, 5);
        double value, alone;
        int64_t correct, wanted;
        iso_loss *loss;
        iso_tensor *grad;
        OK(iso_loss_create_with(on->device, &configs[i], &loss));
        OK(iso_loss_compute(loss, x.t, labels, &value, &correct, &grad));
        OK(iso_tensor_copy(grad, g.t));
        compare_value(on, value, oracle_loss(&configs[i], 23, 5, x.d, labels, &wanted, g.d),
                      "loss");
        cr_assert(correct == wanted);
        check_pair(on, &g, 1e-7, "loss gradient");
        OK(iso_loss_compute(loss, x.t, labels, NULL, NULL, NULL));
        OK(iso_loss_value(loss, &alone, &correct));
        cr_assert(alone == value && correct == wanted);
        iso_loss_destroy(&loss);
        pair_destroy(&x), pair_destroy(&g);
    }
}
Test(device_loss, of_labels_matches_the_oracle) { on_each_target(losses); }

static void target_losses(const target *on) {
    static const int64_t shapes[][4] = {{1, 1, 1, 1}, {2, 3, 5, 7}, {1, 1, 1, 8}, {4, 16, 12, 12}};
    for (int k = 0; k < 4 * COUNT(shapes); k++) {
        int i = k / 4;
        iso_loss_kind kind = (iso_loss_kind)(ISO_MSE + k % 4);
        pair x = pair_create(on, 4, shapes[i], ISO_LAYOUT_LOGICAL, 1000);
        pair t = pair_create(on, 4, shapes[i], ISO_LAYOUT_LOGICAL, 1000);
        pair g = pair_create(on, 4, shapes[i], ISO_LAYOUT_LOGICAL, 1000);
        double value, alone;
        iso_loss *loss;
        iso_tensor *grad;
        OK(iso_loss_create(on->device, kind, &loss));
        OK(iso_loss_compute_tensor(loss, x.t, t.t, &value, &grad));
        OK(iso_tensor_copy(grad, g.t));
        compare_value(on, value, oracle_target_loss(kind, x.t->count, x.d, t.d, g.d),
                      "loss of targets");
        check_pair(on, &g, 1e-7, "gradient of the loss of targets");
        OK(iso_loss_compute_tensor(loss, x.t, t.t, NULL, NULL));
        OK(iso_loss_value(loss, &alone, NULL));
        cr_assert(alone == value && iso_loss_value(loss, NULL, &(int64_t){0}) == ISO_ERR_STATE);
        iso_loss_destroy(&loss);
        pair_destroy(&x), pair_destroy(&t), pair_destroy(&g);
    }
}
Test(device_loss, of_targets_matches_the_oracle) { on_each_target(target_losses); }

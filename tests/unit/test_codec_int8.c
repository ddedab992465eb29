// SPDX-License-Identifier: MIT
// The codec int8: its passes do what they are made of, and what is not finite is seen.
#include "common/balance.h"
#include "common/codec_model.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>

TestSuite(codec_int8, .fini = balance_check, .timeout = 60);

static const iso__codec *const codec = &iso__codec_int8;

Test(codec_int8, encodes_whole_groups) { codec_encodes_whole_groups(codec, 260); }
Test(codec_int8, feedback_keeps_what_is_left) { codec_feedback_keeps_what_is_left(codec); }
Test(codec_int8, decodes_with_what_is_around_it) { codec_decodes_with_what_is_around_it(codec); }
Test(codec_int8, mean_is_the_serial_one) { codec_mean_is_the_serial_one(codec); }

// The largest f32 is among them: its scale times 127 is infinite.
Test(codec_int8, one_value_that_is_not_finite_is_seen) {
    const float bad[] = {NAN, INFINITY, -INFINITY, FLT_MAX};
    codec_sees_what_is_not_finite(codec, 4, bad);
}

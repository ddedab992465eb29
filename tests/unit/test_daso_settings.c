// SPDX-License-Identifier: MIT
// Settings of the periodic strategies as text, by which ranks compare their configs.
#include "optim/periodic/daso_settings.h"
#include "optim/strategy_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(daso_settings, .timeout = 60);

static bool daso_has(const iso_daso_config *config, const char *line) {
    char text[ISO__SETTINGS_ROOM];
    iso__daso_settings_write(config, text, sizeof(text));
    return strstr(text, line);
}

static bool heat_has(const iso_daso_heat_config *config, const char *line) {
    char text[ISO__SETTINGS_ROOM];
    iso__heat_settings_write(config, text, sizeof(text));
    return strstr(text, line);
}

Test(daso_settings, of_daso_stand_in_lines) {
    char text[ISO__SETTINGS_ROOM];
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.total_steps = 100;
    iso__daso_settings_write(&config, text, sizeof(text));
    cr_assert_str_eq(
        text,
        "total_steps: 100\nperiod: auto\nwarmup: 0.02\nwarmup-steps: -1\n"
        "cooldown: 0.02\ncooldown-steps: -1\nwait: auto\nlocal-skip: 1\n"
        "unit: node\nwire: bf16\ntopk-ratio: 0.03125\nmerge: progress\nstate: keep\npolicy: fixed\n"
        "max-period: 64\nmax-divergence: 0.05\nqsr-alpha: 0.2\nstability-level: 0.05\n"
        "fragments: 1\nfragment-order: runs\n");
}

// Ranks with another outer optimizer differ in a line.
Test(daso_settings, of_an_outer_optimizer_stand_in_a_line) {
    iso_daso_config config = ISO_DASO_DEFAULT;
    iso_outer rule = iso_outer_slowmo;
    config.outer = &rule;
    rule.momentum = nextafter(0.25, 1);
    cr_assert(daso_has(
        &config, "\nouter optimizer: slowmo, 2 states, lr 1, momentum 0.25000000000000006, "));
}

Test(daso_settings, of_heat_stand_in_lines) {
    char text[ISO__SETTINGS_ROOM];
    iso_daso_heat_config config = ISO_DASO_HEAT_DEFAULT;
    config.total_epochs = 12;
    config.use_mpi_groups = false;
    iso__heat_settings_write(&config, text, sizeof(text));
    cr_assert_str_eq(text, "total_epochs: 12\nlast_batch: -1\nwarmup-epochs: 4\n"
                           "cooldown-epochs: 4\nmax-global-skips: 8\n"
                           "sending-chunk-size: 10000000\ndowncast-type: bf16\n"
                           "use-mpi-groups: no\nskip-reduction-factor: 2\nlocal-skip-factor: 4\n"
                           "stability-level: 0.05\n");
}

Test(daso_settings, of_other_values_make_other_lines) {
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.unit = ISO_SCOPE_RANK;
    config.wire = ISO_WIRE_F16;
    config.merge = ISO_MERGE_HEAT;
    config.state = ISO_STATE_SYNC_RESET;
    config.policy = ISO_POLICY_CALLBACK; // which no option chooses
    config.global_skip = 7;
    cr_assert(daso_has(&config, "\nunit: rank\n") && daso_has(&config, "\nwire: f16\n"));
    cr_assert(daso_has(&config, "\nmerge: heat\n") && daso_has(&config, "\nstate: reset\n"));
    cr_assert(daso_has(&config, "\npolicy: 5\n") && daso_has(&config, "\nperiod: 7\n"));
    iso_daso_heat_config heat = ISO_DASO_HEAT_DEFAULT;
    heat.downcast_type = ISO_F32;
    cr_assert(heat_has(&heat, "\ndowncast-type: f32\n") && heat_has(&heat, "-groups: yes\n"));
}

// Every number, however little it differs.
Test(daso_settings, numbers_are_written_whole) {
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.max_divergence = nextafter(0.05, 1);
    config.warmup = 1.0 / 3;
    cr_assert(daso_has(&config, "\nmax-divergence: 0.05000000000000001\n"));
    cr_assert(daso_has(&config, "\nwarmup: 0.3333333333333333\n"));
}

// The smallest number that is at least the ratio.
Test(daso_settings, topk_ratio_chooses_the_codec) {
    const struct {
        double ratio;
        const iso__codec *codec;
    } known[] = {{0, &iso__codec_topk},
                 {1. / 32, &iso__codec_topk},
                 {1e-9, &iso__codec_topk4},
                 {2. / 256, &iso__codec_topk4},
                 {.01, &iso__codec_topk4},
                 {.05, &iso__codec_topk16},
                 {.0626, &iso__codec_topk32},
                 {.25, &iso__codec_topk64},
                 {.2500001, NULL},
                 {-1, NULL},
                 {NAN, NULL}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        cr_assert_eq(iso__wire_codec(ISO_WIRE_TOPK, known[i].ratio), known[i].codec, "%g",
                     known[i].ratio);
    cr_assert_eq(iso__wire_codec(ISO_WIRE_INT8, 7), &iso__codec_int8, "of topk only");
    cr_assert_eq(iso__wire_codec(ISO_WIRE_FP8, 0), &iso__codec_fp8);
}

// The longest values leave no setting out.
Test(daso_settings, have_room) {
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.total_steps = config.warmup_steps = config.cooldown_steps = INT64_MIN;
    config.global_skip = config.max_global_skip = INT64_MIN;
    config.batches_to_wait = config.local_skip = INT64_MIN;
    config.warmup = config.cooldown = config.stability_level = config.max_divergence =
        -1.2345678901234567e-300;
    cr_assert(daso_has(&config, "\nstability-level: -1.2345678901234568e-300\n"));
}

Test(daso_settings, of_any_kind_are_written) {
    typedef struct values {
        bool loud;
        const char *note;
    } values;
    static const iso_setting table[] = {
        {"loud", ISO_SETTING_SWITCH, .offset = offsetof(values, loud)},
        {"note", ISO_SETTING_TEXT, .offset = offsetof(values, note)},
        {"word", ISO_SETTING_CHOICE, .offset = offsetof(values, note), .choices = "a|b"},
    };
    char text[80];
    iso__settings_write(table, 3, &(values){true, "b"}, text, sizeof(text));
    cr_assert_str_eq(text, "loud: yes\nnote: b\nword: b\n");
    iso__settings_write(table, 2, &(values){false, NULL}, text, sizeof(text));
    cr_assert_str_eq(text, "loud: no\nnote: not given\n");
    iso__settings_write(table, 3, &(values){true, "b"}, text, 8);
    cr_assert_str_eq(text, "loud: y", "cut, and ended");
}

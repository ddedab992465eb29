// SPDX-License-Identifier: MIT
// Options of bench_step.
#include "bench_options.h"

#include <getopt.h>
#include <isotherm/parallel.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: mpirun -n RANKS bench_step [OPTIONS]\n"
    "  --model NAME     mlp or cnn on 1x28x28, lenet or resnet18 on 3x32x32, without dropout "
    "(cnn)\n"
    "  --batch N        per rank (64)\n"
    "  --steps N        timed steps (50), after --warmup N others (10)\n"
    "  --sync MODE      lazy, blocking or none: no exchange at all (lazy)\n"
    "  --report-hidden  alternates blocks of all three, and tells how much of the exchange is "
    "hidden\n"
    "  --breakdown      tells for each kernel of a step its time and how near it comes to the\n"
    "                   machine's peak, on one rank or on the first of several; CPU only\n"
    "  --table FILE     with --breakdown: writes the times to FILE too, for bench_scale's\n"
    "                   --device model:FILE\n"
    "  --progress MODE  auto, off, poll or thread (auto)\n"
    "  --bucket-mb X    layers are fused until a buffer holds this much (0.25)\n"
    "  --piece-mb X     larger parameters leave in pieces of so much, 0: as a whole (1)\n"
    "  --threads N      of each rank (1)\n"
    "  --tuned          kernels that are the fastest in a first step, not the rule's\n"
    "  --device NAME    cpu, cuda (ranks of a host take its GPUs in turn) or cuda:N (cpu)\n"
    "  --math MODE      products: f32, tf32 or bf16; on a GPU bf16 is of activations too (f32)\n"
    "  --autocast TYPE  activations: none, bf16 or on a CPU f16 (none)\n"
    "  --graphs MODE    whether steps of a GPU run as CUDA graphs: on or off\n"
    "  --wire NAME      how gradients travel: a communication hook (f32); powersgd begins at once\n"
    "--model, --batch, --math, --graphs and --wire take lists too (64,256): every combination is "
    "measured.\n";

const char *const bench_sync_name[3] = {"lazy", "blocking", "none"};

static iso_sync parse_sync(const char *text) {
    for (int i = 0; i < 3; i++)
        if (strcmp(text, bench_sync_name[i]) == 0) return (iso_sync)i;
    bench_usage(usage, "--sync takes lazy, blocking or none");
    return ISO_SYNC_LAZY;
}

// ---- One option -----------------------------------------------------------------------------------

static int whole(const char *option, const char *text, double high) {
    return (int)bench_number(usage, option, text, 1, high);
}

static bool set_list(bench_plan *plan, int letter, char *text) {
    if (letter == 'm')
        plan->model = bench_split(text);
    else if (letter == 'b')
        plan->batch = bench_split(text);
    else if (letter == 'a')
        plan->math = bench_split(text);
    else if (letter == 'g')
        plan->graphs = bench_split(text);
    else if (letter == 'W')
        plan->wire = bench_split(text);
    else
        return false;
    return true;
}

static bool set_number(bench_options *o, int letter, const char *text) {
    if (letter == 'n')
        o->steps = whole("--steps", text, 1e6);
    else if (letter == 'w')
        o->warmup = whole("--warmup", text, 1e6);
    else if (letter == 'k')
        o->bucket_mb = bench_number(usage, "--bucket-mb", text, 0, 1e5);
    else if (letter == 'i')
        o->piece_mb = bench_number(usage, "--piece-mb", text, 0, 1e5);
    else if (letter == 't')
        o->threads = whole("--threads", text, 1024);
    else
        return false;
    return true;
}

static bool set_other(bench_options *o, int letter, const char *text) {
    if (letter == 's')
        o->sync = parse_sync(text);
    else if (letter == 'h')
        o->report_hidden = true;
    else if (letter == 'd')
        o->breakdown = true;
    else if (letter == 'u')
        o->tuned = true;
    else if (letter == 'p')
        o->progress = text;
    else if (letter == 'T')
        o->table = text;
    else if (letter == 'v')
        o->device = text;
    else if (letter == 'A')
        o->autocast = text;
    else
        return false;
    return true;
}

// ---- All of them ----------------------------------------------------------------------------------

static bool is_switch(const char *text) {
    return !text || strcmp(text, "on") == 0 || strcmp(text, "off") == 0;
}

static void check(const bench_plan *plan) {
    for (int i = 0; i < plan->batch.count; i++) whole("--batch", plan->batch.value[i], 1e6);
    for (int i = 0; i < plan->graphs.count; i++)
        if (!is_switch(plan->graphs.value[i])) bench_usage(usage, "--graphs takes on or off");
    if (strcmp(plan->base.autocast, "none") != 0 && strcmp(plan->base.autocast, "bf16") != 0 &&
        strcmp(plan->base.autocast, "f16") != 0)
        bench_usage(usage, "--autocast takes none, bf16 or f16");
    if (plan->base.breakdown && strcmp(plan->base.device, "cpu") != 0)
        bench_usage(usage, "--breakdown is of the CPU's kernels");
}

bench_plan bench_parse(int argc, char **argv) {
    bench_plan plan = {.base = {.progress = "auto",
                                .device = "cpu",
                                .autocast = "none",
                                .steps = 50,
                                .warmup = 10,
                                .threads = 1,
                                .bucket_mb = ISO_DATA_PARALLEL_DEFAULT.bucket_mb,
                                .piece_mb = ISO_DATA_PARALLEL_DEFAULT.piece_mb},
                       .model = {{"cnn"}, 1},
                       .batch = {{"64"}, 1},
                       .math = {{"f32"}, 1},
                       .graphs = {{NULL}, 1},
                       .wire = {{"f32"}, 1}};
    static const struct option known[] = {{"model", required_argument, NULL, 'm'},
                                          {"batch", required_argument, NULL, 'b'},
                                          {"steps", required_argument, NULL, 'n'},
                                          {"warmup", required_argument, NULL, 'w'},
                                          {"sync", required_argument, NULL, 's'},
                                          {"report-hidden", no_argument, NULL, 'h'},
                                          {"progress", required_argument, NULL, 'p'},
                                          {"bucket-mb", required_argument, NULL, 'k'},
                                          {"threads", required_argument, NULL, 't'},
                                          {"breakdown", no_argument, NULL, 'd'},
                                          {"tuned", no_argument, NULL, 'u'},
                                          {"table", required_argument, NULL, 'T'},
                                          {"piece-mb", required_argument, NULL, 'i'},
                                          {"device", required_argument, NULL, 'v'},
                                          {"math", required_argument, NULL, 'a'},
                                          {"graphs", required_argument, NULL, 'g'},
                                          {"autocast", required_argument, NULL, 'A'},
                                          {"wire", required_argument, NULL, 'W'},
                                          {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;)
        if (!set_list(&plan, c, optarg) && !set_number(&plan.base, c, optarg) &&
            !set_other(&plan.base, c, optarg))
            bench_usage(usage, "unknown option");
    if (optind < argc) bench_usage(usage, "too many arguments");
    check(&plan);
    return plan;
}

static const char *take(const bench_list *list, int *number) {
    const char *value = list->value[*number % list->count];
    *number /= list->count;
    return value;
}

bool bench_select(const bench_plan *plan, int number, bench_options *out) {
    *out = plan->base;
    out->batch = atoi(take(&plan->batch, &number));
    out->wire = take(&plan->wire, &number);
    out->graphs = take(&plan->graphs, &number);
    out->math = take(&plan->math, &number);
    out->model = take(&plan->model, &number);
    return number == 0;
}

// SPDX-License-Identifier: MIT
// --sync tournament of the train program: what trainers score on, what the log says, and a run that
// goes on.
#include "common/mpi_fixture.h"
#include "common/train_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np2_train_tournament, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_train_tournament, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_train_tournament, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { IMAGES = 120, STEPS = 20, PERIOD = 4, MATCHES = STEPS / PERIOD - 1 }; // none at the end

static train_world world;
static char path[64];

static void open_world_of(int ranks_per_node, double validation) {
    char text[16];
    long place = getpid();
    train_options options = {.validation = validation, .seed = 1};
    snprintf(text, sizeof(text), "%d", ranks_per_node);
    setenv("ISO_RANKS_PER_NODE", text, 1);
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(train_validation_split(&world, &options));
    iso_assert_ok(iso_comm_bcast(test_comm, &place, sizeof(place), 0));
    snprintf(path, sizeof(path), "test_train_tournament.%ld", place);
}

static void open_world(int ranks_per_node) { open_world_of(ranks_per_node, 0.25); }

static void train(const char *more, train_result *result) {
    char line[400];
    snprintf(line, sizeof(line),
             "--model mlp --batch 6 --steps %d --validation 0.25 --sync tournament --period %d %s",
             STEPS, PERIOD, more);
    iso_assert_all(train_line(&world, line, NULL, result));
}

typedef struct match_line {
    int step, trainer, partner, took;
    double own, theirs, lr;
} match_line;

// Rank 0's log. Returns how many there were.
static int read_matches(match_line *out, int room) {
    char line[4096];
    int count = 0;
    FILE *from = fopen(path, "r");
    while (from && count < room && fgets(line, sizeof(line), from)) {
        match_line *m = &out[count];
        count +=
            sscanf(line,
                   "{\"event\":\"match\",\"step\":%d,\"trainer\":%d,\"partner\":%d,"
                   "\"own\":%lf,\"theirs\":%lf,\"took\":%d,\"lr\":%lf}",
                   &m->step, &m->trainer, &m->partner, &m->own, &m->theirs, &m->took, &m->lr) == 7;
    }
    if (from) fclose(from);
    return count;
}

// All trainers have the same images, however many ranks divide them: what one says of its own
// model, the other says of its partner's.
static void both_score_on_the_same_images(int ranks_per_node, const char *options, bool loss) {
    char more[200];
    train_result result;
    match_line m[2 * MATCHES + 2] = {{0}};
    open_world(ranks_per_node);
    snprintf(more, sizeof(more), "%s --log %s", options, path);
    train(more, &result);
    bool good = true;
    if (test_rank == 0) {
        good = read_matches(m, 2 * MATCHES + 2) == 2 * MATCHES;
        for (int i = 0; i < MATCHES; i++) {
            const match_line *a = &m[2 * i], *b = a + 1;
            double bound = ranks_per_node > 1 ? 1e-5 : 0;
            good = good && a->step == (i + 1) * PERIOD && b->step == a->step && a->trainer == 0 &&
                   b->trainer == 1 && a->partner == 1 && b->partner == 0;
            good = good && fabs(a->own - b->theirs) <= bound && fabs(a->theirs - b->own) <= bound;
            good = good && a->took == (loss ? a->theirs < a->own : a->theirs > a->own);
            good = good && (loss ? a->own > 0 : a->own >= 0 && a->own <= 1);
        }
        remove(path);
    }
    iso_assert_all(good);
    iso_assert_all(result.syncs == MATCHES + 1); // with the choice at the end
    train_world_close(&world);
}
Test(np2_train_tournament, both_score_on_the_same_images) {
    both_score_on_the_same_images(1, "", true);
    both_score_on_the_same_images(2, "--unit rank", true);
    both_score_on_the_same_images(1, "--tournament-metric accuracy", false);
}
Test(np3_train_tournament, the_ranks_of_a_trainer_divide_them) {
    both_score_on_the_same_images(2, "", true);
}

// One image for the two ranks of each trainer: one of them has none, and adds nothing to the score.
Test(np4_train_tournament, a_rank_may_have_no_image) {
    train_result result;
    char more[200];
    match_line m[2 * MATCHES + 2] = {{0}};
    bool good = true;
    open_world_of(2, 1.0 / IMAGES);
    snprintf(more, sizeof(more), "--log %s --eval-every 3", path);
    train(more, &result);
    if (test_rank == 0) {
        good = read_matches(m, 2 * MATCHES + 2) == 2 * MATCHES;
        for (int i = 0; i < 2 * MATCHES; i++)
            good = good && isfinite(m[i].own) && m[i].own > 0 && isfinite(m[i].theirs);
        remove(path);
    }
    iso_assert_all(good && result.syncs == MATCHES + 1);
    train_world_close(&world);
}

static bool is_near(double a, double b) { return fabs(a - b) <= 1e-9 * b; }

// Trainers begin with 0.02 / 2 and 0.02 * 2. One that takes a model gets a quarter more or less
// than its partner had.
Test(np2_train_tournament, learning_rates_move_with_models) {
    static const char *const options = "--lr 0.02 --schedule constant --tournament-perturb 0.25";
    train_result result, same, other;
    char more[300];
    match_line m[2 * MATCHES + 2] = {{0}};
    double lr[2] = {0.01, 0.04};
    bool good = true;
    int moved = 0;
    open_world(1);
    snprintf(more, sizeof(more), "%s --tournament-spread 2 --log %s", options, path);
    train(more, &result);
    if (test_rank == 0) {
        good = read_matches(m, 2 * MATCHES + 2) == 2 * MATCHES;
        for (int k = 0; k < 2 * MATCHES; k += 2) {
            const double before[2] = {lr[0], lr[1]};
            for (int i = 0; i < 2; i++) {
                double now = m[k + i].lr, of = before[m[k + i].took ? 1 - i : i];
                bool perturbed = is_near(now, 0.75 * of) || is_near(now, 1.25 * of);
                good = good && (m[k + i].took ? perturbed : is_near(now, of));
                moved += m[k + i].took;
                lr[i] = now;
            }
        }
        remove(path);
    }
    iso_assert_all(good && (test_rank > 0 || moved > 0));
    snprintf(more, sizeof(more), "%s --tournament-spread 2", options);
    train(more, &same);
    train(options, &other);
    iso_assert_all(strcmp(result.hash, same.hash) == 0 && strcmp(result.hash, other.hash) != 0);
    train_world_close(&world);
}

// Momentum moves with models, too, and is perturbed; only weights of the last layer move. So the
// log says, and so the bits.
Test(np2_train_tournament, numbers_of_the_optimizer_and_some_weights_move) {
    static const char *const options =
        "--optimizer sgd --lr 0.02 --momentum 0.5 --tournament-perturb 0.25";
    train_result all, some, named;
    char more[300], line[4096];
    bool good = true;
    int moved = 0;
    open_world(1);
    snprintf(more, sizeof(more), "%s --tournament-hyper momentum,weight_decay --log %s", options,
             path);
    train(more, &named);
    FILE *from = test_rank == 0 ? fopen(path, "r") : NULL;
    while (from && fgets(line, sizeof(line), from)) {
        const char *at = strstr(line, "\"event\":\"match\"") ? strstr(line, "\"momentum\":") : NULL;
        if (!at) continue;
        double momentum = atof(at + strlen("\"momentum\":"));
        moved += momentum != 0.5;
        good = good && momentum > 0.1 && momentum <= 0.999 && strstr(line, "\"weight_decay\":0");
    }
    if (from) fclose(from);
    if (test_rank == 0) remove(path);
    iso_assert_all(good && (test_rank > 0 || moved > 0));
    train(options, &all);
    snprintf(more, sizeof(more), "%s --tournament-weights *2.weight", options);
    train(more, &some);
    iso_assert_all(strcmp(all.hash, some.hash) != 0 && strcmp(all.hash, named.hash) != 0);
    train_world_close(&world);
}

// Trainers begin with relu. One that takes a model changes a layer, so after the last match some
// model has another function; a checkpoint of the run holds the layers of the best one.
Test(np2_train_tournament, layers_are_mutated) {
    static const char *const options = "--activations relu,tanh,elu --lr 0.02";
    train_result plain, mutated, same;
    char more[300], line[4096], found[256] = "";
    open_world(1);
    train(options, &plain);
    snprintf(more, sizeof(more), "%s --tournament-mutate layers --log %s", options, path);
    train(more, &mutated);
    FILE *from = test_rank == 0 ? fopen(path, "r") : NULL;
    while (from && fgets(line, sizeof(line), from)) {
        const char *at = strstr(line, "\"activations\":\"");
        if (at) sscanf(at, "\"activations\":\"%255[^\"]", found);
    }
    if (from) fclose(from);
    if (test_rank == 0) remove(path);
    iso_assert_all(test_rank > 0 || (strstr(found, "act1 ") && strstr(found, "act2 ") &&
                                     strcmp(found, "act1 relu, act2 relu") != 0));
    snprintf(more, sizeof(more), "%s --tournament-mutate layers", options);
    train(more, &same);
    iso_assert_all(strcmp(mutated.hash, same.hash) == 0 && strcmp(mutated.hash, plain.hash) != 0);
    train_world_close(&world);
}

static void refuse(const char *const *more, int count, const char *said) {
    train_options options;
    char *words[16] = {"train", "--model", "mlp", "--sync", "tournament", "--validation", "0.1"};
    for (int i = 0; i < count; i++) words[7 + i] = (char *)more[i];
    iso_assert_ok(train_options_parse(7 + count, words, &options));
    iso_assert_all(train_options_check(&options) == ISO_ERR_ARG &&
                   strstr(train_error_text(), said));
}

Test(np2_train_tournament, layers_without_alternatives_are_refused) {
    static const char *const mutate[] = {"--tournament-mutate", "layers", "--activations", "elu"};
    static const char *const unknown[] = {"--activations", "relu,swish"};
    static const char *const twice[] = {"--activations", "relu,relu"};
    static const char *const open[] = {"--activations", "relu,"};
    open_world(1);
    refuse(mutate, 2, "give several, e.g. --activations relu,tanh,elu");
    refuse(mutate, 4, "give several, e.g. --activations relu,tanh,elu");
    refuse(unknown, 2, "--activations relu,swish: give one or more of relu, leaky_relu");
    refuse(twice, 2, "separated by commas, each once");
    refuse(open, 2, "--activations relu,: give one or more of");
    train_world_close(&world);
}

Test(np2_train_tournament, wrong_numbers_are_refused) {
    train_options options;
    char *words[] = {"train",        "--sync", "tournament",
                     "--validation", "0.1",    "--tournament-hyper",
                     "momentum,lr"};
    open_world(1);
    iso_assert_ok(train_options_parse(7, words, &options));
    iso_assert_all(train_options_check(&options) == ISO_ERR_ARG &&
                   strstr(train_error_text(), "the learning rate always moves"));
    train_world_close(&world);
}

// With evaluations on the way, in which all have the best model, and models under way.
Test(np3_train_tournament, goes_on_with_the_same_bits) {
    char more[300], name[120];
    train_result whole, resumed;
    const char *options = "--wait 2 --tournament-spread 3 --tournament-perturb 0.2 --eval-every 3 "
                          "--checkpoint-every 5 --overwrite --checkpoint";
    open_world(1);
    snprintf(more, sizeof(more), "%s %s", options, path);
    train(more, &whole);
    snprintf(name, sizeof(name), "%s.step-%012d.rank-%05d", path, STEPS, test_rank);
    remove(name);
    name[strlen(name) - strlen(".rank-00000")] = 0;
    if (test_rank == 0) remove(name);
    iso_assert_ok(iso_comm_barrier(test_comm));
    snprintf(more, sizeof(more), "%s %s --resume %s", options, path, path);
    train(more, &resumed);
    iso_assert_all(!resumed.already_finished && strcmp(whole.hash, resumed.hash) == 0);
    iso_assert_all(whole.metrics.test_loss == resumed.metrics.test_loss);
    iso_assert_ok(iso_resume_remove(path));
    if (test_rank == 0) remove(path);
    train_world_close(&world);
}

Test(np2_train_tournament, needs_held_out_images) {
    train_options options;
    char *words[] = {"train", "--sync", "tournament"};
    open_world(1);
    iso_assert_ok(train_options_parse(3, words, &options));
    iso_assert_all(train_options_check(&options) == ISO_ERR_ARG &&
                   strstr(train_error_text(), "--sync tournament compares models on images"));
    train_world_close(&world);
}

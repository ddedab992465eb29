// SPDX-License-Identifier: MIT
// Trains a small transformer to continue a text, character by character, on several processes:
//   mpirun -n 2 ./a.out FILE [STEPS]
// Compile it in its folder, once Isotherm is installed:
//   flags=$(pkg-config --cflags --libs isotherm)
//   mpicc char_gpt.c support/check.c support/usage.c support/watch.c $flags
#include "support/check.h"
#include "support/usage.h"
#include "support/watch.h" // limits how long MPI_Init_thread and MPI_Finalize may wait

#include <isotherm.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LENGTH = 64, EMBED = 64, HEADS = 4, BLOCKS = 2, BATCH = 32, MOST_BYTES = 1 << 30 };

static const char usage[] =
    "usage: mpirun -n RANKS char-gpt FILE [STEPS]\n"
    "Trains a transformer of 0.1 million parameters on the text FILE for STEPS steps (default "
    "500).\n"
    "Prints the loss on the last tenth of the text, in nats per character, and continues the "
    "text.\n"
    "The processes share the batch of 32 windows of 64 characters.\n\n"
    "  --help      print this text\n"
    "  --version   print the version\n";

static iso_comm *comm;
static iso_device *device;

// The characters of the file, as numbers from 0 in the order of their bytes.
static struct {
    unsigned char *token;
    int64_t count, train; // of the file; of its first nine tenths
    int classes;
    unsigned char byte_of[256];
} text;

// ---- Text -----------------------------------------------------------------------------------------

static iso_status read_bytes(const char *path, FILE *file) {
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (size < 0 || fseek(file, 0, SEEK_SET) != 0)
        return iso_error_set(ISO_ERR_IO, "%s cannot be read: give a file of text", path);
    // At least two windows for the test, and 18 to train on.
    if (size < 20 * (LENGTH + 1) || size > MOST_BYTES)
        return iso_error_set(ISO_ERR_ARG, "%s has %ld bytes: give a text of %d bytes to 1 GiB",
                             path, size, 20 * (LENGTH + 1));
    text.count = size;
    text.token = malloc((size_t)size);
    if (!text.token) return iso_error_set(ISO_ERR_NOMEM, "out of memory for %s", path);
    if (fread(text.token, 1, (size_t)size, file) != (size_t)size)
        return iso_error_set(ISO_ERR_IO, "%s cannot be read to its end", path);
    return ISO_OK;
}

static void number_characters(void) {
    bool found[256] = {false};
    int number[256];
    for (int64_t i = 0; i < text.count; i++) found[text.token[i]] = true;
    for (int b = 0; b < 256; b++) {
        number[b] = text.classes;
        if (found[b]) text.byte_of[text.classes++] = (unsigned char)b;
    }
    for (int64_t i = 0; i < text.count; i++) text.token[i] = (unsigned char)number[text.token[i]];
    text.train = text.count / 10 * 9;
}

static iso_status read_text(const char *path) {
    struct stat found;
    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode))
        return iso_error_set(ISO_ERR_ARG, "%s is not a regular file: give a file of text", path);
    FILE *file = fopen(path, "rb");
    if (!file)
        return iso_error_set(ISO_ERR_IO, "%s cannot be opened: check its name and permissions",
                             path);
    iso_status status = read_bytes(path, file);
    fclose(file);
    if (status == ISO_OK) number_characters();
    return status;
}

// Sample i is the window from character *user + i * LENGTH on. The label of a character is the next
// one.
static iso_status read_window(int64_t i, void *const *tensors, void *user) {
    const unsigned char *window = text.token + *(const int64_t *)user + i * LENGTH;
    int32_t *input = tensors[0], *label = tensors[1];
    for (int t = 0; t < LENGTH; t++) {
        input[t] = window[t];
        label[t] = window[t + 1];
    }
    return ISO_OK;
}

// Windows of the characters from *first on.
static iso_loader *load_windows(int64_t *first, int64_t end, bool train) {
    const iso_tensor_spec tensors[] = {{.dtype = ISO_I32, .ndim = 1, .shape = {LENGTH}},
                                       {.dtype = ISO_I32, .ndim = 1, .shape = {LENGTH}}};
    iso_dataset_config samples = {.count = (end - *first - 1) / LENGTH,
                                  .inputs = 1,
                                  .targets = 1,
                                  .tensors = tensors,
                                  .classes = text.classes};
    iso_sampler_config order = {.batch = BATCH / iso_comm_size(comm),
                                .rank = iso_comm_rank(comm),
                                .ranks = iso_comm_size(comm),
                                .shuffle = train,
                                .end = train ? ISO_SAMPLER_PAD : ISO_SAMPLER_SHARE};
    iso_loader_config config = {.prefetch = 2};
    iso_dataset *dataset = NULL;
    iso_loader *loader = NULL;
    if (order.batch < 1) order.batch = 1;
    check_together(comm, iso_dataset_create_callback(&samples, read_window, first, &dataset));
    check_together(comm, iso_loader_create_take(device, dataset, &order, &config, &loader));
    return loader;
}

// ---- The network ----------------------------------------------------------------------------------

static iso_rng rng = {.seed = 1};

static iso_module *create_sequence(void) {
    iso_module *sequence;
    check(iso_sequential_create(device, &sequence));
    return sequence;
}

static void add_norm(iso_module *to, const char *name) {
    iso_layer_norm_config config = {.ndim = 1, .normalized_shape = {EMBED}};
    iso_module *norm;
    check(iso_layer_norm_create(device, &config, &norm));
    check(iso_sequential_add_take(to, name, norm));
}

static void add_linear(iso_module *to, const char *name, int64_t in, int64_t out) {
    iso_module *linear;
    check(iso_linear_create(device, in, out, true, &rng, &linear));
    check(iso_sequential_add_take(to, name, linear));
}

// x + body(x), where body begins with a layer norm.
static void add_residual(iso_module *to, const char *name, iso_module *body) {
    iso_module *residual;
    check(iso_residual_create_take(device, body, NULL, false, &residual));
    check(iso_sequential_add_take(to, name, residual));
}

static void add_attention(iso_module *to, const char *name) {
    iso_attention_config config = {.embed_dim = EMBED, .num_heads = HEADS, .causal = true};
    iso_module *body = create_sequence(), *attention;
    add_norm(body, "ln");
    check(iso_multihead_attention_create(device, &config, &rng, &attention));
    check(iso_sequential_add_take(body, "attn", attention));
    add_residual(to, name, body);
}

static void add_mlp(iso_module *to, const char *name) {
    iso_module *body = create_sequence(), *gelu;
    add_norm(body, "ln");
    add_linear(body, "fc", EMBED, 4 * EMBED);
    check(iso_gelu_create(device, true, &gelu));
    check(iso_sequential_add_take(body, "gelu", gelu));
    add_linear(body, "proj", 4 * EMBED, EMBED);
    add_residual(to, name, body);
}

static iso_module *build_gpt(void) {
    iso_embedding_config tokens = {.num_embeddings = text.classes, .embedding_dim = EMBED};
    iso_module *gpt = create_sequence(), *embedding;
    check(iso_embedding_create(device, &tokens, &rng, &embedding));
    check(iso_sequential_add_take(gpt, "wte", embedding));
    check(iso_position_embedding_create(device, LENGTH, EMBED, &rng, &embedding));
    check(iso_sequential_add_take(gpt, "wpe", embedding));
    for (int b = 0; b < BLOCKS; b++) {
        char name[16];
        snprintf(name, sizeof(name), "attn%d", b);
        add_attention(gpt, name);
        snprintf(name, sizeof(name), "mlp%d", b);
        add_mlp(gpt, name);
    }
    add_norm(gpt, "ln_f");
    add_linear(gpt, "head", EMBED, text.classes);
    return gpt;
}

// ---- Training -------------------------------------------------------------------------------------

typedef struct training {
    iso_module *model;
    iso_loss *loss;
    iso_optimizer *optimizer;
    iso_schedule schedule;
    iso_loader *train, *test;
    int64_t steps, step;
} training;

static void train_batch(training *t, const iso_batch *batch) {
    iso_tensor *output, *gradient;
    iso_schedule_step(&t->schedule, t->optimizer);
    iso_optimizer_zero_grad(t->optimizer);
    check(iso_module_forward(t->model, batch->inputs[0], &output));
    check(iso_loss_compute(t->loss, output, batch->labels, NULL, NULL, &gradient));
    check(iso_module_backward(t->model, gradient, NULL));
    check(iso_optimizer_step(t->optimizer));
    t->step++;
}

static void report_loss(training *t) {
    iso_evaluation test;
    check(iso_evaluate(t->model, t->loss, t->test, comm, &test));
    if (iso_comm_rank(comm) == 0) printf("step %d: test loss %.4f\n", (int)t->step, test.loss);
}

static void train_all(training *t) {
    iso_batch batch;
    for (int epoch = 0; t->step < t->steps; epoch++) {
        check(iso_loader_start(t->train, epoch, 0));
        while (t->step < t->steps && check(iso_loader_next(t->train, &batch)) == ISO_OK) {
            train_batch(t, &batch);
            if (t->step % 100 == 0 || t->step == t->steps) report_loss(t);
        }
    }
}

// ---- Going on with the text -------------------------------------------------------------------------

// The most likely character after the window.
static int predict_next(iso_module *model, iso_tensor *window) {
    iso_tensor *output;
    check(iso_module_forward(model, window, &output));
    const float *logit = (const float *)iso_tensor_data(output) + (LENGTH - 1) * text.classes;
    int best = 0;
    for (int c = 1; c < text.classes; c++)
        if (logit[c] > logit[best]) best = c;
    return best;
}

// On one rank, with the module inside DataParallel: its forward needs no other rank.
static void continue_text(iso_module *model) {
    iso_tensor *window;
    check(iso_tensor_create(device, ISO_I32, 2, (const int64_t[]){1, LENGTH}, &window));
    int32_t *token = iso_tensor_data(window);
    for (int t = 0; t < LENGTH; t++) token[t] = text.token[text.train - LENGTH + t];
    printf("the text goes on: \"");
    for (int i = 0; i < LENGTH; i++) {
        int next = predict_next(model, window);
        memmove(token, token + 1, (LENGTH - 1) * sizeof(*token));
        token[LENGTH - 1] = next;
        putchar(text.byte_of[next]);
    }
    printf("\"\n");
    iso_tensor_destroy(&window);
}

static void train_and_continue(int64_t steps) {
    static int64_t train_first, test_first;
    test_first = text.train;
    training t = {.model = build_gpt(), .steps = steps};
    t.train = load_windows(&train_first, text.train, true);
    t.test = load_windows(&test_first, text.count, false);
    t.schedule = iso_schedule_default(ISO_SCHEDULE_ONE_CYCLE, 3e-3, steps);
    check(iso_data_parallel_create_take(t.model, comm, NULL, &t.model));
    check(iso_optimizer_create(ISO_ADAMW, t.model, NULL, &t.optimizer));
    check(iso_dp_optimizer_create_take(t.optimizer, t.model, &t.optimizer));
    check(iso_loss_create(device, ISO_CROSS_ENTROPY, &t.loss));
    train_all(&t);
    check(iso_module_train(t.model, false));
    check(iso_data_parallel_finish(t.model));
    if (iso_comm_rank(comm) == 0) continue_text(iso_data_parallel_module(t.model));
    iso_optimizer_destroy(&t.optimizer);
    iso_module_destroy(&t.model);
    iso_loss_destroy(&t.loss);
    iso_loader_destroy(&t.train);
    iso_loader_destroy(&t.test);
}

static iso_status read_steps(const char *argument, int64_t *out) {
    char *end;
    long long steps = strtoll(argument, &end, 10);
    if (end == argument || *end || steps < 1 || steps > 100000000)
        return iso_error_set(ISO_ERR_ARG, "%s steps: give a whole number from 1 to 100000000",
                             argument);
    *out = steps;
    return ISO_OK;
}

int main(int argc, char **argv) {
    int provided;
    int64_t steps = 500;
    watch_start("char-gpt");
    watch_limit("MPI_Init_thread");
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    watch_limit(NULL);
    usage_check(argc, argv, 2, "char-gpt", usage);
    check(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    check(iso_device_create("cpu", &device));
    check_together(comm, argc > 1 ? read_text(argv[1])
                                  : iso_error_set(ISO_ERR_ARG, "give a file of text: see --help"));
    check_together(comm, argc > 2 ? read_steps(argv[2], &steps) : ISO_OK);
    uint64_t checksum = 0;
    check_together(comm, iso_checkpoint_checksum(argv[1], &checksum));
    check_together(comm, iso_comm_check_same(comm, checksum, argv[1]));
    train_and_continue(steps);
    free(text.token);
    iso_device_destroy(&device);
    finalize(&comm);
    return EXIT_SUCCESS;
}

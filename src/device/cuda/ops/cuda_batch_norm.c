// SPDX-License-Identifier: MIT
// Batch normalisation of the CUDA device: its slots, and copies of statistics from and to the host.
#include "device/cuda/ops/batch_norm_kernels.h"
#include "device/cuda/runtime/cuda_impl.h"

// ---- How work is divided ------------------------------------------------------------------------

enum {
    SMALL_PLANE = 8, // elements: one sector of memory
    PART_VALUES = 4096,
    BLOCKS = 1024, // fill any GPU
    MAX_PARTS = 256,
    // Where a thread has several channels:
    PART_VECTORS = 1024, // of 16 bytes
    WIDE_BLOCKS = 264,   // two for each processor of a large GPU
    MIN_LANES = 4,       // whose vectors are 64 bytes of memory
    // Where their sums are taken:
    SUM_BYTES = 64,  // of a row that a block reads: the fewer, the less its last one has to add up
    SUM_GROUPS = 16, // of channels; more would leave few parts to each
    SUM_PARTS = 2    // at most that are not worth while
};

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One part where there would be but a few: one launch takes less time than several.
static void divide_values(iso__cuda_norm_shape *s, int64_t parts, int64_t few) {
    if (parts <= few) return;
    s->part_values = divide_up(s->values, parts);
    // Threads that have many values get whole batches, where that makes parts little larger.
    int64_t batches = ISO_CUDA_BLOCK / s->lanes * ISO__NORM_BATCH;
    if (s->owned > 1 && s->part_values >= 4 * batches)
        s->part_values = divide_up(s->part_values, batches) * batches;
    // Planes of f32 and f64 are summed one by one, whatever their size is.
    if (iso__is_half(s->dtype) && s->owned == 1)
        s->part_values = divide_up(s->part_values, s->width) * s->width;
    s->parts = divide_up(s->values, s->part_values);
}

// As many lanes as there are vectors of channels, or so many that none is left over.
static void divide_channels(iso__cuda_norm_shape *s) {
    int64_t vectors = s->channels / s->width;
    s->owned = s->width;
    while (s->lanes < ISO__NORM_LANES && vectors % (2 * s->lanes) == 0) s->lanes *= 2;
    while (s->lanes < MIN_LANES && s->lanes < vectors) s->lanes *= 2;
    int64_t most = WIDE_BLOCKS / divide_up(vectors, s->lanes); // more would wait for the others
    divide_values(s, iso__smaller(divide_up(s->values * s->lanes, PART_VECTORS), most), 4);
}

static void divide_planes(iso__cuda_norm_shape *s) {
    while (s->plane < SMALL_PLANE && s->lanes < ISO__NORM_LANES && s->lanes < s->channels)
        s->lanes *= 2;
    if (s->plane < SMALL_PLANE || s->plane % s->width != 0) s->width = 1;
    int64_t wanted = divide_up(BLOCKS, divide_up(s->channels, s->lanes));
    int64_t parts = divide_up(s->values * s->lanes, PART_VALUES);
    divide_values(s, iso__smaller(iso__smaller(parts, wanted), MAX_PARTS), 2);
}

// What is logical and not of 16 bits goes by planes, also where these are single pixels: its sums
// are always in the same order.
static iso__cuda_norm_shape shape_of(const iso_tensor *x) {
    int64_t plane = 1;
    for (int i = 2; i < x->ndim; i++) plane *= x->shape[i];
    iso__cuda_norm_shape s = {.dtype = x->dtype,
                              .channels = x->shape[1],
                              .plane = iso__cuda_channels_last(x) ? 1 : plane,
                              .values = x->shape[0] * plane,
                              .parts = 1,
                              .part_values = x->shape[0] * plane,
                              .lanes = 1,
                              .width = 16 / (int)iso_dtype_size(x->dtype),
                              .owned = 1};
    bool beside = iso__cuda_channels_last(x) || (iso__is_half(s.dtype) && plane == 1);
    if (beside && s.channels % s.width == 0)
        divide_channels(&s);
    else
        divide_planes(&s);
    return s;
}

// How sums are divided where threads have several channels: blocks of more threads than elsewhere,
// which take a part of the rows of a group of channels. All of them find room on a large GPU at
// once; each thread has whole batches.
static iso__cuda_norm_shape summed_of(const iso__cuda_norm_shape *s, int owned) {
    iso__cuda_norm_shape sum = *s;
    if (s->owned == 1) return sum;
    sum.width = sum.owned = owned;
    sum.lanes = SUM_BYTES / (owned * (int)iso_dtype_size(s->dtype));
    int64_t vectors = s->channels / owned;
    while (sum.lanes >= 2 * vectors) sum.lanes /= 2;
    while (sum.lanes < ISO__NORM_LANES && divide_up(vectors, sum.lanes) > SUM_GROUPS)
        sum.lanes *= 2;
    sum.parts = 1, sum.part_values = s->values;
    int64_t batches = ISO__NORM_SUM_BLOCK / sum.lanes * ISO__NORM_BATCH;
    int64_t parts = iso__smaller(s->values / batches, WIDE_BLOCKS / divide_up(vectors, sum.lanes));
    if (parts <= SUM_PARTS) return sum;
    sum.part_values = divide_up(divide_up(s->values, parts), batches) * batches;
    sum.parts = divide_up(s->values, sum.part_values);
    return sum;
}

static iso__cuda_norm_shape moments_of(const iso__cuda_norm_shape *s) {
    return summed_of(s, ISO__NORM_SUMMED_MOMENTS(iso_dtype_size(s->dtype)));
}

// ---- Scratch memory -----------------------------------------------------------------------------

static void *data_of(const iso_tensor *t) { return t ? t->data : NULL; }

// Doubles of all parts: two of each channel, or of so many as all groups together have room for.
static int64_t part_numbers(const iso__cuda_norm_shape *s) {
    int64_t group = (int64_t)s->lanes * s->owned;
    return 2 * s->parts * divide_up(s->channels, group) * group;
}

// Scratch memory: two numbers of each channel, and those of the parts. Counters of arrivals.
static iso_status make_room(iso__cuda *cuda, const iso__cuda_norm_shape *summed, double **numbers,
                            double **parts, unsigned **arrived) {
    int64_t count = 2 * summed->channels + part_numbers(summed);
    void *memory;
    ISO_TRY(iso__cuda_scratch(cuda, (size_t)count * sizeof(double), &memory));
    *numbers = memory;
    *parts = *numbers + 2 * summed->channels;
    return iso__cuda_arrivals(cuda, arrived);
}

// Given numbers of each channel onto the device; NULL stays NULL.
static iso_status upload_statistics(iso__cuda *cuda, const iso__cuda_norm_shape *shape,
                                    const double *given, double *room, const double **out) {
    *out = given ? room : NULL;
    return given ? iso__cuda_norm_upload(cuda, 2 * shape->channels, given, room) : ISO_OK;
}

// Waits: the host sends them to other ranks before it can go on.
static iso_status download_statistics(iso__cuda *cuda, const iso__cuda_norm_shape *shape,
                                      const double *from, double *to) {
    ISO_TRY(iso__cuda_wait(cuda));
    ISO_TRY_CUDA(
        cudaMemcpy(to, from, 2 * (size_t)shape->channels * sizeof(double), cudaMemcpyDeviceToHost));
    return ISO_OK;
}

// ---- Slots --------------------------------------------------------------------------------------

static size_t batch_norm_workspace(iso_device *self, const iso_tensor *x) {
    (void)self;
    size_t real = x->dtype == ISO_F64 ? sizeof(double) : sizeof(float);
    return (size_t)(ISO__NORM_ROWS * x->shape[1]) * real;
}

static iso_status batch_norm_forward(iso_device *self, const iso__batch_norm_args *args,
                                     const iso_tensor *x, iso_tensor *y, void *workspace) {
    iso__cuda *cuda = iso__cuda_of(self);
    iso__cuda_norm_forward forward = {.shape = shape_of(x),
                                      .eps = args->eps,
                                      .factor = args->factor,
                                      .batch = args->batch,
                                      .relu = args->act == ISO_ACT_RELU,
                                      .count = args->count,
                                      .x = x->data,
                                      .weight = data_of(args->weight),
                                      .bias = data_of(args->bias),
                                      .running_mean = data_of(args->running_mean),
                                      .running_var = data_of(args->running_var),
                                      .tracked = data_of(args->tracked),
                                      .workspace = workspace,
                                      .y = y->data};
    forward.summed = moments_of(&forward.shape);
    ISO_TRY(make_room(cuda, &forward.summed, &forward.numbers, &forward.parts, &forward.arrived));
    ISO_TRY(upload_statistics(cuda, &forward.shape, args->batch ? args->moments : NULL,
                              forward.numbers, &forward.moments));
    return iso__cuda_norm_forward_launch(cuda, &forward);
}

// What both ends of a backward have in common; dw and db are set where dy is summed.
static iso__cuda_norm_backward backward_of(const iso__batch_norm_args *args, const iso_tensor *x,
                                           const iso_tensor *dy, const void *workspace) {
    iso__cuda_norm_shape shape = shape_of(x);
    return (iso__cuda_norm_backward){.shape = shape,
                                     .summed = summed_of(&shape, ISO__NORM_SUMMED),
                                     .batch = args->batch,
                                     .relu = args->act == ISO_ACT_RELU,
                                     .count = args->count,
                                     .x = x->data,
                                     .dy = dy->data,
                                     .workspace = workspace};
}

static void set_targets(iso__cuda_norm_backward *backward, iso_tensor *dw, bool accumulate_w,
                        iso_tensor *db, bool accumulate_b) {
    backward->dw = data_of(dw);
    backward->db = data_of(db);
    backward->accumulate_w = accumulate_w;
    backward->accumulate_b = accumulate_b;
}

static iso_status batch_norm_backward(iso_device *self, const iso__batch_norm_args *args,
                                      const iso_tensor *x, const iso_tensor *dy, void *workspace,
                                      iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                      bool accumulate_b, iso_tensor *dx) {
    iso__cuda *cuda = iso__cuda_of(self);
    iso__cuda_norm_backward backward = backward_of(args, x, dy, workspace);
    backward.dx = data_of(dx);
    if (!args->sums) set_targets(&backward, dw, accumulate_w, db, accumulate_b);
    ISO_TRY(
        make_room(cuda, &backward.summed, &backward.numbers, &backward.parts, &backward.arrived));
    ISO_TRY(upload_statistics(cuda, &backward.shape, args->sums, backward.numbers, &backward.sums));
    return iso__cuda_norm_backward_launch(cuda, &backward);
}

// These two give numbers to the host, so they wait.

static iso_status batch_norm_moments(iso_device *self, const iso_tensor *x, double *moments) {
    iso__cuda *cuda = iso__cuda_of(self);
    iso__cuda_norm_forward forward = {.shape = shape_of(x), .x = x->data};
    forward.summed = moments_of(&forward.shape);
    ISO_TRY(make_room(cuda, &forward.summed, &forward.numbers, &forward.parts, &forward.arrived));
    ISO_TRY(iso__cuda_norm_moments_launch(cuda, &forward));
    return download_statistics(cuda, &forward.shape, forward.numbers, moments);
}

static iso_status batch_norm_sums(iso_device *self, const iso__batch_norm_args *args,
                                  const iso_tensor *x, const iso_tensor *dy, void *workspace,
                                  iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                  bool accumulate_b, double *sums) {
    iso__cuda *cuda = iso__cuda_of(self);
    iso__cuda_norm_backward backward = backward_of(args, x, dy, workspace);
    set_targets(&backward, dw, accumulate_w, db, accumulate_b);
    ISO_TRY(
        make_room(cuda, &backward.summed, &backward.numbers, &backward.parts, &backward.arrived));
    backward.out = backward.numbers;
    ISO_TRY(iso__cuda_norm_backward_launch(cuda, &backward));
    return download_statistics(cuda, &backward.shape, backward.numbers, sums);
}

void iso__cuda_fill_batch_norm(iso_kernel_ops *ops) {
    ops->batch_norm_workspace = batch_norm_workspace;
    ops->batch_norm_moments = batch_norm_moments;
    ops->batch_norm_forward = batch_norm_forward;
    ops->batch_norm_sums = batch_norm_sums;
    ops->batch_norm_backward = batch_norm_backward;
}

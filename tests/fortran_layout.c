// SPDX-License-Identifier: MIT
// What a C compiler makes of the types and constants that isotherm.f90 repeats, for
// fortran_caller.f90.
#include <isotherm.h>
#include <string.h>

#define SIZE(type)                                                                                 \
    { #type, sizeof(type), false }
#define FIELD(type, field)                                                                         \
    { #type "." #field, offsetof(type, field), false }
#define VALUE(constant)                                                                            \
    { #constant, constant, false }

static struct {
    const char *name;
    long long value;
    bool asked;
} table[] = {
    SIZE(iso_comm_config),
    FIELD(iso_comm_config, progress),
    FIELD(iso_comm_config, timeout_s),
    SIZE(iso_reducer_param),
    FIELD(iso_reducer_param, name),
    FIELD(iso_reducer_param, value),
    FIELD(iso_reducer_param, count),
    FIELD(iso_reducer_param, dtype),
    FIELD(iso_reducer_param, layer),
    FIELD(iso_reducer_param, shape_id),
    FIELD(iso_reducer_param, shape_text),
    FIELD(iso_reducer_param, row),
    FIELD(iso_reducer_param, whole),
    FIELD(iso_reducer_param, local),
    FIELD(iso_reducer_param, delayed),
    FIELD(iso_reducer_param, gradient),
    FIELD(iso_reducer_param, layers),
    FIELD(iso_reducer_param, stride),
    FIELD(iso_reducer_param, user),
    FIELD(iso_reducer_param, sparse_rows),
    SIZE(iso_reducer_config),
    FIELD(iso_reducer_config, device),
    FIELD(iso_reducer_config, sync),
    FIELD(iso_reducer_config, scope),
    FIELD(iso_reducer_config, order),
    FIELD(iso_reducer_config, unused),
    FIELD(iso_reducer_config, average),
    FIELD(iso_reducer_config, split_factor),
    FIELD(iso_reducer_config, hook),
    FIELD(iso_reducer_config, bucket_bytes),
    FIELD(iso_reducer_config, first_bucket_bytes),
    FIELD(iso_reducer_config, last_bucket_bytes),
    FIELD(iso_reducer_config, bucket_list),
    FIELD(iso_reducer_config, bucket_list_count),
    FIELD(iso_reducer_config, piece_bytes),
    FIELD(iso_reducer_config, sums),
    FIELD(iso_reducer_config, zero),
    FIELD(iso_reducer_config, zero_scope),
    FIELD(iso_reducer_config, keep_values),
    FIELD(iso_reducer_config, by_name),
    FIELD(iso_reducer_config, by_weight),
    SIZE(iso_reducer_update),
    FIELD(iso_reducer_update, param),
    FIELD(iso_reducer_update, name),
    FIELD(iso_reducer_update, slice),
    FIELD(iso_reducer_update, first),
    FIELD(iso_reducer_update, count),
    FIELD(iso_reducer_update, dtype),
    FIELD(iso_reducer_update, value),
    FIELD(iso_reducer_update, gradient),
    FIELD(iso_reducer_update, scale),
    FIELD(iso_reducer_update, hyper),
    FIELD(iso_reducer_update, param_user),
    FIELD(iso_reducer_update, user),
    SIZE(iso_reducer_stats),
    FIELD(iso_reducer_stats, steps),
    FIELD(iso_reducer_stats, bucket_count),
    FIELD(iso_reducer_stats, bytes_per_step),
    FIELD(iso_reducer_stats, bytes_world),
    FIELD(iso_reducer_stats, bytes_node),
    FIELD(iso_reducer_stats, wait_ms),
    FIELD(iso_reducer_stats, exchange_ms),
    FIELD(iso_reducer_stats, shared_memory),
    FIELD(iso_reducer_stats, nccl),
    FIELD(iso_reducer_stats, exchanges),
    FIELD(iso_reducer_stats, planned),
    FIELD(iso_reducer_stats, bytes_sent),
    FIELD(iso_reducer_stats, bytes_between_nodes),
    FIELD(iso_reducer_stats, gradient_peak),
    FIELD(iso_reducer_stats, two_levels),
    FIELD(iso_reducer_stats, pairwise),
    SIZE(iso_bucket_stats),
    FIELD(iso_bucket_stats, name),
    FIELD(iso_bucket_stats, bytes),
    FIELD(iso_bucket_stats, wire_bytes),
    FIELD(iso_bucket_stats, exchanges),
    FIELD(iso_bucket_stats, ready_ms),
    FIELD(iso_bucket_stats, start_ms),
    FIELD(iso_bucket_stats, done_ms),
    FIELD(iso_bucket_stats, need_ms),
    FIELD(iso_bucket_stats, wait_ms),
    SIZE(iso_comm_hook_bucket),
    FIELD(iso_comm_hook_bucket, count),
    FIELD(iso_comm_hook_bucket, dtype),
    FIELD(iso_comm_hook_bucket, gradient),
    FIELD(iso_comm_hook_bucket, wire),
    FIELD(iso_comm_hook_bucket, state),
    FIELD(iso_comm_hook_bucket, name),
    FIELD(iso_comm_hook_bucket, index),
    FIELD(iso_comm_hook_bucket, is_last),
    FIELD(iso_comm_hook_bucket, rank),
    FIELD(iso_comm_hook_bucket, ranks),
    FIELD(iso_comm_hook_bucket, tensor),
    FIELD(iso_comm_hook_bucket, tensor_count),
    FIELD(iso_comm_hook_bucket, data),
    FIELD(iso_comm_hook_bucket, comm),
    FIELD(iso_comm_hook_bucket, exchange),
    SIZE(iso_comm_hook_tensor),
    FIELD(iso_comm_hook_tensor, name),
    FIELD(iso_comm_hook_tensor, offset),
    FIELD(iso_comm_hook_tensor, count),
    FIELD(iso_comm_hook_tensor, row),
    SIZE(iso_comm_phase),
    FIELD(iso_comm_phase, operation),
    FIELD(iso_comm_phase, count),
    FIELD(iso_comm_phase, dtype),
    SIZE(iso_comm_hook_plan),
    FIELD(iso_comm_hook_plan, phase_count),
    FIELD(iso_comm_hook_plan, phase),
    FIELD(iso_comm_hook_plan, state_floats),
    FIELD(iso_comm_hook_plan, plain),
    SIZE(iso_comm_hook),
    FIELD(iso_comm_hook, name),
    FIELD(iso_comm_hook, wire),
    FIELD(iso_comm_hook, state_floats),
    FIELD(iso_comm_hook, divides),
    FIELD(iso_comm_hook, silent),
    FIELD(iso_comm_hook, compress),
    FIELD(iso_comm_hook, decompress),
    FIELD(iso_comm_hook, declare),
    FIELD(iso_comm_hook, run),
    FIELD(iso_comm_hook, start),
    FIELD(iso_comm_hook, user),
    FIELD(iso_comm_hook, user_bytes),
    SIZE(iso_topk_config),
    FIELD(iso_topk_config, ratio),
    SIZE(iso_randomk_config),
    FIELD(iso_randomk_config, ratio),
    FIELD(iso_randomk_config, seed),
    SIZE(iso_powersgd_config),
    FIELD(iso_powersgd_config, rank),
    FIELD(iso_powersgd_config, start),
    FIELD(iso_powersgd_config, least_saving),
    FIELD(iso_powersgd_config, seed),
    FIELD(iso_powersgd_config, batched),
    SIZE(iso_hyper),
    FIELD(iso_hyper, lr),
    FIELD(iso_hyper, momentum),
    FIELD(iso_hyper, dampening),
    FIELD(iso_hyper, weight_decay),
    FIELD(iso_hyper, beta1),
    FIELD(iso_hyper, beta2),
    FIELD(iso_hyper, rho),
    FIELD(iso_hyper, alpha),
    FIELD(iso_hyper, eps),
    FIELD(iso_hyper, lr_decay),
    FIELD(iso_hyper, initial_accumulator_value),
    FIELD(iso_hyper, nesterov),
    FIELD(iso_hyper, centered),
    FIELD(iso_hyper, amsgrad),
    FIELD(iso_hyper, maximize),
    FIELD(iso_hyper, momentum_decay),
    FIELD(iso_hyper, step),
    SIZE(iso_optimizer_group),
    FIELD(iso_optimizer_group, hyper),
    FIELD(iso_optimizer_group, belongs),
    FIELD(iso_optimizer_group, user),
    SIZE(iso_optimizer_kind),
    VALUE(ISO_SGD),
    VALUE(ISO_ADAM),
    VALUE(ISO_ADAMW),
    VALUE(ISO_ADADELTA),
    VALUE(ISO_ADAGRAD),
    VALUE(ISO_RMSPROP),
    VALUE(ISO_LAMB),
    VALUE(ISO_NADAM),
    SIZE(iso_status),
    SIZE(iso_dtype),
    SIZE(iso_progress),
    SIZE(iso_scope),
    SIZE(iso_sync),
    SIZE(iso_order),
    SIZE(iso_unused),
    SIZE(iso_average_mode),
    SIZE(iso_reduce),
#define STATUS(name, value, text) VALUE(name),
    ISO_STATUS_LIST(STATUS) VALUE(ISO_F32),
    VALUE(ISO_F64),
    VALUE(ISO_BF16),
    VALUE(ISO_F16),
    VALUE(ISO_I64),
    VALUE(ISO_I32),
    VALUE(ISO_U8),
    VALUE(ISO_PROGRESS_AUTO),
    VALUE(ISO_PROGRESS_OFF),
    VALUE(ISO_PROGRESS_POLL),
    VALUE(ISO_PROGRESS_THREAD),
    VALUE(ISO_SCOPE_WORLD),
    VALUE(ISO_SCOPE_NODE),
    VALUE(ISO_SCOPE_RANK),
    VALUE(ISO_SYNC_LAZY),
    VALUE(ISO_SYNC_BLOCKING),
    VALUE(ISO_SYNC_NONE),
    VALUE(ISO_SYNC_EXPLICIT),
    VALUE(ISO_ORDER_NEED),
    VALUE(ISO_ORDER_REVERSE),
    VALUE(ISO_UNUSED_ERROR),
    VALUE(ISO_UNUSED_ZERO),
    VALUE(ISO_UNUSED_NEGOTIATE),
    VALUE(ISO_UNUSED_STATIC),
    VALUE(ISO_AVERAGE_POST),
    VALUE(ISO_AVERAGE_PRE),
    VALUE(ISO_AVERAGE_SPLIT),
    VALUE(ISO_AVERAGE_SUM),
    VALUE(ISO_REDUCER_ONLY),
    VALUE(ISO_SUM),
    VALUE(ISO_MAX),
    VALUE(ISO_MIN),
    VALUE(ISO_COMM_SUM),
    VALUE(ISO_COMM_GATHER),
    VALUE(ISO_COMM_ALLTOALL),
    VALUE(ISO_COMM_HOOK_PHASES),
};

// A compiler that warns of missing initializers tells when a type gets a field that the table
// lacks.
const iso_comm_config layout_comm_config = {0, 0};
const iso_reducer_param layout_param = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
const iso_reducer_config layout_config = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                          0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
const iso_reducer_update layout_update = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
const iso_reducer_stats layout_stats = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
const iso_bucket_stats layout_bucket_stats = {0, 0, 0, 0, 0, 0, 0, 0, 0};
const iso_comm_hook_bucket layout_hook_bucket = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0};
const iso_comm_hook_tensor layout_hook_tensor = {0, 0, 0, 0};
const iso_comm_phase layout_phase = {0, 0, 0};
const iso_comm_hook_plan layout_hook_plan = {0, {{0, 0, 0}}, 0, 0};
const iso_comm_hook layout_hook = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
const iso_topk_config layout_topk = {0};
const iso_randomk_config layout_randomk = {0, 0};
const iso_powersgd_config layout_powersgd = {0, 0, 0, 0, 0};
const iso_hyper layout_hyper = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
const iso_optimizer_group layout_group = {
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0, 0};

// The size, offset or value with this name; -12345: there is none.
long long layout_of(const char *name) {
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strcmp(table[i].name, name) != 0) continue;
        table[i].asked = true;
        return table[i].value;
    }
    return -12345;
}

// What nobody has asked for, so that Fortran may lack it; "": nothing.
const char *layout_unasked(void) {
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (!table[i].asked) return table[i].name;
    return "";
}

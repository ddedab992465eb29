// SPDX-License-Identifier: MIT
// Primitives of oneDNN, cached by shape, and conversions between layouts around them.
#include "device/cpu/onednn/onednn_impl.h"

#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define BUCKETS 64

// An argument: the caller's buffer, and a buffer in scratch if the primitive wants another layout.
typedef struct port {
    int id;
    bool output;
    dnnl_memory_t outer, inner; // the same object when nothing is converted
    dnnl_primitive_t
        reorder;   // outer -> inner, for outputs inner -> outer; NULL: nothing to convert
    size_t offset; // of inner in scratch
} port;

struct iso__onednn_kernel {
    iso__onednn_key key;
    iso__onednn_kernel *next;
    dnnl_primitive_t primitive;
    dnnl_memory_t scratchpad; // at the start of scratch, used by primitive and reorders in turn
    port ports[ISO_ONEDNN_ARGS];
    size_t scratch_bytes;
    char name[64]; // oneDNN's of the implementation, and how many arguments are converted
};

struct iso__onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    iso__onednn_kernel *bucket[BUCKETS];
};

iso_status iso__onednn_open(struct iso__onednn **out) {
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(struct iso__onednn), &memory));
    struct iso__onednn *self = *out = memory;
    ISO_TRY_DNNL(dnnl_engine_create(&self->engine, dnnl_cpu, 0));
    ISO_TRY_DNNL(dnnl_stream_create(&self->stream, self->engine, dnnl_stream_default_flags));
    return ISO_OK;
}

dnnl_engine_t iso__onednn_engine(const iso__cpu *cpu) { return cpu->onednn->engine; }

int iso__onednn_enter(const iso__cpu *cpu) {
    int before = 1;
#ifdef _OPENMP
    before = omp_get_max_threads();
    omp_set_num_threads(cpu->base.threads);
#endif
    (void)cpu;
    return before;
}

void iso__onednn_leave(int before) {
#ifdef _OPENMP
    omp_set_num_threads(before);
#endif
    (void)before;
}

static size_t bucket_of(const iso__onednn_key *key) {
    return iso__hash(ISO_HASH_START, key, sizeof(*key)) % BUCKETS;
}

iso__onednn_kernel *iso__onednn_find(const iso__cpu *cpu, const iso__onednn_key *key) {
    iso__onednn_kernel *kernel = cpu->onednn->bucket[bucket_of(key)];
    while (kernel && memcmp(&kernel->key, key, sizeof(*key)) != 0) kernel = kernel->next;
    return kernel;
}

static void kernel_destroy(iso__onednn_kernel *kernel) {
    for (int i = 0; i < ISO_ONEDNN_ARGS; i++) {
        port *p = &kernel->ports[i];
        if (p->reorder) dnnl_primitive_destroy(p->reorder);
        if (p->inner && p->inner != p->outer) dnnl_memory_destroy(p->inner);
        if (p->outer) dnnl_memory_destroy(p->outer);
    }
    if (kernel->scratchpad) dnnl_memory_destroy(kernel->scratchpad);
    if (kernel->primitive) dnnl_primitive_destroy(kernel->primitive);
    iso__free(kernel);
}

void iso__onednn_close(struct iso__onednn **onednn) {
    struct iso__onednn *self = *onednn;
    if (!self) return;
    for (int i = 0; i < BUCKETS; i++)
        while (self->bucket[i]) {
            iso__onednn_kernel *kernel = self->bucket[i];
            self->bucket[i] = kernel->next;
            kernel_destroy(kernel);
        }
    if (self->stream) dnnl_stream_destroy(self->stream);
    if (self->engine) dnnl_engine_destroy(self->engine);
    iso__free(self);
    *onednn = NULL;
}

// ---- Building -----------------------------------------------------------------------------------

iso_status iso__onednn_attributes(iso_activation act, dnnl_primitive_attr_t *out) {
    dnnl_primitive_attr_t attr;
    ISO_TRY_DNNL(dnnl_primitive_attr_create(&attr));
    dnnl_status_t status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && act == ISO_ACT_RELU) {
        dnnl_post_ops_t post_ops;
        status = dnnl_post_ops_create(&post_ops);
        if (status == dnnl_success) {
            status = dnnl_post_ops_append_eltwise(post_ops, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
            if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attr, post_ops);
            dnnl_post_ops_destroy(post_ops);
        }
    }
    if (status != dnnl_success) dnnl_primitive_attr_destroy(attr);
    ISO_TRY_DNNL(status);
    *out = attr;
    return ISO_OK;
}

// Attributes of a conversion; with accumulate it adds to its destination.
static dnnl_status_t reorder_attributes(bool accumulate, dnnl_primitive_attr_t attr) {
    dnnl_status_t status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !accumulate) return status;
    dnnl_post_ops_t post_ops;
    status = dnnl_post_ops_create(&post_ops);
    if (status != dnnl_success) return status;
    status = dnnl_post_ops_append_sum(post_ops, 1.0f);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attr, post_ops);
    dnnl_post_ops_destroy(post_ops);
    return status;
}

static size_t scratchpad_bytes(const_dnnl_primitive_desc_t pd) {
    return dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
}

static iso_status build_reorder(iso__cpu *cpu, port *p, const dnnl_memory_desc_t *from,
                                const dnnl_memory_desc_t *to, bool accumulate, size_t *scratchpad) {
    dnnl_engine_t engine = cpu->onednn->engine;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_attr_t attr;
    ISO_TRY_DNNL(dnnl_primitive_attr_create(&attr));
    dnnl_status_t status = reorder_attributes(accumulate, attr);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&pd, from, engine, to, engine, attr);
    if (status == dnnl_success) {
        size_t bytes = scratchpad_bytes(pd);
        if (bytes > *scratchpad) *scratchpad = bytes;
        status = dnnl_primitive_create(&p->reorder, pd);
        dnnl_primitive_desc_destroy(pd);
        cpu->base.primitives_created++;
    }
    dnnl_primitive_attr_destroy(attr);
    ISO_CHECK(status == dnnl_success, ISO_ERR_DEVICE,
              "oneDNN cannot convert a layout that its kernel needs: %s", dnnl_status2str(status));
    return ISO_OK;
}

static iso_status build_port(iso__cpu *cpu, port *p, const iso__onednn_arg *arg,
                             const_dnnl_primitive_desc_t pd, size_t *scratchpad) {
    dnnl_engine_t engine = cpu->onednn->engine;
    const dnnl_memory_desc_t *wanted =
        dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, arg->id);
    p->id = arg->id;
    p->output = arg->output;
    ISO_TRY_DNNL(dnnl_memory_create(&p->outer, &arg->layout, engine, DNNL_MEMORY_NONE));
    if (!arg->accumulate && dnnl_memory_desc_equal(wanted, &arg->layout)) {
        p->inner = p->outer;
        return ISO_OK;
    }
    ISO_TRY_DNNL(dnnl_memory_create(&p->inner, wanted, engine, DNNL_MEMORY_NONE));
    ISO_TRY(build_reorder(cpu, p, arg->output ? wanted : &arg->layout,
                          arg->output ? &arg->layout : wanted, arg->accumulate, scratchpad));
    return ISO_OK;
}

// Scratch: one scratchpad for the primitive and its conversions, then the converted arguments.
static iso_status place_scratch(iso__cpu *cpu, iso__onednn_kernel *kernel, size_t scratchpad) {
    dnnl_memory_desc_t md;
    dnnl_dims_t dims = {(dnnl_dim_t)scratchpad};
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(&md, scratchpad ? 1 : 0, dims, dnnl_u8, dnnl_a));
    ISO_TRY_DNNL(
        dnnl_memory_create(&kernel->scratchpad, &md, cpu->onednn->engine, DNNL_MEMORY_NONE));
    kernel->scratch_bytes = iso__round_up(scratchpad, 64);
    for (int i = 0; i < ISO_ONEDNN_ARGS; i++) {
        port *p = &kernel->ports[i];
        if (!p->reorder) continue;
        const dnnl_memory_desc_t *inner;
        ISO_TRY_DNNL(dnnl_memory_get_memory_desc(p->inner, &inner));
        p->offset = kernel->scratch_bytes;
        kernel->scratch_bytes += iso__round_up(dnnl_memory_desc_get_size(inner), 64);
    }
    return ISO_OK;
}

static void name_kernel(iso__onednn_kernel *kernel, const_dnnl_primitive_desc_t pd) {
    const char *name = NULL;
    int conversions = 0;
    bool bf16 = false;
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    for (int i = 0; i < ISO_ONEDNN_ARGS; i++) {
        const dnnl_memory_desc_t *inner = NULL;
        if (!kernel->ports[i].reorder) continue;
        conversions++;
        dnnl_memory_get_memory_desc(kernel->ports[i].inner, &inner);
        bf16 = bf16 || (inner && inner->data_type == dnnl_bf16);
    }
    int used = snprintf(kernel->name, sizeof(kernel->name), "oneDNN %s%s", name ? name : "",
                        bf16 ? ", bf16" : "");
    if (conversions > 0 && used < (int)sizeof(kernel->name))
        snprintf(kernel->name + used, sizeof(kernel->name) - (size_t)used, " +%d reorder%s",
                 conversions, conversions > 1 ? "s" : "");
}

static iso_status build_kernel(iso__cpu *cpu, iso__onednn_kernel *kernel,
                               const_dnnl_primitive_desc_t pd, const iso__onednn_arg *args) {
    size_t scratchpad = scratchpad_bytes(pd);
    ISO_TRY_DNNL(dnnl_primitive_create(&kernel->primitive, pd));
    cpu->base.primitives_created++;
    for (int i = 0; i < ISO_ONEDNN_ARGS; i++)
        if (args[i].id) ISO_TRY(build_port(cpu, &kernel->ports[i], &args[i], pd, &scratchpad));
    ISO_TRY(place_scratch(cpu, kernel, scratchpad));
    name_kernel(kernel, pd);
    return ISO_OK;
}

iso_status iso__onednn_build(iso__cpu *cpu, const iso__onednn_key *key, dnnl_primitive_desc_t pd,
                             const iso__onednn_arg args[ISO_ONEDNN_ARGS],
                             iso__onednn_kernel **out) {
    iso_status status;
    void *memory = NULL;
    ISO_TRY_GOTO(iso__alloc_zero(sizeof(iso__onednn_kernel), &memory));
    iso__onednn_kernel *kernel = memory;
    ISO_TRY_GOTO(build_kernel(cpu, kernel, pd, args));
    dnnl_primitive_desc_destroy(pd);
    kernel->key = *key;
    kernel->next = cpu->onednn->bucket[bucket_of(key)];
    cpu->onednn->bucket[bucket_of(key)] = kernel;
    *out = kernel;
    return ISO_OK;
fail:
    dnnl_primitive_desc_destroy(pd);
    if (memory) kernel_destroy(memory);
    return status;
}

// ---- Running ------------------------------------------------------------------------------------

static iso_status reorder_port(iso__cpu *cpu, const iso__onednn_kernel *kernel, const port *p) {
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, p->output ? p->inner : p->outer},
                              {DNNL_ARG_TO, p->output ? p->outer : p->inner},
                              {DNNL_ARG_SCRATCHPAD, kernel->scratchpad}};
    ISO_TRY_DNNL(dnnl_primitive_execute(p->reorder, cpu->onednn->stream, 3, args));
    return ISO_OK;
}

static iso_status run_kernel(iso__cpu *cpu, iso__onednn_kernel *kernel, void *const data[]) {
    void *scratch;
    ISO_TRY(iso__cpu_scratch(cpu, kernel->scratch_bytes, &scratch));
    ISO_TRY_DNNL(dnnl_memory_set_data_handle(kernel->scratchpad, scratch));
    dnnl_exec_arg_t args[ISO_ONEDNN_ARGS + 1] = {{DNNL_ARG_SCRATCHPAD, kernel->scratchpad}};
    int count = 1;
    for (int i = 0; i < ISO_ONEDNN_ARGS; i++) {
        const port *p = &kernel->ports[i];
        if (!p->id) continue;
        ISO_TRY_DNNL(dnnl_memory_set_data_handle(p->outer, data[i]));
        if (p->reorder)
            ISO_TRY_DNNL(dnnl_memory_set_data_handle(p->inner, (char *)scratch + p->offset));
        if (p->reorder && !p->output) ISO_TRY(reorder_port(cpu, kernel, p));
        args[count++] = (dnnl_exec_arg_t){p->id, p->inner};
    }
    ISO_TRY_DNNL(dnnl_primitive_execute(kernel->primitive, cpu->onednn->stream, count, args));
    for (int i = 0; i < ISO_ONEDNN_ARGS; i++)
        if (kernel->ports[i].reorder && kernel->ports[i].output)
            ISO_TRY(reorder_port(cpu, kernel, &kernel->ports[i]));
    ISO_TRY_DNNL(dnnl_stream_wait(cpu->onednn->stream));
    return ISO_OK;
}

iso_status iso__onednn_run(iso__cpu *cpu, iso__onednn_kernel *kernel,
                           void *const data[ISO_ONEDNN_ARGS]) {
    int before = iso__onednn_enter(cpu);
    iso_status status = run_kernel(cpu, kernel, data);
    iso__onednn_leave(before);
    cpu->base.kernel = kernel->name;
    ISO_TRY(status);
    return ISO_OK;
}

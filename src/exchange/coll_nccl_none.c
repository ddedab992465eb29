// SPDX-License-Identifier: MIT
// Stands in for NCCL in builds without it.
#include "exchange/coll_nccl.h"

bool iso__nccl_is_built(void) { return false; }

iso_status iso__nccl_create(iso_comm *comm, iso_device *device, iso__nccl **out) {
    (void)comm, (void)device, (void)out;
    return ISO_FAIL(ISO_ERR_UNSUPPORTED, "this build has no NCCL (configure --with-nccl)");
}

void iso__nccl_destroy(iso__nccl **nccl) { *nccl = NULL; }

static iso_status fail_unsupported(void) {
    return ISO_FAIL(ISO_ERR_UNSUPPORTED, "this build has no NCCL");
}

iso_status iso__nccl_all_reduce(iso__nccl *nccl, void *data, size_t count, iso_dtype dtype,
                                const char *label, iso__device_event *event) {
    (void)nccl, (void)data, (void)count, (void)dtype, (void)label, (void)event;
    return fail_unsupported();
}

iso_status iso__nccl_reduce_scatter(iso__nccl *nccl, void *data, size_t count, iso_dtype dtype,
                                    const char *label, iso__device_event *event) {
    (void)nccl, (void)data, (void)count, (void)dtype, (void)label, (void)event;
    return fail_unsupported();
}

iso_status iso__nccl_all_gather(iso__nccl *nccl, void *data, size_t count, iso_dtype dtype,
                                const char *label, iso__device_event *event) {
    (void)nccl, (void)data, (void)count, (void)dtype, (void)label, (void)event;
    return fail_unsupported();
}

iso_status iso__nccl_check(iso__nccl *nccl) {
    (void)nccl;
    return fail_unsupported();
}

iso_status iso__nccl_finish(iso__nccl *nccl) {
    (void)nccl;
    return fail_unsupported();
}

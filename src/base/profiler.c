// SPDX-License-Identifier: MIT
// Ranges for a profiler. NVTX 3 is headers only: at the first call they load the library that the
// profiler has named in the environment, if there is one.
#include "base/profiler.h"

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

atomic_int iso__profiler_state = ISO__PROFILER_UNKNOWN;
static nvtxDomainHandle_t domain; // NULL: no profiler is attached

static void open_domain(void) {
    static const char *const names[ISO_LANE_COUNT] = ISO__LANE_NAMES;
    domain = nvtxDomainCreateA("isotherm");
    for (uint32_t lane = 0; domain && lane < ISO_LANE_COUNT; lane++)
        nvtxDomainNameCategoryA(domain, lane + 1, names[lane]);
    atomic_store(&iso__profiler_state, domain ? ISO__PROFILER_ON : ISO__PROFILER_OFF);
}

bool iso__profiler_find(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_domain);
    return domain != NULL;
}

// Category 0 means that there is none.
static nvtxEventAttributes_t describe_range(iso_lane lane, const char *name) {
    nvtxEventAttributes_t range = {.version = NVTX_VERSION,
                                   .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .category = (uint32_t)lane + 1,
                                   .messageType = NVTX_MESSAGE_TYPE_ASCII};
    range.message.ascii = name;
    return range;
}

void iso__profiler_push(iso_lane lane, const char *name) {
    nvtxEventAttributes_t range = describe_range(lane, name);
    nvtxDomainRangePushEx(domain, &range);
}

void iso__profiler_pop(void) { nvtxDomainRangePop(domain); }

uint64_t iso__profiler_start(iso_lane lane, const char *name) {
    nvtxEventAttributes_t range = describe_range(lane, name);
    return nvtxDomainRangeStartEx(domain, &range);
}

void iso__profiler_end(uint64_t *range) {
    if (*range != 0) nvtxDomainRangeEnd(domain, *range);
    *range = 0;
}

// SPDX-License-Identifier: MIT
// In place of a profiler: a library that NVTX loads because NVTX_INJECTION64_PATH names it. It
// writes what happens in domains to the file NVTX_RANGES.PID, one line each:
//
//   domain NAME | category NUMBER NAME | push THREAD CATEGORY NAME | pop THREAD
//   start NUMBER CATEGORY NAME | end NUMBER
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static FILE *file;

static unsigned long own_thread(void) { return (unsigned long)pthread_self(); }

static nvtxDomainHandle_t NVTX_API create_domain(const char *name) {
    fprintf(file, "domain %s\n", name);
    return (nvtxDomainHandle_t)&file;
}

static void NVTX_API name_category(nvtxDomainHandle_t domain, uint32_t category, const char *name) {
    (void)domain;
    fprintf(file, "category %u %s\n", category, name);
}

static int NVTX_API push_range(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *range) {
    (void)domain;
    fprintf(file, "push %lu %u %s\n", own_thread(), range->category, range->message.ascii);
    return 0;
}

static int NVTX_API pop_range(nvtxDomainHandle_t domain) {
    (void)domain;
    fprintf(file, "pop %lu\n", own_thread());
    return 0;
}

static nvtxRangeId_t NVTX_API start_range(nvtxDomainHandle_t domain,
                                          const nvtxEventAttributes_t *range) {
    static nvtxRangeId_t last;
    nvtxRangeId_t id = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    (void)domain;
    fprintf(file, "start %llu %u %s\n", (unsigned long long)id, range->category,
            range->message.ascii);
    return id;
}

static void NVTX_API end_range(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
    (void)domain;
    fprintf(file, "end %llu\n", (unsigned long long)id);
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table);

// Returns 1 if it is ready.
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
    const NvtxExportTableCallbacks *callbacks = export_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size;
    char name[4096];
    const char *stem = getenv("NVTX_RANGES");
    if (!stem || !callbacks ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size))
        return 0;
    snprintf(name, sizeof(name), "%s.%ld", stem, (long)getpid());
    file = fopen(name, "w");
    if (!file) return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
    *table[NVTX_CBID_CORE2_DomainNameCategoryA] = (NvtxFunctionPointer)name_category;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push_range;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop_range;
    *table[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)start_range;
    *table[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)end_range;
    return 1;
}

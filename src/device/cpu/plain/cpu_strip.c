// SPDX-License-Identifier: MIT
// Cuts an activation in either layout into strips of channels that fit the cache.
#include "device/cpu/plain/cpu_strip.h"

iso__strip_plan iso__strip_plan_of(const iso__cpu *cpu, const iso_tensor *x) {
    iso__strip_plan p = {.v = iso__cpu_view_of(cpu, x)};
    iso__cpu_view *v = &p.v;
    if (x->ndim < 4) {
        v->channels = v->groups = x->shape[1];
        v->height = 1;
        v->width = x->ndim == 3 ? x->shape[2] : 1;
    }
    if (v->inner == 1 && v->height * v->width == 1) { // one cell of all channels per sample
        v->inner = v->channels;
        v->width = v->rows;
        v->groups = v->rows = 1;
    }
    p.across = v->inner > 1;
    p.per_group = (v->inner + ISO__LANES - 1) / ISO__LANES;
    p.width = v->groups * v->inner;
    return p;
}

iso__strip iso__strip_of(const iso__strip_plan *p, int64_t i) {
    const iso__cpu_view *v = &p->v;
    int64_t plane = v->height * v->width, lane = i % p->per_group * ISO__LANES;
    iso__strip s = {.runs = v->rows, .step = p->width * plane, .across = p->across};
    s.first = i / p->per_group * plane * v->inner + lane;
    s.channel = i / p->per_group * v->inner + lane;
    s.lanes = (int)(p->across && v->inner - lane < ISO__LANES ? v->inner - lane : ISO__LANES);
    s.channels = p->across ? s.lanes : 1;
    if (v->channels - s.channel < s.channels) s.channels = (int)(v->channels - s.channel);
    s.stride = p->across ? v->inner : ISO__LANES;
    s.cells = p->across ? plane : plane / ISO__LANES;
    s.rest = p->across ? 0 : (int)(plane % ISO__LANES);
    return s;
}

int64_t iso__strip_count(const iso__strip_plan *p) { return p->v.groups * p->per_group; }

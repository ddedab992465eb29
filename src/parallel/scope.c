// Over whom gradients are averaged: the communicator of each scope, and the memory that suits it.
#include "parallel/reducer_impl.h"

#include "comm/comm_impl.h"

#include <string.h>

const char *iso__scope_name(iso_scope scope) {
    static const char *const name[] = {"world", "node", "rank"};
    return name[scope];
}

iso_status iso__scope_check(iso_scope scope) {
    ISO_CHECK((int)scope >= 0 && scope <= ISO_SCOPE_RANK, ISO_ERR_ARG,
              "unknown scope %d of gradient averaging", (int)scope);
    return ISO_OK;
}

// Memory for gradients that the ranks of a node share. Other scopes use that memory like any other.
static iso_status share_arena(iso_reducer *r) {
    void *arena;
    ISO_TRY(iso__comm_shared_alloc(r->node, r->arena_bytes, &arena));
    memcpy(arena, r->arena, r->arena_bytes);
    iso__free(r->arena);
    r->arena = arena;
    r->arena_shared = true;
    return ISO_OK;
}

static iso_status make_node(iso_reducer *r) {
    if (!r->node) ISO_TRY(iso__comm_create_node(r->world, ISO_SCOPE_NODE, &r->node));
    return ISO_OK;
}

// Where all ranks are on one node, theirs is the faster way for the world too.
static bool world_is_node(const iso_reducer *r) {
    return iso_comm_size(r->node) == iso_comm_size(r->world);
}

void iso__reducer_free_arena(iso_reducer *r) {
    void *arena = r->arena;
    if (r->arena_shared)
        iso__comm_shared_free(r->node, &arena);
    else
        iso__free(arena);
    r->arena = NULL;
}

iso_status iso__reducer_choose_scope(iso_reducer *r, iso_scope scope) {
    if (scope != ISO_SCOPE_RANK) ISO_TRY(make_node(r));
    bool node = scope == ISO_SCOPE_NODE || (scope == ISO_SCOPE_WORLD && world_is_node(r));
    if (node && !r->arena_shared) ISO_TRY(share_arena(r));
    r->comm = node ? r->node : scope == ISO_SCOPE_WORLD ? r->world : NULL;
    r->scope = scope;
    return ISO_OK;
}

iso_status iso__reducer_set_scope(iso_reducer *r, iso_scope scope) {
    ISO_TRY(iso__scope_check(scope));
    ISO_TRY(iso_reducer_finish(r));
    return iso__reducer_choose_scope(r, scope);
}

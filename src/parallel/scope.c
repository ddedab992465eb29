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

// The node's communicator, and memory for gradients that its ranks share. Other scopes use that
// memory like any other.
static iso_status enter_node(iso_reducer *r) {
    void *arena;
    ISO_TRY(iso__comm_create_node(r->world, ISO_SCOPE_NODE, &r->node));
    ISO_TRY(iso__comm_shared_alloc(r->node, r->arena_bytes, &arena));
    memcpy(arena, r->arena, r->arena_bytes);
    iso__free(r->arena);
    r->arena = arena;
    return ISO_OK;
}

void iso__reducer_free_arena(iso_reducer *r) {
    void *arena = r->arena;
    if (r->node)
        iso__comm_shared_free(r->node, &arena);
    else
        iso__free(arena);
    r->arena = NULL;
}

iso_status iso__reducer_choose_scope(iso_reducer *r, iso_scope scope) {
    if (scope == ISO_SCOPE_NODE && !r->node) ISO_TRY(enter_node(r));
    r->comm = scope == ISO_SCOPE_WORLD ? r->world : scope == ISO_SCOPE_NODE ? r->node : NULL;
    return ISO_OK;
}

iso_status iso__reducer_set_scope(iso_reducer *r, iso_scope scope) {
    ISO_TRY(iso__scope_check(scope));
    ISO_TRY(iso_reducer_finish(r));
    return iso__reducer_choose_scope(r, scope);
}

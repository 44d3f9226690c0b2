/* Conditional graph nodes: IF, WHILE and SWITCH over bodies that are graphs, by values that kernels set.
 *
 * A graph declares handles; a node takes a handle. An instance has a table with the value of every handle in it and in
 * its inner instances, so that two instances of one graph share no values.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { POISON = UINT32_MAX }; /* strict mode: a value that is not set yet */

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext ctx,
                                        unsigned initial, unsigned flags) {
  TRY(require_init());
  REQUIRE_POINTER(handle);
  REQUIRE(handle_is(graph, HANDLE_GRAPH), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph", (void *)graph);
  REQUIRE(ctx == NULL || handle_is(ctx, HANDLE_CONTEXT), CUDA_ERROR_INVALID_CONTEXT, "%s: not a live context",
          __func__);
  REQUIRE((flags & ~CU_GRAPH_COND_ASSIGN_DEFAULT) == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  struct condition_handles *all = &graph->conditions;
  condition_handle *items = realloc(all->items, (all->count + 1) * sizeof *items);
  REQUIRE(items != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a condition");
  all->items = items;
  *handle = unique_id();
  items[all->count++] = (condition_handle){
      .handle = *handle, .initial = initial, .has_initial = (flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0};
  return CUDA_SUCCESS;
}

CUresult conditions_copy(CUgraph to, const struct CUgraph_st *from) {
  size_t bytes = from->conditions.count * sizeof *from->conditions.items;
  if (bytes == 0) return CUDA_SUCCESS;
  to->conditions.items = malloc(bytes);
  REQUIRE(to->conditions.items != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a condition");
  memcpy(to->conditions.items, from->conditions.items, bytes);
  to->conditions.count = from->conditions.count;
  return CUDA_SUCCESS;
}

/* The handle, as the graph or an outer graph declares it; NULL if none does. */
static condition_handle *declared(CUgraph graph, CUgraphConditionalHandle handle) {
  for (;; graph = graph->parent->graph) {
    for (size_t i = 0; i < graph->conditions.count; i++)
      if (graph->conditions.items[i].handle == handle) return &graph->conditions.items[i];
    if (graph->parent == NULL) return NULL;
  }
}

/* --- nodes */

static CUresult check_shape(const CUDA_CONDITIONAL_NODE_PARAMS *p) {
  bool good = (p->type == CU_GRAPH_COND_TYPE_IF && (p->size == 1 || p->size == 2)) ||
              (p->type == CU_GRAPH_COND_TYPE_WHILE && p->size == 1) ||
              (p->type == CU_GRAPH_COND_TYPE_SWITCH && p->size > 0 && p->size <= UINT16_MAX);
  REQUIRE(good, CUDA_ERROR_INVALID_VALUE, "a conditional node of type %d with %u bodies", (int)p->type, p->size);
  return CUDA_SUCCESS;
}

static conditional *allocate(CUgraphConditionalHandle handle, CUgraphConditionalNodeType type, unsigned size) {
  conditional *made = calloc(1, sizeof *made + size * sizeof(CUgraph));
  if (made != NULL) *made = (conditional){.handle = handle, .type = type, .size = size};
  return made;
}

CUresult conditional_new(const CUDA_CONDITIONAL_NODE_PARAMS *p, CUgraph graph, conditional **made) {
  TRY(check_shape(p));
  condition_handle *handle = declared(graph, p->handle);
  REQUIRE(handle != NULL, CUDA_ERROR_INVALID_VALUE, "the graph has no conditional handle 0x%llx",
          (unsigned long long)p->handle);
  REQUIRE(!handle->used, CUDA_ERROR_INVALID_VALUE, "conditional handle 0x%llx belongs to another node",
          (unsigned long long)p->handle);
  conditional *c = allocate(p->handle, p->type, p->size);
  CUresult status = c != NULL ? CUDA_SUCCESS : fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a node");
  for (unsigned i = 0; status == CUDA_SUCCESS && i < p->size; i++) status = graph_new(&c->graphs[i]);
  if (status != CUDA_SUCCESS) {
    conditional_delete(c);
    return status;
  }
  *made = c;
  return CUDA_SUCCESS;
}

CUresult conditional_clone(const conditional *from, conditional **made) {
  conditional *c = allocate(from->handle, from->type, from->size);
  CUresult status = c != NULL ? CUDA_SUCCESS : fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a node");
  for (unsigned i = 0; status == CUDA_SUCCESS && i < from->size; i++)
    status = graph_clone(from->graphs[i], &c->graphs[i]);
  if (status != CUDA_SUCCESS) {
    conditional_delete(c);
    return status;
  }
  *made = c;
  return CUDA_SUCCESS;
}

void conditional_own(const conditional *c, CUgraphNode node) {
  condition_handle *handle = declared(node->graph, c->handle);
  if (handle != NULL) handle->used = true;
  for (unsigned i = 0; i < c->size; i++) c->graphs[i]->parent = node;
}

void conditional_delete(conditional *c) {
  for (unsigned i = 0; c != NULL && i < c->size; i++) {
    CUgraph graph = c->graphs[i];
    condition_handle *handle = graph != NULL && graph->parent != NULL ? declared(graph, c->handle) : NULL;
    if (handle != NULL) handle->used = false;
    if (graph != NULL) graph_delete(graph);
  }
  free(c);
}

/* --- instances: the table of values */

static size_t count_handles(CUgraph graph) {
  size_t count = graph->conditions.count;
  for (size_t i = 0; i < graph->nodes.count; i++) {
    CUgraphNode node = graph->nodes.items[i];
    if (node != NULL && node->op.kind == OP_CHILD) count += count_handles(node->op.child);
    if (node == NULL || node->op.kind != OP_CONDITIONAL) continue;
    for (unsigned j = 0; j < node->op.conditional->size; j++) count += count_handles(node->op.conditional->graphs[j]);
  }
  return count;
}

static CUresult gather(CUgraph graph, sg_conditions *table) {
  for (size_t i = 0; i < graph->conditions.count; i++) {
    const condition_handle *c = &graph->conditions.items[i];
    REQUIRE(c->used, CUDA_ERROR_INVALID_VALUE, "conditional handle 0x%llx belongs to no node",
            (unsigned long long)c->handle);
    table->items[table->count++] = (sg_condition){
        .handle = c->handle, .initial = c->initial, .has_initial = c->has_initial};
  }
  for (size_t i = 0; i < graph->nodes.count; i++) {
    CUgraphNode node = graph->nodes.items[i];
    if (node != NULL && node->op.kind == OP_CHILD) TRY(gather(node->op.child, table));
    if (node == NULL || node->op.kind != OP_CONDITIONAL) continue;
    for (unsigned j = 0; j < node->op.conditional->size; j++) TRY(gather(node->op.conditional->graphs[j], table));
  }
  return CUDA_SUCCESS;
}

CUresult conditions_gather(CUgraph graph, sg_conditions **made) {
  size_t count = count_handles(graph);
  *made = NULL;
  if (count == 0) return CUDA_SUCCESS;
  sg_conditions *table = calloc(1, sizeof *table + count * sizeof *table->items);
  REQUIRE(table != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for conditions");
  CUresult status = gather(graph, table);
  if (status == CUDA_SUCCESS) *made = table;
  else free(table);
  return status;
}

void conditions_begin(sg_conditions *table) {
  bool poisoned = atomic_load_explicit(&strict, memory_order_relaxed);
  for (uint32_t i = 0; i < table->count; i++) {
    sg_condition *c = &table->items[i];
    if (c->has_initial || poisoned) __atomic_store_n(&c->value, c->has_initial ? c->initial : POISON, __ATOMIC_RELAXED);
  }
}

void conditions_delete(sg_conditions *table) {
  if (table == NULL) return;
  if (atomic_load_explicit(&strict, memory_order_relaxed))
    race_forget((uintptr_t)table->items, table->count * sizeof *table->items);
  free(table);
}

/* --- instances: the bodies */

/* CUDA's rule: a body only computes and moves data. */
static CUresult check_body(CUgraph graph) {
  for (size_t i = 0; i < graph->nodes.count; i++) {
    CUgraphNode node = graph->nodes.items[i];
    if (node == NULL) continue;
    enum op_kind kind = node->op.kind;
    bool allowed = kind == OP_KERNEL || kind == OP_EMPTY || kind == OP_FILL || kind == OP_COPY || kind == OP_CHILD ||
                   kind == OP_CONDITIONAL;
    REQUIRE(allowed, CUDA_ERROR_INVALID_VALUE, "a node of type %d cannot lie in a conditional body",
            (int)node_type(&node->op));
    if (kind == OP_CHILD) TRY(check_body(node->op.child));
  }
  return CUDA_SUCCESS;
}

CUresult branch_new(const conditional *from, CUgraphExec outer, branch **made) {
  branch *b = calloc(1, sizeof *b + from->size * sizeof *b->execs);
  REQUIRE(b != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a graph instance");
  *b = (branch){.type = from->type, .size = from->size};
  *made = b; /* the step owns it and deletes it */
  for (uint32_t i = 0; outer->conditions != NULL && i < outer->conditions->count; i++)
    if (outer->conditions->items[i].handle == from->handle) b->condition = &outer->conditions->items[i];
  REQUIRE(b->condition != NULL, CUDA_ERROR_INVALID_VALUE, "the graph has no conditional handle 0x%llx",
          (unsigned long long)from->handle);
  for (unsigned i = 0; i < from->size; i++) {
    TRY(check_body(from->graphs[i]));
    TRY(exec_inside(from->graphs[i], outer, &b->execs[i]));
  }
  return CUDA_SUCCESS;
}

void branch_delete(branch *b) {
  for (unsigned i = 0; i < b->size; i++)
    if (b->execs[i] != NULL) exec_delete(b->execs[i]);
  free(b);
}

static CUresult loop(const branch *b, CUcontext ctx) {
  while (__atomic_load_n(&b->condition->value, __ATOMIC_RELAXED) != 0) {
    if (atomic_load_explicit(&ctx->dev->stop, memory_order_relaxed) != 0)
      return context_fail(ctx, fail(CUDA_ERROR_LAUNCH_TIMEOUT, "a WHILE node was cancelled"));
    TRY(exec_run(b->execs[0], ctx));
    if (ctx->dev->model != NULL) work_keep_pace(ctx->dev); /* otherwise a loop that must end could sleep for hours */
  }
  return CUDA_SUCCESS;
}

CUresult branch_run(const branch *b, CUcontext ctx) {
  if (b->type == CU_GRAPH_COND_TYPE_WHILE) return loop(b, ctx);
  uint32_t value = __atomic_load_n(&b->condition->value, __ATOMIC_RELAXED);
  if (b->type == CU_GRAPH_COND_TYPE_IF) value = value == 0; /* the second body is for 0 */
  return value < b->size ? exec_run(b->execs[value], ctx) : CUDA_SUCCESS;
}

CUgraphExecUpdateResult branch_takes(branch *b, CUgraphNode node, bool apply) {
  const conditional *c = node->op.conditional;
  if (b->type != c->type || b->size != c->size) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  const condition_handle *handle = declared(node->graph, c->handle);
  if (handle == NULL) return CU_GRAPH_EXEC_UPDATE_ERROR;
  if (!apply) return CU_GRAPH_EXEC_UPDATE_SUCCESS;
  b->condition->handle = handle->handle; /* the new kernels use this handle */
  b->condition->initial = handle->initial;
  b->condition->has_initial = handle->has_initial;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

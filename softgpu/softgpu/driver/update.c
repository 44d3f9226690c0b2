/* cuGraphExecUpdate: copies the parameters of a graph's nodes into an instance made from an equal graph.
 *
 * Nodes correspond by their order of creation. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* The live nodes of a graph numbered 0, 1, ... by age: rank[index]; and for an instance, likewise. */
static void rank_graph(CUgraph graph, uint32_t *rank) {
  for (uint32_t i = 0, next = 0; i < graph->nodes.count; i++)
    if (graph->nodes.items[i] != NULL) rank[i] = next++;
}

static void rank_exec(CUgraphExec exec, uint32_t *rank, step **by_rank) {
  for (uint32_t i = 0, next = 0; i < exec->index_count; i++)
    if (exec->position[i] != UINT32_MAX) {
      by_rank[next] = &exec->steps[exec->position[i]];
      rank[i] = next++;
    }
}

static bool same_needs(CUgraphExec exec, const step *s, const uint32_t *exec_rank, CUgraphNode node,
                       const uint32_t *rank) {
  if (s->needs_count != node->needs.count) return false;
  for (size_t i = 0; i < node->needs.count; i++) {
    bool found = false;
    for (uint32_t j = 0; j < s->needs_count && !found; j++)
      found = exec_rank[exec->needs[s->needs_from + j]] == rank[node->needs.items[i]->index];
    if (!found) return false;
  }
  return true;
}

static CUgraphExecUpdateResult update(CUgraphExec exec, CUgraph graph, bool apply, CUgraphNode *culprit);

static CUgraphExecUpdateResult update_branch(branch *b, CUgraphNode node, bool apply, CUgraphNode *culprit) {
  CUgraphExecUpdateResult result = branch_takes(b, node, apply);
  for (unsigned i = 0; i < b->size && result == CU_GRAPH_EXEC_UPDATE_SUCCESS; i++)
    result = update(b->execs[i], node->op.conditional->graphs[i], apply, culprit);
  return result;
}

static CUgraphExecUpdateResult compare_kernels(const kernel_call *old, const kernel_call *fresh) {
  if (old->launch.cooperative != fresh->launch.cooperative) return CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
  return kernel_check_resident(fresh) == CUDA_SUCCESS ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR;
}

/* One node: compared (apply false), then copied over. */
static CUgraphExecUpdateResult update_step(step *s, CUgraphNode node, bool apply, CUgraphNode *culprit) {
  *culprit = node;
  if (node_type(&s->op) != node_type(&node->op)) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  if (s->op.kind == OP_EXEC) return update(s->op.exec, node->op.child, apply, culprit);
  if (s->op.kind == OP_BRANCH) return update_branch(s->op.branch, node, apply, culprit);
  if (s->op.kind == OP_GRAPH_ALLOC || s->op.kind == OP_GRAPH_FREE)
    return s->op.block == node->op.block ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
  if (!apply && s->op.kind == OP_KERNEL) return compare_kernels(&s->op.kernel, &node->op.kernel);
  if (!apply) return CU_GRAPH_EXEC_UPDATE_SUCCESS;
  if (s->op.kind != OP_KERNEL) {
    s->op = node->op;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
  }
  const kernel *kern = node->op.kernel.kern;
  kernel_call call = node->op.kernel;
  if (kernel_compile(&call) != CUDA_SUCCESS) return CU_GRAPH_EXEC_UPDATE_ERROR;
  void *storage = s->storage;
  if (kern != s->op.kernel.kern) {
    if (kernel_storage(kern, node->storage, &storage) != CUDA_SUCCESS) return CU_GRAPH_EXEC_UPDATE_ERROR;
    free(s->storage);
    s->storage = storage;
  } else {
    memcpy(storage, node->storage, kern->info->param_bytes);
  }
  sg_conditions *conditions = s->op.kernel.launch.conditions;
  s->op.kernel = call;
  s->op.kernel.launch.params = storage;
  s->op.kernel.launch.conditions = conditions;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static CUgraphExecUpdateResult update_ranked(CUgraphExec exec, CUgraph graph, bool apply, CUgraphNode *culprit,
                                             const uint32_t *exec_rank, const uint32_t *rank, step **by_rank) {
  for (size_t i = 0; i < graph->nodes.count; i++) {
    CUgraphNode node = graph->nodes.items[i];
    if (node == NULL) continue;
    step *s = by_rank[rank[i]];
    *culprit = node;
    if (!same_needs(exec, s, exec_rank, node, rank)) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    CUgraphExecUpdateResult result = update_step(s, node, apply, culprit);
    if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return result;
  }
  *culprit = NULL;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static CUgraphExecUpdateResult update(CUgraphExec exec, CUgraph graph, bool apply, CUgraphNode *culprit) {
  if (graph->live != exec->step_count) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  uint32_t *ranks = calloc(exec->index_count + graph->nodes.count + 1, sizeof *ranks);
  step **by_rank = calloc(exec->step_count + 1, sizeof *by_rank);
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_ERROR;
  if (ranks != NULL && by_rank != NULL) {
    rank_exec(exec, ranks, by_rank);
    rank_graph(graph, ranks + exec->index_count);
    result = update_ranked(exec, graph, apply, culprit, ranks, ranks + exec->index_count, by_rank);
  }
  free(ranks);
  free(by_rank);
  return result;
}

CUresult exec_take(CUgraphExec exec, CUgraph graph) {
  CUgraphNode culprit = NULL;
  bool fits = update(exec, graph, false, &culprit) == CU_GRAPH_EXEC_UPDATE_SUCCESS;
  REQUIRE(fits && update(exec, graph, true, &culprit) == CU_GRAPH_EXEC_UPDATE_SUCCESS, CUDA_ERROR_INVALID_VALUE,
          "the graph differs from the embedded one in more than its nodes' parameters");
  return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
  CUgraphNode culprit = NULL;
  TRY(require_init());
  REQUIRE(handle_is(exec, HANDLE_EXEC), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph instance", (void *)exec);
  REQUIRE_POINTER(info);
  REQUIRE(handle_is(graph, HANDLE_GRAPH), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph", (void *)graph);
  TRY(exec_wait(exec));
  CUgraphExecUpdateResult result = update(exec, graph, false, &culprit); /* all or nothing */
  if (result == CU_GRAPH_EXEC_UPDATE_SUCCESS) result = update(exec, graph, true, &culprit);
  *info = (CUgraphExecUpdateResultInfo){.result = result, .errorNode = culprit};
  REQUIRE(result == CU_GRAPH_EXEC_UPDATE_SUCCESS, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
          "the graph differs from the instance in more than its nodes' parameters (%d)", (int)result);
  return CUDA_SUCCESS;
}

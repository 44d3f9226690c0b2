/* Changes to graph instances: they wait for the launches under way, and apply to later launches. */
#include "driver.h"

static step *find_step(CUgraphExec exec, CUgraphNode node);

static step *find_in_branch(const branch *b, CUgraphNode node) {
  step *found = NULL;
  for (unsigned i = 0; i < b->size && found == NULL; i++) found = find_step(b->execs[i], node);
  return found;
}

/* The step of a node of the graph from which exec, or an instance embedded in it, was made; NULL if there is none. */
static step *find_step(CUgraphExec exec, CUgraphNode node) {
  if (node->graph->id == exec->graph_id) {
    bool known = node->index < exec->index_count && exec->position[node->index] != UINT32_MAX;
    return known ? &exec->steps[exec->position[node->index]] : NULL;
  }
  step *found = NULL;
  for (size_t i = 0; i < exec->step_count && found == NULL; i++)
    if (exec->steps[i].op.kind == OP_EXEC) found = find_step(exec->steps[i].op.exec, node);
    else if (exec->steps[i].op.kind == OP_BRANCH) found = find_in_branch(exec->steps[i].op.branch, node);
  return found;
}

static CUresult step_get(CUgraphExec exec, CUgraphNode node, step **found) {
  TRY(exec_get(exec));
  REQUIRE(handle_is(node, HANDLE_NODE), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph node", (void *)node);
  *found = find_step(exec, node);
  REQUIRE(*found != NULL, CUDA_ERROR_INVALID_VALUE, "the graph instance was not made from this node");
  return CUDA_SUCCESS;
}

static CUresult step_get_kind(CUgraphExec exec, CUgraphNode node, enum op_kind kind, step **found) {
  TRY(step_get(exec, node, found));
  REQUIRE((*found)->op.kind == kind, CUDA_ERROR_INVALID_VALUE, "the node is of type %d", (int)node_type(&(*found)->op));
  return CUDA_SUCCESS;
}

#define CHANGE(exec, call) \
  do { \
    TRY(exec_wait(exec)); \
    return (call); \
  } while (0)

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p) {
  step *s;
  REQUIRE_POINTER(p);
  TRY(step_get_kind(exec, node, OP_KERNEL, &s));
  CHANGE(exec, set_kernel(&s->op, &s->storage, p));
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *p, CUcontext ctx) {
  step *s;
  (void)ctx;
  REQUIRE_POINTER(p);
  TRY(step_get_kind(exec, node, OP_COPY, &s));
  CHANGE(exec, set_copy(&s->op, p));
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p,
                                        CUcontext ctx) {
  step *s;
  (void)ctx;
  REQUIRE_POINTER(p);
  TRY(step_get_kind(exec, node, OP_FILL, &s));
  CHANGE(exec, set_fill(&s->op, p));
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p) {
  step *s;
  REQUIRE_POINTER(p);
  TRY(step_get_kind(exec, node, OP_HOST, &s));
  CHANGE(exec, set_host(&s->op, p));
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  step *s;
  TRY(step_get_kind(exec, node, OP_RECORD, &s));
  CHANGE(exec, set_event(&s->op, event));
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  step *s;
  TRY(step_get_kind(exec, node, OP_WAIT, &s));
  CHANGE(exec, set_event(&s->op, event));
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  step *s;
  CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child}};
  TRY(step_get_kind(exec, node, OP_EXEC, &s));
  CHANGE(exec, set_any(&s->op, &s->storage, &p));
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p) {
  step *s;
  REQUIRE_POINTER(p);
  TRY(step_get(exec, node, &s));
  CHANGE(exec, set_any(&s->op, &s->storage, p));
}

static bool can_disable(const op *o) { return o->kind == OP_KERNEL || o->kind == OP_COPY || o->kind == OP_FILL; }

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned enabled) {
  step *s;
  TRY(step_get(exec, node, &s));
  REQUIRE(can_disable(&s->op), CUDA_ERROR_INVALID_VALUE, "a node of type %d cannot be disabled",
          (int)node_type(&s->op));
  CHANGE(exec, (s->enabled = enabled != 0, CUDA_SUCCESS));
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned *enabled) {
  step *s;
  REQUIRE_POINTER(enabled);
  TRY(step_get(exec, node, &s));
  REQUIRE(can_disable(&s->op), CUDA_ERROR_INVALID_VALUE, "a node of type %d cannot be disabled",
          (int)node_type(&s->op));
  *enabled = s->enabled;
  return CUDA_SUCCESS;
}

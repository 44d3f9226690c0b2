/* Graph instances: the nodes in an order that the edges allow, ready to run (exec_run.c), and changes to them. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static CUresult fill_step(step *made, const struct CUgraphNode_st *node, CUgraphExec exec) {
  made->op = node->op;
  made->index = node->index;
  made->enabled = true;
  for (size_t i = 0; i < node->needs.count; i++)
    exec->needs[made->needs_from + made->needs_count++] = node->needs.items[i]->index;
  if (made->op.kind == OP_CHILD) {
    made->op.kind = OP_EMPTY; /* until there is an inner instance to delete */
    CUgraphExec inner;
    TRY(exec_inside(node->op.child, exec, &inner));
    made->op = (op){.kind = OP_EXEC, .exec = inner};
    exec->records |= inner->records;
  }
  if (made->op.kind == OP_CONDITIONAL) {
    branch *b = NULL;
    made->op.kind = OP_EMPTY; /* likewise */
    CUresult status = branch_new(node->op.conditional, exec, &b);
    if (b != NULL) made->op = (op){.kind = OP_BRANCH, .branch = b};
    TRY(status);
  }
  if (made->op.kind == OP_GRAPH_ALLOC || made->op.kind == OP_GRAPH_FREE) {
    graph_block_keep(made->op.block);
    REQUIRE(exec->outermost, CUDA_ERROR_NOT_SUPPORTED, "an embedded graph allocates no memory");
    exec->allocates = true;
  }
  exec->records |= made->op.kind == OP_RECORD;
  if (made->op.kind == OP_KERNEL) {
    TRY(kernel_compile(&made->op.kernel));
    TRY(kernel_storage(made->op.kernel.kern, made->op.kernel.launch.params, &made->storage));
    made->op.kernel.launch.params = made->storage;
    made->op.kernel.launch.conditions = exec->conditions;
  }
  return CUDA_SUCCESS;
}

static CUresult fill_exec(CUgraphExec exec, CUgraph graph, CUgraphNode *order) {
  uint32_t edges = 0;
  TRY(graph_order(graph, order));
  for (size_t i = 0; i < graph->live; i++) edges += (uint32_t)order[i]->needs.count;
  exec->steps = calloc(graph->live + 1, sizeof *exec->steps);
  exec->position = malloc((graph->nodes.count + 1) * sizeof *exec->position);
  exec->needs = malloc((edges + 1) * sizeof *exec->needs);
  REQUIRE(exec->steps && exec->position && exec->needs, CUDA_ERROR_OUT_OF_MEMORY,
          "no host memory for a graph instance");
  exec->index_count = graph->nodes.count;
  memset(exec->position, 0xff, exec->index_count * sizeof *exec->position);
  for (uint32_t i = 0, from = 0; i < graph->live; i++) {
    exec->position[order[i]->index] = i;
    exec->steps[i].needs_from = from;
    exec->step_count++;
    TRY(fill_step(&exec->steps[i], order[i], exec));
    from += exec->steps[i].needs_count;
  }
  return objects_copy(&exec->objects, &graph->objects);
}

/* outer: NULL, or the instance that will contain the new one. */
static CUresult make(CUgraph graph, unsigned long long flags, const struct CUgraphExec_st *outer, CUgraphExec *exec) {
  CUgraphExec made = handle_new(HANDLE_EXEC, sizeof *made);
  REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a graph instance");
  atomic_init(&made->references, 1);
  made->graph_id = graph->id;
  made->flags = flags;
  made->outermost = outer == NULL;
  CUresult status = CUDA_SUCCESS;
  if (outer != NULL) made->conditions = outer->conditions;
  else status = conditions_gather(graph, &made->conditions);
  CUgraphNode *order = malloc((graph->live + 1) * sizeof *order);
  if (order == NULL) status = fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory");
  if (status == CUDA_SUCCESS) status = fill_exec(made, graph, order);
  if (status == CUDA_SUCCESS) status = exec_check_contexts(made);
  free(order);
  if (status != CUDA_SUCCESS) {
    exec_delete(made);
    return status;
  }
  *exec = made;
  return CUDA_SUCCESS;
}

CUresult exec_new(CUgraph graph, unsigned long long flags, CUgraphExec *exec) { return make(graph, flags, NULL, exec); }

CUresult exec_inside(CUgraph graph, CUgraphExec outer, CUgraphExec *exec) { return make(graph, 0, outer, exec); }

void exec_delete(CUgraphExec exec) {
  if (atomic_fetch_sub(&exec->references, 1) > 1) return; /* launches under way keep it */
  pthread_mutex_lock(&work_lock);
  fence_drop_locked(exec->last);
  pthread_mutex_unlock(&work_lock);
  for (size_t i = 0; i < exec->step_count; i++) {
    if (exec->steps[i].op.kind == OP_EXEC) exec_delete(exec->steps[i].op.exec);
    if (exec->steps[i].op.kind == OP_BRANCH) branch_delete(exec->steps[i].op.branch);
    if (exec->steps[i].op.kind == OP_GRAPH_ALLOC || exec->steps[i].op.kind == OP_GRAPH_FREE)
      graph_block_drop(exec->steps[i].op.block);
    free(exec->steps[i].storage);
  }
  free(exec->steps);
  free(exec->position);
  free(exec->needs);
  if (exec->outermost) conditions_delete(exec->conditions);
  objects_release(&exec->objects);
  handle_kill(exec);
  handle_bury(exec, HANDLE_EXEC);
}

static CUresult check_step(const op *o) {
  if (o->kind == OP_EXEC) return exec_check_contexts(o->exec);
  for (unsigned i = 0; o->kind == OP_BRANCH && i < o->branch->size; i++) TRY(exec_check_contexts(o->branch->execs[i]));
  if (o->kind != OP_KERNEL || o->kernel.sms == NULL) return CUDA_SUCCESS;
  CUcontext ctx = o->kernel.ctx;
  REQUIRE(handle_is(ctx, HANDLE_CONTEXT) && ctx->id == o->kernel.ctx_id, CUDA_ERROR_INVALID_CONTEXT,
          "kernel %s: the green context of its node is destroyed", o->kernel.kern->info->name);
  return CUDA_SUCCESS;
}

CUresult exec_check_contexts(const struct CUgraphExec_st *exec) {
  for (size_t i = 0; i < exec->step_count; i++) TRY(check_step(&exec->steps[i].op));
  return CUDA_SUCCESS;
}

/* --- calls */

CUresult exec_get(CUgraphExec exec) {
  TRY(require_init());
  REQUIRE(handle_is(exec, HANDLE_EXEC), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph instance", (void *)exec);
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  TRY(require_init());
  REQUIRE_POINTER(exec);
  REQUIRE(handle_is(graph, HANDLE_GRAPH), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph", (void *)graph);
  REQUIRE(!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH), CUDA_ERROR_NOT_SUPPORTED,
          "graphs launched by kernels are not supported");
  return exec_new(graph, flags, exec);
}

/* The first form: it has a result for the node that causes an error, which this driver never sets. */
CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *culprit, char *log, size_t log_bytes) {
  if (culprit != NULL) *culprit = NULL;
  if (log != NULL && log_bytes > 0) *log = 0;
  return cuGraphInstantiateWithFlags(exec, graph, 0);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p) {
  REQUIRE_POINTER(p);
  CUresult status = cuGraphInstantiateWithFlags(exec, graph, p->flags);
  p->hErrNode_out = NULL;
  p->result_out = status == CUDA_SUCCESS               ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                  : status == CUDA_ERROR_INVALID_VALUE ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                                       : CUDA_GRAPH_INSTANTIATE_ERROR;
  return status;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  TRY(exec_get(exec));
  handle_kill(exec);
  exec_delete(exec);
  return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags) {
  REQUIRE_POINTER(flags);
  TRY(exec_get(exec));
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  CUstream s;
  TRY(stream_get(stream, &s));
  TRY(capture_forbids(s));
  return exec_get(exec); /* there is no upload */
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  CUstream s;
  TRY(stream_get(stream, &s));
  TRY(exec_get(exec));
  TRY(capture_forbids(s));
  TRY(exec_check_contexts(exec));
  TRY(graph_memory_launch(exec));
  return submit(s, &(op){.kind = OP_EXEC, .exec = exec}, false);
}

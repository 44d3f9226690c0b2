/* CUDA's node parameters, turned into operations; shared by graph nodes and by the steps of graph instances. */
#include "driver.h"

#include <stdlib.h>

/* A change of only the parameters of a kernel is frequent, and allocates nothing. */
CUresult set_kernel(op *o, void **storage, const CUDA_KERNEL_NODE_PARAMS *p) {
  kernel *kern;
  CUcontext ctx;
  kernel_call call;
  void *fresh = NULL;
  TRY(context_or_current(p->func == NULL ? p->ctx : NULL, &ctx)); /* with a CUfunction, CUDA ignores it */
  TRY(context_status(ctx));
  TRY(kernel_get(p->func != NULL ? (const void *)p->func : (const void *)p->kern, &kern));
  const uint32_t grid[3] = {p->gridDimX, p->gridDimY, p->gridDimZ},
                 block[3] = {p->blockDimX, p->blockDimY, p->blockDimZ};
  TRY(kernel_prepare(kern, ctx, grid, block, p->sharedMemBytes, &call));
  call.launch.cooperative = o->kernel.launch.cooperative; /* an attribute of the node */
  bool runs = o->kernel.launch.fn != NULL; /* a step of an instance runs; a node needs no code yet */
  TRY(runs ? kernel_compile(&call) : kernel_announce(&call));
  bool same = *storage != NULL && o->kernel.kern == kern;
  if (!same) TRY(kernel_storage(kern, NULL, &fresh));
  CUresult status = kernel_pack(kern, (kernel_args){p->kernelParams, p->extra}, same ? *storage : fresh);
  if (status != CUDA_SUCCESS) {
    free(fresh);
    return status;
  }
  if (!same) {
    free(*storage);
    *storage = fresh;
  }
  call.launch.params = *storage;
  call.launch.conditions = o->kernel.launch.conditions; /* NULL except in an instance */
  o->kernel = call;
  return CUDA_SUCCESS;
}

CUresult set_copy(op *o, const CUDA_MEMCPY3D *p) {
  copy c;
  TRY(copy_from_3d(p, &c));
  o->copy = c;
  return CUDA_SUCCESS;
}

CUresult set_fill(op *o, const CUDA_MEMSET_NODE_PARAMS *p) {
  fill f = {.dst = (uint8_t *)(uintptr_t)p->dst,
            .value = p->value,
            .element_bytes = p->elementSize,
            .width = p->width,
            .height = p->height,
            .pitch = p->pitch};
  TRY(fill_check(&f));
  o->fill = f;
  return CUDA_SUCCESS;
}

CUresult set_host(op *o, const CUDA_HOST_NODE_PARAMS *p) {
  REQUIRE(p->fn != NULL, CUDA_ERROR_INVALID_VALUE, "a host node needs a function");
  o->host.fn = p->fn;
  o->host.data = p->userData;
  return CUDA_SUCCESS;
}

CUresult set_event(op *o, CUevent event) {
  REQUIRE_HANDLE(event, HANDLE_EVENT);
  o->event = event;
  return CUDA_SUCCESS;
}

/* Replaces an embedded graph; in an instance, takes the parameters of a graph with the same topology. */
static CUresult set_graph(op *o, CUgraph graph) {
  REQUIRE(handle_is(graph, HANDLE_GRAPH), CUDA_ERROR_INVALID_VALUE, "the child is not a live graph");
  if (o->kind == OP_EXEC) return exec_take(o->exec, graph);
  CUgraph old = o->child, clone;
  TRY(graph_clone(graph, &clone));
  clone->parent = old->parent;
  o->child = clone;
  graph_delete(old);
  return CUDA_SUCCESS;
}

CUresult set_any(op *o, void **storage, const CUgraphNodeParams *p) {
  REQUIRE(node_type(o) == p->type, CUDA_ERROR_INVALID_VALUE, "parameters of type %d for a node of type %d",
          (int)p->type, (int)node_type(o));
  switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return set_kernel(o, storage, (const void *)&p->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return set_copy(o, &p->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: return set_fill(o, (const void *)&p->memset); /* ctx comes last */
    case CU_GRAPH_NODE_TYPE_HOST: return set_host(o, (const void *)&p->host);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return set_event(o, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return set_event(o, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_GRAPH: return set_graph(o, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    default: return fail(CUDA_ERROR_NOT_SUPPORTED, "parameters of a node of type %d cannot be set", (int)p->type);
  }
}

CUgraphNodeType node_type(const op *o) {
  switch (o->kind) {
    case OP_KERNEL: return CU_GRAPH_NODE_TYPE_KERNEL;
    case OP_COPY: return CU_GRAPH_NODE_TYPE_MEMCPY;
    case OP_FILL: return CU_GRAPH_NODE_TYPE_MEMSET;
    case OP_HOST: return CU_GRAPH_NODE_TYPE_HOST;
    case OP_RECORD: return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    case OP_WAIT: return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    case OP_CHILD:
    case OP_EXEC: return CU_GRAPH_NODE_TYPE_GRAPH;
    case OP_CONDITIONAL:
    case OP_BRANCH: return CU_GRAPH_NODE_TYPE_CONDITIONAL;
    case OP_GRAPH_ALLOC: return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    case OP_GRAPH_FREE: return CU_GRAPH_NODE_TYPE_MEM_FREE;
    case OP_EMPTY:
    case OP_AWAIT:
    case OP_FREE:
    case OP_WAIT_WORD:
    case OP_WRITE_WORD: break; /* graphs hold only the first of these */
  }
  return CU_GRAPH_NODE_TYPE_EMPTY;
}

/* Graph nodes: adding each type, and reading and changing a node's operation. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static CUresult node_get(CUgraphNode node, enum op_kind kind) {
  TRY(require_init());
  REQUIRE(handle_is(node, HANDLE_NODE), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph node", (void *)node);
  REQUIRE(node->op.kind == kind, CUDA_ERROR_INVALID_VALUE, "the node is of type %d", (int)node_type(&node->op));
  return CUDA_SUCCESS;
}

static CUresult kind_of(CUgraphNodeType type, enum op_kind *kind) {
  static const enum op_kind kinds[] = {
      [CU_GRAPH_NODE_TYPE_KERNEL] = OP_KERNEL,   [CU_GRAPH_NODE_TYPE_MEMCPY] = OP_COPY,
      [CU_GRAPH_NODE_TYPE_MEMSET] = OP_FILL,     [CU_GRAPH_NODE_TYPE_HOST] = OP_HOST,
      [CU_GRAPH_NODE_TYPE_GRAPH] = OP_CHILD,     [CU_GRAPH_NODE_TYPE_EMPTY] = OP_EMPTY,
      [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = OP_WAIT, [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = OP_RECORD,
      [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = OP_GRAPH_ALLOC, [CU_GRAPH_NODE_TYPE_MEM_FREE] = OP_GRAPH_FREE,
      [CU_GRAPH_NODE_TYPE_CONDITIONAL] = OP_CONDITIONAL};
  bool known = (unsigned)type < sizeof kinds / sizeof *kinds && (type == CU_GRAPH_NODE_TYPE_KERNEL || kinds[type] != 0);
  REQUIRE(known, CUDA_ERROR_NOT_SUPPORTED, "nodes of type %d are not supported",
          (int)type);
  *kind = kinds[type];
  return CUDA_SUCCESS;
}

static CUresult set_child(op *o, const CUDA_CHILD_GRAPH_NODE_PARAMS *p) {
  REQUIRE(handle_is(p->graph, HANDLE_GRAPH), CUDA_ERROR_INVALID_VALUE, "the child is not a live graph");
  bool move = p->ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  REQUIRE(!move || p->graph->parent == NULL, CUDA_ERROR_INVALID_VALUE, "the child belongs to a node already");
  o->child = p->graph;
  return move ? CUDA_SUCCESS : graph_clone(p->graph, &o->child);
}

/* Sets the operation of a new node, with the objects that the node will own. */
static CUresult fill_op(op *o, void **storage, CUgraph graph, CUgraphNodeParams *p) {
  CUcontext ctx;
  switch (o->kind) {
    case OP_CHILD: return set_child(o, &p->graph);
    case OP_CONDITIONAL: return conditional_new(&p->conditional, graph, &o->conditional);
    case OP_GRAPH_ALLOC: TRY(current_context(&ctx)); return graph_block_new(&p->alloc, ctx, &o->block);
    case OP_GRAPH_FREE: return set_graph_free(o, graph, p->free.dptr);
    default: return set_any(o, storage, p);
  }
}

/* Writes the results of the creation of some nodes into the caller's parameters. */
static void fill_outputs(const op *o, CUgraphNodeParams *p) {
  if (o->kind == OP_CHILD) p->graph.graph = o->child; /* the node's own */
  if (o->kind == OP_CONDITIONAL) p->conditional.phGraph_out = o->conditional->graphs;
  if (o->kind == OP_GRAPH_ALLOC) p->alloc.dptr = o->block->base;
}

static void undo(const op *o, const CUgraphNodeParams *p) {
  if (o->kind == OP_CHILD && p->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) graph_delete(o->child);
  if (o->kind == OP_CONDITIONAL) conditional_delete(o->conditional);
  if (o->kind == OP_GRAPH_ALLOC || o->kind == OP_GRAPH_FREE) graph_block_drop(o->block);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, const CUgraphEdgeData *edges,
                           size_t count, CUgraphNodeParams *p) {
  op o = {0};
  void *storage = NULL;
  (void)edges;
  TRY(require_init());
  REQUIRE_POINTER(node);
  REQUIRE_POINTER(p);
  REQUIRE(handle_is(graph, HANDLE_GRAPH), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph", (void *)graph);
  TRY(kind_of(p->type, &o.kind));
  TRY(fill_op(&o, &storage, graph, p));
  CUresult status = graph_add_node(graph, needs, count, &o, node); /* which copies the storage */
  free(storage);
  if (status == CUDA_SUCCESS) fill_outputs(&o, p);
  else undo(&o, p);
  return status;
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *p) {
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
  REQUIRE_POINTER(p);
  memcpy(&any.kernel, p, sizeof *p);
  return cuGraphAddNode_v2(node, graph, needs, NULL, count, &any);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                              const CUDA_MEMCPY3D *p, CUcontext ctx) {
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
  REQUIRE_POINTER(p);
  any.memcpy = (CUDA_MEMCPY_NODE_PARAMS){.copyCtx = ctx, .copyParams = *p};
  return cuGraphAddNode_v2(node, graph, needs, NULL, count, &any);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx) {
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
  REQUIRE_POINTER(p);
  memcpy(&any.memset, p, sizeof *p);
  any.memset.ctx = ctx;
  return cuGraphAddNode_v2(node, graph, needs, NULL, count, &any);
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                            const CUDA_HOST_NODE_PARAMS *p) {
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_HOST};
  REQUIRE_POINTER(p);
  memcpy(&any.host, p, sizeof *p);
  return cuGraphAddNode_v2(node, graph, needs, NULL, count, &any);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                  CUgraph child) {
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE}};
  return cuGraphAddNode_v2(node, graph, needs, NULL, count, &any);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count) {
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
  return cuGraphAddNode_v2(node, graph, needs, NULL, count, &any);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                   CUevent event) {
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord = {event}};
  return cuGraphAddNode_v2(node, graph, needs, NULL, count, &any);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                 CUevent event) {
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .eventWait = {event}};
  return cuGraphAddNode_v2(node, graph, needs, NULL, count, &any);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
  TRY(require_init());
  REQUIRE_POINTER(type);
  REQUIRE(handle_is(node, HANDLE_NODE), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph node", (void *)node);
  *type = node_type(&node->op);
  return CUDA_SUCCESS;
}

/* --- the operation of a node */

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *p) {
  TRY(require_init());
  REQUIRE_POINTER(p);
  REQUIRE(handle_is(node, HANDLE_NODE), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph node", (void *)node);
  return set_any(&node->op, &node->storage, p);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *p) {
  REQUIRE_POINTER(p);
  TRY(node_get(node, OP_KERNEL));
  const kernel_call *call = &node->op.kernel;
  const sg_launch *l = &call->launch;
  *p = (CUDA_KERNEL_NODE_PARAMS){.kern = (CUkernel)call->kern,
                                 .ctx = call->ctx,
                                 .gridDimX = l->grid[0],
                                 .gridDimY = l->grid[1],
                                 .gridDimZ = l->grid[2],
                                 .blockDimX = l->block[0],
                                 .blockDimY = l->block[1],
                                 .blockDimZ = l->block[2],
                                 .sharedMemBytes = l->dynamic_shared_bytes,
                                 .kernelParams = kernel_pointers(call->kern, node->storage)};
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p) {
  REQUIRE_POINTER(p);
  TRY(node_get(node, OP_KERNEL));
  return set_kernel(&node->op, &node->storage, p);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *p) {
  allocation entry;
  REQUIRE_POINTER(p);
  TRY(node_get(node, OP_COPY));
  const copy *c = &node->op.copy;
  *p = (CUDA_MEMCPY3D){.WidthInBytes = c->width,
                       .Height = c->height,
                       .Depth = c->depth};
  if (c->height > 1 || c->depth > 1) { /* a single row has no pitch */
    p->srcPitch = c->src_pitch;
    p->srcHeight = c->src_pitch ? c->src_slice / c->src_pitch : 0;
    p->dstPitch = c->dst_pitch;
    p->dstHeight = c->dst_pitch ? c->dst_slice / c->dst_pitch : 0;
  }
  if (memory_find((uintptr_t)c->src, &entry)) {
    p->srcMemoryType = CU_MEMORYTYPE_DEVICE;
    p->srcDevice = (CUdeviceptr)(uintptr_t)c->src;
  } else {
    p->srcMemoryType = CU_MEMORYTYPE_HOST;
    p->srcHost = c->src;
  }
  if (memory_find((uintptr_t)c->dst, &entry)) {
    p->dstMemoryType = CU_MEMORYTYPE_DEVICE;
    p->dstDevice = (CUdeviceptr)(uintptr_t)c->dst;
  } else {
    p->dstMemoryType = CU_MEMORYTYPE_HOST;
    p->dstHost = c->dst;
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *p) {
  REQUIRE_POINTER(p);
  TRY(node_get(node, OP_COPY));
  return set_copy(&node->op, p);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *p) {
  REQUIRE_POINTER(p);
  TRY(node_get(node, OP_FILL));
  const fill *f = &node->op.fill;
  *p = (CUDA_MEMSET_NODE_PARAMS){.dst = (CUdeviceptr)(uintptr_t)f->dst,
                                 .pitch = f->pitch,
                                 .value = f->value,
                                 .elementSize = f->element_bytes,
                                 .width = f->width,
                                 .height = f->height};
  return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p) {
  REQUIRE_POINTER(p);
  TRY(node_get(node, OP_FILL));
  return set_fill(&node->op, p);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *p) {
  REQUIRE_POINTER(p);
  TRY(node_get(node, OP_HOST));
  *p = (CUDA_HOST_NODE_PARAMS){node->op.host.fn, node->op.host.data};
  return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p) {
  REQUIRE_POINTER(p);
  TRY(node_get(node, OP_HOST));
  return set_host(&node->op, p);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
  REQUIRE_POINTER(graph);
  TRY(node_get(node, OP_CHILD));
  *graph = node->op.child;
  return CUDA_SUCCESS;
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event) {
  REQUIRE_POINTER(event);
  TRY(node_get(node, OP_RECORD));
  *event = node->op.event;
  return CUDA_SUCCESS;
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  TRY(node_get(node, OP_RECORD));
  return set_event(&node->op, event);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *event) {
  REQUIRE_POINTER(event);
  TRY(node_get(node, OP_WAIT));
  *event = node->op.event;
  return CUDA_SUCCESS;
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  TRY(node_get(node, OP_WAIT));
  return set_event(&node->op, event);
}

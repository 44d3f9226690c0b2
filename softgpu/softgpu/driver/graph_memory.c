/* Memory that a graph allocates and frees: nodes of these types, and queries about them.
 *
 * A block has its address and its memory from the creation of its node until the node and all instances are gone. Its
 * state follows the order in which the program submits: a launch allocates it, and a launch or cuMemFree frees it.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static struct usage {
  uint64_t used, used_high, reserved, reserved_high;
} usages[MAX_DEVICES]; /* under memory_lock */

static void count_locked(uint64_t *now, uint64_t *high, int64_t change) {
  *now += (uint64_t)change;
  if (*now > *high) *high = *now;
}

static void set_live_locked(graph_block *b, bool live) {
  struct usage *u = &usages[b->dev->ordinal];
  if (b->live != live) count_locked(&u->used, &u->used_high, live ? (int64_t)b->reserved : -(int64_t)b->reserved);
  b->live = live;
}

/* --- blocks */

static CUresult place_of(const CUmemPoolProps *props, CUcontext ctx, allocation *entry) {
  bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  REQUIRE(managed || props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE,
          "there is no allocation type %d", (int)props->allocType);
  REQUIRE(props->handleTypes == CU_MEM_HANDLE_TYPE_NONE, CUDA_ERROR_INVALID_VALUE,
          "memory of graphs is not shared between processes");
  device *dev = NULL;
  TRY(pool_location(props->location, &dev));
  entry->kind = managed ? MEMORY_MANAGED : dev == NULL ? MEMORY_HOST : MEMORY_DEVICE;
  entry->dev = managed && dev == NULL ? ctx->dev : dev;
  return CUDA_SUCCESS;
}

CUresult graph_block_new(const CUDA_MEM_ALLOC_NODE_PARAMS *p, CUcontext ctx, graph_block **made) {
  allocation entry = {.bytes = p->bytesize, .ctx = ctx};
  REQUIRE(p->bytesize > 0, CUDA_ERROR_INVALID_VALUE, "a node that allocates 0 bytes");
  REQUIRE(p->accessDescCount <= MAX_DEVICES && (p->accessDescCount == 0 || p->accessDescs != NULL),
          CUDA_ERROR_INVALID_VALUE, "%zu access descriptions", p->accessDescCount);
  TRY(place_of(&p->poolProps, ctx, &entry));
  graph_block *b = calloc(1, sizeof *b);
  REQUIRE(b != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a node");
  *b = (graph_block){.dev = entry.dev != NULL ? entry.dev : ctx->dev,
                     .bytes = p->bytesize,
                     .reserved = memory_round(p->bytesize),
                     .props = p->poolProps,
                     .access_count = p->accessDescCount,
                     .references = 1};
  if (p->accessDescCount > 0) memcpy(b->access, p->accessDescs, p->accessDescCount * sizeof *b->access);
  entry.graph = b;
  CUresult status = memory_allocate(entry, &b->base);
  if (status != CUDA_SUCCESS) {
    free(b);
    return status;
  }
  pthread_mutex_lock(&memory_lock);
  struct usage *u = &usages[b->dev->ordinal];
  count_locked(&u->reserved, &u->reserved_high, (int64_t)b->reserved);
  pthread_mutex_unlock(&memory_lock);
  *made = b;
  return CUDA_SUCCESS;
}

void graph_block_keep(graph_block *b) {
  pthread_mutex_lock(&memory_lock);
  b->references++;
  pthread_mutex_unlock(&memory_lock);
}

/* The last user frees the memory, or, if it is allocated, only ends its connection to graphs. */
void graph_block_drop(graph_block *b) {
  allocation entry;
  pthread_mutex_lock(&memory_lock);
  bool last = --b->references == 0, live = b->live;
  if (last) {
    set_live_locked(b, false);
    usages[b->dev->ordinal].reserved -= b->reserved;
  }
  pthread_mutex_unlock(&memory_lock);
  if (!last) return;
  bool there = memory_find(b->base, &entry) && entry.graph == b; /* its context may have ended */
  if (there && live) memory_disown(b->base);
  else if (there && memory_remove(b->base, &entry)) memory_give_back(&entry);
  free(b);
}

CUresult graph_block_at(CUdeviceptr address, graph_block **found) {
  allocation entry;
  REQUIRE(memory_find(address, &entry) && entry.base == address && entry.graph != NULL, CUDA_ERROR_INVALID_VALUE,
          "0x%llx was not allocated by a graph node", address);
  *found = entry.graph;
  return CUDA_SUCCESS;
}

CUresult graph_block_release(graph_block *b, CUstream stream) {
  pthread_mutex_lock(&memory_lock);
  bool live = b->live;
  set_live_locked(b, false);
  pthread_mutex_unlock(&memory_lock);
  REQUIRE(live, CUDA_ERROR_INVALID_VALUE, "0x%zx belongs to a graph, which has not allocated it", (size_t)b->base);
  if (stream != NULL) return submit(stream, &(op){.kind = OP_GRAPH_FREE, .block = b}, false);
  strict_poison(b->base, b->reserved);
  return CUDA_SUCCESS;
}

/* --- launches */

static bool allocates(const struct CUgraphExec_st *exec, const graph_block *b) {
  for (size_t i = 0; i < exec->step_count; i++)
    if (exec->steps[i].op.kind == OP_GRAPH_ALLOC && exec->steps[i].op.block == b) return true;
  return false;
}

static CUresult check_locked(const struct CUgraphExec_st *exec) {
  bool frees_first = (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  for (size_t i = 0; i < exec->step_count; i++) {
    const op *o = &exec->steps[i].op;
    if (o->kind == OP_GRAPH_ALLOC)
      REQUIRE(!o->block->live || frees_first, CUDA_ERROR_INVALID_VALUE,
              "memory that an earlier launch of the graph allocated has not been freed");
    if (o->kind == OP_GRAPH_FREE)
      REQUIRE(o->block->live || allocates(exec, o->block), CUDA_ERROR_INVALID_VALUE,
              "the graph frees memory that is not allocated");
  }
  return CUDA_SUCCESS;
}

CUresult graph_memory_launch(const struct CUgraphExec_st *exec) {
  if (!exec->allocates) return CUDA_SUCCESS;
  pthread_mutex_lock(&memory_lock);
  CUresult status = check_locked(exec);
  for (size_t i = 0; i < exec->step_count && status == CUDA_SUCCESS; i++) {
    const op *o = &exec->steps[i].op;
    if (o->kind == OP_GRAPH_ALLOC || o->kind == OP_GRAPH_FREE) set_live_locked(o->block, o->kind == OP_GRAPH_ALLOC);
  }
  pthread_mutex_unlock(&memory_lock);
  return status;
}

/* --- nodes */

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, const CUgraphEdgeData *edges,
                           size_t count, CUgraphNodeParams *p);

static CUresult node_get(CUgraphNode node, enum op_kind kind) {
  TRY(require_init());
  REQUIRE(handle_is(node, HANDLE_NODE), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph node", (void *)node);
  REQUIRE(node->op.kind == kind, CUDA_ERROR_INVALID_VALUE, "the node is of type %d", (int)node_type(&node->op));
  return CUDA_SUCCESS;
}

CUresult set_graph_free(op *o, CUgraph graph, CUdeviceptr address) {
  TRY(graph_block_at(address, &o->block));
  for (size_t i = 0; i < graph->nodes.count; i++) {
    CUgraphNode node = graph->nodes.items[i];
    REQUIRE(node == NULL || node->op.kind != OP_GRAPH_FREE || node->op.block != o->block, CUDA_ERROR_INVALID_VALUE,
            "another node frees 0x%llx", address);
  }
  graph_block_keep(o->block);
  return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *p) {
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
  REQUIRE_POINTER(p);
  memcpy(&any.alloc, p, sizeof *p);
  TRY(cuGraphAddNode_v2(node, graph, needs, NULL, count, &any));
  p->dptr = any.alloc.dptr;
  return CUDA_SUCCESS;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                               CUdeviceptr address) {
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {address}};
  return cuGraphAddNode_v2(node, graph, needs, NULL, count, &any);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
  REQUIRE_POINTER(p);
  TRY(node_get(node, OP_GRAPH_ALLOC));
  const graph_block *b = node->op.block;
  *p = (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = b->props,
                                    .accessDescs = b->access_count > 0 ? b->access : NULL,
                                    .accessDescCount = b->access_count,
                                    .bytesize = b->bytes,
                                    .dptr = b->base};
  return CUDA_SUCCESS;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address) {
  REQUIRE_POINTER(address);
  TRY(node_get(node, OP_GRAPH_FREE));
  *address = node->op.block->base;
  return CUDA_SUCCESS;
}

/* --- the memory of a device's graphs */

static uint64_t *counter(struct usage *u, CUgraphMem_attribute attribute) {
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: return &u->used;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: return &u->used_high;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: return &u->reserved;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: return &u->reserved_high;
  }
  return NULL;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value) {
  device *dev;
  TRY(device_get(ordinal, &dev));
  REQUIRE_POINTER(value);
  const uint64_t *found = counter(&usages[ordinal], attribute);
  REQUIRE(found != NULL, CUDA_ERROR_INVALID_VALUE, "there is no graph memory attribute %d", (int)attribute);
  pthread_mutex_lock(&memory_lock);
  memcpy(value, found, sizeof *found);
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value) {
  device *dev;
  uint64_t wanted;
  TRY(device_get(ordinal, &dev));
  REQUIRE_POINTER(value);
  memcpy(&wanted, value, sizeof wanted);
  bool high = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  REQUIRE(high && wanted == 0, CUDA_ERROR_INVALID_VALUE, "only high-water marks can be set, and only to 0");
  struct usage *u = &usages[ordinal];
  pthread_mutex_lock(&memory_lock);
  *counter(u, attribute) = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH ? u->used : u->reserved;
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
  device *dev;
  return device_get(ordinal, &dev); /* memory that no graph can use any more is freed already */
}

/* The calls that make, change and list graphs. */
#include "driver.h"

#include <stdio.h>
#include <string.h>

static CUresult graph_get(CUgraph graph) {
  TRY(require_init());
  REQUIRE(handle_is(graph, HANDLE_GRAPH), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph", (void *)graph);
  return CUDA_SUCCESS;
}

static CUresult node_get(CUgraphNode node) {
  TRY(require_init());
  REQUIRE(handle_is(node, HANDLE_NODE), CUDA_ERROR_INVALID_VALUE, "%p is not a live graph node", (void *)node);
  return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
  TRY(require_init());
  REQUIRE_POINTER(graph);
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags must be 0", __func__);
  return graph_new(graph);
}

CUresult cuGraphDestroy(CUgraph graph) {
  TRY(graph_get(graph));
  REQUIRE(graph->parent == NULL, CUDA_ERROR_INVALID_VALUE, "a graph inside a node dies with the node");
  graph_delete(graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *clone, CUgraph graph) {
  REQUIRE_POINTER(clone);
  TRY(graph_get(graph));
  return graph_clone(graph, clone);
}

CUresult cuGraphNodeFindInClone(CUgraphNode *node, CUgraphNode original, CUgraph clone) {
  REQUIRE_POINTER(node);
  TRY(node_get(original));
  TRY(graph_get(clone));
  bool found = clone->cloned_from == original->graph && original->index < clone->nodes.count &&
               clone->nodes.items[original->index] != NULL;
  REQUIRE(found, CUDA_ERROR_INVALID_VALUE, "the graph is no clone with such a node");
  *node = clone->nodes.items[original->index];
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode node) {
  TRY(node_get(node));
  REQUIRE(node->op.kind != OP_GRAPH_ALLOC && node->op.kind != OP_GRAPH_FREE, CUDA_ERROR_NOT_SUPPORTED,
          "a node that allocates or frees memory cannot be destroyed");
  node_delete(node);
  return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edges, size_t count) {
  (void)edges; /* every kind of edge is kept as a full dependency */
  TRY(graph_get(graph));
  TRY(graph_check_nodes(graph, from, count));
  TRY(graph_check_nodes(graph, to, count));
  for (size_t i = 0; i < count; i++) {
    REQUIRE(from[i] != to[i], CUDA_ERROR_INVALID_VALUE, "edge %zu leads from a node to itself", i);
    REQUIRE(!nodes_have(&to[i]->needs, from[i]), CUDA_ERROR_INVALID_VALUE, "edge %zu exists already", i);
    TRY(graph_connect(from[i], to[i]));
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                      const CUgraphEdgeData *edges, size_t count) {
  (void)edges;
  TRY(graph_get(graph));
  TRY(graph_check_nodes(graph, from, count));
  TRY(graph_check_nodes(graph, to, count));
  for (size_t i = 0; i < count; i++) {
    REQUIRE(nodes_have(&to[i]->needs, from[i]), CUDA_ERROR_INVALID_VALUE, "edge %zu does not exist", i);
    nodes_drop(&to[i]->needs, from[i]);
    nodes_drop(&from[i]->needed_by, to[i]);
  }
  return CUDA_SUCCESS;
}

/* --- queries: without an array they count, else they fill up to *count entries and return the number in *count */

typedef struct {
  CUgraphNode *out;
  size_t capacity, count;
} listing;

static void list(listing *l, CUgraphNode node) {
  if (l->out != NULL && l->count >= l->capacity) return;
  if (l->out != NULL) l->out[l->count] = node;
  l->count++;
}

static void list_end(listing *l, size_t *count) {
  for (size_t i = l->count; l->out != NULL && i < l->capacity; i++) l->out[i] = NULL;
  *count = l->count;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  REQUIRE_POINTER(count);
  TRY(graph_get(graph));
  listing l = {nodes, *count, 0};
  for (size_t i = 0; i < graph->nodes.count; i++)
    if (graph->nodes.items[i] != NULL) list(&l, graph->nodes.items[i]);
  list_end(&l, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  REQUIRE_POINTER(count);
  TRY(graph_get(graph));
  listing l = {nodes, *count, 0};
  for (size_t i = 0; i < graph->nodes.count; i++)
    if (graph->nodes.items[i] != NULL && graph->nodes.items[i]->needs.count == 0) list(&l, graph->nodes.items[i]);
  list_end(&l, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count) {
  REQUIRE_POINTER(count);
  TRY(graph_get(graph));
  REQUIRE((from == NULL) == (to == NULL), CUDA_ERROR_INVALID_VALUE, "%s: one of from and to is NULL", __func__);
  listing f = {from, *count, 0}, t = {to, *count, 0};
  if (edges != NULL) memset(edges, 0, *count * sizeof *edges);
  for (size_t i = 0; i < graph->nodes.count; i++)
    for (size_t j = 0; graph->nodes.items[i] != NULL && j < graph->nodes.items[i]->needed_by.count; j++) {
      list(&f, graph->nodes.items[i]);
      list(&t, graph->nodes.items[i]->needed_by.items[j]);
    }
  list_end(&f, count);
  list_end(&t, count);
  return CUDA_SUCCESS;
}

static CUresult neighbours(CUgraphNode node, const struct nodes *set, CUgraphNode *out, CUgraphEdgeData *edges,
                           size_t *count) {
  REQUIRE_POINTER(count);
  TRY(node_get(node));
  listing l = {out, *count, 0};
  if (edges != NULL) memset(edges, 0, *count * sizeof *edges);
  for (size_t i = 0; i < set->count; i++) list(&l, set->items[i]);
  list_end(&l, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *out, CUgraphEdgeData *edges, size_t *count) {
  TRY(node_get(node));
  return neighbours(node, &node->needs, out, edges, count);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *out, CUgraphEdgeData *edges, size_t *count) {
  TRY(node_get(node));
  return neighbours(node, &node->needed_by, out, edges, count);
}

CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned flags) {
  static const char *const kinds[] = {[CU_GRAPH_NODE_TYPE_KERNEL] = "kernel",
                                      [CU_GRAPH_NODE_TYPE_MEMCPY] = "memcpy",
                                      [CU_GRAPH_NODE_TYPE_MEMSET] = "memset",
                                      [CU_GRAPH_NODE_TYPE_HOST] = "host",
                                      [CU_GRAPH_NODE_TYPE_GRAPH] = "graph",
                                      [CU_GRAPH_NODE_TYPE_EMPTY] = "empty",
                                      [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "wait",
                                      [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "record",
                                      [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "alloc",
                                      [CU_GRAPH_NODE_TYPE_MEM_FREE] = "free",
                                      [CU_GRAPH_NODE_TYPE_CONDITIONAL] = "conditional"};
  (void)flags;
  REQUIRE_POINTER(path);
  TRY(graph_get(graph));
  FILE *file = fopen(path, "w");
  REQUIRE(file != NULL, CUDA_ERROR_OPERATING_SYSTEM, "%s cannot be written", path);
  fprintf(file, "digraph graph_%llu {\n", graph->id);
  for (size_t i = 0; i < graph->nodes.count; i++) {
    CUgraphNode node = graph->nodes.items[i];
    if (node == NULL) continue;
    const char *name = node->op.kind == OP_KERNEL ? node->op.kernel.kern->info->name : "";
    fprintf(file, "  n%u [label=\"%u %s %s\"];\n", node->index, node->index, kinds[node_type(&node->op)], name);
    for (size_t j = 0; j < node->needed_by.count; j++)
      fprintf(file, "  n%u -> n%u;\n", node->index, node->needed_by.items[j]->index);
  }
  fprintf(file, "}\n");
  bool written = fclose(file) == 0;
  REQUIRE(written, CUDA_ERROR_OPERATING_SYSTEM, "%s could not be written", path);
  return CUDA_SUCCESS;
}

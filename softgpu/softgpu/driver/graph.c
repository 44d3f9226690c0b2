/* Graphs: nodes and the edges between them, copies of graphs, and the order in which their nodes may run. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

CUresult graph_new(CUgraph *graph) {
  CUgraph made = handle_new(HANDLE_GRAPH, sizeof *made);
  REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a graph");
  made->id = unique_id();
  *graph = made;
  return CUDA_SUCCESS;
}

void node_delete(CUgraphNode node) {
  for (size_t i = 0; i < node->needs.count; i++) nodes_drop(&node->needs.items[i]->needed_by, node);
  for (size_t i = 0; i < node->needed_by.count; i++) nodes_drop(&node->needed_by.items[i]->needs, node);
  nodes_clear(&node->needs);
  nodes_clear(&node->needed_by);
  if (node->op.kind == OP_CHILD) graph_delete(node->op.child);
  if (node->op.kind == OP_CONDITIONAL) conditional_delete(node->op.conditional);
  if (node->op.kind == OP_GRAPH_ALLOC || node->op.kind == OP_GRAPH_FREE) graph_block_drop(node->op.block);
  free(node->storage);
  node->graph->nodes.items[node->index] = NULL;
  node->graph->live--;
  handle_delete(node);
}

void graph_delete(CUgraph graph) {
  for (size_t i = graph->nodes.count; i-- > 0;) /* backwards, along the edges, so that lists empty from their ends */
    if (graph->nodes.items[i] != NULL) node_delete(graph->nodes.items[i]);
  nodes_clear(&graph->nodes);
  free(graph->conditions.items);
  objects_release(&graph->objects);
  handle_delete(graph);
}

CUresult graph_connect(CUgraphNode from, CUgraphNode to) {
  REQUIRE(nodes_append(&to->needs, from) && nodes_append(&from->needed_by, to), CUDA_ERROR_OUT_OF_MEMORY,
          "no host memory for an edge");
  return CUDA_SUCCESS;
}

CUresult graph_check_nodes(CUgraph graph, const CUgraphNode *needs, size_t count) {
  REQUIRE(count == 0 || needs != NULL, CUDA_ERROR_INVALID_VALUE, "%zu dependencies, but no list of them", count);
  for (size_t i = 0; i < count; i++)
    REQUIRE(handle_is(needs[i], HANDLE_NODE) && needs[i]->graph == graph, CUDA_ERROR_INVALID_VALUE,
            "dependency %zu is no node of this graph", i);
  return CUDA_SUCCESS;
}

static CUresult fill_node(CUgraphNode node, const CUgraphNode *needs, size_t count) {
  if (node->op.kind == OP_KERNEL) {
    kernel_call *call = &node->op.kernel;
    TRY(kernel_storage(call->kern, call->launch.params, &node->storage));
    call->launch.params = node->storage;
  }
  for (size_t i = 0; i < count; i++)
    if (!nodes_have(&node->needs, needs[i])) TRY(graph_connect(needs[i], node));
  return CUDA_SUCCESS;
}

CUresult graph_add_node(CUgraph graph, const CUgraphNode *needs, size_t count, const op *o, CUgraphNode *node) {
  TRY(graph_check_nodes(graph, needs, count));
  CUgraphNode made = handle_new(HANDLE_NODE, sizeof *made);
  REQUIRE(made != NULL && nodes_append(&graph->nodes, made), CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a node");
  made->graph = graph;
  made->index = (uint32_t)graph->nodes.count - 1;
  made->op = *o;
  graph->live++;
  CUresult status = fill_node(made, needs, count);
  if (status != CUDA_SUCCESS) {
    made->op.kind = op_owns(o) ? OP_EMPTY : made->op.kind; /* the caller still owns the object of the operation */
    node_delete(made);
    return status;
  }
  if (o->kind == OP_CHILD) o->child->parent = made;
  if (o->kind == OP_CONDITIONAL) conditional_own(o->conditional, made);
  *node = made;
  return CUDA_SUCCESS;
}

static CUresult clone_node(CUgraph clone, const struct CUgraphNode_st *from) {
  CUgraphNode made;
  op o = from->op;
  struct nodes needs = {0};
  REQUIRE(o.kind != OP_GRAPH_ALLOC && o.kind != OP_GRAPH_FREE, CUDA_ERROR_NOT_SUPPORTED,
          "a graph that allocates or frees memory cannot be copied");
  if (o.kind == OP_CHILD) TRY(graph_clone(from->op.child, &o.child));
  if (o.kind == OP_CONDITIONAL) TRY(conditional_clone(from->op.conditional, &o.conditional));
  CUresult status = CUDA_SUCCESS;
  for (size_t i = 0; i < from->needs.count && status == CUDA_SUCCESS; i++) {
    CUgraphNode need = clone->nodes.items[from->needs.items[i]->index];
    if (need != NULL && !nodes_append(&needs, need))
      status = fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory for an edge");
  }
  if (status == CUDA_SUCCESS) status = graph_add_node(clone, needs.items, needs.count, &o, &made);
  if (status != CUDA_SUCCESS && o.kind == OP_CHILD) graph_delete(o.child);
  if (status != CUDA_SUCCESS && o.kind == OP_CONDITIONAL) conditional_delete(o.conditional);
  nodes_clear(&needs);
  return status;
}

/* Nodes keep their indices: the index of an original finds the clone's node. */
static CUresult clone_into(CUgraph clone, CUgraph graph) {
  CUgraphNode *order = malloc((graph->live + 1) * sizeof *order);
  REQUIRE(order != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a graph");
  CUresult status = conditions_copy(clone, graph);
  if (status == CUDA_SUCCESS) status = graph_order(graph, order);
  for (size_t i = 0; i < graph->nodes.count && status == CUDA_SUCCESS; i++)
    if (!nodes_append(&clone->nodes, NULL)) status = fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a graph");
  for (size_t i = 0; i < graph->live && status == CUDA_SUCCESS; i++) {
    status = clone_node(clone, order[i]);
    if (status != CUDA_SUCCESS) break;
    CUgraphNode made = clone->nodes.items[--clone->nodes.count]; /* from the end to its place */
    made->index = order[i]->index;
    clone->nodes.items[made->index] = made;
  }
  free(order);
  return status == CUDA_SUCCESS ? objects_copy(&clone->objects, &graph->objects) : status;
}

CUresult graph_clone(CUgraph graph, CUgraph *clone) {
  CUgraph made;
  TRY(graph_new(&made));
  CUresult status = clone_into(made, graph);
  if (status != CUDA_SUCCESS) {
    graph_delete(made);
    return status;
  }
  made->cloned_from = graph;
  *clone = made;
  return CUDA_SUCCESS;
}

/* Depth first along needs, from the oldest node on: the order of creation, as far as the edges allow it. */
CUresult graph_order(CUgraph graph, CUgraphNode *order) {
  enum { NEW, OPEN, DONE };
  size_t emitted = 0, total = graph->nodes.count;
  uint8_t *state = calloc(total + 1, 1);
  uint32_t *next = calloc(total + 1, sizeof *next); /* of a node's needs, the first that is not visited yet */
  CUgraphNode *path = malloc((total + 1) * sizeof *path);
  bool cycle = false, memory = state != NULL && next != NULL && path != NULL;
  for (size_t i = 0; memory && !cycle && i < total; i++) {
    size_t depth = 0;
    if (graph->nodes.items[i] == NULL || state[i] == DONE) continue;
    path[depth++] = graph->nodes.items[i];
    state[i] = OPEN;
    while (depth > 0 && !cycle) {
      CUgraphNode node = path[depth - 1];
      if (next[node->index] == node->needs.count) {
        state[node->index] = DONE;
        order[emitted++] = node;
        depth--;
        continue;
      }
      CUgraphNode need = node->needs.items[next[node->index]++];
      cycle = state[need->index] == OPEN;
      if (state[need->index] != NEW) continue;
      state[need->index] = OPEN;
      path[depth++] = need;
    }
  }
  free(state);
  free(next);
  free(path);
  REQUIRE(memory, CUDA_ERROR_OUT_OF_MEMORY, "no host memory to order %zu nodes", total);
  REQUIRE(!cycle, CUDA_ERROR_INVALID_VALUE, "the graph has a cycle");
  return CUDA_SUCCESS;
}

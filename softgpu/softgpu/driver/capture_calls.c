/* The calls that begin, end, query and change stream captures. */
#include "driver.h"

enum { MAX_TAIL = 4096 };

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  CUgraph graph;
  TRY(require_init());
  TRY(graph_new(&graph));
  CUresult status = capture_begin(stream, graph, true, NULL, 0, mode);
  if (status != CUDA_SUCCESS) graph_delete(graph);
  return status;
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *needs,
                                     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
  (void)edges;
  TRY(require_init());
  REQUIRE_HANDLE(graph, HANDLE_GRAPH);
  TRY(graph_check_nodes(graph, needs, count));
  return capture_begin(stream, graph, false, needs, count, mode);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  CUstream s;
  CUgraph made;
  TRY(stream_get(stream, &s));
  CUresult status = capture_end(s, &made);
  if (graph != NULL) *graph = made;
  return status;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **needs, const CUgraphEdgeData **edges, size_t *count) {
  static CUgraphEdgeData plain[MAX_TAIL]; /* every edge is a full dependency: zeros */
  CUstream s;
  TRY(stream_get(stream, &s));
  REQUIRE_POINTER(status);
  pthread_mutex_lock(&capture_lock);
  const capture *c = atomic_load(&s->capture);
  bool active = c != NULL && !c->invalid;
  *status = c == NULL ? CU_STREAM_CAPTURE_STATUS_NONE
            : active  ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                      : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  if (id != NULL && c != NULL) *id = c->id;
  if (graph != NULL) *graph = active ? c->graph : NULL;
  if (needs != NULL) *needs = active ? s->tail.items : NULL; /* valid until the stream's next call, as in CUDA */
  if (edges != NULL) *edges = active ? plain : NULL;
  if (count != NULL) *count = active ? s->tail.count : 0;
  bool fits = edges == NULL || s->tail.count <= MAX_TAIL;
  pthread_mutex_unlock(&capture_lock);
  REQUIRE(fits, CUDA_ERROR_NOT_SUPPORTED, "more than %d dependencies", MAX_TAIL);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **needs, size_t *count) {
  return cuStreamGetCaptureInfo_v3(stream, status, id, graph, needs, NULL, count);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  return cuStreamGetCaptureInfo_v3(stream, status, NULL, NULL, NULL, NULL, NULL);
}

static CUresult update_locked(CUstream s, const CUgraphNode *needs, size_t count, bool set) {
  capture *c = atomic_load(&s->capture);
  REQUIRE(c != NULL, CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing");
  REQUIRE(!c->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture failed earlier");
  TRY(graph_check_nodes(c->graph, needs, count));
  if (set) s->tail.count = 0;
  for (size_t i = 0; i < count; i++)
    REQUIRE(nodes_add(&s->tail, needs[i]), CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a capture");
  return CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *needs, const CUgraphEdgeData *edges,
                                              size_t count, unsigned flags) {
  CUstream s;
  (void)edges;
  TRY(stream_get(stream, &s));
  REQUIRE(flags <= CU_STREAM_SET_CAPTURE_DEPENDENCIES, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  pthread_mutex_lock(&capture_lock);
  CUresult status = update_locked(s, needs, count, flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  pthread_mutex_unlock(&capture_lock);
  return status;
}

/* --- memory that is allocated and freed while a stream captures */

CUresult capture_alloc(CUstream s, CUmemoryPool pool, size_t bytes, CUdeviceptr *address) {
  op o = {.kind = OP_GRAPH_ALLOC};
  CUDA_MEM_ALLOC_NODE_PARAMS p = {.poolProps = pool->props, .bytesize = bytes};
  p.poolProps.maxSize = 0;
  TRY(graph_block_new(&p, s->ctx, &o.block));
  *address = o.block->base;
  CUresult status = capture_op(s, &o);
  if (status != CUDA_SUCCESS) graph_block_drop(o.block);
  return status;
}

CUresult capture_free(CUstream s, CUdeviceptr address) {
  op o = {.kind = OP_GRAPH_FREE};
  TRY(graph_block_at(address, &o.block));
  graph_block_keep(o.block);
  CUresult status = capture_op(s, &o);
  if (status != CUDA_SUCCESS) graph_block_drop(o.block);
  return status;
}

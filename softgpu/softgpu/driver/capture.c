/* Stream capture: work submitted to a capturing stream becomes graph nodes instead of running.
 *
 * The tail of a stream is the set of nodes on which its next node will depend. An event recorded in a capture keeps a
 * tail; a wait for it joins the waiting stream to the capture (fork), or adds to its tail (join).
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;
static capture *captures;         /* under capture_lock */
static _Atomic int capture_count; /* of captures; calls read it without the lock to learn if there is any */
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static capture *find_locked(unsigned long long id) {
  capture *c = captures;
  while (c != NULL && c->id != id) c = c->next;
  return c;
}

static void add_stream_locked(capture *c, CUstream s) {
  s->next_captured = c->streams;
  c->streams = s;
  atomic_store_explicit(&s->capture, c, memory_order_release);
}

/* Ends a capture. The caller owns its graph afterwards. */
static void end_locked(capture *c) {
  while (c->streams != NULL) {
    CUstream s = c->streams;
    c->streams = s->next_captured;
    nodes_clear(&s->tail);
    atomic_store_explicit(&s->capture, NULL, memory_order_release);
  }
  for (capture **at = &captures; *at != NULL; at = &(*at)->next)
    if (*at == c) {
      *at = c->next;
      break;
    }
  atomic_fetch_sub(&capture_count, 1);
  nodes_clear(&c->left);
  free(c);
}

/* --- gates */

static bool concerns_thread(const capture *c) {
  bool mine = pthread_equal(c->thread, pthread_self());
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || c->mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  return mine || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult capture_gate(void) {
  if (atomic_load_explicit(&capture_count, memory_order_acquire) == 0) return CUDA_SUCCESS;
  bool refused = false;
  pthread_mutex_lock(&capture_lock);
  for (capture *c = captures; c != NULL; c = c->next)
    if (concerns_thread(c)) refused = c->invalid = true;
  pthread_mutex_unlock(&capture_lock);
  REQUIRE(!refused, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "this call is not allowed during a stream capture");
  return CUDA_SUCCESS;
}

void capture_spoil(CUstream s) {
  pthread_mutex_lock(&capture_lock);
  capture *c = atomic_load(&s->capture);
  if (c != NULL) c->invalid = true;
  pthread_mutex_unlock(&capture_lock);
}

CUresult capture_forbids(CUstream s) {
  if (atomic_load(&s->capture) == NULL) return CUDA_SUCCESS;
  capture_spoil(s);
  return fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "this call is not allowed on a capturing stream");
}

static bool captures_blocking_stream(const capture *c, CUcontext home) {
  for (CUstream s = c->streams; s != NULL; s = s->next_captured)
    if (s->home == home && !(s->flags & CU_STREAM_NON_BLOCKING)) return true;
  return false;
}

CUresult capture_legacy_gate(CUstream s) {
  if (atomic_load_explicit(&capture_count, memory_order_acquire) == 0 || s != &s->home->legacy) return CUDA_SUCCESS;
  bool refused = false;
  pthread_mutex_lock(&capture_lock);
  for (capture *c = captures; c != NULL; c = c->next)
    if (captures_blocking_stream(c, s->home)) refused = c->invalid = true;
  pthread_mutex_unlock(&capture_lock);
  REQUIRE(!refused, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the default stream would wait for a stream that is capturing");
  return CUDA_SUCCESS;
}

CUresult capture_forbids_in(CUcontext ctx, CUevent e) {
  bool refused = false;
  pthread_mutex_lock(&capture_lock);
  for (capture *c = captures; c != NULL; c = c->next) {
    bool concerned = e->capture_id == c->id;
    for (CUstream s = c->streams; s != NULL; s = s->next_captured) concerned |= stream_within(s, ctx);
    if (concerned) refused = c->invalid = true;
  }
  pthread_mutex_unlock(&capture_lock);
  REQUIRE(!refused, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream of the context, or the event, is in a capture");
  return CUDA_SUCCESS;
}

/* --- the work of capturing streams */

static CUresult op_locked(capture *c, CUstream s, const op *o) {
  CUgraphNode node;
  REQUIRE(!c->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture failed earlier");
  TRY(graph_add_node(c->graph, s->tail.items, s->tail.count, o, &node));
  s->tail.count = 0;
  REQUIRE(nodes_append(&s->tail, node), CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a capture");
  return CUDA_SUCCESS;
}

CUresult capture_op(CUstream s, const op *o) {
  pthread_mutex_lock(&capture_lock);
  capture *c = atomic_load(&s->capture);
  CUresult status = c != NULL ? op_locked(c, s, o) : CUDA_ERROR_ILLEGAL_STATE;
  pthread_mutex_unlock(&capture_lock);
  REQUIRE(c != NULL, status, "the stream's capture ended while work was submitted to it");
  return status;
}

static CUresult record_locked(capture *c, CUevent e, CUstream s) {
  REQUIRE(!c->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture failed earlier");
  e->capture_id = c->id;
  REQUIRE(nodes_copy(&e->nodes, &s->tail), CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a capture");
  return CUDA_SUCCESS;
}

CUresult capture_record(CUevent e, CUstream s) {
  pthread_mutex_lock(&capture_lock);
  capture *c = atomic_load(&s->capture);
  CUresult status = c != NULL ? record_locked(c, e, s) : fail(CUDA_ERROR_ILLEGAL_STATE, "the stream's capture ended");
  pthread_mutex_unlock(&capture_lock);
  return status;
}

bool event_captured(CUevent e) {
  pthread_mutex_lock(&capture_lock);
  bool captured = e->capture_id != 0;
  pthread_mutex_unlock(&capture_lock);
  return captured;
}

static CUresult wait_locked(CUstream s, CUevent e, bool *handled) {
  capture *mine = atomic_load(&s->capture), *its = find_locked(e->capture_id);
  if (mine == NULL && e->capture_id == 0) return CUDA_SUCCESS; /* nothing to do with captures */
  *handled = true;
  REQUIRE(its != NULL || e->capture_id == 0, CUDA_ERROR_CAPTURED_EVENT,
          "the event belongs to a capture that has ended");
  REQUIRE(!(mine && mine->invalid) && !(its && its->invalid), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
          "the capture failed earlier");
  if (its == NULL) {
    if (e->fence == NULL) return CUDA_SUCCESS; /* never recorded: nothing to wait for */
    mine->invalid = true;
    return fail(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a capturing stream cannot wait for an event recorded outside");
  }
  if (mine != NULL && mine != its) {
    mine->invalid = its->invalid = true;
    return fail(CUDA_ERROR_STREAM_CAPTURE_MERGE, "the event belongs to another capture");
  }
  if (s == &s->home->legacy) {
    its->invalid = true;
    return fail(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the default stream cannot join a capture");
  }
  if (mine == NULL) add_stream_locked(its, s);
  for (size_t i = 0; i < e->nodes.count; i++)
    REQUIRE(nodes_add(&s->tail, e->nodes.items[i]), CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a capture");
  return CUDA_SUCCESS;
}

CUresult capture_wait(CUstream s, CUevent e, bool *handled) {
  pthread_mutex_lock(&capture_lock);
  CUresult status = wait_locked(s, e, handled);
  pthread_mutex_unlock(&capture_lock);
  return status;
}

static void leave_locked(capture *c, CUstream s) {
  for (size_t i = 0; i < s->tail.count; i++)
    if (!nodes_append(&c->left, s->tail.items[i])) c->invalid = true;
  for (CUstream *at = &c->streams; *at != NULL; at = &(*at)->next_captured)
    if (*at == s) {
      *at = s->next_captured;
      break;
    }
  atomic_store(&s->capture, NULL);
}

/* Ends a capture whose origin dies, since no call can end it. Another stream leaves; its work must still be joined. */
void capture_drop_stream(CUstream s) {
  CUgraph orphan = NULL;
  pthread_mutex_lock(&capture_lock);
  capture *c = atomic_load(&s->capture);
  if (c != NULL && c->origin == s) {
    orphan = c->owns_graph ? c->graph : NULL;
    end_locked(c);
  } else if (c != NULL) {
    leave_locked(c, s);
  }
  pthread_mutex_unlock(&capture_lock);
  if (orphan != NULL) graph_delete(orphan);
}

/* --- beginning and end */

static CUresult begin_locked(CUstream s, CUgraph graph, bool owned, const CUgraphNode *needs, size_t count,
                             CUstreamCaptureMode mode) {
  REQUIRE(atomic_load(&s->capture) == NULL, CUDA_ERROR_ILLEGAL_STATE, "the stream is capturing already");
  capture *c = calloc(1, sizeof *c);
  REQUIRE(c != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a capture");
  *c = (capture){.id = unique_id(),
                 .graph = graph,
                 .owns_graph = owned,
                 .mode = mode,
                 .thread = pthread_self(),
                 .origin = s,
                 .next = captures};
  captures = c;
  atomic_fetch_add(&capture_count, 1);
  s->tail.count = 0;
  for (size_t i = 0; i < count; i++) (void)nodes_add(&s->tail, needs[i]);
  add_stream_locked(c, s);
  return CUDA_SUCCESS;
}

CUresult capture_begin(CUstream stream, CUgraph graph, bool owned, const CUgraphNode *needs, size_t count,
                       CUstreamCaptureMode mode) {
  CUstream s;
  TRY(stream_get(stream, &s));
  REQUIRE((unsigned)mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE, "there is no capture mode %d",
          (int)mode);
  REQUIRE(s != &s->home->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the default stream cannot be captured");
  pthread_mutex_lock(&capture_lock);
  CUresult status = begin_locked(s, graph, owned, needs, count, mode);
  pthread_mutex_unlock(&capture_lock);
  return status;
}

static bool reach(struct nodes *reached, bool *seen, const struct nodes *from) {
  bool good = true;
  for (size_t i = 0; good && i < from->count; i++) {
    CUgraphNode node = from->items[i];
    if (!seen[node->index]) good = nodes_append(reached, node);
    seen[node->index] = true;
  }
  return good;
}

/* True if a path leads from every stream's tail to the tail of the origin. */
static bool joined_locked(const capture *c) {
  struct nodes reached = {0};
  bool *seen = calloc(c->graph->nodes.count + 1, 1);
  bool good = seen != NULL && reach(&reached, seen, &c->origin->tail);
  for (size_t i = 0; good && i < reached.count; i++) good = reach(&reached, seen, &reached.items[i]->needs);
  for (CUstream s = c->streams; good && s != NULL; s = s->next_captured)
    for (size_t i = 0; good && i < s->tail.count; i++) good = seen[s->tail.items[i]->index];
  for (size_t i = 0; good && i < c->left.count; i++) good = seen[c->left.items[i]->index];
  nodes_clear(&reached);
  free(seen);
  return good;
}

static CUresult finish_locked(CUstream s, CUgraph *graph, CUgraph *dead) {
  capture *c = atomic_load(&s->capture);
  REQUIRE(c != NULL, CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing");
  REQUIRE(c->origin == s, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture began in another stream");
  REQUIRE(c->mode == CU_STREAM_CAPTURE_MODE_RELAXED || pthread_equal(c->thread, pthread_self()),
          CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture began in another thread");
  CUresult status = CUDA_SUCCESS;
  if (c->invalid) status = fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture failed earlier");
  else if (!joined_locked(c))
    status = fail(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "work of a forked stream was not joined");
  if (status == CUDA_SUCCESS) *graph = c->graph;
  else if (c->owns_graph) *dead = c->graph;
  end_locked(c);
  return status;
}

/* Ends the capture that began in s. Its graph is NULL if the capture failed. */
CUresult capture_end(CUstream s, CUgraph *graph) {
  CUgraph dead = NULL;
  *graph = NULL;
  pthread_mutex_lock(&capture_lock);
  CUresult status = finish_locked(s, graph, &dead);
  pthread_mutex_unlock(&capture_lock);
  if (dead != NULL) graph_delete(dead);
  return status;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  REQUIRE_POINTER(mode);
  REQUIRE((unsigned)*mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE, "there is no capture mode %d",
          (int)*mode);
  CUstreamCaptureMode old = thread_mode;
  thread_mode = *mode;
  *mode = old;
  return CUDA_SUCCESS;
}

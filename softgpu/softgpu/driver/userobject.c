/* User objects: objects that a graph keeps alive, and that a callback destroys after the last reference. */
#include "driver.h"

#include <stdlib.h>

struct CUuserObject_st {
  handle head;
  void *data;
  CUhostFn destroy;
  _Atomic unsigned references;
};

static void release(CUuserObject object, unsigned count) {
  if (atomic_fetch_sub(&object->references, count) != count) return;
  CUhostFn destroy = object->destroy;
  void *data = object->data;
  handle_delete(object);
  destroy(data);
}

void objects_release(user_objects *list) {
  user_objects held = *list;
  *list = (user_objects){0};
  for (size_t i = 0; i < held.count; i++) release(held.items[i].object, held.items[i].count);
  free(held.items);
}

static CUresult add(user_objects *list, CUuserObject object, unsigned count) {
  for (size_t i = 0; i < list->count; i++)
    if (list->items[i].object == object) {
      list->items[i].count += count;
      return CUDA_SUCCESS;
    }
  user_object_ref *items = realloc(list->items, (list->count + 1) * sizeof *items);
  REQUIRE(items != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a user object");
  list->items = items;
  items[list->count++] = (user_object_ref){object, count};
  return CUDA_SUCCESS;
}

CUresult objects_copy(user_objects *to, const user_objects *from) {
  for (size_t i = 0; i < from->count; i++) {
    TRY(add(to, from->items[i].object, 1));
    atomic_fetch_add(&from->items[i].object->references, 1);
  }
  return CUDA_SUCCESS;
}

CUresult cuUserObjectCreate(CUuserObject *object, void *data, CUhostFn destroy, unsigned references, unsigned flags) {
  TRY(require_init());
  REQUIRE_POINTER(object);
  REQUIRE_POINTER(destroy);
  REQUIRE(references > 0 && references <= INT32_MAX && flags == 1, CUDA_ERROR_INVALID_VALUE,
          "%s: %u references, flags %#x", __func__, references,
          flags); /* 1: CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, which CUDA requires */
  CUuserObject made = handle_new(HANDLE_USER_OBJECT, sizeof *made);
  REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a user object");
  made->data = data;
  made->destroy = destroy;
  atomic_store(&made->references, references);
  *object = made;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
  TRY(require_init());
  REQUIRE(handle_is(object, HANDLE_USER_OBJECT) && count > 0, CUDA_ERROR_INVALID_VALUE, "%s: not a live object",
          __func__);
  atomic_fetch_add(&object->references, count);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  TRY(require_init());
  REQUIRE(handle_is(object, HANDLE_USER_OBJECT) && count > 0 && count <= atomic_load(&object->references),
          CUDA_ERROR_INVALID_VALUE, "%s: not so many references to a live object", __func__);
  release(object, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  TRY(require_init());
  REQUIRE_HANDLE(graph, HANDLE_GRAPH);
  REQUIRE(handle_is(object, HANDLE_USER_OBJECT) && count > 0, CUDA_ERROR_INVALID_VALUE, "%s: not a live object",
          __func__);
  REQUIRE(flags <= CU_GRAPH_USER_OBJECT_MOVE, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  TRY(add(&graph->objects, object, count));
  if (flags != CU_GRAPH_USER_OBJECT_MOVE) atomic_fetch_add(&object->references, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count) {
  TRY(require_init());
  REQUIRE_HANDLE(graph, HANDLE_GRAPH);
  for (size_t i = 0; i < graph->objects.count; i++) {
    user_object_ref *ref = &graph->objects.items[i];
    if (ref->object != object || count == 0 || count > ref->count) continue;
    ref->count -= count;
    if (ref->count == 0) *ref = graph->objects.items[--graph->objects.count];
    release(object, count);
    return CUDA_SUCCESS;
  }
  return fail(CUDA_ERROR_INVALID_VALUE, "%s: the graph holds not so many references", __func__);
}

/* Attributes of streams and kernel nodes: priorities and cooperative launches are kept, hints are ignored. */
#include "driver.h"

#include <string.h>

enum { LOWEST = 0, HIGHEST = -5 };

static int clamp(int priority) { return priority > LOWEST ? LOWEST : priority < HIGHEST ? HIGHEST : priority; }

static CUresult check(CUlaunchAttributeID id) {
  REQUIRE((unsigned)id <= CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING, CUDA_ERROR_INVALID_VALUE,
          "there is no launch attribute %d", (int)id);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetAttribute(CUstream stream, CUlaunchAttributeID id, CUlaunchAttributeValue *value) {
  CUstream s;
  REQUIRE_POINTER(value);
  TRY(stream_get(stream, &s));
  TRY(check(id));
  memset(value, 0, sizeof *value);
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = s->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamSetAttribute(CUstream stream, CUlaunchAttributeID id, const CUlaunchAttributeValue *value) {
  CUstream s;
  REQUIRE_POINTER(value);
  TRY(stream_get(stream, &s));
  TRY(check(id));
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) s->priority = clamp(value->priority);
  return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
  CUstream t, f;
  TRY(stream_get(to, &t));
  TRY(stream_get(from, &f));
  t->priority = f->priority;
  return CUDA_SUCCESS;
}

static CUresult kernel_node(CUgraphNode node) {
  TRY(require_init());
  REQUIRE(handle_is(node, HANDLE_NODE) && node->op.kind == OP_KERNEL, CUDA_ERROR_INVALID_VALUE,
          "%p is not a live kernel node", (void *)node);
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUlaunchAttributeID id, CUlaunchAttributeValue *value) {
  REQUIRE_POINTER(value);
  TRY(kernel_node(node));
  TRY(check(id));
  memset(value, 0, sizeof *value);
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = node->priority;
  if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) value->cooperative = (int)node->op.kernel.launch.cooperative;
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUlaunchAttributeID id, const CUlaunchAttributeValue *value) {
  REQUIRE_POINTER(value);
  TRY(kernel_node(node));
  TRY(check(id));
  CUlaunchAttribute attribute = {.id = id, .value = *value};
  bool cooperative = node->op.kernel.launch.cooperative != 0;
  TRY(launch_attributes_take(&attribute, 1, &cooperative));
  node->op.kernel.launch.cooperative = cooperative;
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) node->priority = clamp(value->priority);
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  TRY(kernel_node(to));
  TRY(kernel_node(from));
  to->priority = from->priority;
  to->op.kernel.launch.cooperative = from->op.kernel.launch.cooperative;
  return CUDA_SUCCESS;
}

/* Resources of a device: its multiprocessors (SMs), which programs split for green contexts, and its work queues.
 *
 * A resource is a value of the program's. What the driver needs of it, above all which SMs it has, is in its padding.
 */
#include "driver.h"

#include <string.h>

enum {
  ORIGIN = 0x73676d73,
  SM_LEAST = 4, /* in a partition by count: compute capability 8.x; with 9.0 it and the next are 8 */
  SM_STEP = 2,  /* SMs that are scheduled together: partitions are multiples of it */
  QUEUES = 8,   /* CUDA_DEVICE_MAX_CONNECTIONS, unless it is set */
};

typedef struct origin {
  uint32_t magic;
  int ordinal;
  uint64_t split; /* the call that made it; 0: a device or a context has it */
  uint32_t whole; /* 0: a partition, which cannot be split before it is in a green context */
  uint32_t unused;
  sm_set sms;
} origin;
_Static_assert(sizeof(origin) <= sizeof((CUdevResource){0}._internal_padding), "the padding has room");

static void make_sms(CUdevResource *to, origin from, uint32_t step, uint32_t flags) {
  *to = (CUdevResource){.type = CU_DEV_RESOURCE_TYPE_SM,
                        .sm = {sms_count(&from.sms), SM_LEAST, step, flags}};
  memcpy(to->_internal_padding, &from, sizeof from);
}

/* The device and the SMs of a resource that calls of this driver made. */
static CUresult origin_of(const CUdevResource *r, origin *from) {
  REQUIRE(r->type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE, "a resource of type %d, not of SMs",
          (int)r->type);
  memcpy(from, r->_internal_padding, sizeof *from);
  bool known = from->magic == ORIGIN && from->ordinal >= 0 && from->ordinal < device_count && r->sm.smCount > 0 &&
               sms_count(&from->sms) == r->sm.smCount;
  REQUIRE(known, CUDA_ERROR_INVALID_VALUE, "a resource that no call has made, or that was changed since");
  sm_set all = sms_all(device_sms(&devices[from->ordinal]));
  REQUIRE(sms_within(&from->sms, &all), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
          "device %d has other SMs than when the resource was made", from->ordinal);
  return CUDA_SUCCESS;
}

/* --- the resources of a device, a context and a stream */

static CUresult get(device *dev, const struct CUctx_st *ctx, CUdevResource *r, CUdevResourceType type) {
  REQUIRE_POINTER(r);
  CUgreenCtx green = ctx != NULL ? ctx->green : NULL;
  switch (type) {
    case CU_DEV_RESOURCE_TYPE_SM: {
      const sm_set *sms = ctx != NULL ? ctx->sms : NULL;
      make_sms(r, (origin){ORIGIN, dev->ordinal, 0, 1, 0, sms != NULL ? *sms : sms_all(device_sms(dev))}, SM_STEP, 0);
      return CUDA_SUCCESS;
    }
    case CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG:
    case CU_DEV_RESOURCE_TYPE_WORKQUEUE: /* kept, without effect: submission takes no time here */
      *r = (CUdevResource){.type = type};
      r->wqConfig = green != NULL ? green->desc->queue : (CUdevWorkqueueConfigResource){dev->ordinal, QUEUES, 0};
      return CUDA_SUCCESS;
    default: return fail(CUDA_ERROR_INVALID_RESOURCE_TYPE, "there are no resources of type %d", (int)type);
  }
}

CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource *resource, CUdevResourceType type) {
  device *dev;
  TRY(device_get(ordinal, &dev));
  return get(dev, NULL, resource, type);
}

CUresult cuCtxGetDevResource(CUcontext given, CUdevResource *resource, CUdevResourceType type) {
  CUcontext ctx;
  TRY(context_or_current(given, &ctx));
  return get(ctx->dev, ctx, resource, type);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource, CUdevResourceType type) {
  TRY(green_get(green));
  return get(green->ctx->dev, green->ctx, resource, type);
}

CUresult cuStreamGetDevResource(CUstream stream, CUdevResource *resource, CUdevResourceType type) {
  CUstream s;
  TRY(stream_get(stream, &s));
  REQUIRE(type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE, "a stream has only SMs, not type %d",
          (int)type);
  return get(s->ctx->dev, s->home, resource, type);
}

/* --- splits of SMs */

/* Takes the first SMs of `rest` as one partition. */
static void split_off(origin *rest, uint32_t count, uint32_t step, uint32_t flags, CUdevResource *partition) {
  origin made = *rest;
  made.whole = 0;
  made.sms = sms_first(&rest->sms, count);
  sms_take(&rest->sms, &made.sms);
  if (partition != NULL) make_sms(partition, made, step, flags);
}

static void leave_rest(const origin *rest, CUdevResource *remainder) {
  if (remainder == NULL) return;
  *remainder = (CUdevResource){.type = CU_DEV_RESOURCE_TYPE_INVALID};
  if (sms_count(&rest->sms) > 0) make_sms(remainder, *rest, SM_STEP, 0);
}

/* The SMs that a split begins with. */
static CUresult begin_split(const CUdevResource *input, origin *rest) {
  REQUIRE_POINTER(input);
  TRY(require_init());
  TRY(origin_of(input, rest));
  REQUIRE(rest->whole, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
          "a partition can be split again only as the resource of a green context");
  rest->split = unique_id();
  return CUDA_SUCCESS;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned *groups, const CUdevResource *input,
                                     CUdevResource *remainder, unsigned flags, unsigned least) {
  origin rest;
  REQUIRE_POINTER(groups);
  TRY(begin_split(input, &rest));
  REQUIRE((flags & ~CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) == 0, CUDA_ERROR_INVALID_VALUE,
          "%s: flags %#x, of which this device has only 1", __func__, flags);
  uint32_t count = sms_count(&rest.sms), size = flags != 0 ? SM_STEP : SM_LEAST;
  REQUIRE(least <= count, CUDA_ERROR_INVALID_VALUE, "%u SMs for each partition, of %u in all", least, count);
  REQUIRE(result == NULL || *groups > 0, CUDA_ERROR_INVALID_VALUE, "a split into no partitions");
  if (least > size) size = (least + SM_STEP - 1) / SM_STEP * SM_STEP;
  uint32_t most = count / size;
  REQUIRE(most > 0, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "a partition has %u SMs at least; there are %u", size,
          count);
  if (result == NULL || *groups > most) *groups = most;
  for (unsigned i = 0; i < *groups; i++) split_off(&rest, size, SM_STEP, 0, result != NULL ? &result[i] : NULL);
  leave_rest(&rest, remainder);
  return CUDA_SUCCESS;
}

/* One group of cuDevSmResourceSplit; 0 SMs wanted: as many as there are. */
static CUresult take_group(origin *rest, CU_DEV_SM_RESOURCE_GROUP_PARAMS *p, uint32_t input, CUdevResource *result) {
  uint32_t count = sms_count(&rest->sms), step = p->coscheduledSmCount != 0 ? p->coscheduledSmCount : SM_STEP;
  bool backfill = p->flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL;
  REQUIRE((p->flags & ~CU_DEV_SM_RESOURCE_GROUP_BACKFILL) == 0, CUDA_ERROR_INVALID_VALUE,
          "a group of SMs with flags %#x", p->flags);
  REQUIRE(step == SM_STEP && p->preferredCoscheduledSmCount % SM_STEP == 0, CUDA_ERROR_INVALID_VALUE,
          "%u SMs scheduled together; on this device there are %d", p->coscheduledSmCount, SM_STEP);
  REQUIRE(p->smCount % 2 == 0 && p->smCount <= input, CUDA_ERROR_INVALID_VALUE,
          "a group of %u SMs, of %u: not even, or too many", p->smCount, input);
  if (p->smCount == 0) p->smCount = backfill ? count : count / step * step;
  REQUIRE(p->smCount <= count && (result == NULL || p->smCount >= step), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
          "a group of %u SMs, where %u are left", p->smCount, count);
  split_off(rest, p->smCount, step, p->flags, result);
  return CUDA_SUCCESS;
}

CUresult cuDevSmResourceSplit(CUdevResource *result, unsigned groups, const CUdevResource *input,
                              CUdevResource *remainder, unsigned flags, CU_DEV_SM_RESOURCE_GROUP_PARAMS *params) {
  origin rest;
  REQUIRE_POINTER(params);
  TRY(begin_split(input, &rest));
  REQUIRE(flags == 0 && groups > 0, CUDA_ERROR_INVALID_VALUE, "%s: %u groups, flags %#x", __func__, groups, flags);
  uint32_t count = sms_count(&rest.sms);
  for (unsigned i = 0; i < groups; i++) TRY(take_group(&rest, &params[i], count, result != NULL ? &result[i] : NULL));
  leave_rest(&rest, remainder);
  return CUDA_SUCCESS;
}

/* --- descriptors: what a green context gets */

static CUresult add_sms(CUdevResourceDesc desc, const CUdevResource *r, origin *first, unsigned partitions) {
  origin from;
  TRY(origin_of(r, &from));
  if (partitions == 0) *first = from;
  bool other = from.split != 0 && from.split == first->split && !sms_meet(&desc->sms, &from.sms);
  REQUIRE(partitions == 0 || other, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "SMs that are not different partitions of one split");
  sms_add(&desc->sms, &from.sms);
  return CUDA_SUCCESS;
}

static CUresult fill_desc(CUdevResourceDesc desc, const CUdevResource *resources, unsigned count) {
  unsigned partitions = 0;
  origin first = {0};
  desc->queue = (CUdevWorkqueueConfigResource){-1, QUEUES, 0};
  for (unsigned i = 0; i < count; i++) {
    const CUdevResource *r = &resources[i];
    bool queue = r->type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG || r->type == CU_DEV_RESOURCE_TYPE_WORKQUEUE;
    if (queue) desc->queue = r->wqConfig;
    else TRY(add_sms(desc, r, &first, partitions++));
  }
  int ordinal = partitions > 0 ? first.ordinal : desc->queue.device;
  bool same = ordinal >= 0 && ordinal < device_count && (desc->queue.device == -1 || desc->queue.device == ordinal);
  REQUIRE(same, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "resources that are not those of one device");
  desc->queue.device = ordinal;
  desc->dev = &devices[ordinal];
  return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources, unsigned count) {
  REQUIRE_POINTER(desc);
  TRY(require_init());
  REQUIRE(resources != NULL && count > 0, CUDA_ERROR_INVALID_VALUE, "%s: no resources", __func__);
  CUdevResourceDesc made = handle_new(HANDLE_RESOURCES, sizeof *made);
  REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a descriptor");
  CUresult status = fill_desc(made, resources, count);
  if (status == CUDA_SUCCESS) *desc = made;
  else handle_delete(made);
  return status;
}

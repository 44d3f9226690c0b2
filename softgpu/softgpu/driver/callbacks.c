/* The older kind of host function, whose arguments are the stream and the status of its work. */
#include "driver.h"

#include <stdlib.h>

typedef struct call {
  CUstreamCallback fn;
  CUstream stream; /* as the program named it */
  CUcontext ctx;
  void *data;
} call;

static void run(void *data) {
  call c = *(call *)data;
  free(data);
  c.fn(c.stream, (CUresult)atomic_load(&c.ctx->sticky), c.data);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback fn, void *data, unsigned flags) {
  CUstream s;
  TRY(stream_get(stream, &s));
  TRY(capture_forbids(s));
  REQUIRE_POINTER(fn);
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags must be 0", __func__);
  call *made = malloc(sizeof *made);
  REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a callback");
  *made = (call){fn, stream, s->ctx, data};
  CUresult status = submit(s, &(op){.kind = OP_HOST, .host = {run, made}}, false);
  if (status != CUDA_SUCCESS) free(made);
  return status;
}

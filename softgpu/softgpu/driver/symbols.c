/* cuGetProcAddress: a function by its name and the CUDA version of the binary interface that the caller uses.
 *
 * Refused calls (refused.h) are found too, and report their name when they are called.
 */
#include <string.h>

#include "driver.h"
#include "refused.h"

/* Name, first CUDA version of the interface, function. Of several interfaces with one name, the oldest is first. */
#define FUNCTIONS(X) \
  X(cuCtxCreate, 3020, cuCtxCreate_v2) X(cuCtxCreate, 12050, cuCtxCreate_v4) X(cuCtxDestroy, 4000, cuCtxDestroy_v2) \
  X(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess) X(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess) \
  X(cuCtxFromGreenCtx, 12040, cuCtxFromGreenCtx) X(cuCtxGetDevResource, 12040, cuCtxGetDevResource) \
  X(cuCtxRecordEvent, 12050, cuCtxRecordEvent) X(cuCtxWaitEvent, 12050, cuCtxWaitEvent) \
  X(cuDevResourceGenerateDesc, 12040, cuDevResourceGenerateDesc) \
  X(cuDevSmResourceSplit, 13010, cuDevSmResourceSplit) \
  X(cuDevSmResourceSplitByCount, 12040, cuDevSmResourceSplitByCount) \
  X(cuDeviceGetDevResource, 12040, cuDeviceGetDevResource) X(cuGreenCtxCreate, 12040, cuGreenCtxCreate) \
  X(cuGreenCtxDestroy, 12040, cuGreenCtxDestroy) X(cuGreenCtxGetDevResource, 12040, cuGreenCtxGetDevResource) \
  X(cuGreenCtxGetId, 12090, cuGreenCtxGetId) X(cuGreenCtxRecordEvent, 12040, cuGreenCtxRecordEvent) \
  X(cuGreenCtxStreamCreate, 12050, cuGreenCtxStreamCreate) X(cuGreenCtxWaitEvent, 12040, cuGreenCtxWaitEvent) \
  X(cuStreamGetDevResource, 13010, cuStreamGetDevResource) X(cuStreamGetGreenCtx, 12040, cuStreamGetGreenCtx) \
  X(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion) X(cuCtxGetCacheConfig, 3020, cuCtxGetCacheConfig) \
  X(cuCtxGetCurrent, 4000, cuCtxGetCurrent) X(cuCtxGetDevice, 2000, cuCtxGetDevice) \
  X(cuCtxGetDevice, 13000, cuCtxGetDevice_v2) X(cuCtxGetFlags, 7000, cuCtxGetFlags) X(cuCtxGetId, 12000, cuCtxGetId) \
  X(cuCtxGetLimit, 3010, cuCtxGetLimit) X(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange) \
  X(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2) X(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2) \
  X(cuCtxSetCacheConfig, 3020, cuCtxSetCacheConfig) X(cuCtxSetCurrent, 4000, cuCtxSetCurrent) \
  X(cuCtxSetFlags, 12010, cuCtxSetFlags) X(cuCtxSetLimit, 3010, cuCtxSetLimit) \
  X(cuCtxSynchronize, 2000, cuCtxSynchronize) X(cuCtxSynchronize, 13000, cuCtxSynchronize_v2) \
  X(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer) \
  X(cuDeviceComputeCapability, 2000, cuDeviceComputeCapability) X(cuDeviceGet, 2000, cuDeviceGet) \
  X(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute) X(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId) \
  X(cuDeviceGetCount, 2000, cuDeviceGetCount) X(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool) \
  X(cuDeviceGetExecAffinitySupport, 11040, cuDeviceGetExecAffinitySupport) \
  X(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool) X(cuDeviceGetName, 2000, cuDeviceGetName) \
  X(cuDeviceGetP2PAttribute, 8000, cuDeviceGetP2PAttribute) X(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId) \
  X(cuDeviceGetUuid, 9020, cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState) \
  X(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease_v2) \
  X(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset_v2) \
  X(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain) \
  X(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2) \
  X(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool) X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2) \
  X(cuDriverGetVersion, 2020, cuDriverGetVersion) X(cuEventCreate, 2000, cuEventCreate) \
  X(cuEventDestroy, 4000, cuEventDestroy_v2) X(cuEventElapsedTime, 2000, cuEventElapsedTime_v2) \
  X(cuEventQuery, 2000, cuEventQuery) X(cuEventRecord, 2000, cuEventRecord) \
  X(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags) X(cuEventSynchronize, 2000, cuEventSynchronize) \
  X(cuFuncGetAttribute, 2020, cuFuncGetAttribute) X(cuFuncGetModule, 11000, cuFuncGetModule) \
  X(cuFuncGetName, 12030, cuFuncGetName) X(cuFuncGetParamInfo, 12040, cuFuncGetParamInfo) \
  X(cuFuncIsLoaded, 12040, cuFuncIsLoaded) X(cuFuncLoad, 12040, cuFuncLoad) \
  X(cuFuncSetAttribute, 9000, cuFuncSetAttribute) X(cuFuncSetCacheConfig, 3000, cuFuncSetCacheConfig) \
  X(cuGetErrorName, 6000, cuGetErrorName) X(cuGetErrorString, 6000, cuGetErrorString) \
  X(cuGraphAddChildGraphNode, 10000, cuGraphAddChildGraphNode) \
  X(cuGraphAddDependencies, 12030, cuGraphAddDependencies_v2) X(cuGraphAddEmptyNode, 10000, cuGraphAddEmptyNode) \
  X(cuGraphAddEventRecordNode, 11010, cuGraphAddEventRecordNode) \
  X(cuGraphAddEventWaitNode, 11010, cuGraphAddEventWaitNode) X(cuGraphAddHostNode, 10000, cuGraphAddHostNode) \
  X(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2) X(cuGraphAddMemcpyNode, 10000, cuGraphAddMemcpyNode) \
  X(cuGraphAddMemAllocNode, 11040, cuGraphAddMemAllocNode) X(cuGraphAddMemFreeNode, 11040, cuGraphAddMemFreeNode) \
  X(cuGraphMemAllocNodeGetParams, 11040, cuGraphMemAllocNodeGetParams) \
  X(cuGraphMemFreeNodeGetParams, 11040, cuGraphMemFreeNodeGetParams) \
  X(cuDeviceGetGraphMemAttribute, 11040, cuDeviceGetGraphMemAttribute) \
  X(cuDeviceSetGraphMemAttribute, 11040, cuDeviceSetGraphMemAttribute) \
  X(cuDeviceGraphMemTrim, 11040, cuDeviceGraphMemTrim) \
  X(cuGraphAddMemsetNode, 10000, cuGraphAddMemsetNode) X(cuGraphAddNode, 12030, cuGraphAddNode_v2) \
  X(cuGraphChildGraphNodeGetGraph, 10000, cuGraphChildGraphNodeGetGraph) X(cuGraphClone, 10000, cuGraphClone) \
  X(cuGraphConditionalHandleCreate, 12030, cuGraphConditionalHandleCreate) \
  X(cuGraphCreate, 10000, cuGraphCreate) X(cuGraphDebugDotPrint, 11030, cuGraphDebugDotPrint) \
  X(cuGraphDestroy, 10000, cuGraphDestroy) X(cuGraphDestroyNode, 10000, cuGraphDestroyNode) \
  X(cuGraphEventRecordNodeGetEvent, 11010, cuGraphEventRecordNodeGetEvent) \
  X(cuGraphEventRecordNodeSetEvent, 11010, cuGraphEventRecordNodeSetEvent) \
  X(cuGraphEventWaitNodeGetEvent, 11010, cuGraphEventWaitNodeGetEvent) \
  X(cuGraphEventWaitNodeSetEvent, 11010, cuGraphEventWaitNodeSetEvent) \
  X(cuGraphExecDestroy, 10000, cuGraphExecDestroy) \
  X(cuGraphExecEventRecordNodeSetEvent, 11010, cuGraphExecEventRecordNodeSetEvent) \
  X(cuGraphExecEventWaitNodeSetEvent, 11010, cuGraphExecEventWaitNodeSetEvent) \
  X(cuGraphExecGetFlags, 12000, cuGraphExecGetFlags) \
  X(cuGraphExecHostNodeSetParams, 10020, cuGraphExecHostNodeSetParams) \
  X(cuGraphExecKernelNodeSetParams, 12000, cuGraphExecKernelNodeSetParams_v2) \
  X(cuGraphExecMemcpyNodeSetParams, 10020, cuGraphExecMemcpyNodeSetParams) \
  X(cuGraphExecMemsetNodeSetParams, 10020, cuGraphExecMemsetNodeSetParams) \
  X(cuGraphExecNodeSetParams, 12020, cuGraphExecNodeSetParams) X(cuGraphExecUpdate, 12000, cuGraphExecUpdate_v2) \
  X(cuGraphGetEdges, 12030, cuGraphGetEdges_v2) X(cuGraphGetNodes, 10000, cuGraphGetNodes) \
  X(cuGraphGetRootNodes, 10000, cuGraphGetRootNodes) X(cuGraphHostNodeGetParams, 10000, cuGraphHostNodeGetParams) \
  X(cuGraphHostNodeSetParams, 10000, cuGraphHostNodeSetParams) \
  X(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags) \
  X(cuGraphInstantiateWithParams, 12000, cuGraphInstantiateWithParams) \
  X(cuGraphKernelNodeGetParams, 12000, cuGraphKernelNodeGetParams_v2) \
  X(cuGraphKernelNodeSetParams, 12000, cuGraphKernelNodeSetParams_v2) X(cuGraphLaunch, 10000, cuGraphLaunch) \
  X(cuGraphMemcpyNodeGetParams, 10000, cuGraphMemcpyNodeGetParams) \
  X(cuGraphMemcpyNodeSetParams, 10000, cuGraphMemcpyNodeSetParams) \
  X(cuGraphMemsetNodeGetParams, 10000, cuGraphMemsetNodeGetParams) \
  X(cuGraphMemsetNodeSetParams, 10000, cuGraphMemsetNodeSetParams) \
  X(cuGraphNodeFindInClone, 10000, cuGraphNodeFindInClone) \
  X(cuGraphNodeGetDependencies, 12030, cuGraphNodeGetDependencies_v2) \
  X(cuGraphNodeGetDependentNodes, 12030, cuGraphNodeGetDependentNodes_v2) \
  X(cuGraphNodeGetEnabled, 11060, cuGraphNodeGetEnabled) X(cuGraphNodeGetType, 10000, cuGraphNodeGetType) \
  X(cuGraphNodeSetEnabled, 11060, cuGraphNodeSetEnabled) X(cuGraphNodeSetParams, 12020, cuGraphNodeSetParams) \
  X(cuGraphReleaseUserObject, 11030, cuGraphReleaseUserObject) \
  X(cuGraphRemoveDependencies, 12030, cuGraphRemoveDependencies_v2) \
  X(cuGraphRetainUserObject, 11030, cuGraphRetainUserObject) X(cuGraphUpload, 11010, cuGraphUpload) \
  X(cuInit, 2000, cuInit) X(cuKernelGetAttribute, 12000, cuKernelGetAttribute) \
  X(cuKernelGetFunction, 12000, cuKernelGetFunction) X(cuKernelGetLibrary, 12050, cuKernelGetLibrary) \
  X(cuKernelGetName, 12030, cuKernelGetName) X(cuKernelGetParamInfo, 12040, cuKernelGetParamInfo) \
  X(cuKernelSetAttribute, 12000, cuKernelSetAttribute) X(cuKernelSetCacheConfig, 12000, cuKernelSetCacheConfig) \
  X(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel) \
  X(cuLaunchHostFunc, 10000, cuLaunchHostFunc) X(cuLaunchKernel, 4000, cuLaunchKernel) \
  X(cuLaunchKernelEx, 11060, cuLaunchKernelEx) X(cuLibraryEnumerateKernels, 12040, cuLibraryEnumerateKernels) \
  X(cuLibraryGetGlobal, 12000, cuLibraryGetGlobal) X(cuLibraryGetKernel, 12000, cuLibraryGetKernel) \
  X(cuLibraryGetManaged, 12000, cuLibraryGetManaged) \
  X(cuLibraryGetKernelCount, 12040, cuLibraryGetKernelCount) X(cuLibraryGetModule, 12000, cuLibraryGetModule) \
  X(cuLinkAddData, 6050, cuLinkAddData_v2) X(cuLinkAddFile, 6050, cuLinkAddFile_v2) \
  X(cuLinkComplete, 5050, cuLinkComplete) X(cuLinkCreate, 6050, cuLinkCreate_v2) \
  X(cuLinkDestroy, 5050, cuLinkDestroy) \
  X(cuLibraryLoadData, 12000, cuLibraryLoadData) X(cuLibraryUnload, 12000, cuLibraryUnload) \
  X(cuMemAddressFree, 10020, cuMemAddressFree) X(cuMemAddressReserve, 10020, cuMemAddressReserve) \
  X(cuMemCreate, 10020, cuMemCreate) X(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle) \
  X(cuMemGetAccess, 10020, cuMemGetAccess) \
  X(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity) \
  X(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle) \
  X(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle) \
  X(cuMemMap, 10020, cuMemMap) X(cuMemRelease, 10020, cuMemRelease) \
  X(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle) X(cuMemSetAccess, 10020, cuMemSetAccess) \
  X(cuMemUnmap, 10020, cuMemUnmap) \
  X(cuMemAlloc, 3020, cuMemAlloc_v2) X(cuMemAllocAsync, 11020, cuMemAllocAsync) \
  X(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync) X(cuMemAllocHost, 3020, cuMemAllocHost_v2) \
  X(cuMemAllocManaged, 6000, cuMemAllocManaged) X(cuMemAllocPitch, 3020, cuMemAllocPitch_v2) \
  X(cuMemFree, 3020, cuMemFree_v2) X(cuMemFreeAsync, 11020, cuMemFreeAsync) X(cuMemFreeHost, 2000, cuMemFreeHost) \
  X(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2) X(cuMemGetDefaultMemPool, 13000, cuMemGetDefaultMemPool) \
  X(cuMemGetInfo, 3020, cuMemGetInfo_v2) X(cuMemGetMemPool, 13000, cuMemGetMemPool) \
  X(cuMemHostAlloc, 2020, cuMemHostAlloc) X(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2) \
  X(cuMemHostGetFlags, 2030, cuMemHostGetFlags) X(cuMemHostRegister, 6050, cuMemHostRegister_v2) \
  X(cuMemHostUnregister, 4000, cuMemHostUnregister) X(cuMemPoolCreate, 11020, cuMemPoolCreate) \
  X(cuMemPoolDestroy, 11020, cuMemPoolDestroy) X(cuMemPoolGetAccess, 11020, cuMemPoolGetAccess) \
  X(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute) X(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess) \
  X(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute) X(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo) \
  X(cuMemcpy, 4000, cuMemcpy) X(cuMemcpy2D, 3020, cuMemcpy2D_v2) X(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2) \
  X(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2) X(cuMemcpy3D, 3020, cuMemcpy3D_v2) \
  X(cuMemcpy3DAsync, 3020, cuMemcpy3DAsync_v2) X(cuMemcpyAsync, 4000, cuMemcpyAsync) \
  X(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2) X(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2) \
  X(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2) X(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2) \
  X(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2) X(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2) \
  X(cuMemcpyPeer, 4000, cuMemcpyPeer) X(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync) \
  X(cuMemsetD16, 3020, cuMemsetD16_v2) X(cuMemsetD16Async, 3020, cuMemsetD16Async) \
  X(cuMemsetD2D32, 3020, cuMemsetD2D32_v2) X(cuMemsetD2D32Async, 3020, cuMemsetD2D32Async) \
  X(cuMemsetD2D8, 3020, cuMemsetD2D8_v2) X(cuMemsetD2D8Async, 3020, cuMemsetD2D8Async) \
  X(cuMemsetD32, 3020, cuMemsetD32_v2) X(cuMemsetD32Async, 3020, cuMemsetD32Async) \
  X(cuMemsetD8, 3020, cuMemsetD8_v2) X(cuMemsetD8Async, 3020, cuMemsetD8Async) \
  X(cuModuleGetFunction, 2000, cuModuleGetFunction) X(cuModuleGetFunctionCount, 12040, cuModuleGetFunctionCount) \
  X(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2) X(cuModuleGetLoadingMode, 11070, cuModuleGetLoadingMode) \
  X(cuModuleLoadData, 2000, cuModuleLoadData) X(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx) \
  X(cuModuleLoadFatBinary, 2000, cuModuleLoadFatBinary) X(cuModuleUnload, 2000, cuModuleUnload) \
  X(cuOccupancyAvailableDynamicSMemPerBlock, 10020, cuOccupancyAvailableDynamicSMemPerBlock) \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) \
  X(cuOccupancyMaxPotentialBlockSize, 6050, cuOccupancyMaxPotentialBlockSize) \
  X(cuOccupancyMaxPotentialBlockSizeWithFlags, 7000, cuOccupancyMaxPotentialBlockSizeWithFlags) \
  X(cuPointerGetAttribute, 4000, cuPointerGetAttribute) X(cuPointerGetAttributes, 7000, cuPointerGetAttributes) \
  X(cuPointerSetAttribute, 6000, cuPointerSetAttribute) X(cuStreamAttachMemAsync, 6000, cuStreamAttachMemAsync) \
  X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2) \
  X(cuStreamBeginCaptureToGraph, 12030, cuStreamBeginCaptureToGraph) X(cuStreamCreate, 2000, cuStreamCreate) \
  X(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority) X(cuStreamDestroy, 4000, cuStreamDestroy_v2) \
  X(cuStreamEndCapture, 10000, cuStreamEndCapture) X(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2) \
  X(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3) X(cuStreamGetCtx, 9020, cuStreamGetCtx) \
  X(cuStreamGetCtx, 12050, cuStreamGetCtx_v2) X(cuStreamGetDevice, 12080, cuStreamGetDevice) \
  X(cuStreamGetFlags, 5050, cuStreamGetFlags) X(cuStreamGetId, 12000, cuStreamGetId) \
  X(cuStreamGetPriority, 5050, cuStreamGetPriority) X(cuStreamIsCapturing, 10000, cuStreamIsCapturing) \
  X(cuStreamQuery, 2000, cuStreamQuery) X(cuStreamSynchronize, 2000, cuStreamSynchronize) \
  X(cuStreamUpdateCaptureDependencies, 12030, cuStreamUpdateCaptureDependencies_v2) \
  X(cuStreamWaitEvent, 3020, cuStreamWaitEvent) \
  X(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode) \
  X(cuUserObjectCreate, 11030, cuUserObjectCreate) X(cuUserObjectRelease, 11030, cuUserObjectRelease) \
  X(cuGraphExecChildGraphNodeSetParams, 11010, cuGraphExecChildGraphNodeSetParams) \
  X(cuGraphKernelNodeCopyAttributes, 11000, cuGraphKernelNodeCopyAttributes) \
  X(cuGraphKernelNodeGetAttribute, 11000, cuGraphKernelNodeGetAttribute) \
  X(cuGraphKernelNodeSetAttribute, 11000, cuGraphKernelNodeSetAttribute) \
  X(cuLibraryLoadFromFile, 12000, cuLibraryLoadFromFile) \
  X(cuMemAdvise, 12020, cuMemAdvise_v2) \
  X(cuMemDiscardAndPrefetchBatchAsync, 13000, cuMemDiscardAndPrefetchBatchAsync) \
  X(cuMemDiscardBatchAsync, 13000, cuMemDiscardBatchAsync) \
  X(cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2) \
  X(cuMemPrefetchBatchAsync, 13000, cuMemPrefetchBatchAsync) \
  X(cuMemRangeGetAttribute, 8000, cuMemRangeGetAttribute) \
  X(cuMemRangeGetAttributes, 8000, cuMemRangeGetAttributes) \
  X(cuMemcpy3DPeer, 4000, cuMemcpy3DPeer) \
  X(cuMemcpy3DPeerAsync, 4000, cuMemcpy3DPeerAsync) \
  X(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2) \
  X(cuMemsetD2D16, 3020, cuMemsetD2D16_v2) \
  X(cuMemsetD2D16Async, 3020, cuMemsetD2D16Async) \
  X(cuModuleEnumerateFunctions, 12040, cuModuleEnumerateFunctions) \
  X(cuModuleLoad, 2000, cuModuleLoad) \
  X(cuStreamAddCallback, 5000, cuStreamAddCallback) \
  X(cuStreamBatchMemOp, 8000, cuStreamBatchMemOp) \
  X(cuStreamCopyAttributes, 11000, cuStreamCopyAttributes) \
  X(cuStreamGetAttribute, 11000, cuStreamGetAttribute) \
  X(cuStreamSetAttribute, 11000, cuStreamSetAttribute) \
  X(cuStreamWaitValue32, 8000, cuStreamWaitValue32) \
  X(cuStreamWaitValue64, 9000, cuStreamWaitValue64) \
  X(cuStreamWriteValue32, 8000, cuStreamWriteValue32) \
  X(cuStreamWriteValue64, 9000, cuStreamWriteValue64) \
  X(cuGraphInstantiate, 10000, cuGraphInstantiate_v2) X(cuProfilerStart, 4000, cuProfilerStart) \
  X(cuProfilerStop, 4000, cuProfilerStop) X(cuUserObjectRetain, 11030, cuUserObjectRetain)

#define DECLARE(name, version, function) void function(void);
#define DECLARE_REFUSED(name, version, why) void name(void);
FUNCTIONS(DECLARE)
REFUSED(DECLARE_REFUSED)
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *result);
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags);

typedef void (*any_function)(void);
static const struct { const char *name; int version; any_function function; } functions[] = {
#define ROW(name, version, function) {#name, version, function},
#define ROW_REFUSED(name, version, why) {#name, version, name},
  FUNCTIONS(ROW) REFUSED(ROW_REFUSED)
  {"cuGetProcAddress", 11030, (any_function)cuGetProcAddress},
  {"cuGetProcAddress", 12000, (any_function)cuGetProcAddress_v2},
};

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *result) {
  (void)flags; /* the choice of the default stream: both are the same here */
  REQUIRE_POINTER(name);
  REQUIRE_POINTER(function);
  bool known = false;
  any_function found = NULL;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    if (strcmp(functions[i].name, name) != 0) continue;
    known = true;
    if (functions[i].version <= version) found = functions[i].function;
  }
  /* A caller built for a newer CUDA may mean another interface with this name. */
  if (version > DRIVER_VERSION) found = NULL;
  memcpy(function, &found, sizeof found);
  if (result != NULL)
    *result = found != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
              : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  REQUIRE(found != NULL, CUDA_ERROR_NOT_FOUND, "the software GPU has no %s of CUDA %d", name, version);
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

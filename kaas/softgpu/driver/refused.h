/* The driver calls that this one refuses, each with its first CUDA version and why: what it would take to be asked for.
 *
 * Whoever calls one finds its name on stderr, once, and in kaas_softgpu_last_error.
 */
#ifndef KAAS_SOFTGPU_REFUSED_H
#define KAAS_SOFTGPU_REFUSED_H

#define REFUSED(X) \
  X(cuArray3DCreate, 2000, "arrays, textures and surfaces") \
  X(cuArray3DGetDescriptor, 2000, "arrays, textures and surfaces") \
  X(cuArrayCreate, 2000, "arrays, textures and surfaces") X(cuArrayDestroy, 2000, "arrays, textures and surfaces") \
  X(cuArrayGetDescriptor, 2000, "arrays, textures and surfaces") \
  X(cuArrayGetMemoryRequirements, 11060, "arrays, textures and surfaces") \
  X(cuArrayGetPlane, 11020, "arrays, textures and surfaces") \
  X(cuArrayGetSparseProperties, 11010, "arrays, textures and surfaces") \
  X(cuDeviceGetHostAtomicCapabilities, 13000, "arrays, textures and surfaces") \
  X(cuDeviceGetP2PAtomicCapabilities, 13000, "arrays, textures and surfaces") \
  X(cuDeviceGetTexture1DLinearMaxWidth, 11010, "arrays, textures and surfaces") \
  X(cuExternalMemoryGetMappedMipmappedArray, 10000, "arrays, textures and surfaces") \
  X(cuGraphicsResourceGetMappedMipmappedArray, 5000, "arrays, textures and surfaces") \
  X(cuGraphicsSubResourceGetMappedArray, 3000, "arrays, textures and surfaces") \
  X(cuGraphicsVDPAURegisterOutputSurface, 3010, "arrays, textures and surfaces") \
  X(cuGraphicsVDPAURegisterVideoSurface, 3010, "arrays, textures and surfaces") \
  X(cuMemMapArrayAsync, 11010, "arrays, textures and surfaces") \
  X(cuMemcpyAtoA, 2000, "arrays, textures and surfaces") X(cuMemcpyAtoD, 2000, "arrays, textures and surfaces") \
  X(cuMemcpyAtoH, 2000, "arrays, textures and surfaces") \
  X(cuMemcpyAtoHAsync, 2000, "arrays, textures and surfaces") \
  X(cuMemcpyDtoA, 2000, "arrays, textures and surfaces") X(cuMemcpyHtoA, 2000, "arrays, textures and surfaces") \
  X(cuMemcpyHtoAAsync, 2000, "arrays, textures and surfaces") \
  X(cuMipmappedArrayCreate, 5000, "arrays, textures and surfaces") \
  X(cuMipmappedArrayDestroy, 5000, "arrays, textures and surfaces") \
  X(cuMipmappedArrayGetLevel, 5000, "arrays, textures and surfaces") \
  X(cuMipmappedArrayGetMemoryRequirements, 11060, "arrays, textures and surfaces") \
  X(cuMipmappedArrayGetSparseProperties, 11010, "arrays, textures and surfaces") \
  X(cuModuleGetSurfRef, 3000, "arrays, textures and surfaces") \
  X(cuModuleGetTexRef, 2000, "arrays, textures and surfaces") \
  X(cuParamSetTexRef, 2000, "arrays, textures and surfaces") \
  X(cuSurfObjectCreate, 5000, "arrays, textures and surfaces") \
  X(cuSurfObjectDestroy, 5000, "arrays, textures and surfaces") \
  X(cuSurfObjectGetResourceDesc, 5000, "arrays, textures and surfaces") \
  X(cuSurfRefGetArray, 3000, "arrays, textures and surfaces") \
  X(cuSurfRefSetArray, 3000, "arrays, textures and surfaces") \
  X(cuTexObjectCreate, 5000, "arrays, textures and surfaces") \
  X(cuTexObjectDestroy, 5000, "arrays, textures and surfaces") \
  X(cuTexObjectGetResourceDesc, 5000, "arrays, textures and surfaces") \
  X(cuTexObjectGetResourceViewDesc, 5000, "arrays, textures and surfaces") \
  X(cuTexObjectGetTextureDesc, 5000, "arrays, textures and surfaces") \
  X(cuTexRefCreate, 2000, "arrays, textures and surfaces") \
  X(cuTexRefDestroy, 2000, "arrays, textures and surfaces") \
  X(cuTexRefGetAddress, 2000, "arrays, textures and surfaces") \
  X(cuTexRefGetAddressMode, 2000, "arrays, textures and surfaces") \
  X(cuTexRefGetArray, 2000, "arrays, textures and surfaces") \
  X(cuTexRefGetBorderColor, 8000, "arrays, textures and surfaces") \
  X(cuTexRefGetFilterMode, 2000, "arrays, textures and surfaces") \
  X(cuTexRefGetFlags, 2000, "arrays, textures and surfaces") \
  X(cuTexRefGetFormat, 2000, "arrays, textures and surfaces") \
  X(cuTexRefGetMaxAnisotropy, 5000, "arrays, textures and surfaces") \
  X(cuTexRefGetMipmapFilterMode, 5000, "arrays, textures and surfaces") \
  X(cuTexRefGetMipmapLevelBias, 5000, "arrays, textures and surfaces") \
  X(cuTexRefGetMipmapLevelClamp, 5000, "arrays, textures and surfaces") \
  X(cuTexRefGetMipmappedArray, 5000, "arrays, textures and surfaces") \
  X(cuTexRefSetAddress, 2000, "arrays, textures and surfaces") \
  X(cuTexRefSetAddress2D, 2020, "arrays, textures and surfaces") \
  X(cuTexRefSetAddressMode, 2000, "arrays, textures and surfaces") \
  X(cuTexRefSetArray, 2000, "arrays, textures and surfaces") \
  X(cuTexRefSetBorderColor, 8000, "arrays, textures and surfaces") \
  X(cuTexRefSetFilterMode, 2000, "arrays, textures and surfaces") \
  X(cuTexRefSetFlags, 2000, "arrays, textures and surfaces") \
  X(cuTexRefSetFormat, 2000, "arrays, textures and surfaces") \
  X(cuTexRefSetMaxAnisotropy, 5000, "arrays, textures and surfaces") \
  X(cuTexRefSetMipmapFilterMode, 5000, "arrays, textures and surfaces") \
  X(cuTexRefSetMipmapLevelBias, 5000, "arrays, textures and surfaces") \
  X(cuTexRefSetMipmapLevelClamp, 5000, "arrays, textures and surfaces") \
  X(cuTexRefSetMipmappedArray, 5000, "arrays, textures and surfaces") \
  X(cuTensorMapEncodeIm2col, 12000, "tensor maps") X(cuTensorMapEncodeIm2colWide, 12080, "tensor maps") \
  X(cuTensorMapEncodeTiled, 12000, "tensor maps") X(cuTensorMapReplaceAddress, 12000, "tensor maps") \
  X(cuDeviceGetNvSciSyncAttributes, 10020, "graphics") X(cuEGLStreamConsumerAcquireFrame, 7000, "graphics") \
  X(cuEGLStreamConsumerConnect, 7000, "graphics") X(cuEGLStreamConsumerConnectWithFlags, 8000, "graphics") \
  X(cuEGLStreamConsumerDisconnect, 7000, "graphics") X(cuEGLStreamConsumerReleaseFrame, 7000, "graphics") \
  X(cuEGLStreamProducerConnect, 7000, "graphics") X(cuEGLStreamProducerDisconnect, 7000, "graphics") \
  X(cuEGLStreamProducerPresentFrame, 7000, "graphics") X(cuEGLStreamProducerReturnFrame, 7000, "graphics") \
  X(cuEventCreateFromEGLSync, 9000, "graphics") X(cuGLCtxCreate, 2000, "graphics") \
  X(cuGLGetDevices, 4010, "graphics") X(cuGLInit, 2000, "graphics") X(cuGLMapBufferObject, 2000, "graphics") \
  X(cuGLMapBufferObjectAsync, 2030, "graphics") X(cuGLRegisterBufferObject, 2000, "graphics") \
  X(cuGLSetBufferObjectMapFlags, 2030, "graphics") X(cuGLUnmapBufferObject, 2000, "graphics") \
  X(cuGLUnmapBufferObjectAsync, 2030, "graphics") X(cuGLUnregisterBufferObject, 2000, "graphics") \
  X(cuGraphicsEGLRegisterImage, 7000, "graphics") X(cuGraphicsGLRegisterBuffer, 3000, "graphics") \
  X(cuGraphicsGLRegisterImage, 3000, "graphics") X(cuGraphicsMapResources, 3000, "graphics") \
  X(cuGraphicsResourceGetMappedEglFrame, 7000, "graphics") X(cuGraphicsResourceGetMappedPointer, 3000, "graphics") \
  X(cuGraphicsResourceSetMapFlags, 3000, "graphics") X(cuGraphicsUnmapResources, 3000, "graphics") \
  X(cuGraphicsUnregisterResource, 3000, "graphics") X(cuVDPAUCtxCreate, 3010, "graphics") \
  X(cuVDPAUGetDevice, 3010, "graphics") X(cuWGLGetDevice, 2020, "graphics") \
  X(cuDestroyExternalMemory, 10000, "memory and semaphores of other interfaces") \
  X(cuDestroyExternalSemaphore, 10000, "memory and semaphores of other interfaces") \
  X(cuExternalMemoryGetMappedBuffer, 10000, "memory and semaphores of other interfaces") \
  X(cuGraphAddExternalSemaphoresSignalNode, 11020, "memory and semaphores of other interfaces") \
  X(cuGraphAddExternalSemaphoresWaitNode, 11020, "memory and semaphores of other interfaces") \
  X(cuGraphExecExternalSemaphoresSignalNodeSetParams, 11020, "memory and semaphores of other interfaces") \
  X(cuGraphExecExternalSemaphoresWaitNodeSetParams, 11020, "memory and semaphores of other interfaces") \
  X(cuGraphExternalSemaphoresSignalNodeGetParams, 11020, "memory and semaphores of other interfaces") \
  X(cuGraphExternalSemaphoresSignalNodeSetParams, 11020, "memory and semaphores of other interfaces") \
  X(cuGraphExternalSemaphoresWaitNodeGetParams, 11020, "memory and semaphores of other interfaces") \
  X(cuGraphExternalSemaphoresWaitNodeSetParams, 11020, "memory and semaphores of other interfaces") \
  X(cuImportExternalMemory, 10000, "memory and semaphores of other interfaces") \
  X(cuImportExternalSemaphore, 10000, "memory and semaphores of other interfaces") \
  X(cuMemBatchDecompressAsync, 12060, "memory and semaphores of other interfaces") \
  X(cuMemGetHandleForAddressRange, 11070, "memory and semaphores of other interfaces") \
  X(cuSignalExternalSemaphoresAsync, 10000, "memory and semaphores of other interfaces") \
  X(cuWaitExternalSemaphoresAsync, 10000, "memory and semaphores of other interfaces") \
  X(cuIpcCloseMemHandle, 4010, "memory shared between processes") \
  X(cuIpcGetEventHandle, 4010, "memory shared between processes") \
  X(cuIpcGetMemHandle, 4010, "memory shared between processes") \
  X(cuIpcOpenEventHandle, 4010, "memory shared between processes") \
  X(cuIpcOpenMemHandle, 4010, "memory shared between processes") \
  X(cuMemExportToShareableHandle, 10020, "memory shared between processes") \
  X(cuMemImportFromShareableHandle, 10020, "memory shared between processes") \
  X(cuMemPoolExportPointer, 11020, "memory shared between processes") \
  X(cuMemPoolExportToShareableHandle, 11020, "memory shared between processes") \
  X(cuMemPoolImportFromShareableHandle, 11020, "memory shared between processes") \
  X(cuMemPoolImportPointer, 11020, "memory shared between processes") \
  X(cuMemAddressFree, 10020, "memory mapped by hand") X(cuMemAddressReserve, 10020, "memory mapped by hand") \
  X(cuMemCreate, 10020, "memory mapped by hand") X(cuMemGetAccess, 10020, "memory mapped by hand") \
  X(cuMemGetAllocationGranularity, 10020, "memory mapped by hand") \
  X(cuMemGetAllocationPropertiesFromHandle, 10020, "memory mapped by hand") \
  X(cuMemMap, 10020, "memory mapped by hand") X(cuMemRelease, 10020, "memory mapped by hand") \
  X(cuMemRetainAllocationHandle, 11000, "memory mapped by hand") X(cuMemSetAccess, 10020, "memory mapped by hand") \
  X(cuMemUnmap, 10020, "memory mapped by hand") X(cuMulticastAddDevice, 12010, "memory mapped by hand") \
  X(cuMulticastBindAddr, 12010, "memory mapped by hand") X(cuMulticastBindMem, 12010, "memory mapped by hand") \
  X(cuMulticastCreate, 12010, "memory mapped by hand") \
  X(cuMulticastGetGranularity, 12010, "memory mapped by hand") \
  X(cuMulticastUnbind, 12010, "memory mapped by hand") \
  X(cuCtxFromGreenCtx, 12040, "green contexts") X(cuCtxGetDevResource, 12040, "green contexts") \
  X(cuCtxGetExecAffinity, 11040, "green contexts") X(cuCtxRecordEvent, 12050, "green contexts") \
  X(cuCtxWaitEvent, 12050, "green contexts") X(cuDevResourceGenerateDesc, 12040, "green contexts") \
  X(cuDevSmResourceSplitByCount, 12040, "green contexts") X(cuDeviceGetDevResource, 12040, "green contexts") \
  X(cuGreenCtxCreate, 12040, "green contexts") X(cuGreenCtxDestroy, 12040, "green contexts") \
  X(cuGreenCtxGetDevResource, 12040, "green contexts") X(cuGreenCtxGetId, 12090, "green contexts") \
  X(cuGreenCtxRecordEvent, 12040, "green contexts") X(cuGreenCtxStreamCreate, 12050, "green contexts") \
  X(cuGreenCtxWaitEvent, 12040, "green contexts") X(cuStreamGetGreenCtx, 12040, "green contexts") \
  X(cuLaunchCooperativeKernel, 9000, "clusters and cooperative launches") \
  X(cuLaunchCooperativeKernelMultiDevice, 9000, "clusters and cooperative launches") \
  X(cuOccupancyMaxActiveClusters, 11070, "clusters and cooperative launches") \
  X(cuOccupancyMaxPotentialClusterSize, 11070, "clusters and cooperative launches") \
  X(cuLinkAddData, 5050, "linking: load whole PTX") X(cuLinkAddFile, 5050, "linking: load whole PTX") \
  X(cuLinkComplete, 5050, "linking: load whole PTX") X(cuLinkCreate, 5050, "linking: load whole PTX") \
  X(cuLinkDestroy, 5050, "linking: load whole PTX") \
  X(cuCheckpointProcessCheckpoint, 12080, "checkpoints, core dumps and logs of the driver") \
  X(cuCheckpointProcessGetRestoreThreadId, 12080, "checkpoints, core dumps and logs of the driver") \
  X(cuCheckpointProcessGetState, 12080, "checkpoints, core dumps and logs of the driver") \
  X(cuCheckpointProcessLock, 12080, "checkpoints, core dumps and logs of the driver") \
  X(cuCheckpointProcessRestore, 12080, "checkpoints, core dumps and logs of the driver") \
  X(cuCheckpointProcessUnlock, 12080, "checkpoints, core dumps and logs of the driver") \
  X(cuCoredumpGetAttribute, 12010, "checkpoints, core dumps and logs of the driver") \
  X(cuCoredumpGetAttributeGlobal, 12010, "checkpoints, core dumps and logs of the driver") \
  X(cuCoredumpSetAttribute, 12010, "checkpoints, core dumps and logs of the driver") \
  X(cuCoredumpSetAttributeGlobal, 12010, "checkpoints, core dumps and logs of the driver") \
  X(cuDeviceRegisterAsyncNotification, 12040, "checkpoints, core dumps and logs of the driver") \
  X(cuDeviceUnregisterAsyncNotification, 12040, "checkpoints, core dumps and logs of the driver") \
  X(cuLogsCurrent, 12090, "checkpoints, core dumps and logs of the driver") \
  X(cuLogsDumpToFile, 12090, "checkpoints, core dumps and logs of the driver") \
  X(cuLogsDumpToMemory, 12090, "checkpoints, core dumps and logs of the driver") \
  X(cuLogsRegisterCallback, 12090, "checkpoints, core dumps and logs of the driver") \
  X(cuLogsUnregisterCallback, 12090, "checkpoints, core dumps and logs of the driver") \
  X(cuCtxAttach, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuCtxDetach, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuDeviceGetProperties, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuFuncSetBlockShape, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuFuncSetSharedSize, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuLaunch, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuLaunchGrid, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuLaunchGridAsync, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuParamSetSize, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuParamSetf, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuParamSeti, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuParamSetv, 2000, "the first CUDA's launches: use cuLaunchKernel") \
  X(cuGetExportTable, 3000, "private tables, which the CUDA runtime library wants of NVIDIA's driver: use the driver's calls") \
  X(cuCtxGetSharedMemConfig, 4020, "calls that few programs make") \
  X(cuCtxResetPersistingL2Cache, 11000, "calls that few programs make") \
  X(cuCtxSetSharedMemConfig, 4020, "calls that few programs make") \
  X(cuDeviceGetGraphMemAttribute, 11040, "calls that few programs make") \
  X(cuDeviceGetLuid, 10000, "calls that few programs make") \
  X(cuDeviceGraphMemTrim, 11040, "calls that few programs make") \
  X(cuDeviceSetGraphMemAttribute, 11040, "calls that few programs make") \
  X(cuFlushGPUDirectRDMAWrites, 11030, "calls that few programs make") \
  X(cuFuncSetSharedMemConfig, 4020, "calls that few programs make") \
  X(cuGraphAddBatchMemOpNode, 11070, "calls that few programs make") \
  X(cuGraphAddMemAllocNode, 11040, "calls that few programs make") \
  X(cuGraphAddMemFreeNode, 11040, "calls that few programs make") \
  X(cuGraphBatchMemOpNodeGetParams, 11070, "calls that few programs make") \
  X(cuGraphBatchMemOpNodeSetParams, 11070, "calls that few programs make") \
  X(cuGraphExecBatchMemOpNodeSetParams, 11070, "calls that few programs make") \
  X(cuGraphExecChildGraphNodeSetParams, 11010, "calls that few programs make") \
  X(cuGraphInstantiate, 10000, "calls that few programs make") \
  X(cuGraphKernelNodeCopyAttributes, 11000, "calls that few programs make") \
  X(cuGraphKernelNodeGetAttribute, 11000, "calls that few programs make") \
  X(cuGraphKernelNodeSetAttribute, 11000, "calls that few programs make") \
  X(cuGraphMemAllocNodeGetParams, 11040, "calls that few programs make") \
  X(cuGraphMemFreeNodeGetParams, 11040, "calls that few programs make") \
  X(cuLibraryGetManaged, 12000, "calls that few programs make") \
  X(cuLibraryGetUnifiedFunction, 12000, "calls that few programs make") \
  X(cuLibraryLoadFromFile, 12000, "calls that few programs make") \
  X(cuMemAdvise, 8000, "calls that few programs make") \
  X(cuMemDiscardAndPrefetchBatchAsync, 13000, "calls that few programs make") \
  X(cuMemDiscardBatchAsync, 13000, "calls that few programs make") \
  X(cuMemPrefetchAsync, 8000, "calls that few programs make") \
  X(cuMemPrefetchBatchAsync, 13000, "calls that few programs make") \
  X(cuMemRangeGetAttribute, 8000, "calls that few programs make") \
  X(cuMemRangeGetAttributes, 8000, "calls that few programs make") \
  X(cuMemSetMemPool, 13000, "calls that few programs make") \
  X(cuMemcpy3DBatchAsync, 12080, "calls that few programs make") \
  X(cuMemcpy3DPeer, 4000, "calls that few programs make") \
  X(cuMemcpy3DPeerAsync, 4000, "calls that few programs make") \
  X(cuMemcpyBatchAsync, 12080, "calls that few programs make") \
  X(cuMemsetD2D16, 2000, "calls that few programs make") \
  X(cuMemsetD2D16Async, 3020, "calls that few programs make") \
  X(cuModuleEnumerateFunctions, 12040, "calls that few programs make") \
  X(cuModuleLoad, 2000, "calls that few programs make") \
  X(cuProfilerInitialize, 4000, "calls that few programs make") \
  X(cuProfilerStart, 4000, "calls that few programs make") X(cuProfilerStop, 4000, "calls that few programs make") \
  X(cuStreamAddCallback, 5000, "calls that few programs make") \
  X(cuStreamBatchMemOp, 8000, "calls that few programs make") \
  X(cuStreamCopyAttributes, 11000, "calls that few programs make") \
  X(cuStreamGetAttribute, 11000, "calls that few programs make") \
  X(cuStreamSetAttribute, 11000, "calls that few programs make") \
  X(cuStreamWaitValue32, 8000, "calls that few programs make") \
  X(cuStreamWaitValue64, 9000, "calls that few programs make") \
  X(cuStreamWriteValue32, 8000, "calls that few programs make") \
  X(cuStreamWriteValue64, 9000, "calls that few programs make")

#endif

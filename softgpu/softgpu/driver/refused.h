/* The driver calls that this driver refuses: each with its first CUDA version, grouped by the missing feature.
 *
 * A call prints its name on stderr once, and puts it into softgpu_last_error. softgpu/docs/softgpu.md has the table.
 */
#ifndef SOFTGPU_REFUSED_H
#define SOFTGPU_REFUSED_H

#define REFUSED_ARRAYS(X, why) \
  X(cuArray3DCreate, 2000, why) X(cuArray3DGetDescriptor, 2000, why) X(cuArrayCreate, 2000, why) \
  X(cuArrayDestroy, 2000, why) X(cuArrayGetDescriptor, 2000, why) X(cuArrayGetMemoryRequirements, 11060, why) \
  X(cuArrayGetPlane, 11020, why) X(cuArrayGetSparseProperties, 11010, why) \
  X(cuDeviceGetTexture1DLinearMaxWidth, 11010, why) X(cuExternalMemoryGetMappedMipmappedArray, 10000, why) \
  X(cuGraphicsResourceGetMappedMipmappedArray, 5000, why) X(cuGraphicsSubResourceGetMappedArray, 3000, why) \
  X(cuMemMapArrayAsync, 11010, why) X(cuMemcpyAtoA, 2000, why) X(cuMemcpyAtoD, 2000, why) X(cuMemcpyAtoH, 2000, why) \
  X(cuMemcpyAtoHAsync, 2000, why) X(cuMemcpyDtoA, 2000, why) X(cuMemcpyHtoA, 2000, why) \
  X(cuMemcpyHtoAAsync, 2000, why) X(cuMipmappedArrayCreate, 5000, why) X(cuMipmappedArrayDestroy, 5000, why) \
  X(cuMipmappedArrayGetLevel, 5000, why) X(cuMipmappedArrayGetMemoryRequirements, 11060, why) \
  X(cuMipmappedArrayGetSparseProperties, 11010, why) X(cuModuleGetSurfRef, 3000, why) \
  X(cuModuleGetTexRef, 2000, why) X(cuParamSetTexRef, 2000, why) X(cuSurfObjectCreate, 5000, why) \
  X(cuSurfObjectDestroy, 5000, why) X(cuSurfObjectGetResourceDesc, 5000, why) X(cuSurfRefGetArray, 3000, why) \
  X(cuSurfRefSetArray, 3000, why) X(cuTexObjectCreate, 5000, why) X(cuTexObjectDestroy, 5000, why) \
  X(cuTexObjectGetResourceDesc, 5000, why) X(cuTexObjectGetResourceViewDesc, 5000, why) \
  X(cuTexObjectGetTextureDesc, 5000, why) X(cuTexRefCreate, 2000, why) X(cuTexRefDestroy, 2000, why) \
  X(cuTexRefGetAddress, 2000, why) X(cuTexRefGetAddressMode, 2000, why) X(cuTexRefGetArray, 2000, why) \
  X(cuTexRefGetBorderColor, 8000, why) X(cuTexRefGetFilterMode, 2000, why) X(cuTexRefGetFlags, 2000, why) \
  X(cuTexRefGetFormat, 2000, why) X(cuTexRefGetMaxAnisotropy, 5000, why) X(cuTexRefGetMipmapFilterMode, 5000, why) \
  X(cuTexRefGetMipmapLevelBias, 5000, why) X(cuTexRefGetMipmapLevelClamp, 5000, why) \
  X(cuTexRefGetMipmappedArray, 5000, why) X(cuTexRefSetAddress, 2000, why) X(cuTexRefSetAddress2D, 2020, why) \
  X(cuTexRefSetAddressMode, 2000, why) X(cuTexRefSetArray, 2000, why) X(cuTexRefSetBorderColor, 8000, why) \
  X(cuTexRefSetFilterMode, 2000, why) X(cuTexRefSetFlags, 2000, why) X(cuTexRefSetFormat, 2000, why) \
  X(cuTexRefSetMaxAnisotropy, 5000, why) X(cuTexRefSetMipmapFilterMode, 5000, why) \
  X(cuTexRefSetMipmapLevelBias, 5000, why) X(cuTexRefSetMipmapLevelClamp, 5000, why) \
  X(cuTexRefSetMipmappedArray, 5000, why)

#define REFUSED_TENSOR_MAPS(X, why) \
  X(cuTensorMapEncodeIm2col, 12000, why) X(cuTensorMapEncodeIm2colWide, 12080, why) \
  X(cuTensorMapEncodeTiled, 12000, why) X(cuTensorMapReplaceAddress, 12000, why)

#define REFUSED_GRAPHICS(X, why) \
  X(cuDeviceGetNvSciSyncAttributes, 10020, why) X(cuEGLStreamConsumerAcquireFrame, 7000, why) \
  X(cuEGLStreamConsumerConnect, 7000, why) X(cuEGLStreamConsumerConnectWithFlags, 8000, why) \
  X(cuEGLStreamConsumerDisconnect, 7000, why) X(cuEGLStreamConsumerReleaseFrame, 7000, why) \
  X(cuEGLStreamProducerConnect, 7000, why) X(cuEGLStreamProducerDisconnect, 7000, why) \
  X(cuEGLStreamProducerPresentFrame, 7000, why) X(cuEGLStreamProducerReturnFrame, 7000, why) \
  X(cuEventCreateFromEGLSync, 9000, why) X(cuGLCtxCreate, 2000, why) X(cuGLGetDevices, 4010, why) \
  X(cuGLInit, 2000, why) X(cuGLMapBufferObject, 2000, why) X(cuGLMapBufferObjectAsync, 2030, why) \
  X(cuGLRegisterBufferObject, 2000, why) X(cuGLSetBufferObjectMapFlags, 2030, why) \
  X(cuGLUnmapBufferObject, 2000, why) X(cuGLUnmapBufferObjectAsync, 2030, why) \
  X(cuGLUnregisterBufferObject, 2000, why) X(cuGraphicsEGLRegisterImage, 7000, why) \
  X(cuGraphicsGLRegisterBuffer, 3000, why) X(cuGraphicsGLRegisterImage, 3000, why) \
  X(cuGraphicsMapResources, 3000, why) X(cuGraphicsResourceGetMappedEglFrame, 7000, why) \
  X(cuGraphicsResourceGetMappedPointer, 3000, why) X(cuGraphicsResourceSetMapFlags, 3000, why) \
  X(cuGraphicsUnmapResources, 3000, why) X(cuGraphicsUnregisterResource, 3000, why) \
  X(cuGraphicsVDPAURegisterOutputSurface, 3010, why) X(cuGraphicsVDPAURegisterVideoSurface, 3010, why) \
  X(cuVDPAUCtxCreate, 3010, why) X(cuVDPAUGetDevice, 3010, why) X(cuWGLGetDevice, 2020, why)

#define REFUSED_EXTERNAL(X, why) \
  X(cuDestroyExternalMemory, 10000, why) X(cuDestroyExternalSemaphore, 10000, why) \
  X(cuExternalMemoryGetMappedBuffer, 10000, why) X(cuGraphAddExternalSemaphoresSignalNode, 11020, why) \
  X(cuGraphAddExternalSemaphoresWaitNode, 11020, why) \
  X(cuGraphExecExternalSemaphoresSignalNodeSetParams, 11020, why) \
  X(cuGraphExecExternalSemaphoresWaitNodeSetParams, 11020, why) \
  X(cuGraphExternalSemaphoresSignalNodeGetParams, 11020, why) \
  X(cuGraphExternalSemaphoresSignalNodeSetParams, 11020, why) \
  X(cuGraphExternalSemaphoresWaitNodeGetParams, 11020, why) \
  X(cuGraphExternalSemaphoresWaitNodeSetParams, 11020, why) X(cuImportExternalMemory, 10000, why) \
  X(cuImportExternalSemaphore, 10000, why) X(cuMemBatchDecompressAsync, 12060, why) \
  X(cuMemGetHandleForAddressRange, 11070, why) X(cuSignalExternalSemaphoresAsync, 10000, why) \
  X(cuWaitExternalSemaphoresAsync, 10000, why)

#define REFUSED_SHARED(X, why) \
  X(cuIpcCloseMemHandle, 4010, why) X(cuIpcGetEventHandle, 4010, why) X(cuIpcGetMemHandle, 4010, why) \
  X(cuIpcOpenEventHandle, 4010, why) X(cuIpcOpenMemHandle, 4010, why) X(cuMemPoolExportPointer, 11020, why) \
  X(cuMemPoolExportToShareableHandle, 11020, why) X(cuMemPoolImportFromShareableHandle, 11020, why) \
  X(cuMemPoolImportPointer, 11020, why)

#define REFUSED_MULTICAST(X, why) \
  X(cuMulticastAddDevice, 12010, why) X(cuMulticastBindAddr, 12010, why) X(cuMulticastBindMem, 12010, why) \
  X(cuMulticastCreate, 12010, why) X(cuMulticastGetGranularity, 12010, why) X(cuMulticastUnbind, 12010, why)

#define REFUSED_CLUSTERS(X, why) \
  X(cuLaunchCooperativeKernelMultiDevice, 9000, why) X(cuOccupancyMaxActiveClusters, 11070, why) \
  X(cuOccupancyMaxPotentialClusterSize, 11070, why)

#define REFUSED_LOGS(X, why) \
  X(cuCheckpointProcessCheckpoint, 12080, why) X(cuCheckpointProcessGetRestoreThreadId, 12080, why) \
  X(cuCheckpointProcessGetState, 12080, why) X(cuCheckpointProcessLock, 12080, why) \
  X(cuCheckpointProcessRestore, 12080, why) X(cuCheckpointProcessUnlock, 12080, why) \
  X(cuCoredumpGetAttribute, 12010, why) X(cuCoredumpGetAttributeGlobal, 12010, why) \
  X(cuCoredumpSetAttribute, 12010, why) X(cuCoredumpSetAttributeGlobal, 12010, why) \
  X(cuDeviceRegisterAsyncNotification, 12040, why) X(cuDeviceUnregisterAsyncNotification, 12040, why) \
  X(cuLogsCurrent, 12090, why) X(cuLogsDumpToFile, 12090, why) X(cuLogsDumpToMemory, 12090, why) \
  X(cuLogsRegisterCallback, 12090, why) X(cuLogsUnregisterCallback, 12090, why)

#define REFUSED_OLD(X, why) \
  X(cuCtxAttach, 2000, why) X(cuCtxDetach, 2000, why) X(cuDeviceGetProperties, 2000, why) \
  X(cuFuncSetBlockShape, 2000, why) X(cuFuncSetSharedSize, 2000, why) X(cuLaunch, 2000, why) \
  X(cuLaunchGrid, 2000, why) X(cuLaunchGridAsync, 2000, why) X(cuParamSetSize, 2000, why) X(cuParamSetf, 2000, why) \
  X(cuParamSeti, 2000, why) X(cuParamSetv, 2000, why)

#define REFUSED_PRIVATE(X, why) \
  X(cuGetExportTable, 3000, why)

#define REFUSED_OTHER(X, why) \
  X(cuCtxGetExecAffinity, 11040, why) \
  X(cuCtxGetSharedMemConfig, 4020, why) X(cuCtxResetPersistingL2Cache, 11000, why) \
  X(cuCtxSetSharedMemConfig, 4020, why) X(cuDeviceGetHostAtomicCapabilities, 13000, why) \
  X(cuDeviceGetLuid, 10000, why) X(cuDeviceGetP2PAtomicCapabilities, 13000, why) \
  X(cuFlushGPUDirectRDMAWrites, 11030, why) X(cuFuncSetSharedMemConfig, 4020, why) \
  X(cuGraphAddBatchMemOpNode, 11070, why) X(cuGraphBatchMemOpNodeGetParams, 11070, why) \
  X(cuGraphBatchMemOpNodeSetParams, 11070, why) X(cuGraphExecBatchMemOpNodeSetParams, 11070, why) \
  X(cuGraphExecGetId, 13010, why) X(cuGraphGetId, 13010, why) X(cuGraphNodeGetContainingGraph, 13010, why) \
  X(cuGraphNodeGetLocalId, 13010, why) X(cuGraphNodeGetToolsId, 13010, why) \
  X(cuLibraryGetUnifiedFunction, 12000, why) X(cuMemSetMemPool, 13000, why) \
  X(cuMemcpy3DBatchAsync, 12080, why) X(cuProfilerInitialize, 4000, why)

#define REFUSED(X) \
  REFUSED_ARRAYS(X, "arrays, textures and surfaces") \
  REFUSED_TENSOR_MAPS(X, "tensor maps") \
  REFUSED_GRAPHICS(X, "graphics") \
  REFUSED_EXTERNAL(X, "memory and semaphores of other interfaces") \
  REFUSED_SHARED(X, "CUDA IPC, and pools shared between processes") \
  REFUSED_MULTICAST(X, "memory of several devices at one address") \
  REFUSED_CLUSTERS(X, "clusters, and cooperative launches of several devices") \
  REFUSED_LOGS(X, "checkpoints, core dumps and logs of the driver") \
  REFUSED_OLD(X, "the first CUDA's launches: use cuLaunchKernel") \
  REFUSED_PRIVATE(X, "private tables, which the CUDA runtime library wants of NVIDIA's driver: use the driver's calls") \
  REFUSED_OTHER(X, "calls that few programs make")

#endif

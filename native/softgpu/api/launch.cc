// SPDX-License-Identifier: Apache-2.0
// Kernel launches.
#include "softgpu/runtime/launch.h"

#include "softgpu/api/api.h"

namespace sluice::softgpu {
namespace {

CUresult launch(CUfunction handle, const LaunchShape& shape, CUstream stream_handle, void** params,
                void** extra) {
  return with_stream(stream_handle, [&](Context& context, Stream& stream) -> CUresult {
    KernelWork work;
    if (CUresult wrong = prepare_kernel(context, handle, shape, params, extra, work);
        wrong != CUDA_SUCCESS) {
      return wrong;
    }
    return launch_kernel(context, stream, std::move(work));
  });
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuLaunchKernel(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared, CUstream stream, void** params, void** extra) {
  return launch(f, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, false}, stream,
                params, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared, CUstream stream,
                                   void** params) {
  return launch(f, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, true}, stream,
                params, nullptr);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  if (!config || (config->numAttrs != 0 && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  LaunchShape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                    {config->blockDimX, config->blockDimY, config->blockDimZ},
                    config->sharedMemBytes,
                    false};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
      shape.cooperative = attribute.value.cooperative != 0;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      const auto& cluster = attribute.value.clusterDim;
      if (cluster.x * cluster.y * cluster.z > 1) return CUDA_ERROR_NOT_SUPPORTED;
    }
    // Everything else is about placement, priority or overlap, which change no result.
  }
  return launch(f, shape, config->hStream, params, extra);
}

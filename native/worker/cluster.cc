// SPDX-License-Identifier: Apache-2.0
// Occupancy of clusters: puts the launch configuration together again and asks the driver.
#include "wire/generated.h"
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

void occupancy(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& o = d.fixed<wire::SluiceOccupancyOfClusters>();
  FunctionObject f;
  if (!d.ok() || o.potential > 1) return s.reject("OccupancyOfClusters makes no sense");
  if (!s.objects.functions.get(o.function, &f) && !s.objects.kernels.get(o.function, &f))
    return s.reject("OccupancyOfClusters names a function that the session does not have");
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim = {o.clusterX, o.clusterY, o.clusterZ};
  CUlaunchConfig config{};
  config.gridDimX = o.gridX, config.gridDimY = o.gridY, config.gridDimZ = o.gridZ;
  config.blockDimX = o.blockX, config.blockDimY = o.blockY, config.blockDimZ = o.blockZ;
  config.sharedMemBytes = o.sharedBytes;
  config.attrs = &cluster;
  config.numAttrs = o.clusterX ? 1 : 0;
  if (!s.stream(o.stream, c.header.context, &config.hStream)) return;
  const auto ask = o.potential ? s.driver.cuOccupancyMaxPotentialClusterSize
                               : s.driver.cuOccupancyMaxActiveClusters;
  if (!ask) {
    reply.status = CUDA_ERROR_NOT_SUPPORTED;
    return;
  }
  wire::SluiceOccupancyOfClustersReply answer{};
  reply.status = ask(&answer.count, f.function, &config);
  if (reply.status == CUDA_SUCCESS) reply.put(answer);
}

}  // namespace

void add_cluster_handlers(DispatchTable& t) { t[wire::kSluiceOccupancyOfClusters].run = occupancy; }

}  // namespace sluice::worker

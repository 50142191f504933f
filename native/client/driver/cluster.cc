// SPDX-License-Identifier: Apache-2.0
// Occupancy of clusters. The launch configuration is taken apart: of its attributes only the
// cluster's size counts for the answer.
#include "client/core/enter.h"
#include "client/driver/module.h"
#include "client/objects/stream.h"
#include "wire/generated.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

CUresult occupancy(int* count, CUfunction function, const CUlaunchConfig* c, unsigned potential) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!count || !c || (c->numAttrs && !c->attrs)) return CUDA_ERROR_INVALID_VALUE;
  const Function* f = find_function(s, function);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult e = resolve_stream(s, d, c->hStream, &stream); e != CUDA_SUCCESS) return e;
  if (f->device && f->device != stream->device) return CUDA_ERROR_INVALID_HANDLE;
  wire::SluiceOccupancyOfClusters request{};
  request.function = reinterpret_cast<uint64_t>(function);
  request.stream = stream->wire_id;
  request.potential = potential;
  request.gridX = c->gridDimX, request.gridY = c->gridDimY, request.gridZ = c->gridDimZ;
  request.blockX = c->blockDimX, request.blockY = c->blockDimY, request.blockZ = c->blockDimZ;
  request.sharedBytes = c->sharedMemBytes;
  for (unsigned i = 0; i < c->numAttrs; ++i) {
    const CUlaunchAttribute& a = c->attrs[i];
    if (a.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    request.clusterX = a.value.clusterDim.x;
    request.clusterY = a.value.clusterDim.y;
    request.clusterZ = a.value.clusterDim.z;
  }
  const uint32_t context = stream->device->context();
  const Question question{wire::kSluiceOccupancyOfClusters, context, request};
  wire::SluiceOccupancyOfClustersReply reply{};
  uint64_t epoch;
  if (!s->answers.find(request.function, question, &reply, &epoch)) {
    size_t got = 0;
    const CUresult e =
        s->exchange(wire::kSluiceOccupancyOfClusters, request, {},
                    {reinterpret_cast<std::byte*>(&reply), sizeof reply}, &got, nullptr, context);
    if (e != CUDA_SUCCESS) return e;
    if (got < sizeof reply) return CUDA_ERROR_UNKNOWN;
    s->answers.keep(request.function, question, reply, epoch);
  }
  *count = reply.count;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction function,
                                            const CUlaunchConfig* config) {
  return occupancy(size, function, config, 1);
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function,
                                      const CUlaunchConfig* config) {
  return occupancy(clusters, function, config, 0);
}

}  // extern "C"

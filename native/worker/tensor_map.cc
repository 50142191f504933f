// SPDX-License-Identifier: Apache-2.0
// Tensor maps: the driver's own encoding of what the client describes.
#include <cstring>

#include "wire/generated.h"
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

void encode(Session& s, const Command& c, Reply& reply) {
  Decoder body(c.body);
  const auto& r = body.fixed<wire::SluiceEncodeTensorMap>();
  if (!body.ok() || r.rank == 0 || r.rank > 5 || r.kind > 2 || (r.kind == 1 && r.rank < 3))
    return s.reject("EncodeTensorMap makes no sense");
  // The copy engine goes where the map says, in this session's address space only; what lies
  // outside faults there.
  if (!s.use_context(c.header.context)) return;
  const auto type = static_cast<CUtensorMapDataType>(r.dataType);
  const auto interleave = static_cast<CUtensorMapInterleave>(r.interleave);
  const auto swizzle = static_cast<CUtensorMapSwizzle>(r.swizzle);
  const auto promotion = static_cast<CUtensorMapL2promotion>(r.promotion);
  const auto fill = static_cast<CUtensorMapFloatOOBfill>(r.fill);
  auto* address = reinterpret_cast<void*>(r.address);
  const cuuint64_t dims[] = {r.dim0, r.dim1, r.dim2, r.dim3, r.dim4};
  const cuuint64_t pitches[] = {r.pitch0, r.pitch1, r.pitch2, r.pitch3, r.pitch4};
  const cuuint32_t box[] = {r.box0, r.box1, r.box2, r.box3, r.box4};
  const cuuint32_t steps[] = {r.step0, r.step1, r.step2, r.step3, r.step4};
  const int lower[] = {r.lower0, r.lower1, r.lower2}, upper[] = {r.upper0, r.upper1, r.upper2};
  alignas(128) CUtensorMap map{};
  const Driver& d = s.driver;
  reply.status = CUDA_ERROR_NOT_SUPPORTED;
  if (r.kind == 0 && d.cuTensorMapEncodeTiled)
    reply.status = d.cuTensorMapEncodeTiled(&map, type, r.rank, address, dims, pitches, box, steps,
                                            interleave, swizzle, promotion, fill);
  if (r.kind == 1 && d.cuTensorMapEncodeIm2col)
    reply.status = d.cuTensorMapEncodeIm2col(&map, type, r.rank, address, dims, pitches, lower,
                                             upper, r.channels, r.pixels, steps, interleave,
                                             swizzle, promotion, fill);
  if (r.kind == 2 && d.cuTensorMapEncodeIm2colWide)
    reply.status = d.cuTensorMapEncodeIm2colWide(
        &map, type, r.rank, address, dims, pitches, r.lower0, r.upper0, r.channels, r.pixels, steps,
        interleave, static_cast<CUtensorMapIm2ColWideMode>(r.wideMode), swizzle, promotion, fill);
  if (reply.status != CUDA_SUCCESS) return;
  wire::SluiceEncodeTensorMapReply answer{};
  std::memcpy(&answer.map, &map, sizeof map);
  reply.put(answer);
}

void replace_address(Session& s, const Command& c, Reply& reply) {
  Decoder body(c.body);
  const auto& r = body.fixed<wire::SluiceTensorMapAddress>();
  const auto bytes = body.bytes(sizeof(CUtensorMap));
  if (!body.ok()) return s.reject("TensorMapAddress is cut short");
  if (!s.use_context(c.header.context)) return;
  alignas(128) CUtensorMap map;
  std::memcpy(&map, bytes.data(), sizeof map);
  reply.status = call(s.driver.cuTensorMapReplaceAddress, &map, reinterpret_cast<void*>(r.address));
  if (reply.status == CUDA_SUCCESS) reply.put_bytes(&map, sizeof map);
}

}  // namespace

void add_tensor_map_handlers(DispatchTable& t) {
  t[wire::kSluiceTensorMapAddress].run = replace_address;
  t[wire::kSluiceEncodeTensorMap].run = encode;
}

}  // namespace sluice::worker

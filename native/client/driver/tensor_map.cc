// SPDX-License-Identifier: Apache-2.0
// Tensor maps for the GPU's copy engine. What is in the 128 bytes is the driver's business, so it
// is asked, and the answer kept: the same arguments give the same map.
#include <algorithm>
#include <cstring>

#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/objects/device.h"
#include "wire/generated.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

enum Kind : unsigned { kTiled, kIm2col, kIm2colWide };
constexpr unsigned kMaxRank = 5;

// Into a program's map, which need not lie as its type asks: Python's objects do not, and NVIDIA's
// driver takes it.
void write_map(CUtensorMap* map, const void* bytes) {
  auto* to = reinterpret_cast<std::byte*>(map);
  std::memcpy(to, bytes, sizeof *map);
}

// What the three functions share. `box` is nullptr for im2col.
CUresult describe(wire::SluiceEncodeTensorMap* r, unsigned kind, unsigned rank, const void* address,
                  const cuuint64_t* dims, const cuuint64_t* pitches, const cuuint32_t* box,
                  const cuuint32_t* steps) {
  if (rank == 0 || rank > kMaxRank || !dims || !steps || (rank > 1 && !pitches))
    return CUDA_ERROR_INVALID_VALUE;
  r->kind = kind;
  r->rank = rank;
  r->address = reinterpret_cast<unsigned long long>(address);
  std::copy_n(dims, rank, &r->dim0);
  if (rank > 1) std::copy_n(pitches, rank - 1, &r->pitch0);
  if (box) std::copy_n(box, rank, &r->box0);
  std::copy_n(steps, rank, &r->step0);
  return CUDA_SUCCESS;
}

CUresult encode(const wire::SluiceEncodeTensorMap& request, CUtensorMap* map) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!map) return CUDA_ERROR_INVALID_VALUE;
  const uint32_t context = d->context();
  const Question question{wire::kSluiceEncodeTensorMap, context, request};
  wire::SluiceEncodeTensorMapReply reply{};
  uint64_t epoch;
  if (!s->answers.find(AnswerCache::kForEver, question, &reply, &epoch)) {
    size_t got = 0;
    const CUresult e =
        s->exchange(wire::kSluiceEncodeTensorMap, request, {},
                    {reinterpret_cast<std::byte*>(&reply), sizeof reply}, &got, nullptr, context);
    if (e != CUDA_SUCCESS) return e;
    if (got < sizeof reply) return CUDA_ERROR_UNKNOWN;
    s->answers.keep(AnswerCache::kForEver, question, reply, epoch);
  }
  static_assert(sizeof reply.map == sizeof *map);
  write_map(map, &reply.map);
  return CUDA_SUCCESS;
}

// The numbers of these enumerations, in one order everywhere.
void choose(wire::SluiceEncodeTensorMap* r, CUtensorMapDataType type,
            CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
            CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  r->dataType = type;
  r->interleave = interleave;
  r->swizzle = swizzle;
  r->promotion = promotion;
  r->fill = fill;
}

}  // namespace

extern "C" {

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* pitches,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  wire::SluiceEncodeTensorMap r{};
  if (!box) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = describe(&r, kTiled, rank, address, dims, pitches, box, steps);
      e != CUDA_SUCCESS)
    return e;
  choose(&r, type, interleave, swizzle, promotion, fill);
  return encode(r, map);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                 void* address, const cuuint64_t* dims, const cuuint64_t* pitches,
                                 const int* lower, const int* upper, cuuint32_t channels,
                                 cuuint32_t pixels, const cuuint32_t* steps,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  wire::SluiceEncodeTensorMap r{};
  if (rank < 3 || !lower || !upper) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = describe(&r, kIm2col, rank, address, dims, pitches, nullptr, steps);
      e != CUDA_SUCCESS)
    return e;
  choose(&r, type, interleave, swizzle, promotion, fill);
  std::copy_n(lower, rank - 2, &r.lower0);
  std::copy_n(upper, rank - 2, &r.upper0);
  r.channels = channels;
  r.pixels = pixels;
  return encode(r, map);
}

CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                     void* address, const cuuint64_t* dims,
                                     const cuuint64_t* pitches, int lower, int upper,
                                     cuuint32_t channels, cuuint32_t pixels,
                                     const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                     CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
                                     CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill) {
  wire::SluiceEncodeTensorMap r{};
  if (const CUresult e = describe(&r, kIm2colWide, rank, address, dims, pitches, nullptr, steps);
      e != CUDA_SUCCESS)
    return e;
  choose(&r, type, interleave, swizzle, promotion, fill);
  r.lower0 = lower;
  r.upper0 = upper;
  r.channels = channels;
  r.pixels = pixels;
  r.wideMode = mode;
  return encode(r, map);
}

// Not kept: every address gives another map.
CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!map || !address) return CUDA_ERROR_INVALID_VALUE;
  wire::SluiceTensorMapAddress r{};
  r.address = reinterpret_cast<unsigned long long>(address);
  std::byte changed[sizeof *map];
  size_t got = 0;
  const CUresult e = s->exchange(wire::kSluiceTensorMapAddress, r,
                                 {reinterpret_cast<const std::byte*>(map), sizeof *map}, changed,
                                 &got, nullptr, d->context());
  if (e != CUDA_SUCCESS) return e;
  if (got < sizeof changed) return CUDA_ERROR_UNKNOWN;
  write_map(map, changed);
  return CUDA_SUCCESS;
}

}  // extern "C"

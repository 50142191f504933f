// SPDX-License-Identifier: Apache-2.0
#include "worker/jit.h"

#include <cstring>

namespace sluice::worker {

namespace {

// The options whose value is a number; everything else would be an address of the client's.
bool is_scalar_option(uint32_t o) {
  switch (o) {
    case CU_JIT_MAX_REGISTERS:
    case CU_JIT_THREADS_PER_BLOCK:
    case CU_JIT_OPTIMIZATION_LEVEL:
    case CU_JIT_TARGET:
    case CU_JIT_FALLBACK_STRATEGY:
    case CU_JIT_GENERATE_DEBUG_INFO:
    case CU_JIT_LOG_VERBOSE:
    case CU_JIT_GENERATE_LINE_INFO:
    case CU_JIT_CACHE_MODE:
    case CU_JIT_POSITION_INDEPENDENT_CODE:
    case CU_JIT_MIN_CTA_PER_SM:
    case CU_JIT_MAX_THREADS_PER_BLOCK:
    case CU_JIT_OVERRIDE_DIRECTIVE_VALUES:
    case CU_JIT_SPLIT_COMPILE:
      return true;
    default:
      return false;
  }
}

}  // namespace

void JitOptions::add_numbers(std::span<const std::byte> pairs) {
  for (size_t at = 0; at + 8 <= pairs.size(); at += 8) {
    uint32_t pair[2];
    std::memcpy(pair, pairs.data() + at, sizeof pair);
    if (is_scalar_option(pair[0])) add(static_cast<CUjit_option>(pair[0]), pair[1]);
  }
}

void JitOptions::add_logs() {
  add(CU_JIT_INFO_LOG_BUFFER, reinterpret_cast<uint64_t>(info));
  add(CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, kLogBytes - 1);
  add(CU_JIT_ERROR_LOG_BUFFER, reinterpret_cast<uint64_t>(error));
  add(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, kLogBytes - 1);
}

void JitOptions::put_logs(Reply& reply) const {
  const wire::CodeLoadReply r{static_cast<uint32_t>(strnlen(info, kLogBytes - 1)),
                              static_cast<uint32_t>(strnlen(error, kLogBytes - 1))};
  reply.put(r);
  reply.put_bytes(info, r.info_bytes);
  reply.put_bytes(error, r.error_bytes);
}

bool take_blob(Session& s, uint64_t id, std::vector<std::byte>* bytes, Reply& reply) {
  switch (s.uploads.take(id, bytes)) {
    case Uploads::Taken::kWhole:
      return true;
    case Uploads::Taken::kRefused:
      reply.status = CUDA_ERROR_OUT_OF_MEMORY;
      return false;
    case Uploads::Taken::kIncomplete:
      break;
  }
  s.reject("a command names an image that was not uploaded");
  return false;
}

}  // namespace sluice::worker

// SPDX-License-Identifier: Apache-2.0
#include "client/driver/jit.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "client/core/session.h"

namespace sluice::client {

void JitLogs::Log::give(const char* from, size_t n) const {
  n = text && room ? std::min(n, room - 1) : 0;
  if (text && room) {
    std::memcpy(text, from, n);
    text[n] = 0;
  }
  if (written) *written = reinterpret_cast<void*>(n);
}

void JitLogs::give(std::span<const std::byte> answer) const {
  wire::CodeLoadReply r{};
  if (answer.size() < sizeof r) return;
  std::memcpy(&r, answer.data(), sizeof r);
  if (sizeof r + size_t{r.info_bytes} + r.error_bytes > answer.size()) return;
  const char* at = reinterpret_cast<const char*>(answer.data()) + sizeof r;
  info.give(at, r.info_bytes);
  error.give(at + r.info_bytes, r.error_bytes);
}

JitOptions::JitOptions(unsigned count, const CUjit_option* options, void** values) {
  for (unsigned i = 0; options && values && i < count; ++i) {
    const auto value = reinterpret_cast<uint64_t>(values[i]);
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        logs.info.text = static_cast<char*>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        logs.error.text = static_cast<char*>(values[i]);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        logs.info.room = value, logs.info.written = &values[i];
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        logs.error.room = value, logs.error.written = &values[i];
        break;
      case CU_JIT_WALL_TIME:
        break;
      default:
        pairs.push_back(static_cast<uint32_t>(options[i]));
        pairs.push_back(static_cast<uint32_t>(value));
    }
  }
}

CUresult upload(Session* s, const Device& to, const void* image, size_t bytes, uint64_t* blob) {
  static std::atomic<uint64_t> made{0};
  *blob = ++made;
  const size_t piece = s->channel().inline_limit();
  for (size_t at = 0; at < bytes; at += piece) {
    const size_t n = std::min(piece, bytes - at);
    const wire::Upload u{*blob, bytes, at, n};
    const auto* from = static_cast<const std::byte*>(image) + at;
    if (const CUresult e = s->tell(to, wire::kUpload, u, {from, n}); e != CUDA_SUCCESS) return e;
  }
  return CUDA_SUCCESS;
}

}  // namespace sluice::client

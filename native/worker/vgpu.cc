// SPDX-License-Identifier: Apache-2.0
#include "worker/vgpu.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "wire/address_windows.h"
#include "worker/hex.h"

namespace sluice::worker {

std::string uuid_text(const CUuuid& u) {
  char text[48];
  const auto b = [&](int i) { return static_cast<unsigned char>(u.bytes[i]); };
  std::snprintf(text, sizeof text,
                "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b(0),
                b(1), b(2), b(3), b(4), b(5), b(6), b(7), b(8), b(9), b(10), b(11), b(12), b(13),
                b(14), b(15));
  return text;
}

bool read_uuid(const std::string& text, CUuuid* uuid) {
  CUuuid read{};
  size_t digits = 0;
  for (size_t i = text.rfind("GPU-", 0) == 0 ? 4 : 0; i < text.size(); ++i) {
    if (text[i] == '-') continue;
    const int digit = std::isxdigit(static_cast<unsigned char>(text[i]))
                          ? std::stoi(text.substr(i, 1), nullptr, 16)
                          : -1;
    if (digit < 0 || digits >= 2 * sizeof read.bytes) return false;
    char& byte = read.bytes[digits++ / 2];
    byte = static_cast<char>(static_cast<unsigned char>(byte) << 4 | digit);
  }
  if (digits != 2 * sizeof read.bytes) return false;
  *uuid = read;
  return true;
}

bool reserve_windows(const Driver& driver, const std::vector<std::unique_ptr<Vgpu>>& vgpus,
                     uint64_t windows, uint64_t first, std::string* error) {
  windows = std::max<uint64_t>(windows, vgpus.size());
  if (first > windows - vgpus.size()) {
    *error = "windows " + std::to_string(first) + " to " +
             std::to_string(first + vgpus.size() - 1) + " are wanted of " + std::to_string(windows);
    return false;
  }
  const uint64_t bytes = windows <= 4 ? wire::kLargeWindowBytes : wire::kSmallWindowBytes;
  uint64_t at = wire::kWindowsBegin;
  const auto place = [&] {
    if (at < wire::kWindowHoleEnd && at + bytes > wire::kWindowHoleBegin) at = wire::kWindowHoleEnd;
  };
  for (uint64_t i = 0; i < first; ++i) place(), at += bytes;  // the other nodes'
  for (auto& v : vgpus) {
    place();
    if (at + bytes > wire::kWindowsEnd) {
      *error = "too many vGPUs for the address windows";
      return false;
    }
    driver.cuCtxSetCurrent(v->gpu->context);
    CUdeviceptr got = 0;
    const CUresult e = driver.cuMemAddressReserve(&got, bytes, 0, at, 0);
    if (e != CUDA_SUCCESS || got != at) {
      *error = "the driver does not give the address window at " + hex_text(at) + ": " +
               (e != CUDA_SUCCESS ? driver.error_text(e) : "it offers " + hex_text(got));
      return false;
    }
    v->window_begin = at;
    v->window_bytes = bytes;
    at += bytes;
  }
  return true;
}

}  // namespace sluice::worker

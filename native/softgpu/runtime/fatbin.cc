// SPDX-License-Identifier: Apache-2.0
// Reads the fat-binary container as a file format: a header, then entries of which one kind is PTX
// text. Images come without a length, so the header's own sizes are the bounds.
#include <algorithm>
#include <cstring>

#include "image_packing.h"
#include "softgpu/runtime/device.h"
#include "softgpu/runtime/log.h"
#include "softgpu/runtime/module.h"

namespace sluice::softgpu {
namespace {

using namespace fat_binary;

bool refuse(LoadFailure& failure, const std::string& text) {
  failure.result = CUDA_ERROR_NO_BINARY_FOR_GPU;
  failure.text = text;
  log(0, "%s", text.c_str());
  return false;
}

bool from_container(const uint8_t* image, std::string& ptx, LoadFailure& failure) {
  Container header;
  std::memcpy(&header, image, sizeof header);
  const uint8_t* at = image + header.header_bytes;
  uint64_t left = header.body_bytes;
  const uint8_t* best = nullptr;
  Part part{};  // the best one's header
  bool any = false;
  while (left >= sizeof(Part)) {
    Part entry;
    std::memcpy(&entry, at, sizeof entry);
    if (entry.header_bytes < sizeof entry || entry.header_bytes > left ||
        entry.bytes > left - entry.header_bytes) {
      break;
    }
    any = true;
    if (entry.kind == kPtx && entry.arch <= kComputeMajor * 10 + kComputeMinor &&
        entry.arch >= part.arch) {
      best = at + entry.header_bytes;
      part = entry;
    }
    at += entry.header_bytes + entry.bytes;
    left -= entry.header_bytes + entry.bytes;
  }
  if (best) {
    std::span<const std::byte> text{reinterpret_cast<const std::byte*>(best), part.bytes};
    std::vector<std::byte> unpacked;
    std::string why;
    if (is_packed(part)) {
      if (!unpack(part, text, &unpacked, &why))
        return refuse(failure, "the program's PTX is compressed: " + why);
      text = unpacked;
    }
    // It ends where its part says, or before, with a zero.
    const auto* begin = reinterpret_cast<const char*>(text.data());
    ptx.assign(begin, strnlen(begin, text.size()));
    return true;
  }
  return refuse(failure, any ? "the program holds no PTX that the software GPU can run (only "
                               "machine code, or PTX for a newer architecture): build with nvcc "
                               "-gencode arch=compute_80,code=compute_80"
                             : "the program's fat binary is empty");
}

}  // namespace

bool ptx_of_image(const void* image, std::string& ptx, LoadFailure& failure) {
  // A short text may end within these four bytes.
  uint32_t magic = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t byte = static_cast<const uint8_t*>(image)[i];
    magic |= byte << (8 * i);
    if (byte == 0) break;
  }
  if (magic == kWrapperMagic) {
    Wrapper wrapper;
    std::memcpy(&wrapper, image, sizeof wrapper);
    if (!wrapper.data) {
      failure = {CUDA_ERROR_INVALID_IMAGE, "empty fat-binary wrapper"};
      return false;
    }
    return ptx_of_image(wrapper.data, ptx, failure);
  }
  if (magic == kContainerMagic) {
    return from_container(static_cast<const uint8_t*>(image), ptx, failure);
  }
  if (magic == kElfMagic) {
    return refuse(failure,
                  "the program holds only machine code (a cubin); the software GPU runs "
                  "PTX: build with nvcc -gencode arch=compute_80,code=compute_80");
  }
  ptx = static_cast<const char*>(image);
  if (ptx.find(".version") == std::string::npos) {
    failure = {CUDA_ERROR_INVALID_IMAGE, "neither PTX text nor a fat binary"};
    return false;
  }
  return true;
}

}  // namespace sluice::softgpu

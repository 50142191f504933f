// SPDX-License-Identifier: Apache-2.0
// Reads the fat-binary container as a file format: a header, then entries of which one kind is PTX
// text. Images come without a length, so the header's own sizes are the bounds.
#include <algorithm>
#include <cstring>

#include "softgpu/runtime/device.h"
#include "softgpu/runtime/log.h"
#include "softgpu/runtime/module.h"

namespace sluice::softgpu {
namespace {

constexpr uint32_t kContainerMagic = 0xBA55ED50;
constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kElfMagic = 0x464c457f;
constexpr uint16_t kEntryPtx = 1;
constexpr uint64_t kFlagCompressedLz4 = 0x2000;
constexpr uint64_t kFlagCompressedZstd = 0x8000;

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* data;
  const void* unused;
};

struct ContainerHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_size;
  uint64_t size;  // of all entries, after the header
};

struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_size;
  uint64_t size;  // of the payload, padded
  uint32_t compressed_size;
  uint32_t options_offset;
  uint16_t minor;
  uint16_t major;
  uint32_t arch;
  uint32_t name_offset;
  uint32_t name_size;
  uint64_t flags;
  uint64_t reserved;
  uint64_t decompressed_size;
};
static_assert(sizeof(EntryHeader) == 64);

bool refuse(LoadFailure& failure, const char* text) {
  failure.result = CUDA_ERROR_NO_BINARY_FOR_GPU;
  failure.text = text;
  log(0, "%s", text);
  return false;
}

bool from_container(const uint8_t* image, std::string& ptx, LoadFailure& failure) {
  ContainerHeader header;
  std::memcpy(&header, image, sizeof header);
  const uint8_t* at = image + header.header_size;
  uint64_t left = header.size;
  const uint8_t* best = nullptr;
  uint64_t best_size = 0;
  uint32_t best_arch = 0;
  bool compressed = false;
  bool any = false;
  while (left >= sizeof(EntryHeader)) {
    EntryHeader entry;
    std::memcpy(&entry, at, sizeof entry);
    if (entry.header_size < sizeof entry || entry.header_size > left ||
        entry.size > left - entry.header_size) {
      break;
    }
    any = true;
    if (entry.kind == kEntryPtx) {
      if (entry.flags & (kFlagCompressedLz4 | kFlagCompressedZstd)) {
        compressed = true;
      } else if (entry.arch <= kComputeMajor * 10 + kComputeMinor && entry.arch >= best_arch) {
        best = at + entry.header_size;
        best_size = entry.size;
        best_arch = entry.arch;
      }
    }
    at += entry.header_size + entry.size;
    left -= entry.header_size + entry.size;
  }
  if (best) {
    const void* end = std::memchr(best, 0, best_size);
    ptx.assign(reinterpret_cast<const char*>(best),
               end ? static_cast<const uint8_t*>(end) - best : best_size);
    return true;
  }
  if (compressed) {
    return refuse(failure,
                  "the program's PTX is compressed; the software GPU reads it uncompressed: build "
                  "with nvcc -Xfatbin -compress-all=false (or --no-compress)");
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

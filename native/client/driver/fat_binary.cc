// SPDX-License-Identifier: Apache-2.0
#include "client/driver/fat_binary.h"

#include <cstring>

#include "image_format.h"

namespace sluice::client {

namespace {

using fat_binary::kMachineCode, fat_binary::kPtx;

struct Piece {
  fat_binary::PartStart part;
  size_t at, bytes;
  bool wanted = false;
};

// False: it is not understood to its end.
bool read(std::span<const std::byte> image, size_t header_bytes, std::vector<Piece>* pieces) {
  for (size_t at = header_bytes; at < image.size();) {
    const size_t left = image.size() - at;
    Piece p{};
    if (left < sizeof p.part) return false;
    std::memcpy(&p.part, image.data() + at, sizeof p.part);
    if (p.part.header_bytes < sizeof p.part || p.part.header_bytes > left ||
        p.part.bytes > left - p.part.header_bytes)
      return false;
    p.at = at;
    p.bytes = p.part.header_bytes + p.part.bytes;
    pieces->push_back(p);
    at += p.bytes;
  }
  return !pieces->empty();
}

// Marks what the driver could take for one GPU: machine code for exactly it; else machine code for
// an older one of the same generation, or PTX. There may be several of each, as architecture
// specific ones have the number of the plain ones.
bool want(std::vector<Piece>* pieces, ComputeCapability gpu, bool software) {
  const uint32_t arch = gpu.major * 10 + gpu.minor;
  bool any = false;
  const auto mark = [&](auto&& is_wanted) {
    for (Piece& p : *pieces)
      if (is_wanted(p.part)) p.wanted = any = true;
    return any;
  };
  if (!software && mark([&](const fat_binary::PartStart& p) {
        return p.kind == kMachineCode && p.arch == arch;
      }))
    return true;
  return mark([&](const fat_binary::PartStart& p) {
    if (p.arch > arch) return false;
    return p.kind == kPtx || (!software && p.kind == kMachineCode && p.arch / 10 == gpu.major);
  });
}

}  // namespace

std::span<const std::byte> parts_for(std::span<const std::byte> image,
                                     std::span<const ComputeCapability> gpus, bool software,
                                     std::vector<std::byte>* room) {
  fat_binary::Container c;
  if (image.size() < sizeof c) return image;
  std::memcpy(&c, image.data(), sizeof c);
  std::vector<Piece> pieces;
  if (c.magic != fat_binary::kContainerMagic || c.header_bytes < sizeof c ||
      c.header_bytes > image.size() || c.body_bytes != image.size() - c.header_bytes ||
      !read(image, c.header_bytes, &pieces))
    return image;
  for (const ComputeCapability gpu : gpus)
    if (!want(&pieces, gpu, software)) return image;
  uint64_t bytes = 0;
  for (const Piece& p : pieces)
    if (p.wanted) bytes += p.bytes;
  if (bytes == c.body_bytes) return image;
  room->reserve(c.header_bytes + bytes);
  room->assign(image.begin(), image.begin() + c.header_bytes);
  c.body_bytes = bytes;
  std::memcpy(room->data(), &c, sizeof c);
  for (const Piece& p : pieces)
    if (p.wanted) {
      const auto piece = image.subspan(p.at, p.bytes);
      room->insert(room->end(), piece.begin(), piece.end());
    }
  return *room;
}

}  // namespace sluice::client

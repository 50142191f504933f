// SPDX-License-Identifier: Apache-2.0
// What kind of image it is, and the parts of fat binaries. Which part the driver takes is the
// driver's choice; the needs are those of the largest.
#include "worker/image/image.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "image_packing.h"

namespace sluice::worker {

namespace {

using namespace fat_binary;

// What else may be said of a part that is understood: 64 bits, debug information, the system that
// it was made on, which GPUs it is for.
constexpr uint64_t kHarmless = 0xfff | kOneArchitecture | kFamily | kSince100;

bool is_elf(std::span<const std::byte> image) {
  return image.size() >= SELFMAG && std::memcmp(image.data(), ELFMAG, SELFMAG) == 0;
}

// The text or machine code of one part. False: nobody knows what it is.
bool content_needs(std::span<const std::byte> content, ImageNeeds* needs) {
  needs->code_bytes = content.size();
  if (is_elf(content)) return elf_needs(content, &needs->data_bytes);
  if (content.empty() || content[0] == std::byte{0} || content[0] >= std::byte{0x80}) return false;
  needs->data_bytes = ptx_needs(content);
  return true;
}

// What is scrambled must not pass for text without variables.
bool is_known(std::span<const std::byte> content) {
  const std::string_view text(reinterpret_cast<const char*>(content.data()), content.size());
  return is_elf(content) || text.find(".version") != std::string_view::npos;
}

bool part_needs(const Part& p, std::span<const std::byte> payload, ImageNeeds* needs,
                std::string* why) {
  if (p.kind != kPtx && p.kind != kMachineCode) {
    *why = "it is neither PTX nor machine code (kind " + std::to_string(p.kind) + ")";
    return false;
  }
  const bool lz4 = p.flags & kLz4, zstd = p.flags & kZstd;
  if ((p.flags & ~(kHarmless | kLz4 | kZstd)) || (lz4 && zstd)) {
    *why = "it is packed in a way that is not known (flags " + std::to_string(p.flags) + ")";
    return false;
  }
  if (!lz4 && !zstd) {
    *why = "it is no sound " + std::string(p.kind == kPtx ? "PTX" : "machine code");
    return is_known(payload) && content_needs(payload, needs);
  }
  std::vector<std::byte> content;
  return fat_binary::unpack(p, payload, &content, why) && is_known(content) &&
         content_needs(content, needs);
}

Examined broken(const char* why) {
  Examined e;
  e.verdict = ImageVerdict::kBroken;
  e.why = why;
  return e;
}

Examined examine_container(std::span<const std::byte> image) {
  Container c;
  std::memcpy(&c, image.data(), sizeof c);
  if (c.header_bytes < sizeof c || c.header_bytes > image.size() ||
      c.body_bytes > image.size() - c.header_bytes)
    return broken("the fat binary claims to be longer than what has come");
  const std::span<const std::byte> whole = image.first(c.header_bytes + c.body_bytes);
  Examined e;
  std::vector<std::span<const std::byte>> kept;
  size_t left_out = 0, kept_bytes = 0;
  for (size_t at = c.header_bytes; at < whole.size();) {
    Part p;
    const size_t left = whole.size() - at;
    if (left < sizeof p) return broken("the fat binary ends inside a part");
    std::memcpy(&p, whole.data() + at, sizeof p);
    if (p.header_bytes < sizeof p || p.header_bytes > left || p.bytes > left - p.header_bytes)
      return broken("a part of the fat binary claims to be longer than what has come");
    const auto part = whole.subspan(at, p.header_bytes + p.bytes);
    at += part.size();
    ImageNeeds needs;
    std::string why;
    if (!part_needs(p, part.subspan(p.header_bytes), &needs, &why)) {
      ++left_out;
      e.why = "a part of a fat binary was left out: " + why;
      continue;
    }
    e.needs.data_bytes = std::max(e.needs.data_bytes, needs.data_bytes);
    e.needs.code_bytes = std::max(e.needs.code_bytes, needs.code_bytes);
    e.has_ptx |= p.kind == kPtx;
    kept.push_back(part);
    kept_bytes += part.size();
  }
  e.needs.code_bytes = std::max<uint64_t>(e.needs.code_bytes, image.size());
  if (kept.empty()) e.verdict = ImageVerdict::kNoParts;
  if (left_out == 0 || kept.empty()) return e;
  e.instead.assign(whole.begin(), whole.begin() + c.header_bytes);
  e.instead.reserve(c.header_bytes + kept_bytes + 1);
  c.body_bytes = kept_bytes;
  std::memcpy(e.instead.data(), &c, sizeof c);
  for (const auto& part : kept) e.instead.insert(e.instead.end(), part.begin(), part.end());
  return e;
}

}  // namespace

Examined examine_image(std::span<const std::byte> image) {
  uint32_t magic = 0;
  if (image.size() >= sizeof magic) std::memcpy(&magic, image.data(), sizeof magic);
  if (magic == kContainerMagic)
    return image.size() < sizeof(Container) ? broken("the fat binary is cut short")
                                            : examine_container(image);
  Examined e;
  if (!content_needs(image, &e.needs))
    return broken(is_elf(image) ? "the machine code claims to be longer than what has come"
                                : "it is neither text, machine code nor a fat binary");
  e.has_ptx = !is_elf(image);
  return e;
}

}  // namespace sluice::worker

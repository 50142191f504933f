// SPDX-License-Identifier: Apache-2.0
#include "client/driver/image_size.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "image_format.h"
#include "wire/bodies/commands.h"

namespace sluice::client {

namespace {

using fat_binary::kContainerMagic, fat_binary::kWrapperMagic;

// The first bytes of an image, read one by one as far as they agree: it may be shorter than what it
// is compared with.
bool begins_with(const void* image, const void* magic, size_t n) {
  const auto* a = static_cast<const unsigned char*>(image);
  const auto* b = static_cast<const unsigned char*>(magic);
  for (size_t i = 0; i < n; ++i)
    if (a[i] != b[i]) return false;
  return true;
}

// Keeps the largest end of a part; false when it lies beyond what an image may be, so that the file
// lies or is no image.
bool extend(size_t* end, uint64_t offset, uint64_t bytes) {
  if (offset > wire::kMaxBlobBytes || bytes > wire::kMaxBlobBytes - offset) return false;
  *end = std::max<size_t>(*end, offset + bytes);
  return true;
}

size_t elf_size(const char* at) {
  Elf64_Ehdr h;
  std::memcpy(&h, at, sizeof h);
  if (h.e_ident[EI_CLASS] != ELFCLASS64 || (h.e_shnum && h.e_shentsize < sizeof(Elf64_Shdr)))
    return 0;
  size_t end = sizeof h;
  if (!extend(&end, h.e_shoff, uint64_t{h.e_shentsize} * h.e_shnum) ||
      !extend(&end, h.e_phoff, uint64_t{h.e_phentsize} * h.e_phnum))
    return 0;
  for (size_t i = 0; i < h.e_shnum; ++i) {
    Elf64_Shdr s;
    std::memcpy(&s, at + h.e_shoff + h.e_shentsize * i, sizeof s);
    if (s.sh_type != SHT_NOBITS && !extend(&end, s.sh_offset, s.sh_size)) return 0;
  }
  return end;
}

}  // namespace

size_t image_size(const void* image, const void** start) {
  if (begins_with(image, &kWrapperMagic, sizeof kWrapperMagic)) {
    fat_binary::Wrapper w;
    std::memcpy(&w, image, sizeof w);
    // What a wrapper holds is the container itself.
    if (!w.data || begins_with(w.data, &kWrapperMagic, sizeof kWrapperMagic)) return 0;
    return image_size(w.data, start);
  }
  *start = image;
  if (begins_with(image, &kContainerMagic, sizeof kContainerMagic)) {
    fat_binary::Container c;
    std::memcpy(&c, image, sizeof c);
    size_t end = 0;
    return c.header_bytes >= sizeof c && extend(&end, c.header_bytes, c.body_bytes) ? end : 0;
  }
  if (begins_with(image, ELFMAG, SELFMAG)) return elf_size(static_cast<const char*>(image));
  const auto* text = static_cast<const unsigned char*>(image);
  if (text[0] != 0 && (text[0] < 0x80)) return std::strlen(static_cast<const char*>(image)) + 1;
  return 0;
}

}  // namespace sluice::client

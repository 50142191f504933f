// SPDX-License-Identifier: Apache-2.0
#include "client/driver/image_size.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace sluice::client {

namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;  // __fatBinC_Wrapper_t
constexpr uint32_t kContainerMagic = 0xba55ed50;

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* data;
  const void* file;
};

struct Container {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t body_bytes;
};

size_t elf_size(const char* at) {
  Elf64_Ehdr h;
  std::memcpy(&h, at, sizeof h);
  size_t end = h.e_shoff + size_t{h.e_shentsize} * h.e_shnum;
  end = std::max<size_t>(end, h.e_phoff + size_t{h.e_phentsize} * h.e_phnum);
  for (int i = 0; i < h.e_shnum; ++i) {
    Elf64_Shdr s;
    std::memcpy(&s, at + h.e_shoff + size_t{h.e_shentsize} * static_cast<size_t>(i), sizeof s);
    if (s.sh_type != SHT_NOBITS) end = std::max<size_t>(end, s.sh_offset + s.sh_size);
  }
  return end;
}

}  // namespace

size_t image_size(const void* image, const void** start) {
  uint32_t magic;
  std::memcpy(&magic, image, sizeof magic);
  if (magic == kWrapperMagic) {
    Wrapper w;
    std::memcpy(&w, image, sizeof w);
    return w.data ? image_size(w.data, start) : 0;
  }
  *start = image;
  if (magic == kContainerMagic) {
    Container c;
    std::memcpy(&c, image, sizeof c);
    return c.header_bytes + c.body_bytes;
  }
  if (std::memcmp(image, ELFMAG, SELFMAG) == 0) return elf_size(static_cast<const char*>(image));
  const auto* text = static_cast<const unsigned char*>(image);
  if (text[0] != 0 && (text[0] < 0x80)) return std::strlen(static_cast<const char*>(image)) + 1;
  return 0;
}

}  // namespace sluice::client

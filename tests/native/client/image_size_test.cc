// SPDX-License-Identifier: Apache-2.0
// How long a code image is, also of images that lie. Images end at a page that cannot be read, so
// that every byte too far is seen.
#include "client/driver/image_size.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "image_format.h"

namespace sluice::client {
namespace {

class Edge {
 public:
  explicit Edge(const void* data, size_t n) {
    pages_ = static_cast<char*>(
        mmap(nullptr, 2 * kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(pages_ + kRoom, kRoom, PROT_NONE);
    at = pages_ + kRoom - n;
    std::memcpy(at, data, n);
  }
  explicit Edge(const std::string& s) : Edge(s.data(), s.size()) {}
  ~Edge() { munmap(pages_, 2 * kRoom); }
  Edge(const Edge&) = delete;
  char* at;

 private:
  static constexpr size_t kRoom = 1 << 16;
  char* pages_;
};

size_t size_of(const Edge& e, const void** start = nullptr) {
  const void* ignored = nullptr;
  return image_size(e.at, start ? start : &ignored);
}

template <class... T>
std::string bytes(const T&... parts) {
  std::string out;
  (out.append(reinterpret_cast<const char*>(&parts), sizeof parts), ...);
  return out;
}

TEST(ImageSize, TextEndsWithItsNul) {
  const std::string ptx = ".version 8.0\n.target sm_90\n.address_size 64\n";
  const Edge e(ptx + '\0');
  const void* start = nullptr;
  EXPECT_EQ(size_of(e, &start), ptx.size() + 1);
  EXPECT_EQ(start, e.at);
}

TEST(ImageSize, ShortTextIsNotReadBeyondItsEnd) {
  for (const std::string text : {"", ".", "//", "///", "P", "\x7f",
                                 "\x7f"
                                 "E",
                                 "\x7f"
                                 "EL",
                                 "P\xed",
                                 "P\xed"
                                 "U"}) {
    const Edge e(text + '\0');
    EXPECT_EQ(size_of(e), text.empty() ? 0 : text.size() + 1) << text;
  }
  EXPECT_EQ(size_of(Edge(std::string("\xb1", 2))), 0u);
  EXPECT_EQ(size_of(Edge(std::string("\xff\xfe", 3))), 0u) << "neither text nor code";
}

std::string fatbin(uint16_t header, uint64_t body) {
  return bytes(fat_binary::kContainerMagic, uint16_t{1}, header, body);
}

TEST(ImageSize, AFatBinarySaysItsLength) {
  EXPECT_EQ(size_of(Edge(fatbin(16, 1000))), 1016u);
  EXPECT_EQ(size_of(Edge(fatbin(16, 0))), 16u);
}

TEST(ImageSize, AFatBinaryThatLiesIsNone) {
  EXPECT_EQ(size_of(Edge(fatbin(16, ~uint64_t{0}))), 0u) << "the sum wraps";
  EXPECT_EQ(size_of(Edge(fatbin(16, ~uint64_t{0} - 16))), 0u);
  EXPECT_EQ(size_of(Edge(fatbin(0, 1000))), 0u) << "a header shorter than itself";
  EXPECT_EQ(size_of(Edge(fatbin(15, 1000))), 0u);
}

TEST(ImageSize, AWrapperPointsToItsFatBinary) {
  const Edge container(fatbin(16, 48));
  const Edge wrapper(bytes(fat_binary::kWrapperMagic, uint32_t{1},
                           static_cast<const void*>(container.at),
                           static_cast<const void*>(nullptr)));
  const void* start = nullptr;
  EXPECT_EQ(size_of(wrapper, &start), 64u);
  EXPECT_EQ(start, container.at);
}

TEST(ImageSize, AWrapperThatPointsNowhereOrToItselfIsNone) {
  const Edge nowhere(bytes(fat_binary::kWrapperMagic, uint32_t{1}, static_cast<void*>(nullptr),
                           static_cast<void*>(nullptr)));
  EXPECT_EQ(size_of(nowhere), 0u);
  Edge self(bytes(fat_binary::kWrapperMagic, uint32_t{1}, static_cast<void*>(nullptr),
                  static_cast<void*>(nullptr)));
  const void* own = self.at;
  std::memcpy(self.at + 8, &own, sizeof own);
  EXPECT_EQ(size_of(self), 0u);
}

// An ELF file with two sections, the second of which has no bytes.
std::string elf(uint64_t section_at, uint64_t section_bytes) {
  Elf64_Ehdr h{};
  std::memcpy(h.e_ident, ELFMAG, SELFMAG);
  h.e_ident[EI_CLASS] = ELFCLASS64;
  h.e_ehsize = sizeof h;
  h.e_shoff = sizeof h;
  h.e_shentsize = sizeof(Elf64_Shdr);
  h.e_shnum = 2;
  Elf64_Shdr text{}, bss{};
  text.sh_type = SHT_PROGBITS, text.sh_offset = section_at, text.sh_size = section_bytes;
  bss.sh_type = SHT_NOBITS, bss.sh_offset = 4096, bss.sh_size = 1 << 20;
  return bytes(h, text, bss);
}

TEST(ImageSize, AnElfFileEndsWithItsLastPart) {
  const size_t head = sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Shdr);
  EXPECT_EQ(size_of(Edge(elf(200, 1000))), 1200u);
  EXPECT_EQ(size_of(Edge(elf(0, 0))), head) << "the section table itself";
}

TEST(ImageSize, AnElfFileThatLiesIsNone) {
  EXPECT_EQ(size_of(Edge(elf(~uint64_t{0}, 1000))), 0u) << "the sum wraps";
  EXPECT_EQ(size_of(Edge(elf(200, ~uint64_t{0} - 100))), 0u);
  std::string far = elf(200, 1000);
  const uint64_t away = uint64_t{1} << 46;
  std::memcpy(far.data() + offsetof(Elf64_Ehdr, e_shoff), &away, sizeof away);
  EXPECT_EQ(size_of(Edge(far)), 0u) << "a section table beyond what an image may be";
  std::memset(far.data() + offsetof(Elf64_Ehdr, e_shoff), 0xff, sizeof away);
  EXPECT_EQ(size_of(Edge(far)), 0u);
  std::string small = elf(200, 1000);
  const uint16_t entry = 8;
  std::memcpy(small.data() + offsetof(Elf64_Ehdr, e_shentsize), &entry, sizeof entry);
  EXPECT_EQ(size_of(Edge(small)), 0u) << "entries shorter than an entry";
  std::string narrow = elf(200, 1000);
  narrow[EI_CLASS] = ELFCLASS32;
  EXPECT_EQ(size_of(Edge(narrow)), 0u);
}

TEST(ImageSize, AnElfFileWithoutSectionsEndsWithItsSegments) {
  Elf64_Ehdr h{};
  std::memcpy(h.e_ident, ELFMAG, SELFMAG);
  h.e_ident[EI_CLASS] = ELFCLASS64;
  h.e_phoff = 64, h.e_phentsize = sizeof(Elf64_Phdr), h.e_phnum = 3;
  EXPECT_EQ(size_of(Edge(bytes(h))), 64 + 3 * sizeof(Elf64_Phdr));
}

}  // namespace
}  // namespace sluice::client

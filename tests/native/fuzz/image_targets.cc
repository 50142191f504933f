// SPDX-License-Identifier: Apache-2.0
// The worker's reading of what is to be loaded: what it lets pass has to hold what it claims.
#include <cstdlib>

#include "image_packing.h"
#include "tests/native/code_images.h"
#include "tests/native/fuzz/targets.h"
#include "worker/image/image.h"

namespace sluice::fuzz {

namespace {

const char kPtx[] =
    ".version 7.8\n.target sm_90\n.address_size 64\n"
    ".global .align 4 .b8 a<3>[12][0x5] = {1,{2,3}}, b[7];/*x*/ //y\n"
    ".const .v4 .f32 c[0b101]; .extern .global .attribute(.managed) .b64 d[];\n"
    ".visible .entry k(.param .u64 p) { ld.global.u32 %r1, [%rd2+4]; ret; }\n";

bool read_image(std::span<const std::byte> input) {
  const worker::Examined e = worker::examine_image(input);
  if (e.instead.size() > input.size()) std::abort();
  if (e.verdict == worker::ImageVerdict::kBroken && e.why.empty()) std::abort();
  if (e.verdict != worker::ImageVerdict::kUsable) return false;
  // What is loaded in its place is examined to the same end.
  if (!e.instead.empty()) {
    const worker::Examined again = worker::examine_image(e.instead);
    if (again.verdict != worker::ImageVerdict::kUsable || !again.instead.empty() ||
        again.needs.data_bytes != e.needs.data_bytes)
      std::abort();
  }
  return true;
}

// What PTX declares does not get less where text is put behind it.
bool count_variables(std::span<const std::byte> input) {
  const uint64_t bytes = worker::ptx_needs(input);
  std::string more(text_of(input));
  more += "\n*/\"\n.global .b8 behind[65536];\n";
  if (worker::ptx_needs(std::as_bytes(std::span(more))) < bytes) std::abort();
  return bytes > 0;
}

bool unpack(std::span<const std::byte> input) {
  // Its first byte says how much room there is.
  if (input.empty()) return false;
  std::vector<std::byte> room(static_cast<size_t>(input[0]));
  return fat_binary::unpack_lz4(input.subspan(1), room);
}

}  // namespace

std::vector<Target> image_targets() {
  using test::elf, test::fat_part, test::fat_container;
  const auto cubin = elf({{".nv.global", SHT_NOBITS, SHF_ALLOC | SHF_WRITE, 4096},
                          {".nv.constant3", SHT_PROGBITS, SHF_ALLOC, 96},
                          {".nv.shared.k", SHT_NOBITS, SHF_ALLOC, 512},
                          {".text.k", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 64}},
                         {{1, 64, 8}, {2, 16}, {SHN_COMMON, 8}}, 8192);
  const auto text = test::bytes_of(kPtx);
  const std::string packed(
      "\x16\x1f"
      "a\x01\x00\x02",
      6);  // one `a`, and 21 copies of it
  const std::string literals = std::string("\x05", 1) +
                               "\x50"
                               "abcde";
  const std::string magic = ".version";  // so that what is unpacked passes for PTX
  const std::string lz4 = std::string("\x80", 1) + magic;
  return {
      {"machine code", {text_of(cubin)}, {"\0\x01\x08\xff", 4}, read_image},
      {"the worker's fat binaries",
       {text_of(fat_container({fat_part({1, 90, text}), fat_part({2, 90, cubin})})),
        text_of(fat_container({fat_part({2, 80, cubin}),
                               fat_part({1, 90, test::bytes_of(lz4), fat_binary::kLz4, 8})}))},
       {"\0\x01\x40\xff", 4},
       read_image},
      {"variables of PTX", {kPtx}, ".[]{}<>(),;=/*\"0x \n", count_variables},
      {"LZ4", {packed, literals}, {"\0\x0f\xf0\xff", 4}, unpack},
  };
}

}  // namespace sluice::fuzz

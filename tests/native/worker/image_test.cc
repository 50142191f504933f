// SPDX-License-Identifier: Apache-2.0
// What an image takes of a GPU is known before the driver sees it, and nothing is read beyond its
// end, whatever it claims.
#include "worker/image/image.h"

#include <dlfcn.h>
#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>

#include "image_packing.h"
#include "tests/native/code_images.h"

namespace sluice::worker {
namespace {

using namespace test;

constexpr uint64_t kGiB = 1ull << 30;

std::string ptx(const std::string& rest) {
  return ".version 7.8\n.target sm_90\n.address_size 64\n" + rest;
}
uint64_t data_of(const std::string& text) { return ptx_needs(bytes_of(text)); }

// As ptxas 13.0 takes them, with what it makes of them.
TEST(Image, VariablesOfPtxAreCounted) {
  const std::pair<const char*, uint64_t> declarations[] = {
      {".visible .global .align 4 .b8 a[1073741824];", kGiB},
      {".global .b32 a[65536][4096];", kGiB},
      {".global .b8 a[0x40000000];", kGiB},
      {".global .b8 a[010000000000];", kGiB},
      {".global .b8 a[0b1000000000000000000000000000000];", kGiB},
      {".global .b8 a[1073741824U];", kGiB},
      {".global .v4 .f32 a[67108864];", kGiB},
      {".global .b128 a[67108864];", kGiB},
      {".global .f16x2 a[268435456];", kGiB},
      {".global .b32 a, b[268435456];", kGiB},
      {".global .b32 a[4] = {1,2}, b[268435456];", kGiB},
      {".global .b32 a[][3] = {{1,2},{3,4}};", 24},
      {".global .align 1073741824 .b8 a[4];", kGiB},
      {".global .b8 a; .global .align 536870912 .b8 b; .global .b8 c;", (kGiB >> 1) + 2},
      {".global .attribute(.managed) .b8 a[1073741824];", kGiB},
      {".extern .global .b8 a[1073741824];", kGiB},
      {".common .global .b8 a[1073741824];", kGiB},
      {".const .b8 a[65536];", 65536},
      {".visible .global/*.const*/.align 4//x\n .b8/**/a/**/[/**/1073741824];", kGiB},
      {".global\r\n.b8\ta\n[\n1073741824\n]\n;", kGiB},
      {".visible .entry k(){ .global .b8 a[1073741824]; ret; }", kGiB},
      {".visible .entry k(){ L:.global .b8 a[1073741824]; ret; }", kGiB},
      {".visible .entry k{ret;}.global .b8 a[1073741824];", kGiB},
      {".file 1 \"x\".global .b8 a[1073741824];", kGiB},
      {"// a comment\n.global .b8 a[1073741824];", kGiB},
      {".global .b8 a[1152921504606846976];", 1ull << 60},
  };
  for (const auto& [text, bytes] : declarations) EXPECT_GE(data_of(ptx(text)), bytes) << text;
  EXPECT_GE(data_of(".version 7.8\n.target sm_90.global .b8 a[1073741824];"), kGiB)
      << "not every suffix is an instruction's";
  EXPECT_EQ(data_of(ptx(".global .b8 a[4294967296][4294967297];")), ~uint64_t{0});
  EXPECT_GE(data_of(ptx(".global .b8 a[4];") + '\0' + ".global .b8 b[1073741824];"), kGiB);
  EXPECT_EQ(data_of(ptx(".global .b8 a[1000]; .global .b8 b[24];")), 1024u);
}

TEST(Image, InstructionsAndParametersAreNoVariables) {
  EXPECT_EQ(data_of(ptx(".visible .entry k(.param .u64 p)\n{\n.reg .b64 %rd<3>;\n"
                        "ld.param.u64 %rd1, [p];\ncvta.to.global.u64 %rd2, %rd1;\n"
                        "ld.global.u32 %r1, [%rd2+4194304];\nst.global.u32 [%rd2], %r1;\n"
                        "ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%rd2];\nld.const.u32 %r1, [4096];\n"
                        "atom.global.add.u32 %r3, [%rd2], 1;\n.shared .align 4 .b8 s[40000];\n"
                        ".local .align 4 .b8 l[40000];\nret;\n}\n")),
            0u);
  EXPECT_LE(data_of(ptx(".visible .entry k(.param .u64 .ptr .global .align 4 p){ret;}")), 64u);
}

// Each repeats something that is read to the text's end, or back to its start, from every place.
TEST(Image, ReadingTextTakesStepsInProportionToItsSize) {
  constexpr size_t kBytes = 1 << 20;
  for (const char* piece :
       {".global ", ".global", ".global/*", ".global//", ".global[", ".global a={",
        ".global .attribute(", ".global a<", ".global .b8 a,.global,", ".const{.const a={",
        "ld.global", "ld.global.const ", "a::global.global", ".global .b8 a[4];\n",
        "ld.global.u32 %r1, [%rd2];\n"}) {
    std::string text;
    while (text.size() < kBytes) text += piece;
    uint64_t steps = 0;
    ptx_needs(bytes_of(ptx(text)), &steps);
    EXPECT_GE(steps, kBytes) << piece;
    // Two spaces; what is read again by budget, of which the last may be the text once more.
    EXPECT_LE(steps, 10 * kBytes + (16 << 20)) << piece;
  }
}

TEST(Image, DeclarationsInsideOfOneAnotherAreCountedOrEndless) {
  const auto nested = [](size_t pieces) {
    std::string text;
    for (size_t i = 0; i < pieces; ++i) text += ".global .b8 a[8]={";
    return data_of(ptx(text));
  };
  EXPECT_EQ(nested(100), 800u);
  EXPECT_EQ(nested(100'000), ~uint64_t{0}) << "as much as no GPU has";
  // Many beside one another are as many as there are.
  std::string flat;
  for (size_t i = 0; i < 100'000; ++i) flat += ".global .align 8 .b8 a[8]={1,2,3};\n";
  EXPECT_EQ(data_of(ptx(flat)), 800'000u);
}

TEST(Image, TextThatBreaksOffIsRead) {
  const std::string whole = ptx(".global .align 4 .b8 a<3>[12][0x5] = {1,{2,3}}, b[7];/*x*/ //y");
  for (size_t n = 0; n <= whole.size(); ++n) {
    // As large as it is, so that a sanitizer sees a read beyond.
    const std::vector<std::byte> cut = bytes_of(whole.substr(0, n));
    ptx_needs(cut);
  }
  // A comment or a brace that nobody closes, where a word is looked for.
  for (const char* open : {".global //", ".global /*", ".global .b8 a = {", ".global .b8 a, //x",
                           ".global .attribute(", ".const ["})
    EXPECT_EQ(examine_image(bytes_of(ptx(open))).verdict, ImageVerdict::kUsable) << open;
}

uint64_t data_of(const std::vector<std::byte>& image) {
  uint64_t bytes = 0;
  EXPECT_TRUE(elf_needs(image, &bytes));
  return bytes;
}

TEST(Image, VariablesOfMachineCodeAreCountedByTheLargestOfWhatItSays) {
  EXPECT_EQ(data_of(elf({{".nv.global", SHT_NOBITS, SHF_ALLOC | SHF_WRITE, kGiB}})), kGiB);
  EXPECT_EQ(data_of(elf({{".nv.global", SHT_NOBITS, 0, kGiB}})), kGiB) << "the flags are no matter";
  EXPECT_EQ(data_of(elf({{".nv.global", SHT_NOBITS, SHF_ALLOC, 4096}}, {{1, kGiB}})), kGiB)
      << "a symbol says more than its section";
  EXPECT_EQ(data_of(elf({{".nv.global", SHT_NOBITS, SHF_ALLOC, 4096}}, {{1, 8, kGiB - 8}})), kGiB);
  EXPECT_EQ(data_of(elf({{".nv.global", SHT_NOBITS, SHF_ALLOC, 4096}}, {}, kGiB)), kGiB)
      << "a segment does";
  EXPECT_EQ(data_of(elf({}, {{SHN_COMMON, kGiB}})), kGiB);
  EXPECT_EQ(data_of(elf({{".nv.global.init", SHT_PROGBITS, SHF_ALLOC | SHF_WRITE, 4000},
                         {".nv.constant3", SHT_PROGBITS, SHF_ALLOC, 96},
                         {".nv.global", SHT_NOBITS, SHF_ALLOC, 904}})),
            5000u);
  EXPECT_EQ(data_of(elf({{".text.k", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 9000},
                         {".debug_frame", SHT_PROGBITS, 0, 9000},
                         {".nv.shared.k", SHT_NOBITS, SHF_ALLOC, 49152}},
                        {{1, 9000, 0, STT_FUNC}})),
            0u);
  EXPECT_GE(data_of(elf({{".nv.shared.k", SHT_NOBITS, SHF_ALLOC, kGiB}})), kGiB)
      << "no chip has so much shared memory";
}

TEST(Image, MachineCodeThatClaimsMoreThanHasComeIsBroken) {
  const auto whole = elf({{".nv.global.init", SHT_PROGBITS, SHF_ALLOC, 400}}, {{1, 400}});
  ASSERT_EQ(examine_image(whole).verdict, ImageVerdict::kUsable);
  EXPECT_FALSE(examine_image(whole).has_ptx);
  for (size_t n = 4; n < whole.size(); ++n) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_EQ(examine_image(cut).verdict, ImageVerdict::kBroken) << n;
  }
  // Every word of it, much too large.
  for (size_t at = 4; at + 8 <= whole.size(); at += 4) {
    auto lying = whole;
    const uint64_t much = 0x7fffffffffffff00;
    std::memcpy(lying.data() + at, &much, sizeof much);
    examine_image(lying);  // a sanitizer would see a read beyond
  }
  auto section = whole;
  Elf64_Ehdr h;
  std::memcpy(&h, section.data(), sizeof h);
  const uint64_t long_one = kGiB;
  std::memcpy(section.data() + h.e_shoff + sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, sh_size),
              &long_one, sizeof long_one);
  EXPECT_EQ(examine_image(section).verdict, ImageVerdict::kBroken);
  // The names, in a section that says it is none and lies far behind the end.
  auto names = elf({{".nv.global", SHT_NOBITS, SHF_ALLOC, 8}});
  std::memcpy(&h, names.data(), sizeof h);
  Elf64_Shdr table;
  std::byte* at = names.data() + h.e_shoff + h.e_shstrndx * sizeof table;
  std::memcpy(&table, at, sizeof table);
  table.sh_type = SHT_NULL;
  table.sh_offset = 1ull << 40;
  std::memcpy(at, &table, sizeof table);
  EXPECT_EQ(examine_image(names).verdict, ImageVerdict::kBroken);
}

std::vector<std::byte> part(uint16_t kind, uint64_t flags, const std::vector<std::byte>& payload,
                            uint64_t unpacked = 0) {
  return fat_part({kind, 90, payload, flags, unpacked});
}
std::vector<std::byte> fat(const std::vector<std::vector<std::byte>>& parts) {
  return fat_container(parts);
}
const std::string kText = ptx(".global .b8 a[1073741824]; .visible .entry k(){ret;}");

// Literals only; then a copy of what was there.
std::vector<std::byte> lz4(const std::string& text) {
  std::vector<std::byte> all;
  put(&all, uint8_t{0xf0});
  size_t left = text.size() - 15;
  for (; left >= 255; left -= 255) put(&all, uint8_t{255});
  put(&all, static_cast<uint8_t>(left));
  const auto body = bytes_of(text);
  all.insert(all.end(), body.begin(), body.end());
  return all;
}
// One frame of one block that is not compressed.
std::vector<std::byte> zstd(const std::string& text) {
  std::vector<std::byte> all;
  const auto n = static_cast<uint32_t>(text.size());
  put(&all, uint32_t{0xfd2fb528}), put(&all, uint8_t{0xa0}), put(&all, n);
  const uint32_t block = n << 3 | 1;
  for (int i = 0; i < 3; ++i) put(&all, static_cast<uint8_t>(block >> (8 * i)));
  const auto body = bytes_of(text);
  all.insert(all.end(), body.begin(), body.end());
  return all;
}

TEST(Image, PartsOfFatBinariesAreCountedUnpacked) {
  const auto plain = examine_image(fat({part(1, 0, bytes_of(ptx(".global .b8 b[77];"))),
                                        part(1, 0, bytes_of(kText)), part(2, 0, elf({}))}));
  EXPECT_EQ(plain.verdict, ImageVerdict::kUsable);
  EXPECT_EQ(plain.needs.data_bytes, kGiB) << "of the largest part";
  EXPECT_TRUE(plain.has_ptx);
  EXPECT_TRUE(plain.instead.empty());
  const auto packed = examine_image(fat({part(1, 0x2000, lz4(kText), kText.size())}));
  EXPECT_EQ(packed.verdict, ImageVerdict::kUsable) << packed.why;
  EXPECT_EQ(packed.needs.data_bytes, kGiB);
  EXPECT_GE(packed.needs.code_bytes, kText.size());
}

// As nvcc writes them for sm_90a, sm_100, sm_100a and sm_100f, and PTX for compute_90a.
TEST(Image, CodeForOneArchitectureOrAFamilyOrNewerGpusIsUnderstood) {
  const std::string text = ptx(".global .b8 b[77];");
  for (const uint64_t flags : {0x100011u, 0x1000011u, 0x1100011u, 0x1200011u}) {
    const auto code = examine_image(fat({part(2, flags, elf({}))}));
    EXPECT_EQ(code.verdict, ImageVerdict::kUsable) << code.why;
    EXPECT_TRUE(code.instead.empty()) << flags;
    const auto packed = examine_image(fat({part(1, flags | 0x2000, lz4(text), text.size())}));
    EXPECT_EQ(packed.verdict, ImageVerdict::kUsable) << packed.why;
    EXPECT_EQ(packed.needs.data_bytes, 77u);
  }
  // What is said beside it is looked at as before.
  EXPECT_EQ(examine_image(fat({part(2, 0x110011, elf({}))})).verdict, ImageVerdict::kNoParts);
}

TEST(Image, PartsPackedWithZstdAreCountedUnpacked) {
  if (!dlopen("libzstd.so.1", RTLD_NOW)) GTEST_SKIP() << "this machine has no libzstd.so.1";
  const auto packed = examine_image(fat({part(1, 0x8000, zstd(kText), kText.size())}));
  EXPECT_EQ(packed.verdict, ImageVerdict::kUsable) << packed.why;
  EXPECT_EQ(packed.needs.data_bytes, kGiB);
}

TEST(Image, Lz4CopiesWhatWasThereAndNothingElse) {
  const uint8_t good[] = {0x35, 'a', 'b', 'c', 3, 0, 0x10, 'x'};
  std::vector<std::byte> to(3 + 9 + 1);
  EXPECT_TRUE(fat_binary::unpack_lz4(std::as_bytes(std::span(good)), to));
  EXPECT_EQ(std::memcmp(to.data(), "abcabcabcabcx", 13), 0);
  const uint8_t before[] = {0x35, 'a', 'b', 'c', 4, 0, 0x10, 'x'};
  EXPECT_FALSE(fat_binary::unpack_lz4(std::as_bytes(std::span(before)), to))
      << "from before its start";
  std::vector<std::byte> small(12), large(14);
  EXPECT_FALSE(fat_binary::unpack_lz4(std::as_bytes(std::span(good)), small));
  EXPECT_FALSE(fat_binary::unpack_lz4(std::as_bytes(std::span(good)), large));
  for (size_t n = 0; n < sizeof good; ++n)
    EXPECT_FALSE(fat_binary::unpack_lz4(std::as_bytes(std::span(good)).first(n), to)) << n;
}

TEST(Image, WhatNobodyCanMeasureIsLeftOut) {
  const auto text = part(1, 0, bytes_of(ptx(".global .b8 b[77];")));
  const std::vector<std::vector<std::byte>> strange = {
      part(8, 0x10000, bytes_of(kText)),                      // code for the linker
      part(1, 0x10000, bytes_of(kText)),                      // a flag that nobody knows
      part(1, 0, bytes_of("~scrambled~ .global .b8 a[4];")),  // no PTX
      part(1, 0xa000, lz4(kText), kText.size()),              // packed in two ways
      part(1, 0x2000, lz4(kText), kText.size() + 1),          // it unpacks to less
      part(1, 0x2000, lz4(kText), 2 * kGiB),                  // more than anybody unpacks
      part(2, 0,
           bytes_of("\x7f"
                    "ELF and then nothing else")),  // broken
  };
  for (const auto& one : strange) {
    const auto mixed = examine_image(fat({one, text, one}));
    EXPECT_EQ(mixed.verdict, ImageVerdict::kUsable);
    EXPECT_EQ(mixed.instead, fat({text})) << "the driver sees what was measured";
    EXPECT_EQ(mixed.needs.data_bytes, 77u);
    EXPECT_FALSE(mixed.why.empty());
    EXPECT_EQ(examine_image(fat({one})).verdict, ImageVerdict::kNoParts);
  }
}

TEST(Image, FatBinariesThatClaimMoreThanHasComeAreBroken) {
  const auto whole = fat({part(1, 0, bytes_of(kText)), part(2, 0, elf({}))});
  ASSERT_EQ(examine_image(whole).verdict, ImageVerdict::kUsable);
  for (size_t n = 4; n < whole.size(); ++n) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_EQ(examine_image(cut).verdict, ImageVerdict::kBroken) << n;
  }
  for (const size_t at : {size_t{8}, size_t{16 + 4}, size_t{16 + 8}}) {
    auto lying = whole;
    const uint32_t much = 0x7fffff00;
    std::memcpy(lying.data() + at, &much, sizeof much);
    EXPECT_EQ(examine_image(lying).verdict, ImageVerdict::kBroken) << at;
  }
}

TEST(Image, NeitherTextNorCodeIsBroken) {
  EXPECT_EQ(examine_image({}).verdict, ImageVerdict::kBroken);
  EXPECT_EQ(examine_image(bytes_of(std::string(40, '\0'))).verdict, ImageVerdict::kBroken);
  EXPECT_EQ(examine_image(bytes_of("\xff\xfe rubbish")).verdict, ImageVerdict::kBroken);
}

}  // namespace
}  // namespace sluice::worker

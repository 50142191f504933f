// SPDX-License-Identifier: Apache-2.0
// What is left of a fat binary for given GPUs, also of ones that lie.
#include "client/driver/fat_binary.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "tests/native/code_images.h"

namespace sluice::client {
namespace {

using fat_binary::kMachineCode, fat_binary::kPtx;
constexpr uint16_t kLtoIr = 8;

struct Entry {
  uint16_t kind;
  uint32_t arch;
  std::string payload;
  uint32_t header = 64;
};

template <class T>
void put(std::string* to, size_t at, T value) {
  std::memcpy(to->data() + at, &value, sizeof value);
}

std::string container(const std::vector<Entry>& entries) {
  std::vector<std::vector<std::byte>> parts;
  for (const Entry& e : entries)
    parts.push_back(test::fat_part({e.kind, e.arch, test::bytes_of(e.payload), 0, 0, e.header}));
  const auto all = test::fat_container(parts);
  return {reinterpret_cast<const char*>(all.data()), all.size()};
}

std::string left_of(const std::string& image, std::vector<ComputeCapability> gpus,
                    bool software = false) {
  std::vector<std::byte> room;
  const auto out = parts_for(std::as_bytes(std::span(image)), gpus, software, &room);
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

const Entry kSm80{kMachineCode, 80, "machine code 80 "};
const Entry kSm86{kMachineCode, 86, "machine code 86 "};
const Entry kSm90{kMachineCode, 90, "machine code 90 "};
const Entry kSm90a{kMachineCode, 90, "machine code 90a"};
const Entry kSm100{kMachineCode, 100, "machine code 100"};
const Entry kPtx75{kPtx, 75, ".version 8.0 // 75      ", 80};
const Entry kPtx90{kPtx, 90, ".version 8.0 // 90      ", 80};
const std::vector<Entry> kAll{kSm80, kPtx75, kSm86, kSm90, kSm90a, kPtx90, kSm100};

TEST(FatBinary, MachineCodeForTheGpuItself) {
  EXPECT_EQ(left_of(container(kAll), {{9, 0}}), container({kSm90, kSm90a}));
  EXPECT_EQ(left_of(container(kAll), {{8, 6}}), container({kSm86}));
}

TEST(FatBinary, OlderMachineCodeOfTheSameGenerationOrPtx) {
  EXPECT_EQ(left_of(container(kAll), {{8, 9}}), container({kSm80, kPtx75, kSm86}));
  EXPECT_EQ(left_of(container(kAll), {{12, 0}}), container({kPtx75, kPtx90}));
  EXPECT_EQ(left_of(container(kAll), {{7, 5}}), container({kPtx75}));
}

TEST(FatBinary, ForSeveralGpus) {
  EXPECT_EQ(left_of(container(kAll), {{9, 0}, {8, 0}}), container({kSm80, kSm90, kSm90a}));
}

TEST(FatBinary, TheSoftwareGpuRunsPtx) {
  EXPECT_EQ(left_of(container(kAll), {{9, 0}}, true), container({kPtx75, kPtx90}));
  EXPECT_EQ(left_of(container({kSm90}), {{9, 0}}, true), container({kSm90}))
      << "whole: why it does not run is the driver's to say";
}

TEST(FatBinary, WhatHasNothingForTheGpuIsSentWhole) {
  EXPECT_EQ(left_of(container({kSm80, kSm100}), {{9, 0}}), container({kSm80, kSm100}));
  EXPECT_EQ(left_of(container(kAll), {{9, 0}, {5, 0}}), container(kAll));
  const std::vector<Entry> intermediate{{kLtoIr, 90, "intermediate    "}, kSm80};
  EXPECT_EQ(left_of(container(intermediate), {{9, 0}}), container(intermediate));
}

TEST(FatBinary, OtherImagesAreSentWhole) {
  for (const std::string image : {"", "x", ".version 8.0 // a text of some length",
                                  "\x7f"
                                  "ELF and what follows it"})
    EXPECT_EQ(left_of(image, {{9, 0}}), image);
}

TEST(FatBinary, LiesAreSentWholeAndReadNowhereElse) {
  const std::string good = container(kAll);
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    for (uint64_t n = 1 + random() % 3; n > 0; --n)
      bad[random() % bad.size()] = static_cast<char>(random());
    if (random() % 2) bad.resize(random() % bad.size());
    const std::string exact(bad);  // its end is the heap's, which AddressSanitizer guards
    const std::string out = left_of(exact, {{9, 0}});
    ASSERT_LE(out.size(), exact.size());
  }
  std::string beyond = good;
  put(&beyond, 16 + 8, ~uint64_t{0});
  EXPECT_EQ(left_of(beyond, {{9, 0}}), beyond);
  put(&beyond, 16 + 8, uint64_t{good.size()});
  EXPECT_EQ(left_of(beyond, {{9, 0}}), beyond);
  std::string none = good;
  put(&none, 16 + 4, uint32_t{0});
  EXPECT_EQ(left_of(none, {{9, 0}}), none);
}

}  // namespace
}  // namespace sluice::client

// SPDX-License-Identifier: Apache-2.0
// The spellings of a PCI address.
#include "pci_address.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

std::string again(std::string_view text, int domain_digits = 4) {
  const std::optional<PciAddress> a = read_pci_address(text);
  return a ? a->text(domain_digits) : "none";
}

TEST(PciAddresses, HaveSeveralSpellings) {
  EXPECT_EQ(read_pci_address("0001:0a:1f.7"), (PciAddress{1, 10, 31, 7}));
  for (const char* same :
       {"0000:0A:00.0", "0000:0a:00.0", "00000000:0A:00.0", "0:a:0", "0a:00.0", "0A:00"})
    EXPECT_EQ(again(same), "0000:0A:00.0") << same;
  EXPECT_EQ(again("ffff:01:00.0"), "FFFF:01:00.0");
  EXPECT_EQ(again("10000:01:00.0"), "10000:01:00.0") << "a domain of VMD";
  EXPECT_EQ(again("10000:01:00.1", 8), "00010000:01:00.1");
}

TEST(PciAddresses, AreNothingElse) {
  for (const char* none :
       {"", ":", "0000", "0000:", "0000:01:", ":01:00.0", "0000::00.0", "0000:01:00.",
        "0000:01:00.8", "0000:01:20.0", "0000:100:00.0", "100000000:01:00.0", "0000:01:00.0 ",
        " 0000:01:00.0", "0x0:1:0.0", "-1:01:00.0", "0000:01:00.0.0", "0:0000:01:00.0", "GPU-0"})
    EXPECT_EQ(again(none), "none") << none;
}

}  // namespace
}  // namespace sluice

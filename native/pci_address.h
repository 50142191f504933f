// SPDX-License-Identifier: Apache-2.0
// Where a device is on the PCI bus, as CUDA and NVML spell it: hexadecimal [domain]:[bus]:[device],
// with a function behind it, or without the domain. A spelling is compared by what it says.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "whole_number.h"

namespace sluice {

struct PciAddress {
  uint32_t domain = 0;
  uint32_t bus = 0, device = 0, function = 0;

  bool operator==(const PciAddress&) const = default;

  // "0000:0A:00.0", as CUDA has it; NVML writes eight digits of the domain.
  std::string text(int domain_digits = 4) const {
    char to[32];
    std::snprintf(to, sizeof to, "%0*X:%02X:%02X.%X", domain_digits, domain, bus, device, function);
    return to;
  }
};

inline std::optional<PciAddress> read_pci_address(std::string_view text) {
  constexpr uint32_t kMostBus = 0xff, kMostDevice = 0x1f, kMostFunction = 7;
  PciAddress a;
  const auto hex = [](std::string_view digits, uint32_t* to) {
    return read_whole_number(digits, to, 16);
  };
  if (const size_t dot = text.rfind('.'); dot != text.npos) {
    if (!hex(text.substr(dot + 1), &a.function)) return {};
    text = text.substr(0, dot);
  }
  const size_t second = text.rfind(':');
  if (second == text.npos || !hex(text.substr(second + 1), &a.device)) return {};
  text = text.substr(0, second);
  if (const size_t first = text.rfind(':'); first != text.npos) {
    if (!hex(text.substr(0, first), &a.domain)) return {};
    text = text.substr(first + 1);
  }
  if (!hex(text, &a.bus)) return {};
  if (a.bus > kMostBus || a.device > kMostDevice || a.function > kMostFunction) return {};
  return a;
}

}  // namespace sluice

// SPDX-License-Identifier: Apache-2.0
// Copies of a few commands, in order, each where a body of 8-byte alignment can be read in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "worker/dispatch.h"

namespace sluice::worker::merge {

// Of a whole frame, in whose memory its body stays.
inline Command command_of(std::span<const std::byte> frame) {
  Command c;
  std::memcpy(&c.header, frame.data(), sizeof c.header);
  c.body = frame.subspan(sizeof c.header);
  return c;
}

class Frames {
 public:
  // Of a command; longer ones are not merged.
  static constexpr size_t kMostBytes = 4096;

  void add(const Command& c, uint64_t key) {
    const size_t at = bytes_.size(), whole = sizeof c.header + c.body.size();
    bytes_.resize(at + (whole + 15) / 16 * 16);
    std::memcpy(bytes_.data() + at, &c.header, sizeof c.header);
    std::memcpy(bytes_.data() + at + sizeof c.header, c.body.data(), c.body.size());
    all_.push_back({at, key});
  }
  size_t size() const { return all_.size(); }
  bool empty() const { return all_.empty(); }
  uint64_t key(size_t i) const { return all_[i].key; }
  // Valid until the next add() or clear().
  Command at(size_t i) const {
    wire::FrameHeader header;
    const std::byte* from = bytes_.data() + all_[i].at;
    std::memcpy(&header, from, sizeof header);
    return command_of({from, header.size});
  }
  std::span<std::byte> body(size_t i) {
    const Command c = at(i);
    return {bytes_.data() + all_[i].at + sizeof c.header, c.body.size()};
  }
  void clear() {
    bytes_.clear();
    all_.clear();
  }

 private:
  struct Place {
    size_t at;
    uint64_t key;
  };
  std::vector<std::byte> bytes_;  // what is cleared keeps its room
  std::vector<Place> all_;
};

}  // namespace sluice::worker::merge

// SPDX-License-Identifier: Apache-2.0
// Code images on their way from the client (kUpload): the leader adds their pieces as they come,
// whichever lane loads or links one takes it out. Memory grows with what has come, not with what
// was announced, and is bounded for the session: an image that finds no room is refused, which
// whoever takes it hears; the pieces of it that still come are counted only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "wire/bodies/commands.h"

namespace sluice::worker {

class Uploads {
 public:
  // Of all images that have come in part, or wait to be loaded: one of the largest.
  static constexpr uint64_t kMostBytes = wire::kMaxBlobBytes;
  static constexpr size_t kMostImages = 64;

  explicit Uploads(uint64_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  enum class Added {
    kYes,           // also where there was no room
    kTooMany,       // other images are under way
    kOutOfSequence  // it is not the piece that comes next, or of another image
  };
  // A piece of an image of `total` bytes.
  Added add(uint64_t id, uint64_t total, uint64_t offset, std::span<const std::byte> piece);

  enum class Taken { kWhole, kRefused, kIncomplete };
  // kIncomplete: there is no such image, or not all of it, and nothing was taken.
  Taken take(uint64_t id, std::vector<std::byte>* image);

  size_t count() const;
  uint64_t bytes() const;     // that have come and are kept
  uint64_t reserved() const;  // the memory that they are kept in

 private:
  struct Image {
    std::vector<std::byte> bytes;
    uint64_t total = 0, received = 0;
    bool refused = false;
  };

  const uint64_t most_bytes_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Image> images_;
  uint64_t bytes_ = 0;  // of all of them
};

}  // namespace sluice::worker

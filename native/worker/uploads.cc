// SPDX-License-Identifier: Apache-2.0
#include "worker/uploads.h"

#include <algorithm>
#include <utility>

namespace sluice::worker {

Uploads::Added Uploads::add(uint64_t id, uint64_t total, uint64_t offset,
                            std::span<const std::byte> piece) {
  std::lock_guard lock(mutex_);
  auto it = images_.find(id);
  if (it == images_.end()) {
    if (offset != 0) return Added::kOutOfSequence;
    if (images_.size() >= kMostImages) return Added::kTooMany;
    it = images_.try_emplace(id).first;
    it->second.total = total;
  }
  Image& image = it->second;
  // Pieces come in order, so what has been received has no holes.
  if (image.total != total || offset != image.received || piece.size() > total - offset)
    return Added::kOutOfSequence;
  image.received += piece.size();
  if (!image.refused && piece.size() > most_bytes_ - bytes_) {
    bytes_ -= image.bytes.size();
    image.refused = true;
    std::vector<std::byte>().swap(image.bytes);
  }
  if (image.refused) return Added::kYes;
  if (image.received > image.bytes.capacity())
    image.bytes.reserve(std::min(image.total, 2 * image.received) + 1);
  image.bytes.insert(image.bytes.end(), piece.begin(), piece.end());
  bytes_ += piece.size();
  return Added::kYes;
}

Uploads::Taken Uploads::take(uint64_t id, std::vector<std::byte>* image) {
  std::lock_guard lock(mutex_);
  const auto it = images_.find(id);
  if (it == images_.end() || it->second.received != it->second.total) return Taken::kIncomplete;
  const bool refused = it->second.refused;
  *image = std::move(it->second.bytes);
  bytes_ -= image->size();
  images_.erase(it);
  return refused ? Taken::kRefused : Taken::kWhole;
}

size_t Uploads::count() const {
  std::lock_guard lock(mutex_);
  return images_.size();
}

uint64_t Uploads::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

uint64_t Uploads::reserved() const {
  std::lock_guard lock(mutex_);
  uint64_t all = 0;
  for (const auto& [id, image] : images_) all += image.bytes.capacity();
  return all;
}

}  // namespace sluice::worker

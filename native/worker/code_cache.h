// SPDX-License-Identifier: Apache-2.0
// Code images that the node has kept of earlier sessions, by the hash of their content. The worker
// reads folders that the server opened for this session: its project's own, and what the operator
// shares with all. It writes nothing: new images go to the server, which hashes and keeps them.
// What is read is hashed again, so a damaged or foreign file is recognised and is as good as none.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "wire/content_hash.h"

namespace sluice::worker {

class CodeCache {
 public:
  // A word to the server: the verb, the image's name, a descriptor that stays the caller's or -1.
  using Tell = std::function<void(const char* verb, const std::string& name, int descriptor)>;

  // Owns the folders' descriptors; -1: there is no such folder.
  CodeCache(int own, int shared, Tell tell) : folders_{own, shared}, tell_(std::move(tell)) {}
  ~CodeCache();
  CodeCache(const CodeCache&) = delete;

  // Fills `image`, which has room for one byte more. False: there is none that is right.
  bool find(const wire::ContentHash& hash, uint64_t bytes, std::vector<std::byte>* image);
  // An image that was uploaded and that the driver took.
  void offer(std::span<const std::byte> image);

 private:
  const int folders_[2];
  const Tell tell_;
};

}  // namespace sluice::worker

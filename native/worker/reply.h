// SPDX-License-Identifier: Apache-2.0
// What a handler answers. For a fire-and-forget command only `status` counts. The executor sends it
// (executor.cc), in pieces where an endpoint does not carry it at once (unfetched_answers.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "abi/cuda_driver.h"

namespace sluice::worker {

struct Reply {
  CUresult status = CUDA_SUCCESS;
  std::vector<std::byte> body;
  std::span<const std::byte> borrowed;  // sent behind `body`; valid until the reply is sent
  std::shared_ptr<std::byte> held;      // where it lies, if it is a piece of Session::bounces
  bool more = false;                    // the rest is fetched later
  template <class T>
  void put(const T& value) {
    const auto* at = reinterpret_cast<const std::byte*>(&value);
    body.insert(body.end(), at, at + sizeof value);
  }
  void put_bytes(const void* data, size_t n) {
    const auto* at = static_cast<const std::byte*>(data);
    body.insert(body.end(), at, at + n);
  }
};

}  // namespace sluice::worker

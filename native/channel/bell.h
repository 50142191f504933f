// SPDX-License-Identifier: Apache-2.0
// What a guest wakes its host with, beside the doorbell word of its slot: the doorbell register of
// an ivshmem-doorbell device, or a byte on a vsock connection. Without one the host finds the word
// when it looks next.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace sluice::channel {

class Bell {
 public:
  Bell() = default;
  // Takes the socket.
  explicit Bell(int socket) : socket_(socket) {}
  // Takes the mapping of `bytes` in which the register lies; `value` names the host's process.
  Bell(volatile uint32_t* mapping, size_t bytes, volatile uint32_t* doorbell, uint32_t value)
      : mapping_(mapping), bytes_(bytes), doorbell_(doorbell), value_(value) {}
  Bell(Bell&& other) noexcept { *this = std::move(other); }
  Bell& operator=(Bell&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(mapping_, other.mapping_);
    std::swap(bytes_, other.bytes_);
    std::swap(doorbell_, other.doorbell_);
    std::swap(value_, other.value_);
    return *this;
  }
  ~Bell() {
    if (socket_ >= 0) close(socket_);
    if (mapping_) munmap(const_cast<uint32_t*>(mapping_), bytes_);
  }

  explicit operator bool() const { return socket_ >= 0 || doorbell_; }

  // A host that hears too much looks anyway, and one that is gone is noticed elsewhere.
  void ring() {
    if (doorbell_) *doorbell_ = value_;
    if (socket_ >= 0 && send(socket_, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
  }

 private:
  int socket_ = -1;
  volatile uint32_t* mapping_ = nullptr;
  size_t bytes_ = 0;
  volatile uint32_t* doorbell_ = nullptr;
  uint32_t value_ = 0;
};

}  // namespace sluice::channel

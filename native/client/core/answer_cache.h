// SPDX-License-Identifier: Apache-2.0
// Answers that hold for a while (`cache` in driver.yaml), kept by the session and asked by the
// generated stubs before they send. Answers about an object are keyed by its handle, whose
// generation keeps an old object's answers from a new one; who changes an object says forget().
// Promises: an answer that was under way while its object was changed is not kept.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>

namespace sluice::client {

// A command and what it asks; without padding, as it is compared by its bytes.
template <class Request>
struct Question {
  uint32_t function;
  uint32_t context;
  Request request;
};
template <class Request>
Question(uint32_t, uint32_t, Request) -> Question<Request>;

class AnswerCache {
 public:
  static constexpr uint64_t kForEver = 0;  // in the place of an object

  template <class Q, class A>
  bool find(uint64_t object, const Q& question, A* answer, uint64_t* epoch) {
    std::lock_guard lock(mutex_);
    *epoch = epoch_;
    const auto about = answers_.find(object);
    if (about == answers_.end()) return false;
    const auto it = about->second.find(bytes_of(question));
    if (it == about->second.end() || it->second.size() != sizeof(A)) return false;
    std::memcpy(answer, it->second.data(), sizeof(A));
    ++hits_;
    return true;
  }

  // `epoch` is what find() said before the question was sent.
  template <class Q, class A>
  void keep(uint64_t object, const Q& question, const A& answer, uint64_t epoch) {
    std::lock_guard lock(mutex_);
    if (epoch != epoch_) return;
    if (++kept_ > kMost) {
      answers_.clear();
      kept_ = 1;
    }
    answers_[object][bytes_of(question)] = bytes_of(answer);
  }

  uint64_t hits() {
    std::lock_guard lock(mutex_);
    return hits_;
  }

  void forget(uint64_t object) {
    std::lock_guard lock(mutex_);
    ++epoch_;
    answers_.erase(object);
  }

 private:
  static constexpr size_t kMost = 16384;

  template <class T>
  static std::string bytes_of(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  }

  std::mutex mutex_;
  uint64_t epoch_ = 0;
  uint64_t hits_ = 0;
  size_t kept_ = 0;  // at most so many are there
  std::unordered_map<uint64_t, std::map<std::string, std::string>> answers_;
};

}  // namespace sluice::client

// SPDX-License-Identifier: Apache-2.0
// Descriptors of cuDNN's backend API as the client keeps them, for the files that make its
// functions: cudnn_backend.cc (building, executing), cudnn_get.cc (reading).
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "client/core/session.h"
#include "client/library/cudnn_look.h"
#include "client/library/object.h"
#include "wire/cudnn_backend.h"

namespace sluice::client::library::cudnn {

// cudnnStatus_t, cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t, cudnnDataType_t
enum : int32_t {
  kSuccess = 0,
  kNotInitialized = 1001,
  kBadParam = 2000,
  kBadParamNull = 2002,
  kNotFinalized = 2004,
  kNotSupported = 3000,
  kInternalError = 4000,
  kExecutionFailed = 5000,
};
constexpr int32_t kVariantPack = 16, kTensor = 17;
enum : int32_t {
  kTensorDataType = 901,
  kTensorUniqueId = 906,
  kTensorIsByValue = 908,
  kPackUniqueIds = 1000,
  kPackPointers = 1001,
  kPackIntermediates = 1002,
  kPackWorkspace = 1003,
};

struct Descriptor {
  int32_t type = 0;
  bool finalized = false, sent = false;
  struct Attribute {
    wire::BackendAttribute head;
    std::vector<std::byte> elements;
  };
  std::vector<Attribute> attributes;
  Key content{};
  // Tensors passed by value below this descriptor: their ids and how many bytes a value has.
  std::map<int64_t, uint32_t> by_value;
  // Those that came in the same answer; null: it was built alone.
  std::shared_ptr<const std::vector<uint64_t>> siblings;
  size_t looked = 0;  // how many questions were answered for it together
};

// By the object's id; under State's mutex. The object in State's table is the id alone.
std::unordered_map<uint64_t, Descriptor>& descriptors();

Descriptor* find(uint64_t id);

inline uint64_t id_of(const void* p) { return reinterpret_cast<uint64_t>(p); }

template <class T>
void put(std::vector<std::byte>* body, const T& value) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  body->insert(body->end(), at, at + sizeof value);
}

inline void put_padded(std::vector<std::byte>* body, const void* data, size_t n) {
  const auto* at = static_cast<const std::byte*>(data);
  body->insert(body->end(), at, at + n);
  body->resize(wire::round_up(body->size(), 8));
}

// What programs ask of descriptors, for the functions below; under State's mutex.
LearnedQuestions& questions();

// An answer of any length, of which only what comes takes memory.
class LongAnswer {
 public:
  std::span<std::byte> all() { return {bytes_.get(), wire::kMaxAnswer}; }
  std::span<const std::byte> first(size_t n) const {
    return {bytes_.get(), std::min<size_t>(n, wire::kMaxAnswer)};
  }

 private:
  std::unique_ptr<std::byte[]> bytes_ =
      std::make_unique_for_overwrite<std::byte[]>(wire::kMaxAnswer);
};

// Keeps what a look said of descriptors that are known by `contents`. Under State's mutex.
void keep_said(State& state, std::span<const std::byte> reply,
               std::span<const wire::BackendQuestion> tree, std::span<const Key> contents);

// The session and the device of the thread's context; or a status of cuDNN's.
int32_t begin(Session** s, Device** d);

// Sends a command that nobody waits for.
int32_t post(Session* s, Device* d, uint16_t function, const std::vector<std::byte>& body,
             Stream* work);

}  // namespace sluice::client::library::cudnn

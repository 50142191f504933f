// SPDX-License-Identifier: Apache-2.0
// What hostile cases share: a session, commands written by hand, and how what came back is said.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/core/session.h"
#include "library/objects.h"
#include "wire/library_sizes.h"

namespace hostile {

using sluice::client::Device;
using sluice::client::Session;
using sluice::wire::FunctionSpec;
using sluice::wire::kCarried;
using sluice::wire::LibrarySpec;
using sluice::wire::ParamKind;
using sluice::wire::ParamSpec;
namespace ids = sluice::library;
namespace wire = sluice::wire;

// The tables of all libraries, by name.
const std::map<std::string, const LibrarySpec*>& libraries();
const FunctionSpec& function(const std::string& name);

// The session, the GPU's context and some memory.
struct World {
  Session* session = nullptr;
  Device* device = nullptr;
  uint64_t memory = 0;

  World();
  template <class T>
  uint64_t put(uint64_t offset, const std::vector<T>& numbers) {
    cuMemcpyHtoD_v2(memory + offset, numbers.data(), numbers.size() * sizeof(T));
    return memory + offset;
  }
};

World& world();

uint64_t id(const void* handle);
uint64_t bits(float value);

// What came of a command.
struct Outcome {
  bool ended = false;
  int64_t status = -1;
  std::vector<std::byte> body;
};

Outcome send(uint16_t function, const std::vector<uint64_t>& words, size_t room = 1 << 16);

// One command of a table's function, word by word.
struct Frame {
  explicit Frame(const std::string& name) : f(function(name)), words(f.params) {}
  Frame& set(int index, uint64_t word) {
    words[static_cast<size_t>(index)] = word;
    return *this;
  }
  Frame& carry(int index, const void* data, size_t n) {
    words[static_cast<size_t>(index)] = kCarried | n;
    const size_t at = tail.size();
    tail.resize(at + (n + 7) / 8);
    if (n) std::memcpy(tail.data() + at, data, n);
    return *this;
  }
  template <class T>
  Frame& carry(int index, const T& value) {
    return carry(index, &value, sizeof value);
  }
  Frame& expect(int index, size_t n) { return set(index, kCarried | n); }
  Outcome send() const {
    std::vector<uint64_t> all = words;
    all.insert(all.end(), tail.begin(), tail.end());
    return hostile::send(f.id, all);
  }
  const FunctionSpec& f;
  std::vector<uint64_t> words, tail;
};

int say(const Outcome& o);
int ok(bool good, const char* what);
// Ends the process where a step of the preparation fails.
void need(int64_t status, const char* what);

// Objects of the node's own making: State's id, made by a raw command.
uint64_t mint();
// A handle of cuBLAS.
uint64_t cublas();

using Cases = std::vector<std::pair<std::string, int (*)()>>;
Cases blas_cases();
Cases solver_cases();
Cases transform_cases();
Cases collective_cases();
Cases network_cases();

// Calls each function of a library from the Nth on, with each pointer NULL in turn.
int sweep(const std::string& library, uint32_t from);

}  // namespace hostile

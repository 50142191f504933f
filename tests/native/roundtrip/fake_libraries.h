// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's libraries are replaced by in tests: every function of the generated stand-ins
// (library_fake.cc.j2) ends here, with its arguments as words. Each call is held against its table,
// so that nothing reaches a library that the session does not own, and all memory that the table
// promises is read or written. Owned by the process; worker, tests and fuzzer share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "worker/library/library.h"

namespace sluice::test {

struct FakeCall {
  const wire::FunctionSpec* function;
  std::vector<uint64_t> words;
  // By parameter: what was found where it points to, and what was left there.
  std::vector<std::vector<std::byte>> read, written;
};

class FakeLibraries {
 public:
  // Makes the worker load the stand-ins; before the first call of a library in this process.
  static FakeLibraries& get();

  std::vector<FakeCall> calls;
  int64_t status = 0;  // what is returned, but by functions that return a text
  uint64_t seed = 1;   // of what is written
  // Functions that a test answers itself, by name; they are not held against their table.
  std::map<std::string, std::function<int64_t(const uint64_t*)>> instead;

  // Objects that libraries have made, as they know them.
  std::set<uint64_t> objects;
  uint64_t make_object(size_t bytes);
  // Those that compute in host memory: what they write to is the worker's own.
  std::set<uint64_t> in_host_memory;
  // Forgets calls and objects.
  void clear();

  int64_t call(uint16_t function, const uint64_t* words);

 private:
  FakeLibraries();
  void take(const wire::FunctionSpec& f, int index, const uint64_t* words, FakeCall* call);
  void fill(void* at, size_t n, std::vector<std::byte>* written);
  uint64_t random();

  uint64_t next_ = 0x0b1ec7000;
};

const char* text_of(const wire::FunctionSpec& f);

}  // namespace sluice::test

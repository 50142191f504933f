// SPDX-License-Identifier: Apache-2.0
// Random arguments of any library function, as an application passes them, and what the library
// must be given for them. Owns the application's memory and the objects that it names.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/native/roundtrip/fake_libraries.h"
#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {

// An object of a library that client and worker know, as if a call had created it.
struct FurnishedObject {
  uint64_t id = 0;       // the worker's and, where handles are pointers, the application's
  uint64_t pointer = 0;  // the library's
};
FurnishedObject furnish(uint8_t type, size_t bytes, int data_type = 0, int pointer_mode = 0);
void drop(const FurnishedObject& object);

class Arguments {
 public:
  Arguments(const wire::LibrarySpec& library, const wire::FunctionSpec& f,
            const RoundTrip::World& world, std::mt19937_64& random);
  ~Arguments();
  Arguments(const Arguments&) = delete;

  uint64_t* words() { return words_.data(); }
  // "" if the library was given what the application passed, else what was different.
  std::string problem(const FakeCall& call) const;
  // The same for what the library wrote and the application got.
  std::string output_problem(const FakeCall& call) const;
  // Whether nothing of the application's memory was written to since the last scribble().
  bool untouched() const;
  void scribble();
  // Whether the library writes to the application's memory.
  bool has_outputs() const;

  // Changes a number that decides about the call; false if there is none.
  bool change_a_value();
  // Changes what must not decide: masked numbers, contents of scalars, addresses of the same
  // alignment.
  void change_the_rest();
  // The id that the application was given for a new object, or 0.
  uint64_t created() const;

 private:
  struct Slot {
    uint64_t expected = 0;  // the word, where it is compared
    bool compared = false;
    std::vector<std::byte> memory;  // the application's
    std::vector<std::byte> found;   // what the library must find there
    bool written = false;           // the library writes
  };
  void make(int index);
  void make_value(int index);
  void make_handle(int index);
  void make_scalar(int index);
  void make_list(int index);
  uint64_t random() { return random_(); }
  uint64_t address() { return world_.memory + random() % ((RoundTrip::kBytes - 64) / 16) * 16; }
  void own(int index, size_t bytes, bool in, bool out);
  bool is_used(int index) const;
  bool is_size(int index) const;
  void agree();

  const wire::LibrarySpec& library_;
  const wire::FunctionSpec& f_;
  const RoundTrip::World& world_;
  std::mt19937_64& random_;
  std::vector<uint64_t> words_;
  std::vector<Slot> slots_;
  std::vector<FurnishedObject> objects_;
  int data_type_ = 0, pointer_mode_ = 0;
  size_t chosen_ = 0;  // of the attributes that may be set
};

}  // namespace sluice::test

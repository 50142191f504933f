// SPDX-License-Identifier: Apache-2.0
// Finds NVIDIA's CUDA runtime in a file that was linked with it statically (libcudart_static.a).
//
// That is one object with one `.text`, which linkers place whole. Known are the versions of
// native/api/static_runtimes.lock: a file has one of them when each of its some 430 public
// functions begins with that version's bytes at that version's place. Of a file that was not
// stripped its own table of symbols will do: when the functions of such names are together in one
// place, and are all those of a release and no other. Nothing else is taken for one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::audit {

struct Function {
  uint32_t offset;    // in the text
  uint16_t name;      // its number in names()
  uint8_t compared;   // so many first bytes
  uint32_t checksum;  // have this
};

struct Runtime {
  const char* versions;  // "13.0.48,13.0.88"; by its names alone: "12.5,12.6"
  uint32_t major;
  uint32_t text_bytes;
  uint16_t key;   // the function that is looked for
  uint64_t head;  // by its first bytes
  const Function* functions;
  size_t count;
};

// Which functions the runtimes of some minor versions have.
struct Release {
  const char* versions;
  uint32_t major;
  const uint16_t* names;  // in order
  size_t count;
};

// Room that each function has at its beginning, before the next one's.
constexpr size_t kJumpBytes = 13;

const char* name_of(const Function& function);

struct FoundRuntime {
  const Runtime* runtime = nullptr;
  uint64_t text = 0;  // where it begins, as the file's headers count addresses
};

enum class Search { kNone, kFound, kUnknown };

// kUnknown: the file imports what the runtime does and has its entry points' names, and is no
// version that is known. `file`: all of an ELF file, which may hold anything.
Search find_static_runtime(std::span<const std::byte> file, FoundRuntime* found);
// The same of the file at a path.
Search find_static_runtime(const char* path, FoundRuntime* found);

}  // namespace sluice::audit

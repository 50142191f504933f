// SPDX-License-Identifier: Apache-2.0
#include "divert.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "static_runtime.h"

namespace sluice::audit {

namespace {

constexpr uint64_t kPage = 4096;
// What ours has not: loads the function's name, and jumps to who refuses it.
constexpr size_t kRefusalBytes = 32;
constexpr char kRefuse[] = "sluice_library_refuse_runtime";  // of our libcuda

struct Noted {
  const link_map* map;
  FoundRuntime found;
};
constexpr size_t kMostNoted = 64;
Noted g_noted[kMostNoted];
size_t g_count = 0;

const char* path_of(const link_map* map) {
  return map->l_name && *map->l_name ? map->l_name : "/proc/self/exe";
}

void say(const link_map* map, const char* why) {
  std::fprintf(stderr, "sluice: the CUDA runtime inside %s is not diverted: %s\n", path_of(map),
               why);
}

// The dynamic symbols of a library that is mapped.
class Symbols {
 public:
  explicit Symbols(const link_map* map) : base_(map->l_addr) {
    for (const ElfW(Dyn)* d = map->l_ld; d && d->d_tag != DT_NULL; ++d) {
      // The loader may have added the base already.
      const uint64_t at = d->d_un.d_ptr < base_ ? d->d_un.d_ptr + base_ : d->d_un.d_ptr;
      if (d->d_tag == DT_SYMTAB) symbols_ = reinterpret_cast<const ElfW(Sym)*>(at);
      if (d->d_tag == DT_STRTAB) texts_ = reinterpret_cast<const char*>(at);
      if (d->d_tag == DT_GNU_HASH) hash_ = reinterpret_cast<const uint32_t*>(at);
    }
  }
  // 0: it has none of that name.
  uint64_t address(const char* name) const {
    if (!symbols_ || !texts_ || !hash_) return 0;
    uint32_t wanted = 5381;
    for (const char* c = name; *c; ++c) wanted = wanted * 33 + static_cast<unsigned char>(*c);
    const uint32_t buckets = hash_[0], first = hash_[1], bloom_words = hash_[2];
    const uint32_t* bucket = hash_ + 4 + 2 * bloom_words;
    const uint32_t* chain = bucket + buckets;
    for (uint32_t i = bucket[wanted % buckets]; i >= first; ++i) {
      const ElfW(Sym)& symbol = symbols_[i];
      const uint32_t hash = chain[i - first];
      if ((hash | 1) == (wanted | 1) && symbol.st_shndx != SHN_UNDEF &&
          std::strcmp(texts_ + symbol.st_name, name) == 0)
        return base_ + symbol.st_value;
      if (hash & 1) break;
    }
    return 0;
  }

 private:
  const uint64_t base_;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* texts_ = nullptr;
  const uint32_t* hash_ = nullptr;
};

// A library of ours in the name space of `any`; nullptr: it is not loaded.
const link_map* find_ours(const link_map* any, const char* name, bool (*is_ours)(const char*)) {
  while (any->l_prev) any = any->l_prev;
  for (; any; any = any->l_next) {
    const char* slash = any->l_name ? std::strrchr(any->l_name, '/') : nullptr;
    if (slash && std::strcmp(slash, name) == 0 && is_ours(any->l_name)) return any;
  }
  return nullptr;
}

std::byte* put(std::byte* at, const void* bytes, size_t n) {
  std::memcpy(at, bytes, n);
  return at + n;
}

// movabs $to, %r11; jmp *%r11: at its entry no function is given anything in that register.
std::byte* put_jump(std::byte* at, uint64_t to) {
  at = put(at, "\x49\xbb", 2);
  at = put(at, &to, sizeof to);
  return put(at, "\x41\xff\xe3", 3);
}

// movabs $name, %rdi, and on.
void put_refusal(std::byte* at, const char* name, uint64_t refuse) {
  const auto word = reinterpret_cast<uint64_t>(name);
  at = put(at, "\x48\xbf", 2);
  put_jump(put(at, &word, sizeof word), refuse);
}

// Maps `bytes` as code: from a file in memory, as pages that were written to may not become code
// everywhere. `at`: where, nullptr: anywhere. MAP_FAILED: it cannot be.
void* map_code(void* at, const std::byte* bytes, size_t n) {
  const int file = memfd_create("sluice-divert", MFD_CLOEXEC);
  if (file < 0) return MAP_FAILED;
  size_t written = 0;
  while (written < n) {
    const ssize_t more = write(file, bytes + written, n - written);
    if (more <= 0) break;
    written += static_cast<size_t>(more);
  }
  void* mapped = MAP_FAILED;
  if (written == n)
    mapped = mmap(at, n, PROT_READ | PROT_EXEC, MAP_PRIVATE | (at ? MAP_FIXED : 0), file, 0);
  close(file);
  return mapped;
}

struct Scratch {
  explicit Scratch(size_t n)
      : bytes(n),
        at(mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  Scratch(const Scratch&) = delete;
  ~Scratch() {
    if (at != MAP_FAILED) munmap(at, bytes);
  }
  std::byte* data() const { return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at); }
  const size_t bytes;
  void* const at;
};

// Where the functions of a runtime are refused that ours has not; one after the other, as the
// runtime has them. Made once for each runtime, and stays. MAP_FAILED: it cannot be.
const void* refusals_of(const Runtime& runtime, const Symbols& ours, uint64_t refuse) {
  struct Made {
    const Runtime* runtime;
    const void* at;
  };
  static Made made[kMostNoted];
  static size_t count = 0;
  for (size_t i = 0; i < count; ++i)
    if (made[i].runtime == &runtime) return made[i].at;
  if (count == kMostNoted) return MAP_FAILED;
  const Scratch code(runtime.count * kRefusalBytes);
  if (!code.data()) return MAP_FAILED;
  size_t refused = 0;
  for (size_t i = 0; i < runtime.count; ++i)
    if (const char* name = name_of(runtime.functions[i]); !ours.address(name))
      put_refusal(code.data() + refused++ * kRefusalBytes, name, refuse);
  const void* at = map_code(nullptr, code.data(), code.bytes);
  if (at != MAP_FAILED) made[count++] = {&runtime, at};
  return at;
}

// nullptr: done.
const char* divert(const Noted& noted, bool (*is_ours)(const char*)) {
  const Runtime& runtime = *noted.found.runtime;
  char name[32];
  std::snprintf(name, sizeof name, "/libcudart.so.%u", runtime.major);
  const link_map* ours = find_ours(noted.map, name, is_ours);
  const link_map* driver = find_ours(noted.map, "/libcuda.so.1", is_ours);
  if (!ours || !driver)
    return "our libcudart of its CUDA version is not loaded: start the program by `sluice run`, "
           "which preloads it";
  const Symbols symbols(ours);
  const uint64_t refuse = Symbols(driver).address(kRefuse);
  if (!refuse) return "our libcuda is of another release";
  const uint64_t text = noted.map->l_addr + noted.found.text;
  const uint64_t begin = text / kPage * kPage;
  const size_t bytes = (text + runtime.text_bytes - begin + kPage - 1) / kPage * kPage;
  const Scratch code(bytes);
  if (!code.data()) return "there is no memory";
  static constexpr char kNoCode[] = "the system lets nobody map new code (memfd_create, mmap)";
  const void* refusing = refusals_of(runtime, symbols, refuse);
  if (refusing == MAP_FAILED) return kNoCode;
  std::memcpy(code.data(), reinterpret_cast<const void*>(begin), bytes);
  size_t refused = 0;
  for (size_t i = 0; i < runtime.count; ++i) {
    const Function& f = runtime.functions[i];
    uint64_t to = symbols.address(name_of(f));
    if (!to) to = reinterpret_cast<uint64_t>(refusing) + refused++ * kRefusalBytes;
    put_jump(code.data() + (text + f.offset - begin), to);
  }
  return map_code(reinterpret_cast<void*>(begin), code.data(), bytes) == MAP_FAILED ? kNoCode
                                                                                    : nullptr;
}

}  // namespace

bool diverts() {
  const char* wanted = std::getenv("SLUICE_STATIC_RUNTIME");
  return wanted && std::strcmp(wanted, "divert") == 0;
}

void note_object(const link_map* map) {
  Noted noted{map, {}};
  // The program itself has no name, and what the kernel brings has no path.
  if (map->l_name && *map->l_name && !std::strchr(map->l_name, '/')) return;
  if (find_static_runtime(path_of(map), &noted.found) != Search::kFound) return;
  if (g_count == kMostNoted) return say(map, "too many objects were loaded at once");
  g_noted[g_count++] = noted;
}

void divert_noted(bool (*is_ours)(const char* path)) {
  for (size_t i = 0; i < g_count; ++i) {
    const Noted& noted = g_noted[i];
    if (const char* why = divert(noted, is_ours)) say(noted.map, why);
  }
  g_count = 0;
}

}  // namespace sluice::audit

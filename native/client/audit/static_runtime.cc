// SPDX-License-Identifier: Apache-2.0
#include "static_runtime.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <iterator>

namespace sluice::audit {

namespace {

#include "audit/static_runtimes.inc"

// Of the imports that all of them have: what a linker leaves out, or another libc has elsewhere.
constexpr size_t kFewestImports = std::size(kImports) - 10;

uint32_t checksum(const std::byte* data, size_t n) {
  uint32_t value = 0x811c9dc5;
  for (size_t i = 0; i < n; ++i) value = (value ^ std::to_integer<uint32_t>(data[i])) * 0x01000193;
  return value;
}

// The file's parts, each checked to lie in it.
class Elf {
 public:
  explicit Elf(std::span<const std::byte> file) : file_(file) {
    if (!read(0, &header_) || std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0 ||
        header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB ||
        header_.e_machine != EM_X86_64 || header_.e_phentsize != sizeof(Elf64_Phdr) ||
        (header_.e_type != ET_EXEC && header_.e_type != ET_DYN))
      header_.e_phnum = 0;
  }
  size_t segments() const { return header_.e_phnum; }
  bool segment(size_t i, Elf64_Phdr* segment) const {
    return read(header_.e_phoff + i * sizeof *segment, segment) &&
           segment->p_offset <= file_.size() &&
           segment->p_filesz <= file_.size() - segment->p_offset;
  }
  std::span<const std::byte> bytes(const Elf64_Phdr& segment) const {
    return file_.subspan(segment.p_offset, segment.p_filesz);
  }
  // Empty where it has no such section, or one that does not lie in the file.
  std::span<const std::byte> section(size_t i, Elf64_Shdr* section) const {
    if (i >= header_.e_shnum || header_.e_shentsize != sizeof *section ||
        !read(header_.e_shoff + i * sizeof *section, section) || section->sh_type == SHT_NOBITS ||
        section->sh_offset > file_.size() || section->sh_size > file_.size() - section->sh_offset)
      return {};
    return file_.subspan(section->sh_offset, section->sh_size);
  }
  size_t sections() const { return header_.e_shnum; }
  // What the file has from an address on, to the end of its segment.
  std::span<const std::byte> at(uint64_t address) const {
    Elf64_Phdr s;
    for (size_t i = 0; i < segments(); ++i)
      if (segment(i, &s) && s.p_type == PT_LOAD && address >= s.p_vaddr &&
          address - s.p_vaddr < s.p_filesz)
        return bytes(s).subspan(address - s.p_vaddr);
    return {};
  }
  template <class T>
  bool read(uint64_t offset, T* value) const {
    if (offset > file_.size() || file_.size() - offset < sizeof *value) return false;
    std::memcpy(value, file_.data() + offset, sizeof *value);
    return true;
  }

 private:
  std::span<const std::byte> file_;
  Elf64_Ehdr header_{};
};

template <class T>
bool take(std::span<const std::byte> from, size_t index, T* value) {
  if (index >= from.size() / sizeof *value) return false;
  std::memcpy(value, from.data() + index * sizeof *value, sizeof *value);
  return true;
}

bool is_import(const char* name, size_t most) {
  size_t low = 0, high = std::size(kImports);
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const int order = std::strncmp(kImports[middle], name, most);
    if (order == 0) return true;
    (order < 0 ? low : high) = order < 0 ? middle + 1 : middle;
  }
  return false;
}

// The first filter, which leaves out nearly everything. Undefined symbols come first in the table
// where it has a GNU hash; how many, that says.
bool imports_what_it_does(const Elf& elf) {
  std::span<const std::byte> dynamic, symbols, texts, hash;
  Elf64_Phdr s;
  for (size_t i = 0; i < elf.segments(); ++i)
    if (elf.segment(i, &s) && s.p_type == PT_DYNAMIC) dynamic = elf.bytes(s);
  Elf64_Dyn d;
  for (size_t i = 0; take(dynamic, i, &d) && d.d_tag != DT_NULL; ++i) {
    if (d.d_tag == DT_SYMTAB) symbols = elf.at(d.d_un.d_ptr);
    if (d.d_tag == DT_STRTAB) texts = elf.at(d.d_un.d_ptr);
    if (d.d_tag == DT_GNU_HASH || (d.d_tag == DT_HASH && hash.empty())) {
      hash = elf.at(d.d_un.d_ptr);
      // Of DT_HASH the second word is the number of all symbols, as of the other that of the first
      // one that is defined.
    }
  }
  uint32_t count = 0;
  if (!take(hash, 1, &count)) return false;
  size_t found = 0, left = count;
  Elf64_Sym symbol;
  for (uint32_t i = 1; i < count && take(symbols, i, &symbol); ++i) {
    if (found + left-- < kFewestImports) return false;
    if (symbol.st_shndx != SHN_UNDEF || symbol.st_name >= texts.size()) continue;
    const auto* name = reinterpret_cast<const char*>(texts.data() + symbol.st_name);
    if (name[0] == '_' && texts.size() - symbol.st_name > 1 && name[1] == 'Z') continue;  // C++
    found += is_import(name, texts.size() - symbol.st_name);
    if (found >= kFewestImports) return true;
  }
  return false;
}

bool begins_at(const Runtime& runtime, std::span<const std::byte> code) {
  for (size_t i = 0; i < runtime.count; ++i) {
    const Function& f = runtime.functions[i];
    if (checksum(code.data() + f.offset, f.compared) != f.checksum) return false;
  }
  return true;
}

uint32_t offset_of_key(const Runtime& runtime) {
  for (size_t i = 0; i < runtime.count; ++i)
    if (runtime.functions[i].name == runtime.key) return runtime.functions[i].offset;
  return 0;
}

// In a segment of code that begins at `address`.
bool find_in(std::span<const std::byte> code, uint64_t address, FoundRuntime* found) {
  constexpr size_t kCount = std::size(kRuntimes);
  uint32_t keys[kCount];
  for (size_t r = 0; r < kCount; ++r) keys[r] = offset_of_key(kRuntimes[r]);
  for (size_t at = -address % 16; at + sizeof(uint64_t) <= code.size(); at += 16) {
    uint64_t head;
    std::memcpy(&head, code.data() + at, sizeof head);
    for (size_t r = 0; r < kCount; ++r) {
      const Runtime& runtime = kRuntimes[r];
      if (head != runtime.head || at < keys[r]) continue;
      const size_t begin = at - keys[r];
      if (code.size() - begin < runtime.text_bytes) continue;
      if (!begins_at(runtime, code.subspan(begin, runtime.text_bytes))) continue;
      *found = {&runtime, address + begin};
      return true;
    }
  }
  return false;
}

// The symbols that a linker left in a file: `symbol`'s name, nullptr for one of no function.
class SymbolTable {
 public:
  explicit SymbolTable(const Elf& elf) {
    for (size_t i = 0; i < elf.sections() && symbols_.empty(); ++i) {
      Elf64_Shdr s{};
      const auto bytes = elf.section(i, &s);
      if (bytes.empty() || s.sh_type != SHT_SYMTAB) continue;
      symbols_ = bytes;
      texts_ = elf.section(s.sh_link, &s);
    }
  }
  bool take(size_t i, Elf64_Sym* symbol) const { return audit::take(symbols_, i, symbol); }
  const char* function(const Elf64_Sym& symbol) const {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF ||
        symbol.st_name >= texts_.size())
      return nullptr;
    const auto* name = reinterpret_cast<const char*>(texts_.data() + symbol.st_name);
    const size_t most = texts_.size() - symbol.st_name;
    return strnlen(name, most) < most ? name : nullptr;
  }

 private:
  std::span<const std::byte> symbols_, texts_;
};

// cudaMalloc and __cudaRegisterVar, and not cuda_check or __cudart123.
bool is_public_name(const char* name) {
  if (std::strncmp(name, "__", 2) == 0) name += 2;
  return std::strncmp(name, "cuda", 4) == 0 && name[4] >= 'A' && name[4] <= 'Z';
}

constexpr size_t kNoName = std::size(kNames);

size_t number_of(const char* name) {
  size_t low = 0, high = kNoName;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const int order = std::strcmp(kNames[middle], name);
    if (order == 0) return middle;
    (order < 0 ? low : high) = order < 0 ? middle + 1 : middle;
  }
  return kNoName;
}

// Where each of kNames is in a file; 0: nowhere.
struct Places {
  uint64_t at[kNoName] = {};
  uint64_t first = ~uint64_t{0}, last = 0;
  size_t count = 0;

  bool add(size_t number, uint64_t address) {
    if (at[number] != 0 || address == 0) return false;
    at[number] = address;
    if (address < first) first = address;
    if (address > last) last = address;
    ++count;
    return true;
  }
  bool are_those_of(const Release& release) const {
    if (count != release.count) return false;
    for (size_t i = 0; i < release.count; ++i)
      if (at[release.names[i]] == 0) return false;
    return true;
  }
};

constexpr uint64_t kMostText = 1 << 20, kAligned = 16;

// Everything from the first of the functions to the last is the runtime's, which aligns all of its
// functions; so none of them is another's or ends before a jump would.
bool stand_together(const SymbolTable& table, const Places& places) {
  if (places.last - places.first >= kMostText) return false;
  Elf64_Sym symbol;
  for (size_t i = 0; table.take(i, &symbol); ++i) {
    const char* name = table.function(symbol);
    if (!name || symbol.st_value < places.first || symbol.st_value > places.last) continue;
    if (symbol.st_value % kAligned != 0) return false;
    if (is_public_name(name) && number_of(name) == kNoName) return false;
  }
  static bool taken[kMostText / kAligned];  // the loader calls under a lock of its own
  std::memset(taken, 0, sizeof taken);
  for (const uint64_t at : places.at) {
    if (at == 0) continue;
    bool& here = taken[(at - places.first) / kAligned];
    if (here) return false;
    here = true;
  }
  return true;
}

// The version whose functions are where the names say.
bool find_at(const Elf& elf, const Places& places, FoundRuntime* found) {
  for (const Runtime& runtime : kRuntimes) {
    const uint64_t text = places.at[runtime.key] - offset_of_key(runtime);
    const auto code = elf.at(text);
    if (code.size() < runtime.text_bytes || !begins_at(runtime, code)) continue;
    *found = {&runtime, text};
    return true;
  }
  return false;
}

// By the names of an unstripped file. What is found stays.
bool find_by_names(const Elf& elf, FoundRuntime* found) {
  const SymbolTable table(elf);
  Places places;
  Elf64_Sym symbol;
  for (size_t i = 0; table.take(i, &symbol); ++i) {
    const char* name = table.function(symbol);
    if (!name || !is_public_name(name)) continue;
    const size_t number = number_of(name);
    if (number != kNoName && !places.add(number, symbol.st_value)) return false;
  }
  const Release* release = nullptr;
  for (const Release& each : kReleases)
    if (places.are_those_of(each)) release = &each;
  if (!release || !stand_together(table, places)) return false;
  const size_t text_bytes = places.last - places.first + kJumpBytes;
  bool is_code = false;
  Elf64_Phdr s;
  for (size_t i = 0; i < elf.segments(); ++i)
    is_code = is_code || (elf.segment(i, &s) && s.p_type == PT_LOAD && s.p_flags & PF_X &&
                          places.first >= s.p_vaddr && s.p_filesz >= text_bytes &&
                          places.first - s.p_vaddr <= s.p_filesz - text_bytes);
  if (!is_code) return false;
  if (find_at(elf, places, found)) return true;
  void* const memory = mmap(nullptr, sizeof(Runtime) + release->count * sizeof(Function),
                            PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  auto* const functions = reinterpret_cast<Function*>(static_cast<Runtime*>(memory) + 1);
  for (size_t i = 0; i < release->count; ++i) {
    const uint16_t number = release->names[i];
    functions[i] = {static_cast<uint32_t>(places.at[number] - places.first), number, 0, 0};
  }
  auto* const runtime = static_cast<Runtime*>(memory);
  *runtime = {release->versions, release->major, static_cast<uint32_t>(text_bytes), 0, 0,
              functions,         release->count};
  *found = {runtime, places.first};
  return true;
}

// By a text that all of them hold: what a profiler calls one of the functions.
bool names_entry_points(const Elf& elf) {
  constexpr char kName[] = "cudaGetFuncBySymbol\0";  // whole: no part of a longer one
  Elf64_Phdr s;
  for (size_t i = 0; i < elf.segments(); ++i) {
    if (!elf.segment(i, &s) || s.p_type != PT_LOAD) continue;
    const auto bytes = elf.bytes(s);
    if (memmem(bytes.data(), bytes.size(), kName, sizeof kName - 1)) return true;
  }
  return false;
}

}  // namespace

const char* name_of(const Function& function) { return kNames[function.name]; }

Search find_static_runtime(std::span<const std::byte> file, FoundRuntime* found) {
  const Elf elf(file);
  if (!imports_what_it_does(elf)) return Search::kNone;
  if (find_by_names(elf, found)) return Search::kFound;
  Elf64_Phdr s;
  for (size_t i = 0; i < elf.segments(); ++i)
    if (elf.segment(i, &s) && s.p_type == PT_LOAD && s.p_flags & PF_X &&
        find_in(elf.bytes(s), s.p_vaddr, found))
      return Search::kFound;
  return names_entry_points(elf) ? Search::kUnknown : Search::kNone;
}

Search find_static_runtime(const char* path, FoundRuntime* found) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return Search::kNone;
  struct stat status;
  Search result = Search::kNone;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    const auto size = static_cast<size_t>(status.st_size);
    void* at = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (at != MAP_FAILED) {
      result = find_static_runtime({static_cast<const std::byte*>(at), size}, found);
      munmap(at, size);
    }
  }
  close(file);
  return result;
}

}  // namespace sluice::audit

// SPDX-License-Identifier: Apache-2.0
#include "client/managed/interposition.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace sluice::client {

namespace {

using Names = std::unordered_map<std::string_view, const Interposed*>;

const Names& names() {
  static const Names* all = [] {
    auto* found = new Names;
    for (const InterposedList& list : {system_calls(), signal_calls()})
      for (size_t i = 0; i < list.count; ++i) {
        const Interposed& each = list.first[i];
        *each.real = dlsym(RTLD_DEFAULT, each.name);
        if (*each.real) found->emplace(each.name, &each);
      }
    return found;
  }();
  return *all;
}

// What the dynamic section of a loaded object says of its calls.
struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela) * calls = nullptr;
  const ElfW(Rela) * others = nullptr;
  size_t call_bytes = 0, other_bytes = 0;
  bool rela = false;
};

// The loader has made the addresses of most objects absolute; those of the vDSO it leaves.
template <class T>
const T* pointer(ElfW(Addr) base, ElfW(Addr) value) {
  return reinterpret_cast<const T*>(value < base ? value + base : value);
}

Tables read_tables(ElfW(Addr) base, const ElfW(Dyn) * dynamic) {
  Tables t;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const auto value = dynamic->d_un.d_ptr;
    switch (dynamic->d_tag) {
      case DT_SYMTAB:
        t.symbols = pointer<ElfW(Sym)>(base, value);
        break;
      case DT_STRTAB:
        t.strings = pointer<char>(base, value);
        break;
      case DT_JMPREL:
        t.calls = pointer<ElfW(Rela)>(base, value);
        break;
      case DT_PLTRELSZ:
        t.call_bytes = dynamic->d_un.d_val;
        break;
      case DT_PLTREL:
        t.rela = dynamic->d_un.d_val == DT_RELA;
        break;
      case DT_RELA:
        t.others = pointer<ElfW(Rela)>(base, value);
        break;
      case DT_RELASZ:
        t.other_bytes = dynamic->d_un.d_val;
        break;
      default:
        break;
    }
  }
  if (!t.rela) t.call_bytes = 0;
  return t;
}

struct Object {
  ElfW(Addr) base;
  ElfW(Addr) from = ~ElfW(Addr){0}, to = 0;
  ElfW(Addr) protected_from = 0, protected_to = 0;  // read-only once it was relocated
};

void write_slot(const Object& object, void** slot, void* value) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uintptr_t>(slot);
  void* start = reinterpret_cast<void*>(at / page * page);
  const bool locked = at >= object.protected_from && at < object.protected_to;
  if (locked && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (locked) mprotect(start, page, PROT_READ);
}

void lead(const Object& object, const Tables& t, const ElfW(Rela) * list, size_t bytes) {
  for (size_t i = 0; list && i < bytes / sizeof *list; ++i) {
    const auto type = ELF64_R_TYPE(list[i].r_info);
    const auto symbol = ELF64_R_SYM(list[i].r_info);
    if ((type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) || symbol == 0) continue;
    const auto found = names().find(t.strings + t.symbols[symbol].st_name);
    if (found == names().end()) continue;
    auto** slot = reinterpret_cast<void**>(object.base + list[i].r_offset);
    // What somebody else has led elsewhere stays so, unless it was not yet looked up at all.
    const Interposed& call = *found->second;
    const void* there = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    const auto target = reinterpret_cast<ElfW(Addr)>(there);
    const bool unresolved = target >= object.from && target < object.to;
    if (there == *call.real || unresolved) write_slot(object, slot, call.ours);
  }
}

int visit(dl_phdr_info* info, size_t, void* given) {
  const ElfW(Dyn)* dynamic = nullptr;
  Object object{info->dlpi_addr};
  const auto own = reinterpret_cast<ElfW(Addr)>(&interpose);
  const auto libc = reinterpret_cast<ElfW(Addr)>(given);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const ElfW(Addr) at = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(at);
    // The loader protects whole pages, the last of which may be shared with what stays writable.
    if (header.p_type == PT_GNU_RELRO)
      object.protected_from = at / 4096 * 4096,
      object.protected_to = (at + header.p_memsz) / 4096 * 4096;
    if (header.p_type != PT_LOAD) continue;
    object.from = std::min(object.from, at);
    object.to = std::max(object.to, at + header.p_memsz);
    for (const ElfW(Addr) left : {own, libc})
      if (left >= at && left < at + header.p_memsz) return 0;
  }
  if (!dynamic) return 0;
  const Tables t = read_tables(info->dlpi_addr, dynamic);
  if (!t.symbols || !t.strings) return 0;
  lead(object, t, t.calls, t.call_bytes);
  lead(object, t, t.others, t.other_bytes);
  return 0;
}

int count_loads(dl_phdr_info* info, size_t, void* loads) {
  *static_cast<unsigned long long*>(loads) = info->dlpi_adds;
  return 1;  // each says the same
}

}  // namespace

const RealCalls& real_calls() {
  static const RealCalls calls{
      reinterpret_cast<decltype(RealCalls::sigaction)>(dlsym(RTLD_DEFAULT, "sigaction")),
      reinterpret_cast<decltype(RealCalls::pthread_sigmask)>(
          dlsym(RTLD_DEFAULT, "pthread_sigmask"))};
  return calls;
}

void interpose() {
  static unsigned long long seen = 0;
  unsigned long long loads = 0;
  dl_iterate_phdr(count_loads, &loads);
  if (loads == seen) return;
  seen = loads;
  static_cast<void>(names());
  dl_iterate_phdr(visit, dlsym(RTLD_DEFAULT, "gnu_get_libc_version"));
}

}  // namespace sluice::client

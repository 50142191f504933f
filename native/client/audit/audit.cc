// SPDX-License-Identifier: Apache-2.0
// libsluice-audit.so: makes the dynamic loader take our libraries wherever a program asks for them.
//
// Loaded by ld.so into a name space of its own, because `sluice run` set LD_AUDIT. Whenever a
// library is looked for (a dependency, by DT_RPATH or not; a dlopen, also by absolute path), its
// base name is held against the libraries in the folder of this one, and one that stands for it is
// taken. Which names a library stands for is the table in this file's middle
// (guest_runtime/substitution.py says the same for `sluice check`); every other name passes
// unchanged, so that a library which this release does not bring is NVIDIA's own. Where the user
// asked for it, objects with NVIDIA's runtime inside get ours (divert.h). It keeps no threads,
// allocates nothing after it was loaded and needs no C++ runtime.
#include <dirent.h>
#include <limits.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "divert.h"
#include "static_runtime.h"

namespace {

constexpr size_t kMostLibraries = 64;
constexpr size_t kLongestPath = 1024;

struct Library {
  char path[kLongestPath];
  const char* name;  // in `path`: libcublas.so.13
  size_t stem;       // how much of `name` is in front of ".so": libcublas
  // How many newer ones of that stem there are: 1 of libcublas.so.12 beside libcublas.so.13. All of
  // one CUDA version have the same.
  unsigned age;
  bool alone;   // the only one of its stem
  bool loaded;  // into the program's own space
};

// The libraries beside this one; filled before the first lookup and constant from then on.
Library g_libraries[kMostLibraries];
size_t g_count = 0;

// The age of the first library that was taken and is there in several versions: the program's CUDA
// version, by which names without one are understood. The loader calls under a lock of its own.
constexpr unsigned kNoneYet = ~0u;
unsigned g_age = kNoneYet;

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool is_version(const char* text) {
  if (*text < '0' || *text > '9') return false;
  for (; *text; ++text)
    if ((*text < '0' || *text > '9') && *text != '.') return false;
  return true;
}

// Whether a file of our folder stands for others: lib….so.N, and not one of Sluice's own parts.
bool stands(const char* name, size_t* stem) {
  const char* suffix = std::strstr(name, ".so.");
  if (!suffix || !is_version(suffix + 4)) return false;
  *stem = static_cast<size_t>(suffix - name);
  return std::strncmp(name, "lib", 3) == 0 && std::strncmp(name, "libsluice-", 10) != 0;
}

// ".so.13" or ".so.13.1.0.3", for ".so.13".
bool has_version(const char* suffix, const char* own) {
  const size_t length = std::strlen(own);
  return std::strncmp(suffix, own, length) == 0 &&
         (suffix[length] == 0 || (suffix[length] == '.' && is_version(suffix + length + 1)));
}

// What auditwheel puts between name and version.
constexpr size_t kHashDigits = 8;

bool is_hash(const char* text) {
  for (size_t i = 0; i < kHashDigits; ++i)
    if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f'))) return false;
  return true;
}

// Whether a name is that of a copy which auditwheel put into a wheel.
bool is_copy(const Library& library, const char* wanted) {
  const char* rest = wanted + library.stem;
  return std::strncmp(wanted, library.name, library.stem) == 0 && (*rest == '-' || *rest == '.') &&
         is_hash(rest + 1) && has_version(rest + 1 + kHashDigits, library.name + library.stem);
}

// The names that a library stands for:
//   libcublas.so.13        its own;
//   libcublas.so.13.1.0.3  with all of the version, as a toolkit's folder has it;
//   libcublas.so           without one, as a linker and many a dlopen write it: where there are
//                          several versions, the one that the file of that path is a link to, else
//                          the one of the CUDA version that the program has already, else the
//                          newest;
//   libcublas-1a2b3c4d.so.13.1.0.3  the copy that auditwheel put into a wheel (torchvision's have a
//                          dot for the dash);
//   libcuda.so.580.65.06   the driver's libraries under the driver's version;
//   libcudnn_ops.so.9      a part of cuDNN, all of which is in our libcudnn.so.9: NVIDIA's parts
//                          would each bring a runtime that fails here.
bool stands_for(const Library& library, const char* wanted) {
  if (std::strncmp(wanted, library.name, library.stem) != 0) return false;
  const char* own = library.name + library.stem;
  const char* rest = wanted + library.stem;
  if (has_version(rest, own) || is_copy(library, wanted)) return true;
  if (std::strcmp(rest, ".so") == 0 && library.alone) return true;
  if (std::strcmp(own, ".so.1") == 0 && std::strncmp(rest, ".so.", 4) == 0 && is_version(rest + 4))
    return true;
  constexpr char kDivided[] = "libcudnn";
  if (library.stem != sizeof kDivided - 1 ||
      std::strncmp(library.name, kDivided, library.stem) != 0)
    return false;
  const char* suffix = std::strstr(rest, ".so.");
  return *rest == '_' && suffix && has_version(suffix, own);
}

bool same_stem(const Library& a, const Library& b) {
  return a.stem == b.stem && std::strncmp(a.name, b.name, a.stem) == 0;
}

unsigned long version_of(const Library& library) {
  return std::strtoul(library.name + library.stem + 4, nullptr, 10);
}

void order_versions() {
  for (size_t i = 0; i < g_count; ++i) {
    Library& one = g_libraries[i];
    one.age = 0, one.alone = true;
    for (size_t j = 0; j < g_count; ++j) {
      if (j == i || !same_stem(one, g_libraries[j])) continue;
      one.alone = false;
      one.age += version_of(g_libraries[j]) > version_of(one);
    }
  }
}

// The library of several versions that a name without one means, or nullptr.
Library* without_version(const char* name, const char* wanted) {
  Library* newest = nullptr;
  Library* fitting = nullptr;
  for (size_t i = 0; i < g_count; ++i) {
    Library& one = g_libraries[i];
    if (one.alone || std::strncmp(wanted, one.name, one.stem) != 0 ||
        std::strcmp(wanted + one.stem, ".so") != 0)
      continue;
    if (one.age == 0) newest = &one;
    if (one.age == g_age) fitting = &one;
  }
  if (!newest) return nullptr;
  char file[PATH_MAX];
  if (wanted != name && realpath(name, file))
    for (size_t i = 0; i < g_count; ++i)
      if (same_stem(g_libraries[i], *newest) && stands_for(g_libraries[i], base_name(file)))
        return &g_libraries[i];
  return fitting ? fitting : newest;
}

char* take(Library& library) {
  if (!library.alone && g_age == kNoneYet) g_age = library.age;
  return library.path;
}

const char* g_own_path = nullptr;

int find_own_path(dl_phdr_info* object, size_t, void*) {
  const auto here = reinterpret_cast<uintptr_t>(&find_own_path);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || here - (object->dlpi_addr + part.p_vaddr) >= part.p_memsz)
      continue;
    g_own_path = object->dlpi_name;
    return 1;
  }
  return 0;
}

// Where this library was loaded from. Not by dladdr: before glibc 2.34 that is in libdl, which
// crashes as long as ld.so has not started the program, and a loader hook is loaded before.
const char* own_path() {
  dl_iterate_phdr(&find_own_path, nullptr);
  return g_own_path;
}

void read_own_folder() {
  const char* own = own_path();
  if (!own) return;
  const size_t folder = static_cast<size_t>(base_name(own) - own);
  char path[kLongestPath];
  if (folder == 0 || folder >= sizeof path) return;
  std::memcpy(path, own, folder);
  path[folder] = 0;
  DIR* entries = opendir(path);
  if (!entries) return;
  while (const dirent* entry = readdir(entries)) {
    const size_t length = std::strlen(entry->d_name);
    size_t stem;
    if (g_count == kMostLibraries || folder + length >= kLongestPath ||
        !stands(entry->d_name, &stem))
      continue;
    Library& library = g_libraries[g_count++];
    std::memcpy(library.path, path, folder);
    std::memcpy(library.path + folder, entry->d_name, length + 1);
    library.name = library.path + folder;
    library.stem = stem;
  }
  closedir(entries);
  order_versions();
}

Library* find_ours(const char* path) {
  for (size_t i = 0; i < g_count; ++i)
    if (std::strcmp(g_libraries[i].path, path) == 0) return &g_libraries[i];
  return nullptr;
}

bool is_ours(const char* path) { return find_ours(path) != nullptr; }

bool g_diverts = false;

}  // namespace

extern "C" {

__attribute__((visibility("default"))) unsigned int la_version(unsigned int version) {
  read_own_folder();
  g_diverts = sluice::audit::diverts();
  // The oldest version has all that is used here; a loader refuses only newer ones than its own.
  return version < 1 ? 0 : 1;
}

__attribute__((visibility("default"))) char* la_objsearch(const char* name, uintptr_t* /*cookie*/,
                                                          unsigned int flag) {
  const char* wanted = base_name(name);
  if (std::strncmp(wanted, "lib", 3) != 0) return const_cast<char*>(name);
  for (size_t i = 0; i < g_count; ++i) {
    Library& library = g_libraries[i];
    if (!stands_for(library, wanted)) continue;
    // Whoever needs a copy names it where he says which version of its symbols he wants, and the
    // loader finds that name only at what it knows by it. Of a library that is there already it
    // learns a further name where it comes upon the same file on a search path, and not here.
    if (flag == LA_SER_ORIG && wanted == name && library.loaded && is_copy(library, wanted)) break;
    return take(library);
  }
  if (Library* meant = without_version(name, wanted)) return take(*meant);
  return const_cast<char*>(name);
}

// 0: what the object binds to is nobody's business.
__attribute__((visibility("default"))) unsigned int la_objopen(link_map* map, Lmid_t space,
                                                               uintptr_t* /*cookie*/) {
  if (space != LM_ID_BASE) return 0;
  Library* own = map->l_name ? find_ours(map->l_name) : nullptr;
  if (own) own->loaded = true;
  if (g_diverts && !own) sluice::audit::note_object(map);
  return 0;
}

__attribute__((visibility("default"))) void la_activity(uintptr_t* /*cookie*/, unsigned int flag) {
  if (g_diverts && flag == LA_ACT_CONSISTENT) sluice::audit::divert_noted(&is_ours);
}

// For `sluice check`: which version of the static runtime a file has. 0: none. 1: one, whose
// versions are written to `versions`. 2: one that is not known.
__attribute__((visibility("default"))) int sluice_static_runtime_of(const char* path,
                                                                    char* versions, size_t room) {
  sluice::audit::FoundRuntime found;
  const auto search = sluice::audit::find_static_runtime(path, &found);
  if (search == sluice::audit::Search::kFound)
    std::snprintf(versions, room, "%s", found.runtime->versions);
  return static_cast<int>(search);
}

}  // extern "C"

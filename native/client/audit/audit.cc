// SPDX-License-Identifier: Apache-2.0
// libsluice-audit.so: makes the dynamic loader take our libraries wherever a program asks for them.
//
// Loaded by ld.so into a name space of its own, because `sluice run` set LD_AUDIT. Whenever a
// library is looked for (a dependency, by DT_RPATH or not; a dlopen, also by absolute path) whose
// base name lies in the folder of this library, that one is taken. Every other name passes
// unchanged. It keeps no threads, allocates nothing after it was loaded and needs no C++ runtime.
#include <dirent.h>
#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr size_t kMostLibraries = 64;
constexpr size_t kLongestPath = 1024;

// Paths of the libraries beside this one; filled before the first lookup and constant from then on.
char g_paths[kMostLibraries][kLongestPath];
const char* g_names[kMostLibraries];
size_t g_count = 0;

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool is_library(const char* name) {
  return std::strncmp(name, "lib", 3) == 0 && std::strstr(name, ".so") != nullptr &&
         std::strncmp(name, "libsluice-", 10) != 0;
}

void read_own_folder() {
  Dl_info own;
  if (!dladdr(reinterpret_cast<void*>(&read_own_folder), &own) || !own.dli_fname) return;
  const size_t folder = static_cast<size_t>(base_name(own.dli_fname) - own.dli_fname);
  char path[kLongestPath];
  if (folder == 0 || folder >= sizeof path) return;
  std::memcpy(path, own.dli_fname, folder);
  path[folder] = 0;
  DIR* entries = opendir(path);
  if (!entries) return;
  while (const dirent* entry = readdir(entries)) {
    const size_t length = std::strlen(entry->d_name);
    if (!is_library(entry->d_name) || g_count == kMostLibraries || folder + length >= kLongestPath)
      continue;
    std::memcpy(g_paths[g_count], path, folder);
    std::memcpy(g_paths[g_count] + folder, entry->d_name, length + 1);
    g_names[g_count] = g_paths[g_count] + folder;
    ++g_count;
  }
  closedir(entries);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) unsigned int la_version(unsigned int version) {
  read_own_folder();
  // The oldest version has all that is used here; a loader refuses only newer ones than its own.
  return version < 1 ? 0 : 1;
}

__attribute__((visibility("default"))) char* la_objsearch(const char* name, uintptr_t* /*cookie*/,
                                                          unsigned int /*flag*/) {
  const char* wanted = base_name(name);
  for (size_t i = 0; i < g_count; ++i)
    if (std::strcmp(wanted, g_names[i]) == 0) return g_paths[i];
  return const_cast<char*>(name);
}

}  // extern "C"

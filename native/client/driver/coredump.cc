// SPDX-License-Identifier: Apache-2.0
// Attributes of GPU core dumps. A dump would be written by the node's driver on the node, where the
// program has no business, so dumps are off and turning them on is refused. What only describes one
// is kept and given back.
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/unsupported.h"

using namespace sluice::client;

namespace {

constexpr size_t kLongestName = 1023;

std::mutex g_mutex;
std::map<int, std::string> g_values;  // by attribute, bytes as the program gave them

bool is_text(CUcoredumpSettings a) { return a == CU_COREDUMP_FILE || a == CU_COREDUMP_PIPE; }
bool is_known(CUcoredumpSettings a) {
  return a >= CU_COREDUMP_ENABLE_ON_EXCEPTION && a < CU_COREDUMP_MAX;
}

std::string bytes_of(const void* value, size_t n) {
  return std::string(static_cast<const char*>(value), n);
}

// As CUDA documents it.
std::string standard(CUcoredumpSettings a) {
  if (is_text(a)) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    const std::string name = a == CU_COREDUMP_FILE ? "core" : "corepipe";
    return name + ".cuda." + host + "." + std::to_string(getpid()) + '\0';
  }
  const unsigned none = 0;
  const bool on = a == CU_COREDUMP_TRIGGER_HOST;
  return a == CU_COREDUMP_GENERATION_FLAGS ? bytes_of(&none, sizeof none)
                                           : bytes_of(&on, sizeof on);
}

CUresult get(CUcoredumpSettings a, void* value, size_t* size) {
  if (!size || !is_known(a)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(g_mutex);
  const auto it = g_values.find(a);
  const std::string now = it == g_values.end() ? standard(a) : it->second;
  if (value) {
    if (*size < now.size()) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(value, now.data(), now.size());
  }
  *size = now.size();
  return CUDA_SUCCESS;
}

CUresult set(CUcoredumpSettings a, const void* value, const size_t* size) {
  if (!value || !size || !is_known(a)) return CUDA_ERROR_INVALID_VALUE;
  std::string wanted;
  if (is_text(a)) {
    const auto* text = static_cast<const char*>(value);
    const size_t n = strnlen(text, *size);
    if (n == 0 || n > kLongestName) return CUDA_ERROR_INVALID_VALUE;
    wanted = std::string(text, n) + '\0';
  } else {
    if (*size < standard(a).size()) return CUDA_ERROR_INVALID_VALUE;
    wanted = bytes_of(value, standard(a).size());
  }
  const bool turns_on =
      a == CU_COREDUMP_ENABLE_ON_EXCEPTION || a == CU_COREDUMP_ENABLE_USER_TRIGGER;
  if (turns_on && wanted != standard(a)) {
    note_unsupported("cuCoredumpSetAttribute, to have core dumps of the GPU");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  std::lock_guard lock(g_mutex);
  g_values[a] = wanted;
  return CUDA_SUCCESS;
}

CUresult enter_context() {
  Session* s;
  Device* d;
  return enter(&s, &d);
}

CUresult enter_process() {
  Session* s;
  return enter(&s);
}

}  // namespace

extern "C" {

CUresult cuCoredumpGetAttribute(CUcoredumpSettings a, void* value, size_t* size) {
  const CUresult e = enter_context();
  return e == CUDA_SUCCESS ? get(a, value, size) : e;
}
CUresult cuCoredumpGetAttributeGlobal(CUcoredumpSettings a, void* value, size_t* size) {
  const CUresult e = enter_process();
  return e == CUDA_SUCCESS ? get(a, value, size) : e;
}
CUresult cuCoredumpSetAttribute(CUcoredumpSettings a, void* value, size_t* size) {
  const CUresult e = enter_context();
  return e == CUDA_SUCCESS ? set(a, value, size) : e;
}
CUresult cuCoredumpSetAttributeGlobal(CUcoredumpSettings a, void* value, size_t* size) {
  const CUresult e = enter_process();
  return e == CUDA_SUCCESS ? set(a, value, size) : e;
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// The driver's linker, cuLink*: for programs that compile to PTX and let the driver make the rest.
//
// A real driver links PTX, cubins and libraries into a cubin. Here the link is the client's alone
// and its product is PTX: the one PTX input, whole, which the loading functions take like any other
// image and the node's driver compiles when it is loaded. CUDA calls the product an image to load
// and no more, so such a program sees two differences: errors in the PTX come from the load, not
// from cuLinkAddData, and the product is no file for a disassembler.
// What PTX text cannot carry is refused, with the reason in the linker's own error log: a second
// input (joining PTX by its text is wrong: names that are private to a file would meet), inputs
// that are not PTX, and a limit on registers, on which it depends whether a launch fits.
#include <algorithm>
#include <cstring>

#include "client/core/log.h"
#include "client/driver/module.h"

using namespace sluice::client;

namespace {

// The buffers stay the application's until cuLinkDestroy, and so does `values`, which CUDA writes.
void write_log(const Link::Log& log, const char* text) {
  size_t n = 0;
  if (log.text && log.room) {
    n = std::min(std::strlen(text), log.room - 1);
    std::memcpy(log.text, text, n);
    log.text[n] = 0;
  }
  if (log.written) *log.written = reinterpret_cast<void*>(n);
}

CUresult refuse(const Link& link, const char* why) {
  log_line(LogLevel::kError, std::string("cuLink: ") + why);
  write_log(link.error, why);
  return CUDA_ERROR_NOT_SUPPORTED;
}

// What an option means for the link, or for one of its inputs.
CUresult take_options(Link* link, unsigned count, const CUjit_option* options, void** values) {
  if (count && (!options || !values)) return CUDA_ERROR_INVALID_VALUE;
  bool limits_registers = false;
  for (unsigned i = 0; i < count; ++i) {
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        link->info.text = static_cast<char*>(values[i]);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        link->info.room = reinterpret_cast<size_t>(values[i]);
        link->info.written = &values[i];
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        link->error.text = static_cast<char*>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        link->error.room = reinterpret_cast<size_t>(values[i]);
        link->error.written = &values[i];
        break;
      case CU_JIT_MAX_REGISTERS:
        limits_registers = values[i] != nullptr;
        break;
      default:
        // How fast and how debuggable the code becomes, never what it computes. The target is the
        // device that it is loaded on.
        if (options[i] >= CU_JIT_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return limits_registers
             ? refuse(*link, "a limit on registers is not supported yet when linking PTX")
             : CUDA_SUCCESS;
}

CUresult find_link(CUlinkState state, Link** link) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  *link = s->links.find(state);
  return *link ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

extern "C" {

CUresult cuLinkCreate_v2(unsigned int count, CUjit_option* options, void** values,
                         CUlinkState* state) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  Link made;
  if (const CUresult e = take_options(&made, count, options, values); e != CUDA_SUCCESS) return e;
  write_log(made.info, "");
  write_log(made.error, "");
  uint64_t id;
  Link* link = s->links.create(&id);
  if (!link) return CUDA_ERROR_OUT_OF_MEMORY;
  *link = std::move(made);
  *state = reinterpret_cast<CUlinkState>(id);
  return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t bytes,
                          const char*, unsigned int count, CUjit_option* options, void** values) {
  Link* link;
  if (const CUresult e = find_link(state, &link); e != CUDA_SUCCESS) return e;
  if (!data || !bytes || type >= CU_JIT_NUM_INPUT_TYPES || link->complete)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = take_options(link, count, options, values); e != CUDA_SUCCESS) return e;
  if (type != CU_JIT_INPUT_PTX)
    return refuse(*link, "linking anything but PTX is not supported yet");
  if (!link->image.empty())
    return refuse(*link, "linking more than one piece of PTX is not supported yet");
  // Text with or without its NUL; what is loaded ends with one.
  const auto* text = static_cast<const char*>(data);
  link->image.assign(text, text + strnlen(text, bytes));
  if (link->image.empty()) return CUDA_ERROR_INVALID_PTX;
  link->image.push_back(0);
  return CUDA_SUCCESS;
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path,
                          unsigned int count, CUjit_option* options, void** values) {
  Link* link;
  if (const CUresult e = find_link(state, &link); e != CUDA_SUCCESS) return e;
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  std::vector<char> file = read_file(path);
  if (file.empty()) return CUDA_ERROR_FILE_NOT_FOUND;
  return cuLinkAddData_v2(state, type, file.data(), file.size(), path, count, options, values);
}

CUresult cuLinkComplete(CUlinkState state, void** image, size_t* bytes) {
  Link* link;
  if (const CUresult e = find_link(state, &link); e != CUDA_SUCCESS) return e;
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  if (link->image.empty()) {
    write_log(link->error, "nothing was added to the link");
    return CUDA_ERROR_INVALID_IMAGE;
  }
  link->complete = true;
  *image = link->image.data();
  // The NUL counts: who copies the image by its size can load the copy.
  if (bytes) *bytes = link->image.size();
  return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  return s->links.destroy(reinterpret_cast<uint64_t>(state)) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_HANDLE;
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// The driver's linker, cuLink*: it is the node's, since linking is for its GPU. Inputs travel as
// they are added, so errors come from the call that natively has them; the product is fetched when
// the link is complete and stays here until the link is destroyed.
#include <algorithm>
#include <cstring>

#include "client/core/enter.h"
#include "client/driver/jit.h"
#include "client/driver/module.h"
#include "client/objects/device.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

CUresult find_link(CUlinkState state, Session** s, Link** link) {
  Device* d;
  if (const CUresult e = enter(s, &d); e != CUDA_SUCCESS) return e;
  *link = (*s)->links.find(state);
  return *link ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// An exchange whose answer is the logs, behind `head` bytes that are `front`'s.
template <class T>
CUresult ask(Session* s, const Link& link, uint16_t function, const T& body,
             std::span<const std::byte> tail = {}, void* front = nullptr, size_t head = 0) {
  std::vector<std::byte> reply(8192);
  size_t got = 0;
  const CUresult e =
      s->exchange(function, body, tail, reply, &got, nullptr, link.device->context());
  const auto answer = std::span(reply).first(std::min(got, reply.size()));
  if (answer.size() < head) return e;
  if (head) std::memcpy(front, answer.data(), head);
  link.logs.give(answer.subspan(head));
  return e;
}

CUresult fetch(Session* s, Link* link, uint64_t id, uint64_t bytes) {
  link->image.resize(bytes);
  for (uint64_t at = 0; at < bytes; at += wire::kLinkPiece) {
    const wire::LinkRead r{id, at, std::min(wire::kLinkPiece, bytes - at)};
    size_t got = 0;
    const CUresult e = s->exchange(
        wire::kLinkRead, r, {}, std::as_writable_bytes(std::span(link->image)).subspan(at, r.bytes),
        &got, nullptr, link->device->context());
    if (e != CUDA_SUCCESS) return e;
    if (got != r.bytes) return CUDA_ERROR_UNKNOWN;
  }
  return CUDA_SUCCESS;
}

bool make_sense(unsigned count, const CUjit_option* options, void* const* values) {
  if (count && (!options || !values)) return false;
  return std::all_of(options, options + count,
                     [](CUjit_option o) { return o < CU_JIT_NUM_OPTIONS; });
}

}  // namespace

extern "C" {

CUresult cuLinkCreate_v2(unsigned int count, CUjit_option* options, void** values,
                         CUlinkState* state) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!state || !make_sense(count, options, values)) return CUDA_ERROR_INVALID_VALUE;
  const JitOptions jit(count, options, values);
  uint64_t id;
  Link* link = s->links.create(&id);
  if (!link) return CUDA_ERROR_OUT_OF_MEMORY;
  *link = {d, jit.logs, {}, false};
  link->logs.info.give("", 0);
  link->logs.error.give("", 0);
  const wire::LinkBegin begin{id, jit.count(), 0};
  if (const CUresult e = s->post(wire::kLinkBegin, begin, jit.bytes(), nullptr, d->context());
      e != CUDA_SUCCESS)
    return e;
  *state = reinterpret_cast<CUlinkState>(id);
  return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t bytes,
                          const char* name, unsigned int count, CUjit_option* options,
                          void** values) {
  Session* s;
  Link* link;
  if (const CUresult e = find_link(state, &s, &link); e != CUDA_SUCCESS) return e;
  if (!data || !bytes || bytes > wire::kMaxBlobBytes || type >= CU_JIT_NUM_INPUT_TYPES ||
      link->complete || !make_sense(count, options, values))
    return CUDA_ERROR_INVALID_VALUE;
  // Text with or without its NUL, and nothing behind it.
  if (type == CU_JIT_INPUT_PTX) bytes = strnlen(static_cast<const char*>(data), bytes);
  if (bytes == 0) return CUDA_ERROR_INVALID_PTX;
  const JitOptions jit(count, options, values);
  wire::LinkAdd add{
      reinterpret_cast<uint64_t>(state), 0, static_cast<uint32_t>(type), jit.count(), 0, 0};
  add.name_bytes =
      name ? static_cast<uint32_t>(std::min<size_t>(std::strlen(name), wire::kMaxNameBytes)) : 0;
  std::vector<std::byte> tail(jit.bytes().begin(), jit.bytes().end());
  const auto* at = reinterpret_cast<const std::byte*>(name);
  tail.insert(tail.end(), at, at + add.name_bytes);
  if (const CUresult e = upload(s, *link->device, data, bytes, &add.blob); e != CUDA_SUCCESS)
    return e;
  return ask(s, *link, wire::kLinkAdd, add, tail);
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path,
                          unsigned int count, CUjit_option* options, void** values) {
  Session* s;
  Link* link;
  if (const CUresult e = find_link(state, &s, &link); e != CUDA_SUCCESS) return e;
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  std::vector<char> file = read_file(path);
  if (file.empty()) return CUDA_ERROR_FILE_NOT_FOUND;
  return cuLinkAddData_v2(state, type, file.data(), file.size(), path, count, options, values);
}

CUresult cuLinkComplete(CUlinkState state, void** image, size_t* bytes) {
  Session* s;
  Link* link;
  if (const CUresult e = find_link(state, &s, &link); e != CUDA_SUCCESS) return e;
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  if (!link->complete) {
    const auto id = reinterpret_cast<uint64_t>(state);
    uint64_t size = 0;
    if (const CUresult e =
            ask(s, *link, wire::kLinkComplete, wire::LinkId{id}, {}, &size, sizeof size);
        e != CUDA_SUCCESS)
      return e;
    if (const CUresult e = fetch(s, link, id, size); e != CUDA_SUCCESS) return e;
    link->complete = true;
  }
  *image = link->image.data();
  if (bytes) *bytes = link->image.size();
  return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) {
  Session* s;
  Link* link;
  const CUresult e = find_link(state, &s, &link);
  if (e != CUDA_SUCCESS && e != CUDA_ERROR_INVALID_CONTEXT) return e;
  const auto id = reinterpret_cast<uint64_t>(state);
  const Device& device = *link->device;
  if (!s->links.retire(id)) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult told = s->tell(device, wire::kLinkEnd, wire::LinkId{id});
  s->links.recycle(id);
  return told;
}

}  // extern "C"

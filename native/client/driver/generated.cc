// SPDX-License-Identifier: Apache-2.0
// The exported functions that follow from the registry alone: those with generated bodies,
// refusals, and names that stand for others.
#include "wire/generated.h"

#include "abi/cuda_driver.h"
#include "client/core/addresses.h"
#include "client/core/enter.h"
#include "client/driver/module.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

// Whether the GPU of `user` may touch `bytes` from there: the command is not answered, so a wrong
// address must be seen here.
bool names_memory(Session* s, const Device& user, CUdeviceptr address, uint64_t bytes) {
  if (const Device* d = device_of_address(s, address)) {
    AddressRange range;
    return d->place.node == user.place.node && find_range(s, address, &range) &&
           address - range.start + bytes <= range.bytes;
  }
  ModuleGlobal global;
  return s->module_globals.find(address, bytes, user.place.node, &global) ||
         s->host_memory().in_arena(reinterpret_cast<const void*>(address), bytes);
}

template <class Request, class Answer>
CUresult ask(Session* s, uint16_t function, const Request& request, Answer* answer, Stream* work,
             uint32_t context) {
  size_t got = 0;
  const CUresult e =
      s->exchange(function, request, {}, {reinterpret_cast<std::byte*>(answer), sizeof *answer},
                  &got, work, context);
  if (e == CUDA_SUCCESS && got < sizeof *answer) return CUDA_ERROR_UNKNOWN;
  return e;
}

// The answer of a device that has not got what the function is about.
CUresult refuse(CUresult status) {
  Session* s;
  const CUresult e = enter(&s);
  return e == CUDA_SUCCESS ? status : e;
}

}  // namespace

// The text below is made by native/codegen.
#include "client/driver_stubs.inc"
#include "client/refused_driver.inc"
#include "client/unsupported_driver.inc"
#include "client/variants_driver.inc"

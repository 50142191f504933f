// SPDX-License-Identifier: Apache-2.0
#include "softgpu/interp/access.h"

#include <cstdio>

namespace sluice::softgpu {
namespace {

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

bool illegal(Exec& exec, uint64_t address, uint32_t bytes, Access access, const char* where) {
  return exec.fail(Fault::kIllegalAddress,
                   std::string(access == Access::kWrite ? "write of " : "read of ") +
                       std::to_string(bytes) + " bytes at " + hex(address) + where);
}

bool misaligned(Exec& exec, uint64_t address, uint32_t align) {
  return exec.fail(Fault::kMisaligned,
                   "address " + hex(address) + " is not a multiple of " + std::to_string(align));
}

bool within(uintptr_t address, uintptr_t base, uint64_t size, uint64_t bytes) {
  return address >= base && address - base <= size && size - (address - base) >= bytes;
}

}  // namespace

uint8_t* resolve_shared(Exec& exec, uint64_t offset, uint64_t bytes) {
  if (offset > exec.shared_size || exec.shared_size - offset < bytes) return nullptr;
  return exec.shared + offset;
}

uint8_t* resolve_generic(Exec& exec, uint32_t lane, uint64_t address, uint64_t bytes,
                         Access access) {
  bool ok = access == Access::kWrite ? exec.view.writable(address, bytes)
                                     : exec.view.readable(address, bytes);
  auto* pointer = reinterpret_cast<uint8_t*>(address);
  if (ok) return pointer;
  if (within(address, reinterpret_cast<uintptr_t>(exec.shared), exec.shared_size, bytes)) {
    return pointer;
  }
  uintptr_t local =
      reinterpret_cast<uintptr_t>(exec.local) + static_cast<size_t>(exec.local_stride) * lane;
  if (exec.local && within(address, local, exec.local_stride, bytes)) return pointer;
  if (access == Access::kRead &&
      within(address, reinterpret_cast<uintptr_t>(exec.params), exec.params_size, bytes)) {
    return pointer;
  }
  return nullptr;
}

// The common case: a full warp whose addresses all lie in one range. Computes the bounds of all
// lanes at once; false if lanes have to be looked at one by one.
bool resolve_together(Exec& exec, const Instr& instr, uint32_t bytes, uint32_t align,
                      Access access) {
  if (exec.mask != 0xffffffffu || instr.flags[0] & kFrameRelative) return false;
  uint64_t address[kWarpSize];
  if (instr.flags[0] & kBase64) {
    const uint64_t* base = exec.reg<uint64_t>(instr.r[0]);
    for (uint32_t l = 0; l < kWarpSize; ++l) address[l] = base[l] + instr.imm;
  } else if (instr.flags[0] & kBase32) {
    const uint32_t* base = exec.reg<uint32_t>(instr.r[0]);
    uint32_t offset = static_cast<uint32_t>(instr.imm);
    for (uint32_t l = 0; l < kWarpSize; ++l) address[l] = base[l] + offset;
  } else {
    return false;
  }
  uint64_t odd = 0;
  uint64_t least = address[0];
  uint64_t most = address[0];
  for (uint32_t l = 0; l < kWarpSize; ++l) {
    odd |= address[l];
    least = address[l] < least ? address[l] : least;
    most = address[l] > most ? address[l] : most;
  }
  if (odd & (align - 1)) return false;
  uintptr_t shift = 0;
  if (instr.space == Space::kShared) {
    if (most > exec.shared_size || exec.shared_size - most < bytes) return false;
    shift = reinterpret_cast<uintptr_t>(exec.shared);
  } else {
    exec.view.tick();
    if (!exec.view.accessible(least, most - least + bytes, access == Access::kWrite)) return false;
  }
  for (uint32_t l = 0; l < kWarpSize; ++l) {
    exec.ptr[l] = reinterpret_cast<uint8_t*>(address[l] + shift);
  }
  return true;
}

bool resolve(Exec& exec, const Instr& instr, uint32_t bytes, uint32_t align, Access access) {
  if (instr.space <= Space::kShared && resolve_together(exec, instr, bytes, align, access)) {
    return true;
  }
  const uint64_t imm = instr.imm;
  const uint64_t* wide = (instr.flags[0] & kBase64) ? exec.reg<uint64_t>(instr.r[0]) : nullptr;
  const uint32_t* narrow = (instr.flags[0] & kBase32) ? exec.reg<uint32_t>(instr.r[0]) : nullptr;
  auto address_of = [&](uint32_t lane) -> uint64_t {
    if (wide) return wide[lane] + imm;
    return narrow ? static_cast<uint32_t>(narrow[lane] + imm) : imm;
  };
  switch (instr.space) {
    case Space::kGeneric:
    case Space::kGlobal:
    case Space::kConst: {
      exec.view.tick();
      for (uint32_t rest = exec.mask; rest != 0; rest &= rest - 1) {
        uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
        uint64_t address = address_of(lane);
        if (address & (align - 1)) return misaligned(exec, address, align);
        bool ok = access == Access::kWrite ? exec.view.writable(address, bytes)
                                           : exec.view.readable(address, bytes);
        if (!ok) {
          if (instr.space != Space::kGeneric ||
              !resolve_generic(exec, lane, address, bytes, access)) {
            // cvta of a parameter's address to .global is what compilers emit for grid constants.
            bool parameter = access == Access::kRead &&
                             resolve_generic(exec, lane, address, bytes, access) != nullptr;
            if (!parameter) return illegal(exec, address, bytes, access, "");
          }
        }
        exec.ptr[lane] = reinterpret_cast<uint8_t*>(address);
      }
      return true;
    }
    case Space::kShared:
      for (uint32_t rest = exec.mask; rest != 0; rest &= rest - 1) {
        uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
        uint64_t offset = address_of(lane);
        if (offset & (align - 1)) return misaligned(exec, offset, align);
        if (offset > exec.shared_size || exec.shared_size - offset < bytes) {
          return illegal(exec, offset, bytes, access, " of shared memory");
        }
        exec.ptr[lane] = exec.shared + offset;
      }
      return true;
    case Space::kLocal: {
      uint64_t frame = (instr.flags[0] & kFrameRelative) ? exec.local_frame : 0;
      for (uint32_t rest = exec.mask; rest != 0; rest &= rest - 1) {
        uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
        uint64_t offset = address_of(lane) + frame;
        if (offset & (align - 1)) return misaligned(exec, offset, align);
        if (offset > exec.local_stride || exec.local_stride - offset < bytes) {
          return illegal(exec, offset, bytes, access, " of local memory");
        }
        exec.ptr[lane] = exec.local + static_cast<size_t>(exec.local_stride) * lane + offset;
      }
      return true;
    }
    case Space::kParam:
      for (uint32_t rest = exec.mask; rest != 0; rest &= rest - 1) {
        uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
        uint64_t offset = address_of(lane);
        uint64_t base = reinterpret_cast<uintptr_t>(exec.params);
        // A register holds the block's generic address, a name its offset.
        if (wide && offset >= base) offset -= base;
        if (offset & (align - 1)) return misaligned(exec, offset, align);
        if (access == Access::kWrite || offset > exec.params_size ||
            exec.params_size - offset < bytes) {
          return illegal(exec, offset, bytes, access, " of the kernel's parameters");
        }
        exec.ptr[lane] = const_cast<uint8_t*>(exec.params) + offset;
      }
      return true;
  }
  return false;
}

}  // namespace sluice::softgpu

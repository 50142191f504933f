// SPDX-License-Identifier: Apache-2.0
// Every function of every library with small arguments, and with each of its pointers NULL.
#include <cstdio>
#include <random>

#include "tests/gpu/hostile_libraries.h"

namespace hostile {

namespace {

// One object of each kind that can be made of numbers alone, by the number of its kind.
std::map<uint8_t, uint64_t> furnish() {
  std::map<uint8_t, uint64_t> made;
  for (int round = 0; round < 3; ++round) {
    for (const auto& [name, spec] : libraries()) {
      for (uint16_t i = 0; i < spec->count; ++i) {
        const FunctionSpec& f = spec->functions[i];
        if (f.state != wire::CallState::kCreates) continue;
        std::vector<uint64_t> words(f.params);
        uint8_t kind = 0;
        bool possible = true;
        const uint64_t fresh = mint();
        for (int k = 0; k < f.params; ++k) {
          const ParamSpec& p = f.param[k];
          if (p.kind == ParamKind::kMint)
            kind = p.object, words[static_cast<size_t>(k)] = fresh;
          else if (p.kind == ParamKind::kHandle && made.contains(p.object))
            words[static_cast<size_t>(k)] = made[p.object];
          else if (p.kind == ParamKind::kValue)
            words[static_cast<size_t>(k)] = std::string(f.name).find("curand") == 0 ? 100 : 2;
          else if (p.kind == ParamKind::kAddress)
            words[static_cast<size_t>(k)] = world().memory + static_cast<uint64_t>(k) * 65536;
          else
            possible = false;
        }
        if (!possible || kind == 0 || made.contains(kind) || f.host_memory) continue;
        const Outcome o = hostile::send(f.id, words);
        if (o.ended) return made;
        if (o.status == 0) made[kind] = fresh;
      }
    }
  }
  return made;
}

// A frame of small numbers; nothing where an object is missing or the function is not for this.
std::vector<uint64_t> ordinary(const FunctionSpec& f, const std::map<uint8_t, uint64_t>& objects) {
  std::vector<uint64_t> words(f.params);
  if (f.params == 0 || f.text || f.state == wire::CallState::kCreates ||
      f.state == wire::CallState::kDestroys || f.grouped)
    return {};
  for (int k = 0; k < f.params; ++k) {
    const ParamSpec& p = f.param[k];
    uint64_t& word = words[static_cast<size_t>(k)];
    if (p.kind == ParamKind::kHandle) {
      if (objects.contains(p.object))
        word = objects.at(p.object);
      else if (!p.nullable)
        return {};
    }
    if (p.kind == ParamKind::kAddress) word = world().memory + static_cast<uint64_t>(k) * 1048576;
    if (p.kind == ParamKind::kValue) word = p.bounded ? static_cast<uint64_t>(p.least) : 1;
    if (p.kind == ParamKind::kEvent) return {};
  }
  for (int k = 0; k < f.params; ++k) {
    const ParamSpec& p = f.param[k];
    if (p.kind == ParamKind::kAttribute) {
      words[static_cast<size_t>(p.by)] = p.attributes[0].name;
      words[static_cast<size_t>(p.count[0])] = p.attributes[0].bytes;
    }
    if (p.size == wire::ScalarSize::kComputeType) words[static_cast<size_t>(p.by)] = 68;
  }
  for (int k = 0; k < f.params; ++k) {
    const ParamSpec& p = f.param[k];
    const uint64_t n = wire::elements(f, p, words.data());
    const auto carry = [&](uint64_t bytes, uint64_t filling) {
      words[static_cast<size_t>(k)] = kCarried | bytes;
      words.resize(words.size() + (bytes + 7) / 8, filling);
    };
    switch (p.kind) {
      case ParamKind::kScalar:
        if (p.size == wire::ScalarSize::kNcclType && words[static_cast<size_t>(p.by2)] == 0)
          words[static_cast<size_t>(k)] = world().memory;
        else
          carry(16, 0x3ff000003f800000);
        break;
      case ParamKind::kResult:
        words[static_cast<size_t>(k)] = kCarried | 16;
        break;
      case ParamKind::kIn:
      case ParamKind::kInOut:
      case ParamKind::kAttribute:
        carry(n * (p.kind == ParamKind::kAttribute ? 1 : wire::element_bytes(p, words.data())),
              0x0000000100000001);
        break;
      case ParamKind::kOut:
        words[static_cast<size_t>(k)] = kCarried | n * wire::element_bytes(p, words.data());
        break;
      case ParamKind::kOutAddress:
      case ParamKind::kOutHandle:
        words[static_cast<size_t>(k)] = kCarried | 8;
        break;
      case ParamKind::kString:
        carry(8, 0x0074786574);
        break;
      case ParamKind::kInHandles:
      case ParamKind::kInAddresses:
        return {};
      default:
        break;
    }
  }
  return words;
}

// Takes a carried piece out of a frame: its pointer is NULL.
std::vector<uint64_t> without(const FunctionSpec& f, std::vector<uint64_t> words, int index) {
  size_t at = f.params;
  for (int k = 0; k <= index; ++k) {
    const ParamSpec& p = f.param[k];
    const uint64_t word = words[static_cast<size_t>(k)];
    const bool sent = (word & kCarried) && p.kind != ParamKind::kOut &&
                      p.kind != ParamKind::kResult && p.kind != ParamKind::kOutAddress &&
                      p.kind != ParamKind::kOutHandle && p.kind != ParamKind::kHandle;
    const size_t n = sent ? ((word & ~kCarried) + 7) / 8 : 0;
    if (k == index) {
      words.erase(words.begin() + static_cast<ptrdiff_t>(at),
                  words.begin() + static_cast<ptrdiff_t>(at + n));
      words[static_cast<size_t>(k)] = 0;
    }
    at += n;
  }
  return words;
}

// What the library follows on the CPU: memory of the worker's, and objects that may be left out.
bool is_on_host(const ParamSpec& p) {
  switch (p.kind) {
    case ParamKind::kValue:
    case ParamKind::kStream:
    case ParamKind::kAddress:
    case ParamKind::kHostWorkspace:
    case ParamKind::kNothing:
      return false;
    case ParamKind::kHandle:
      return p.nullable;
    default:
      return true;
  }
}

}  // namespace

// Says what it is about to call, so that whoever reads it knows what ended the session.
int sweep(const std::string& name, uint32_t from) {
  if (!libraries().contains(name)) return 2;
  const LibrarySpec& spec = *libraries().at(name);
  const std::map<uint8_t, uint64_t> objects = furnish();
  uint32_t at = 0, sent = 0;
  for (uint16_t i = 0; i < spec.count; ++i) {
    const FunctionSpec& f = spec.functions[i];
    const std::vector<uint64_t> good = ordinary(f, objects);
    for (int k = -1; k < f.params && !good.empty(); ++k) {
      // NULL on the device ends the GPU's context and nothing else.
      const bool pointer = k < 0 || is_on_host(f.param[k]);
      if (!pointer || at++ < from) continue;
      std::printf("%u %s %d\n", at, f.name, k + 1);
      std::fflush(stdout);
      ++sent;
      const Outcome o = send(f.id, k < 0 ? good : without(f, good, k));
      if (o.ended) {
        std::printf("session ended\n");
        return 0;
      }
      std::printf("  %lld\n", static_cast<long long>(o.status));
      if (cuCtxSynchronize() != CUDA_SUCCESS) {
        std::printf("the GPU ended it\n");
        return 0;
      }
    }
  }
  std::printf("swept %u\n", sent);
  return 0;
}

}  // namespace hostile

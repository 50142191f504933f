// SPDX-License-Identifier: Apache-2.0
#include "tests/native/roundtrip/fake_libraries.h"

#include <cstring>
#include <map>

#include "tests/native/roundtrip/recording_driver.h"
#include "wire/library_sizes.h"

namespace sluice::test {

using wire::FunctionSpec;
using wire::ParamKind;
using wire::ParamSpec;

namespace {

constexpr size_t kScalarRoom = 32;  // the widest

template <class T = void>
T* pointer(uint64_t word) {
  return reinterpret_cast<T*>(word);
}

}  // namespace

FakeLibraries::FakeLibraries() { worker::Libraries::set_path({SLUICE_FAKE_LIBRARIES}); }

FakeLibraries& FakeLibraries::get() {
  static FakeLibraries all;
  return all;
}

uint64_t FakeLibraries::make_object(size_t bytes) {
  next_ += 64;
  const uint64_t object = bytes == 4 ? next_ & 0x7fffffff : next_;
  objects.insert(object);
  return object;
}

void FakeLibraries::clear() {
  calls.clear();
  objects.clear();
  in_host_memory.clear();
  status = 0;
}

uint64_t FakeLibraries::random() {
  seed = seed * 6364136223846793005ull + 1442695040888963407ull;
  return seed >> 16;
}

void FakeLibraries::fill(void* at, size_t n, std::vector<std::byte>* written) {
  written->resize(n);
  for (std::byte& b : *written) b = static_cast<std::byte>(random());
  if (n) std::memcpy(at, written->data(), n);
}

const char* text_of(const FunctionSpec& f) {
  static std::map<std::string, std::string> texts;
  return texts.emplace(f.name, std::string("what ") + f.name + " says").first->second.c_str();
}

// One argument: does the session own what it names, and is all of the memory there?
void FakeLibraries::take(const FunctionSpec& f, int index, const uint64_t* words, FakeCall* call) {
  Recording& r = Recording::get();
  const ParamSpec& p = f.param[index];
  const uint64_t word = words[index];
  auto& read = call->read[static_cast<size_t>(index)];
  auto& written = call->written[static_cast<size_t>(index)];
  const auto wrong = [&](const char* what) {
    r.violation(f.name, std::string(what) + " as argument " + std::to_string(index + 1));
  };
  const auto copy = [&](size_t n) {
    const auto* at = pointer<const std::byte>(word);
    read.assign(at, at + n);
  };
  const auto each = [&](auto&& is_good, const char* what) {
    for (size_t i = 0; i + 8 <= read.size(); i += 8) {
      uint64_t value;
      std::memcpy(&value, read.data() + i, 8);
      if (!is_good(value)) wrong(what);
    }
  };
  const auto reachable = [&](uint64_t at) { return at == 0 || r.device_range(at, 1); };
  const uint64_t n = wire::elements(f, p, words);
  const bool writes = status == 0 || f.outputs_always;
  switch (p.kind) {
    case ParamKind::kValue:
    case ParamKind::kNothing:
      return;
    case ParamKind::kHandle: {
      const uint64_t object = p.bytes == 4 ? word & 0xffffffff : word;
      const bool missing = p.nullable || (p.when >= 0 && words[p.when] == 0);
      if (object ? !objects.contains(object) : !missing) wrong("a foreign object");
      return;
    }
    case ParamKind::kStream:
      return r.check(f.name, pointer<CUstream_st>(word));
    case ParamKind::kEvent:
      if (word) r.check(f.name, pointer<CUevent_st>(word));
      return;
    case ParamKind::kAddress:
      if (!reachable(word) && !in_host_memory.contains(words[0])) wrong("a foreign address");
      return;
    case ParamKind::kScalar:
      if (word && !r.device_range(word, 1)) copy(kScalarRoom);
      return;
    case ParamKind::kResult:
      if (word && !r.device_range(word, 1)) fill(pointer(word), kScalarRoom, &written);
      return;
    case ParamKind::kIn:
      if (word && !(p.either && r.device_range(word, 1))) copy(n * wire::element_bytes(p, words));
      return;
    case ParamKind::kString:
      if (word) copy(std::strlen(pointer<const char>(word)) + 1);
      return;
    case ParamKind::kInOut:
      if (p.either && r.device_range(word, 1)) return;
      if (word) copy(n * wire::element_bytes(p, words));
      [[fallthrough]];
    case ParamKind::kOut:
      if (word && writes) fill(pointer(word), n * wire::element_bytes(p, words), &written);
      return;
    case ParamKind::kInHandles:
      if (word) copy(n * 8);
      return each([&](uint64_t object) { return objects.contains(object); }, "foreign objects");
    case ParamKind::kInAddresses:
      if (word) copy(n * 8);
      return each(reachable, "foreign addresses");
    case ParamKind::kAttribute:
      if (word) copy(n * p.bytes);
      if (wire::carries_address(p, words)) each(reachable, "a foreign address");
      return;
    case ParamKind::kOutAddress:
      if (word && !r.windows.all.empty() && status == 0) {
        const uint64_t address = r.windows.all.begin()->first + random() % 4096 * 8;
        std::memcpy(pointer(word), &address, 8);
        written.resize(8);
        std::memcpy(written.data(), &address, 8);
      }
      return;
    case ParamKind::kOutHandle: {
      if (!word || !writes) return;
      // Any object of the kind: the application gets its id.
      uint64_t id = 0;
      void* object = nullptr;
      worker::Libraries::get().objects.for_each([&](uint64_t i, const worker::LibraryObject& o) {
        if (o.type == p.object) id = i, object = o.pointer;
      });
      std::memcpy(pointer(word), &object, 8);
      written.resize(8);
      std::memcpy(written.data(), &id, 8);
      return;
    }
    case ParamKind::kHostWorkspace:
      if (word) *pointer<std::byte>(word) = *pointer<std::byte>(word + n - 1) = std::byte{1};
      return;
    case ParamKind::kMint:
      if (!word) return wrong("no place for an object");
      if (status == 0) {
        const uint64_t object = make_object(p.bytes);
        std::memcpy(pointer(word), &object, p.bytes);
        if (f.host_memory) in_host_memory.insert(object);
      }
      return;
  }
}

int64_t FakeLibraries::call(uint16_t function, const uint64_t* words) {
  const worker::Libraries::Entry* entry = worker::Libraries::get().find(function);
  if (!entry) {
    Recording::get().violation("a library", "a call that no table has");
    return 1;
  }
  const FunctionSpec& f = *entry->spec;
  if (const auto it = instead.find(f.name); it != instead.end()) return it->second(words);
  FakeCall call{&f, {words, words + f.params}, {}, {}};
  call.read.resize(f.params);
  call.written.resize(f.params);
  for (int i = 0; i < f.params; ++i) take(f, i, words, &call);
  if (f.state == wire::CallState::kDestroys && f.params > 0) objects.erase(words[0]);
  calls.push_back(std::move(call));
  return f.text ? reinterpret_cast<int64_t>(text_of(f)) : status;
}

}  // namespace sluice::test

extern "C" __attribute__((visibility("default"))) int64_t sluice_fake_call(uint16_t function,
                                                                           const uint64_t* words) {
  return sluice::test::FakeLibraries::get().call(function, words);
}

extern "C" __attribute__((visibility("default"))) uint64_t sluice_fake_object(uint64_t bytes) {
  return sluice::test::FakeLibraries::get().make_object(bytes);
}

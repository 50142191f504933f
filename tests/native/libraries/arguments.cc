// SPDX-License-Identifier: Apache-2.0
#include "tests/native/libraries/arguments.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "client/library/object.h"
#include "wire/library_sizes.h"

namespace sluice::test {

using client::library::State;
using wire::FunctionSpec;
using wire::ParamKind;
using wire::ParamSpec;
using wire::ScalarSize;

namespace {

constexpr int kDataTypes[] = {0, 1, 4, 5, 2, 14, 3, 10};  // CUDA_R_32F, R_64F, C_32F, C_64F …
constexpr int kComputeTypes[] = {64, 65, 68, 70, 71, 72, 77};  // CUBLAS_COMPUTE_…
constexpr std::byte kUntouched{0xa5};

uint64_t mask(size_t bytes) { return bytes >= 8 ? ~0ull : (1ull << bytes * 8) - 1; }

worker::StreamObject stream_of(const RoundTrip::World& w, uint64_t id) {
  worker::StreamObject s{CU_STREAM_LEGACY, 0};
  if (id > 2) w.channel->rig.session().objects.streams.get(id, &s);
  return s;
}

}  // namespace

FurnishedObject furnish(uint8_t type, size_t bytes, int data_type, int pointer_mode) {
  FurnishedObject o;
  State& state = State::get();
  std::lock_guard lock(state.mutex);
  client::library::Object* object = state.objects.create(&o.id);
  object->type = type;
  object->data_type = data_type;
  object->pointer_mode = pointer_mode;
  o.pointer = FakeLibraries::get().make_object(bytes);
  worker::LibraryObject on_node{type, reinterpret_cast<void*>(o.pointer)};
  on_node.pointer_mode = pointer_mode;
  worker::Libraries::get().objects.add(o.id, on_node);
  return o;
}

void drop(const FurnishedObject& o) {
  worker::LibraryObject object;
  State::get().objects.destroy(o.id);
  worker::Libraries::get().objects.take(o.id, &object);
}

Arguments::Arguments(const wire::LibrarySpec& library, const FunctionSpec& f,
                     const RoundTrip::World& world, std::mt19937_64& random)
    : library_(library),
      f_(f),
      world_(world),
      random_(random),
      words_(f.params + 1u),
      slots_(f.params) {
  bool doubles = false;
  for (int i = 0; i < f.params; ++i) doubles |= f.param[i].size == ScalarSize::kDoubleOrFloat;
  data_type_ = doubles ? static_cast<int>(random_() % 2) : kDataTypes[random_() % 4];
  pointer_mode_ = library.pointer_modes ? static_cast<int>(random_() % 2) : 0;
  for (int i = 0; i < f_.params; ++i) {
    size_t choices = 0;
    while (f.param[i].attributes && f.param[i].attributes[choices].bytes) ++choices;
    if (choices) chosen_ = random_() % choices;
  }
  agree();
  // Counts, types and objects first: the others' sizes follow from them.
  for (int i = 0; i < f.params; ++i)
    if (f.param[i].kind == ParamKind::kValue) make_value(i);
  for (int i = 0; i < f.params; ++i)
    if (f.param[i].kind == ParamKind::kHandle) make_handle(i);
  for (int i = 0; i < f.params; ++i)
    if (f.param[i].kind != ParamKind::kValue && f.param[i].kind != ParamKind::kHandle) make(i);
}

// What the worker asks the library for beside the call: nothing is too small, matrices count from
// 0.
void Arguments::agree() {
  auto& instead = FakeLibraries::get().instead;
  if (f_.index_arrays) instead["cusparseGetMatIndexBase"] = [](const uint64_t*) { return 0; };
  if (f_.workspace.function < 0) return;
  instead[library_.functions[f_.workspace.function].name] = [this](const uint64_t* words) {
    std::memset(reinterpret_cast<void*>(words[f_.workspace.answer]), 0, 8);
    return 0;
  };
}

Arguments::~Arguments() {
  FakeLibraries::get().instead.erase("cusparseGetMatIndexBase");
  if (f_.workspace.function >= 0)
    FakeLibraries::get().instead.erase(library_.functions[f_.workspace.function].name);
  for (const FurnishedObject& o : objects_) drop(o);
}

// Whether it says how large an analysed matrix is.
bool Arguments::is_size(int index) const {
  for (int i = 0; i < 3; ++i)
    if (f_.sizes[i] == index) return true;
  for (int i = 0; i < f_.index_arrays; ++i) {
    const wire::IndexArrays& a = f_.indices[i];
    if (a.rows == index || a.columns == index || a.count == index) return true;
  }
  return false;
}

// Whether another parameter's size depends on this one, or what may be in it is bounded.
bool Arguments::is_used(int index) const {
  if (is_size(index) || f_.param[index].bounded) return true;
  for (int i = 0; i < f_.params; ++i) {
    const ParamSpec& p = f_.param[i];
    if (p.count[0] == index || p.count[1] == index || p.by == index || p.by2 == index) return true;
  }
  return false;
}

void Arguments::make_value(int index) {
  const ParamSpec& p = f_.param[index];
  uint64_t value = random() & mask(p.bytes);
  for (int i = 0; i < f_.params; ++i) {
    const ParamSpec& other = f_.param[i];
    if (other.count[0] == index || other.count[1] == index) value = random() % 5;
    if (other.kind == ParamKind::kAttribute && other.count[0] == index)
      value = other.attributes[chosen_].bytes;
    if (other.by == index && other.size == ScalarSize::kComputeType)
      value = static_cast<uint64_t>(kComputeTypes[random() % std::size(kComputeTypes)]);
    else if (other.by == index && other.size == ScalarSize::kNcclType)
      value = random() % 12;
    else if (other.by2 == index && other.size == ScalarSize::kNcclType)
      value = random() % 2;
    else if ((other.by == index && other.size == ScalarSize::kDataType) || other.by2 == index)
      value = static_cast<uint64_t>(kDataTypes[random() % std::size(kDataTypes)]);
    if (other.by == index && other.kind == ParamKind::kAttribute)
      value = other.attributes[chosen_].name;
  }
  if (is_size(index)) value = 0;  // whose arrays are as empty
  if (p.bounded)
    value = static_cast<uint64_t>(p.least) +
            random() % static_cast<uint64_t>(std::min<int64_t>(p.most - p.least, 7) + 1);
  words_[index] = value;
  slots_[index].expected = value;
  slots_[index].compared = true;
}

void Arguments::make_handle(int index) {
  const ParamSpec& p = f_.param[index];
  if (p.nullable && !is_used(index) && random() % 4 == 0) {
    slots_[index].compared = true;
    return;
  }
  const FurnishedObject o = furnish(p.object, p.bytes, data_type_, pointer_mode_);
  objects_.push_back(o);
  if (std::find(std::begin(f_.measured), std::end(f_.measured), index) != std::end(f_.measured)) {
    worker::LibraryObject measured;
    worker::Libraries::get().objects.get(o.id, &measured);
    measured.sizes = {0, 0, 0};
    worker::Libraries::get().objects.set(o.id, measured);
  }
  words_[index] = p.bytes == 4 ? static_cast<uint64_t>(client::library::number_of_id(o.id)) : o.id;
  slots_[index].expected = o.pointer;
  slots_[index].compared = true;
}

// The application's memory of one parameter; what goes in is random, the rest a pattern.
void Arguments::own(int index, size_t bytes, bool in, bool out) {
  Slot& s = slots_[index];
  s.memory.assign(bytes + 8, kUntouched);
  if (in)
    for (size_t i = 0; i < bytes; ++i) s.memory[i] = static_cast<std::byte>(random());
  if (in) s.found.assign(s.memory.begin(), s.memory.begin() + static_cast<ptrdiff_t>(bytes));
  s.written = out;
  words_[index] = reinterpret_cast<uint64_t>(s.memory.data());
}

void Arguments::make_scalar(int index) {
  const ParamSpec& p = f_.param[index];
  Slot& s = slots_[index];
  if (p.nullable && random() % 4 == 0) {
    s.compared = true;
    return;
  }
  // Without an object there is no mode.
  const bool device = p.size == ScalarSize::kNcclType ? words_[p.by2] == 0
                                                      : pointer_mode_ != 0 && !objects_.empty();
  if (device) {
    words_[index] = s.expected = address();
    s.compared = true;
    return;
  }
  size_t n = wire::scalar_bytes(p, words_.data());
  if (p.size == ScalarSize::kObjectType)
    n = wire::bytes_of_data_type(static_cast<uint64_t>(data_type_));
  if (p.size == ScalarSize::kDoubleOrFloat) n = words_[p.by] && data_type_ == 1 ? 8 : 4;
  if (p.size == ScalarSize::kCudnnType)
    n = wire::bytes_of_cudnn_type(words_[p.by] ? static_cast<uint64_t>(data_type_) : 0);
  if (p.size == ScalarSize::kVectorType)
    n = wire::bytes_of_factor(static_cast<uint64_t>(data_type_));
  if (n == 0) throw std::logic_error(std::string(f_.name) + " has a scalar of no size");
  own(index, n, p.kind == ParamKind::kScalar, p.kind == ParamKind::kResult);
}

void Arguments::make_list(int index) {
  const ParamSpec& p = f_.param[index];
  const uint64_t n = wire::elements(f_, p, words_.data());
  own(index, n * 8, true, false);
  Slot& s = slots_[index];
  for (uint64_t i = 0; i < n; ++i) {
    uint64_t given = address(), expected = given;
    if (p.kind == ParamKind::kInHandles) {
      objects_.push_back(furnish(p.object, 8, data_type_, pointer_mode_));
      given = objects_.back().id, expected = objects_.back().pointer;
    }
    std::memcpy(s.memory.data() + i * 8, &given, 8);
    std::memcpy(s.found.data() + i * 8, &expected, 8);
  }
}

void Arguments::make(int index) {
  const ParamSpec& p = f_.param[index];
  Slot& s = slots_[index];
  const size_t n = wire::elements(f_, p, words_.data()) * wire::element_bytes(p, words_.data());
  if (p.either && pointer_mode_ != 0 && !objects_.empty()) {
    words_[index] = s.expected = address();
    s.compared = true;
    return;
  }
  const bool left_out = p.nullable && random() % 4 == 0;
  switch (p.kind) {
    case ParamKind::kValue:
    case ParamKind::kHandle:
      return;
    case ParamKind::kStream: {
      const uint64_t choices[] = {0, 1, reinterpret_cast<uint64_t>(world_.stream)};
      words_[index] = choices[random() % 3];
      s.expected = reinterpret_cast<uint64_t>(stream_of(world_, words_[index]).handle);
      s.compared = true;
      return;
    }
    case ParamKind::kEvent: {
      CUevent driver = nullptr;
      words_[index] = reinterpret_cast<uint64_t>(world_.event);
      world_.channel->rig.session().objects.events.get(words_[index], &driver);
      s.expected = reinterpret_cast<uint64_t>(driver);
      s.compared = true;
      return;
    }
    case ParamKind::kAddress:
      if (p.proof == wire::Proof::kIndices) return void(words_[index] = address());
      words_[index] = s.expected = random() % 8 ? address() : 0;
      s.compared = true;
      return;
    case ParamKind::kScalar:
    case ParamKind::kResult:
      return make_scalar(index);
    case ParamKind::kIn:
      if (left_out) return;
      own(index, n, true, false);
      for (size_t at = 0; p.bounded && at + p.bytes <= n; at += p.bytes) {
        std::memset(s.memory.data() + at, 0, p.bytes);
        s.memory[at] = static_cast<std::byte>(p.least + static_cast<int64_t>(random() % 9));
        std::memcpy(s.found.data() + at, s.memory.data() + at, p.bytes);
      }
      if (p.opaque) worker::Libraries::get().given.add({s.found.data(), p.opaque});
      return;
    case ParamKind::kOut:
      return left_out ? void() : own(index, n, false, true);
    case ParamKind::kInOut:
      if (left_out) return;
      own(index, n, true, true);
      if (p.opaque) worker::Libraries::get().given.add({s.found.data(), p.opaque});
      return;
    case ParamKind::kString:
      if (left_out) return;
      own(index, 1 + random() % 40, true, false);
      for (size_t i = 0; i < s.found.size(); ++i) {
        s.found[i] = i + 1 < s.found.size() ? s.found[i] | std::byte{1} : std::byte{0};
        s.memory[i] = s.found[i];
      }
      return;
    case ParamKind::kInHandles:
    case ParamKind::kInAddresses:
      return make_list(index);
    case ParamKind::kAttribute: {
      own(index, n, true, false);
      const uint64_t value = address();
      if (wire::carries_address(p, words_.data())) {
        std::memcpy(s.memory.data(), &value, 8);
        std::memcpy(s.found.data(), &value, 8);
      }
      return;
    }
    case ParamKind::kOutAddress:
    case ParamKind::kOutHandle:
      return left_out ? void() : own(index, 8, false, true);
    case ParamKind::kMint:
      return own(index, p.bytes, false, false);
    case ParamKind::kHostWorkspace:
      return;
    case ParamKind::kNothing:
      words_[index] = random();
      s.compared = true;
      return;
  }
}

std::string Arguments::problem(const FakeCall& call) const {
  for (int i = 0; i < f_.params; ++i) {
    const ParamSpec& p = f_.param[i];
    const Slot& s = slots_[i];
    const auto about = "parameter " + std::to_string(i + 1);
    const uint64_t relevant =
        mask(p.kind == ParamKind::kValue || p.kind == ParamKind::kHandle ? p.bytes : 8);
    if (s.compared && ((call.words[i] ^ s.expected) & relevant) != 0)
      return about + " came as " + std::to_string(call.words[i]) + ", not as " +
             std::to_string(s.expected);
    if (!s.found.empty() && (call.read[i].size() < s.found.size() ||
                             std::memcmp(call.read[i].data(), s.found.data(), s.found.size()) != 0))
      return about + " points to other bytes";
    if (!s.memory.empty() && call.words[i] == 0 && p.kind != ParamKind::kAttribute &&
        s.memory.size() > 8)
      return about + " did not come";
    if (!s.compared && s.memory.empty() && p.kind != ParamKind::kHostWorkspace &&
        p.proof != wire::Proof::kIndices && call.words[i] != 0)
      return about + " was left out, and came";
  }
  return "";
}

std::string Arguments::output_problem(const FakeCall& call) const {
  for (int i = 0; i < f_.params; ++i) {
    const Slot& s = slots_[i];
    if (!s.written) continue;
    const size_t n = s.memory.size() - 8;
    if (n && (call.written[i].size() < n ||
              std::memcmp(call.written[i].data(), s.memory.data(), n) != 0))
      return "what was written to parameter " + std::to_string(i + 1) + " did not come back";
    for (size_t k = n; k < s.memory.size(); ++k)
      if (s.memory[k] != kUntouched) return "parameter " + std::to_string(i + 1) + " overflowed";
  }
  return "";
}

void Arguments::scribble() {
  for (Slot& s : slots_) {
    if (!s.written) continue;
    for (std::byte& b : s.memory) b = kUntouched;
    std::copy(s.found.begin(), s.found.end(), s.memory.begin());
  }
}

bool Arguments::has_outputs() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.written; });
}

bool Arguments::untouched() const {
  for (const Slot& s : slots_) {
    if (!s.written) continue;
    if (!std::equal(s.found.begin(), s.found.end(), s.memory.begin())) return false;
    for (size_t i = s.found.size(); i < s.memory.size(); ++i)
      if (s.memory[i] != kUntouched) return false;
  }
  return true;
}

bool Arguments::change_a_value() {
  for (int i = 0; i < f_.params; ++i) {
    const ParamSpec& p = f_.param[i];
    if (p.kind != ParamKind::kValue || p.masked || is_used(i)) continue;
    words_[i] ^= 1;
    slots_[i].expected = words_[i];
    return true;
  }
  return false;
}

void Arguments::change_the_rest() {
  for (int i = 0; i < f_.params; ++i) {
    const ParamSpec& p = f_.param[i];
    Slot& s = slots_[i];
    if (p.kind == ParamKind::kValue && p.masked && !is_used(i)) {
      s.expected = words_[i] = random() & mask(p.bytes);
    } else if (p.kind == ParamKind::kAddress && words_[i] != 0) {
      s.expected = words_[i] = address();
    } else if (p.kind == ParamKind::kScalar && !s.found.empty()) {
      for (size_t k = 0; k < s.found.size(); ++k)
        s.found[k] = s.memory[k] = static_cast<std::byte>(random());
    }
  }
}

uint64_t Arguments::created() const {
  for (int i = 0; i < f_.params; ++i) {
    if (f_.param[i].kind != ParamKind::kMint) continue;
    uint64_t id = 0;
    std::memcpy(&id, slots_[i].memory.data(), f_.param[i].bytes);
    return f_.param[i].bytes == 4 ? client::library::id_of_number(static_cast<int>(id)) : id;
  }
  return 0;
}

}  // namespace sluice::test

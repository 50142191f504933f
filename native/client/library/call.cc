// SPDX-License-Identifier: Apache-2.0
// The client's half of every library function: arguments to words and pieces, and back. What each
// function is comes from its FunctionSpec; nothing here knows a library by name.
#include "client/library/call.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "client/core/log.h"
#include "client/core/session.h"
#include "client/library/object.h"
#include "client/unsupported.h"
#include "wire/library_sizes.h"

namespace sluice::client::library {

namespace {

using wire::CallClass;
using wire::CallState;
using wire::FunctionSpec;
using wire::kCarried;
using wire::LibrarySpec;
using wire::ParamKind;
using wire::ParamSpec;

// The slot of an object for what a computation left in it; no function and argument has it.
constexpr uint64_t kComputed = ~0ull;
constexpr size_t kMostLearned = 1 << 20, kMostAnswers = 1 << 16;

constexpr size_t padded(size_t n) { return wire::round_up(n, 8); }

template <class T = void>
T* pointer(uint64_t word) {
  return reinterpret_cast<T*>(word);
}

bool names_memory(Session* s, uint64_t address) {
  return s->is_device_address(address) || s->device_of_address(address) ||
         s->host_memory().in_arena(pointer<const void>(address), 1);
}

// One call on its way out.
class Call {
 public:
  Call(const LibrarySpec& library, const FunctionSpec& function, const uint64_t* arguments)
      : library_(library), f_(function), args_(arguments), key_() {}

  int64_t run();
  std::string text();

 private:
  // 0, or the status to return at once.
  int32_t enter();
  int32_t collect();
  int32_t collect(int index);
  int32_t handle(int index);
  int32_t scalar(int index);
  int32_t carry(int index);
  int32_t attribute(int index);
  int32_t list(int index);
  void take_object(int index, Object* object);
  uint64_t id_at(int index) const;  // of a handle
  void append(int index, const void* data, size_t n);
  void expect(int index, size_t n);
  void expect_back(int index, size_t n);
  bool fits(size_t n, bool out, bool back);
  uint64_t elements(const ParamSpec& p) const;
  size_t scalar_bytes(const ParamSpec& p);
  std::optional<int64_t> ask();
  void lacking(CUresult e);
  int64_t scatter(std::span<const std::byte> answer);
  void remember();
  void take_back();

  const LibrarySpec& library_;
  const FunctionSpec& f_;
  const uint64_t* args_;
  Session* session_ = nullptr;
  Device* device_ = nullptr;
  Stream* work_ = nullptr;
  Object* main_ = nullptr;      // of the first handle
  Object* changed_ = nullptr;   // of FunctionSpec::changes
  Object* computed_ = nullptr;  // of FunctionSpec::computes
  uint64_t main_id_ = 0, minted_id_ = 0;
  Object* minted_ = nullptr;
  Key key_;      // all that decides whether the call is valid
  Key setting_;  // the same without the first handle
  std::vector<std::byte> body_;
  struct Expected {
    int index;
    size_t bytes;
  };
  std::vector<Expected> expected_;
  size_t reply_bytes_ = 8;  // the status, and what is expected behind it
  std::vector<std::byte> reply_;
};

void Call::append(int index, const void* data, size_t n) {
  const uint64_t word = kCarried | n;
  std::memcpy(body_.data() + index * 8, &word, 8);
  const size_t at = body_.size();
  body_.resize(at + padded(n));
  std::memcpy(body_.data() + at, data, n);
}

void Call::expect(int index, size_t n) {
  const uint64_t word = kCarried | n;
  std::memcpy(body_.data() + index * 8, &word, 8);
  expect_back(index, n);
}

void Call::expect_back(int index, size_t n) {
  expected_.push_back({index, n});
  reply_bytes_ += padded(n);
}

// Whether so many bytes more can go out or come back with one command; says so where not.
bool Call::fits(size_t n, bool out, bool back) {
  const size_t out_limit = session_->channel().inline_limit();
  const size_t back_limit = wire::kMaxAnswer;
  if ((!out || body_.size() + padded(n) <= out_limit) &&
      (!back || reply_bytes_ + padded(n) <= back_limit))
    return true;
  log_once(LogLevel::kError,
           std::string(f_.name) + " was asked to " +
               (out ? "read more host memory than can be forwarded with one call ("
                    : "write more host memory than can be forwarded with one call (") +
               std::to_string(out ? out_limit : back_limit) +
               " bytes) and returned \"not supported\"");
  return false;
}

uint64_t Call::elements(const ParamSpec& p) const { return wire::elements(f_, p, args_); }

void Call::take_object(int index, Object* object) {
  if (index == f_.computes) computed_ = object;
  if (index == f_.changes)
    changed_ = object;  // whatever it held before
  else
    key_.add(object->content);
  if (!main_) main_ = object;
}

uint64_t Call::id_at(int index) const {
  const bool number = f_.param[index].kind == ParamKind::kHandle && f_.param[index].bytes == 4;
  return number ? id_of_number(static_cast<int>(args_[index])) : args_[index];
}

int32_t Call::handle(int index) {
  const ParamSpec& p = f_.param[index];
  const uint64_t id = id_at(index);
  if (id == 0) {
    if (p.nullable) return key_.add(0), 0;
    return library_.status.bad_handle;
  }
  Object* object = State::get().objects.find(id);
  if (!object || object->type != p.object) return library_.status.bad_handle;
  if (!main_) main_id_ = id;
  take_object(index, object);
  std::memcpy(body_.data() + index * 8, &id, 8);
  return 0;
}

size_t Call::scalar_bytes(const ParamSpec& p) {
  if (p.size != wire::ScalarSize::kObjectType && p.size != wire::ScalarSize::kDoubleOrFloat &&
      p.size != wire::ScalarSize::kVectorType)
    return wire::scalar_bytes(p, args_);
  const Object* about = State::get().objects.find(args_[p.by]);
  if (p.size == wire::ScalarSize::kVectorType)
    return about ? wire::bytes_of_factor(static_cast<uint32_t>(about->data_type)) : 0;
  if (p.size == wire::ScalarSize::kDoubleOrFloat)
    return about && about->data_type == 1 ? 8 : 4;  // CUDNN_DATA_DOUBLE
  return about ? wire::bytes_of_data_type(static_cast<uint32_t>(about->data_type)) : 0;
}

int32_t Call::scalar(int index) {
  const ParamSpec& p = f_.param[index];
  const uint64_t at = args_[index];
  if (at == 0) return p.nullable ? (key_.add(0), 0) : library_.status.bad_value;
  const Object* says =
      p.size == wire::ScalarSize::kObjectType ? State::get().objects.find(args_[p.by]) : main_;
  const int mode = library_.pointer_modes && says ? says->pointer_mode : 0;
  // 4: cuBLASLt's alpha on the device with beta on the host.
  if (mode != 0 && (mode != 4 || names_memory(session_, at))) {
    if (!names_memory(session_, at)) return library_.status.bad_value;
    key_.add(2);
    std::memcpy(body_.data() + index * 8, &at, 8);
    return 0;
  }
  const size_t n = scalar_bytes(p);
  if (n == 0) return library_.status.bad_value;
  key_.add(1);
  if (p.kind == ParamKind::kScalar)
    append(index, pointer<const void>(at), n);
  else
    expect(index, n);
  return 0;
}

int32_t Call::carry(int index) {
  const ParamSpec& p = f_.param[index];
  const uint64_t at = args_[index];
  if (at == 0) return p.nullable ? (key_.add(0), 0) : library_.status.bad_value;
  // Where a value may be in device memory too, only kScalar and kResult know how to say so.
  if (library_.pointer_modes && names_memory(session_, at)) return library_.status.unsupported;
  const size_t n = p.kind == ParamKind::kString ? std::strlen(pointer<const char>(at)) + 1
                                                : elements(p) * p.bytes;
  if (n > wire::kMaxCarried) return library_.status.bad_value;
  if (!fits(n, p.kind != ParamKind::kOut, p.kind == ParamKind::kOut || p.kind == ParamKind::kInOut))
    return library_.status.unsupported;
  if (p.kind == ParamKind::kOut) {
    key_.add(n);
    expect(index, n);
    return 0;
  }
  if (p.masked)
    key_.add(n);
  else
    key_.add_bytes(pointer<const void>(at), n);
  append(index, pointer<const void>(at), n);
  if (p.kind == ParamKind::kInOut) expect_back(index, n);
  return 0;
}

int32_t Call::attribute(int index) {
  const ParamSpec& p = f_.param[index];
  const uint64_t at = args_[index], n = elements(p) * p.bytes;
  if (at == 0) return n == 0 ? 0 : library_.status.bad_value;
  if (n > 4096) return library_.status.bad_value;
  bool address = false;
  for (const uint32_t* a = p.addresses; a && *a; ++a) address |= *a == args_[p.by];
  key_.add(address ? 1 : 0);
  if (address) {
    uint64_t value = 0;
    if (n != 8) return library_.status.bad_value;
    std::memcpy(&value, pointer<const void>(at), 8);
    if (value != 0 && !names_memory(session_, value)) return library_.status.bad_value;
    key_.add(value != 0);
  } else {
    key_.add_bytes(pointer<const void>(at), n);
  }
  append(index, pointer<const void>(at), n);
  return 0;
}

int32_t Call::list(int index) {
  const ParamSpec& p = f_.param[index];
  const uint64_t at = args_[index], n = elements(p);
  if (at == 0) return n == 0 || p.nullable ? 0 : library_.status.bad_value;
  if (n > 1 << 20) return library_.status.bad_value;
  if (!fits(n * 8, true, false)) return library_.status.unsupported;
  const auto* ids = pointer<const uint64_t>(at);
  key_.add(n);
  for (uint64_t i = 0; i < n; ++i) {
    if (p.kind == ParamKind::kInAddresses) {
      if (ids[i] != 0 && !names_memory(session_, ids[i])) return library_.status.bad_value;
      continue;
    }
    Object* object = State::get().objects.find(ids[i]);
    if (!object || object->type != p.object) return library_.status.bad_handle;
    key_.add(object->content);
  }
  append(index, ids, n * 8);
  return 0;
}

int32_t Call::collect(int index) {
  const ParamSpec& p = f_.param[index];
  const uint64_t word = args_[index];
  const auto put = [&](uint64_t w) { std::memcpy(body_.data() + index * 8, &w, 8); };
  switch (p.kind) {
    case ParamKind::kValue:
      if (!p.masked) key_.add(word);
      put(word);
      return 0;
    case ParamKind::kHandle:
      return handle(index);
    case ParamKind::kStream: {
      Stream* stream;
      if (resolve_stream(session_, device_, pointer<CUstream_st>(word), &stream) != CUDA_SUCCESS)
        return library_.status.bad_value;
      work_ = stream;
      put(stream->wire_id);
      return 0;
    }
    case ParamKind::kEvent:
      if (word != 0 && !session_->events.find(word)) return library_.status.bad_value;
      put(word);
      return 0;
    case ParamKind::kAddress:
      if (word != 0 && !names_memory(session_, word)) return library_.status.bad_value;
      // Libraries choose and refuse by alignment.
      key_.add(word == 0 ? 0 : 1 + 2 * (word & 15));
      put(word);
      return 0;
    case ParamKind::kScalar:
    case ParamKind::kResult:
      return scalar(index);
    case ParamKind::kIn:
    case ParamKind::kOut:
    case ParamKind::kInOut:
    case ParamKind::kString:
      return carry(index);
    case ParamKind::kAttribute:
      return attribute(index);
    case ParamKind::kInHandles:
    case ParamKind::kInAddresses:
      return list(index);
    case ParamKind::kOutAddress:
      if (word == 0) return p.nullable ? 0 : library_.status.bad_value;
      expect(index, 8);
      return 0;
    case ParamKind::kMint:
      if (word == 0) return library_.status.bad_value;
      minted_ = State::get().objects.create(&minted_id_);
      if (!minted_) return library_.status.failed;
      minted_->type = p.object;
      put(minted_id_);
      return 0;
    case ParamKind::kHostWorkspace:
      return elements(p) > wire::kMaxCarried ? library_.status.failed : 0;
    case ParamKind::kNothing:
      return 0;
  }
  return library_.status.unsupported;
}

int32_t Call::enter() {
  session_ = Session::get();
  if (!session_) {
    if (cuInit(0) != CUDA_SUCCESS) return library_.status.not_initialized;
    session_ = Session::get();
  }
  if (session_->sticky() != CUDA_SUCCESS) return library_.status.failed;
  if (thread_state().depth == 0) {
    // As the runtime inside NVIDIA's libraries does: the first GPU's primary context.
    CUcontext context;
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
      return library_.status.not_initialized;
  }
  return client::enter(&session_, &device_) == CUDA_SUCCESS ? 0 : library_.status.failed;
}

int32_t Call::collect() {
  body_.assign(size_t{f_.params} * 8, std::byte{0});
  key_.add(f_.id);
  key_.add(device_->index);
  for (int i = 0; i < f_.params; ++i) {
    if (const int32_t status = collect(i); status != 0) {
      log_line(LogLevel::kDebug, std::string(f_.name) + ": refused with " + std::to_string(status) +
                                     " because of parameter " + std::to_string(i + 1));
      return status;
    }
  }
  setting_.add(f_.id);
  if (f_.state == CallState::kSets) {
    // What the object held before does not count: the same setting again is the same.
    for (int i = 1; i < f_.params; ++i) {
      const ParamSpec& p = f_.param[i];
      const bool carried = p.kind == ParamKind::kIn || p.kind == ParamKind::kString ||
                           (p.kind == ParamKind::kAttribute && args_[i] != 0);
      if (p.kind == ParamKind::kValue && !p.masked) setting_.add(args_[i]);
      if (carried && args_[i] != 0) {
        bool address = false;
        for (const uint32_t* a = p.addresses; a && *a; ++a) address |= *a == args_[p.by];
        const size_t n = p.kind == ParamKind::kString ? std::strlen(pointer<const char>(args_[i]))
                                                      : elements(p) * p.bytes;
        if (!address) setting_.add_bytes(pointer<const void>(args_[i]), n);
      }
      if (p.kind == ParamKind::kHandle)
        if (Object* other = State::get().objects.find(id_at(i))) setting_.add(other->content);
      if (p.kind == ParamKind::kAddress) setting_.add(args_[i] == 0 ? 0 : 1 + 2 * (args_[i] & 15));
    }
    setting_.add(main_ ? main_->type : 0u);
    key_ = setting_;
  }
  if (!work_ && f_.launches && f_.params > 0) {
    const Object* owner = State::get().objects.find(id_at(f_.work));
    const uint64_t stream = owner ? owner->stream : 0;
    if (stream_for_work(session_, device_, pointer<CUstream_st>(stream), &work_) != CUDA_SUCCESS)
      return library_.status.bad_value;
  }
  if (!f_.launches) work_ = nullptr;
  return 0;
}

// The worker could not call: the node lacks the library, or has an older one.
void Call::lacking(CUresult e) {
  const std::string name = library_.soname;
  if (e == CUDA_ERROR_SHARED_OBJECT_INIT_FAILED)
    log_once(LogLevel::kError,
             "the GPU node has no " + name + ", which this program needs (" + f_.name +
                 "). Install it there, or name its folder in the node's server.conf ([server] "
                 "cuda_libraries); `sluice-server --check` lists what a node has");
  else
    log_once(LogLevel::kError, "the GPU node's " + name + " is older than this client: it has no " +
                                   f_.name + "; install a newer one there");
}

// Sends the command. Without a value: fire and forget, it succeeded as far as anybody can tell.
std::optional<int64_t> Call::ask() {
  State& state = State::get();
  bool known = false;
  Key question = key_;
  if (f_.call == CallClass::kAsync) {
    // Whether the node has the function at all.
    question = Key{};
    question.add(f_.id);
  }
  {
    std::lock_guard lock(state.mutex);
    if (f_.cached) {
      if (const auto it = state.answers.find(key_); it != state.answers.end()) {
        ++state.hits;
        return scatter(it->second);
      }
    } else if (f_.call != CallClass::kAnswered) {
      known = state.learned.contains(question);
    }
  }
  const uint32_t context = device_->index + 1;
  if (known && expected_.empty()) {
    if (session_->post(f_.id, body_.data(), body_.size(), {}, work_, context) != CUDA_SUCCESS)
      return library_.status.failed;
    return std::nullopt;
  }
  reply_.resize(reply_bytes_);
  size_t got = 0;
  const CUresult e =
      session_->exchange(f_.id, body_.data(), body_.size(), {}, reply_, &got, work_, context);
  if (e == CUDA_ERROR_SHARED_OBJECT_INIT_FAILED || e == CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND) {
    lacking(e);
    return library_.status.unsupported;
  }
  if (e != CUDA_SUCCESS || got < 8) return library_.status.failed;
  const int64_t status = scatter({reply_.data(), std::min(got, reply_.size())});
  if (status == 0 || !f_.returns_status) {
    std::lock_guard lock(state.mutex);
    if (f_.cached) {
      if (state.answers.size() >= kMostAnswers) state.answers.clear();
      state.answers.emplace(key_, reply_);
    } else if (f_.call != CallClass::kAnswered) {
      // A program of ever new shapes learns for ever; then it starts again.
      if (state.learned.size() >= kMostLearned) state.learned.clear();
      state.learned.insert(question);
    }
  }
  return status;
}

int64_t Call::scatter(std::span<const std::byte> answer) {
  int64_t status = 0;
  std::memcpy(&status, answer.data(), 8);
  size_t at = 8;
  for (const Expected& e : expected_) {
    if (at + e.bytes > answer.size()) break;  // a failed call writes nothing
    std::memcpy(pointer(args_[e.index]), answer.data() + at, e.bytes);
    at += padded(e.bytes);
  }
  return status;
}

// The call stands: what it changed in the objects.
void Call::remember() {
  State& state = State::get();
  std::lock_guard lock(state.mutex);
  if (changed_) changed_->set(uint64_t{f_.id} << 32, key_);
  if (computed_) {
    Key unique;
    unique.add(f_.id);
    unique.add(++state.computed);
    computed_->set(kComputed, unique);
  }
  Object* about = minted_ ? minted_ : main_;
  if (minted_) {
    minted_->content = key_;
    for (int i = 0; i < f_.params; ++i) {
      if (f_.param[i].kind != ParamKind::kMint) continue;
      if (f_.param[i].bytes == 4)
        *pointer<int>(args_[i]) = number_of_id(minted_id_);
      else
        *pointer<uint64_t>(args_[i]) = minted_id_;
    }
  }
  if (!about) return;
  if (f_.remember.stream >= 0) about->stream = args_[f_.remember.stream];
  if (f_.remember.pointer_mode >= 0)
    about->pointer_mode = static_cast<int>(args_[f_.remember.pointer_mode]);
  if (f_.remember.data_type >= 0) about->data_type = static_cast<int>(args_[f_.remember.data_type]);
  if (f_.remember.attribute >= 0 && args_[f_.remember.value] != 0) {
    int32_t value;
    std::memcpy(&value, pointer<const void>(args_[f_.remember.value]), sizeof value);
    const auto attribute = static_cast<int32_t>(args_[f_.remember.attribute]);
    if (attribute == f_.remember.pointer_mode_attribute) about->pointer_mode = value;
    if (attribute == f_.remember.data_type_attribute) about->data_type = value;
  }
  if (f_.state == CallState::kSets && main_) {
    const uint64_t what = f_.set_by >= 0 ? args_[f_.set_by] : 0;
    main_->set(uint64_t{f_.id} << 32 | (what & 0xffffffff), setting_);
  }
}

void Call::take_back() {
  if (minted_) State::get().objects.destroy(minted_id_);
}

int64_t Call::run() {
  if (const int32_t status = enter(); status != 0) return status;
  {
    std::lock_guard lock(State::get().mutex);
    if (const int32_t status = collect(); status != 0) {
      take_back();
      return status;
    }
  }
  if (f_.state == CallState::kDestroys) {
    // The worker hears of the end before it hears of the slot's next object.
    if (!State::get().objects.retire(main_id_)) return library_.status.bad_handle;
  }
  const std::optional<int64_t> status = ask();
  if (f_.state == CallState::kDestroys) State::get().objects.recycle(main_id_);
  const bool stands = !status || *status == 0;
  if (!stands && f_.returns_status)
    log_line(LogLevel::kDebug,
             std::string(f_.name) + " returned " + std::to_string(*status) + " on the node");
  if (stands && f_.state != CallState::kDestroys)
    remember();
  else if (!stands)
    take_back();
  return status.value_or(0);
}

// Texts come in an answer of their own shape: the return value is their length.
std::string Call::text() {
  if (enter() != 0) return "";
  {
    std::lock_guard lock(State::get().mutex);
    if (collect() != 0) return "";
  }
  reply_.resize(4096);
  size_t got = 0;
  const CUresult e = session_->exchange(f_.id, body_.data(), body_.size(), {}, reply_, &got,
                                        nullptr, device_->index + 1);
  if (e == CUDA_ERROR_SHARED_OBJECT_INIT_FAILED || e == CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND)
    lacking(e);
  if (e != CUDA_SUCCESS || got <= 8) return "";
  uint64_t length = 0;
  std::memcpy(&length, reply_.data(), 8);
  return std::string(reinterpret_cast<const char*>(reply_.data()) + 8,
                     std::min<size_t>(length, std::min(got, reply_.size()) - 8));
}

}  // namespace

}  // namespace sluice::client::library

using namespace sluice::client;

extern "C" {

int64_t sluice_library_call(const sluice::wire::LibrarySpec* library,
                            const sluice::wire::FunctionSpec* function, const uint64_t* arguments) {
  return library::Call(*library, *function, arguments).run();
}

const char* sluice_library_text(const sluice::wire::LibrarySpec* library,
                                const sluice::wire::FunctionSpec* function,
                                const uint64_t* arguments) {
  static std::mutex mutex;
  static auto* texts = new std::map<std::string, std::string>;  // by function and arguments
  std::string question(function->name);
  question.append(reinterpret_cast<const char*>(arguments), size_t{function->params} * 8);
  {
    std::lock_guard lock(mutex);
    if (const auto it = texts->find(question); it != texts->end()) return it->second.c_str();
  }
  std::string text = library::Call(*library, *function, arguments).text();
  if (text.empty()) return "";  // there was nobody to ask
  std::lock_guard lock(mutex);
  return texts->emplace(question, std::move(text)).first->second.c_str();
}

void sluice_library_statistics(uint64_t* commands, uint64_t* round_trips) {
  Session* s = Session::get();
  *commands = s ? s->statistics().commands : 0;
  *round_trips = s ? s->statistics().round_trips.load() : 0;
}

void sluice_library_unsupported(const char* function) { note_unsupported(function); }

bool sluice_library_stream(uint64_t object, uint8_t type, uint64_t* stream) {
  auto& state = library::State::get();
  std::lock_guard lock(state.mutex);
  const library::Object* o = state.objects.find(object);
  if (!o || o->type != type) return false;
  *stream = o->stream;
  return true;
}

}  // extern "C"

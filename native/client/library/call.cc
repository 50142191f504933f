// SPDX-License-Identifier: Apache-2.0
// The client's half of every library function: sends what collect.cc made of the arguments, and
// hands the answer out. What each function is comes from its FunctionSpec; nothing here knows a
// library by name.
#include "client/library/call.h"

#include <algorithm>
#include <map>
#include <string>

#include "channel/futex.h"
#include "client/core/log.h"
#include "client/core/runtime_version.h"
#include "client/library/group.h"
#include "client/library/outgoing.h"
#include "client/profile/driver_calls.h"
#include "client/unsupported.h"
#include "wire/library_sizes.h"
#include "wire/older_sonames.h"

namespace sluice::client::library {

void forget_who_was_well() {
  std::lock_guard lock(State::get().mutex);
  State::get().well_until_ns.clear();
}

using wire::CallClass;
using wire::CallState;
using wire::ParamKind;

namespace {

// The slot of an object for what a computation left in it; no function and argument has it.
constexpr uint64_t kComputed = ~0ull;
constexpr size_t kMostLearned = 1 << 20, kMostAnswers = 1 << 16;

// What the node looks for on behalf of this program: its own CUDA version's, then the newest.
std::string wanted(const std::string& soname, const char* between) {
  const std::string older = wire::older_soname(soname, runtime_version() / 1000);
  return older == soname ? soname : older + between + soname;
}

}  // namespace

int32_t enter_library(const wire::LibraryStatus& status, Session** session, Device** device) {
  *session = Session::get();
  if (!*session) {
    if (cuInit(0) != CUDA_SUCCESS) return status.not_initialized;
    *session = Session::get();
  }
  if ((*session)->sticky() != CUDA_SUCCESS) return status.failed;
  if (thread_state().depth == 0) {
    // As the runtime inside NVIDIA's libraries does: the first GPU's primary context.
    CUcontext context;
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
      return status.not_initialized;
  }
  return client::enter(session, device) == CUDA_SUCCESS ? 0 : status.failed;
}

// The worker could not call: the node lacks the library, or has an older one.
void say_lacking(CUresult e, const char* soname, const char* function) {
  if (e == CUDA_ERROR_SHARED_OBJECT_INIT_FAILED)
    log_once(LogLevel::kError,
             "the GPU node has no " + wanted(soname, " and no ") + ", which this program needs (" +
                 function +
                 "). Install it there, or name its folder in the node's server.conf ([server] "
                 "cuda_libraries); `sluice-server --check` lists what a node has");
  else
    log_once(LogLevel::kError, "the GPU node's " + wanted(soname, " or ") +
                                   " is older than this client: it has no " + function +
                                   "; install a newer one there");
}

// Sends the command. Without a value: fire and forget, it succeeded as far as anybody can tell.
std::optional<int64_t> Call::ask() {
  State& state = State::get();
  bool known = false;
  {
    std::lock_guard lock(state.mutex);
    if (f_.cached) {
      if (const auto it = state.answers.find(key_); it != state.answers.end()) {
        ++state.hits;
        return scatter(it->second);
      }
    }
    if (f_.well_for_ms != 0) {
      const auto it = state.well_until_ns.find(key_);
      if (it != state.well_until_ns.end() && channel::now_ns() < it->second) {
        ++state.hits;
        return scatter(std::vector<std::byte>(reply_bytes_));
      }
    }
    known = is_known();
  }
  sent_ = true;
  const uint32_t context = device_->context();
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
    say_lacking(e, library_.soname, f_.name);
    return library_.status.unsupported;
  }
  if (e != CUDA_SUCCESS || got < 8) return library_.status.failed;
  const int64_t status = scatter({reply_.data(), std::min(got, reply_.size())});
  if (status == 0 || !f_.returns_status) {
    std::lock_guard lock(state.mutex);
    if (f_.cached) {
      if (state.answers.size() >= kMostAnswers) state.answers.clear();
      state.answers.emplace(key_, reply_);
    } else if (f_.well_for_ms != 0) {
      note_whether_well();
    } else if (learnable_ && f_.call != CallClass::kAnswered) {
      // A program of ever new shapes learns for ever; then it starts again.
      if (state.learned.size() >= kMostLearned) state.learned.clear();
      state.learned.insert(question());
    }
  }
  return status;
}

// An object that does not wait for what it was asked may say something else at any time.
void Call::note_whether_well() {
  auto& until = State::get().well_until_ns;
  const bool well = std::ranges::all_of(reply_, [](std::byte b) { return b == std::byte{0}; });
  if (!well || !learnable_ || until.size() >= kMostAnswers) until.clear();
  if (well && learnable_) until[key_] = channel::now_ns() + f_.well_for_ms * 1'000'000ull;
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

uint64_t Call::what_is_set() const {
  const uint64_t what = f_.set_by >= 0 ? args_[f_.set_by] : 0;
  return uint64_t{f_.id} << 32 | (what & 0xffffffff);
}

// The call stands: what it changed in the objects. Under the lock of State.
void Call::remember() {
  State& state = State::get();
  for (uint64_t i = 0; i < 2; ++i)
    if (changed_[i]) changed_[i]->set(uint64_t{f_.id} << 32 | i, key_);
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
    main_->set(what_is_set(), setting_);
  }
}

void Call::take_back() {
  if (minted_) State::get().objects.destroy(minted_id_);
}

// What went wrong with a call inside a group is the group's error as well.
int64_t Call::run() {
  const int64_t status = run_now();
  if (f_.grouped && status != 0 && group_is_open()) group_fail(static_cast<int32_t>(status));
  return status;
}

int32_t Call::join() {
  group_add({f_.id, device_->context(), std::move(body_), work_,
             f_.state == CallState::kDestroys ? main_id_ : 0},
            key_, learnable_ && f_.call != CallClass::kAnswered);
  return 0;
}

int64_t Call::run_now() {
  if (const int32_t status = enter(); status != 0) return status;
  {
    std::lock_guard lock(State::get().mutex);
    if (const int32_t status = collect(); status != 0) {
      take_back();
      return status;
    }
    if (const std::optional<int32_t> status = settle()) return *status;
  }
  if (f_.state == CallState::kDestroys) {
    // The worker hears of the end before it hears of the slot's next object.
    if (!State::get().objects.retire(main_id_)) return library_.status.bad_handle;
  }
  if (f_.grouped && group_is_open()) return join();
  const std::optional<int64_t> status = ask();
  if (f_.state == CallState::kDestroys) State::get().objects.recycle(main_id_);
  const bool stands = !status || *status == 0;
  if (!stands) forget_who_was_well();
  if (!stands && f_.returns_status)
    log_line(LogLevel::kDebug,
             std::string(f_.name) + " returned " + std::to_string(*status) + " on the node");
  if (f_.state != CallState::kDestroys) {
    std::lock_guard lock(State::get().mutex);
    settled(stands);
  }
  if (!stands) take_back();
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
                                        nullptr, device_->context());
  if (e == CUDA_ERROR_SHARED_OBJECT_INIT_FAILED || e == CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND)
    say_lacking(e, library_.soname, f_.name);
  if (e != CUDA_SUCCESS || got <= 8) return "";
  uint64_t length = 0;
  std::memcpy(&length, reply_.data(), 8);
  return std::string(reinterpret_cast<const char*>(reply_.data()) + 8,
                     std::min<size_t>(length, std::min(got, reply_.size()) - 8));
}

}  // namespace sluice::client::library

using namespace sluice::client;

extern "C" {

int64_t sluice_library_call(const sluice::wire::LibrarySpec* library,
                            const sluice::wire::FunctionSpec* function, const uint64_t* arguments) {
  return profiled_library_call(function->name, [&] {
    return static_cast<int64_t>(library::Call(*library, *function, arguments).run());
  });
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
    const auto it = texts->find(question);
    if (function->cached && it != texts->end()) return it->second.c_str();
  }
  std::string text = library::Call(*library, *function, arguments).text();
  if (text.empty()) return "";             // there was nobody to ask
  if (!function->cached) question = text;  // each text once, however often it is asked for
  std::lock_guard lock(mutex);
  return texts->emplace(question, std::move(text)).first->second.c_str();
}

void sluice_library_statistics(uint64_t* commands, uint64_t* round_trips) {
  Session* s = Session::get();
  *commands = s ? s->statistics().commands : 0;
  *round_trips = s ? s->statistics().round_trips.load() : 0;
}

void sluice_library_unsupported(const char* function) { note_unsupported(function); }

int sluice_library_refuse_runtime(const char* function) {
  note_unsupported(function);
  return 801;  // cudaErrorNotSupported, of every version
}

bool sluice_library_clone(uint64_t object, uint64_t* copy) {
  auto& state = library::State::get();
  std::lock_guard lock(state.mutex);
  const library::Object* from = state.objects.find(object);
  if (!from || !from->recipe) return false;
  library::Object* to = state.objects.create(copy);
  if (!to) return false;
  to->type = from->type;
  to->stream = from->stream;
  to->pointer_mode = from->pointer_mode;
  to->data_type = from->data_type;
  to->content = from->content;
  to->slots = from->slots;
  to->recipe = std::make_unique<library::Recipe>(*from->recipe);
  return true;
}

void sluice_library_note(const char* text) { log_once(LogLevel::kInfo, text); }

bool sluice_library_stream(uint64_t object, uint8_t type, uint64_t* stream) {
  auto& state = library::State::get();
  std::lock_guard lock(state.mutex);
  const library::Object* o = state.objects.find(object);
  if (!o || o->type != type) return false;
  *stream = o->stream;
  return true;
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// The worker's half of every library function: checks each word of a command against the session
// and the function's spec, calls, and answers. Nothing here knows a library by name.
#include "worker/library/call.h"

#include <algorithm>
#include <cstring>

#include "process/log.h"
#include "wire/library_sizes.h"
#include "worker/library/laid.h"

namespace sluice::worker {

namespace {

using wire::FunctionSpec;
using wire::kCarried;
using wire::ParamKind;
using wire::ParamSpec;

// A library may write a wider result than the caller has room for where types disagree.
constexpr size_t scalar_room(size_t n) { return std::max<size_t>(n, 32); }

uint64_t as_word(const void* p) { return reinterpret_cast<uint64_t>(p); }

}  // namespace

bool LibraryCall::reject(int index, const char* why) {
  session_.reject(std::string(f_.name) + ": parameter " + std::to_string(index + 1) + " " + why);
  return false;
}

std::span<const std::byte> LibraryCall::piece(uint64_t n) {
  const uint64_t padded = wire::round_up(n, 8);
  if (padded > rest_.size()) return {};
  const auto at = rest_.first(n);
  rest_ = rest_.subspan(padded);
  return at;
}

void LibraryCall::hold(const LibraryObject& object) {
  if (held_count_ < held_.size())
    held_[held_count_++] = object.life;
  else
    held_too_.push_back(object.life);
}

std::byte* LibraryCall::room(size_t n) {
  rooms_.push_back(std::make_unique_for_overwrite<std::byte[]>(std::max<size_t>(n, 8)));
  return rooms_.back().get();
}

bool LibraryCall::read_object(int index, const ParamSpec& p) {
  const uint64_t id = sent_[index];
  if (id == 0) {
    if (p.nullable || (p.when >= 0 && sent_[p.when] == 0)) return true;
    if (index == 0) return reject(index, "is no object");
    refuse(entry_.table->spec->status.bad_handle);  // the library would follow it
    return true;
  }
  LibraryObject object;
  if (!Libraries::get().objects.get(id, &object) || object.type != p.object)
    return reject(index, "names an object that the session does not have");
  if (main_id_ == 0) {
    main_id_ = id;
    main_ = object;
  }
  if (object.host_memory && f_.launches)
    return reject(index, "computes in host memory, where this function does not");
  hold(object);
  if (index == f_.work && !has_stream_ && object.stream) stream_ = object.stream;
  words_[index] = as_word(object.pointer);
  return true;
}

bool LibraryCall::read_list(int index, const ParamSpec& p, uint64_t n) {
  const auto raw = piece(n);
  if (raw.size() != n || n % 8 != 0) return reject(index, "is cut short");
  std::byte* list = room(n);
  for (uint64_t i = 0; i < n / 8; ++i) {
    uint64_t id;
    std::memcpy(&id, raw.data() + i * 8, 8);
    if (p.kind == ParamKind::kInAddresses) {
      if (id != 0 && !session_.device_range(id, 1))
        return reject(index, "holds an address that the session does not have");
    } else {
      LibraryObject object;
      if (!Libraries::get().objects.get(id, &object) || object.type != p.object)
        return reject(index, "names an object that the session does not have");
      hold(object);
      id = as_word(object.pointer);
    }
    std::memcpy(list + i * 8, &id, 8);
  }
  words_[index] = as_word(list);
  return true;
}

// A word that announces a piece: its length must be what the function will read or write.
bool LibraryCall::read_carried(int index, const ParamSpec& p) {
  const uint64_t n = sent_[index] & ~kCarried;
  if (n > wire::kMaxCarried) return reject(index, "is too long");
  const bool scalar = p.kind == ParamKind::kScalar || p.kind == ParamKind::kResult;
  if (scalar) {
    if (n == 0 || n > kScalarRoom) return reject(index, "is no scalar");
  } else if (p.kind == ParamKind::kOutAddress || p.kind == ParamKind::kOutHandle) {
    if (n != 8) return reject(index, "is no address");
  } else if (p.kind != ParamKind::kString &&
             n != wire::elements(f_, p, sent_) *
                      (p.kind == ParamKind::kInHandles || p.kind == ParamKind::kInAddresses
                           ? 8
                           : wire::element_bytes(p, sent_))) {
    return reject(index, "has a length that its count contradicts");
  }
  switch (p.kind) {
    case ParamKind::kScalar: {
      const auto raw = piece(n);
      if (raw.size() != n) return reject(index, "is cut short");
      std::memset(scalars_[index], 0, kScalarRoom);
      std::memcpy(scalars_[index], raw.data(), n);
      words_[index] = as_word(scalars_[index]);
      return true;
    }
    case ParamKind::kIn:
    case ParamKind::kString:
    case ParamKind::kAttribute:
    case ParamKind::kInOut: {
      const auto raw = piece(n);
      if (raw.size() != n) return reject(index, "is cut short");
      if (p.kind == ParamKind::kString && (n == 0 || raw[n - 1] != std::byte{0}))
        return reject(index, "is a text without an end");
      if (p.kind == ParamKind::kAttribute) {
        if (!is_attribute(index, raw)) return false;
      }
      std::byte* at = room(n);
      std::memcpy(at, raw.data(), n);
      words_[index] = as_word(at);
      if (p.opaque) check_opaque(index);
      if (p.kind == ParamKind::kInOut) {
        output_bytes_ += wire::round_up(n, 8);
        if (output_bytes_ > wire::kMaxAnswer) return reject(index, "would not fit into an answer");
        outputs_.push_back({at, n});
      }
      return true;
    }
    case ParamKind::kInHandles:
    case ParamKind::kInAddresses:
      return read_list(index, p, n);
    case ParamKind::kResult:
    case ParamKind::kOut:
    case ParamKind::kOutAddress:
    case ParamKind::kOutHandle: {
      output_bytes_ += wire::round_up(n, 8);
      if (output_bytes_ > wire::kMaxAnswer) return reject(index, "would not fit into an answer");
      std::byte* at = room(scalar_room(n));
      std::memset(at, 0, scalar_room(n));
      words_[index] = as_word(at);
      outputs_.push_back({at, n});
      if (p.kind == ParamKind::kOutHandle) named_.push_back({at, p.object});
      return true;
    }
    default:
      return reject(index, "carries what it cannot");
  }
}

bool LibraryCall::read(int index) {
  const ParamSpec& p = f_.param[index];
  const uint64_t word = sent_[index];
  words_[index] = 0;
  if (p.proof == wire::Proof::kNone) return reject(index, "is a pointer that nobody checks");
  switch (p.kind) {
    case ParamKind::kValue:
      words_[index] = word;
      return true;
    case ParamKind::kHandle:
      return read_object(index, p);
    case ParamKind::kStream:
      if (!session_.stream(word, command_.header.context, &stream_, &vgpu_)) return false;
      has_stream_ = true;
      words_[index] = as_word(stream_);
      return true;
    case ParamKind::kEvent: {
      CUevent event = nullptr;
      if (word != 0 && !session_.objects.events.get(word, &event))
        return reject(index, "names an event that the session does not have");
      words_[index] = as_word(event);
      return true;
    }
    case ParamKind::kAddress:
      if (word != 0 && !session_.device_range(word, 1))
        return reject(index, "is an address that the session does not have");
      words_[index] = word;
      return true;
    case ParamKind::kScalar:
    case ParamKind::kResult:
      if (word == 0) {
        if (!p.nullable && (p.null_mode == 0 || pointer_mode(p) != p.null_mode))
          refuse(entry_.table->spec->status.bad_value);
        return true;
      }
      // Who says host memory and gives an address has the library follow it on the CPU.
      if (in_host_memory(p) != ((word & kCarried) != 0))
        return reject(index, "is not where the object's pointer mode says");
      if (word & kCarried) return read_carried(index, p);
      if (!session_.device_range(word, 1))
        return reject(index, "is an address that the session does not have");
      words_[index] = word;
      return true;
    case ParamKind::kMint:
      if (!Libraries::get().objects.has_room(word))
        return reject(index, "is an id that is taken or none");
      minted_id_ = word;
      minted_type_ = p.object;
      words_[index] = as_word(&minted_);
      return true;
    case ParamKind::kHostWorkspace: {
      const uint64_t n = wire::elements(f_, p, sent_);
      if (n > wire::kMaxCarried) return reject(index, "is too long");
      return true;  // made when it is known to be enough
    }
    case ParamKind::kNothing:
      return true;
    default:
      if (p.either && word != 0 && in_host_memory(p) != ((word & kCarried) != 0))
        return reject(index, "is not where the object's pointer mode says");
      if (word & kCarried) return read_carried(index, p);
      if (p.either && session_.device_range(word, 1)) {
        words_[index] = word;
        return true;
      }
      if (word != 0) return reject(index, "is neither absent nor carried");
      // The library would follow it.
      if (!p.nullable && (p.count[0] < 0 || wire::elements(f_, p, sent_) != 0))
        refuse(entry_.table->spec->status.bad_value);
      return true;
  }
}

// What the library answers as a pointer to an object is its id for the client.
void LibraryCall::name_objects() {
  for (const Named& n : named_) {
    void* pointer;
    std::memcpy(&pointer, n.at, sizeof pointer);
    uint64_t found = 0;
    if (pointer)
      Libraries::get().objects.for_each([&](uint64_t id, const LibraryObject& o) {
        if (o.type == n.type && o.pointer == pointer) found = id;
      });
    std::memcpy(n.at, &found, sizeof found);
  }
}

// The objects that the call made, changed or ended.
void LibraryCall::keep(int64_t status) {
  auto& objects = Libraries::get().objects;
  const bool done = status == 0;
  if (minted_id_ != 0 && done) {
    LibraryObject made{minted_type_, reinterpret_cast<void*>(minted_)};
    made.host_memory = f_.host_memory;
    if (f_.remember.stream >= 0)
      made.stream = reinterpret_cast<CUstream>(words_[f_.remember.stream]);
    objects.add(minted_id_, made);
    return;
  }
  if (!done) return;
  remember_opaque();
  const wire::Remember& r = f_.remember;
  const bool attribute = r.attribute >= 0 && r.pointer_mode_attribute >= 0 &&
                         static_cast<int32_t>(sent_[r.attribute]) == r.pointer_mode_attribute &&
                         words_[r.value] != 0;
  if (main_id_ != 0 && (r.stream >= 0 || r.pointer_mode >= 0 || attribute)) {
    if (r.stream >= 0) main_.stream = reinterpret_cast<CUstream>(words_[r.stream]);
    if (r.pointer_mode >= 0) main_.pointer_mode = static_cast<int32_t>(words_[r.pointer_mode]);
    if (attribute)
      std::memcpy(&main_.pointer_mode, reinterpret_cast<const void*>(words_[r.value]),
                  sizeof main_.pointer_mode);
    objects.set(main_id_, main_);
  }
  if (f_.holds[0] >= 0 && main_id_ != 0) keep_holds();
  if (f_.retains && main_id_ != 0) keep_buffers();
  LibraryObject measured;
  if (f_.measures >= 0 && objects.get(sent_[f_.measures], &measured)) {
    for (int i = 0; i < 3; ++i)
      measured.sizes[static_cast<size_t>(i)] = std::max<int64_t>(size_at(i), 0);
    objects.set(sent_[f_.measures], measured);
  }
}

// The library keeps pointers to what the object was given: those outlive their own end.
void LibraryCall::keep_holds() {
  auto& objects = Libraries::get().objects;
  auto all = std::make_shared<std::vector<std::unique_ptr<ObjectHold>>>();
  for (const int8_t at : f_.holds) {
    LibraryObject given;
    if (at >= 0 && objects.get(sent_[at], &given))
      all->push_back(std::make_unique<ObjectHold>(given.life));
  }
  if (!objects.get(main_id_, &main_)) return;
  main_.holds = std::move(all);
  objects.set(main_id_, main_);
}

// The object may point to what the call was given, until the same is set anew.
void LibraryCall::keep_buffers() {
  auto& objects = Libraries::get().objects;
  if (!objects.get(main_id_, &main_)) return;
  const uint64_t set = f_.set_by >= 0 ? static_cast<uint32_t>(sent_[f_.set_by]) : 0;
  auto all =
      main_.retained
          ? std::make_shared<std::map<uint64_t, std::shared_ptr<const Buffers>>>(*main_.retained)
          : std::make_shared<std::map<uint64_t, std::shared_ptr<const Buffers>>>();
  (*all)[uint64_t{f_.id} << 32 | set] = std::make_shared<const Buffers>(std::move(rooms_));
  main_.retained = std::move(all);
  objects.set(main_id_, main_);
}

void LibraryCall::answer(int64_t status, Reply& reply) {
  if (!command_.answered()) {
    if (!f_.returns_status || status == 0) return;
    process::log_error(std::string(f_.name) + " returned " + std::to_string(status) +
                       " after its caller had gone on");
    if (f_.state != wire::CallState::kDestroys) reply.status = CUDA_ERROR_UNKNOWN;
    return;
  }
  reply.put(status);
  if (f_.returns_status && status != 0 && !f_.outputs_always) return;
  for (const Output& o : outputs_) {
    reply.put_bytes(o.at, o.bytes);
    static constexpr std::byte kPad[8]{};
    reply.put_bytes(kPad, wire::round_up(o.bytes, 8) - o.bytes);
  }
}

// What is checked must be what the library gets: no more of a word than its parameter has.
void LibraryCall::narrow_values() {
  for (int i = 0; i < f_.params; ++i)
    if (f_.param[i].kind == ParamKind::kValue && f_.param[i].bytes < 8)
      sent_[i] &= (uint64_t{1} << (f_.param[i].bytes * 8)) - 1;
}

bool LibraryCall::prepare(CUresult* lacking) {
  const auto body = command_.body;
  if (body.size() < size_t{f_.params} * 8)
    return session_.reject(std::string(f_.name) + " is cut short"), false;
  vgpu_ = session_.use_context(command_.header.context);
  if (!vgpu_) return false;
  if (f_.params) std::memcpy(sent_, body.data(), size_t{f_.params} * 8);
  narrow_values();
  rest_ = body.subspan(size_t{f_.params} * 8);
  for (int i = 0; i < f_.params; ++i)
    if (!read(i)) return false;
  for (int i = 0; i < f_.params; ++i) check_bounds(i);
  check_sizes();
  function_ = Libraries::get().resolve(entry_);
  if (!function_) {
    // The client asks before it sends anything without an answer, and says it to its user.
    *lacking = entry_.loaded.load(std::memory_order_relaxed)
                   ? CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND
                   : CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    return false;
  }
  return true;
}

// Takes the object out of the table. False: it is not to be ended now, or not any more.
bool LibraryCall::may_end(int64_t* status) {
  // Another command may have ended it since it was looked up, or be in a call with it.
  if (!Libraries::get().objects.take(main_id_, &main_)) {
    session_.reject(std::string(f_.name) + " ends an object that was ended meanwhile");
    return false;
  }
  const long holders = main_.life->holders, mine = 2;  // main_ and what is held
  if (!f_.while_used && main_.life.use_count() > mine + holders) {
    session_.reject(std::string(f_.name) + " ends an object that another call is using");
    return false;
  }
  if (holders == 0) return true;
  main_.life->end = [thunk = entry_.thunk, function = function_, pointer = words_[0]] {
    const uint64_t words[wire::kMaxLibraryParams] = {pointer};
    thunk(function, words);
  };
  *status = 0;
  return false;
}

uint64_t LibraryCall::kind() const {
  uint64_t kind = command_.header.function;
  for (int i = 0; i < f_.params; ++i)
    if (f_.param[i].kind == ParamKind::kValue) kind = (kind ^ sent_[i]) * 0x100000001b3;
  return kind;
}

int64_t LibraryCall::issue() {
  session_.use_context(command_.header.context);
  const int64_t failed = entry_.table->spec->status.failed;
  if (refusal_) return *refusal_;
  int64_t status = failed;
  if (f_.state == wire::CallState::kDestroys && main_id_ != 0 && !may_end(&status)) return status;
  if (f_.workspace.function >= 0 && !workspace_is_enough(&status)) return status;
  for (int i = 0; i < f_.index_arrays; ++i)
    if (!check_indices(f_.indices[i], &status)) return free_copies(), status;
  const bool captured = f_.launches && capturing(session_, stream_);
  if (f_.launches && !captured)
    passage_ = vgpu_->gate->pass(stream_, {kind(), 1, f_.grouped && has_stream_});
  if (f_.grouped && has_stream_) count(captured);
  {
    const LaysMemory lays(!captured && std::string_view(entry_.table->spec->name) != "nccl");
    status = entry_.thunk(function_, words_);
  }
  free_copies();
  return status;
}

void LibraryCall::finish(int64_t status) {
  passage_.issued();
  if (f_.grouped) settle_count(status);
  name_objects();
  keep(f_.returns_status ? status : 0);
}

void LibraryCall::run(Reply& reply) {
  if (!prepare(&reply.status)) return;
  const int64_t status = issue();
  finish(status);
  if (!session_.rejected()) answer(status, reply);
}

namespace {

void library_call(Session& s, const Command& c, Reply& reply) {
  Libraries::Entry* entry = Libraries::get().find(c.header.function);
  if (!entry) return s.reject("there is no such library function");
  LibraryCall(s, c, *entry).run(reply);
}

// The return value is a pointer to the library's own text.
void library_text(Session& s, const Command& c, Reply& reply) {
  Libraries::Entry* entry = Libraries::get().find(c.header.function);
  if (!entry) return s.reject("there is no such library function");
  Reply raw;
  LibraryCall(s, c, *entry).run(raw);
  reply.status = raw.status;
  if (s.rejected() || raw.body.size() < 8) return;
  const char* text = nullptr;
  std::memcpy(&text, raw.body.data(), sizeof text);
  const size_t length = text ? strnlen(text, 2048) : 0;
  reply.put(uint64_t{length});
  reply.put_bytes(text, length);
}

}  // namespace

void add_library_handlers(DispatchTable& t) {
  for (const LibraryTable& library : library_tables()) {
    for (uint16_t i = 0; i < library.spec->count; ++i) {
      const FunctionSpec& f = library.spec->functions[i];
      using enum Handler::Answered;
      Handler& h = t[f.id];
      h.name = f.name;
      h.run = f.text ? library_text : library_call;
      h.answered = f.call == wire::CallClass::kAnswered ? kOnly : kEither;
      h.may_block = true;
    }
  }
}

}  // namespace sluice::worker

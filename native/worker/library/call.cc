// SPDX-License-Identifier: Apache-2.0
// The worker's half of every library function: checks each word of a command against the session
// and the function's spec, calls, and answers. Nothing here knows a library by name.
#include "worker/library/call.h"

#include <algorithm>
#include <cstring>

#include "wire/library_sizes.h"
#include "worker/log.h"

namespace sluice::worker {

namespace {

using wire::FunctionSpec;
using wire::kCarried;
using wire::ParamKind;
using wire::ParamSpec;

// A library may write a wider result than the caller has room for where types disagree.
constexpr size_t scalar_room(size_t n) { return std::max<size_t>(n, 16); }

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

std::byte* LibraryCall::room(size_t n) {
  rooms_.push_back(std::make_unique_for_overwrite<std::byte[]>(std::max<size_t>(n, 8)));
  return rooms_.back().get();
}

bool LibraryCall::read_object(int index, const ParamSpec& p) {
  const uint64_t id = sent_[index];
  if (id == 0) return p.nullable || reject(index, "is no object");
  LibraryObject object;
  if (!Libraries::get().objects.get(id, &object) || object.type != p.object)
    return reject(index, "names an object that the session does not have");
  if (main_id_ == 0) {
    main_id_ = id;
    main_ = object;
  }
  if (object.host_memory && f_.launches)
    return reject(index, "computes in host memory, where this function does not");
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
        const bool address = wire::carries_address(p, sent_);
        uint64_t value = 0;
        if (address && n != 8) return reject(index, "is no address");
        if (address) std::memcpy(&value, raw.data(), 8);
        if (value != 0 && !session_.device_range(value, 1))
          return reject(index, "is an address that the session does not have");
      }
      std::byte* at = room(n);
      std::memcpy(at, raw.data(), n);
      words_[index] = as_word(at);
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
      if (word != 0 && !session_.events.get(word, &event))
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
      if (word & kCarried) return read_carried(index, p);
      if (word != 0 && !session_.device_range(word, 1))
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
      words_[index] = n ? as_word(room(n)) : 0;
      return true;
    }
    case ParamKind::kNothing:
      return true;
    default:
      if (word & kCarried) return read_carried(index, p);
      if (p.either && session_.device_range(word, 1)) {
        words_[index] = word;
        return true;
      }
      return word == 0 || reject(index, "is neither absent nor carried");
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
  } else if (main_id_ != 0 && done && f_.remember.stream >= 0) {
    main_.stream = reinterpret_cast<CUstream>(words_[f_.remember.stream]);
    objects.set(main_id_, main_);
  }
}

void LibraryCall::answer(int64_t status, Reply& reply) {
  if (!command_.answered()) {
    if (!f_.returns_status || status == 0) return;
    log_error(std::string(f_.name) + " returned " + std::to_string(status) +
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

int64_t LibraryCall::issue() {
  session_.use_context(command_.header.context);
  if (f_.state == wire::CallState::kDestroys && main_id_ != 0)
    Libraries::get().objects.take(main_id_, &main_);
  if (f_.launches) vgpu_->gate->pass();
  return entry_.thunk(function_, words_);
}

void LibraryCall::finish(int64_t status) {
  if (f_.launches) vgpu_->gate->issued(stream_);
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

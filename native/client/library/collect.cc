// SPDX-License-Identifier: Apache-2.0
// Arguments to words and pieces, and to the key that says whether the call is known to be valid.
#include "client/core/addresses.h"
#include "client/core/log.h"
#include "client/library/outgoing.h"
#include "client/objects/event.h"
#include "library/objects.h"
#include "wire/library_sizes.h"

namespace sluice::client::library {

namespace ids = sluice::library;

using wire::CallState;
using wire::kCarried;
using wire::ParamKind;
using wire::ParamSpec;

bool names_memory(Session* s, uint64_t address) {
  return is_device_address(s, address) ||
         s->host_memory().in_arena(pointer<const void>(address), 1);
}

bool Call::names(uint64_t address) {
  if (session_->spans_nodes() && is_device_address(session_, address)) named_.push_back(address);
  return names_memory(session_, address);
}

// Whether all of it is memory of the node that the call goes to, which a communicator may say
// behind it. The node would take anything else for a client's that is none of ours.
bool Call::names_near_memory() {
  const uint32_t node = device_->place.node;
  for (const uint64_t at : named_) {
    ModuleGlobal global;
    const Device* owner = device_of_address(session_, at);
    if (owner ? owner->place.node == node : session_->module_globals.find(at, 1, node, &global))
      continue;
    log_once(LogLevel::kError, std::string(f_.name) +
                                   " was given memory of another node than that of vGPU " +
                                   std::to_string(device_->index) +
                                   ", and returned \"invalid value\": copy it there first");
    return false;
  }
  return true;
}

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
  if (!f_.may_change(index)) key_.add(object->content);
  for (int i = 0; i < 2; ++i)
    if (index == f_.changes[i]) changed_[i] = object;  // whatever it held before
  if (object->unlearned) learnable_ = false;
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
    if (p.nullable || (p.when >= 0 && args_[p.when] == 0)) return key_.add(0), 0;
    return library_.status.bad_handle;
  }
  Object* object = State::get().objects.find(id);
  if (!object || object->type != p.object || object->pending) return library_.status.bad_handle;
  // A communicator says which GPU a call is for, whatever is current.
  if (object->type == ids::k_nccl && session_->spans_nodes())
    device_ = session_->devices()[object->device].get();
  if (!is_near(session_, *object, *device_)) return library_.status.bad_handle;
  if (!main_) main_id_ = id;
  take_object(index, object);
  uint64_t on_node;
  const int32_t status = name(index, object, id, &on_node);
  std::memcpy(body_.data() + index * 8, &on_node, 8);
  return status;
}

size_t Call::scalar_bytes(const ParamSpec& p) {
  if (p.size != wire::ScalarSize::kObjectType && p.size != wire::ScalarSize::kDoubleOrFloat &&
      p.size != wire::ScalarSize::kVectorType && p.size != wire::ScalarSize::kCudnnType)
    return wire::scalar_bytes(p, args_);
  const Object* about = State::get().objects.find(args_[p.by]);
  if (p.size == wire::ScalarSize::kVectorType)
    return about ? wire::bytes_of_factor(static_cast<uint32_t>(about->data_type)) : 0;
  if (p.size == wire::ScalarSize::kCudnnType)
    return about ? wire::bytes_of_cudnn_type(static_cast<uint32_t>(about->data_type)) : 0;
  if (p.size == wire::ScalarSize::kDoubleOrFloat)
    return about && about->data_type == 1 ? 8 : 4;  // CUDNN_DATA_DOUBLE
  return about ? wire::bytes_of_data_type(static_cast<uint32_t>(about->data_type)) : 0;
}

int32_t Call::scalar(int index) {
  const ParamSpec& p = f_.param[index];
  const uint64_t at = args_[index];
  const Object* says =
      p.size == wire::ScalarSize::kObjectType ? State::get().objects.find(args_[p.by]) : main_;
  int mode = library_.pointer_modes && says ? says->pointer_mode : 0;
  if (p.size == wire::ScalarSize::kNcclType) mode = static_cast<int>(args_[p.by2]) == 0 ? 1 : 0;
  if (at == 0)
    return p.nullable || (mode != 0 && mode == p.null_mode) ? (key_.add(0), 0)
                                                            : library_.status.bad_value;
  if (mode != 0 && mode == p.host_mode) mode = 0;
  if (mode != 0) {
    if (!names(at)) return library_.status.bad_value;
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
  if (at == 0)
    return p.nullable || (p.count[0] >= 0 && elements(p) == 0) ? (key_.add(0), 0)
                                                               : library_.status.bad_value;
  // Where a value may be in device memory too, only kScalar and kResult know how to say so.
  const bool on_device = library_.pointer_modes && names_memory(session_, at);
  if (p.either && main_ && main_->pointer_mode != 0) {
    if (!on_device || !names(at)) return library_.status.bad_value;
    key_.add(2);
    std::memcpy(body_.data() + index * 8, &at, 8);
    return 0;
  }
  if (on_device) return library_.status.unsupported;
  const uint32_t each = wire::element_bytes(p, args_);
  if (each == 0) return library_.status.bad_value;
  const size_t n =
      p.kind == ParamKind::kString ? std::strlen(pointer<const char>(at)) + 1 : elements(p) * each;
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
  const wire::AttributeSpec* known = wire::find_attribute(p, args_);
  if (!known) {
    log_once(LogLevel::kInfo, std::string(f_.name) + " cannot set attribute " +
                                  std::to_string(static_cast<int32_t>(args_[p.by])) +
                                  " on a forwarded GPU and returned \"not supported\"");
    return library_.status.unsupported;
  }
  if (n != known->bytes) return library_.status.bad_value;
  const bool address = known->address;
  key_.add(address ? 1 : 0);
  if (address) {
    uint64_t value = 0;
    if (n != 8) return library_.status.bad_value;
    std::memcpy(&value, pointer<const void>(at), 8);
    if (value != 0 && !names(value)) return library_.status.bad_value;
    key_.add(value == 0 ? 0 : 1 + 2 * (value & 15));
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
  std::vector<uint64_t> on_node(ids, ids + n);
  key_.add(n);
  for (uint64_t i = 0; i < n; ++i) {
    if (p.kind == ParamKind::kInAddresses) {
      if (ids[i] != 0 && !names(ids[i])) return library_.status.bad_value;
      continue;
    }
    Object* object = State::get().objects.find(ids[i]);
    if (!object || object->type != p.object || !is_near(session_, *object, *device_))
      return library_.status.bad_handle;
    key_.add(object->content);
    if (const int32_t status = name(index, object, ids[i], &on_node[i]); status != 0) return status;
  }
  append(index, on_node.data(), n * 8);
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
      const auto find = f_.launches ? stream_for_work : resolve_stream;
      if (find(session_, device_, pointer<CUstream_st>(word), &stream) != CUDA_SUCCESS)
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
      if (word != 0 && !names(word)) return library_.status.bad_value;
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
    case ParamKind::kOutHandle:
      if (word == 0) return p.nullable ? 0 : library_.status.bad_value;
      expect(index, 8);
      return 0;
    case ParamKind::kMint:
      if (word == 0) return library_.status.bad_value;
      minted_ = State::get().objects.create(&minted_id_);
      if (!minted_) return library_.status.failed;
      minted_->type = p.object;
      minted_->device = device_->index;
      put(minted_id_);
      return 0;
    case ParamKind::kHostWorkspace:
      return elements(p) > wire::kMaxCarried ? library_.status.failed : 0;
    case ParamKind::kNothing:
      return 0;
  }
  return library_.status.unsupported;
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
  if (!names_near_memory()) return library_.status.bad_value;
  setting_.add(f_.id);
  if (f_.state == CallState::kSets) {
    // What the object held before does not count: the same setting again is the same.
    for (int i = 1; i < f_.params; ++i) {
      const ParamSpec& p = f_.param[i];
      const bool carried = p.kind == ParamKind::kIn || p.kind == ParamKind::kString ||
                           (p.kind == ParamKind::kAttribute && args_[i] != 0);
      if (p.kind == ParamKind::kValue && !p.masked) setting_.add(args_[i]);
      if (carried && args_[i] != 0) {
        const bool address = wire::carries_address(p, args_);
        const size_t n = p.kind == ParamKind::kString ? std::strlen(pointer<const char>(args_[i]))
                                                      : elements(p) * p.bytes;
        uint64_t value = 0;
        if (address) std::memcpy(&value, pointer<const void>(args_[i]), 8);
        if (address)
          setting_.add(value == 0 ? 0 : 1 + 2 * (value & 15));
        else
          setting_.add_bytes(pointer<const void>(args_[i]), n);
      }
      if (p.kind == ParamKind::kHandle && !f_.may_change(i))
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

}  // namespace sluice::client::library

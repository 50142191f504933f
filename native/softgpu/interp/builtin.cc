// SPDX-License-Identifier: Apache-2.0
#include "softgpu/interp/builtin.h"

#include <cstdio>
#include <cstring>

#include "softgpu/interp/access.h"
#include "softgpu/interp/conditions.h"
#include "softgpu/interp/launch_state.h"

namespace sluice::softgpu {
namespace {

constexpr size_t kLongestString = 1u << 16;

uint8_t* frame_bytes(Exec& exec, uint32_t lane, const Parameter& place) {
  return exec.local + static_cast<size_t>(exec.local_stride) * lane + exec.local_frame +
         place.offset;
}

template <class T>
T argument(Exec& exec, uint32_t lane, const CallSite& site, size_t index) {
  T value{};
  const Parameter& place = site.arguments[index];
  std::memcpy(&value, frame_bytes(exec, lane, place), std::min<size_t>(sizeof(T), place.size));
  return value;
}

template <class T>
void result(Exec& exec, uint32_t lane, const CallSite& site, T value) {
  if (site.results.empty()) return;
  const Parameter& place = site.results[0];
  std::memcpy(frame_bytes(exec, lane, place), &value, std::min<size_t>(sizeof(T), place.size));
}

bool read_string(Exec& exec, uint32_t lane, uint64_t address, std::string& text) {
  while (text.size() < kLongestString) {
    const uint8_t* byte = resolve_generic(exec, lane, address++, 1, Access::kRead);
    if (!byte) return false;
    if (*byte == 0) return true;
    text.push_back(static_cast<char>(*byte));
  }
  return true;
}

// Reads the packed arguments of one vprintf call, each aligned to its own size.
class PrintfArguments {
 public:
  PrintfArguments(Exec& exec, uint32_t lane, uint64_t address)
      : exec_(exec), lane_(lane), address_(address) {}
  template <class T>
  T next() {
    address_ = (address_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    T value{};
    const uint8_t* from = resolve_generic(exec_, lane_, address_, sizeof(T), Access::kRead);
    if (from) {
      std::memcpy(&value, from, sizeof(T));
    } else {
      bad_ = true;
    }
    address_ += sizeof(T);
    return value;
  }
  bool bad() const { return bad_; }

 private:
  Exec& exec_;
  uint32_t lane_;
  uint64_t address_;
  bool bad_ = false;
};

template <class T>
void format_into(std::string& out, const std::string& spec, T value) {
  char text[512];
  int length = std::snprintf(text, sizeof text, spec.c_str(), value);
  if (length >= static_cast<int>(sizeof text)) {
    std::string large(static_cast<size_t>(length) + 1, '\0');
    std::snprintf(large.data(), large.size(), spec.c_str(), value);
    large.pop_back();
    out += large;
  } else if (length > 0) {
    out.append(text, static_cast<size_t>(length));
  }
}

// One conversion at format[position] (after the '%'); false if it names no argument we can read.
bool convert(Exec& exec, uint32_t lane, const std::string& format, size_t& position,
             PrintfArguments& arguments, std::string& out) {
  std::string spec = "%";
  int longs = 0;
  for (; position < format.size(); ++position) {
    char c = format[position];
    if (c == '*') {
      spec += std::to_string(std::min(arguments.next<int32_t>(), 4096));
    } else if (std::strchr("-+ #0123456789.", c) != nullptr) {
      spec += c;
    } else if (c == 'l' || c == 'j' || c == 'z' || c == 't') {
      longs = 2;
    } else if (c == 'h') {
      spec += c;
    } else {
      break;
    }
  }
  if (position >= format.size() || spec.size() > 32) return false;
  char kind = format[position++];
  switch (kind) {
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
      if (longs) {
        format_into(out, spec + "ll" + kind, arguments.next<long long>());
      } else {
        format_into(out, spec + kind, arguments.next<int>());
      }
      return true;
    case 'c':
      format_into(out, spec + kind, arguments.next<int>());
      return true;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case 'a':
    case 'A':
      format_into(out, spec + kind, arguments.next<double>());
      return true;
    case 'p':
      format_into(out, spec + kind, reinterpret_cast<void*>(arguments.next<uint64_t>()));
      return true;
    case 's': {
      std::string text;
      uint64_t address = arguments.next<uint64_t>();
      if (address == 0) {
        text = "(null)";
      } else if (!read_string(exec, lane, address, text)) {
        return exec.fail(Fault::kIllegalAddress, "printf: unreadable string");
      }
      format_into(out, spec + kind, text.c_str());
      return true;
    }
    case '%':
      out += '%';
      return true;
    default:
      return false;
  }
}

bool print(Exec& exec, uint32_t lane, const CallSite& site) {
  std::string format;
  if (!read_string(exec, lane, argument<uint64_t>(exec, lane, site, 0), format)) {
    return exec.fail(Fault::kIllegalAddress, "printf: unreadable format");
  }
  PrintfArguments arguments(exec, lane, argument<uint64_t>(exec, lane, site, 1));
  std::string out;
  for (size_t position = 0; position < format.size();) {
    if (format[position] != '%') {
      out += format[position++];
      continue;
    }
    size_t start = position++;
    if (!convert(exec, lane, format, position, arguments, out)) {
      if (exec.fault != Fault::kNone) return false;
      out.append(format, start, position - start);
    }
    if (arguments.bad()) return exec.fail(Fault::kIllegalAddress, "printf: unreadable argument");
  }
  if (exec.launch->printf) exec.launch->printf->append(out);
  result<int32_t>(exec, lane, site, static_cast<int32_t>(out.size()));
  return true;
}

bool assert_fail(Exec& exec, uint32_t lane, const CallSite& site) {
  std::string message, file, function;
  read_string(exec, lane, argument<uint64_t>(exec, lane, site, 0), message);
  read_string(exec, lane, argument<uint64_t>(exec, lane, site, 1), file);
  uint32_t line = argument<uint32_t>(exec, lane, site, 2);
  read_string(exec, lane, argument<uint64_t>(exec, lane, site, 3), function);
  return exec.fail(Fault::kAssert, file + ":" + std::to_string(line) + ": " + function +
                                       ": Assertion `" + message + "' failed.");
}

}  // namespace

Builtin builtin_named(std::string_view name) {
  if (name == "vprintf") return Builtin::kPrintf;
  if (name == "__assertfail") return Builtin::kAssertFail;
  if (name == "malloc") return Builtin::kMalloc;
  if (name == "free") return Builtin::kFree;
  if (name == "cudaGraphSetConditional") return Builtin::kSetCondition;
  return Builtin::kNone;
}

bool call_builtin(Exec& exec, const Function& callee, const CallSite& site) {
  size_t needed = callee.builtin == Builtin::kPrintf         ? 2
                  : callee.builtin == Builtin::kSetCondition ? 2
                  : callee.builtin == Builtin::kAssertFail   ? 4
                                                             : 1;
  if (site.arguments.size() < needed) {
    return exec.fail(Fault::kIllegalInstruction, callee.name + " is called with too few arguments");
  }
  for (uint32_t rest = exec.mask; rest != 0; rest &= rest - 1) {
    uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
    switch (callee.builtin) {
      case Builtin::kPrintf:
        if (!print(exec, lane, site)) return false;
        break;
      case Builtin::kAssertFail:
        return assert_fail(exec, lane, site);
      case Builtin::kMalloc: {
        uint64_t size = argument<uint64_t>(exec, lane, site, 0);
        uint64_t address = exec.launch->heap ? exec.launch->heap->allocate(size) : 0;
        result<uint64_t>(exec, lane, site, address);
        break;
      }
      case Builtin::kFree:
        if (exec.launch->heap) {
          // Frees wait until no thread relies on the memory, this one included.
          int device = exec.launch->device;
          exec.view.leave();
          exec.launch->heap->release(argument<uint64_t>(exec, lane, site, 0));
          exec.view.enter(device);
        }
        break;
      case Builtin::kSetCondition:
        if (!set_condition(argument<uint64_t>(exec, lane, site, 0),
                           argument<uint32_t>(exec, lane, site, 1)))
          return exec.fail(Fault::kIllegalAddress, "cudaGraphSetConditional: no such handle");
        break;
      case Builtin::kNone:
        return exec.fail(Fault::kIllegalInstruction, "call of an undefined function");
    }
  }
  return true;
}

}  // namespace sluice::softgpu

// SPDX-License-Identifier: Apache-2.0
// How a function of a CUDA library (cuBLAS, cuDNN, …) crosses the wire, as a table that client and
// worker read alike. The tables are generated from native/api/libraries; one marshaller on each
// side (client/library/call.cc, worker/library/call.cc) serves every function of every library.
//
// A command's body is one 64-bit word for each parameter, then what those words announce, in the
// order of the parameters, each piece rounded up to 8 bytes. Its answer is the function's 64-bit
// return value, then what it wrote, in the same way.
#pragma once

#include <cstdint>

namespace sluice::wire {

enum class ParamKind : uint8_t {
  kValue,          // a number; its word is the value
  kHandle,         // an object of a library, by its id
  kStream,         // a CUDA stream, by its id
  kEvent,          // a CUDA event, by its id
  kAddress,        // device memory, or pinned memory that the device reaches by the same address
  kScalar,         // one value in host memory, or its device address, as the pointer mode says
  kResult,         // the same, written by the call
  kIn,             // `count` elements read from host memory
  kOut,            // `count` elements written to host memory
  kInOut,          // both
  kString,         // read up to its NUL
  kMint,           // a new object, whose id the client chose
  kInHandles,      // `count` handles in host memory
  kInAddresses,    // `count` device addresses in host memory
  kOutAddress,     // a device address that the call writes to host memory
  kOutHandle,      // an object of the session's that the call names: its id is written
  kHostWorkspace,  // host memory that only the call itself uses: the worker has its own
  kAttribute,      // an attribute's value: bytes, or a device address for some attributes
  kNothing,        // not sent; the worker passes zero
};

// A complex number of floats by value, as it is passed in registers.
struct alignas(8) Complex {
  float x, y;
};

// In a parameter's word: the host memory that it points to travels too (its length in the rest).
inline constexpr uint64_t kCarried = 1ull << 63;
inline constexpr uint64_t kMaxCarried = 1ull << 31;
inline constexpr int kMaxLibraryParams = 48;

// How many bytes a kScalar or kResult has in host memory, or an element of what is counted.
enum class ScalarSize : uint8_t {
  kFixed,          // `bytes`
  kDataType,       // by the cudaDataType in parameter `by`
  kComputeType,    // by the cublasComputeType_t in `by`, complex where the type in `by2` is
  kDoubleOrFloat,  // cuDNN: double where the tensor in `by` holds doubles, else float
  kObjectType,     // by the cudaDataType that the object in `by` remembers, with its pointer mode
  kNcclType,       // by the ncclDataType_t in `by`; on the device where `by2` says so (0)
  kVectorType,     // as wide as cuSPARSE computes with the vector in `by`: never 16 bits a number
};

struct ParamSpec {
  ParamKind kind;
  uint8_t object = 0;          // kHandle, kMint, kInHandles: which objects (ObjectType)
  bool nullable = false;       // NULL, or no object, is meant to be possible
  bool masked = false;         // does not decide whether the call is valid
  uint32_t bytes = 8;          // of a value or element
  int8_t count[2] = {-1, -1};  // the parameters whose product counts the elements
  uint32_t times = 1;          // and a constant factor
  uint32_t plus = 0;           // and so many more
  bool either = false;         // kIn, kInOut: or a device address, as the pointer mode says
  ScalarSize size = ScalarSize::kFixed;
  int8_t by = -1, by2 = -1;
  const uint32_t* addresses =
      nullptr;  // kAttribute: those whose value is an address, 0 behind them
};

enum class CallClass : uint8_t {
  kAsync,     // fire and forget, once one call of the function has been answered
  kAnswered,  // a round trip
  // Answered until the same arguments have succeeded once, fire and forget from then on: whether a
  // call is valid depends on what its key covers, and the first one was told its error.
  kLearned,
};

enum class CallState : uint8_t { kNone, kCreates, kDestroys, kSets };

// The `by` of these say which argument; the object is the function's first handle.
struct Remember {
  int8_t stream = -1;        // work of this object goes to that stream from now on
  int8_t pointer_mode = -1;  // 0: scalars are in host memory
  int8_t data_type = -1;
  // Or by an attribute: parameter `attribute` says which, `value` points to it.
  int8_t attribute = -1, value = -1;
  int32_t pointer_mode_attribute = -1, data_type_attribute = -1;
};

struct FunctionSpec {
  const char* name;
  uint16_t id;
  uint8_t params;
  CallClass call = CallClass::kLearned;
  CallState state = CallState::kNone;
  bool cached = false;  // the answer holds as long as the arguments and their objects stay
  bool returns_status = true;
  bool text = false;     // returns a text of the library's own
  bool launches = true;  // may give the GPU work
  int8_t work = 0;       // the handle whose stream gets that work, where there is no stream
  int8_t set_by = -1;    // kSets: the argument that says what is set
  // Objects beside the first handle's: what the arguments say is known of `changes` afterwards;
  // what is in `computes` then depends on data, so nothing learned or kept holds for it.
  int8_t changes = -1, computes = -1;
  bool grouped = false;         // NCCL: waits for ncclGroupEnd where one is open
  bool outputs_always = false;  // written with a status that is no success, too
  // kCreates: the client keeps what it makes as a recipe; this function of the table ends the
  // node's objects. -1: nothing of the kind.
  int16_t kept_end = -1;
  // kCreates: what it makes computes in host memory, so no function of the table gives it work.
  bool host_memory = false;
  bool deferred = false;  // kSets: the object is told when it is used, if it was not told before
  bool commutes = false;  // kSets: no other setting of the object makes a difference to it
  Remember remember{};
  const ParamSpec* param;
};

// The status codes that the client gives by itself.
struct LibraryStatus {
  int32_t not_initialized, bad_handle, bad_value, failed, unsupported;
};

struct LibrarySpec {
  const char* name;    // "cublas"
  const char* soname;  // of NVIDIA's and of ours
  LibraryStatus status;
  const FunctionSpec* functions;
  uint16_t count;
  bool pointer_modes;        // scalars may be in device memory
  const char* const* needs;  // SONAMEs that must be loaded first, nullptr behind them
};

}  // namespace sluice::wire

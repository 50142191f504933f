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
  kCudnnType,      // by the cudnnDataType_t of the tensor in `by`
  kVectorType,     // as wide as cuSPARSE computes with the vector in `by`: never 16 bits a number
};

// Who proved that the memory behind a pointer is there, and as long as the library takes it to be.
// Every parameter has one; the worker calls nothing with a parameter that has none.
enum class Proof : uint8_t {
  kNone,
  kNumber,     // no pointer
  kObject,     // from the session's table of objects, streams or events
  kWindow,     // device memory in the session's windows; only the GPU reads it
  kIndices,    // likewise, and the library's CPU code follows the indices in it: read and checked
  kPlace,      // one value, on the host or on the device as the object on the node is set
  kOne,        // one value or struct of a size that the table knows, in the worker's memory
  kCounted,    // count x element, in the worker's memory, both from the checked words
  kText,       // its NUL was seen
  kAttribute,  // of an attribute that the table lists, with its size
  kOpaque,     // bytes that the library itself gave this session
  kAsked,      // memory of the worker's, as large as the library on the node says
  kNothing,    // NULL
};

// One of the attributes that may be set by a kAttribute.
struct AttributeSpec {
  uint32_t name;
  uint8_t bytes;  // 0: the list's end
  bool address;
};

// Index arrays in device memory that the library's CPU code follows without looking, as parameters.
struct IndexArrays {
  int8_t rows, columns, count;  // of a matrix: its sizes and the number of indices
  int8_t offsets;               // rows + 1 of them; -1: a permutation of `rows` numbers
  int8_t indices;
  int8_t descriptor;  // the cusparseMatDescr_t that says from where they count; -1: from 0
};

// What a host workspace needs: a function of the same table that says it, and where its arguments
// come from: parameters of the function, or -1 for memory of the worker's.
struct WorkspaceQuery {
  int16_t function = -1;
  int8_t answer = -1;  // the parameter of it that the size is written to
  const int8_t* from = nullptr;
};

struct ParamSpec {
  ParamKind kind;
  Proof proof = Proof::kNone;
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
  const AttributeSpec* attributes = nullptr;  // kAttribute: all that may be set
  int8_t host_mode = 0;  // kScalar: in this pointer mode it is on the host as well as in mode 0
  int8_t null_mode = 0;  // kScalar: in this one there is none
  uint8_t opaque = 0;    // kIn, kInOut, kOut: begins with so many bytes that only the library makes
  // kValue, and elements of a kIn: bounds that the library does not check itself; of the latter the
  // first `skip` may be anything, and nothing counts where the parameter `when` is NULL. A kHandle
  // that is not nullable may be missing then.
  bool bounded = false;
  int64_t least = 0, most = 0;
  int8_t skip = 0, when = -1;
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
  int8_t changes[2] = {-1, -1}, computes = -1;
  bool grouped = false;         // NCCL: waits for ncclGroupEnd where one is open
  bool outputs_always = false;  // written with a status that is no success, too
  // kCreates: the client keeps what it makes as a recipe; this function of the table ends the
  // node's objects. -1: nothing of the kind.
  int16_t kept_end = -1;
  // kCreates: what it makes computes in host memory, so no function of the table gives it work.
  bool host_memory = false;
  bool deferred = false;    // kSets: the object is told when it is used, if it was not told before
  bool commutes = false;    // kSets: no other setting of the object makes a difference to it
  bool while_used = false;  // kDestroys: the library allows it while another thread is in a call
  uint8_t index_arrays = 0;
  const IndexArrays* indices = nullptr;
  // The object that the call sets up, and those that must have been; the first with the sizes that
  // the call says: rows, columns, number of indices, by the parameters of `sizes`.
  int8_t measures = -1, measured[3] = {-1, -1, -1};
  int8_t sizes[3] = {-1, -1, -1};
  WorkspaceQuery workspace{};
  int8_t holds[2] = {-1, -1};  // objects that the library keeps pointers to in the first handle's
  bool retains = false;        // kSets: the object may point to what it was given, by its `set_by`
  // How long an answer holds of which every byte is 0: that all is well. 0: not at all.
  uint16_t well_for_ms = 0;
  Remember remember{};
  const ParamSpec* param;

  constexpr bool may_change(int index) const { return index == changes[0] || index == changes[1]; }
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

// SPDX-License-Identifier: Apache-2.0
// What libraries would take on trust: each case is a command that is well formed and would have
// NVIDIA's library read, write or follow what nobody proved. What an honest program can get wrong
// is answered with the library's own status, the rest ends the session; the library sees none of
// it.
#include "tests/native/roundtrip/library_proofs.h"

#include "library/objects.h"
#include "wire/bodies/cudnn_ctc.h"
#include "wire/bodies/nccl.h"
#include "wire/cudnn_backend.h"
#include "wire/library_sizes.h"

namespace sluice::test {
namespace {

namespace ids = sluice::library;

using wire::FunctionSpec;
using wire::kCarried;
using wire::ParamKind;
using wire::ParamSpec;

// The library reads through a pointer as its object's mode says, whatever the command says.
TEST_F(LibraryProofs, ScalarsLieWhereThePointerModeSays) {
  size_t checked = 0;
  for (const worker::LibraryTable& t : worker::library_tables()) {
    if (!t.spec->pointer_modes) continue;
    for (uint16_t i = 0; i < t.spec->count; ++i) {
      const FunctionSpec& f = t.spec->functions[i];
      int scalar = -1;
      for (int k = 0; k < f.params && scalar < 0; ++k)
        if (f.param[k].kind == ParamKind::kScalar || f.param[k].kind == ParamKind::kResult ||
            f.param[k].either)
          scalar = k;
      if (scalar < 0) continue;
      ++checked;
      const auto at = static_cast<size_t>(scalar);
      for (const int32_t mode : {0, 1}) {
        FurnishedRig& rig = fresh();
        ValidFrame frame = library_frame(rig, f);
        const ParamSpec& p = f.param[scalar];
        const uint64_t object = p.size == wire::ScalarSize::kObjectType
                                    ? frame.words[static_cast<size_t>(p.by)]
                                    : frame.words[0];
        set_mode(object, mode);
        // Carried where the device is meant; an address where the host is.
        if (mode == 0) frame.words[at] = rig.address() + 64;
        fake().calls.clear();
        Answer answer;
        EXPECT_FALSE(rig.dispatch(frame.header(), frame.body(), &answer))
            << f.name << " in mode " << mode;
        EXPECT_TRUE(fake().calls.empty()) << f.name;
      }
    }
  }
  EXPECT_GT(checked, 400u);
}

// The mode is the one that the node's object was given, by a call or by an attribute.
TEST_F(LibraryProofs, ThePointerModeIsWhatWasSet) {
  ValidFrame set = frame("cublasSetPointerMode_v2"), scale = frame("cublasSscal_v2");
  set.words[1] = 1;
  expect_called(set, "the mode");
  const std::vector<uint64_t> carried = scale.words;
  scale.words[2] = rig_->address() + 64;
  expect_called(scale, "a scalar on the device");
  set.words[1] = 0;
  expect_called(set, "the mode");
  scale.words = carried;
  expect_called(scale, "a scalar on the host");
  set.words[1] = 2;
  expect_status(set, 7, "a mode that is none");
  // A failed call sets nothing.
  set.words[1] = 1;
  fake().status = 1;
  send(set);
  fake().status = 0;
  expect_called(scale, "a scalar on the host");
  // cuBLASLt's with its beta on the host.
  const FunctionSpec& f = function("cublasLtMatmul");
  set_mode(library_object(ids::k_cublaslt_matmul), 4);
  ValidFrame matmul = frame("cublasLtMatmul");
  int alpha = 2, beta = -1;
  for (int i = 0; i < f.params; ++i)
    if (f.param[i].host_mode == 4) beta = i;
  ASSERT_EQ(f.param[alpha].kind, ParamKind::kScalar);
  ASSERT_GT(beta, alpha);
  matmul.words[static_cast<size_t>(alpha)] = rig_->address() + 64;
  const size_t piece = f.params;
  matmul.words.erase(matmul.words.begin() + static_cast<ptrdiff_t>(piece),
                     matmul.words.begin() + static_cast<ptrdiff_t>(piece) + 2);
  expect_called(matmul, "alpha on the device, beta on the host");
  matmul.words[static_cast<size_t>(beta)] = rig_->address() + 128;
  expect_rejected(matmul, "beta on the device");
}

TEST_F(LibraryProofs, ScalarsThatAreMissingAreTheLibrarysError) {
  ValidFrame f = frame("cublasSscal_v2");
  f.words[2] = 0;
  expect_status(f, 7, "no alpha");
}

// Of host memory, where nobody said that it may be left out: libraries follow NULL.
TEST_F(LibraryProofs, HostPointersThatAreMissingAreTheLibrarysError) {
  size_t checked = 0;
  for (const worker::LibraryTable& t : worker::library_tables()) {
    for (uint16_t i = 0; i < t.spec->count; ++i) {
      const FunctionSpec& f = t.spec->functions[i];
      for (int k = 0; k < f.params && f.returns_status; ++k) {
        const ParamSpec& p = f.param[k];
        const bool in = p.kind == ParamKind::kIn || p.kind == ParamKind::kInOut ||
                        p.kind == ParamKind::kString || p.kind == ParamKind::kScalar;
        const bool out = p.kind == ParamKind::kOut || p.kind == ParamKind::kResult;
        if (p.nullable || !(in || out)) continue;
        ValidFrame frame = library_frame(*rig_, f);
        const auto at = static_cast<ptrdiff_t>(piece_of(frame, f, k));
        const uint64_t bytes = frame.words[static_cast<size_t>(k)] & ~kCarried;
        if (in)
          frame.words.erase(
              frame.words.begin() + at,
              frame.words.begin() + at + static_cast<ptrdiff_t>(wire::round_up(bytes, 8) / 8));
        frame.words[static_cast<size_t>(k)] = 0;
        ++checked;
        expect_status(frame, t.spec->status.bad_value,
                      std::string(f.name) + ", parameter " + std::to_string(k + 1));
      }
    }
  }
  EXPECT_GT(checked, 800u);
}

TEST_F(LibraryProofs, ObjectsThatAreMissingAreTheLibrarysError) {
  size_t checked = 0;
  for (const worker::LibraryTable& t : worker::library_tables()) {
    for (uint16_t i = 0; i < t.spec->count; ++i) {
      const FunctionSpec& f = t.spec->functions[i];
      for (int k = 1; k < f.params && f.returns_status; ++k) {
        if (f.param[k].kind != ParamKind::kHandle || f.param[k].nullable) continue;
        ValidFrame frame = library_frame(*rig_, f);
        frame.words[static_cast<size_t>(k)] = 0;
        ++checked;
        expect_status(frame, t.spec->status.bad_handle,
                      std::string(f.name) + ", parameter " + std::to_string(k + 1));
      }
    }
  }
  EXPECT_GT(checked, 300u);
  // The second matrix of a transformation is left out with its descriptor.
  const FunctionSpec& spec = function("cublasLtMatrixTransform");
  ValidFrame transform = frame(spec.name);
  for (int k = 0; k < spec.params; ++k) {
    if (spec.param[k].kind != ParamKind::kHandle || spec.param[k].when < 0) continue;
    transform.words[static_cast<size_t>(k)] = 0;
    transform.words[static_cast<size_t>(spec.param[k].when)] = 0;
  }
  expect_called(transform, "one matrix");
}

// An attribute that no table lists may be a pointer, of this process or of none.
TEST_F(LibraryProofs, AttributesThatNobodyKnowsAreNotSet) {
  struct Case {
    const char* function;
    uint64_t attribute;
  };
  for (const Case& c :
       {Case{"cublasLtMatmulDescSetAttribute", 38}, Case{"cublasLtMatmulDescSetAttribute", 29},
        Case{"cublasLtMatmulDescSetAttribute", 1000}, Case{"cublasLtMatrixLayoutSetAttribute", 9},
        Case{"cublasLtMatmulAlgoConfigSetAttribute", 0}, Case{"cusparseSpMatSetAttribute", 2}}) {
    const FunctionSpec& spec = function(c.function);
    ValidFrame f = frame(c.function);
    for (int i = 0; i < spec.params; ++i) {
      if (spec.param[i].kind != ParamKind::kAttribute) continue;
      const auto at = piece_of(f, spec, i);
      f.words[static_cast<size_t>(spec.param[i].by)] = c.attribute;
      f.words[static_cast<size_t>(spec.param[i].count[0])] = 8;
      f.words[static_cast<size_t>(i)] = kCarried | 8;
      f.words[at] = 0x7fff12345678;
    }
    const int64_t unsupported = std::string(c.function).rfind("cusparse", 0) == 0 ? 10 : 15;
    expect_status(f, unsupported, std::string(c.function) + " " + std::to_string(c.attribute));
  }
}

TEST_F(LibraryProofs, AttributesHaveTheirSize) {
  for (const FunctionSpec* spec : library_functions()) {
    for (int i = 0; i < spec->params; ++i) {
      const ParamSpec& p = spec->param[i];
      if (p.kind != ParamKind::kAttribute) continue;
      for (const wire::AttributeSpec* a = p.attributes; a->bytes; ++a) {
        ValidFrame f = library_frame(*rig_, *spec);
        const uint64_t wrong = a->bytes == 8 ? 4 : 8;
        f.words[static_cast<size_t>(p.by)] = a->name;
        f.words[static_cast<size_t>(p.count[0])] = wrong;
        f.words[static_cast<size_t>(i)] = kCarried | wrong;
        fake().calls.clear();
        const Outcome o = send(f);
        EXPECT_TRUE(o.accepted) << spec->name << ": " << o.reason;
        EXPECT_NE(o.status, 0) << spec->name << ", attribute " << a->name;
        EXPECT_TRUE(fake().calls.empty()) << spec->name << ", attribute " << a->name;
      }
    }
  }
}

TEST_F(LibraryProofs, AlgorithmsAreTheLibrarysOwn) {
  const FunctionSpec& spec = function("cublasLtMatmul");
  int algorithm = -1;
  for (int i = 0; i < spec.params; ++i)
    if (spec.param[i].opaque) algorithm = i;
  ASSERT_GE(algorithm, 0);
  ValidFrame f = frame("cublasLtMatmul");
  const auto at = static_cast<ptrdiff_t>(piece_of(f, spec, algorithm));
  expect_called(f, "one that it was given");
  for (int i = 0; i < 8; ++i) f.words[static_cast<size_t>(at + i)] = 0x4141414141414141;
  expect_status(f, 15, "a forged one");
  // What the heuristic gives is the library's.
  FakeLibraries& libraries = fake();
  libraries.calls.clear();
  const ValidFrame ask = frame("cublasLtMatmulAlgoGetHeuristic");
  ASSERT_EQ(send(ask).status, 0);
  const FunctionSpec& heuristic = function("cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < heuristic.params; ++i) {
    if (!heuristic.param[i].opaque) continue;
    const auto& written = libraries.calls.back().written[static_cast<size_t>(i)];
    ASSERT_GE(written.size(), 3 * 96u);
    std::memcpy(f.words.data() + at, written.data() + 96, 64);
  }
  expect_called(f, "the second of what the heuristic gave");
  // To change a forged one makes it no better.
  ValidFrame change = frame("cublasLtMatmulAlgoConfigSetAttribute");
  const FunctionSpec& config = function("cublasLtMatmulAlgoConfigSetAttribute");
  change.words[config.params] = 0x4242424242424242;
  expect_status(change, 15, "a forged one to be changed");
}

TEST_F(LibraryProofs, WorkspacesAreAsLargeAsTheLibrarySays) {
  size_t checked = 0;
  for (const worker::LibraryTable& t : worker::library_tables()) {
    for (uint16_t i = 0; i < t.spec->count; ++i) {
      const FunctionSpec& f = t.spec->functions[i];
      if (f.workspace.function < 0) continue;
      ++checked;
      const FunctionSpec& query = t.spec->functions[f.workspace.function];
      const auto usual = fake().instead[query.name];
      uint64_t needed = 3;
      size_t asked = 0;
      fake().instead[query.name] = [&](const uint64_t* words) {
        ++asked;
        std::memcpy(reinterpret_cast<void*>(words[f.workspace.answer]), &needed, 8);
        return 0;
      };
      const ValidFrame frame = library_frame(*rig_, f);  // which says three bytes
      expect_called(frame, f.name);
      needed = 4;
      expect_status(frame, t.spec->status.bad_value, f.name);
      EXPECT_EQ(asked, 2u) << f.name;
      fake().instead[query.name] = usual;
    }
  }
  EXPECT_EQ(checked, 13u);
}

// cuSOLVER follows these on the CPU.
TEST_F(LibraryProofs, IndicesLeadNowhereElse) {
  const FunctionSpec& spec = function("cusolverSpDcsrlsvqr");
  ASSERT_EQ(spec.index_arrays, 1);
  const wire::IndexArrays& a = spec.indices[0];
  const uint64_t offsets = rig_->address() + 4096, columns = rig_->address() + 8192;
  ValidFrame f = frame(spec.name);
  const auto set = [&](int8_t at, uint64_t word) { f.words[static_cast<size_t>(at)] = word; };
  const auto matrix = [&](std::vector<int32_t> from, std::vector<int32_t> to, int32_t rows) {
    put_numbers(offsets, from);
    put_numbers(columns, to);
    set(a.rows, static_cast<uint32_t>(rows));
    set(a.count, to.size());
    set(a.offsets, offsets);
    set(a.indices, columns);
  };
  matrix({0, 2, 3, 5}, {0, 2, 1, 2, 0}, 3);
  expect_called(f, "a good matrix");
  const FakeCall& call = fake().calls.back();
  EXPECT_NE(call.words[static_cast<size_t>(a.offsets)], offsets)
      << "the library reads what others can still change";
  EXPECT_TRUE(Recording::get().taken.all.empty()) << "the copies stayed";
  const auto refused = [&](const char* what) { expect_status(f, 3, what); };
  matrix({1, 2, 3, 5}, {0, 2, 1, 2, 0}, 3), refused("offsets that begin elsewhere");
  matrix({0, 2, 3, 6}, {0, 2, 1, 2, 0}, 3), refused("more than there are");
  matrix({0, 2, 1 << 30, 5}, {0, 2, 1, 2, 0}, 3), refused("an offset beyond the end");
  matrix({0, 3, 2, 5}, {0, 2, 1, 2, 0}, 3), refused("offsets that fall");
  matrix({0, -8, 3, 5}, {0, 2, 1, 2, 0}, 3), refused("an offset before the array");
  matrix({0, 2, 3, 5}, {0, 3, 1, 2, 0}, 3), refused("a column beyond the matrix");
  matrix({0, 2, 3, 5}, {0, -1, 1, 2, 0}, 3), refused("a column before the matrix");
  matrix({0, 2, 3, 5}, {2, 2, 1, 2, 0}, 3), refused("a column twice");
  matrix({0, 2, 3, 5}, {0, 2, 1, 2, 0}, -1), refused("rows that are none");
  matrix({0, 2, 3, 5}, {0, 2, 1, 2, 0}, 3);
  set(a.indices, 0), refused("no columns");
  matrix({1, 3, 4, 6}, {1, 3, 2, 3, 1}, 3);
  fake().instead["cusparseGetMatIndexBase"] = [](const uint64_t*) { return 1; };
  expect_called(f, "a matrix that counts from one");
  // Arrays that reach out of the session's windows.
  set(a.offsets,
      rig_->session().vgpus[0]->window_begin + rig_->session().vgpus[0]->window_bytes - 4);
  expect_rejected(f, "offsets beyond the window");
}

TEST_F(LibraryProofs, PermutationsNameEachNumberOnce) {
  const FunctionSpec& spec = function("cusolverRfResetValues");
  ASSERT_EQ(spec.index_arrays, 3);
  ValidFrame f = frame(spec.name);
  const auto place = [&](int8_t at) -> uint64_t& { return f.words[static_cast<size_t>(at)]; };
  const wire::IndexArrays &a = spec.indices[0], &p = spec.indices[1];
  worker::LibraryObject rf;
  worker::Libraries::get().objects.get(library_object(ids::k_cusolver_rf), &rf);
  rf.sizes = {2, 2, 2};
  worker::Libraries::get().objects.set(library_object(ids::k_cusolver_rf), rf);
  place(a.rows) = 2, place(a.count) = 2;
  put_numbers(place(a.offsets), {0, 1, 2});
  put_numbers(place(a.indices) = rig_->address() + 4096, {1, 0});
  put_numbers(place(p.indices) = rig_->address() + 8192, {1, 0});
  put_numbers(place(spec.indices[2].indices) = rig_->address() + 12288, {0, 1});
  expect_called(f, "permutations");
  put_numbers(rig_->address() + 8192, {1, 1});
  expect_status(f, 3, "one twice");
  put_numbers(rig_->address() + 8192, {1, 2});
  expect_status(f, 3, "one beyond");
}

TEST_F(LibraryProofs, AnAnalysisIsUsedForItsSizes) {
  const std::pair<const char*, const char*> both[] = {
      {"cusolverSpXcsrqrAnalysis", "cusolverSpScsrqrFactor"},
      {"cusparseSpruneCsr2csrNnzByPercentage", "cusparseSpruneCsr2csrByPercentage"},
      {"cusparseDpruneDense2csrNnzByPercentage", "cusparseDpruneDense2csrByPercentage"},
  };
  for (const auto& [analysis, use] : both) {
    SCOPED_TRACE(use);
    const FunctionSpec& spec = function(use);
    ASSERT_GE(spec.measured[0], 0);
    ValidFrame f = frame(use);
    expect_called(f, "the sizes that were analysed");
    f.words[static_cast<size_t>(spec.sizes[0])] = 1000;
    expect_status(f, 3, "more rows");
    worker::LibraryObject info;
    const uint64_t id = f.words[static_cast<size_t>(spec.measured[0])];
    worker::Libraries::get().objects.get(id, &info);
    info.sizes = {-1, -1, -1};
    worker::Libraries::get().objects.set(id, info);
    expect_status(frame(use), 3, "before any analysis");
    expect_called(frame(analysis), "the analysis");
    expect_called(frame(use), "after it");
  }
}

// cuFFT divides by them.
TEST_F(LibraryProofs, StridesAreNotZero) {
  const FunctionSpec& spec = function("cufftMakePlanMany");
  ValidFrame f = frame(spec.name);
  expect_called(f, "strides");
  f.words[4] = 0;
  ASSERT_TRUE(spec.param[4].bounded);
  expect_status(f, 4, "a stride of zero");
  f.words[3] = 0;  // without an embedding nobody looks at it
  f.words.erase(f.words.begin() + spec.params + 2, f.words.begin() + spec.params + 4);
  expect_called(f, "a stride that does not count");
  f = frame(spec.name);
  const size_t embedding = piece_of(f, spec, 3);
  f.words[embedding] &= 0xffffffff00000000;
  expect_called(f, "an embedding whose first size is left out");
  f.words[embedding] &= 0x00000000ffffffff;
  expect_status(f, 4, "an embedding of nothing");
}

TEST_F(LibraryProofs, AValueIsAsWideAsItsTensors) {
  const FunctionSpec& spec = function("cudnnSetTensor");
  ValidFrame f = frame(spec.name);
  const size_t at = piece_of(f, spec, 3);
  f.words[3] = kCarried | 32;  // INT8x32
  f.words.resize(at + 4);
  for (size_t i = 0; i < 4; ++i) f.words[at + i] = 0x0101010101010101 * (i + 1);
  expect_called(f, "a value of 32 bytes");
  const auto& read = fake().calls.back().read[3];
  ASSERT_EQ(read.size(), 32u);
  EXPECT_EQ(std::memcmp(read.data(), f.words.data() + at, 32), 0);
}

// The batch is the descriptor's, and so is what labels and lengths may be.
TEST_F(LibraryProofs, CtcLossReadsAsManyAsItsDescriptorSays) {
  const ValidFrame good = hand_written("CtcLoss");
  EXPECT_EQ(send(good).status, 0);
  const auto with = [&](uint32_t batch, uint32_t labels, std::vector<int32_t> numbers) {
    ValidFrame f = good;
    wire::CtcLoss body;
    std::memcpy(&body, f.words.data(), sizeof body);
    body.batch = batch, body.labels = labels;
    std::memcpy(f.words.data(), &body, sizeof body);
    f.words.resize(sizeof body / 8 + (numbers.size() + 1) / 2);
    std::memcpy(f.words.data() + sizeof body / 8, numbers.data(), numbers.size() * 4);
    return f;
  };
  EXPECT_EQ(send(with(2, 3, {1, 2, 4, 1, 2, 5, 5})).status, 2000) << "a label beyond the alphabet";
  EXPECT_EQ(send(with(2, 3, {1, -2, 3, 1, 2, 5, 5})).status, 2000) << "a label before it";
  EXPECT_EQ(send(with(2, 3, {1, 2, 3, 1, 2, 5, 6})).status, 2000) << "an input beyond the steps";
  expect_rejected(with(1, 1, {1, 1, 5}), "a smaller batch than the descriptor's");
}

// NCCL's own configuration is built here: a size that ends within a pointer leaves half of it.
TEST_F(LibraryProofs, ConfigurationsHoldNoPointersOfTheClients) {
  for (const uint32_t bytes : {39u, 55u, 33u, 49u}) {
    FurnishedRig& rig = fresh();
    std::vector<ValidFrame> all;
    add_nccl_frames(rig, &all);
    for (ValidFrame& f : all) {
      if (f.name != "NcclGroup, a rank") continue;
      const size_t head = 1 + 2;                      // the group's, the call's
      f.words[head + 5] = 1 | uint64_t{bytes} << 32;  // count and config_bytes
      f.words[head + 6] = 0;                          // no texts
      f.words.resize(head + 7 + 16);
      for (uint32_t i = 0; i < (bytes + 7) / 8; ++i) f.words.push_back(0x4141414141414141);
      f.words[2] = (f.words.size() - head) * 8;
      Answer answer;
      EXPECT_FALSE(rig.dispatch(f.header(), f.body(), &answer)) << bytes;
    }
  }
}

// cuDNN reads tensors by value on the CPU, all others on the GPU.
TEST_F(LibraryProofs, TensorsByValueAreCarried) {
  const ValidFrame good = hand_written("BackendExecute");
  EXPECT_EQ(send(good).status, 0);
  constexpr size_t kWords = sizeof(wire::BackendExecute) / 8 + 2;  // behind the unique ids
  ValidFrame f = good;
  f.words[kWords + 1] = rig_->address() + 64;
  {
    FurnishedRig& rig = fresh();
    Answer answer;
    EXPECT_FALSE(rig.dispatch(f.header(), f.body(), &answer)) << "an address for a value";
  }
  f = good;
  f.words[kWords] = kCarried;
  {
    FurnishedRig& rig = fresh();
    Answer answer;
    EXPECT_FALSE(rig.dispatch(f.header(), f.body(), &answer)) << "a value for memory";
  }
}

TEST_F(LibraryProofs, ATensorByValueIsOneNumber) {
  const auto tensor = [&](uint64_t id, std::vector<uint64_t> sizes) {
    ValidFrame f;
    f.function = ids::id_sluiceCudnnBackendBuild;
    f.answered = true;
    const wire::BackendBuild head{id, 17, 3};
    f.words.resize(sizeof head / 8);
    std::memcpy(f.words.data(), &head, sizeof head);
    f.words.insert(f.words.end(), {902 | 3ull << 32, sizes.size()});
    f.words.insert(f.words.end(), sizes.begin(), sizes.end());
    f.words.insert(f.words.end(), {906 | 3ull << 32, 1, 77});  // its unique id
    f.words.insert(f.words.end(), {908 | 2ull << 32, 1, 1});   // by value
    return f;
  };
  EXPECT_EQ(send(tensor(handle_id(HandleKind::kLibraryObject, 301), {1, 1, 1, 1})).status, 0);
  EXPECT_EQ(send(tensor(handle_id(HandleKind::kLibraryObject, 302), {1, 1, 1, 1024})).status, 3000);
}

// Every pointer that reaches a library has somebody who proved it (docs/api-registry.md).
TEST_F(LibraryProofs, EveryParameterHasOne) {
  for (const FunctionSpec* f : library_functions())
    for (int i = 0; i < f->params; ++i)
      EXPECT_NE(f->param[i].proof, wire::Proof::kNone) << f->name << ", parameter " << i + 1;
}

}  // namespace
}  // namespace sluice::test

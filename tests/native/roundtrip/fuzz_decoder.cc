// SPDX-License-Identifier: Apache-2.0
// Random and mutated commands into the worker's dispatch table. Whatever comes, nothing crashes
// (build with SLUICE_SANITIZE=address,undefined) and the driver is never given an address or handle
// that the session does not own: the recording driver holds every argument against what it has
// given out. A loop of its own with a seed (fuzz.h), or libFuzzer's with clang and
// -DSLUICE_LIBFUZZER=ON.
//
// An input is a list of commands: u16 frame (its highest bit: of a library), u8 context, u8 flags,
// u8 count of patches, then as many patches: u8 place, u8 kind, u64 value. A patch writes a 4- or
// 8-byte value into one of the good frames of valid_frames.h, or changes its length.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/native/fuzz/fuzz.h"
#include "tests/native/roundtrip/fake_libraries.h"
#include "tests/native/roundtrip/library_frames.h"
#include "tests/native/roundtrip/valid_frames.h"

namespace sluice::test {
namespace {

class Input {
 public:
  Input(const uint8_t* at, size_t bytes) : rest_(at, bytes) {}
  template <class T>
  T take() {
    T value{};
    const size_t n = std::min(sizeof value, rest_.size());
    std::memcpy(&value, rest_.data(), n);
    rest_ = rest_.subspan(n);
    return value;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const uint8_t> rest_;
};

struct {
  unsigned long long accepted = 0, refused = 0;
} g_count;

enum Flag : uint8_t { kOtherFunction = 1, kAnswered = 2, kFlipAnswered = 4, kWildContext = 8 };

uint64_t interesting(FurnishedRig& rig, uint8_t which, uint64_t value) {
  const uint64_t window = rig.address(), arena = rig.arena();
  const auto& second = *rig.session().vgpus[1];
  const uint64_t choices[] = {FurnishedRig::kStreamId,
                              FurnishedRig::kEventId,
                              FurnishedRig::kSecondEventId,
                              FurnishedRig::kModuleId,
                              FurnishedRig::kLibraryId,
                              FurnishedRig::kFunctionId,
                              FurnishedRig::kKernelId,
                              FurnishedRig::kBlob,
                              window,
                              window + value % (8 << 20),
                              window + FurnishedRig::kMappedBytes,
                              second.window_begin,
                              second.window_begin + second.window_bytes - value % 4096,
                              arena,
                              arena + value % kArenaBytes,
                              arena + kArenaBytes - value % 4096,
                              0x7fab00000000,
                              0,
                              1,
                              2,
                              ~0ull,
                              1ull << 63,
                              1ull << 40,
                              1ull << 32,
                              0xffffffff,
                              0x80000000,
                              value % 64,
                              value % 65536,
                              value,
                              library_object(static_cast<uint8_t>(value % 40)),
                              handle_id(static_cast<HandleKind>(value % 34), value % 16),
                              FurnishedRig::kGraphId,
                              FurnishedRig::kExecId,
                              FurnishedRig::kShadow,
                              2ull << 20,
                              4096};
  return choices[which % (sizeof choices / sizeof choices[0])];
}

void patch(FurnishedRig& rig, ValidFrame& f, Input& in) {
  const auto place = in.take<uint8_t>();
  const auto kind = in.take<uint8_t>();
  const auto value = in.take<uint64_t>();
  auto* at = reinterpret_cast<unsigned char*>(f.words.data());
  const size_t bytes = f.words.size() * 8;
  if (kind >= 0xf8) {
    f.words.resize(value % 40);
  } else if (bytes && kind & 1) {
    const uint64_t v = interesting(rig, kind >> 1, value);
    std::memcpy(at + place * 8 % bytes, &v, 8);
  } else if (bytes) {
    const auto v = static_cast<uint32_t>(interesting(rig, kind >> 1, value));
    std::memcpy(at + place * 4 % bytes, &v, 4);
  }
}

// Images are set aside before they arrive: what a client may announce in earnest would only cost
// time here.
void keep_small(ValidFrame& f) {
  if (f.function != wire::kUpload || f.words.size() * 8 < sizeof(wire::Upload)) return;
  wire::Upload u;
  std::memcpy(&u, f.words.data(), sizeof u);
  if (u.total <= wire::kMaxBlobBytes) u.total %= 1 << 16;
  std::memcpy(f.words.data(), &u, sizeof u);
}

void run(const uint8_t* data, size_t size) {
  Recording& recording = Recording::get();
  Input in(data, size);
  FurnishedRig rig;
  recording.writing_down = false;
  const std::vector<ValidFrame> good = valid_frames(rig);
  while (!in.empty() && !rig.session().rejected()) {
    const auto which = in.take<uint16_t>();
    const auto& libraries = library_functions();
    ValidFrame f = which & 0x8000 ? library_frame(rig, *libraries[which % libraries.size()])
                                  : good[which % good.size()];
    const auto context = in.take<uint8_t>();
    const auto flags = in.take<uint8_t>();
    f.context = flags & kWildContext && context % 16 == 2 ? context * 0x01010101u : 1 + context % 2;
    if (flags & kFlipAnswered && context % 16 == 1) f.answered = flags & kAnswered;
    // Most frames stay good, so that sessions live for a while.
    for (int patches = in.take<uint8_t>() % 16 - 12; patches > 0; --patches) patch(rig, f, in);
    if (flags & kOtherFunction && context % 16 == 0)
      f.function = good[context % good.size()].function;
    keep_small(f);
    FakeLibraries::get().calls.clear();
    worker::StreamObject stream;
    if (f.in_capture && rig.session().objects.streams.get(FurnishedRig::kStreamId, &stream) &&
        rig.session().objects.graphs.has_room(FurnishedRig::kCaptureId) &&
        !rig.session().captures.graph_of(FurnishedRig::kStreamId))
      rig.begin_capture();
    std::shared_ptr<worker::LinkState> link;
    if (f.linked && rig.session().objects.links.get(FurnishedRig::kLinkId, &link))
      rig.complete_link();
    if (f.node) rig.connect_node();
    Answer answer;
    const bool accepted = rig.dispatch(f.header(), f.body(), &answer);
    ++(accepted ? g_count.accepted : g_count.refused);
    if (!accepted && rig.session().reason().empty()) {
      std::fprintf(stderr, "%s was refused without a reason\n", f.name.c_str());
      std::abort();
    }
    for (const std::string& v : recording.violations)
      std::fprintf(stderr, "%s: %s\n", f.name.c_str(), v.c_str());
    if (!recording.violations.empty()) std::abort();
  }
}

}  // namespace
}  // namespace sluice::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::test::run(data, size);
  return 0;
}

#ifndef SLUICE_LIBFUZZER
int main(int argc, char** argv) {
  std::vector<uint8_t> input;
  sluice::fuzz::run(argc, argv, 2000, 500, [&input](sluice::fuzz::Random& random) {
    input.resize(random() % 1024);
    for (uint8_t& b : input) b = static_cast<uint8_t>(random());
    LLVMFuzzerTestOneInput(input.data(), input.size());
  });
  const auto& count = sluice::test::g_count;
  std::printf("%llu commands accepted, %llu refused\n", count.accepted, count.refused);
  return count.accepted > 0 && count.refused > 0 ? 0 : 1;
}
#endif

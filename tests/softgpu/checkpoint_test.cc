// SPDX-License-Identifier: Apache-2.0
// One process takes another off the software GPU and brings it back, as the driver's checkpoint
// does. Both are this program again, with one file that they share; the subject is told by letters
// and answers with one each.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gpu.h"

namespace sluice::softgpu_test {
namespace {

constexpr int kTold = 200, kSays = 201;  // its descriptors
constexpr size_t kHeld = 16u << 20, kContext = 8u << 20, kTotal = 64u << 20;
constexpr int kAtOnceMs = 10'000, kStillMs = 200;

class Subject {
 public:
  explicit Subject(const std::string& name) {
    int told[2], says[2];
    EXPECT_EQ(0, pipe(told));
    EXPECT_EQ(0, pipe(says));
    pid_ = fork();
    if (pid_ == 0) {
      dup2(told[0], kTold);
      dup2(says[1], kSays);
      for (const int fd : {told[0], told[1], says[0], says[1]}) close(fd);
      const std::string filter = "--gtest_filter=DISABLED_Subject." + name;
      execl("/proc/self/exe", "softgpu_tests", filter.c_str(), "--gtest_also_run_disabled_tests",
            static_cast<char*>(nullptr));
      _exit(127);
    }
    close(told[0]);
    close(says[1]);
    told_ = told[1], says_ = says[0];
    EXPECT_EQ('b', answer());
  }
  ~Subject() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(told_);
    close(says_);
  }
  int pid() const { return pid_; }
  void tell(char what) const { EXPECT_EQ(1, write(told_, &what, 1)); }
  // 0: it says nothing.
  char answer(int within_ms = kAtOnceMs) const {
    pollfd p{says_, POLLIN, 0};
    char said = 0;
    return poll(&p, 1, within_ms) == 1 && read(says_, &said, 1) == 1 ? said : '\0';
  }
  char ask(char what) const { return tell(what), answer(); }

 private:
  pid_t pid_ = 0;
  int told_ = -1, says_ = -1;
};

void say(char what) { ASSERT_EQ(1, write(kSays, &what, 1)); }

// The last digit of the UUID of device 0, which is its place before CUDA_VISIBLE_DEVICES.
char place() {
  CUuuid uuid{};
  EXPECT_EQ(CUDA_SUCCESS, cuDeviceGetUuid_v2(&uuid, 0));
  return static_cast<char>('0' + uuid.bytes[15]);
}

// As much again, of device 0.
bool take_more() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  return cuMemCreate(&handle, kHeld, &prop, 0) == CUDA_SUCCESS;
}

// Begins ('b'), and says whether its memory is right ('r'), or 'w'; to 'p' its place, and to 'm'
// whether it got more.
void serve(CUdeviceptr memory) {
  const std::vector<unsigned char> expected(kHeld, 0x5a);
  CHECK_CU(cuMemcpyHtoD_v2(memory, expected.data(), kHeld));
  say('b');
  for (char what = 0; read(kTold, &what, 1) == 1;) {
    if (what == 'p' || what == 'm') {
      say(what == 'p' ? place() : take_more() ? 'r' : 'w');
      continue;
    }
    std::vector<unsigned char> found(kHeld);
    say(cuMemcpyDtoH_v2(found.data(), memory, kHeld) == CUDA_SUCCESS && found == expected ? 'r'
                                                                                          : 'w');
  }
}

void current_context() {
  CUcontext context = nullptr;
  CHECK_CU(cuInit(0));
  CHECK_CU(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK_CU(cuCtxSetCurrent(context));
}

TEST(DISABLED_Subject, HoldsMemory) {
  current_context();
  CUdeviceptr memory = 0;
  CHECK_CU(cuMemAlloc_v2(&memory, kHeld));
  serve(memory);
}

CUmemAllocationProp exportable() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

// Which it exports; another process could have it open.
TEST(DISABLED_Subject, HoldsMemoryForOthers) {
  current_context();
  const CUmemAllocationProp prop = exportable();
  CUmemGenericAllocationHandle handle = 0;
  int fd = -1;
  CHECK_CU(cuMemCreate(&handle, kHeld, &prop, 0));
  CHECK_CU(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUdeviceptr memory = 0;
  CHECK_CU(cuMemAlloc_v2(&memory, kHeld));
  serve(memory);
}

// A file of its own stands for memory that another process exported.
TEST(DISABLED_Subject, HasMemoryOfAnother) {
  current_context();
  char name[] = "/tmp/softgpu-memory-XXXXXX";
  const int fd = mkstemp(name);
  ASSERT_GE(fd, 0);
  unlink(name);
  ASSERT_EQ(0, ftruncate(fd, 2 << 20));
  CUmemGenericAllocationHandle handle = 0;
  CHECK_CU(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<long>(fd)),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  CUdeviceptr memory = 0;
  CHECK_CU(cuMemAlloc_v2(&memory, kHeld));
  serve(memory);
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(CUDA_SUCCESS, cuMemGetInfo_v2(&free, &total));
  EXPECT_EQ(kTotal, total);
  return free;
}

CUprocessState state_of(const Subject& subject) {
  CUprocessState state = CU_PROCESS_STATE_FAILED;
  EXPECT_EQ(CUDA_SUCCESS, cuCheckpointProcessGetState(subject.pid(), &state));
  return state;
}

void take_off(const Subject& subject) {
  CUcheckpointLockArgs args{};
  args.timeoutMs = kAtOnceMs;
  CHECK_CU(cuCheckpointProcessLock(subject.pid(), &args));
  CHECK_CU(cuCheckpointProcessCheckpoint(subject.pid(), nullptr));
}

TEST(DISABLED_Checkpoint, TakesOffAndBringsBack) {
  current_context();
  const size_t before = free_bytes();
  const Subject subject("HoldsMemory");
  EXPECT_EQ(before - kHeld - kContext, free_bytes());
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessCheckpoint(subject.pid(), nullptr));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(CU_PROCESS_STATE_RUNNING, state_of(subject));
    CHECK_CU(cuCheckpointProcessLock(subject.pid(), nullptr));
    EXPECT_EQ(CU_PROCESS_STATE_LOCKED, state_of(subject));
    subject.tell('?');
    EXPECT_EQ(0, subject.answer(kStillMs)) << "its calls wait";
    CHECK_CU(cuCheckpointProcessCheckpoint(subject.pid(), nullptr));
    EXPECT_EQ(CU_PROCESS_STATE_CHECKPOINTED, state_of(subject));
    EXPECT_EQ(before, free_bytes());
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(subject.pid(), nullptr));
    CHECK_CU(cuCheckpointProcessRestore(subject.pid(), nullptr));
    EXPECT_EQ(before - kHeld - kContext, free_bytes());
    EXPECT_EQ(0, subject.answer(kStillMs)) << "it is locked still";
    CHECK_CU(cuCheckpointProcessUnlock(subject.pid(), nullptr));
    EXPECT_EQ('r', subject.answer());
  }
}

TEST(DISABLED_Checkpoint, LeavesWhatOthersMayHaveOpen) {
  current_context();
  const size_t before = free_bytes();
  const Subject subject("HoldsMemoryForOthers");
  take_off(subject);
  EXPECT_EQ(before - kHeld, free_bytes());
  CHECK_CU(cuCheckpointProcessRestore(subject.pid(), nullptr));
  EXPECT_EQ(before - 2 * kHeld - kContext, free_bytes());
  CHECK_CU(cuCheckpointProcessUnlock(subject.pid(), nullptr));
  EXPECT_EQ('r', subject.ask('?'));
}

TEST(DISABLED_Checkpoint, NeedsMoreRoomThanItGaveAndFailsForGood) {
  current_context();
  const Subject subject("HoldsMemory");
  take_off(subject);
  CUdeviceptr taken = 0;
  CHECK_CU(cuMemAlloc_v2(&taken, free_bytes() - kHeld - kContext));
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuCheckpointProcessRestore(subject.pid(), nullptr));
  EXPECT_EQ(CU_PROCESS_STATE_FAILED, state_of(subject));
  CHECK_CU(cuMemFree_v2(taken));
  EXPECT_EQ(CUDA_ERROR_OPERATING_SYSTEM, cuCheckpointProcessRestore(subject.pid(), nullptr));
  EXPECT_EQ(CUDA_ERROR_OPERATING_SYSTEM, cuCheckpointProcessUnlock(subject.pid(), nullptr));
}

TEST(DISABLED_Checkpoint, WhoHasMemoryOfAnotherNeverComesBack) {
  current_context();
  const Subject subject("HasMemoryOfAnother");
  take_off(subject);
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuCheckpointProcessRestore(subject.pid(), nullptr));
  EXPECT_EQ(CU_PROCESS_STATE_FAILED, state_of(subject));
}

CUuuid uuid_of(int device) {
  CUuuid uuid{};
  EXPECT_EQ(CUDA_SUCCESS, cuDeviceGetUuid_v2(&uuid, device));
  return uuid;
}

// What was on the first of each pair is to be on the second.
CUresult restore(const Subject& subject, const std::vector<std::pair<int, int>>& pairs) {
  std::vector<CUcheckpointGpuPair> all;
  for (const auto& [from, to] : pairs) all.push_back({uuid_of(from), uuid_of(to)});
  CUcheckpointRestoreArgs args{};
  args.gpuPairs = all.data();
  args.gpuPairsCount = static_cast<unsigned>(all.size());
  return cuCheckpointProcessRestore(subject.pid(), &args);
}

class Devices {
 public:
  Devices() {
    for (int device = 0; device < 2; ++device) {
      EXPECT_EQ(CUDA_SUCCESS, cuInit(0));
      EXPECT_EQ(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&contexts_[device], device));
    }
  }
  size_t free(int device) const {
    EXPECT_EQ(CUDA_SUCCESS, cuCtxSetCurrent(contexts_[device]));
    return free_bytes();
  }

 private:
  CUcontext contexts_[2] = {};
};

TEST(DISABLED_Checkpoint, OnAnotherDevice) {
  const Devices devices;
  const size_t before = devices.free(0), held = kHeld + kContext;
  ASSERT_EQ(before, devices.free(1));
  const Subject subject("HoldsMemory");
  EXPECT_EQ('0', subject.ask('p'));
  for (int at = 0; at < 2; ++at) {
    EXPECT_EQ(before - held, devices.free(at));
    take_off(subject);
    EXPECT_EQ(before, devices.free(at));
    CHECK_CU(restore(subject, {{0, 1}, {1, 0}}));
    EXPECT_EQ(before, devices.free(at)) << "nothing of it stays";
    EXPECT_EQ(before - held, devices.free(1 - at));
    CHECK_CU(cuCheckpointProcessUnlock(subject.pid(), nullptr));
    EXPECT_EQ('r', subject.ask('?'));
    EXPECT_EQ('1' - at, subject.ask('p'));
  }
  take_off(subject);
  CHECK_CU(restore(subject, {{0, 1}, {1, 0}}));
  CHECK_CU(cuCheckpointProcessUnlock(subject.pid(), nullptr));
  EXPECT_EQ('r', subject.ask('m'));
  EXPECT_EQ(before - held - kHeld, devices.free(1)) << "what it calls device 0 is the other one";
  EXPECT_EQ(before, devices.free(0));
}

TEST(DISABLED_Checkpoint, OnAnotherDeviceByAMapOfAllThatItSees) {
  const Devices devices;
  const size_t before = devices.free(0);
  const Subject subject("HoldsMemory");
  take_off(subject);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, restore(subject, {{0, 1}}));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, restore(subject, {{0, 1}, {1, 1}}));
  EXPECT_EQ(CU_PROCESS_STATE_CHECKPOINTED, state_of(subject)) << "nothing has changed";
  EXPECT_EQ(before, devices.free(0));
  CHECK_CU(restore(subject, {{0, 0}, {1, 1}}));
  CHECK_CU(cuCheckpointProcessUnlock(subject.pid(), nullptr));
  EXPECT_EQ('r', subject.ask('?'));
  EXPECT_EQ('0', subject.ask('p'));
}

TEST(DISABLED_Checkpoint, OnAnotherDeviceNeedsToSeeIt) {
  const Devices devices;
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);  // of who is begun now
  const Subject subject("HoldsMemory");
  take_off(subject);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, restore(subject, {{0, 1}, {1, 0}}));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, restore(subject, {{0, 1}}));
  CHECK_CU(cuCheckpointProcessRestore(subject.pid(), nullptr));
  CHECK_CU(cuCheckpointProcessUnlock(subject.pid(), nullptr));
  EXPECT_EQ('r', subject.ask('?'));
}

TEST(DISABLED_Checkpoint, OnAnotherDeviceNeedsRoomThere) {
  const Devices devices;
  const Subject subject("HoldsMemory");
  take_off(subject);
  CUdeviceptr taken = 0;
  const size_t room = devices.free(1);
  CHECK_CU(cuMemAlloc_v2(&taken, room - kHeld - kContext));
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, restore(subject, {{0, 1}, {1, 0}}));
  EXPECT_EQ(CU_PROCESS_STATE_FAILED, state_of(subject));
}

TEST(DISABLED_Checkpoint, OnAnotherDeviceNotWithWhatOthersMayHaveOpen) {
  const Devices devices;
  const Subject subject("HoldsMemoryForOthers");
  take_off(subject);
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, restore(subject, {{0, 1}, {1, 0}}));
  EXPECT_EQ(CU_PROCESS_STATE_FAILED, state_of(subject));
}

TEST(DISABLED_Checkpoint, IsCarriedOutWhereWhoAskedIsKilled) {
  current_context();
  const Subject subject("HoldsMemory");
  CHECK_CU(cuCheckpointProcessLock(subject.pid(), nullptr));
  const pid_t who = fork();
  if (who == 0) {
    setenv("SLUICE_TEST_PID", std::to_string(subject.pid()).c_str(), 1);
    execl("/proc/self/exe", "softgpu_tests", "--gtest_filter=DISABLED_Asker.Checkpoints",
          "--gtest_also_run_disabled_tests", static_cast<char*>(nullptr));
    _exit(127);
  }
  usleep(300'000);
  kill(who, SIGKILL);
  waitpid(who, nullptr, 0);
  for (int i = 0; i < kAtOnceMs && state_of(subject) == CU_PROCESS_STATE_LOCKED; ++i) usleep(1000);
  EXPECT_EQ(CU_PROCESS_STATE_CHECKPOINTED, state_of(subject));
  CHECK_CU(cuCheckpointProcessRestore(subject.pid(), nullptr));
  CHECK_CU(cuCheckpointProcessUnlock(subject.pid(), nullptr));
  EXPECT_EQ('r', subject.ask('?'));
}

TEST(DISABLED_Asker, Checkpoints) {
  CHECK_CU(cuInit(0));
  cuCheckpointProcessCheckpoint(std::atoi(std::getenv("SLUICE_TEST_PID")), nullptr);
}

// Ended, whatever state it was in.
TEST(DISABLED_Checkpoint, OfOneThatWasKilledNothingIsLeft) {
  current_context();
  const size_t before = free_bytes();
  int pid = 0;
  {
    const Subject subject("HoldsMemoryForOthers");
    take_off(subject);
    pid = subject.pid();
  }
  EXPECT_EQ(before, free_bytes());
  CUprocessState state = CU_PROCESS_STATE_RUNNING;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(pid, &state));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessRestore(pid, nullptr));
}

class Checkpoint : public testing::TestWithParam<const char*> {};

TEST_P(Checkpoint, OfAProcess) {
  std::string name = std::filesystem::temp_directory_path() / "softgpu-checkpoint-XXXXXX";
  const int fd = mkstemp(name.data());
  ASSERT_GE(fd, 0);
  close(fd);
  const pid_t pid = fork();
  if (pid == 0) {
    setenv("SLUICE_SOFTGPU_SHARED_FILE", name.c_str(), 1);
    setenv("SLUICE_SOFTGPU_MEMORY_MIB", "64", 1);
    setenv("SLUICE_SOFTGPU_CONTEXT_MIB", "8", 1);
    if (std::string(GetParam()).starts_with("OnAnother")) setenv("SLUICE_SOFTGPU_COUNT", "2", 1);
    if (std::string(GetParam()).starts_with("IsCarriedOut"))
      setenv("SLUICE_SOFTGPU_CHECKPOINT_MS", "1000", 1);
    const std::string filter = std::string("--gtest_filter=DISABLED_Checkpoint.") + GetParam();
    execl("/proc/self/exe", "softgpu_tests", filter.c_str(), "--gtest_also_run_disabled_tests",
          static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  std::filesystem::remove(name);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, Checkpoint,
    testing::Values("TakesOffAndBringsBack", "LeavesWhatOthersMayHaveOpen",
                    "NeedsMoreRoomThanItGaveAndFailsForGood", "WhoHasMemoryOfAnotherNeverComesBack",
                    "IsCarriedOutWhereWhoAskedIsKilled", "OfOneThatWasKilledNothingIsLeft",
                    "OnAnotherDevice", "OnAnotherDeviceByAMapOfAllThatItSees",
                    "OnAnotherDeviceNeedsToSeeIt", "OnAnotherDeviceNeedsRoomThere",
                    "OnAnotherDeviceNotWithWhatOthersMayHaveOpen"),
    [](const auto& info) { return std::string(info.param); });

TEST(CheckpointAlone, IsNotThereWhereNothingIsShared) {
  const pid_t pid = fork();
  if (pid == 0) {
    unsetenv("SLUICE_SOFTGPU_SHARED_FILE");
    execl("/proc/self/exe", "softgpu_tests", "--gtest_filter=DISABLED_Alone.Asks",
          "--gtest_also_run_disabled_tests", static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(DISABLED_Alone, Asks) {
  CHECK_CU(cuInit(0));
  CUprocessState state = CU_PROCESS_STATE_RUNNING;
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuCheckpointProcessGetState(getpid(), &state));
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuCheckpointProcessLock(getpid(), nullptr));
}

}  // namespace
}  // namespace sluice::softgpu_test

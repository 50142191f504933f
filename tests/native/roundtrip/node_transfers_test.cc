// SPDX-License-Identifier: Apache-2.0
// Transfers between two nodes of which one's driver takes no work: the other hears of it at once,
// its stream goes on, and the link stays. The other node is this test.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/native/roundtrip/valid_frames.h"
#include "wire/protocol.h"

namespace sluice::test {
namespace {

using Rig = FurnishedRig;
using wire::LinkMessage;
using Says = wire::LinkMessageKind;

constexpr CUresult kError = CUDA_ERROR_OUT_OF_MEMORY;
constexpr uint64_t kTransfer = 9;

class NodeTransfers : public ::testing::Test {
 protected:
  NodeTransfers() {
    rig.connect_node();
    const timeval patience{20, 0};
    setsockopt(rig.other_node(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }

  wire::NodeTransfer copy(uint64_t number = kTransfer) {
    wire::NodeTransfer t = event(number);
    t.event = 0;
    t.address = rig.address();
    t.pitch = 256, t.width = 100, t.rows = 3;
    return t;
  }
  static wire::NodeTransfer event(uint64_t number = kTransfer) {
    wire::NodeTransfer t{};
    t.transfer = number;
    t.peer = Rig::kOtherNode;
    t.stream = Rig::kStreamId;
    t.event = Rig::kEventId;
    return t;
  }
  // What came of a command.
  uint32_t give(uint16_t function, const wire::NodeTransfer& t) {
    const wire::FrameHeader header{sizeof header + sizeof t, function, wire::kNoLane, 1, 1};
    Answer answer;
    EXPECT_TRUE(rig.dispatch(header, std::as_bytes(std::span(&t, 1)), &answer))
        << rig.session().reason();
    return answer.status;
  }

  void say(Says kind, uint64_t transfer = kTransfer) {
    struct {
      wire::StreamRecord record;
      LinkMessage message;
    } said{{sizeof(LinkMessage), 0, 0}, {kind, 0, transfer}};
    ASSERT_EQ(::send(rig.other_node(), &said, sizeof said, MSG_NOSIGNAL), sizeof said);
  }
  // The next message; false: the link is over, or says nothing.
  bool hear(LinkMessage* message) {
    wire::StreamRecord record{};
    while (read(&record, sizeof record))
      if (record.bytes != 0) return read(message, sizeof *message);
    return false;
  }
  void expect(Says kind, uint64_t transfer = kTransfer) {
    LinkMessage message{};
    ASSERT_TRUE(hear(&message));
    EXPECT_EQ(message.kind, kind);
    EXPECT_EQ(message.transfer, transfer);
  }
  bool read(void* to, size_t n) {
    return (got_ = recv(rig.other_node(), to, n, MSG_WAITALL)) == static_cast<ssize_t>(n);
  }
  // Another transfer gets through, so the link is there.
  void expect_link() {
    auto t = event(kTransfer + 1);
    EXPECT_EQ(give(wire::kNodeReceive, t), CUDA_SUCCESS);
    expect(Says::kReady, kTransfer + 1);
  }
  void expect_no_link() {
    LinkMessage message{};
    while (hear(&message)) continue;
    EXPECT_TRUE(got_ == 0 || errno == ECONNRESET) << "it is there, and says nothing";
  }

  // Whether the stream that was told last to wait may go on; waits for it.
  bool goes_on() {
    const Call& wait = *Recording::get().calls_of("cuStreamWaitValue64_v2").back();
    const std::atomic_ref word(*reinterpret_cast<uint64_t*>(wait.at<CUdeviceptr>(1)));
    for (int i = 0; i < 20'000 && word < wait.at<cuuint64_t>(2); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return word >= wait.at<cuuint64_t>(2);
  }
  static bool waits() { return !Recording::get().calls_of("cuStreamWaitValue64_v2").empty(); }

  static void refuse_waits() {
    SLUICE_ON(cuStreamWaitValue64_v2) = [](CUstream, CUdeviceptr, cuuint64_t, unsigned) {
      return kError;
    };
  }
  static void refuse_functions() {
    SLUICE_ON(cuLaunchHostFunc) = [](CUstream, CUhostFn, void*) { return kError; };
  }

  Rig rig;

 private:
  ssize_t got_ = 0;
};

TEST_F(NodeTransfers, AReceiverThatCannotBeginSaysSo) {
  const std::function<void()> refusals[] = {
      refuse_waits, refuse_functions,
      [] { SLUICE_ON(cuEventCreate) = [](CUevent*, unsigned) { return kError; }; }};
  const auto before = SLUICE_ON(cuStreamWaitValue64_v2);
  const auto functions = SLUICE_ON(cuLaunchHostFunc);
  uint64_t number = 100;
  for (const auto& refuse : refusals) {
    SLUICE_ON(cuStreamWaitValue64_v2) = before;
    SLUICE_ON(cuLaunchHostFunc) = functions;
    refuse();
    auto t = copy(++number);
    t.whole_device = 1;
    EXPECT_EQ(give(wire::kNodeReceive, t), kError);
    expect(Says::kRefused, number);
  }
  refuse_waits();
  EXPECT_EQ(give(wire::kNodeReceive, event()), kError);
  expect(Says::kRefused);
  SLUICE_ON(cuStreamWaitValue64_v2) = before;
  expect_link();
}

TEST_F(NodeTransfers, ASenderThatCannotBeginSaysSoToWhoeverIsReady) {
  const auto functions = SLUICE_ON(cuLaunchHostFunc);
  refuse_functions();
  EXPECT_EQ(give(wire::kNodeSend, copy(100)), kError);
  say(Says::kReady, 100);
  expect(Says::kRefused, 100);
  EXPECT_EQ(give(wire::kNodeSend, event()), kError);
  say(Says::kReady);
  expect(Says::kRefused);
  SLUICE_ON(cuLaunchHostFunc) = functions;
  expect_link();
}

TEST_F(NodeTransfers, ASenderHasHeardBeforeItsClientThatTheReceiverIsReady) {
  say(Says::kReady, 100);
  EXPECT_EQ(give(wire::kNodeSend, event()), CUDA_SUCCESS);
  say(Says::kReady);
  expect(Says::kEvent);  // it has taken both in
  refuse_functions();
  EXPECT_EQ(give(wire::kNodeSend, copy(100)), kError);
  expect(Says::kRefused, 100);
}

TEST_F(NodeTransfers, TheStreamOfASenderGoesOnWithoutAReceiver) {
  EXPECT_EQ(give(wire::kNodeSend, copy()), CUDA_SUCCESS);
  say(Says::kRefused);
  EXPECT_TRUE(goes_on());
  expect_link();
  EXPECT_EQ(rig.endpoint().published, CUDA_SUCCESS) << "the error is the other node's";
}

TEST_F(NodeTransfers, ASenderHasHeardBeforeItsClientThatTheReceiverRefuses) {
  say(Says::kRefused);
  EXPECT_EQ(give(wire::kNodeSend, event(100)), CUDA_SUCCESS);
  say(Says::kReady, 100);
  expect(Says::kEvent, 100);  // it has taken both in
  EXPECT_EQ(give(wire::kNodeSend, copy()), CUDA_SUCCESS);
  EXPECT_FALSE(waits());
  expect_link();
}

TEST_F(NodeTransfers, TheStreamOfAReceiverGoesOnWithAnErrorWithoutASender) {
  for (const wire::NodeTransfer& t : {copy(), event()}) {
    rig.endpoint().published = CUDA_SUCCESS;
    EXPECT_EQ(give(wire::kNodeReceive, t), CUDA_SUCCESS);
    expect(Says::kReady);
    EXPECT_EQ(rig.endpoint().published, CUDA_SUCCESS);
    say(Says::kRefused);
    EXPECT_TRUE(goes_on());
    EXPECT_EQ(rig.endpoint().published, CUDA_ERROR_EXTERNAL_DEVICE);
  }
  expect_link();
}

TEST_F(NodeTransfers, BothRefuse) {
  refuse_functions();
  EXPECT_EQ(give(wire::kNodeSend, copy()), kError);
  say(Says::kRefused);
  say(Says::kRefused);  // of a number of which nothing is known any more
  expect_link();
}

TEST_F(NodeTransfers, WhoRefusesTwiceIsNoWorkerOfOurs) {
  say(Says::kRefused);
  say(Says::kRefused);
  expect_no_link();
}

TEST_F(NodeTransfers, WhoRefusesWhatNobodyIsReadyForIsNoWorkerOfOurs) {
  std::vector<std::function<void()>> behind;  // what the stream has not come to
  SLUICE_ON(cuLaunchHostFunc) = [&](CUstream, CUhostFn function, void* told) {
    behind.push_back([=] { function(told); });
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(give(wire::kNodeReceive, copy()), CUDA_SUCCESS);
  say(Says::kRefused);
  expect_no_link();
  for (const auto& comes_to_it : behind) comes_to_it();
}

}  // namespace
}  // namespace sluice::test

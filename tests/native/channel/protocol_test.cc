// SPDX-License-Identifier: Apache-2.0
// The bytes of what opens a session are the same in C++, in Python (tests/codegen/test_protocol.py)
// and in the file that both are held against.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "wire/frame.h"

namespace sluice::wire {
namespace {

// Lines of a name and hexadecimal digits.
std::map<std::string, std::string> golden() {
  std::ifstream file(SLUICE_GOLDEN);
  std::map<std::string, std::string> found;
  std::string name, digits;
  while (file >> name >> digits) found[name] = digits;
  return found;
}

template <class T>
std::string digits_of(const T& value) {
  unsigned char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  std::string text;
  char two[3];
  for (const unsigned char byte : bytes) {
    std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

template <size_t N>
void put(char (&field)[N], const char* text) {
  std::strncpy(field, text, N);
}

// `n` numbers from `first` on.
template <class T, size_t N>
void count(T (&field)[N], int first) {
  for (size_t i = 0; i < N; ++i) field[i] = static_cast<T>(first + static_cast<int>(i));
}

constexpr FrameHeader kHeader{512, kOpenSession, kNoLane, 0x01020304, 7};

TEST(Protocol, AnOpenSessionHasTheGoldenBytes) {
  OpenSession o{};
  o.header = kHeader;
  o.magic = kOpenMagic;
  o.protocol_major = 1;
  o.protocol_minor = 2;
  o.vgpu_count = 3;
  o.gmem_mib = 40960;
  o.ratio_percent = 55;
  o.flags = kPreempt | kTakesRelay;
  o.priority = -6;
  o.wait_seconds = -1;
  o.pid = 70001;
  o.uid = 1000;
  o.start_time = 0x1122334455667788;
  o.cuda_version = 13000;
  o.channel = ChannelKind::kVsock;
  put(o.key, "a key");
  put(o.host, "guest-3");
  put(o.program, "python train.py");
  put(o.job, "0123456789abcdef0123456789abcdef");
  o.job_processes = 8;
  o.chosen_count = 2;
  o.chosen[0] = 5;
  o.chosen[1] = 63;
  put(o.reserved, "later");
  EXPECT_EQ(digits_of(o), golden().at("open_session"));
}

TEST(Protocol, AnOpenReplyHasTheGoldenBytes) {
  OpenReply o{};
  o.header = kHeader;
  o.status = 600;
  o.network_grace_seconds = 9;
  o.session_id = 0xfedcba9876543210;
  put(o.message, "waits for 2 vGPUs");
  EXPECT_EQ(digits_of(o), golden().at("open_reply"));
}

TEST(Protocol, WhatGoesOnWithASessionHasTheGoldenBytes) {
  const StreamRecord record{70000, kWantsAcknowledgement, 0x1122334455667788};
  EXPECT_EQ(digits_of(record), golden().at("stream_record"));
  const LinkMessage message{LinkMessageKind::kData, 70000, 0x1122334455667788};
  EXPECT_EQ(digits_of(message), golden().at("link_message"));
  ResumeSession asked{};
  asked.header = kHeader;
  asked.magic = kOpenMagic;
  asked.protocol_major = 1;
  asked.protocol_minor = 2;
  asked.session_id = 0xfedcba9876543210;
  asked.epoch = 4;
  asked.flags = 5;
  count(asked.nonce, 64);
  asked.subflow = 6;
  count(asked.reserved, 7);
  EXPECT_EQ(digits_of(asked), golden().at("resume_session"));
  ResumeReply answer{};
  answer.header = kHeader;
  answer.status = 600;
  answer.epoch = 4;
  count(answer.nonce, 96);
  count(answer.proof, 128);
  put(answer.message, "in a moment");
  EXPECT_EQ(digits_of(answer), golden().at("resume_reply"));
  ResumeProof proof{};
  proof.header = kHeader;
  count(proof.proof, 160);
  EXPECT_EQ(digits_of(proof), golden().at("resume_proof"));
}

TEST(Protocol, AnEndOfAnRdmaConnectionHasTheGoldenBytes) {
  RdmaTerms terms{};
  terms.header = kHeader;
  terms.status = 100;
  terms.queue_pair = 17;
  terms.first_packet = 0xabcdef;
  terms.path_mtu = 3;
  count(terms.gid, 200);
  terms.area = 0x7f0011223344;
  terms.area_key = 0x1a2b3c4d;
  terms.ring_bytes = 1 << 20;
  terms.receives = 256;
  terms.lid = 5;
  terms.abilities = 6;
  count(terms.reserved, 7);
  put(terms.message, "no port is up");
  EXPECT_EQ(digits_of(terms), golden().at("rdma_terms"));
}

TEST(Protocol, ADeviceRecordHasTheGoldenBytes) {
  DeviceRecord d{};
  d.window_begin = 0x200000000000;
  d.window_bytes = 8ull << 40;
  d.memory_bytes = 40ull << 30;
  d.compute_percent = 25;
  d.attribute_count = 151;
  count(d.uuid, 16);
  count(d.physical_uuid, 32);
  put(d.name, "NVIDIA H200");
  put(d.pci_bus_id, "0000:01:00.0");
  count(d.attributes, -3);
  d.stream_priority_least = 0;
  d.stream_priority_greatest = -5;
  d.granularity = 2 << 20;
  count(d.limits, 1000);
  d.peers = 6;
  d.peer_atomics = 2;
  d.thread_bytes = 512;
  d.abilities = 11;
  count(d.peer_rank, 100);
  EXPECT_EQ(digits_of(d), golden().at("device_record"));
}

TEST(Protocol, ASessionRecordHasTheGoldenBytes) {
  SessionRecord s{};
  s.record_bytes = 1232;
  s.device_bytes = 1168;
  s.device_count = 1;
  s.driver_version = 13000;
  s.heartbeat_seconds = 5;
  s.software_gpu = 1;
  put(s.driver_name, "580.65.06");
  s.keeps_code = 1;
  s.shares_memory = 1;
  EXPECT_EQ(digits_of(s), golden().at("session_record"));
}

}  // namespace
}  // namespace sluice::wire

// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>

#include "client/core/http.h"
#include "client/core/ini_file.h"
#include "client/core/json.h"
#include "client/core/session_record.h"
#include "client/cupti/answer.h"
#include "client/driver/fat_binary.h"
#include "cupti_abi.h"
#include "tests/native/code_images.h"
#include "tests/native/fuzz/targets.h"

namespace sluice::fuzz {

using namespace client;

namespace {

bool read_json(std::span<const std::byte> input) {
  return !JsonObject(std::string(text_of(input))).text("key").empty();
}

bool read_answer(std::span<const std::byte> input) {
  const std::string text(text_of(input));
  HttpAnswer answer;
  const bool understood = parse_answer(text, false, &answer);
  parse_answer(text, true, &answer);
  return understood;
}

bool read_address(std::span<const std::byte> input) {
  HttpAddress address;
  return parse_address(std::string(text_of(input)), true, &address);
}

bool read_settings(std::span<const std::byte> input) {
  size_t bytes = 0;
  bool quoted = false;
  for (const IniValue& v : read_ini(text_of(input))) {
    bytes += v.key.size() + v.value.size();
    quoted |= v.value == "a;b";
  }
  if (bytes > input.size()) std::abort();
  return quoted;
}

bool read_fat_binary(std::span<const std::byte> input) {
  std::vector<std::byte> room;
  const ComputeCapability gpus[] = {{9, 0}};
  const auto kept = parts_for(input, gpus, false, &room);
  if (kept.size() > input.size()) std::abort();
  return kept.size() < input.size();
}

bool read_record(std::span<const std::byte> input) {
  SessionRecord record;
  std::string error;
  if (!read_session_record(input, &record, &error)) return false;
  if (record.devices.empty() || record.devices.size() > input.size() / sizeof(wire::DeviceRecord))
    std::abort();
  for (const wire::DeviceRecord& d : record.devices)
    if (std::memchr(d.name, 0, sizeof d.name) == nullptr) std::abort();
  return true;
}

// What passes is within its bytes and fits NVIDIA's structures.
bool read_profile(std::span<const std::byte> input) {
  cupti::Answer answer;
  if (!cupti::read_answer(input, &answer)) return false;
  const char* const begin = reinterpret_cast<const char*>(input.data());
  if (answer.names.data() + answer.names.size() > begin + input.size()) std::abort();
  bool some = false;
  for (wire::ProfileRecord& r : answer.records) {
    if (!cupti::credible(answer, ~uint64_t{0}, &r)) continue;
    some = true;
    const bool kernel = r.kind == cupti::kKernel || r.kind == cupti::kConcurrentKernel;
    if (r.start > r.end || (kernel ? r.registers > 0xffff : r.copy_kind > cupti::kPeer))
      std::abort();
    if (kernel && std::strlen(answer.names.data() + r.name) > wire::kProfileOneName) std::abort();
  }
  return some;
}

// Records of a kernel, a copy and a fill, and two names.
std::vector<std::byte> profile_answer() {
  constexpr std::string_view kNames("first\0second\0\0\0\0", 16);
  wire::ProfileRecord records[3] = {};
  records[0].kind = cupti::kConcurrentKernel;
  records[0].name = 6;
  for (int i = 0; i < 3; ++i) records[0].grid[i] = records[0].block[i] = 1;
  records[1].kind = cupti::kMemcpy;
  records[2].kind = cupti::kMemset;
  for (wire::ProfileRecord& r : records) r.correlation = 1;
  wire::ProfileRecords head{};
  head.count = 3;
  head.name_bytes = kNames.size();
  std::vector<std::byte> all(sizeof head + sizeof records + kNames.size());
  std::memcpy(all.data(), &head, sizeof head);
  std::memcpy(all.data() + sizeof head, records, sizeof records);
  std::memcpy(all.data() + sizeof head + sizeof records, kNames.data(), kNames.size());
  return all;
}

// A session of one vGPU, behind its OpenReply.
std::vector<std::byte> session_record() {
  wire::SessionRecord session{};
  session.device_bytes = sizeof(wire::DeviceRecord);
  session.device_count = 1;
  std::vector<std::byte> all(sizeof(wire::OpenReply) + sizeof session + sizeof(wire::DeviceRecord));
  std::memcpy(all.data() + sizeof(wire::OpenReply), &session, sizeof session);
  return all;
}

}  // namespace

std::vector<Target> client_targets() {
  const std::vector<std::byte> code(32);
  const std::vector<std::byte> record = session_record();
  return {
      {"JSON",
       {R"({"key":"0123","port":9960,"tls":true,"address":"10.0.0.1","session_id":"5"})",
        R"({"type":"urn:sluice:problem:not-granted","detail":"\u00e9\ud83d\ude00","x":[1,{"y":-1.5e3}]})"},
       "{}[]\"\\:,u0-\r\n\xff",
       read_json},
      {"HTTP answers",
       {"HTTP/1.1 201 Created\r\ncontent-length: 2\r\nlocation: http://a:1/v1/x\r\n\r\n{}",
        "HTTP/1.1 429 Too Many\r\nRetry-After: 2\r\nTransfer-Encoding: "
        "chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"},
       ":,u0-f \r\n\xff",
       read_answer},
      {"addresses",
       {"host:9123", "https://[fe80::1]:9123", "http://10.0.0.1"},
       "[]:/,0-",
       read_address},
      {"INI files",
       {"[client]\ngmem = 64 ; each\n; more\nca = \"a;b\" # c\n",
        "[a]\r\nk=\"a;b\"\n[b]\nl=\"\"\"\""},
       "[]=;#\" \t\r\n",
       read_settings},
      {"session records", {text_of(record)}, std::string_view("\0\1\x40\xff", 4), read_record},
      {"records of a profiler",
       {text_of(profile_answer())},
       std::string_view("\0\1\x7f\xff", 4),
       read_profile},
      {"fat binaries",
       {text_of(test::fat_container({test::fat_part({2, 90, code}), test::fat_part({1, 90, code}),
                                     test::fat_part({2, 80, code})}))},
       {"\0\x01\xff\x40", 4},
       read_fat_binary},
  };
}

}  // namespace sluice::fuzz

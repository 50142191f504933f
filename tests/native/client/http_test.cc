// SPDX-License-Identifier: Apache-2.0
// What a controller's address may look like, and which bytes are an answer of HTTP's.
#include "client/core/http.h"

#include <gtest/gtest.h>

namespace sluice::client {
namespace {

std::string parsed(const std::string& text, bool tls = false) {
  HttpAddress a;
  return parse_address(text, tls, &a) ? a.text() : "";
}

TEST(Addresses, HaveASchemeAndAPort) {
  EXPECT_EQ(parsed("pool"), "http://pool:9123");
  EXPECT_EQ(parsed("pool", true), "https://pool:9123");
  EXPECT_EQ(parsed("http://pool:1", true), "http://pool:1");
  EXPECT_EQ(parsed("https://10.0.0.1:443/"), "https://10.0.0.1:443");
  EXPECT_EQ(parsed("[::1]:9"), "http://[::1]:9");
  EXPECT_EQ(parsed("https://[fe80::1]"), "https://[fe80::1]:9123");
  for (const char* bad : {"", ":1", "pool:", "pool:x", "pool:123456", "a b", "ftp://pool", "a/b:1",
                          "user@pool:1", "https://"})
    EXPECT_EQ(parsed(bad), "") << bad;
}

bool answer(const std::string& raw, bool ended, HttpAnswer* a) {
  return parse_answer(raw, ended, a);
}

TEST(Answers, AreWhole) {
  HttpAnswer a;
  const std::string head = "HTTP/1.1 409 Conflict\r\ncontent-type: x\r\nRetry-After: 3\r\n";
  ASSERT_TRUE(answer(head + "Content-Length: 2\r\n\r\n{}", false, &a));
  EXPECT_EQ(a.status, 409);
  EXPECT_EQ(a.body, "{}");
  EXPECT_EQ(a.retry_after, 3);
  EXPECT_FALSE(answer(head + "content-length: 3\r\n\r\n{}", true, &a)) << "cut short";
  EXPECT_FALSE(answer(head + "\r\n{}", false, &a)) << "more may come";
  EXPECT_TRUE(answer(head + "\r\n{}", true, &a));
  EXPECT_FALSE(answer(head, true, &a));
  EXPECT_FALSE(answer("SSH-2.0-OpenSSH\r\n\r\n", true, &a));
  const std::string chunks = head + "Transfer-Encoding: chunked\r\n\r\n";
  ASSERT_TRUE(answer(chunks + "4\r\nabcd\r\n1\r\ne\r\n0\r\n\r\n", false, &a));
  EXPECT_EQ(a.body, "abcde");
  EXPECT_FALSE(answer(chunks + "4\r\nabcd\r\nff\r\ne\r\n", true, &a));
  EXPECT_FALSE(answer(chunks + "4\r\nab", true, &a));
}

// Such an answer would be taken for one without a body.
TEST(Answers, HaveNumbersWhereHttpHasThem) {
  HttpAnswer a;
  const auto says = [&](const std::string& status, const std::string& headers,
                        const std::string& body) {
    return answer("HTTP/1.1 " + status + "\r\n" + headers + "\r\n" + body, true, &a);
  };
  ASSERT_TRUE(says("200 OK", "Content-Length: 2 \t\r\n", "{}"));
  for (const char* status : {"OK", "2x0 OK", "-20 OK", "20"})
    EXPECT_FALSE(says(status, "Content-Length: 2\r\n", "{}")) << status;
  for (const char* length : {"two", "2 bytes", "-2", "0x2", "99999999999999999999"})
    EXPECT_FALSE(says("200 OK", std::string("Content-Length: ") + length + "\r\n", "{}")) << length;
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  EXPECT_TRUE(says("200 OK", chunked, "2;part=1\r\n{}\r\n0\r\n\r\n"));
  EXPECT_EQ(a.body, "{}");
  for (const char* size : {"", "none", "-2", "2{", "fffffffffffffffff"})
    EXPECT_FALSE(says("200 OK", chunked, std::string(size) + "\r\n{}\r\n0\r\n\r\n")) << size;
  ASSERT_TRUE(says("503 Later", "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT\r\n", ""));
  EXPECT_EQ(a.retry_after, 0);
}

TEST(Answers, NameAnotherPlace) {
  HttpAnswer a;
  ASSERT_TRUE(
      answer("HTTP/1.1 307 T\r\nLOCATION:\t https://b:1/v1/sessions\r\nContent-Length: 0"
             "\r\n\r\n",
             false, &a));
  EXPECT_EQ(a.status, 307);
  EXPECT_EQ(a.location, "https://b:1/v1/sessions");
}

}  // namespace
}  // namespace sluice::client

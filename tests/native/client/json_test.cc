// SPDX-License-Identifier: Apache-2.0
// What a controller answers, and what it would not.
#include "client/core/json.h"

#include <gtest/gtest.h>

namespace sluice::client {
namespace {

TEST(Json, MembersAreFoundByNameAndNothingElseIsTakenForOne) {
  const JsonObject json(R"( {"node":"key", "key":"k1", "port": 9960 ,"tls":true,"none":null,
      "inner":{"key":"k2","port":[1,{"port":"x"}]},"line":"\"key\": \"k3\""} )");
  EXPECT_EQ(json.text("key"), "k1");
  EXPECT_EQ(json.text("node"), "key");
  EXPECT_EQ(json.text("port"), "9960");
  EXPECT_EQ(json.text("tls"), "true");
  EXPECT_EQ(json.text("none"), "");
  EXPECT_EQ(json.text("inner"), "");
  EXPECT_EQ(json.text("absent"), "");
  EXPECT_EQ(json.text("line"), R"("key": "k3")");
}

TEST(Json, StringsHaveTheirEscapes) {
  const JsonObject json(R"({"a":"\"\\\/\b\f\n\r\t","b":"\u0041\u00e9\u20ac\ud83d\ude00","é":"ü"})");
  EXPECT_EQ(json.text("a"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(json.text("b"), "Aé€😀");
  EXPECT_EQ(json.text("é"), "ü");
}

TEST(Json, NumbersStayAsTheyStand) {
  const JsonObject json(R"({"a":-0,"b":1.50,"c":2e+3,"d":-1E9,"e":18446744073709551616})");
  for (const auto& [name, value] : {std::pair{"a", "-0"},
                                    {"b", "1.50"},
                                    {"c", "2e+3"},
                                    {"d", "-1E9"},
                                    {"e", "18446744073709551616"}})
    EXPECT_EQ(json.text(name), value);
}

TEST(Json, WhatIsNoneHasNoMembers) {
  for (const char* text : {"",
                           " ",
                           "null",
                           "[]",
                           "\"a\"",
                           R"({"a":1)",
                           R"({"a":1}x)",
                           R"({"a":1,})",
                           R"({"a" 1})",
                           R"({a:1})",
                           R"({"a":01})",
                           R"({"a":1.})",
                           R"({"a":.5})",
                           R"({"a":1e})",
                           R"({"a":-})",
                           R"({"a":+1})",
                           R"({"a":tru})",
                           R"({"a":"b)",
                           R"({"a":"\x"})",
                           R"({"a":"\u00g0"})",
                           R"({"a":"\ud800"})",
                           R"({"a":"\ud800\u0041"})",
                           R"({"a":"\udc00"})",
                           "{\"a\":\"\n\"}",
                           R"({"a":"\)",
                           R"({"a":"\u00)",
                           R"({"a":[1,]})",
                           R"({"a":[1})",
                           R"({"a":1}{"a":2})"})
    EXPECT_EQ(JsonObject(text).text("a"), "") << text;
}

TEST(Json, ObjectsInAnArrayAreRead) {
  const JsonObject body(R"({"parts": [ {"key":"a","n":1}, 2, {"key":"b","parts":[{"key":"c"}]} ],
                            "none":[], "word":"[{}]", "object":{"parts":[{"key":"d"}]}})");
  const auto& parts = body.objects("parts");
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].text("key"), "a");
  EXPECT_EQ(parts[0].text("n"), "1");
  EXPECT_EQ(parts[1].text("key"), "b");
  ASSERT_EQ(parts[1].objects("parts").size(), 1u);
  EXPECT_EQ(parts[1].objects("parts")[0].text("key"), "c");
  for (const char* other : {"none", "word", "object", "missing"})
    EXPECT_TRUE(body.objects(other).empty()) << other;
  EXPECT_TRUE(JsonObject(R"({"parts":[{"key":"a"}],})").objects("parts").empty())
      << "of what is no JSON nothing is read";
}

TEST(Json, DepthHasABound) {
  const auto nested = [](int depth) {
    return R"({"a":1,"b":)" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_EQ(JsonObject(nested(20)).text("a"), "1");
  EXPECT_EQ(JsonObject(nested(1'000'000)).text("a"), "") << "and no stack is used up";
}

}  // namespace
}  // namespace sluice::client

// SPDX-License-Identifier: Apache-2.0
// The members of a JSON object, such as a controller answers with (RFC 8259). What is no object, or
// no JSON, has none; what lies deeper is read over.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::client {

class JsonObject {
 public:
  explicit JsonObject(std::string_view text);

  // A member's string in UTF-8, or a number, true or false as it stands; "" for null, an object, an
  // array, and where there is none.
  const std::string& text(const std::string& name) const;
  // The objects of a member that is an array of objects; none where it is anything else.
  const std::vector<JsonObject>& objects(const std::string& name) const;

 private:
  std::map<std::string, std::string> members_;
  std::map<std::string, std::vector<JsonObject>> lists_;
};

}  // namespace sluice::client

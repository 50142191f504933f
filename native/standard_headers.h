// SPDX-License-Identifier: Apache-2.0
// What most files include of the standard library: precompiled where SLUICE_PRECOMPILE says so
// (CMakeLists.txt), and included by nothing else. A file includes what it uses itself, as other
// builds compile it without this.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

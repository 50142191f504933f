# SPDX-License-Identifier: Apache-2.0
# Builds the client libraries for every x86-64 glibc Linux from 2.28 on, with the compiler of the `ziglang` wheel.
#
#   cmake -S native -B build/guest -DCMAKE_TOOLCHAIN_FILE=packaging/zig-toolchain.cmake -DSLUICE_PYTHON=.venv/bin/python
#
# zig links its own libc++ statically, so that no C++ runtime of the guest is needed or disturbed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)

if(NOT DEFINED SLUICE_PYTHON)
  set(SLUICE_PYTHON "$ENV{SLUICE_PYTHON}")
endif()
if(NOT SLUICE_PYTHON)
  find_program(SLUICE_PYTHON NAMES python3 REQUIRED)
endif()
# try_compile runs this file again, without the cache.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SLUICE_PYTHON)

set(_sluice_target x86_64-linux-gnu.2.28)
execute_process(
  COMMAND ${SLUICE_PYTHON} -m ziglang version
  OUTPUT_VARIABLE _zig_version OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(SLUICE_COMPILER_IDENTITY zig-${_zig_version}-${_sluice_target})
foreach(_language C CXX)
  string(TOLOWER ${_language} _tool)
  if(_language STREQUAL "CXX")
    set(_tool "c++")
  else()
    set(_tool "cc")
  endif()
  # A script and not a list: CMake's archiver and dependency scanner want one file.
  set(_wrapper ${CMAKE_CURRENT_LIST_DIR}/../build/zig/${_tool})
  file(WRITE ${_wrapper} "#!/bin/sh\nexec \"${SLUICE_PYTHON}\" -m ziglang ${_tool} -target ${_sluice_target} \"$@\"\n")
  file(CHMOD ${_wrapper} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  set(CMAKE_${_language}_COMPILER ${_wrapper})
endforeach()
foreach(_tool ar ranlib)
  set(_wrapper ${CMAKE_CURRENT_LIST_DIR}/../build/zig/${_tool})
  file(WRITE ${_wrapper} "#!/bin/sh\nexec \"${SLUICE_PYTHON}\" -m ziglang ${_tool} \"$@\"\n")
  file(CHMOD ${_wrapper} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  string(TOUPPER ${_tool} _upper)
  set(CMAKE_${_upper} ${_wrapper})
endforeach()

# Baseline x86-64 with cmpxchg16b is what zig takes for a generic target; nothing of the build machine leaks in.
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE NEVER)

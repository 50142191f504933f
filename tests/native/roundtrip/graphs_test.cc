// SPDX-License-Identifier: Apache-2.0
// Graphs built by hand: what the application builds is what the driver receives.
#include "tests/native/roundtrip/graphs.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "wire/graph_commands.h"

namespace sluice::test {
namespace {

TEST_F(Graphs, KernelNodes) {
  const auto watch = watch_nodes();
  CUgraph graph = make_graph();
  CUgraphNode first = nullptr, second = nullptr;
  ASSERT_EQ(cuGraphAddEmptyNode(&first, graph, nullptr, 0), CUDA_SUCCESS);
  for (const bool library : {false, true}) {
    uint64_t a = next(), b = next();
    auto c = static_cast<uint32_t>(next());
    void* params[] = {&a, &b, &c};
    CUDA_KERNEL_NODE_PARAMS k{};
    if (library)
      k.kern = world().kernel;
    else
      k.func = world().function;
    k.gridDimX = 2, k.gridDimY = 3, k.gridDimZ = 4;
    k.blockDimX = 5, k.blockDimY = 6, k.blockDimZ = 7;
    k.sharedMemBytes = 128;
    k.kernelParams = params;
    ASSERT_EQ(cuGraphAddKernelNode_v2(&second, graph, &first, 1, &k), CUDA_SUCCESS);
    const auto& got = params_.kernel;
    EXPECT_EQ(params_.type, CU_GRAPH_NODE_TYPE_KERNEL);
    EXPECT_EQ(got.kern, library ? driver_of(world().kernel) : nullptr);
    EXPECT_EQ(got.func, library ? nullptr : driver_of(world().function));
    EXPECT_EQ(std::vector({got.gridDimX, got.gridDimY, got.gridDimZ}), std::vector({2u, 3u, 4u}));
    EXPECT_EQ(std::vector({got.blockDimX, got.blockDimY, got.blockDimZ}),
              std::vector({5u, 6u, 7u}));
    EXPECT_EQ(got.sharedMemBytes, 128u);
    ASSERT_EQ(kernel_params_.size(), 20u);
    EXPECT_EQ(std::memcmp(kernel_params_.data(), &a, 8), 0);
    EXPECT_EQ(std::memcmp(kernel_params_.data() + 8, &b, 8), 0);
    EXPECT_EQ(std::memcmp(kernel_params_.data() + 16, &c, 4), 0);
    EXPECT_EQ(after_.size(), 1u);
    k.gridDimX = 0;
    EXPECT_EQ(cuGraphAddKernelNode_v2(&second, graph, &first, 1, &k), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroyNode(first), CUDA_ERROR_INVALID_VALUE) << "it went with its graph";
}

TEST_F(Graphs, CopyAndFillNodes) {
  const auto watch = watch_nodes();
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 1 << 20, 0), CUDA_SUCCESS);
  CUgraph graph = make_graph();
  CUgraphNode node = nullptr;
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = pinned;
  c.srcXInBytes = 16, c.srcY = 2, c.srcPitch = 256;
  c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.dstDevice = world().memory;
  c.dstPitch = 512, c.dstHeight = 8;
  c.WidthInBytes = 100, c.Height = 3, c.Depth = 2;
  c.srcHeight = 4;
  ASSERT_EQ(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &c, world().contexts[0]), CUDA_SUCCESS);
  const CUDA_MEMCPY3D& m = params_.memcpy.copyParams;
  EXPECT_EQ(m.srcMemoryType, CU_MEMORYTYPE_HOST);
  EXPECT_EQ(m.srcHost, static_cast<char*>(pinned) + 2 * 256 + 16);
  EXPECT_EQ(m.dstMemoryType, CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(m.dstDevice, world().memory);
  EXPECT_EQ(m.srcPitch, 256u);
  EXPECT_EQ(m.dstPitch, 512u);
  EXPECT_EQ(m.srcHeight, 4u);
  EXPECT_EQ(m.dstHeight, 8u);
  EXPECT_EQ(m.WidthInBytes, 100u);
  EXPECT_EQ(m.Height, 3u);
  EXPECT_EQ(m.Depth, 2u);
  c.dstDevice = world().memory + (uint64_t{4} << 40);
  EXPECT_EQ(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &c, world().contexts[0]),
            CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMSET_NODE_PARAMS f{world().memory, 512, 7, 2, 100, 3};
  ASSERT_EQ(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &f, world().contexts[0]), CUDA_SUCCESS);
  EXPECT_EQ(params_.memset.dst, world().memory);
  EXPECT_EQ(params_.memset.value, 7u);
  EXPECT_EQ(params_.memset.elementSize, 2u);
  EXPECT_EQ(params_.memset.width, 100u);
  EXPECT_EQ(params_.memset.height, 3u);
  f.elementSize = 3;
  EXPECT_EQ(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &f, world().contexts[0]),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

// A host function is a word that the node writes, one that it waits for, and one that it takes
// back.
TEST_F(Graphs, HostNodesShakeHands) {
  const auto watch = watch_nodes();
  static int runs;
  runs = 0;
  CUgraph graph = make_graph();
  CUgraphNode node = nullptr;
  CUDA_HOST_NODE_PARAMS h{[](void* data) { runs += *static_cast<int*>(data); }, nullptr};
  int amount = 3;
  h.userData = &amount;
  ASSERT_EQ(cuGraphAddHostNode(&node, graph, nullptr, 0, &h), CUDA_SUCCESS);
  ASSERT_EQ(params_.type, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  ASSERT_EQ(operations_.size(), 3u);
  auto* ready = reinterpret_cast<std::atomic<uint64_t>*>(operations_[0].writeValue.address);
  auto* done = reinterpret_cast<std::atomic<uint64_t>*>(operations_[1].waitValue.address);
  EXPECT_EQ(operations_[0].writeValue.value64, 1u);
  EXPECT_EQ(operations_[1].operation, CU_STREAM_MEM_OP_WAIT_VALUE_64);
  EXPECT_EQ(operations_[2].writeValue.address, operations_[1].waitValue.address);
  EXPECT_EQ(operations_[2].writeValue.value64, 0u);
  CUgraphExec exec = nullptr, second = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  // Two that run at once must not take each other's words: the graph gets others for the second.
  std::vector<CUdeviceptr> renewed;
  ScopedAnswer renew(SLUICE_ON(cuGraphBatchMemOpNodeSetParams),
                     [&](CUgraphNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
                       for (unsigned i = 0; i < p->count; ++i)
                         renewed.push_back(p->paramArray[i].waitValue.address);
                       return CUDA_SUCCESS;
                     });
  ScopedAnswer held(SLUICE_ON(cuGraphBatchMemOpNodeGetParams),
                    [&](CUgraphNode, CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
                      p->count = static_cast<unsigned>(operations_.size());
                      p->paramArray = operations_.data();
                      return CUDA_SUCCESS;
                    });
  ASSERT_EQ(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(renewed.size(), 3u);
  EXPECT_NE(renewed[0], operations_[0].writeValue.address);
  EXPECT_EQ(renewed[1], renewed[0] + 8);
  EXPECT_EQ(renewed[2], renewed[0] + 8);
  ASSERT_EQ(cuGraphExecDestroy(second), CUDA_SUCCESS);
  for (int run = 1; run <= 5; ++run) {
    ASSERT_EQ(cuGraphLaunch(exec, world().stream), CUDA_SUCCESS);
    EXPECT_EQ(done->load(), 0u);
    ready->store(1);  // what the node does
    while (done->load() == 0) std::this_thread::yield();
    EXPECT_EQ(runs, 3 * run);
    EXPECT_EQ(ready->load(), 0u);
    done->store(0);
  }
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphExecDestroy(second), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

// What a graph holds on to ends with the last graph that was made of it.
// What cuGraphDebugDotPrint writes of a graph with these flags.
std::string drawn(CUgraph graph, unsigned flags) {
  const auto path =
      std::filesystem::temp_directory_path() / ("graph-" + std::to_string(getpid()) + ".dot");
  EXPECT_EQ(cuGraphDebugDotPrint(graph, path.c_str(), flags), CUDA_SUCCESS);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  return text.str();
}

TEST_F(Graphs, PicturesHaveWhatTheFlagsAskFor) {
  CUgraph graph = make_graph();
  CUgraphNode kernel = nullptr, fill = nullptr;
  uint64_t a = 0, b = 0;
  uint32_t c = 0;
  void* params[] = {&a, &b, &c};
  CUDA_KERNEL_NODE_PARAMS k{};
  k.func = world().function;
  k.gridDimX = 2, k.gridDimY = k.gridDimZ = 1;
  k.blockDimX = 32, k.blockDimY = k.blockDimZ = 1;
  k.kernelParams = params;
  ASSERT_EQ(cuGraphAddKernelNode_v2(&kernel, graph, nullptr, 0, &k), CUDA_SUCCESS);
  CUDA_MEMSET_NODE_PARAMS f{world().memory, 512, 7, 2, 100, 3};
  ASSERT_EQ(cuGraphAddMemsetNode(&fill, graph, &kernel, 1, &f, world().contexts[0]), CUDA_SUCCESS);

  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const std::string plain = drawn(graph, 0);
  EXPECT_TRUE(has(plain, "KERNEL")) << plain;
  EXPECT_TRUE(has(plain, "MEMSET")) << plain;
  EXPECT_FALSE(has(plain, "node: ")) << plain;
  EXPECT_FALSE(has(plain, "pitch")) << plain;
  const std::string handles = drawn(graph, CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES);
  EXPECT_TRUE(has(handles, "\\nnode: ")) << handles;
  EXPECT_TRUE(has(handles, "\\nfunction: ")) << handles;
  EXPECT_FALSE(has(handles, "pitch")) << handles;
  const std::string fills = drawn(graph, CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS);
  EXPECT_TRUE(has(fills, "\\npitch: 512")) << fills;
  EXPECT_FALSE(has(fills, "node: ")) << fills;
  const std::string all = drawn(graph, CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE);
  for (const char* part : {"\\nnode: ", "\\nfunction: ", "\\npitch: 512"})
    EXPECT_TRUE(has(all, part)) << all;
  EXPECT_EQ(cuGraphDebugDotPrint(graph, "/nowhere/graph.dot", 0), CUDA_ERROR_OPERATING_SYSTEM);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_F(Graphs, UserObjectsEndWithTheLastGraph) {
  static std::atomic<int> ended;
  ended = 0;
  CUuserObject object = nullptr;
  ASSERT_EQ(cuUserObjectCreate(
                &object, nullptr, [](void*) { ++ended; }, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
            CUDA_SUCCESS);
  CUgraph graph = make_graph();
  ASSERT_EQ(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphRetainUserObject(graph, object, 2, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphReleaseUserObject(graph, object, 4), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuGraphReleaseUserObject(graph, object, 1), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(ended, 0);
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  for (int i = 0; i < 60'000 && ended == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(cuUserObjectRetain(object, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Graphs, NodesAreTheirGraphsAlone) {
  CUgraph one = make_graph(), two = make_graph();
  CUgraphNode a = nullptr, b = nullptr;
  ASSERT_EQ(cuGraphAddEmptyNode(&a, one, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphAddEmptyNode(&b, two, &a, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuGraphAddEmptyNode(&b, two, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphAddDependencies_v2(one, &a, &b, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  CUgraphNode again = nullptr;
  size_t count = 1;
  ASSERT_EQ(cuGraphGetNodes(one, &again, &count), CUDA_SUCCESS);
  EXPECT_EQ(again, a) << "a node has one handle";
  EXPECT_EQ(count, 1u);
  CUgraphNodeType type;
  ASSERT_EQ(cuGraphNodeGetType(a, &type), CUDA_SUCCESS);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_EMPTY);
  ASSERT_EQ(cuGraphDestroyNode(a), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphNodeGetType(a, &type), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDestroy(one), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(two), CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test

// SPDX-License-Identifier: Apache-2.0
// What graph_node_types.cc needs of the library that it is part of, besides the three general
// functions of the driver API.
#pragma once

#include "abi/cuda_driver.h"

namespace sluice::graph_nodes {

// A node's parameters, if it is of that type; CUDA_ERROR_INVALID_VALUE if of another. Pointers in
// them are good until the node changes.
CUresult params_of(CUgraphNode node, CUgraphNodeType type, CUgraphNodeParams* params);

}  // namespace sluice::graph_nodes

// SPDX-License-Identifier: Apache-2.0
// The shape of graphs: nodes, edges, what is enabled.
#include "client/cudart/state.h"

using namespace sluice::cudart;

extern "C" {

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* numNodes) {
  return forward(cuGraphGetNodes, graph, nodes, numNodes);
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* pRootNodes,
                                  size_t* pNumRootNodes) {
  return forward(cuGraphGetRootNodes, graph, pRootNodes, pNumRootNodes);
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                              cudaGraphEdgeData* edgeData, size_t* numEdges) {
  return forward(cuGraphGetEdges_v2, graph, from, to, same<CUgraphEdgeData>(edgeData), numEdges);
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* pDependencies,
                                         cudaGraphEdgeData* edgeData, size_t* pNumDependencies) {
  return forward(cuGraphNodeGetDependencies_v2, node, pDependencies,
                 same<CUgraphEdgeData>(edgeData), pNumDependencies);
}

cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* pDependentNodes,
                                           cudaGraphEdgeData* edgeData,
                                           size_t* pNumDependentNodes) {
  return forward(cuGraphNodeGetDependentNodes_v2, node, pDependentNodes,
                 same<CUgraphEdgeData>(edgeData), pNumDependentNodes);
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData* edgeData,
                                     size_t numDependencies) {
  return forward(cuGraphAddDependencies_v2, graph, from, to, same<const CUgraphEdgeData>(edgeData),
                 numDependencies);
}

cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                        const cudaGraphNode_t* to,
                                        const cudaGraphEdgeData* edgeData, size_t numDependencies) {
  return forward(cuGraphRemoveDependencies_v2, graph, from, to,
                 same<const CUgraphEdgeData>(edgeData), numDependencies);
}

cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) { return forward(cuGraphDestroyNode, node); }

cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* pNode, cudaGraphNode_t originalNode,
                                     cudaGraph_t clonedGraph) {
  return forward(cuGraphNodeFindInClone, pNode, originalNode, clonedGraph);
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType* pType) {
  return forward(cuGraphNodeGetType, node, same<CUgraphNodeType>(pType));
}

cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode,
                                    unsigned int* isEnabled) {
  return forward(cuGraphNodeGetEnabled, hGraphExec, hNode, isEnabled);
}

cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode,
                                    unsigned int isEnabled) {
  return forward(cuGraphNodeSetEnabled, hGraphExec, hNode, isEnabled);
}

}  // extern "C"

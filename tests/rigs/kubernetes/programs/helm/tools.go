// SPDX-License-Identifier: Apache-2.0
// Helm as a program of the rig, from its module: names what the module is needed for.
package main

import _ "helm.sh/helm/v4/pkg/cmd"

func main() {}

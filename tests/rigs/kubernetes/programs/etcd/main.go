// SPDX-License-Identifier: Apache-2.0
// etcd as a program of the rig: its server's main, from its module.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }

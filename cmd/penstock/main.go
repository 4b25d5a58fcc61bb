// SPDX-License-Identifier: Apache-2.0

// Command penstock is the inference gateway. See penstock --help.
package main

import (
	"os"

	"github.com/penstock-project/penstock"
)

func main() { os.Exit(penstock.Main(os.Args[1:], os.Stdout, os.Stderr)) }

// SPDX-License-Identifier: Apache-2.0

//go:build race

package flow_test

func init() { racing = true }

// SPDX-License-Identifier: Apache-2.0

// Package observe answers: what happened?
//
// Stages return outcomes; this room alone turns them into metrics and log lines.
package observe

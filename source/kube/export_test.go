// SPDX-License-Identifier: Apache-2.0

package kube

import "testing"

// Server is an API server as far as we need one, for tests of the whole.
type Server struct{ *server }

// NewServer starts one.
func NewServer(t *testing.T) Server { return Server{newServer(t)} }

// Put creates or replaces an object.
func (s Server) Put(text string, a ...any) { s.put(text, a...) }

// Remove deletes an object that was put so.
func (s Server) Remove(text string, a ...any) { s.remove(text, a...) }

// Written is what was written since the last call.
func (s Server) Written() []string { return s.written() }

// What objects look like.
const APool, APod = aPool, aPod

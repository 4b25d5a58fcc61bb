// SPDX-License-Identifier: Apache-2.0

package request

// Scanner finds [Facts] in a request body while it arrives.
type Scanner struct{ facts Facts }

// Reset prepares for a body of an API.
func (s *Scanner) Reset(api API) { s.facts = Facts{Prompt: s.facts.Prompt[:0]} }

// Feed scans the next piece of the body. It does not keep p.
func (s *Scanner) Feed(p []byte) {}

// Finish tells what was found. The result is valid until the next Reset.
func (s *Scanner) Finish() *Facts { return &s.facts }

// SPDX-License-Identifier: Apache-2.0

package request

// PromptSink takes the prompts of a request as an engine's prefix cache would see them.
type PromptSink interface {
	// Start begins a new prompt; there may be several in one request, or none.
	Start()
	// Write takes the next bytes, four of which count as one token. It does not keep p.
	Write(p []byte)
}

// FeedPrompt gives the prompts of a scanned body to a sink.
func (f *Facts) FeedPrompt(b *Body, sink PromptSink) {}

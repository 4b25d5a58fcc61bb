// SPDX-License-Identifier: Apache-2.0

package request

import "github.com/cespare/xxhash/v2"

// MediaHashes appends the hash of each image, sound and video of the prompt, in its order: of a URL as it is
// written, or of the data itself. It may be called when FeedPrompt may.
func (f *Facts) MediaHashes(b *Body, into []uint64) []uint64 {
	if b.s == nil {
		return into
	}
	at := seeker{chunks: b.s.chunks}
	var hash xxhash.Digest
	for _, span := range f.Prompt {
		if span.Kind != Media || span.end() > b.size {
			continue
		}
		hash.Reset()
		for rest := span.Span; rest.Len > 0; {
			hash.Write(at.next(&rest))
		}
		into = append(into, hash.Sum64())
	}
	return into
}

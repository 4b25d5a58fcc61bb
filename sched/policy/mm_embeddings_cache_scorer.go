// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/penstock-project/penstock/sched"

// MMEmbeddingsCacheScorer prefers endpoints that have already encoded the request's images, sounds and videos.
//
// The score is the share of them that the endpoint has encoded, by what mm-embeddings-cache-producer remembers;
// 0 for all when the request has none. It needs no signal of the engines.
type MMEmbeddingsCacheScorer struct {
	// ProducerName names the producer to read; empty for the first.
	ProducerName string `json:"producerName"`
}

// Score implements [sched.Scorer].
func (p *MMEmbeddingsCacheScorer) Score(c *sched.Cycle, score []float64) {
	found := c.Encoded(p.ProducerName)
	items := float64(len(c.Items()))
	if found == nil || items == 0 {
		return
	}
	for i, m := range found.Match {
		score[i] = float64(m) / items
	}
}

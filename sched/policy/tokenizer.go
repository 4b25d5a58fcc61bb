// SPDX-License-Identifier: Apache-2.0

package policy

// Tokenizer is the deprecated name of token-producer.
type Tokenizer struct {
	TokenProducer
}

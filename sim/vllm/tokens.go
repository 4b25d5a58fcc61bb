// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"encoding/binary"
	"unicode/utf8"
)

// The tokenizer: a token is up to four bytes of UTF-8, a rune never split, and its id is these bytes
// read as a big-endian number. So it needs no table, goes both ways, gives about four characters a
// token in English and one in Chinese, and equal beginnings of a text are equal beginnings in tokens.
const tokenBytes = 4

// Special tokens begin with bytes that UTF-8 does not have.
const (
	imStart uint32 = 0xff000001 + iota
	imEnd
	imagePad
)

var special = map[uint32]string{imStart: "<|im_start|>", imEnd: "<|im_end|>", imagePad: "<|image_pad|>"}

// tokenize appends the tokens of the text.
func tokenize(tokens []uint32, text string) []uint32 {
	for len(text) > 0 {
		n := tokenLen(text)
		id := uint32(0)
		for i := range n {
			id = id<<8 | uint32(text[i])
		}
		tokens = append(tokens, id)
		text = text[n:]
	}
	return tokens
}

// tokenLen is the length in bytes of the first token of a text.
func tokenLen(text string) int {
	if text[0] == 0 {
		return 1 // a leading zero byte would be lost in the number
	}
	if len(text) <= tokenBytes {
		return len(text)
	}
	n := tokenBytes
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	if n == 0 {
		return tokenBytes // not UTF-8
	}
	return n
}

// detokenize appends the text of the tokens.
func detokenize(text []byte, tokens ...uint32) []byte {
	for _, id := range tokens {
		if name, ok := special[id]; ok {
			text = append(text, name...)
			continue
		}
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], id)
		i := 0
		for i < 3 && b[i] == 0 {
			i++
		}
		text = append(text, b[i:]...)
	}
	return text
}

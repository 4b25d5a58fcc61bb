// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"encoding/json"
	"strings"
)

// Transformers 5 makes the tokenizers of some models from vocabulary and merges alone: normalizer and pre-tokenizer come from a
// class of its own, whatever tokenizer.json says. Which class that is depends on tokenizer_class and, where that is generic or known to
// be wrong, on the model's type.

// distrusted are the types of models whose tokenizer_class transformers does not believe: it takes the class that it has for the type
// or, where it has none, tokenizer.json as it is (MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS of transformers 5.19).
var distrusted = setOf(`arctic chameleon chatlm deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 deepseek_vl deepseek_vl_hybrid
	deepseek_vl_v2 deepseek_ocr deepseek_ocr2 ernie4_5 ernie4_5_moe fuyu h2ovl_chat hyperclovax hyperclovax_vlm hyperclovax_vision_v2
	internlm2 jamba janus llava llava_next minicpm3 minicpmv minimax_m2 modernbert modernbert-decoder molmo molmo2 nemotron nvfp4 opencua
	openvla paddleocr_vl phi3 phi3_v phimoe qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp step3p5 step3_vl vipllava cohere_asr
	camembertv2-base smolvlm`)

// trusted are the classes of distrusted types that are not generic.
var trusted = map[string]string{"qwen2": "Qwen2Tokenizer", "qwen3_5": "Qwen3_5Tokenizer", "qwen3_5_moe": "Qwen3_5Tokenizer",
	"qwen3_5_moe_text": "Qwen3_5Tokenizer", "qwen4_exp": "Qwen3_5Tokenizer"}

// remade are the classes that remake knows.
var remade = setOf("LlamaTokenizer Qwen2Tokenizer Qwen3_5Tokenizer GPT2Tokenizer")

func setOf(names string) map[string]bool {
	set := map[string]bool{}
	for _, name := range strings.Fields(names) {
		set[name] = true
	}
	return set
}

// class is the class that transformers takes; empty for the generic one, which takes tokenizer.json as it is.
func (c *config) class() string {
	if distrusted[c.modelType] && c.Class != "" {
		return trusted[c.modelType]
	}
	return strings.TrimSuffix(c.Class, "Fast")
}

// remake puts the normalizer and the pre-tokenizer of the class in place of the file's, where it has its own.
func (c *config) remake(j *tokenizerJSON) {
	const (
		nfc   = `{"type":"NFC"}`
		qwen2 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		qwen3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	)
	switch c.class() {
	case "LlamaTokenizer": // which differs from most files in where it puts the first space
		j.Normalizer = nil
		j.PreTokenizer = json.RawMessage(`{"type":"Metaspace","replacement":"▁","split":false,"prepend_scheme":"` + c.scheme() + `"}`)
	case "Qwen2Tokenizer":
		j.Normalizer, j.PreTokenizer = json.RawMessage(nfc), c.splitting(qwen2)
	case "Qwen3_5Tokenizer":
		j.Normalizer, j.PreTokenizer = json.RawMessage(nfc), c.splitting(qwen3)
	case "GPT2Tokenizer":
		j.Normalizer = nil
		j.PreTokenizer = json.RawMessage(`{"type":"ByteLevel","use_regex":true,"add_prefix_space":` + c.prefixes() + `}`)
	}
}

// splitting cuts by a pattern and goes on in bytes.
func (c *config) splitting(pattern string) json.RawMessage {
	text, _ := json.Marshal(pattern)
	return json.RawMessage(`{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":` + string(text) +
		`},"behavior":"Isolated","invert":false},{"type":"ByteLevel","use_regex":false,"add_prefix_space":` + c.prefixes() + `}]}`)
}

func (c *config) prefixes() string {
	if truth(c.AddPrefixSpace, false) {
		return "true"
	}
	return "false"
}

// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
)

// TokenProducer turns the prompt into tokens, or says how many they are about.
//
// With local it reads the model's own tokenizer and chat template in this process; with vllm it asks a vLLM server that renders
// prompts. Where that fails, for one request or for all, and without either, it estimates: four bytes of text count
// as one token, token ids as themselves, and an image, sound or video as many as estimate.image says. A step down is counted in
// penstock_tokenizer_requests_total. At most one of the four tokenizers is given.
type TokenProducer struct {
	// ModelName is the model that the vLLM server is asked for, if not the request's.
	ModelName string `json:"modelName"`
	// VLLM is a vLLM server that renders prompts into tokens.
	VLLM *RenderService `json:"vllm"`
	// UDSTokenizerConfig is the deprecated tokenizer service. It is accepted and not active: prompts are estimated.
	UDSTokenizerConfig *TokenizerService `json:"udsTokenizerConfig"`
	// Local is a tokenizer in this process.
	Local *LocalTokenizer `json:"local"`
	// Simulated is the tokenizer of penstock's simulated engines, when true.
	Simulated bool `json:"simulated"`
	// Estimate says how media count.
	Estimate *Estimate `json:"estimate"`

	perItem int64 // tokens of an image, sound or video above those that the prompt counts
	reads   string
	reader  Tokenizing
	bodies  sync.Pool // *[]byte
}

// Tokenizing reads the prompts of a request as its engine will. The error says why it cannot, and begins with a word for
// counters: see [Untold].
type Tokenizing interface {
	Tokenize(c *sched.Cycle, body []byte) error
}

// Untold is an error of a [Tokenizing], by the word that counts it.
type Untold struct {
	Why string
	Err error
}

// Error implements error.
func (u *Untold) Error() string { return u.Why + ": " + u.Err.Error() }

// Unwrap gives the cause.
func (u *Untold) Unwrap() error { return u.Err }

// Use has prompts read by r, which is called name in counters.
func (p *TokenProducer) Use(name string, r Tokenizing) { p.reads, p.reader = name, r }

// Tokens is the producer itself, also where it is embedded.
func (p *TokenProducer) Tokens() *TokenProducer { return p }

// RenderService is a vLLM server that renders prompts into tokens.
type RenderService struct {
	// URL is its address, http://localhost:8000 when left out; of `vllm launch render`, or of `vllm serve` with --enable-scale-out,
	// without which vLLM 0.32 forbids to render and only /tokenize answers, for one text or chat at a time.
	URL string `json:"url"`
	// Timeout bounds a call, such as 5s, which it is when left out.
	Timeout string `json:"timeout"`
	// MMTimeout bounds one with media; 30s when left out.
	MMTimeout string `json:"mmTimeout"`
}

// Options are the server's address, and how long a call may take: without media, and with.
func (s *RenderService) Options() (url string, timeouts [2]time.Duration) {
	for i, t := range [2]string{s.Timeout, s.MMTimeout} {
		timeouts[i], _ = time.ParseDuration(t) // which Validate did; 0 takes the usual
	}
	return cmp.Or(s.URL, "http://localhost:8000"), timeouts
}

// TokenizerService is a tokenizer behind gRPC.
type TokenizerService struct {
	// SocketFile is its Unix socket.
	SocketFile string `json:"socketFile"`
	// UseTCP takes SocketFile as host:port.
	UseTCP bool `json:"useTCP"`
	// ModelTokenizerMap names the tokenizer of each model.
	ModelTokenizerMap map[string]string `json:"modelTokenizerMap"`
}

// LocalTokenizer is a tokenizer in this process.
type LocalTokenizer struct {
	// Path is the model's folder as on the hub, with its tokenizer.json and its chat template, or a tokenizer.json alone.
	Path string `json:"path"`
}

// Estimate says how media count.
type Estimate struct {
	Image *ImageEstimate `json:"image"`
	Video *VideoEstimate `json:"video"`
}

// ImageEstimate says how many tokens an image has: width · height / factor of its default resolution, or a
// fixed number.
type ImageEstimate struct {
	// Mode is dynamic, which is the default, or static.
	Mode              string         `json:"mode"`
	DefaultResolution *Resolution    `json:"defaultResolution"` // 640×360 when left out
	Dynamic           *PixelsToToken `json:"dynamic"`
	Static            *StaticImage   `json:"static"`
}

// Resolution is in pixels.
type Resolution struct {
	Width  int64 `json:"width"`
	Height int64 `json:"height"`
}

// PixelsToToken is how many pixels make a token, 1024 when left out.
type PixelsToToken struct {
	Factor int64 `json:"factor"`
}

// StaticImage is a fixed number of tokens.
type StaticImage struct {
	StaticToken int64 `json:"staticToken"`
}

// VideoEstimate says how many tokens a video has. It has no effect yet: a video counts as an image.
type VideoEstimate struct {
	TokensPerFrame *struct {
		Mode    string         `json:"mode"`
		Dynamic *PixelsToToken `json:"dynamic"`
		Static  *struct {
			NumTokensPerFrame int64 `json:"numTokensPerFrame"`
		} `json:"static"`
	} `json:"tokensPerFrame"`
	Frames *struct {
		Mode      string `json:"mode"`
		MinFrames int64  `json:"minFrames"`
		MaxFrames int64  `json:"maxFrames"`
		Sampled   *struct {
			SampleFPS         float64 `json:"sampleFPS"`
			TemporalPatchSize int64   `json:"temporalPatchSize"`
		} `json:"sampled"`
		Strided *struct {
			DefaultSourceFPS float64 `json:"defaultSourceFPS"`
			FrameStride      int64   `json:"frameStride"`
		} `json:"strided"`
	} `json:"frames"`
	DefaultResolution *Resolution `json:"defaultResolution"`
	DefaultDuration   float64     `json:"defaultDuration"`
	MaxVideoTokens    int64       `json:"maxVideoTokens"`
}

// mediaTokens is what an image, sound or video counts for in a prompt as it is hashed: 640×360 pixels of which 1,024
// make a token.
const mediaTokens = 225

// Validate reports several tokenizers, times that are none and images that cannot be.
func (p *TokenProducer) Validate() error {
	var given []string
	for _, b := range []struct {
		name string
		is   bool
	}{{"vllm", p.VLLM != nil}, {"udsTokenizerConfig", p.UDSTokenizerConfig != nil}, {"local", p.Local != nil}, {"simulated", p.Simulated}, {"estimate", p.Estimate != nil}} {
		if b.is {
			given = append(given, b.name)
		}
	}
	if len(given) > 1 {
		return fmt.Errorf("%s: want one tokenizer, got %s as well", given[1], given[0])
	}
	if p.VLLM != nil {
		for _, t := range [...]struct{ name, value string }{{"timeout", p.VLLM.Timeout}, {"mmTimeout", p.VLLM.MMTimeout}} {
			if d, err := time.ParseDuration(t.value); t.value != "" && (err != nil || d <= 0) {
				return fmt.Errorf("vllm.%s: want a duration such as 5s, got %.100q", t.name, t.value)
			}
		}
	}
	if p.Local != nil && p.Local.Path == "" {
		return errors.New("local.path: is missing: want the model's folder, with its tokenizer.json")
	}
	if p.Estimate != nil && p.Estimate.Image != nil {
		n, err := p.Estimate.Image.tokens()
		if err != nil {
			return err
		}
		p.perItem = n - mediaTokens
	}
	return nil
}

// tokens is what an image counts for.
func (e *ImageEstimate) tokens() (int64, error) {
	const most = 1 << 16
	r, factor := Resolution{640, 360}, int64(1024)
	if e.DefaultResolution != nil {
		r = *e.DefaultResolution
	}
	if e.Dynamic != nil && e.Dynamic.Factor != 0 {
		factor = e.Dynamic.Factor
	}
	switch {
	case e.Mode != "" && e.Mode != "dynamic" && e.Mode != "static":
		return 0, fmt.Errorf("estimate.image.mode: want dynamic or static, got %.100q", e.Mode)
	case r.Width < 1 || r.Height < 1 || r.Width > most || r.Height > most:
		return 0, errors.New("estimate.image.defaultResolution: want a width and a height from 1 to 65536")
	case factor < 1:
		return 0, errors.New("estimate.image.dynamic.factor: must be above 0")
	case e.Static != nil && (e.Static.StaticToken < 0 || e.Static.StaticToken > 1<<20):
		return 0, errors.New("estimate.image.static.staticToken: must be from 0 to 1048576")
	case e.Mode == "static" && e.Static != nil:
		return max(1, e.Static.StaticToken), nil
	case e.Mode == "static":
		return 1, nil
	}
	return max(1, r.Width*r.Height/factor), nil
}

// Inactive tells which parameters have no effect yet.
func (p *TokenProducer) Inactive() []string {
	switch {
	case p.UDSTokenizerConfig != nil:
		return []string{"udsTokenizerConfig: accepted, not active: tokens are estimated, four bytes of text to one; want local or vllm"}
	case p.Estimate != nil && p.Estimate.Video != nil:
		return []string{"estimate.video: accepted, not active yet: a video counts as an image"}
	}
	return nil
}

// Produce implements [sched.Producer].
func (p *TokenProducer) Produce(c *sched.Cycle) {
	if p.reader != nil && c.Body != nil && !c.Tokenized() {
		body, _ := p.bodies.Get().(*[]byte)
		if body == nil {
			body = new([]byte)
		}
		*body = c.Body.Append((*body)[:0])
		err := p.reader.Tokenize(c, *body)
		if cap(*body) <= mostBody {
			p.bodies.Put(body)
		}
		if err == nil && c.Tokenized() {
			c.Tokens, c.Tokenizer = int64(len(c.Prompts.IDs)), p.reads
			return
		}
		c.Prompts.IDs, c.Prompts.Starts, c.Prompts.Media = c.Prompts.IDs[:0], c.Prompts.Starts[:0], c.Prompts.Media[:0]
		c.Tokenizer, c.Untold = "estimate", "no-prompt"
		var untold *Untold
		switch {
		case errors.As(err, &untold):
			c.Untold = untold.Why
		case err != nil:
			c.Untold = "error"
		}
	}
	if c.Tokens > 0 || c.Prompt == nil {
		return
	}
	if c.Tokenizer == "" {
		c.Tokenizer = "estimate"
	}
	c.Tokens = c.Hash(kvcache.MinBlockTokens, usualBlocks).Tokens() // the keys that prefix producers mostly ask for
	if p.perItem != 0 {
		c.Tokens = max(1, c.Tokens+p.perItem*int64(len(c.Items())))
	}
}

// mostBody is how many bytes of a body's copy are kept for the next.
const mostBody = 1 << 20

// usualBlocks is how many blocks of a prompt prefix producers look at by default.
const usualBlocks = 2048

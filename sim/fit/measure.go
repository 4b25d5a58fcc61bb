// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/sim/load"
)

// Options say what is measured.
type Options struct {
	Client load.Client
	Model  string
	// Prompts are the lengths, in tokens, for which the first token is timed, and Seqs how many answers are generated at
	// once, with short and with long prompts.
	Prompts, Seqs []int
	// Answer is the length of an answer, which is longer where answers would not overlap otherwise; Tries how often each prompt is timed.
	Answer, Tries int
	// Budget is how many tokens the engine computes in a step at most, its max-num-batched-tokens.
	Budget int
	// Extra are more members of request bodies, as JSON, such as {"ignore_eos":true}.
	Extra string
	Seed  uint64
	// Say is told of each measurement.
	Say func(format string, a ...any)
}

// words are one token each to most tokenizers, and to that of sim/vllm.
var words = strings.Fields("the and for you not but his her had was are one all can out who its now see two way how did get may say she use new day old any boy own man men put too end far few got let off run set sit six ten top try war yes act add age ago air art ask bad bag bed big bit box bus buy car cut dog eat eye fly fun hit hot job key law lay leg lie low map")

// body is a request with a prompt of about so many tokens that no cache knows.
func (o *Options) body(chance *rand.Rand, tokens, answer int) ([]byte, error) {
	var b strings.Builder
	for i := range max(1, tokens) {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[chance.IntN(len(words))])
	}
	v := map[string]any{}
	if o.Extra != "" {
		if err := json.Unmarshal([]byte(o.Extra), &v); err != nil {
			return nil, fmt.Errorf("extra body: %w", err)
		}
	}
	v["model"], v["max_tokens"], v["stream"], v["temperature"] = o.Model, answer, true, 0
	v["messages"] = []map[string]string{{"role": "user", "content": b.String()}}
	v["stream_options"] = map[string]bool{"include_usage": true}
	return json.Marshal(v)
}

// ask sends one request and wants a whole answer.
func (o *Options) ask(ctx context.Context, body []byte) (*load.Answer, error) {
	a := &load.Answer{}
	o.Client.Send(ctx, load.Ask{Length: int64(len(body)), Body: func() io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) }}, a)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case a.Fault != "":
		return nil, fmt.Errorf("%s: %s", a.Fault, a.Said)
	case a.First().IsZero():
		return nil, errors.New("an answer without output")
	case a.Usage.Prompt <= 0:
		return nil, errors.New("the server does not tell how many tokens it read: want a usage at the end of streams")
	}
	return a, nil
}

// Measure times a server. It should have nothing else to do.
func Measure(ctx context.Context, o Options) ([]Sample, error) {
	chance := rand.New(rand.NewPCG(o.Seed, 0))
	warm, err := o.body(chance, 16, 2)
	if err != nil {
		return nil, err
	}
	for range 2 { // the first request opens a connection, and may compile something
		if _, err := o.ask(ctx, warm); err != nil {
			return nil, err
		}
	}
	var out []Sample
	for _, tokens := range o.Prompts {
		var took []time.Duration
		prompt := 0
		for range o.Tries {
			body, err := o.body(chance, tokens, 1)
			if err != nil {
				return nil, err
			}
			a, err := o.ask(ctx, body)
			if err != nil {
				return nil, fmt.Errorf("a prompt of %d tokens: %w", tokens, err)
			}
			prompt = a.Usage.Prompt
			took = append(took, a.First().Sub(a.Sent))
		}
		t := median(took)
		o.say("prompt of %d tokens: first token after %s", prompt, t.Round(10*time.Microsecond))
		out = append(out, First(prompt, o.Budget, t))
	}
	for _, seqs := range o.Seqs {
		for _, tokens := range []int{o.Prompts[0], o.Prompts[len(o.Prompts)-1] / 2} {
			s, err := o.together(ctx, chance, seqs, tokens)
			if err != nil {
				return nil, fmt.Errorf("%d at once: %w", seqs, err)
			}
			out = append(out, s)
		}
	}
	return out, nil
}

// together times the tokens of so many answers that are generated at once. Where reading the prompts takes so long that the first
// ends before the last has begun, answers get longer.
func (o *Options) together(ctx context.Context, chance *rand.Rand, seqs, tokens int) (Sample, error) {
	for answer := o.Answer; ; answer *= 2 {
		s, enough, err := o.atOnce(ctx, chance, seqs, tokens, answer)
		if enough || err != nil {
			return s, err
		}
		if answer > longest*o.Answer/2 {
			return s, fmt.Errorf("with prompts of %d tokens even answers of %d hardly overlap: want longer ones, or fewer at once", tokens, answer)
		}
	}
}

// longest is by how much answers may get longer to overlap.
const longest = 16

// atOnce does so with answers of one length, and reports whether enough was generated while all were.
func (o *Options) atOnce(ctx context.Context, chance *rand.Rand, seqs, tokens, answer int) (_ Sample, enough bool, _ error) {
	answers, errs := make([]*load.Answer, seqs), make([]error, seqs)
	var wg sync.WaitGroup
	for i := range seqs {
		body, err := o.body(chance, tokens, answer)
		if err != nil {
			return Sample{}, false, err
		}
		wg.Go(func() { answers[i], errs[i] = o.ask(ctx, body) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return Sample{}, false, err
	}
	from, to, context := time.Time{}, answers[0].Last, 0.0
	for _, a := range answers {
		if a.First().After(from) {
			from = a.First()
		}
		if a.Last.Before(to) {
			to = a.Last
		}
		context += float64(a.Usage.Prompt) / float64(seqs)
	}
	var gaps []time.Duration
	for _, a := range answers {
		for i := 1; i < len(a.Arrivals); i++ {
			was, is := a.Arrivals[i-1], a.Arrivals[i]
			if n := is.Events - was.Events; n > 0 && !was.At.Before(from) && !is.At.After(to) {
				gaps = append(gaps, is.At.Sub(was.At)/time.Duration(n))
			}
		}
	}
	if len(gaps) < 4 {
		return Sample{}, false, nil
	}
	t := median(gaps)
	context += float64(answer) / 2
	o.say("%d answers at once, of about %.0f tokens of context: a token every %s", seqs, context, t.Round(10*time.Microsecond))
	return Next(seqs, context, t), true, nil
}

func (o *Options) say(format string, a ...any) {
	if o.Say != nil {
		o.Say(format, a...)
	}
}

var (
	cacheInfo = regexp.MustCompile(`(?m)^vllm:cache_config_info\{([^\n]*)\}`)
	infoOf    = regexp.MustCompile(`(block_size|num_gpu_blocks)="(\d+)"`)
)

// Cache reads the size of a vLLM server's KV cache off its metrics page: tokens in a block, and blocks. Both are 0 where it
// does not tell.
func Cache(ctx context.Context, client *http.Client, url string) (block, blocks int) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return 0, 0
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, 0
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil || resp.StatusCode != http.StatusOK {
		return 0, 0
	}
	info := cacheInfo.FindSubmatch(page)
	if info == nil {
		return 0, 0
	}
	for _, m := range infoOf.FindAllSubmatch(info[1], -1) {
		n, _ := strconv.Atoi(string(m[2]))
		if string(m[1]) == "block_size" {
			block = n
		} else {
			blocks = n
		}
	}
	return block, blocks
}

// Write writes what was found as a fleet's file for penstock sim run.
func Write(w io.Writer, r Result, count, block, blocks, budget int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Fitted: measured times are %.1f %% off in the mean, %.1f %% at worst. Beside the engine a request took %s.\n", 100*r.Off, 100*r.Worst, r.Call.Round(10*time.Microsecond))
	fmt.Fprintf(&b, "- kind: laptop # all constants but the batch's size are replaced\n  count: %d\n  overrides:\n", count)
	add := func(name string, v any) { fmt.Fprintf(&b, "    %s: %v\n", name, v) }
	if block > 0 && blocks > 0 {
		add("block-size", block)
		add("num-blocks", blocks)
	}
	add("max-num-batched-tokens", budget)
	for _, x := range []struct {
		name string
		d    time.Duration
	}{
		{"step-time", r.Timing.Base.Round(time.Microsecond)}, {"prefill-time-per-token", r.Timing.PerPrefillToken}, {"time-per-seq", r.Timing.PerSeq},
		{"time-per-kv-token", r.Timing.PerKVToken}, {"time-per-million-pairs", r.Timing.PerMPairs.Round(time.Microsecond)},
	} {
		add(x.name, max(x.d, time.Nanosecond)) // 0 would be the kind's own
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Ascending reports whether numbers are above 0 and rise.
func Ascending(list []int) bool {
	return len(list) > 0 && list[0] > 0 && slices.IsSorted(list) && len(slices.Compact(slices.Clone(list))) == len(list)
}

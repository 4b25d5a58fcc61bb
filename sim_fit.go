// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sim/fit"
	"github.com/penstock-project/penstock/sim/load"
)

func simFit(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flags("sim fit", "--url URL [flags]", `Measures an engine that has nothing else to do, at a few loads, and finds the constants of a simulated engine that is as fast.
What it writes is a fleet's file for penstock sim run --fleet.`, stdout)
	url := fs.String("url", "", "where the engine's API is, such as http://localhost:8000")
	o := fit.Options{}
	fs.StringVar(&o.Model, "model", "", "model to ask for (default the first that the server lists)")
	fs.IntSliceVar(&o.Prompts, "prompts", []int{64, 256, 1024, 2048, 4096}, "lengths of prompts, in tokens, for which the first token is timed")
	fs.IntSliceVar(&o.Seqs, "seqs", []int{1, 2, 4, 8, 16}, "how many answers are generated at once")
	fs.IntVar(&o.Answer, "answer", 64, "tokens of each of these")
	fs.IntVar(&o.Tries, "tries", 3, "how often each prompt is timed; the median counts")
	fs.IntVar(&o.Budget, "max-num-batched-tokens", 2048, "the engine's flag of that name: the most tokens in a step")
	fs.StringVar(&o.Extra, "extra-body", `{"ignore_eos":true}`, "more members of the request bodies")
	fs.Uint64Var(&o.Seed, "seed", 0, "chooses the words of prompts (default new ones each time, which no cache knows)")
	count := fs.Int("count", 1, "endpoints in the file")
	out := fs.String("out", "-", "file to write the fleet to; - for stdout")
	timeout := fs.Duration("timeout", 5*time.Minute, "longest that a request may take")
	if err := parse(fs, args); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return misused("unexpected argument %q", fs.Arg(0))
	case *url == "":
		return misused("--url is required: where is the engine?")
	case !fit.Ascending(o.Prompts) || len(o.Prompts) < 3:
		return misused("--prompts: want three lengths or more, from short to long")
	case !fit.Ascending(o.Seqs) || len(o.Seqs) < 2:
		return misused("--seqs: want two numbers or more, from few to many")
	case o.Answer < 8 || o.Tries < 1 || o.Budget < 1 || *count < 1 || *timeout <= 0:
		return misused("want --answer of at least 8, --tries, --max-num-batched-tokens, --count and --timeout above 0")
	case !json.Valid([]byte(o.Extra)):
		return misused(`--extra-body %s: want a JSON object, such as {"ignore_eos":true}`, o.Extra)
	}
	base, err := load.Base(*url)
	if err != nil {
		return misused("--url: %v", err)
	}
	transport := load.NewTransport(o.Seqs[len(o.Seqs)-1], nil, false)
	defer transport.CloseIdleConnections()
	o.Client = load.Client{URL: base, API: request.Chat, HTTP: &http.Client{Transport: transport}, Timeout: *timeout}
	if key := os.Getenv("OPENAI_API_KEY"); key != "" {
		o.Client.Header = http.Header{"Authorization": {"Bearer " + key}}
	}
	models, err := o.Client.Models(ctx, 0)
	if err != nil {
		return err
	}
	if o.Model == "" && len(models) > 0 {
		o.Model = models[0]
	}
	if o.Model == "" {
		return misused("--model is required: %s does not list any", base)
	}
	if !fs.Changed("seed") {
		o.Seed = uint64(time.Now().UnixNano())
	}
	o.Say = func(format string, a ...any) { fmt.Fprintf(stderr, strings.TrimSuffix(format, "\n")+"\n", a...) }
	samples, err := fit.Measure(ctx, o)
	if err != nil {
		return err
	}
	block, blocks := fit.Cache(ctx, o.Client.HTTP, base)
	if blocks == 0 {
		fmt.Fprintf(stderr, "penstock sim fit: %s/metrics does not tell the size of the KV cache: set block-size and num-blocks yourself\n", base)
	}
	r := fit.Solve(samples)
	return writeFile(*out, stdout, func(w io.Writer) error { return fit.Write(w, r, *count, block, blocks, o.Budget) })
}

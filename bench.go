// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sim/bench"
	"github.com/penstock-project/penstock/sim/load"
	"github.com/penstock-project/penstock/sim/report"
	"github.com/penstock-project/penstock/sim/work"
)

// benchWork is what bench sends when nothing else is asked for: short chats, each by itself.
const benchWork = "plain?prompt=200~0.6&output=64~0.5"

// benchFlags are the flags of bench.
type benchFlags struct {
	url, direct, api, trace, key, arrivals string
	headers                                []string
	cacert, cert, keyFile                  string
	insecure, h2, whole                    bool
	timeout, wait                          time.Duration
	json, html, slo                        string
	o                                      bench.Options
}

func benchCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := benchFlags{}
	o := &f.o
	fs := flags("bench", "--url URL [flags]", "Sends load to any OpenAI-compatible server, and reports what it is like: latencies, throughput, errors, cached tokens.\nWith --direct, two servers are measured in turns and compared: a gateway, and an engine behind it.", stdout)
	fs.StringVar(&f.url, "url", "", "where the API is, such as http://localhost:8080")
	fs.StringVar(&f.direct, "direct", "", "where the same is without the gateway: a second row, and the difference")
	fs.StringVar(&o.Model, "model", "", "model to ask for (default the first that the server lists)")
	fs.StringVar(&f.api, "api", "chat", "chat or completions")
	fs.StringVar(&o.Workload, "workload", "", "what is sent (default "+benchWork+"): a kind of work with parameters, or a named one")
	fs.StringVar(&f.trace, "trace", "", "what is sent: a recorded trace (Mooncake JSONL, Azure CSV, our access log)")
	fs.Float64Var(&o.Rate, "rate", 0, "open loop: requests a second; of a trace or a named workload, how many times as fast")
	fs.StringVar(&f.arrivals, "arrivals", "workload", "in an open loop: workload (as it says, mostly Poisson) or constant")
	fs.IntVar(&o.Concurrency, "concurrency", 0, "closed loop: requests that are open at any time (default 4 with no rate and no workload)")
	fs.DurationVar(&o.Duration, "duration", 30*time.Second, "how long is measured; 0 for as long as the workload lasts")
	fs.IntVar(&o.Requests, "requests", 0, "end after so many requests instead")
	fs.DurationVar(&o.Warmup, "warmup", time.Second, "time before that in which requests are sent and not counted")
	fs.Uint64Var(&o.Seed, "seed", 1, "chooses lengths and arrivals")
	fs.Uint64Var(&o.Salt, "salt", 0, "chooses the words of prompts (default new ones each time, which no cache knows)")
	fs.IntVar(&o.MaxTokens, "max-tokens", 0, "longest answer to ask for, whatever the workload says")
	fs.Float64Var(&o.PerWord, "tokens-per-word", 1, "tokens that a word of the prompts is worth to the server's tokenizer")
	fs.BoolVar(&f.whole, "no-stream", false, "ask for answers in one piece; there is no TTFT then")
	fs.StringVar(&o.Extra, "extra-body", "", `more members of the request bodies, such as {"ignore_eos":true}`)
	fs.StringArrayVarP(&f.headers, "header", "H", nil, "header to send, as 'name: value'; may be repeated")
	fs.StringVar(&f.key, "api-key", "", "bearer token (default $OPENAI_API_KEY)")
	fs.StringVar(&f.cacert, "cacert", "", "file with the authorities to trust instead of the system's")
	fs.StringVar(&f.cert, "cert", "", "file with a client certificate")
	fs.StringVar(&f.keyFile, "key", "", "file with the client certificate's key")
	fs.BoolVarP(&f.insecure, "insecure", "k", false, "trust whatever certificate the server shows")
	fs.BoolVar(&f.h2, "http2", false, "HTTP/2 only, in clear text to http URLs")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Minute, "longest that a request may take")
	fs.DurationVar(&f.wait, "wait", 0, "how long to wait for the server to be there")
	fs.IntVar(&o.MaxOpen, "max-open", 4096, "most requests that are open at once; in an open loop those beyond fail")
	fs.DurationVar(&o.Block, "block", 2*time.Second, "with --direct, how long each has its turn")
	fs.StringVar(&f.slo, "slo", "", "count those that keep it, such as ttft=2s,tpot=50ms")
	fs.StringVar(&f.json, "json", "", "file to write the report to as JSON; - for stdout")
	fs.StringVar(&f.html, "html", "", "file to write the report to as a page with plots")
	if err := parse(fs, args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return misused("unexpected argument %q", fs.Arg(0))
	}
	if fs.Changed("requests") && !fs.Changed("duration") {
		o.Duration = 0
	}
	if !fs.Changed("salt") {
		o.Salt = uint64(time.Now().UnixNano())
	}
	if err := f.settle(); err != nil {
		return err
	}
	transport, err := f.transport()
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()
	if err := f.targets(ctx, transport, stderr); err != nil {
		return err
	}
	if load.IsTerminal(stderr) {
		o.Watch = bench.Bar(stderr)
	}
	r, err := bench.Run(ctx, *o)
	if r == nil {
		return err
	}
	r.Command = "penstock bench " + repeatable(args)
	return errors.Join(f.write(r, stdout), err)
}

// settle checks what the flags say together.
func (f *benchFlags) settle() (err error) {
	o := &f.o
	switch {
	case f.url == "":
		return misused("--url is required: where is the server?")
	case o.Rate != 0 && o.Concurrency != 0:
		return misused("--rate and --concurrency exclude each other: the loop is open or closed")
	case !(o.Rate >= 0 && o.Rate <= 1e6):
		return misused("--rate %g: want more than 0 and at most a million", o.Rate)
	case o.Concurrency < 0 || o.Concurrency > 1e5:
		return misused("--concurrency %d: want 1 to 100000", o.Concurrency)
	case o.Duration < 0 || o.Warmup < 0 || f.timeout < 0 || f.wait < 0:
		return misused("--duration, --warmup, --timeout and --wait must not be below 0")
	case o.Requests < 0 || o.MaxTokens < 0:
		return misused("--requests and --max-tokens must not be below 0")
	case o.MaxOpen < 1 || o.MaxOpen > 1e6:
		return misused("--max-open %d: want 1 to a million", o.MaxOpen)
	case o.Block < 100*time.Millisecond:
		return misused("--block %s: want at least 100ms", o.Block)
	case !(o.PerWord >= 0.1 && o.PerWord <= 100):
		return misused("--tokens-per-word %g: want 0.1 to 100", o.PerWord)
	case f.api != "chat" && f.api != "completions":
		return misused("--api %q: want chat or completions", f.api)
	case f.arrivals != "workload" && f.arrivals != "constant":
		return misused("--arrivals %q: want workload or constant", f.arrivals)
	case o.Workload != "" && f.trace != "":
		return misused("--workload and --trace exclude each other")
	case (f.cert == "") != (f.keyFile == ""):
		return misused("--cert and --key: want both or neither")
	}
	if o.Extra != "" {
		var extra map[string]any
		if json.Unmarshal([]byte(o.Extra), &extra) != nil {
			return misused(`--extra-body %s: want a JSON object, such as {"ignore_eos":true}`, o.Extra)
		}
	}
	if o.Rate == 0 && o.Concurrency == 0 && o.Workload == "" && f.trace == "" {
		o.Concurrency = 4 // what has a rate of its own keeps it
	}
	o.Concurrency = min(o.Concurrency, o.MaxOpen)
	if f.trace != "" {
		o.Workload = "trace:" + f.trace
	}
	if o.Workload == "" {
		o.Workload = benchWork
	}
	if o.Open, err = work.Parse(endless(o.Workload)); err != nil {
		return misused("--workload: %v", err)
	}
	if f.arrivals == "constant" {
		if o.Rate == 0 || work.Multiplied(o.Workload) {
			return misused("--arrivals constant: want --rate in requests a second, and a workload without a rate of its own")
		}
		o.Every = time.Duration(float64(time.Second) / o.Rate)
	}
	if err := writable(f.json, f.html); err != nil {
		return err
	}
	o.Whole = f.whole
	o.SLO, err = parseSLO(f.slo)
	return err
}

// writable tells of files that cannot be written: better now than when all is measured.
func writable(paths ...string) error {
	for _, path := range paths {
		if path == "" || path == "-" {
			continue
		}
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
		if err != nil {
			return err
		}
		_ = file.Close()
	}
	return nil
}

// endless is a workload whose generators do not end by themselves unless it says so: the flags say when.
func endless(spec string) string {
	if work.Multiplied(spec) {
		return spec
	}
	parts := strings.Split(spec, " + ")
	for i, p := range parts {
		if work.Multiplied(p) || strings.Contains(p, "for=") || strings.Contains(p, "requests=") {
			continue
		}
		if strings.Contains(p, "?") {
			parts[i] += "&for=168h"
		} else {
			parts[i] += "?for=168h"
		}
	}
	return strings.Join(parts, " + ")
}

// parseSLO reads "ttft=2s,tpot=50ms,e2e=30s".
func parseSLO(text string) (slo report.SLO, err error) {
	if text == "" {
		return slo, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		to, ok := map[string]*time.Duration{"ttft": &slo.TTFT, "tpot": &slo.TPOT, "e2e": &slo.E2E}[key]
		if ok {
			*to, err = time.ParseDuration(value)
		}
		if !ok || err != nil || *to <= 0 {
			return slo, misused("--slo %q: want times for ttft, tpot or e2e, such as ttft=2s,tpot=50ms", text)
		}
	}
	return slo, nil
}

// repeatable is a command line as one types it, without what is secret.
func repeatable(args []string) string {
	var out []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, value, joined := strings.Cut(arg, "=")
		if name == "--api-key" {
			if !joined {
				i++
			}
			continue
		}
		if header := strings.ToLower(value); joined && name == "--header" && strings.HasPrefix(header, "authorization") {
			continue
		}
		if (arg == "--header" || arg == "-H") && i+1 < len(args) && strings.HasPrefix(strings.ToLower(args[i+1]), "authorization") {
			i++
			continue
		}
		if strings.ContainsAny(arg, " \t\n\"'`$&|;<>()*?[]#~!{}\\") {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		out = append(out, arg)
	}
	return strings.Join(out, " ")
}

// transport is what carries the requests.
func (f *benchFlags) transport() (*http.Transport, error) {
	config := &tls.Config{InsecureSkipVerify: f.insecure, MinVersion: tls.VersionTLS12}
	if f.cacert != "" {
		pool, err := authorities(f.cacert)
		if err != nil {
			return nil, err
		}
		config.RootCAs = pool
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.keyFile)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return load.NewTransport(f.o.MaxOpen, config, f.h2), nil
}

// targets makes the rows, and looks whether anybody is there.
func (f *benchFlags) targets(ctx context.Context, transport *http.Transport, stderr io.Writer) error {
	header, err := f.header()
	if err != nil {
		return err
	}
	client := load.Client{API: request.Chat, Header: header, Timeout: f.timeout,
		HTTP: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if f.api == "completions" {
		client.API = request.Completions
	}
	add := func(flag, name, said string) error {
		if client.URL, err = load.Base(said); err != nil {
			return misused("--%s: %v", flag, err)
		}
		f.o.Targets = append(f.o.Targets, bench.Target{Name: name, Client: client})
		return nil
	}
	if err := add("url", "gateway", f.url); err != nil {
		return err
	}
	if f.direct != "" {
		if err := add("direct", "direct", f.direct); err != nil {
			return err
		}
	}
	for i := range f.o.Targets {
		c := &f.o.Targets[i].Client
		models, err := c.Models(ctx, f.wait)
		if err != nil {
			return err
		}
		if f.o.Model == "" && len(models) > 0 {
			f.o.Model = models[0]
		}
		if f.o.Model == "" {
			return misused("--model is required: %s does not list any", c.URL)
		}
		if len(models) > 0 && !slices.Contains(models, f.o.Model) {
			fmt.Fprintf(stderr, "penstock bench: %s does not list the model %q; it has %s\n", c.URL, f.o.Model, strings.Join(models[:min(len(models), 8)], ", "))
		}
	}
	return nil
}

// header is what goes with every request.
func (f *benchFlags) header() (http.Header, error) {
	h := http.Header{}
	key := f.key
	if key == "" {
		key = os.Getenv("OPENAI_API_KEY")
	}
	if key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
	for _, said := range f.headers {
		name, value, ok := strings.Cut(said, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, misused("--header %q: want 'name: value'", said)
		}
		h.Add(name, value)
	}
	return h, nil
}

// write writes the report to where it was asked for: a table for people unless JSON goes to stdout.
func (f *benchFlags) write(r *report.Report, stdout io.Writer) error {
	if f.json != "-" {
		if err := r.Table(stdout); err != nil {
			return err
		}
	}
	for _, to := range []struct {
		path  string
		write func(io.Writer) error
	}{{f.json, r.JSON}, {f.html, r.HTML}} {
		if err := writeFile(to.path, stdout, to.write); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes to a file, to stdout for "-", and nowhere without a path.
func writeFile(path string, stdout io.Writer, write func(io.Writer) error) error {
	switch path {
	case "":
		return nil
	case "-":
		return write(stdout)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}

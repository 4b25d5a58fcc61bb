// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/observe"
)

// TestExplainRequest lets requests end as testdata/explain_request says, asks for the newest, and compares what a
// person reads. Lines are candidates, with queue=, running=, kv=, age=, scores=, total=, flying=, unseen=, match=,
// ill= and dropped=, a stage's number.
func TestExplainRequest(t *testing.T) {
	datadriven.Walk(t, "testdata/explain_request", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			o := observe.New(observe.Options{Store: fleet.NewStore()})
			o.Done(outcomeOf(t, d))
			server := httptest.NewServer(o.Mux(observe.MuxOptions{}))
			defer server.Close()
			var out bytes.Buffer
			args := []string{"--request", "last", "--server", server.URL}
			if d.HasArg("all") {
				args = append(args, "--all")
			}
			if err := explain(t.Context(), args, &out, nil); err != nil {
				t.Fatal(err)
			}
			return out.String()
		})
	})
}

// What a client chose neither steers the reader's terminal nor looks like a line of the story.
func TestExplainRequestShowsNoControlCharacters(t *testing.T) {
	o := observe.New(observe.Options{Store: fleet.NewStore()})
	hostile := "m\x1b[2J\r\nSERVED by me\u202e\u009b"
	o.Done(&observe.Outcome{Labels: observe.Labels{Model: hostile, Target: hostile, Tenant: hostile}, ID: hostile, End: observe.Broken, Message: hostile, Start: time.Now()})
	server := httptest.NewServer(o.Mux(observe.MuxOptions{}))
	defer server.Close()
	var out bytes.Buffer
	if err := explain(t.Context(), []string{"--request", "last", "--server", server.URL}, &out, nil); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "m�[2J��SERVED by me��") || strings.ContainsAny(s, "\x1b\r\u202e\u009b") || strings.Contains(s, "\nSERVED") {
		t.Errorf("got %q", s)
	}
}

func outcomeOf(t *testing.T, d *datadriven.TestData) *observe.Outcome {
	t.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	out := &observe.Outcome{
		Labels: observe.Labels{Model: "m", Target: "m", Tenant: "default-flow"}, ID: "3f2a", Door: "proxy", API: "openai-chat", Pool: "default/dev",
		End: observe.Complete, Status: 200, Start: at, Body: time.Millisecond, Deciding: 300 * time.Microsecond, Schedule: 12 * time.Microsecond,
		TTFT: 95 * time.Millisecond, Duration: 812 * time.Millisecond,
		PromptTokens: observe.Unknown, OutputTokens: observe.Unknown, Cached: observe.Unknown,
	}
	text := map[string]*string{"reason": &out.Reason, "message": &out.Message, "endpoint": &out.Endpoint, "target": &out.Target, "pool": &out.Pool}
	numbers := map[string]*int{"status": &out.Status, "prompt": &out.PromptTokens, "output": &out.OutputTokens, "cached": &out.Cached, "estimated": &out.EstimatedTokens, "predicted": &out.PredictedCached, "retries": &out.Retries}
	times := map[string]*time.Duration{"ttft": &out.TTFT, "duration": &out.Duration, "queue": &out.Queue}
	stages := &observe.Stages{Profile: "default", Picker: "max-score-picker", Drops: []observe.Drop{
		{}, {Name: "model", Why: "it does not serve the model, and others do"}, {Name: "health", Why: "requests to it failed"},
		{Name: "by-role", Why: "llm-d.ai/role is not decode"},
	}}
	dec := &observe.Decision{Stages: stages, At: at, Stale: 2 * time.Second, BlockTokens: 16}
	repeat := 1
	for _, a := range d.CmdArgs {
		v := strings.ReplaceAll(strings.Join(a.Vals, ","), "_", " ")
		switch {
		case text[a.Key] != nil:
			*text[a.Key] = v
		case numbers[a.Key] != nil:
			*numbers[a.Key] = numberIn[int](t, v)
		case times[a.Key] != nil:
			*times[a.Key], _ = time.ParseDuration(v)
		case a.Key == "end":
			out.End = observe.End(v)
		case a.Key == "refusedby":
			dec.Refused = v
		case a.Key == "flow":
			out.Wait.Outcome = v
		case a.Key == "for":
			out.Wait.For = v
		case a.Key == "ahead":
			out.Wait.Ahead, out.Wait.Own, out.Wait.Flows = numberIn[int](t, a.Vals[0]), numberIn[int](t, a.Vals[1]), numberIn[int](t, a.Vals[2])
		case a.Key == "picker":
			stages.Picker = v
		case a.Key == "noprofile":
			stages.Profile, stages.Picker = "", ""
		case a.Key == "tokenizer":
			out.Tokenizer = v
		case a.Key == "untold":
			out.Untold = v
		case a.Key == "blocks":
			dec.Blocks = numberIn[int](t, v)
		case a.Key == "repeat":
			repeat = numberIn[int](t, v)
		case a.Key == "failed":
			name, cause, _ := strings.Cut(v, ":")
			out.Attempts = append(out.Attempts, observe.Attempt{Endpoint: "default/" + name, Address: "10.0.0.9:8000", Cause: cause})
		case a.Key == "scorers":
			for _, s := range a.Vals {
				name, weight, _ := strings.Cut(s, ":")
				stages.Scorers = append(stages.Scorers, observe.WeightedName{Name: name, Weight: numberIn[float64](t, weight)})
			}
		}
	}
	var scores [][]float32
	for range repeat {
		for line := range strings.Lines(d.Input) {
			scores = candidate(t, dec, strings.Fields(line), scores)
		}
	}
	for k := range stages.Scorers {
		for _, s := range scores {
			dec.Scores = append(dec.Scores, s[k])
		}
	}
	if len(dec.Total) > 0 && out.End != observe.Refused || out.Retries > 0 {
		for i := range min(16, len(dec.Total)) {
			dec.Order = append(dec.Order, int32(i))
		}
	}
	if len(dec.Total) < len(dec.Origin) {
		dec.Total, dec.Unseen, dec.Scores = nil, nil, nil
	}
	if out.Endpoint != "" {
		out.Endpoint = "default/" + out.Endpoint
		out.Address = "10.0.0.1:8000"
	}
	out.Candidates, out.Decision = len(dec.Origin), dec
	if d.Cmd == "undecided" {
		out.Decision = nil
	}
	return out
}

func candidate(t *testing.T, dec *observe.Decision, fields []string, scores [][]float32) [][]float32 {
	t.Helper()
	at := len(dec.Endpoints)
	name := fields[0]
	if strings.HasSuffix(name, "*") {
		name = strings.TrimSuffix(name, "*") + fmt.Sprint(at)
	}
	e := &fleet.Endpoint{ID: fleet.ID{Namespace: "default", Name: name}, Address: fmt.Sprintf("10.0.0.%d:8000", at+1), Load: new(fleet.Load)}
	age, fate := 40*time.Millisecond, 0
	values := map[string]string{}
	for _, f := range fields[1:] {
		k, v, _ := strings.Cut(f, "=")
		values[k] = v
	}
	if v := values["age"]; v != "" {
		age, _ = time.ParseDuration(v)
	}
	signal := func(key string) fleet.Signal {
		if values[key] == "" {
			return fleet.Signal{}
		}
		return fleet.Signal{Value: numberIn[float64](t, values[key]), At: dec.At.Add(-age)}
	}
	e.Waiting, e.Running, e.KVUsage = signal("queue"), signal("running"), signal("kv")
	if v := values["dropped"]; v != "" {
		fate = numberIn[int](t, v)
	}
	dec.Endpoints, dec.Fates = append(dec.Endpoints, e), append(dec.Fates, uint8(fate))
	if v := values["ill"]; v != "" {
		dec.Ill = append(dec.Ill, observe.Ill{Endpoint: int32(at), State: fleet.Ejected, Failures: 3, Cause: strings.ReplaceAll(v, "_", " ")})
	}
	if fate != 0 {
		return scores
	}
	whole := func(key string) int32 {
		if values[key] == "" {
			return 0
		}
		return int32(numberIn[int](t, values[key]))
	}
	dec.Origin = append(dec.Origin, int32(at))
	if values["sure"] != "" {
		dec.Sure = append(dec.Sure, whole("sure"))
	}
	dec.Flying, dec.Match, dec.Work = append(dec.Flying, whole("flying")), append(dec.Match, whole("match")), append(dec.Work, 0)
	if values["scores"] == "" {
		return scores
	}
	var row []float32
	var total float64
	less := 0.0 // each has less than the one before
	if v := values["less"]; v != "" {
		less = numberIn[float64](t, v) * float64(at)
	}
	for k, s := range strings.Split(values["scores"], ",") {
		score := numberIn[float64](t, s) - less
		row = append(row, float32(score))
		total += score * dec.Scorers[k].Weight
	}
	total -= 0.07 * float64(whole("unseen"))
	dec.Total, dec.Unseen = append(dec.Total, float32(total)), append(dec.Unseen, whole("unseen"))
	return append(scores, row)
}

// numberIn reads one number of a scenario.
func numberIn[T int | float64](t *testing.T, s string) T {
	t.Helper()
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return T(f)
}

func TestExplainRequestErrors(t *testing.T) {
	o := observe.New(observe.Options{Store: fleet.NewStore()})
	server := httptest.NewServer(o.Mux(observe.MuxOptions{}))
	defer server.Close()
	page := httptest.NewServer(nil)
	defer page.Close()
	for _, tt := range []struct{ id, server, want string }{
		{"x", server.URL, `has no record of a request "x": records live until newer ones need their memory`},
		{"last", server.URL, "remembers no request yet"},
		{"failed", server.URL, "remembers no failed request"},
		{"x", page.URL, "want the metrics address of a Penstock"},
		{"x", "127.0.0.1:1", "Name the metrics address of the gateway with --server or $PENSTOCK_SERVER"},
	} {
		var out bytes.Buffer
		err := explain(t.Context(), []string{"--request", tt.id, "--server", tt.server}, &out, nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s of %s: got %v, want %q", tt.id, tt.server, err, tt.want)
		}
	}
	o.Done(&observe.Outcome{ID: "a b/c", End: observe.Complete, Status: 200})
	o.Done(&observe.Outcome{ID: "a b/c", End: observe.Complete, Status: 200})
	t.Setenv(serverVariable, server.URL)
	var out bytes.Buffer
	if err := explain(t.Context(), []string{"--request", "a b/c"}, &out, nil); err != nil || !strings.Contains(out.String(), "2 requests had this id") {
		t.Errorf("got %v, %s", err, out.String())
	}
	out.Reset()
	if err := explain(t.Context(), []string{"--request", "a b/c", "--json"}, &out, nil); err != nil || !json.Valid(out.Bytes()) {
		t.Errorf("got %v, %s", err, out.String())
	}
}

// A metrics address that asks for a token and has a certificate is asked with both.
func TestExplainRequestSecure(t *testing.T) {
	o := observe.New(observe.Options{Store: fleet.NewStore()})
	o.Done(&observe.Outcome{ID: "a", End: observe.Complete, Status: 200})
	server := httptest.NewTLSServer(o.Mux(observe.MuxOptions{Allow: func(r *http.Request) (int, string) {
		if r.Header.Get("Authorization") != "Bearer t" {
			return http.StatusUnauthorized, "no bearer token"
		}
		return 0, ""
	}}))
	defer server.Close()
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	if err := errors.Join(
		os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600),
		os.WriteFile(token, []byte("t\n"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		args, env string
		want      string // of the error; empty for none
	}{
		{"--ca-file " + ca + " --token-file " + token, "", ""},
		{"--ca-file " + ca + " --server-name example.com", "t", ""},
		{"--ca-file " + ca, "", "401 Unauthorized: no bearer token\nGive the token of a service account that may read it: --token-file FILE or $PENSTOCK_TOKEN, such as PENSTOCK_TOKEN=$(kubectl create token NAME)"},
		{"--ca-file " + ca + " --token-file " + token + "x", "", "--token-file: open"},
		{"--ca-file " + token, "t", "no certificate: want PEM"},
		{"--ca-file " + ca + " --server-name other", "t", "not other"},
		{"--cert-path " + dir, "t", "--cert-path: open"},
		{"", "t", "certificate signed by unknown authority"},
		{"--server " + strings.Replace(server.URL, "https", "http", 1), "t", "want --server https://"},
	} {
		t.Setenv(tokenVariable, x.env)
		var out bytes.Buffer
		err := explain(t.Context(), append([]string{"--request", "a", "--server", server.URL}, strings.Fields(x.args)...), &out, nil)
		switch {
		case x.want == "" && err != nil:
			t.Errorf("%s: %v", x.args, err)
		case x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)):
			t.Errorf("%s: got %v, want %q", x.args, err, x.want)
		}
	}
}

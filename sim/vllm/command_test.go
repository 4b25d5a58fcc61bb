// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The command is tried with a real port, because the port is the point.
func TestCommand(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Command(ctx, []string{"llama", "--port", "0", "--speed", "100", "--max-num-seqs", "8"}, in, io.Discard)
		_ = in.Close()
	}()
	line := make([]byte, 256)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err, <-done)
	}
	m := regexp.MustCompile(`^engine llama listens on (http://127\.0\.0\.1:\d+)\n$`).FindSubmatch(line[:n])
	if m == nil {
		t.Fatalf("said %q", line[:n])
	}
	client := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	resp, err := client.Post(string(m[1])+"/v1/completions", "application/json", strings.NewReader(`{"model":"llama","prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !bytes.Contains(b, []byte(`"model":"llama"`)) {
		t.Errorf("got %d %s", resp.StatusCode, b)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestCommandRefuses(t *testing.T) {
	for _, tt := range []struct {
		args, want string
	}{
		{"--max-num-seqs 0", "max number of sequences: must be above 0"},
		{"--num-gpu-blocks-override 10", "max-model-len: 32768 tokens do not fit"},
		{"--speed 0", "speed: must be above 0"},
		{"--lora-modules a=/a", "lora-modules: needs enable-lora"},
		{"--enable-lora --lora-modules a", `"a" is not name=path`},
		{"--no-such-flag", "unknown flag"},
		{"a b", `unexpected argument "b"`},
		{"--served-model-name= --port 70000", "port: must be 0 to 65535"},
	} {
		err := Command(t.Context(), strings.Fields(tt.args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.args, err, tt.want)
		}
	}
	var help bytes.Buffer
	if err := Command(t.Context(), []string{"--help"}, &help, io.Discard); err != nil || !strings.Contains(help.String(), "--num-gpu-blocks-override") {
		t.Errorf("help: %v, %s", err, help.String())
	}
}

// The listener closes with the context even while a client waits for an answer.
func TestServeEndsWhileBusy(t *testing.T) {
	s, err := New(DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	l := newPipes()
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	client := &http.Client{Transport: &http.Transport{DialContext: l.dial}}
	defer client.CloseIdleConnections()
	resp, err := client.Post("http://sim/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","max_tokens":30000,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the stream ended with %v, want an unexpected EOF", err)
	}
}

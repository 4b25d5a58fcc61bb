// SPDX-License-Identifier: Apache-2.0

package work

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"
)

// row is one request of a trace, as it was recorded.
type row struct {
	at       time.Duration // from the zero of the file's clock
	line     int
	input    int
	output   int
	cached   int // tokens of the prompt that the engine had, -1 if nobody told
	ids      []uint64
	session  uint64 // hash of what it was called, 0 for none
	tenant   string
	model    string
	priority int

	n       int // which of the file
	repeat  int
	talk    *talk
	request Request
	prompt  []Segment
	live    bool
}

// The formats of traces, as they stand before the file.
const (
	mooncake  = "mooncake"
	azure     = "azure"
	accessLog = "log"
	whichever = "trace"
)

const (
	maxOutput = 1 << 20
	maxID     = 128 // bytes of a name
)

// rows reads the rows of a trace.
type rows struct {
	lines  *lines
	format string
	block  int // tokens of one of hash_ids, 0 until it is known
	record record
	output mean // of those that told
	names  map[string]string
	first  []byte // a line that was read to know the format
}

// mean is a running mean.
type mean struct{ sum, n float64 }

// newRows looks at the first line to know the format. Format is what it should be, or trace.
func newRows(file string, in io.Reader, format string) (*rows, error) {
	l, err := newLines(file, in)
	if err != nil {
		return nil, err
	}
	r := &rows{lines: l, names: map[string]string{}}
	line, err := l.next()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: has no rows", file)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case line[0] == '{':
		r.first = bytes.Clone(line)
		r.format = mooncake
		if bytes.Contains(line, []byte(`"msg"`)) && bytes.Contains(line, []byte(`"time"`)) {
			r.format = accessLog
		}
	case bytes.HasPrefix(line, []byte("TIMESTAMP,")):
		r.format = azure
		if !bytes.HasPrefix(line, []byte("TIMESTAMP,ContextTokens,GeneratedTokens")) {
			return nil, l.wrong("the columns are %q; want TIMESTAMP,ContextTokens,GeneratedTokens", clip(string(line)))
		}
	default:
		return nil, l.wrong("begins with %q; want JSON lines with timestamp, input_length, output_length and hash_ids (Mooncake), lines of an access log, or CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens (Azure)", clip(string(line)))
	}
	if format != whichever && format != r.format {
		return nil, l.wrong("this is %s; write %s:%s", formats[r.format], r.format, file)
	}
	return r, nil
}

var formats = map[string]string{mooncake: "a trace of Mooncake's form", azure: "a trace of Azure's form", accessLog: "an access log"}

// next reads the next row into w. At the end the error is io.EOF.
func (r *rows) next(w *row) error {
	for {
		line := r.first
		r.first = nil
		if line == nil {
			var err error
			if line, err = r.lines.next(); err != nil {
				return err
			}
		}
		*w = row{ids: w.ids[:0], prompt: w.prompt[:0], line: r.lines.n, cached: -1}
		var skip bool
		var err error
		switch r.format {
		case azure:
			err = r.azure(line, w)
		case accessLog:
			skip, err = r.access(line, w)
		default:
			err = r.mooncake(line, w)
		}
		if err != nil || !skip {
			return err
		}
	}
}

// record is a JSON line of either form. Numbers that are not there stay what they were set to.
type record struct {
	Timestamp float64         `json:"timestamp"`
	Input     float64         `json:"input_length"`
	Output    float64         `json:"output_length"`
	IDs       []uint64        `json:"hash_ids"`
	Session   json.RawMessage `json:"session"`
	Chat      json.RawMessage `json:"chat_id"` // of Qwen-Bailian, whose clock counts seconds

	Time         string  `json:"time"`
	Msg          string  `json:"msg"`
	Model        string  `json:"model"`
	Tenant       string  `json:"tenant"`
	Priority     int     `json:"priority"`
	Duration     float64 `json:"duration_ms"`
	Bytes        float64 `json:"request_bytes"`
	PromptTokens float64 `json:"prompt_tokens"`
	OutputTokens float64 `json:"output_tokens"`
	Cached       float64 `json:"cached_tokens"`
}

// clear forgets the last line and keeps its memory.
func (c *record) clear() {
	*c = record{IDs: c.IDs[:0], Session: c.Session[:0], Chat: c.Chat[:0], Timestamp: -1, Input: -1, Output: -1, Duration: -1, Bytes: -1, PromptTokens: -1, OutputTokens: -1, Cached: -1}
}

func (r *rows) json(line []byte) error {
	r.record.clear()
	if r.record.quick(line) {
		return nil
	}
	r.record.clear()
	err := json.Unmarshal(line, &r.record)
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &kind):
		return r.lines.wrong("%s: is a %s; want %s", clip(kind.Field), kind.Value, jsonKind(kind))
	case errors.As(err, &syntax):
		return r.lines.wrong("is not JSON (%v, at byte %d); want one object on each line", err, syntax.Offset)
	case err != nil:
		return r.lines.wrong("%v", err)
	}
	return nil
}

func jsonKind(e *json.UnmarshalTypeError) string {
	switch e.Type.String() {
	case "uint64", "[]uint64":
		return "whole numbers from 0, such as [0, 1, 2]"
	case "string":
		return "a text"
	}
	return "a number"
}

func (r *rows) mooncake(line []byte, w *row) error {
	if err := r.json(line); err != nil {
		return err
	}
	c := &r.record
	unit := 1e6
	if len(c.Chat) > 0 {
		unit = 1e9
	}
	switch {
	case !(c.Timestamp >= 0):
		return r.lines.wrong("timestamp: is %s; want a number of milliseconds from 0", told(c.Timestamp))
	case !(c.Timestamp*unit <= float64(100*365*day)):
		return r.lines.wrong("timestamp: is %s; want milliseconds from the beginning or from 1970", told(c.Timestamp))
	case !whole(c.Input, longest):
		return r.lines.wrong("input_length: is %s; want a number of tokens from 0 to %d", told(c.Input), longest)
	case !whole(c.Output, maxOutput):
		return r.lines.wrong("output_length: is %s; want a number of tokens from 0 to %d", told(c.Output), maxOutput)
	}
	w.at = time.Duration(math.Round(c.Timestamp * unit))
	w.input, w.output = max(1, int(c.Input)), max(1, int(c.Output))
	w.session = sessionKey(c.Session)
	w.tenant, w.model, w.priority = r.name(c.Tenant), r.name(c.Model), c.Priority
	return r.ids(w)
}

// blocks are the sizes that ids of blocks are made for, in tokens, the most likely first.
var blocks = []int{512, 16, 32, 64, 128, 256, 1024, 2048}

// ids takes the record's hash_ids over. An id stands for a block of tokens; how many is seen from
// the first row that has several.
func (r *rows) ids(w *row) error {
	n := len(r.record.IDs)
	if n == 0 {
		return nil
	}
	if r.block == 0 && n > 1 {
		r.block = blockOf(w.input, n)
	}
	switch {
	case r.block == 0 && n == 1:
	case r.block == 0:
		return r.lines.wrong("has %d hash_ids for %d tokens; want one for each block, mostly of 512 tokens", n, w.input)
	case n > (w.input+r.block-1)/r.block:
		return r.lines.wrong("has %d hash_ids for %d tokens; blocks of %d tokens make %d", n, w.input, r.block, (w.input+r.block-1)/r.block)
	}
	w.ids = append(w.ids, r.record.IDs...)
	return nil
}

// blockOf is the size of blocks of which n are in so many tokens, the last one whole or not; 0 if
// no usual one fits.
func blockOf(tokens, n int) int {
	for _, size := range blocks {
		if n == tokens/size || n == (tokens+size-1)/size {
			return size
		}
	}
	return 0
}

// access reads a line of the gateway's access log. Other messages, and calls that ask for no
// tokens, are skipped.
func (r *rows) access(line []byte, w *row) (skip bool, err error) {
	if line[0] != '{' {
		return false, r.lines.wrong("begins with %q; want a JSON object on each line, as a gateway logs them", clip(string(line)))
	}
	if err := r.json(line); err != nil {
		return false, err
	}
	c := &r.record
	if c.Msg != "request" {
		return true, nil
	}
	end, err := time.Parse(time.RFC3339Nano, c.Time)
	if err != nil || end.Year() < 1970 || end.Year() > 2200 {
		return false, r.lines.wrong("time: is %q; want one such as 2026-01-02T15:04:05.123456Z", clip(c.Time))
	}
	switch {
	case !(c.Duration >= 0 && c.Duration <= 1e9):
		return false, r.lines.wrong("duration_ms: is %s; want a number of milliseconds from 0", told(c.Duration))
	case c.PromptTokens != -1 && !whole(c.PromptTokens, longest):
		return false, r.lines.wrong("prompt_tokens: is %s; want a number of tokens from 0 to %d", told(c.PromptTokens), longest)
	case c.OutputTokens != -1 && !whole(c.OutputTokens, maxOutput):
		return false, r.lines.wrong("output_tokens: is %s; want a number of tokens from 0 to %d", told(c.OutputTokens), maxOutput)
	case c.Cached != -1 && !whole(c.Cached, longest):
		return false, r.lines.wrong("cached_tokens: is %s; want a number of tokens from 0 to %d", told(c.Cached), longest)
	}
	if c.PromptTokens < 0 && !(c.Bytes > 0) {
		return true, nil
	}
	w.at = time.Duration(end.UnixNano()) - time.Duration(c.Duration*float64(time.Millisecond))
	w.input = int(c.PromptTokens)
	if w.input < 0 {
		w.input = int(min(c.Bytes/4, longest)) // turned away before anybody counted: of text four bytes are a token
	}
	w.input = max(1, w.input)
	w.output = int(c.OutputTokens)
	switch {
	case w.output >= 0:
		r.output.sum += c.OutputTokens
		r.output.n++
	case r.output.n > 0:
		w.output = int(r.output.sum / r.output.n)
	default:
		w.output = 128
	}
	w.output = max(1, w.output)
	if c.Cached >= 0 {
		w.cached = min(int(c.Cached), w.input)
	}
	w.session = sessionKey(c.Session)
	w.tenant, w.model, w.priority = r.name(c.Tenant), r.name(c.Model), c.Priority
	return false, r.ids(w)
}

func (r *rows) azure(line []byte, w *row) error {
	stamp, rest, ok := bytes.Cut(line, []byte{','})
	input, output, ok2 := bytes.Cut(rest, []byte{','})
	if !ok || !ok2 {
		return r.lines.wrong("is %q; want a time and two numbers, such as 2023-11-16 18:17:03.9799600,4808,10", clip(string(line)))
	}
	at, err := time.Parse("2006-01-02 15:04:05.999999999Z07:00", string(stamp))
	if err != nil {
		at, err = time.Parse("2006-01-02 15:04:05.999999999", string(stamp))
	}
	if err != nil || at.Year() < 1970 || at.Year() > 2200 {
		return r.lines.wrong("TIMESTAMP: is %q; want one such as 2023-11-16 18:17:03.9799600", clip(string(stamp)))
	}
	in, err := strconv.ParseFloat(string(input), 64)
	if err != nil || !whole(in, longest) {
		return r.lines.wrong("ContextTokens: is %q; want a number of tokens from 0 to %d", clip(string(input)), longest)
	}
	out, err := strconv.ParseFloat(string(output), 64)
	if err != nil || !whole(out, maxOutput) {
		return r.lines.wrong("GeneratedTokens: is %q; want a number of tokens from 0 to %d", clip(string(output)), maxOutput)
	}
	w.at = time.Duration(at.UnixNano())
	w.input, w.output = max(1, int(in)), max(1, int(out))
	return nil
}

// name keeps one copy of each name, of as many as there can be in earnest.
func (r *rows) name(s string) string {
	if len(s) > maxID {
		s = s[:maxID]
	}
	if kept, ok := r.names[s]; ok {
		return kept
	}
	if len(r.names) < 1<<16 {
		r.names[s] = s
	}
	return s
}

func sessionKey(raw []byte) uint64 {
	if len(raw) == 0 || string(raw) == "null" || string(raw) == `""` {
		return 0
	}
	h := uint64(len(raw))
	for _, c := range raw {
		h = mix(h, uint64(c))
	}
	return h | 1
}

func whole(x float64, high int) bool { return x >= 0 && x <= float64(high) && x == math.Trunc(x) }

// told shows a number that was read, or that there was none.
func told(x float64) string {
	if x == -1 {
		return "missing"
	}
	return num(x)
}

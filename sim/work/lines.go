// SPDX-License-Identifier: Apache-2.0

package work

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path/filepath"
)

const longestLine = 4 << 20 // bytes

// lines reads a text line by line, compressed or not, with bounded memory.
type lines struct {
	file string // as it stands in errors
	in   *bufio.Reader
	n    int // of the last line, from 1
	long []byte
}

func newLines(file string, in io.Reader) (*lines, error) {
	l := &lines{file: file, in: bufio.NewReaderSize(in, 64<<10)}
	magic, err := l.in.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", filepath.Base(file), err)
	}
	if bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(l.in)
		if err != nil {
			return nil, fmt.Errorf("%s: begins as gzip does, but is not: %w", filepath.Base(file), err)
		}
		l.in = bufio.NewReaderSize(z, 64<<10)
	}
	if bom, _ := l.in.Peek(3); bytes.Equal(bom, []byte("\xef\xbb\xbf")) {
		_, _ = l.in.Discard(3)
	}
	return l, nil
}

// next is the next line that is not empty, without white space around it. It is valid until the
// call after; at the end the error is io.EOF.
func (l *lines) next() ([]byte, error) {
	for {
		l.n++
		line, err := l.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			l.long = l.long[:0]
			for errors.Is(err, bufio.ErrBufferFull) {
				if l.long = append(l.long, line...); len(l.long) > longestLine {
					return nil, l.wrong("is longer than 4 MiB; a row is one line")
				}
				line, err = l.in.ReadSlice('\n')
			}
			l.long = append(l.long, line...)
			line = l.long
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, l.wrong("%v", err)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
		if err != nil {
			return nil, io.EOF
		}
	}
}

// wrong is an error of the line that was read last.
func (l *lines) wrong(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", l.file, l.n, fmt.Sprintf(format, args...))
}

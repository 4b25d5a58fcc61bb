// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	maxFile = 1 << 20 // bytes of a certificate or token file
	lookup  = time.Second
)

// credentials are what a source trusts and shows. Files are looked at once a second, and only while
// somebody asks; what they said last holds while they cannot be used. Any goroutine may ask.
type credentials struct {
	HTTP

	mu     sync.Mutex
	looked time.Time
	pem    [3][]byte // as last used
	config *tls.Config
	auth   string // the value of the header
	err    error  // when they were never good
}

// read looks at the files if it is time to; what is wrong with them is the error if there is nothing to use.
func (c *credentials) read() (config *tls.Config, auth string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.looked.IsZero() || now.Sub(c.looked) >= lookup {
		c.looked = now
		c.err = errors.Join(c.readTLS(), c.readToken())
	}
	if c.err != nil && (c.Scheme == "https" && c.config == nil || c.BearerTokenFile != "" && c.auth == "") {
		return nil, "", c.err
	}
	return c.config, c.auth, nil
}

func (c *credentials) readTLS() error {
	if c.Scheme != "https" {
		return nil
	}
	var pem [3][]byte
	for i, f := range []struct{ field, path string }{{"caCertPath", c.CACertPath}, {"clientCertPath", c.ClientCertPath}, {"clientKeyPath", c.ClientKeyPath}} {
		if f.path == "" {
			continue
		}
		var err error
		if pem[i], err = readFile(f.path); err != nil {
			return fmt.Errorf("%s: %w", f.field, err)
		}
	}
	if c.config != nil && bytes.Equal(pem[0], c.pem[0]) && bytes.Equal(pem[1], c.pem[1]) && bytes.Equal(pem[2], c.pem[2]) {
		return nil
	}
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: c.InsecureSkipVerify, //nolint:gosec // the operator's choice; the field's default for engines
		ClientSessionCache: tls.NewLRUClientSessionCache(0),
	}
	if c.CACertPath != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem[0]) {
			return fmt.Errorf("caCertPath: %s: holds no certificate in PEM", c.CACertPath)
		}
	}
	if c.ClientCertPath != "" {
		pair, err := tls.X509KeyPair(pem[1], pem[2])
		if err != nil {
			return fmt.Errorf("clientCertPath: %s and %s: %w", c.ClientCertPath, c.ClientKeyPath, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	c.config, c.pem = config, pem
	return nil
}

func (c *credentials) readToken() error {
	if c.BearerTokenFile == "" {
		return nil
	}
	data, err := readFile(c.BearerTokenFile)
	if err != nil {
		return fmt.Errorf("bearerTokenFile: %w", err)
	}
	token := bytes.TrimSpace(data)
	if len(token) == 0 || len(token) > 16<<10 || bytes.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return fmt.Errorf("bearerTokenFile: %s: want one token, of printable ASCII without blanks", c.BearerTokenFile)
	}
	c.auth = "Bearer " + string(token)
	return nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s: is larger than %d bytes", path, maxFile)
	}
	return data, err
}

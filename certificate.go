// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// certificate gives what to serve TLS with, to those who speak one of the protocols. The folder holds tls.crt and
// tls.key, as a Kubernetes secret does; they are read again when they change, and a pair that does not load is logged
// while the last good one stays in use. Without a folder a certificate is made and signed by
// itself, as proxies of endpoint pickers expect.
func certificate(folder string, log *slog.Logger, protocols ...string) (*tls.Config, error) {
	c := &tls.Config{NextProtos: protocols, MinVersion: tls.VersionTLS12}
	if folder == "" {
		cert, err := selfSigned(time.Now())
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{*cert}
		return c, nil
	}
	crt, key := filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	pair := &followed[*tls.Certificate]{what: "certificate", log: log, files: []string{crt, key}, read: func() (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(crt, key)
		return &cert, err
	}}
	if err := pair.load(); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get(), nil }
	return c, nil
}

// demand has a listener speak only with clients whose certificate is of an authority in the file, which is read again
// when it changes as certificates are.
func demand(c *tls.Config, file string, log *slog.Logger) error {
	pool := &followed[*x509.CertPool]{what: "client authorities", log: log, files: []string{file}, read: func() (*x509.CertPool, error) { return authorities(file) }}
	if err := pool.load(); err != nil {
		return err
	}
	c.ClientAuth, c.SessionTicketsDisabled = tls.RequireAndVerifyClientCert, true // a resumed session would be of an authority of before
	base := c.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := base.Clone()
		now.ClientCAs = pool.get()
		return now, nil
	}
	return nil
}

// authorities reads the certificates of a file.
func authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate: want PEM", file)
	}
	return pool, nil
}

// selfSigned makes a certificate that is good for ten years.
func selfSigned(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	names := []string{"localhost"}
	if host, err := os.Hostname(); err == nil && host != "localhost" {
		names = append(names, host)
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "penstock", Organization: []string{"Penstock"}},
		NotBefore:             now.Add(-time.Hour), // clocks differ
		NotAfter:              now.AddDate(10, 0, 0),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              names,
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// lookEvery bounds how often the files are looked at.
const lookEvery = time.Second

// followed is what files say. They are looked at when somebody connects, which is when it
// matters, so that nothing has to run meanwhile.
type followed[T any] struct {
	what  string
	log   *slog.Logger
	files []string
	read  func() (T, error)

	mu     sync.Mutex
	value  T
	stamps []stamp
	next   time.Time // of a look
}

// stamp tells one version of a file from another.
type stamp struct {
	at   time.Time
	size int64
}

func (f *followed[T]) look() ([]stamp, error) {
	var s []stamp
	for _, name := range f.files {
		info, err := os.Stat(name) // follows links: Kubernetes swaps one
		if err != nil {
			return nil, err
		}
		s = append(s, stamp{info.ModTime(), info.Size()})
	}
	return s, nil
}

func (f *followed[T]) load() error {
	stamps, err := f.look()
	if err != nil {
		return err
	}
	f.stamps = stamps
	value, err := f.read()
	if err != nil {
		return err
	}
	f.value = value
	return nil
}

// get is what the files say, or did when they were last right.
func (f *followed[T]) get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Before(f.next) {
		return f.value
	}
	f.next = now.Add(lookEvery)
	if stamps, err := f.look(); err == nil && slices.Equal(stamps, f.stamps) {
		return f.value
	}
	if err := f.load(); err != nil {
		f.log.Error(f.what+" not reloaded, the last good one stays in use", slog.String("file", f.files[0]), slog.Any("error", err))
	} else {
		f.log.Info(f.what+" reloaded", slog.String("file", f.files[0]))
	}
	return f.value
}

// SPDX-License-Identifier: Apache-2.0

package extproc

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
	"sync"
	"time"
)

// Certificate gives what to serve TLS with. The folder holds tls.crt and tls.key, as a Kubernetes
// secret does; they are read again when they change, and a pair that does not load is logged
// while the last good one stays in use. Without a folder a certificate is made and signed by
// itself, as proxies of endpoint pickers expect.
func Certificate(folder string, log *slog.Logger) (*tls.Config, error) {
	c := &tls.Config{NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	if folder == "" {
		cert, err := selfSigned(time.Now())
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{*cert}
		return c, nil
	}
	p := &pair{crt: filepath.Join(folder, "tls.crt"), key: filepath.Join(folder, "tls.key"), log: log}
	if err := p.load(); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	c.GetCertificate = p.get
	return c, nil
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

// pair is a certificate in files. They are looked at when a proxy connects, which is when it
// matters, so that nothing has to run meanwhile.
type pair struct {
	crt, key string
	log      *slog.Logger

	mu    sync.Mutex
	cert  *tls.Certificate
	stamp [2]stamp
	next  time.Time // of a look
}

// stamp tells one version of a file from another.
type stamp struct {
	at   time.Time
	size int64
}

func (p *pair) stamps() (s [2]stamp, err error) {
	for i, name := range []string{p.crt, p.key} {
		info, err := os.Stat(name) // follows links: Kubernetes swaps one
		if err != nil {
			return s, err
		}
		s[i] = stamp{info.ModTime(), info.Size()}
	}
	return s, nil
}

func (p *pair) load() error {
	stamp, err := p.stamps()
	if err != nil {
		return err
	}
	p.stamp = stamp
	cert, err := tls.LoadX509KeyPair(p.crt, p.key)
	if err != nil {
		return err
	}
	p.cert = &cert
	return nil
}

// get implements tls.Config.GetCertificate.
func (p *pair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Before(p.next) {
		return p.cert, nil
	}
	p.next = now.Add(lookEvery)
	if stamp, err := p.stamps(); err == nil && stamp == p.stamp {
		return p.cert, nil
	}
	if err := p.load(); err != nil {
		p.log.Error("certificate not reloaded, the last good one stays in use", slog.String("file", p.crt), slog.Any("error", err))
	} else {
		p.log.Info("certificate reloaded", slog.String("file", p.crt))
	}
	return p.cert, nil
}

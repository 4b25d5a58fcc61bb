// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSelfSigned(t *testing.T) {
	c, err := certificate("", slog.Default(), "h2")
	if err != nil {
		t.Fatal(err)
	}
	leaf := shake(t, c)
	for _, name := range []string{"localhost", "127.0.0.1", "::1"} {
		if err := leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if _, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || leaf.NotAfter.Before(time.Now().AddDate(9, 11, 0)) {
		t.Errorf("key %T until %v", leaf.PublicKey, leaf.NotAfter)
	}
}

// shake makes a handshake as Envoy would, and gives the certificate.
func shake(t *testing.T, c *tls.Config) *x509.Certificate {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go tls.Server(a, c).Handshake()
	client := tls.Client(b, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	s := client.ConnectionState()
	if s.NegotiatedProtocol != "h2" {
		t.Errorf("protocol %q", s.NegotiatedProtocol)
	}
	return s.PeerCertificates[0]
}

// writePair makes a pair of files, for servers and clients, with a time of its own.
func writePair(t *testing.T, folder string, at time.Time) []byte {
	t.Helper()
	cert, err := selfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	leaf.ExtKeyUsage = append(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	if cert.Certificate[0], err = x509.CreateCertificate(rand.Reader, leaf, leaf, leaf.PublicKey, cert.PrivateKey); err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	putAt(t, filepath.Join(folder, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), at)
	putAt(t, filepath.Join(folder, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), at)
	return cert.Certificate[0]
}

func putAt(t *testing.T, name string, b []byte, at time.Time) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(name, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestCertificateReload(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		start := time.Now()
		first := writePair(t, folder, start)
		c, err := certificate(folder, slog.New(slog.NewTextHandler(&log, nil)), "h2")
		if err != nil {
			t.Fatal(err)
		}
		want := func(what string, der []byte) {
			t.Helper()
			time.Sleep(lookEvery) // bubble time
			if !slices.Equal(shake(t, c).Raw, der) {
				t.Error(what)
			}
		}
		want("not the first certificate", first)
		second := writePair(t, folder, start.Add(time.Minute))
		want("not the second certificate", second)
		putAt(t, filepath.Join(folder, "tls.key"), []byte("garbage"), start.Add(2*time.Minute))
		want("the last good one is not kept", second)
		if strings.Count(log.String(), "not reloaded") != 1 {
			t.Errorf("log: %s", log.String())
		}
		want("the last good one is not kept", second)
		if strings.Count(log.String(), "not reloaded") != 1 {
			t.Errorf("said again: %s", log.String())
		}
		if err := os.Remove(filepath.Join(folder, "tls.crt")); err != nil {
			t.Fatal(err)
		}
		want("the last good one is not kept without a file", second)
		want("not the third certificate", writePair(t, folder, start.Add(3*time.Minute)))
	})
	if _, err := certificate(t.TempDir(), slog.Default()); err == nil || !strings.Contains(err.Error(), "tls.crt") {
		t.Errorf("got %v", err)
	}
}

// The metrics port speaks HTTPS with a certificate that is followed, and lets in only clients of an authority, which is
// followed, too.
func TestMetricsTLS(t *testing.T) {
	folder, clients := t.TempDir(), t.TempDir()
	ca := filepath.Join(folder, "ca.crt")
	synctest.Test(t, func(t *testing.T) {
		server := writePair(t, folder, time.Now())
		first := writePair(t, clients, time.Now())
		authority := func(der []byte, at time.Time) {
			putAt(t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), at)
		}
		authority(first, time.Now())
		var log bytes.Buffer
		p := &process{settings: settings{metricsCerts: folder, metricsClients: ca, minTLS: "VersionTLS13"}}
		p.log = slog.New(slog.NewTextHandler(&log, nil))
		c, err := p.metricsCertificate()
		if err != nil {
			t.Fatal(err)
		}
		// connect makes a connection with the certificate in a folder, and returns what the server finds wrong with it.
		connect := func(folder string, version uint16) error {
			t.Helper()
			time.Sleep(lookEvery)
			a, b := net.Pipe()
			told := make(chan error, 1)
			go func() {
				s := tls.Server(a, c)
				err := s.Handshake()
				if err == nil {
					_, err = s.Write([]byte("x"))
				}
				_ = a.Close()
				told <- err
			}()
			o := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}, MaxVersion: version}
			if folder != "" {
				pair, err := tls.LoadX509KeyPair(filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
				if err != nil {
					t.Fatal(err)
				}
				o.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil } // whatever is asked for
			}
			client := tls.Client(b, o)
			if err := client.Handshake(); err == nil {
				if s := client.ConnectionState(); s.NegotiatedProtocol != "http/1.1" || !slices.Equal(s.PeerCertificates[0].Raw, server) {
					t.Errorf("protocol %q, certificate %v", s.NegotiatedProtocol, s.PeerCertificates[0].Subject)
				}
				_, _ = client.Read(make([]byte, 1))
			}
			_ = b.Close()
			return <-told
		}
		want := func(what, text string, err error) {
			t.Helper()
			if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
				t.Errorf("%s: got %v, want %q", what, err, text)
			}
		}
		want("a client with a certificate", "", connect(clients, 0))
		want("a client without one", "didn't provide a certificate", connect("", 0))
		want("TLS 1.2", "unsupported versions", connect(clients, tls.VersionTLS12))
		server = writePair(t, folder, time.Now().Add(time.Minute))
		want("a new certificate of ours", "", connect(clients, 0))
		second := writePair(t, clients, time.Now())
		want("a client of another authority", "unknown authority", connect(clients, 0))
		authority(second, time.Now().Add(time.Minute))
		want("the authority has changed", "", connect(clients, 0))
		putAt(t, ca, []byte("garbage"), time.Now().Add(2*time.Minute))
		want("the last good authority stays", "", connect(clients, 0))
		if strings.Count(log.String(), "client authorities not reloaded") != 1 {
			t.Errorf("log: %s", &log)
		}
	})
	for _, x := range []struct {
		s    settings
		want string
	}{
		{settings{metricsCerts: clients, metricsClients: filepath.Join(clients, "tls.key")}, "--metrics-client-ca-file: " + filepath.Join(clients, "tls.key") + ": no certificate: want PEM"},
		{settings{metricsCerts: t.TempDir()}, "--metrics-cert-dir: certificate: "},
	} {
		p := &process{settings: x.s}
		if _, err := p.metricsCertificate(); err == nil || !strings.HasPrefix(err.Error(), x.want) {
			t.Errorf("got %v, want %q", err, x.want)
		}
	}
}

// Cipher suites without those of HTTP/2 leave HTTP/1.1 on the metrics port.
func TestMetricsCipherSuites(t *testing.T) {
	folder := t.TempDir()
	writePair(t, folder, time.Now())
	for suites, want := range map[string]string{
		"": "HTTP/2.0",
		"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "HTTP/2.0",
		"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384":                                         "HTTP/1.1",
	} {
		p := &process{settings: settings{metricsCerts: folder}}
		if suites != "" {
			p.ciphers = strings.Split(suites, ",")
		}
		p.log = slog.New(slog.DiscardHandler)
		c, err := p.metricsCertificate()
		if err != nil {
			t.Fatal(err)
		}
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- serveTLS(ctx, lis, c, p.log, http.NotFoundHandler()) }()
		client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		resp, err := client.Get("https://" + lis.Addr().String())
		if err != nil {
			t.Errorf("%q: %v", suites, err)
		} else if resp.Body.Close(); resp.Proto != want {
			t.Errorf("%q: got %s, want %s", suites, resp.Proto, want)
		}
		stop()
		if err := <-served; err != nil {
			t.Errorf("%q: %v", suites, err)
		}
		client.CloseIdleConnections()
	}
}

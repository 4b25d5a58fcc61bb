// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSelfSigned(t *testing.T) {
	c, err := Certificate("", slog.Default())
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

// write makes a pair of files, with a time of its own.
func write(t *testing.T, folder string, at time.Time) []byte {
	t.Helper()
	cert, err := selfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(folder, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), at)
	put(t, filepath.Join(folder, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), at)
	return cert.Certificate[0]
}

func put(t *testing.T, name string, b []byte, at time.Time) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(name, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestReload(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		start := time.Now()
		first := write(t, folder, start)
		c, err := Certificate(folder, slog.New(slog.NewTextHandler(&log, nil)))
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
		second := write(t, folder, start.Add(time.Minute))
		want("not the second certificate", second)
		put(t, filepath.Join(folder, "tls.key"), []byte("garbage"), start.Add(2*time.Minute))
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
		want("not the third certificate", write(t, folder, start.Add(3*time.Minute)))
	})
	if _, err := Certificate(t.TempDir(), slog.Default()); err == nil || !strings.Contains(err.Error(), "tls.crt") {
		t.Errorf("got %v", err)
	}
}

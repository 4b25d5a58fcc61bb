// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/penstock-project/penstock/api"
)

// readPenstock reads our own document, of which there is one.
func readPenstock(d *document) {
	p := api.Penstock{Spec: api.DefaultPenstock()}
	d.decode(&p)
	if first, twice := d.seen["Penstock"]; twice {
		d.fail("kind", "Penstock is written twice, first at %s", first)
		return
	}
	d.seen["Penstock"] = place{d.file, d.root.Line}
	listeners := p.Spec.Listeners
	d.listen("spec.listeners.http", listeners.HTTP)
	d.listen("spec.listeners.extproc", listeners.ExtProc)
	d.listen("spec.listeners.metrics", listeners.Metrics)
	d.apart([]string{"http", "extproc", "metrics"}, []string{listeners.HTTP, listeners.ExtProc, listeners.Metrics})
	limits := p.Spec.Limits
	d.positive("spec.limits.maxBodyBytes", int64(limits.MaxBodyBytes))
	d.positive("spec.limits.maxBufferedBytes", int64(limits.MaxBufferedBytes))
	d.positive("spec.limits.maxHeaderBytes", int64(limits.MaxHeaderBytes))
	d.positive("spec.limits.bodyTimeout", int64(limits.BodyTimeout))
	if limits.MaxBufferedBytes < limits.MaxBodyBytes {
		d.fail("spec.limits", "maxBufferedBytes %s is less than one body of maxBodyBytes %s", limits.MaxBufferedBytes, limits.MaxBodyBytes)
	}
	if h := p.Spec.Trust.Header; h != nil {
		d.trustHeader(h)
	}
	d.health(p.Spec.Health)
	d.cfg.Penstock = p.Spec
}

func (d *document) health(h api.Health) {
	d.positive("spec.health.consecutiveFailures", int64(h.ConsecutiveFailures))
	d.positive("spec.health.firstEjection", int64(h.FirstEjection))
	if h.LongestEjection < h.FirstEjection {
		d.fail("spec.health.longestEjection", "want firstEjection, %s, or more, got %s", h.FirstEjection, h.LongestEjection)
	}
	if h.SlowStart < 0 {
		d.fail("spec.health.slowStart", "want 0s or more, got %s", h.SlowStart)
	}
	if !(h.MinShare > 0 && h.MinShare <= 1) {
		d.fail("spec.health.minShare", "want a share above 0 and at most 1, got %g", h.MinShare)
	}
}

func (d *document) positive(path string, n int64) {
	if n <= 0 {
		d.fail(path, "must be above 0")
	}
}

func (d *document) listen(path, addr string) {
	if addr == "" {
		return
	}
	_, port, err := net.SplitHostPort(addr)
	if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 0 || n > 65535 {
		d.fail(path, "want an address such as :8080 or 127.0.0.1:8080, got %q", short(addr))
	}
}

// apart warns of two listeners of which only one can have the address.
func (d *document) apart(names, addrs []string) {
	for i := range addrs {
		for k := range i {
			host, port, err := net.SplitHostPort(addrs[i])
			other, same, bad := net.SplitHostPort(addrs[k])
			if err == nil && bad == nil && port == same && port != "0" && (host == other || anyHost(host) || anyHost(other)) {
				d.warn("spec.listeners."+names[i], "%s is the address of listeners.%s, too: only one of them can listen", addrs[i], names[k])
			}
		}
	}
}

func anyHost(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// trustHeader checks the secret header, and reads its value from the file when it is there.
func (d *document) trustHeader(h *api.TrustHeader) {
	const at = "spec.trust.header"
	if !headerName.MatchString(h.Name) {
		d.fail(at+".name", "want the name of a header, got %q", short(h.Name))
	}
	switch {
	case h.Value != "" && h.File != "":
		d.fail(at, "has value and file: write only one of them")
	case h.Value == "" && h.File == "":
		d.fail(at, "has no secret: want value or file")
	case h.File != "":
		d.secret(at+".file", h)
	}
}

const maxSecret = 4096

func readSecret(name string) ([]byte, error) {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, fmt.Errorf("%s is not a file", name))
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSecret+1))
}

func (d *document) secret(path string, h *api.TrustHeader) {
	name := h.File
	if !filepath.IsAbs(name) && filepath.IsAbs(d.abs) {
		name = filepath.Join(filepath.Dir(d.abs), name)
	}
	data, err := readSecret(name)
	data = bytes.TrimSpace(data)
	switch {
	case err != nil:
		d.fail(path, "%v", err)
	case len(data) == 0 || len(data) > maxSecret:
		d.fail(path, "want a secret of 1 to %d bytes in %s", maxSecret, name)
	default:
		h.Value = string(data)
		d.cfg.Files = append(d.cfg.Files, name)
		d.digestOf(name, data)
	}
}

// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Page is a page in a real Chromium without a window.
type Page struct {
	ctx context.Context

	mu    sync.Mutex
	said  []string // by its console, and what it could not load
	asked []string // addresses other than the page's own
}

// Browse starts Chromium and opens a file.
func Browse(t testing.TB, file string) *Page {
	t.Helper()
	program := filepath.Join(Tool(t, "install-chromium.sh"), "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, // it opens nothing but our own page
		chromedp.DisableGPU)
	ctx, cancel := context.WithTimeout(t.Context(), 2*Patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p := &Page{ctx: ctx}
	call(t, p, network.Enable, network.EnableParams{})
	address := (&url.URL{Scheme: "file", Path: file}).String()
	err := chromedp.Listen(ctx, func(e any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch e := e.(type) {
		case *runtime.EventConsoleAPICalled:
			p.said = append(p.said, fmt.Sprintf("console.%s of %d values", e.Type, len(e.Args)))
		case *runtime.EventExceptionThrown:
			p.said = append(p.said, e.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			p.said = append(p.said, e.Entry.Text)
		case *network.EventRequestWillBeSent:
			if u := e.Request.URL; u != address && !strings.HasPrefix(u, "data:") {
				p.asked = append(p.asked, u)
			}
		}
	})
	if err != nil {
		t.Fatalf("chromium: %v", err)
	}
	if err := chromedp.Do(ctx, chromedp.Navigate(address)); err != nil {
		t.Fatalf("chromium: %v", err)
	}
	return p
}

// call runs a command of the DevTools protocol.
func call[P, R any](t testing.TB, p *Page, command cdp.Command[P, R], params P) R {
	t.Helper()
	result, err := chromedp.Call(p.ctx, command, params)
	if err != nil {
		t.Fatalf("chromium: %s: %v", command.Method, err)
	}
	return result
}

// Screen makes the window as large as a screen, dark or not.
func (p *Page) Screen(t testing.TB, width, height int64, dark bool) {
	t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	call(t, p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 500})
	call(t, p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// Eval evaluates an expression of JavaScript in the page.
func Eval[T any](t testing.TB, p *Page, expression string) T {
	t.Helper()
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("chromium: %s: %v", expression, err)
	}
	return value
}

// Shoot writes a picture of the whole page.
func (p *Page) Shoot(t testing.TB, file string) {
	t.Helper()
	png, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(file, png, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Trouble is what the page's console said and what it asked the network for; a page that stands alone has none.
func (p *Page) Trouble() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(append([]string(nil), p.said...), p.asked...)
}

// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-project/penstock/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// changes are the ways in which a file comes to say something else. Each leaves "new" at the path.
var changes = []struct {
	name    string
	prepare func(t *testing.T, dir, path string) // leaves "old" at the path
	change  func(t *testing.T, dir, path string)
}{
	{"written in place", plain, func(t *testing.T, _, path string) { write(t, path, "new") }},
	{"replaced by a rename", plain, func(t *testing.T, dir, path string) {
		write(t, filepath.Join(dir, "next.tmp"), "new")
		do(t, os.Rename(filepath.Join(dir, "next.tmp"), path))
	}},
	{"deleted and made again", plain, func(t *testing.T, _, path string) {
		do(t, os.Remove(path))
		write(t, path, "new")
	}},
	{"made", func(*testing.T, string, string) {}, func(t *testing.T, _, path string) { write(t, path, "new") }},
	{"its folder replaced", plain, func(t *testing.T, dir, path string) {
		do(t, os.Rename(dir, dir+".old"))
		do(t, os.Mkdir(dir, 0o755))
		write(t, path, "new")
	}},
	{"swapped as a ConfigMap", func(t *testing.T, dir, path string) {
		do(t, os.Mkdir(filepath.Join(dir, "..1"), 0o755))
		write(t, filepath.Join(dir, "..1", filepath.Base(path)), "old")
		do(t, os.Symlink("..1", filepath.Join(dir, "..data")))
		do(t, os.Symlink(filepath.Join("..data", filepath.Base(path)), path))
	}, func(t *testing.T, dir, path string) {
		do(t, os.Mkdir(filepath.Join(dir, "..2"), 0o755))
		write(t, filepath.Join(dir, "..2", filepath.Base(path)), "new")
		do(t, os.Symlink("..2", filepath.Join(dir, "..data_tmp")))
		do(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		do(t, os.RemoveAll(filepath.Join(dir, "..1")))
	}},
	{"what a link points to", func(t *testing.T, dir, path string) {
		do(t, os.Mkdir(dir+".elsewhere", 0o755))
		write(t, filepath.Join(dir+".elsewhere", "f"), "old")
		do(t, os.Symlink(filepath.Join(dir+".elsewhere", "f"), path))
	}, func(t *testing.T, dir, _ string) { write(t, filepath.Join(dir+".elsewhere", "f"), "new") }},
}

func plain(t *testing.T, _, path string) { write(t, path, "old") }

func folder(t *testing.T) (dir, path string) {
	dir = filepath.Join(t.TempDir(), "d")
	do(t, os.Mkdir(dir, 0o755))
	return dir, filepath.Join(dir, "f.yaml")
}

// Each way is noticed by notification, for the file and for its folder.
func TestWatch(t *testing.T) {
	for _, c := range changes {
		for _, whole := range []bool{false, true} {
			t.Run(c.name+map[bool]string{false: ", file", true: ", folder"}[whole], func(t *testing.T) {
				dir, path := folder(t)
				c.prepare(t, dir, path)
				watched := path
				if whole {
					watched = dir
				}
				w := newWatcher([]string{watched}, true)
				ctx, cancel := context.WithCancel(t.Context())
				seen := make(chan string, 100)
				ended := make(chan error)
				go func() {
					ended <- w.run(ctx, func() { b, _ := os.ReadFile(path); seen <- string(b) })
				}()
				c.change(t, dir, path)
				limit := time.After(10 * time.Second)
				for got := ""; got != "new"; {
					select {
					case got = <-seen:
					case <-limit:
						t.Fatal("the change was not seen")
					}
				}
				cancel()
				do(t, <-ended)
			})
		}
	}
}

// Each way is noticed by polling alone, once, and what changes nothing is not.
func TestPoll(t *testing.T) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			dir, path := folder(t)
			c.prepare(t, dir, path)
			synctest.Test(t, func(t *testing.T) {
				w := newWatcher([]string{path}, false)
				ctx, cancel := context.WithCancel(t.Context())
				calls := 0
				ended := make(chan error, 1)
				go func() { ended <- w.run(ctx, func() { calls++ }) }()
				<-time.After(5 * poll / 2)
				synctest.Wait()
				if calls != 0 {
					t.Errorf("got %d calls before the change", calls)
				}
				c.change(t, dir, path)
				<-time.After(poll)
				synctest.Wait()
				do(t, os.Chtimes(path, time.Time{}, time.Unix(1e9, 0))) // touched: it says the same
				<-time.After(2 * poll)
				synctest.Wait()
				if calls != 1 {
					t.Errorf("got %d calls, want 1", calls)
				}
				cancel()
				do(t, <-ended)
			})
		})
	}
}

func TestEditorsFilesDoNotCount(t *testing.T) {
	dir, path := folder(t)
	write(t, path, "old")
	w := newWatcher([]string{dir}, false)
	for _, n := range []string{".f.yaml.swp", "#f.yaml#", "f.yaml~"} {
		write(t, filepath.Join(dir, n), "x")
	}
	w.check(true, func() { t.Error("got a change") })
	write(t, filepath.Join(dir, "g.yaml"), "x")
	seen := false
	w.check(true, func() { seen = true })
	if !seen {
		t.Error("a new file was not seen")
	}
}

// lines is a list of endpoints, one name=address a line; what has no = is wrong.
func lines(data []byte) (specs []fleet.EndpointSpec, errs []error) {
	for l := range strings.Lines(string(data)) {
		l = strings.TrimSpace(l)
		if name, addr, ok := strings.Cut(l, "="); ok {
			specs = append(specs, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: name}, Address: addr})
		} else if l != "" {
			errs = append(errs, errors.New("wrong: "+l))
		}
	}
	return specs, errs
}

func TestEndpoints(t *testing.T) {
	_, path := folder(t)
	var mu sync.Mutex
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return said.Write(p)
	}), nil))
	synctest.Test(t, func(t *testing.T) {
		store := fleet.NewStore()
		store.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Namespace: "default", Name: "p"}}})
		w := newWatcher([]string{path}, false)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- follow(ctx, w, store, path, lines, log) }()
		synctest.Wait()
		var loads []*fleet.Load
		for _, c := range []struct{ name, text, want, says string }{
			{"no file yet", "-", "", "no such file"},
			{"two", "a=1.1.1.1:1\nb=1.1.1.2:1\n", "a b", "endpoints=2"},
			{"one is wrong", "a=1.1.1.1:1\nb\nc=1.1.1.3:1\n", "a c", "wrong: b"},
			{"all are wrong", "what\nis this\n", "a c", "what it said before stays"},
			{"the file is gone", "-", "a c", "no such file"},
			{"as before", "a=1.1.1.1:1\nb\nc=1.1.1.3:1\n", "a c", ""},
			{"an empty list", "", "", "endpoints=0"},
			{"one again", "a=1.1.1.1:1\n", "a", "endpoints=1"},
		} {
			if c.text == "-" {
				_ = os.Remove(path)
			} else {
				write(t, path, c.text)
			}
			<-time.After(2 * poll)
			synctest.Wait()
			var got []string
			for _, e := range store.Load().Pools[0].Endpoints {
				got = append(got, e.Name)
				if e.Name == "a" && !slices.Contains(loads, e.Load) {
					loads = append(loads, e.Load)
				}
			}
			if g := strings.Join(got, " "); g != c.want {
				t.Errorf("%s: got %q, want %q", c.name, g, c.want)
			}
			mu.Lock()
			if !strings.Contains(said.String(), c.says) {
				t.Errorf("%s: got log %q, want %q in it", c.name, said.String(), c.says)
			}
			said.Reset()
			mu.Unlock()
		}
		if len(loads) != 2 {
			t.Errorf("got %d incarnations of a, want 2: it was away once", len(loads))
		}
		cancel()
		do(t, <-ended)
		if n := len(store.Load().Pools[0].Endpoints); n != 1 {
			t.Errorf("got %d endpoints after the end, want what was told to stay", n)
		}
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestFileThatIsTooLarge(t *testing.T) {
	_, path := folder(t)
	f, err := os.Create(path)
	do(t, err)
	do(t, f.Truncate(maxFile+1))
	do(t, f.Close())
	if _, err := read(path); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("got %v", err)
	}
	if _, err := read(filepath.Dir(path)); err == nil {
		t.Error("read a folder")
	}
}

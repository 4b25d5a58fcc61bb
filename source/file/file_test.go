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

// lines is a list of endpoints, one name=address a line; what has no = is wrong, and broken when it is one word.
func lines(data []byte) (list List) {
	for l := range strings.Lines(string(data)) {
		l = strings.TrimSpace(l)
		if name, addr, ok := strings.Cut(l, "="); ok {
			list.Endpoints = append(list.Endpoints, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: name}, Address: addr})
		} else if l != "" {
			list.Errors = append(list.Errors, errors.New("wrong: "+l))
			list.Broken = append(list.Broken, fleet.ID{Namespace: "default", Name: l})
		}
	}
	return list
}

// site is a store with what a file told it last.
type site struct {
	*fleet.Store
	mu    sync.Mutex
	last  []fleet.EndpointSpec
	tells int
	said  bytes.Buffer
}

func newSite() *site {
	s := &site{Store: fleet.NewStore()}
	s.SetPools([]fleet.PoolSpec{{ID: fleet.ID{Namespace: "default", Name: "p"}}})
	return s
}

func (s *site) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said.Write(p)
}

func (s *site) log() *slog.Logger { return slog.New(slog.NewTextHandler(s, nil)) }

func (s *site) told() []fleet.EndpointSpec { return s.last }

func (s *site) tell(list []fleet.EndpointSpec) {
	s.last = list
	s.tells++
	s.SetEndpoints("f", list)
}

func (s *site) names() string {
	var got []string
	for _, e := range s.Load().Pools[0].Endpoints {
		got = append(got, e.Name+"="+e.Address)
	}
	return strings.Join(got, " ")
}

func TestEndpoints(t *testing.T) {
	_, path := folder(t)
	synctest.Test(t, func(t *testing.T) {
		s := newSite()
		w := newWatcher([]string{path}, false)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- follow(ctx, w, path, lines, s.told, s.tell, s.log()) }()
		synctest.Wait()
		var loads []*fleet.Load
		for _, c := range []struct{ name, text, want, says string }{
			{"no file yet", "-", "", "no such file"},
			{"two", "a=1.1.1.1:1\nb=1.1.1.2:1\n", "a=1.1.1.1:1 b=1.1.1.2:1", "endpoints=2"},
			{"a new one is wrong", "a=1.1.1.1:1\nx\nb=1.1.1.2:1\nc=1.1.1.3:1\n", "a=1.1.1.1:1 b=1.1.1.2:1 c=1.1.1.3:1", "wrong: x"},
			{"one has become wrong", "a=1.1.1.1:1\nb\nc=1.1.1.4:1\n", "a=1.1.1.1:1 b=1.1.1.2:1 c=1.1.1.4:1", "stays as it was"},
			{"it still is", "a=1.1.1.1:1\nb\nc=1.1.1.3:1\n", "a=1.1.1.1:1 b=1.1.1.2:1 c=1.1.1.3:1", "endpoint=default/b"},
			{"it is gone", "a=1.1.1.1:1\nc=1.1.1.3:1\n", "a=1.1.1.1:1 c=1.1.1.3:1", "endpoints=2"},
			{"all are wrong", "what\nis this\n", "a=1.1.1.1:1 c=1.1.1.3:1", "what it said before stays"},
			{"the file is gone", "-", "a=1.1.1.1:1 c=1.1.1.3:1", "no such file"},
			{"as before", "a=1.1.1.1:1\nc=1.1.1.3:1\n", "a=1.1.1.1:1 c=1.1.1.3:1", ""},
			{"an empty list", "", "", "endpoints=0"},
			{"one again", "a=1.1.1.1:1\n", "a=1.1.1.1:1", "endpoints=1"},
			{"the same, written otherwise", "\n a=1.1.1.1:1", "a=1.1.1.1:1", ""},
		} {
			if c.text == "-" {
				_ = os.Remove(path)
			} else {
				write(t, path, c.text)
			}
			<-time.After(2 * poll)
			synctest.Wait()
			for _, e := range s.Load().Pools[0].Endpoints {
				if e.Name == "a" && !slices.Contains(loads, e.Load) {
					loads = append(loads, e.Load)
				}
			}
			if g := s.names(); g != c.want {
				t.Errorf("%s: got %q, want %q", c.name, g, c.want)
			}
			s.mu.Lock()
			if !strings.Contains(s.said.String(), c.says) || c.says == "" && s.said.Len() > 0 {
				t.Errorf("%s: got log %q, want %q in it", c.name, s.said.String(), c.says)
			}
			s.said.Reset()
			s.mu.Unlock()
		}
		if len(loads) != 2 {
			t.Errorf("got %d incarnations of a, want 2: it was away once", len(loads))
		}
		if s.tells != 7 {
			t.Errorf("told %d times, want 7: what says the same is not told", s.tells)
		}
		cancel()
		do(t, <-ended)
		if n := len(s.Load().Pools[0].Endpoints); n != 1 {
			t.Errorf("got %d endpoints after the end, want what was told to stay", n)
		}
	})
}

// Each way in which a file changes is followed, by notification and with a real file.
func TestEndpointsAreFollowed(t *testing.T) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			dir, path := folder(t)
			c.prepare(t, dir, path)
			s := newSite()
			parse := func(data []byte) List { // "old" and "new" are what the changes write
				return lines([]byte("e=" + map[string]string{"old": "1.1.1.1:1", "new": "1.1.1.2:1"}[string(data)] + "\n"))
			}
			changed := s.Changed()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- Endpoints(ctx, path, parse, s.told, s.tell, s.log()) }()
			if c.name != "made" {
				await(t, changed)
			}
			c.change(t, dir, path)
			until(t, s, "e=1.1.1.2:1")
			cancel()
			do(t, <-ended)
		})
	}
}

// until waits for the endpoints to be these.
func until(t *testing.T, s *site, want string) {
	t.Helper()
	for s.names() != want {
		changed := s.Changed()
		if s.names() != want {
			await(t, changed)
		}
	}
}

func await(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing changed")
	}
}

// A file that is truncated and then written piece by piece is read when it is quiet; what stands in between
// does no harm, though it may be seen when the writer pauses.
func TestHalfWrittenFile(t *testing.T) {
	_, path := folder(t)
	write(t, path, "a=1.1.1.1:1\nb=1.1.1.2:1\n")
	s := newSite()
	parse := func(data []byte) List {
		if len(data) == 0 {
			return List{Errors: []error{errors.New("empty")}}
		}
		return lines(data)
	}
	changed := s.Changed()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Endpoints(ctx, path, parse, s.told, s.tell, s.log()) }()
	await(t, changed)
	v := s.Load().Version
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	do(t, err)
	for !s.has("empty") { // it is seen while there is nothing in it
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the empty file was not seen")
		}
	}
	if s.Load().Version != v {
		t.Errorf("got %q from an empty file", s.names())
	}
	for _, piece := range []string{"a=1.1.1.1:1\nb", "=1.1.1", ".2:1\nc=1.1.", "1.3:1\n"} {
		_, err = f.WriteString(piece)
		do(t, err)
	}
	do(t, f.Close())
	until(t, s, "a=1.1.1.1:1 b=1.1.1.2:1 c=1.1.1.3:1")
	cancel()
	do(t, <-ended)
}

func (s *site) has(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.said.String(), what)
}

// What changes before the watch stands is not missed, nor is a file that only a later look names.
func TestWatchLooksOnceItStands(t *testing.T) {
	dir, path := folder(t)
	write(t, path, "f.yaml")
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan string, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- Watch(ctx, []string{path}, func() []string {
			named, _ := os.ReadFile(path)
			other := filepath.Join(dir, string(named))
			text, _ := os.ReadFile(other)
			seen <- string(named) + ": " + string(text)
			return []string{path, other}
		})
	}()
	next := func(want string) {
		t.Helper()
		limit := time.After(20 * time.Second)
		for {
			select {
			case got := <-seen:
				if got == want {
					return
				}
			case <-limit:
				t.Fatalf("%s was not seen", want)
			}
		}
	}
	next("f.yaml: f.yaml")
	do(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	write(t, filepath.Join(dir, "sub", "g.yaml"), "one")
	write(t, path, "sub/g.yaml")
	next("sub/g.yaml: one")
	next("sub/g.yaml: one") // once more, now that it is watched
	write(t, filepath.Join(dir, "sub", "g.yaml"), "two")
	next("sub/g.yaml: two")
	cancel()
	do(t, <-ended)
}

func TestFileThatIsTooLarge(t *testing.T) {
	_, path := folder(t)
	f, err := os.Create(path)
	do(t, err)
	do(t, f.Truncate(maxFile+1))
	do(t, f.Close())
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("got %v", err)
	}
	if _, err := Read(filepath.Dir(path)); err == nil {
		t.Error("read a folder")
	}
}

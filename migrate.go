// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/penstock-project/penstock/config"
)

// maxManifest bounds what migrate reads of a file.
const maxManifest = 4 << 20

func migrate(_ context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flags("migrate", "FILE|DIR…", "Shows how to write deprecated things today, with the same meaning, as a diff. What needs a decision is told.", stdout)
	write := fs.Bool("write", false, "rewrite the files")
	if err := parse(fs, args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return misused("name the files or folders to migrate")
	}
	files, err := manifests(fs.Args())
	if err != nil {
		return err
	}
	done, failed := 0, false
	for _, file := range files {
		before, err := readManifest(file)
		if err != nil {
			return err
		}
		after, problems := config.Migrate(file, before)
		for _, p := range problems {
			fmt.Fprintln(stderr, p)
			failed = failed || p.Severity == config.Error
		}
		switch {
		case after == before:
			continue
		case !*write:
			fmt.Fprint(stdout, config.Diff(file, before, after))
		default:
			if err := rewrite(file, after); err != nil {
				return err
			}
			fmt.Fprintln(stdout, "rewrote", file)
		}
		done++
	}
	switch {
	case failed:
		return exitError(1)
	case done == 0:
		fmt.Fprintln(stdout, "nothing to do")
	}
	return nil
}

// manifests lists the files and, of folders, those that would be read.
func manifests(paths []string) ([]string, error) {
	var files []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, p)
			continue
		}
		entries, err := os.ReadDir(p)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			name := filepath.Join(p, e.Name())
			if info, err := os.Stat(name); config.Manifest(e.Name()) && err == nil && info.Mode().IsRegular() {
				files = append(files, name)
			}
		}
	}
	return files, nil
}

func readManifest(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	return string(b), err
}

// rewrite replaces a file in one step, behind a link if it is one.
func rewrite(file, text string) error {
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".penstock-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // which is gone when all went well
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

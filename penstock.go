// SPDX-License-Identifier: Apache-2.0

// Package penstock wires the program: subcommands here, plain constructor calls in build.go.
package penstock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/plugin"
	"github.com/penstock-project/penstock/sim/vllm"
)

// command is a subcommand. It ends when ctx does, cleanly.
type command struct {
	name, short string
	run         func(ctx context.Context, args []string, stdout, stderr io.Writer) error
}

func commands() []command {
	return []command{
		{"dev", "everything on a laptop: gateway, simulated engines, metrics", dev},
		{"serve", "the gateway, from a folder of manifests", serve},
		{"epp", "an Endpoint Picker behind Envoy, with llm-d's flags", epp},
		{"check", "say what is wrong with manifests, and what would be right", check},
		{"migrate", "rewrite what is deprecated in manifests", migrate},
		{"explain", "what a plugin does, and its parameters", explain},
		{"bench", "load on any OpenAI-compatible server, and what it is like", benchCommand},
		{"sim run", "a policy on work and a fleet, in virtual time", simRun},
		{"sim replay", "recorded decisions, decided again by other policies", simReplay},
		{"sim fit", "constants of a simulated engine that is as fast as a real one", simFit},
		{"sim kinds", "the kinds of engines that a fleet can be made of", simKinds},
		{"sim workloads", "the kinds of work, named workloads and suites", simWorkloads},
		{"sim engine", "a vLLM-compatible engine without a GPU", vllm.Command},
		{"version", "print the version", version},
	}
}

// exitError is an error that was already told, with the status to end with.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Main runs the program and returns its exit status: 0 for success, 1 for failure, 2 for a command
// line that makes no sense.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	return dispatch(ctx, args, stdout, stderr)
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 || args[0] == "--help" || args[0] == "-h" || args[0] == "help" {
		usage(stdout)
		return 0
	}
	if args[0] == "--version" {
		args = []string{"version"}
	}
	for _, c := range commands() {
		words := strings.Fields(c.name)
		if len(args) < len(words) || strings.Join(args[:len(words)], " ") != c.name {
			continue
		}
		err := c.run(ctx, args[len(words):], stdout, stderr)
		var exit exitError
		switch {
		case err == nil, errors.Is(err, pflag.ErrHelp):
			return 0
		case errors.As(err, &exit):
			return int(exit)
		case errors.Is(err, errUsage):
			fmt.Fprintf(stderr, "penstock %s: %v\nTry penstock %s --help.\n", c.name, err, c.name)
			return 2
		}
		fmt.Fprintf(stderr, "penstock %s: %v\n", c.name, err)
		return 1
	}
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	said := args[0]
	if said == "sim" && len(args) > 1 {
		said = args[0] + " " + args[1]
	}
	fmt.Fprintf(stderr, "penstock: no command %q", said)
	if n := plugin.Nearest(said, names); n != "" {
		fmt.Fprintf(stderr, ": did you mean %s?", n)
	}
	fmt.Fprintln(stderr, "\nTry penstock --help.")
	return 2
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Penstock decides, for every LLM request, whether it may run now and on which endpoint.\n\nUsage: penstock COMMAND [flags]\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-12s %s\n", c.name, c.short)
	}
	fmt.Fprint(w, "\npenstock COMMAND --help tells its flags. Start with penstock dev.\n")
}

// errUsage marks a command line that makes no sense.
var errUsage = errors.New("wrong usage")

func misused(format string, a ...any) error {
	return fmt.Errorf("%w: %s", errUsage, fmt.Sprintf(format, a...))
}

// flags is a flag set whose help goes to stdout.
func flags(name, args, about string, stdout io.Writer) *pflag.FlagSet {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(stdout)
	fs.Usage = func() {
		fmt.Fprintf(stdout, "%s\n\nUsage: penstock %s %s\n\n%s", about, name, args, fs.FlagUsages())
	}
	return fs
}

// parse reads the command line; what is wrong with it is a misuse.
func parse(fs *pflag.FlagSet, args []string) error {
	err := fs.Parse(args)
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		return misused("%v", err)
	}
	return err
}

func version(_ context.Context, args []string, stdout, _ io.Writer) error {
	fs := flags("version", "", "Prints the version, and the commit it was built from.", stdout)
	if err := parse(fs, args); err != nil {
		return err
	}
	commit, ref := buildInfo()
	fmt.Fprintf(stdout, "penstock %s (%s)\n", ref, commit)
	return nil
}

// buildInfo tells the commit and the version that the binary was built from.
func buildInfo() (commit, ref string) {
	commit, ref = "unknown", "devel"
	if info, ok := debug.ReadBuildInfo(); ok {
		if v := info.Main.Version; v != "" && v != "(devel)" {
			ref = v
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	return commit, ref
}

func check(_ context.Context, args []string, stdout, _ io.Writer) error {
	fs := flags("check", "FILE|DIR…", "Says what is wrong with manifests: file:line: what is wrong, what would be right.\nExit status 1 when something is.", stdout)
	o := options("")
	fs.BoolVar(&o.Experimental, "allow-experimental-plugins", false, "accept plugins that are alpha, or for tests")
	if err := parse(fs, args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return misused("name the files or folders to check")
	}
	if code := config.Check(stdout, fs.Args(), o); code != 0 {
		return exitError(code)
	}
	return nil
}

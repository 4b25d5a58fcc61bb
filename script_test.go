// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"penstock": func() { os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// TestScripts runs the files of testdata/script against the binary.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: *update,
		Setup: func(env *testscript.Env) error { // $METRICS is an address that nobody has
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			env.Setenv("METRICS", lis.Addr().String())
			return lis.Close()
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"eventually": eventually},
	})
}

// eventually runs a command until it succeeds, for as long as a slow machine may take.
func eventually(ts *testscript.TestScript, _ bool, args []string) {
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = ts.Exec(args[0], args[1:]...); err == nil {
			return
		}
	}
	ts.Fatalf("%v: %v", args, err)
}

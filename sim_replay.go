// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/sim/replay"
)

func simReplay(_ context.Context, args []string, stdout, _ io.Writer) error {
	fs := flags("sim replay", "--decisions FILE [flags]", `Has other policies decide again what a gateway decided, and tells how many requests would have gone elsewhere.

What each endpoint told, had in flight and held of the prompt is as it was recorded: it is what would have been decided then, not what would
have come of it. Speeds that were learned of endpoints are not in records.`, stdout)
	file := fs.String("decisions", "", "records: what /debug/decisions?full=true answers, or a record on each line; - for stdin")
	compare := fs.StringSlice("compare", nil, "policies: names or files with an EndpointPickerConfig (default "+strings.Join(usualComparison, ",")+")")
	seed := fs.Uint64("seed", 1, "chooses whatever is left to chance")
	examples := fs.Int("examples", 3, "how many requests that would have moved are named")
	out := fs.String("json", "", "file to write the results to as JSON; - for stdout")
	if err := parse(fs, args); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return misused("unexpected argument %q", fs.Arg(0))
	case *file == "":
		return misused("--decisions is required: save /debug/decisions?full=true of a gateway's metrics address")
	case *examples < 0 || *examples > 1000:
		return misused("--examples %d: want 0 to 1000", *examples)
	}
	if len(*compare) == 0 {
		*compare = usualComparison
	}
	in := io.Reader(os.Stdin)
	if *file != "-" {
		f, err := os.Open(*file)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	list, without, err := replay.Read(*file, in)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("%s: has no decision among %d records", *file, without)
	}
	var results []replay.Result
	for _, name := range *compare {
		p, err := pickerOf(name)
		if err != nil {
			return err
		}
		l, err := laneOf(p)(flow.Options{Store: fleet.NewStore()})
		if err != nil {
			return err
		}
		d := replay.Decider{Name: name, Plan: l.Plan}
		for _, n := range l.Plan.Producers {
			d.Producers = append(d.Producers, n.Name)
		}
		results = append(results, replay.Play(list, d, *seed, *examples))
	}
	if *out != "-" {
		if err := replay.Table(stdout, list, without, results); err != nil {
			return err
		}
	}
	return writeFile(*out, stdout, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(results)
	})
}

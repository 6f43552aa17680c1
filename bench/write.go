package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/effectonce/effectonce/bench/page"
	"github.com/effectonce/effectonce/bench/plan"
)

// write prints the requested tables, or writes them into the pages of -docs.
func (o options) write(out io.Writer) error {
	if o.model {
		if err := o.writeModel(out); err != nil {
			return err
		}
	}
	if o.figures != "" {
		return o.writeFigures(out)
	}
	return nil
}

func (o options) writeModel(out io.Writer) error {
	costs, err := plan.Read(o.costs)
	if err != nil {
		return err
	}
	sections := plan.Sections(costs, plan.DefaultAssumptions())
	if o.docs != "" {
		return page.Fill(filepath.Join(o.docs, "scaling.md"), sections)
	}
	for _, name := range []string{"needs", "limits", "costs", "checks"} {
		_, _ = fmt.Fprintln(out, sections[name])
	}
	return nil
}

func (o options) writeFigures(out io.Writer) error {
	file, err := os.Open(o.figures)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	lines, err := page.Read(file)
	if err != nil {
		return fmt.Errorf("%s: %w", o.figures, err)
	}
	if o.docs == "" {
		_, err := fmt.Fprint(out, page.Tables(lines))
		return err
	}
	var drawn []*page.Case
	for i := range lines.Cases {
		if c := &lines.Cases[i]; c.Name == "relay" || c.Name == "peers" {
			drawn = append(drawn, c)
		}
	}
	if len(drawn) > 0 {
		svg, err := page.Chart(drawn, "Events a second into Kafka, log scale", nameRelay)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(o.docs, "benchmarks.svg"), svg, 0o644); err != nil {
			return err
		}
	}
	return page.Fill(filepath.Join(o.docs, "benchmarks.md"), map[string]string{"figures": page.Tables(lines)})
}

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/effectonce/effectonce/verify/bench/plan"
)

// writeModel prints the model's tables, or writes them into scaling.md in the folder of -docs.
func (o options) writeModel(out io.Writer) error {
	costs, err := plan.Read(o.costs)
	if err != nil {
		return err
	}
	sections := plan.Sections(costs, plan.DefaultAssumptions())
	if o.docs == "" {
		sections["checks"] = plan.CheckTable(costs)
		for _, name := range []string{"needs", "limits", "costs", "checks"} {
			_, _ = fmt.Fprintln(out, sections[name])
		}
		return nil
	}
	page := filepath.Join(o.docs, "scaling.md")
	b, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	text := string(b)
	for name, by := range sections {
		if text, err = replaceSection(text, name, by); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
	}
	return os.WriteFile(page, []byte(text), 0o644)
}

// replaceSection returns text with the part between the marks of name replaced:
//
//	<!-- name -->
//	<!-- end of name -->
func replaceSection(text, name, by string) (string, error) {
	begin, end := "<!-- "+name+" -->", "<!-- end of "+name+" -->"
	head, rest, ok := strings.Cut(text, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("there are no marks %s and %s", begin, end)
	}
	return head + begin + "\n\n" + strings.TrimSpace(by) + "\n\n" + end + tail, nil
}

// Package page writes the results of the benchmark into documents: tables between marks, and a chart.
package page

import (
	"fmt"
	"os"
	"strings"
)

// Replace returns text with the part between the marks of name replaced:
//
//	<!-- name -->
//	<!-- end of name -->
func Replace(text, name, by string) (string, error) {
	begin, end := "<!-- "+name+" -->", "<!-- end of "+name+" -->"
	head, rest, ok := strings.Cut(text, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("there are no marks %s and %s", begin, end)
	}
	return head + begin + "\n\n" + strings.TrimSpace(by) + "\n\n" + end + tail, nil
}

// Fill replaces sections of a file, by the names of their marks.
func Fill(path string, sections map[string]string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text := string(b)
	for name, by := range sections {
		if text, err = Replace(text, name, by); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

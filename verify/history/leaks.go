package history

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Leaks searches a text, such as a process's log, for secrets, and returns a violation of I10 or nil. The violation
// does not contain the secrets. Empty secrets are ignored.
func Leaks(name string, from io.Reader, secrets []string) (*Violation, error) {
	v := Violation{Invariant: "I10", Name: SecretLeaked}
	in := bufio.NewScanner(from)
	in.Buffer(nil, 16<<20)
	for n := 1; in.Scan(); n++ {
		for i, s := range secrets {
			if s == "" || !strings.Contains(in.Text(), s) {
				continue
			}
			v.Count++
			if len(v.Examples) < examples {
				v.Examples = append(v.Examples,
					Example{What: fmt.Sprintf("%s, line %d, has secret %d of the list", name, n, i+1)})
			}
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("history: search %s for secrets: %w", name, err)
	}
	if v.Count == 0 {
		return nil, nil
	}
	return &v, nil
}

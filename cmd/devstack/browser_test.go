package devstack

import (
	"bytes"
	"os/exec"
	"testing"
)

// TestOpener: a browser is opened where there is one, and a display to show it on.
func TestOpener(t *testing.T) {
	t.Parallel()
	found := func(string) (string, error) { return "/bin/it", nil }
	missing := func(string) (string, error) { return "", exec.ErrNotFound }
	display := func(name string) string { return map[string]string{"DISPLAY": ":0"}[name] }
	none := func(string) string { return "" }
	for _, c := range []struct {
		system string
		env    func(string) string
		look   func(string) (string, error)
		want   string
	}{
		{"linux", display, found, "xdg-open"},
		{"linux", display, missing, ""},
		{"linux", none, found, ""},
		{"darwin", none, found, "open"},
		{"windows", none, found, "rundll32"},
		{"windows", none, missing, ""},
	} {
		if name, _ := opener(c.system, c.env, c.look); name != c.want {
			t.Errorf("%s: %q, want %q", c.system, name, c.want)
		}
	}
	OpenBrowser(&bytes.Buffer{}, "http://127.0.0.1:1/") // no terminal: nothing is opened
}

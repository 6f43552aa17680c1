package devstack

import (
	"io"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/term"
)

// OpenBrowser opens a page in the developer's browser. It does nothing if stdout is no terminal, or without a display.
func OpenBrowser(stdout io.Writer, url string) {
	if !IsTerminal(stdout) {
		return
	}
	if name, args := opener(runtime.GOOS, os.Getenv, exec.LookPath); name != "" {
		cmd := exec.Command(name, append(args, url)...)
		if cmd.Start() == nil {
			go func() { _ = cmd.Wait() }()
		}
	}
}

// opener returns the program that opens a page in a browser on this machine, or "".
func opener(system string, env func(string) string, look func(string) (string, error)) (name string, args []string) {
	name = "xdg-open"
	switch system {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler"}
	default:
		if env("DISPLAY") == "" && env("WAYLAND_DISPLAY") == "" {
			return "", nil
		}
	}
	if _, err := look(name); err != nil {
		return "", nil
	}
	return name, args
}

// IsTerminal reports whether what is written to w is seen on a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

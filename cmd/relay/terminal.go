package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// terminal is how stdout shows text.
type terminal struct {
	width  int // of a terminal, in columns; 0: stdout is none
	colour bool
}

func terminalOf(stdout io.Writer, env func(string) string) terminal {
	file, ok := stdout.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return terminal{}
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	return terminal{width, env("NO_COLOR") == "" && env("TERM") != "" && env("TERM") != "dumb"}
}

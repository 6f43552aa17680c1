package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCommand struct{}

func (versionCommand) noDatabase() {}

func (versionCommand) run(_ context.Context, p *program) error {
	_, err := fmt.Fprintf(p.stdout, "%s %s/%s\n", version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// version returns the module's version as stamped by the go command; a build of a checkout names its commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	text := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			text += " " + s.Value
		}
	}
	return text + " " + info.GoVersion
}

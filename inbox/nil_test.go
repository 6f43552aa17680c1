package inbox_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/inbox"
)

// An effect that is not there is refused when it is given, and not minutes later, when everything is parked.
func TestNilEffectIsRefused(t *testing.T) {
	t.Parallel()
	in := newWorld(t).inbox(inbox.Config{})
	for want, give := range map[string]func(){
		"Each: the effect is nil":         func() { in.Each(nil) },
		"Batch: the effect is nil":        func() { in.Batch(nil) },
		"JSON: the effect is nil":         func() { inbox.JSON[int]("T", nil) },
		`Types: the effect of "T" is nil`: func() { inbox.Types(map[string]inbox.Effect{"T": nil}) },
	} {
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, want) {
					t.Errorf("want %q, got %q", want, said)
				}
			}()
			give()
		}()
	}
}

package lanes

import "github.com/effectonce/effectonce/relay/internal/delivery"

// home takes one lane home.
func (t *Table) home(v Verdict, closed map[delivery.Place]bool) (beat bool) {
	return t.Home([]Verdict{v}, closed, now)
}

// fail takes lanes home after a claim of so many lanes has failed.
func (t *Table) fail(of int, grants ...Grant) {
	for i := range grants {
		t.home(GiveBack(&grants[i]).Failed(of), nil)
	}
}

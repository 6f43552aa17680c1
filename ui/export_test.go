package ui

import (
	"time"

	"github.com/effectonce/effectonce/ui/internal/format"
)

// B64 is how forms carry keys.
var B64 = format.B64

// Policy is the Content-Security-Policy of all pages.
const Policy = policy

// AssetVersion is that of the static files.
var AssetVersion = assetVersion

// Runbooks are those that findings lead to.
func Runbooks() (names []string) {
	for _, g := range guides {
		names = append(names, g.runbook(g.failed), g.runbook(g.warned))
	}
	return names
}

// Changed has everybody see what a test has changed behind the pages' back.
func Changed(h *Handler) {
	for _, d := range h.databases {
		d.Changed()
	}
}

// ForSome are the routes that people with a Scope get to.
var ForSome = forSome

// Occupy takes all places for looks, as databases that hang do, until free is called.
func Occupy(h *Handler) (free func()) {
	n := cap(h.most.Looks)
	for range n {
		h.most.Looks <- struct{}{}
	}
	return func() {
		for range n {
			<-h.most.Looks
		}
	}
}

// Settle ends what a Handler does by itself.
func Settle(h *Handler) { h.settle(time.Minute) }

// Faster is the choice of a replay without its rate.
func Faster(form string) string {
	c, _ := readChoice(form)
	c.Rate = 0
	return c.form()
}

package ui

// B64 is how forms carry keys.
var B64 = b64

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
		d.changed()
	}
}

// ForSome are the routes that people with a Scope get to.
var ForSome = forSome

// Settle waits for the reads that are under way. The doctor's begins others.
func Settle(h *Handler) {
	h.replays.end()
	for _, d := range h.databases {
		settle(d.findings)
		settle(d.restored)
		settle(d.state)
		settle(d.topics)
		settle(d.relays)
		for _, where := range sides {
			settle(d.keys[where])
			settle(d.failures[where])
		}
		for _, a := range d.audits {
			settle(a)
		}
		settle(d.operations)
		settle(d.scheduled)
		settle(d.archive)
		for _, one := range d.looked() {
			settle(one)
		}
	}
}

func settle[T any](s *shared[T]) {
	s.mu.Lock()
	busy := s.busy
	s.mu.Unlock()
	if busy != nil {
		<-busy
	}
}

// Faster is the choice of a replay without its rate.
func Faster(form string) string {
	c, _ := readChoice(form)
	c.Rate = 0
	return c.form()
}

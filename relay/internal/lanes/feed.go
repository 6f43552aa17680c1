package lanes

// Feed says where a lane's events are published from.
type Feed int8

const (
	// Pumps publish the lane from the table.
	Pumps Feed = iota
	// WAL: the follower publishes the lane from the WAL.
	WAL
	// Unassigned: the feed is not known yet, and the lane is not published.
	Unassigned
	// Offered to the follower: it publishes the lane's rest from the table, and then from the WAL.
	Offered
)

// Assign gives those of the lanes that have no feed one: Pumps or WAL.
func (t *Table) Assign(lanes []int16, feed Feed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for l := range t.each(lanes) {
		if l.feed == Unassigned {
			l.feed = feed
			l.ready = feed == Pumps
			l.parked = l.parked || feed == WAL // unknown, so the prober asks
		}
	}
}

// Unassigned lists the lanes that have no feed yet, with their fences.
func (t *Table) Unassigned() (lanes []int16, fences []int64) {
	return t.fences(func(l *state) bool { return l.feed == Unassigned && l.certain() })
}

// FromWAL lists the lanes that are published from the WAL, with their fences.
func (t *Table) FromWAL() (lanes []int16, fences []int64) {
	return t.fences(func(l *state) bool { return l.feed == WAL && l.certain() })
}

func (t *Table) fences(want func(l *state) bool) (lanes []int16, fences []int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, l := range t.owned {
		if want(l) {
			lanes, fences = append(lanes, i), append(fences, l.fence)
		}
	}
	return lanes, fences
}

// AllFromWAL reports whether the relay has lanes and the pumps have none.
func (t *Table) AllFromWAL() bool {
	all, streamed := 0, 0
	t.all(func(l *state) {
		if all++; l.feed == WAL {
			streamed++
		}
	})
	return all > 0 && streamed == all
}

// ReleasingFromWAL lists the lanes that are published from the WAL and have parked events to release.
func (t *Table) ReleasingFromWAL() []int16 {
	return t.list(func(l *state) bool { return l.feed == WAL && l.releasing })
}

// Unfollowed records that no relay reads the WAL any more. The next reader decides about the lanes that were published
// from it; those that were offered go back to the pumps.
func (t *Table) Unfollowed() {
	t.Withdraw()
	t.all(func(l *state) {
		if l.feed == WAL {
			l.feed, l.ready = Unassigned, true
		}
	})
}

// Offer keeps the lanes that can be handed over from the pumps. It reports whether there are any, and whether any is
// busy.
func (t *Table) Offer() (some, busy bool) {
	t.all(func(l *state) {
		if !l.polled() {
			return
		}
		if l.feed = Pumps; l.certain() && len(l.groups) == 0 && !l.releasing {
			l.feed = Offered
			some, busy = true, busy || l.busy
		}
	})
	return some, busy
}

// Withdraw gives the offered lanes back to the pumps.
func (t *Table) Withdraw() {
	t.all(func(l *state) {
		if l.feed == Offered {
			l.feed, l.ready = Pumps, true
		}
	})
}

// HandedOver records that an offered lane is published from the WAL from now on.
func (t *Table) HandedOver(lane int16, fence int64) {
	t.update(lane, fence, func(l *state) { l.feed, l.woken, l.ready = WAL, false, false })
}

// HandedBack records that a lane is no longer published from the WAL, but by the pumps.
func (t *Table) HandedBack(lane int16, fence int64) {
	t.update(lane, fence, func(l *state) { l.feed, l.fresh, l.ready, l.due = Pumps, true, true, true })
}

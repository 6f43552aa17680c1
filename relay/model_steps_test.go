//go:build !race

package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/explore"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/floors"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// modelSteps enumerates the steps that are possible in a state.
type modelSteps struct {
	w    *modelWorld
	s    *modelState
	emit func(explore.Step[modelState])
}

func (w *modelWorld) next(s *modelState, emit func(explore.Step[modelState])) {
	x := &modelSteps{w, s, emit}
	x.producers()
	for i := range w.relays {
		if s.relays[i].owner != 0 {
			x.relay(i)
		}
	}
	x.environmentSteps()
	x.operatorSteps()
}

// try emits a step if it changes the state, and returns its run.
func (x *modelSteps) try(fault bool, name func() string, do func(m *modelRun)) *modelRun {
	m := &modelRun{world: x.w, s: *x.s}
	do(m)
	if m.s != *x.s {
		x.emit(explore.Step[modelState]{Name: name, To: m.s, Fault: fault})
	}
	return m
}

// tryTx is try for a step with transactions: it tries each fate for each of them.
func (x *modelSteps) tryTx(fault bool, name func() string, do func(m *modelRun)) {
	sends := x.try(fault, name, do).sends
	for at := 1; at <= sends; at++ {
		for fate := txUnanswered; fate < txFates; fate++ {
			budget := func(m *modelRun) *uint8 {
				switch fate {
				case txStillToCome:
					return &m.s.budget.ghost
				case txFails:
					return &m.s.budget.fail
				}
				return &m.s.budget.lost
			}
			m := &modelRun{world: x.w, s: *x.s, failAt: at, fate: fate}
			if *budget(m) == 0 || (fate == txStillToCome &&
				(m.s.ghost != 0 || x.w.lateSettles && !x.s.relays[0].claim.active)) {
				continue
			}
			*budget(m)--
			do(m)
			x.emit(explore.Step[modelState]{
				Name: func() string { return fmt.Sprintf("%s: transaction %d%s", name(), at, txFateNames[fate]) },
				To:   m.s, Fault: true,
			})
		}
	}
}

func stepName(format string, args ...any) func() string {
	return func() string { return fmt.Sprintf(format, args...) }
}

func (m *modelRun) draw(ev uint8) {
	m.s.tx[ev] = txOpen
	if !m.world.isScheduled(ev) {
		m.s.db.last++
		m.s.drawn[ev] = m.s.db.last
	}
}

func (m *modelRun) commitTx(ev uint8) {
	m.s.tx[ev] = txDone
	if m.world.isScheduled(ev) {
		m.s.db.rows[ev] = modelRow{place: inScheduled, seq: int32(ev) + 1}
	} else {
		m.s.db.rows[ev] = modelRow{place: inEvent, id: m.s.drawn[ev]}
	}
	m.commit(pg.Standby, !m.world.async)
}

// producers draw ids and commit in any order, but the producer of an event begins after the event's cause is committed.
func (x *modelSteps) producers() {
	for ev := range uint8(len(x.w.keys)) {
		switch x.s.tx[ev] {
		case txNone:
			if cause, ok := x.w.cause(ev); ok && x.s.tx[cause] != txDone && x.s.tx[cause] != txLost {
				continue
			}
			x.try(false, stepName("the producer of e%d begins, and draws its id", ev), func(m *modelRun) { m.draw(ev) })
		case txOpen:
			x.try(false, stepName("the producer of e%d commits", ev), func(m *modelRun) { m.commitTx(ev) })
			if x.w.excepts {
				x.try(true, stepName("the producer of e%d rolls back", ev),
					func(m *modelRun) { m.s.tx[ev], m.s.drawn[ev] = txLost, 0 })
			}
		}
		if row := &x.s.db.rows[ev]; row.place == inScheduled && !row.due {
			x.try(false, stepName("the time of e%d comes", ev), func(m *modelRun) { m.s.db.rows[ev].due = true })
		}
	}
}

// relay emits the steps of one relay.
func (x *modelSteps) relay(i int) {
	me := &x.s.relays[i]
	ctx := context.Background()
	if !me.claim.active {
		x.claims(i, nil)
		if x.w.inside {
			x.claimsInterleaved(i)
		}
	} else {
		x.publishes(i)
	}
	x.beats(i)
	x.try(false, stepName("R%d: probe", i), func(m *modelRun) {
		m.with(i, proberSession, func(r *engine, s *pg.Session) {
			if err := s.Open(ctx); err != nil {
				return
			}
			ask, floors, ids := r.Lanes.ToProbe()
			_, _ = r.prober.Probe(ctx, s, ask, floors, ids)
		})
	})
	if me.closed != 0 {
		x.revives(i)
	}
	if x.w.floors {
		x.floorSteps(i)
	}
	if x.s.budget.crash > 0 && x.freeOwner() != 0 {
		x.try(true, stepName("R%d is killed, and starts again", i), func(m *modelRun) {
			m.s.budget.crash--
			m.s.relays[i] = modelRelay{owner: x.freeOwner()}
		})
	}
	if x.s.budget.stop > 0 && !me.claim.active {
		x.tryTx(true, stepName("R%d shuts down", i), func(m *modelRun) {
			m.s.budget.stop--
			m.with(i, keeperSession, func(r *engine, s *pg.Session) { _ = r.keeper.Resign(ctx, s) })
			m.s.relays[i] = modelRelay{}
		})
	}
}

// beats is a heartbeat. One without effect is left out, unless the world wants all.
func (x *modelSteps) beats(i int) {
	me, ctx := &x.s.relays[i], context.Background()
	if !x.w.allBeats && x.quietBeat(i) {
		return
	}
	x.tryTx(false, stepName("R%d: heartbeat", i), func(m *modelRun) {
		m.with(i, keeperSession, func(r *engine, s *pg.Session) {
			_ = r.keeper.Beat(ctx, s)
			for lane, l := range inside(r.Lanes).owned { // the model has fewer
				if int(lane) >= modelLanes {
					delete(inside(r.Lanes).owned, lane)
				}
				if x.w.rules.noRaise {
					l.doubt = false
				}
				if was := me.lanes[lane]; x.w.rules.keepBlock && was.has && l.next == 0 {
					l.next, l.end = int64(was.next), int64(was.end)
				}
			}
		})
	})
}

// quietBeat reports whether a heartbeat would change nothing.
func (x *modelSteps) quietBeat(i int) bool {
	me, db := &x.s.relays[i], &x.s.db
	if db.members[me.owner] != memberAlive || me.cut>>keeperSession&1 == 1 || me.epoch != 1+db.incarnation ||
		db.system != x.s.server {
		return false
	}
	for lane := range x.w.lanes {
		l, mine := &db.lanes[lane], &me.lanes[lane]
		switch {
		case l.owner == 0, l.expired, mine.doubt, mine.leaving:
			return false
		case (l.owner == me.owner) != mine.has, mine.has && mine.fence != l.fence:
			return false
		}
	}
	return true
}

func (x *modelSteps) freeOwner() uint8 {
	highest := uint8(x.w.relays)
	for i := range x.s.relays {
		highest = max(highest, x.s.relays[i].owner)
	}
	for _, l := range x.s.db.lanes {
		highest = max(highest, l.owner)
	}
	for owner, state := range x.s.db.members {
		if state != noMember {
			highest = max(highest, uint8(owner))
		}
	}
	if highest >= modelOwners {
		return 0
	}
	return highest + 1
}

// claims is a pump's claim, up to its first send.
func (x *modelSteps) claims(i int, between func(m *modelRun) func(statement int)) {
	x.tryTx(false, stepName("R%d: claims", i), func(m *modelRun) { m.claim(i) })
	ready := false
	for _, l := range x.s.relays[i].lanes {
		ready = ready || l.has && l.ready && !l.busy && !l.doubt && !l.leaving
	}
	if x.w.rules.oneStatement && x.s.stale == 0 && ready {
		x.try(false, stepName("R%d: a claim has its snapshot, and waits for the lane", i), func(m *modelRun) {
			m.s.stale = uint8(i) + 1
			for ev := range uint8(len(x.w.keys)) {
				if m.s.db.rows[ev].place == inEvent {
					m.s.snap |= 1 << ev
				}
			}
		})
	}
}

func (m *modelRun) claim(i int) {
	paused := m.s.db.paused // read before the claim: it must not send these
	m.with(i, pumpSession, func(r *engine, s *pg.Session) {
		grants := r.Lanes.Take(0, 1, time.Now())
		if len(grants) == 0 {
			return
		}
		m.snapped = m.s.stale == uint8(i)+1
		c, err := r.cycle.ClaimLanes(context.Background(), &cycle.Session{Session: s}, grants)
		if m.world.rules.noRaise {
			for _, l := range inside(r.Lanes).owned {
				l.fresh, l.doubt = l.fresh || l.doubt, false
			}
		}
		if m.snapped {
			m.s.stale, m.s.snap = 0, 0
		}
		if err != nil {
			return
		}
		m.oldSeqs(c)
		if m.staleProbe {
			r.cycle.SetPaused(nil)
		}
		if m.world.rules.pauseLater {
			c.Paused = nil
		}
		if m.world.rules.heldSent {
			for k := range c.Items {
				c.Items[k].MaybePublished = false
			}
		}
		if m.world.rules.lateDecided {
			for k := range c.Parts {
				c.Parts[k].FloorAfter = c.Parts[k].Seen.Last
			}
		}
		if !m.world.rules.noSortOut {
			r.cycle.HoldBack(context.Background(), delivery.New(c.Events, c.Items), c.Grants(), c.Paused)
		}
		m.storeClaim(i, r, c)
		m.s.relays[i].claim.forbidden = paused & m.s.db.paused
	})
}

// oldSeqs is the bug that released events are sent under their old numbers, which are their ids in the model.
func (m *modelRun) oldSeqs(c *cycle.Claim) {
	for k := range c.Items {
		if m.world.rules.oldSeq && c.Items[k].From == delivery.FromParked {
			c.Events[k].Position.Seq = c.Items[k].ID
		}
	}
}

// claimsInterleaved runs actions that need no lane's lock between two statements of a claim.
func (x *modelSteps) claimsInterleaved(i int) {
	who := func(at int, name func() string, do func(m *modelRun)) {
		x.try(false, func() string { return fmt.Sprintf("R%d: claims, and before statement %d %s", i, at, name()) },
			func(m *modelRun) {
				m.between = func(statement int) {
					if statement == at {
						do(m)
					}
				}
				m.claim(i)
			})
	}
	if x.s.db.paused != 0 {
		x.try(false, stepName("R%d: claims, and a probe that read before the pause reports late", i),
			func(m *modelRun) {
				m.staleProbe = true
				m.claim(i)
			})
	}
	for at := 3; at <= 11; at++ {
		for ev := range uint8(len(x.w.keys)) {
			switch x.s.tx[ev] {
			case txOpen:
				who(at, stepName("the producer of e%d commits", ev), func(m *modelRun) { m.commitTx(ev) })
			}
		}
		if x.s.budget.pause > 0 {
			who(at, stepName("an operator pauses topic t"), func(m *modelRun) { m.pause() })
		}
		if x.s.db.paused != 0 {
			who(at, stepName("an operator resumes topic t"), func(m *modelRun) { m.operate(sql.Resume, "t") })
		}
	}
}

// Verdicts of the model's broker.
var (
	errModelUnknown = errors.New("outcome unknown")
	modelUnsent     = outcome.Retryable(errors.New("not sent"))
	modelRefused    = &outcome.Refusal{Err: errors.New("refused")}
	modelMaybe      = &outcome.Refusal{Err: errors.New("refused after an answer was lost"), MaybePublished: true}
	modelTopic      = &outcome.Refusal{Err: errors.New("topic refused"), Topic: true}
)

// modelAnswer is the answer of a broker that takes the events of one place: the first n are written or not, and get a
// verdict; the one at n may get another; the rest is not sent.
type modelAnswer struct {
	n        int   // events that are tried together
	written  bool  // they reach the log
	delayed  bool  // they are still in flight
	verdict  error // nil: acked
	then     error // verdict of the event behind them; nil: not sent, like the rest
	thenLate bool  // the event behind them is still in flight
	skip     int   // the bug sendAhead: the number of events to leave out first
	close    bool  // the place is closed meanwhile
}

func (m *modelRun) answers(r *engine, at delivery.Place, a modelAnswer) {
	m.broker = func(events []event.Event) []error {
		verdicts := make([]error, len(events))
		var mine []int
		for k := range events {
			verdicts[k] = modelUnsent
			if m.placeOf(&events[k]) == at {
				mine = append(mine, k)
			}
		}
		if a.close {
			r.Health.Close(at, time.Now())
		}
		mine = mine[min(a.skip, len(mine)):]
		tried := mine[:min(a.n, len(mine))]
		var late []int
		for _, k := range tried {
			verdicts[k] = a.verdict
			if a.written {
				m.consume(&events[k])
			}
			if a.delayed {
				late = append(late, k)
			}
		}
		if rest := mine[len(tried):]; len(rest) > 0 && a.then != nil {
			verdicts[rest[0]] = a.then
			if a.thenLate {
				late = append(late, rest[0])
			}
		}
		m.underWay(events, late)
		return verdicts
	}
}

// publishes are the attempts of a claim, and its settle when every event has a fate.
func (x *modelSteps) publishes(i int) {
	m := &modelRun{world: x.w, s: *x.s}
	r := m.load(i)
	_, d := m.loadClaim(i, r)
	todo := map[delivery.Place]int{}
	for _, e := range d.Events() {
		todo[m.placeOf(&e)]++
	}
	if len(todo) == 0 {
		x.tryTx(false, stepName("R%d: settles", i), func(m *modelRun) {
			m.settle(i, cycle.Result{Left: map[int16]bool{}})
		})
		return
	}
	for index := range modelPlaces {
		at := placesOf(1 << index)[0]
		if n := todo[at]; n > 0 {
			x.attempts(i, at, n)
		}
	}
	if x.s.budget.late > 0 {
		for _, late := range []bool{false, true} {
			x.tryTx(true, stepName("R%d: gives up sending; its lease may be over: %v", i, late), func(m *modelRun) {
				m.s.budget.late--
				m.settle(i, cycle.Result{Left: d.Lanes(), Late: late})
			})
		}
	}
}

func (m *modelRun) settle(i int, result cycle.Result) {
	m.with(i, pumpSession, func(r *engine, s *pg.Session) {
		c, _ := m.loadClaim(i, r)
		m.s.relays[i].claim = modelClaim{}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if m.world.rules.settleOn {
			for k := range c.Items {
				if c.Items[k].Fate == delivery.Undecided {
					c.Items[k].Fate = delivery.Acked
				}
			}
		}
		if m.world.rules.settleOn {
			result.Left = map[int16]bool{}
		}
		if m.world.rules.lateDecided {
			for k := range c.Parts {
				c.Parts[k].FloorAfter, c.Parts[k].Decided = min(c.Parts[k].FloorAfter, inside(r.Lanes).reached),
					inside(r.Lanes).decided
			}
		}
		_ = r.cycle.Finish(ctx, s, c, result)
		if m.world.rules.noRaise {
			for _, l := range inside(r.Lanes).owned {
				l.fresh, l.ready, l.doubt = l.fresh || l.doubt, l.ready || l.doubt, false
			}
		}
		if m.world.rules.blindUnmark {
			for k := range m.s.db.marks {
				if m.s.db.marks[k] == markReleasing && len(m.listed(k)) == 0 {
					m.s.unmark = uint8(k) + 1
				}
			}
		}
	})
}

func (x *modelSteps) attempts(i int, at delivery.Place, n int) {
	b := &x.s.budget
	attempt := func(fault bool, what string, a modelAnswer, spend func(b *modelBudget)) {
		x.try(fault, func() string {
			return fmt.Sprintf("R%d: sends to %s/%d%s: %s", i, at.Topic, at.Partition, x.described(i, at, a), what)
		}, func(m *modelRun) {
			spend(&m.s.budget)
			m.attempt(i, at, a)
		})
	}
	free := func(*modelBudget) {}
	sizes := []int{n}
	if n > 1 {
		sizes = []int{1, n}
	}
	for _, size := range sizes {
		attempt(false, "acked", modelAnswer{n: size, written: true}, free)
		if b.lostAck > 0 {
			attempt(true, "written, the reply is lost", modelAnswer{n: size, written: true, verdict: errModelUnknown},
				func(b *modelBudget) { b.lostAck-- })
		}
		if b.delay > 0 && x.s.net[modelDelayed-1].n == 0 {
			attempt(true, "no reply; it is still in flight",
				modelAnswer{n: size, delayed: true, verdict: errModelUnknown}, func(b *modelBudget) { b.delay-- })
		}
	}
	if b.away > 0 {
		spend := func(b *modelBudget) { b.away-- }
		attempt(true, "does not answer for long: closed", modelAnswer{n: n, verdict: errModelUnknown, close: true},
			spend)
		if b.lostAck > 0 {
			attempt(true, "written, and does not answer for long: closed",
				modelAnswer{n: n, written: true, verdict: errModelUnknown, close: true},
				func(b *modelBudget) { b.away--; b.lostAck-- })
		}
		if b.delay > 0 && x.s.net[modelDelayed-1].n == 0 {
			attempt(true, "still in flight, and does not answer for long: closed",
				modelAnswer{n: n, delayed: true, verdict: errModelUnknown, close: true},
				func(b *modelBudget) { b.away--; b.delay-- })
		}
	}
	if b.refuse > 0 { // refusals of a record
		for k := range n {
			attempt(true, "refused", modelAnswer{n: k, written: true, then: modelRefused},
				func(b *modelBudget) { b.refuse-- })
			if b.delay > 0 && x.s.net[modelDelayed-1].n == 0 {
				attempt(true, "refused, after a request that is still in flight",
					modelAnswer{n: k, written: true, then: modelMaybe, thenLate: true},
					func(b *modelBudget) { b.refuse--; b.delay-- })
			}
		}
	}
	if b.topic > 0 {
		attempt(true, "the topic is refused", modelAnswer{n: 1, verdict: modelTopic},
			func(b *modelBudget) { b.topic-- })
	}
	if x.w.rules.sendAhead && n > 1 {
		attempt(false, "the second before the first is acked", modelAnswer{n: 1, skip: 1, written: true}, free)
	}
}

// described lists the events of an attempt with their numbers.
func (x *modelSteps) described(i int, at delivery.Place, a modelAnswer) (text string) {
	m := &modelRun{world: x.w, s: *x.s}
	c := &m.s.relays[i].claim
	for k := range c.n {
		it := &c.items[k]
		if e := m.event(it.ev); delivery.Fate(it.fate) == delivery.Undecided && m.placeOf(&e) == at {
			text += fmt.Sprintf(" e%d(%d)", it.ev, it.seq)
		}
	}
	if a.then != nil {
		return fmt.Sprintf("%s, of which %d acked, and the next one", text, a.n)
	}
	return fmt.Sprintf("%s, the first %d", text, a.n)
}

func (m *modelRun) attempt(i int, at delivery.Place, a modelAnswer) {
	r := m.load(i)
	c, d := m.loadClaim(i, r)
	m.answers(r, at, a)
	m.forbidden = m.s.relays[i].claim.forbidden
	was := make([]delivery.Fate, len(c.Items))
	for k := range c.Items {
		was[k] = c.Items[k].Fate
	}
	r.cycle.Attempt(context.Background(), "model", d)
	for k := range c.Items {
		if m.world.rules.sendOn && was[k] == delivery.Undecided && c.Items[k].Fate == delivery.Held {
			c.Items[k].Fate = delivery.Undecided
		}
	}
	m.storeClaim(i, r, c)
	m.store(i, r)
}

// revives tries a closed place.
func (x *modelSteps) revives(i int) {
	for _, at := range placesOf(x.s.relays[i].closed) {
		if x.s.relays[i].paused&topicBits([]string{at.Topic}) != 0 {
			continue
		}
		try := func(fault bool, what string, a modelAnswer, spend func(b *modelBudget)) {
			do := func(m *modelRun) {
				spend(&m.s.budget)
				m.with(i, reviverSession, func(r *engine, s *pg.Session) {
					m.answers(r, at, a)
					heads := m.broker
					m.broker = func(events []event.Event) []error {
						if m.s.db.paused&topicBits([]string{events[0].Topic}) != 0 {
							m.fail("paused: a try that began after the pause sent an event of the topic")
						}
						// It may be routed to another place than the one that holds it.
						m.answers(r, m.placeOf(&events[0]), a)
						return m.broker(events)
					}
					_ = heads
					_ = r.reviver.Try(context.Background(), s, []delivery.Place{at})
				})
			}
			name := stepName("R%d: tries %s/%d: %s", i, at.Topic, at.Partition, what)
			if fault {
				x.try(fault, name, do)
			} else {
				x.tryTx(fault, name, do)
			}
		}
		b := &x.s.budget
		try(false, "acked", modelAnswer{n: 1, written: true}, func(*modelBudget) {})
		if b.lostAck > 0 {
			try(true, "written, the reply is lost", modelAnswer{n: 1, written: true, verdict: errModelUnknown},
				func(b *modelBudget) { b.lostAck-- })
		}
		if b.delay > 0 && x.s.net[modelDelayed-1].n == 0 {
			try(true, "still in flight", modelAnswer{n: 1, delayed: true, verdict: errModelUnknown},
				func(b *modelBudget) { b.delay-- })
		}
		if b.refuse > 0 {
			try(true, "refused", modelAnswer{then: modelRefused}, func(b *modelBudget) { b.refuse-- })
		}
		if b.topic > 0 {
			try(true, "the topic is refused", modelAnswer{n: 1, verdict: modelTopic},
				func(b *modelBudget) { b.topic-- })
		}
	}
}

// floorSteps emits the steps of the floor.
func (x *modelSteps) floorSteps(i int) {
	x.try(false, stepName("R%d: a step of the floor", i), func(m *modelRun) { m.floorStep(i) })
	if x.w.inside {
		x.floorStepsInterleaved(i)
	}
	if x.w.rescans {
		x.try(false, stepName("R%d: rescans below its floors", i), func(m *modelRun) {
			m.with(i, floorSession, func(r *engine, s *pg.Session) {
				r.Observer.BelowFloor = func(int16) { m.fail("an event stood below the floor") }
				_ = r.floors.Rescan(context.Background(), s)
			})
		})
	}
}

// floorStep runs one step of the floor.
func (m *modelRun) floorStep(i int) {
	m.with(i, floorSession, func(r *engine, s *pg.Session) {
		from := &m.s.relays[i].floor
		f := r.floors
		f.State = floors.State{
			IDs: numbering(from.ids), Reached: int64(from.reached), Hi: int64(from.hi), WaitsFor: pg.Holders{},
			Except: xidsOf(from.except), Slice: floors.SliceSize(m.world.far), Scanned: modelLater,
		}
		for _, xid := range xidsOf(from.waits) {
			f.WaitsFor[xid] = pg.Holder{XID: xid}
		}
		if err := s.Open(context.Background()); err != nil {
			return
		}
		_ = f.Step(context.Background(), s)
		from.ids, from.reached, from.hi, from.except = numberOf(f.IDs), uint8(f.Reached), uint8(f.Hi), xidBits(f.Except)
		from.waits = 0
		if f.Hi > 0 {
			from.waits = xidBits(slices.Collect(maps.Keys(f.WaitsFor)))
		}
	})
}

// floorStepsInterleaved runs producers between two statements of a step of the floor.
func (x *modelSteps) floorStepsInterleaved(i int) {
	for at := range 12 {
		for ev := range uint8(len(x.w.keys)) {
			do := func(*modelRun) {}
			switch cause, caused := x.w.cause(ev); {
			case x.s.tx[ev] == txNone && (!caused || x.s.tx[cause] == txDone):
				do = func(m *modelRun) { m.draw(ev) }
			case x.s.tx[ev] == txOpen:
				do = func(m *modelRun) { m.commitTx(ev) }
			default:
				continue
			}
			x.try(false, stepName("R%d: a step of the floor, and the producer of e%d before statement %d", i, ev,
				at), func(m *modelRun) {
				statements := 0
				m.between = func(int) {
					if statements++; statements == at+1 {
						do(m)
					}
				}
				m.floorStep(i)
			})
		}
	}
}

// environmentSteps emits the steps of the network, of servers and of time.
func (x *modelSteps) environmentSteps() {
	for k := range x.s.net {
		if x.s.net[k].n > 0 {
			x.try(false, stepName("a request in flight is written:%s", x.s.net[k].describe()),
				func(m *modelRun) {
					q := m.s.net[k]
					copy(m.s.net[k:], m.s.net[k+1:])
					m.s.net[modelDelayed-1] = modelRequest{}
					for n := range q.n {
						e := m.event(q.items[n].ev)
						e.Position.Lane, e.Position.Epoch = m.world.of(q.items[n].ev).lane, epochName(q.epoch)
						e.Position.Seq, e.Position.MaybePublished = int64(q.items[n].seq), q.items[n].maybe
						m.consume(&e)
					}
				})
		}
	}
	if g := x.s.ghost; g != 0 {
		b := x.w.ghosts.batches[g-1]
		x.try(true, func() string { return "the transaction without a reply runs now:" + describeBatch(b) },
			func(m *modelRun) {
				m.s.ghost = 0
				_, _ = m.execute(b)
			})
		x.try(false, stepName("the transaction without a reply never runs"), func(m *modelRun) { m.s.ghost = 0 })
	}
	if k := x.s.unmark; k != 0 {
		x.try(false, stepName("the mark that was seen empty is removed"), func(m *modelRun) {
			m.s.unmark, m.s.db.marks[k-1] = 0, unmarked
		})
	}
	x.leases()
	if x.s.budget.dbCrash > 0 {
		x.try(true, stepName("the database crashes, and comes back"),
			func(m *modelRun) { m.s.budget.dbCrash--; m.crash(false) })
	}
	if x.s.budget.failover > 0 {
		x.try(true, stepName("the standby is promoted"), func(m *modelRun) { m.s.budget.failover--; m.crash(true) })
	}
	if x.s.budget.restore > 0 {
		x.try(true, stepName("the database is restored from its backup, and fenced"), func(m *modelRun) {
			m.s.budget.restore--
			m.crash(true)
			m.s.server-- // the same system and timeline: the database cannot tell
			if !m.world.rules.noFenceAfterRestore {
				m.operate(sql.Fence)
				m.operate(sql.NewIncarnation)
			}
		})
	}
	if m := (&modelRun{world: x.w}); m.keepsDisk() && (x.w.async || x.w.lagging) {
		x.try(false, stepName("the log is flushed"), func(m *modelRun) { m.flush() })
	}
}

func describeBatch(b *pgx.Batch) (text string) {
	for _, q := range b.QueuedQueries {
		text += " " + statementName(q.SQL)
	}
	return text
}

func (q modelRequest) describe() (text string) {
	for n := range q.n {
		text += fmt.Sprintf(" e%d(%d)", q.items[n].ev, q.items[n].seq)
	}
	return text
}

// leases expire: those of live owners as a fault, others by themselves.
func (x *modelSteps) leases() {
	alive := map[uint8]bool{}
	for i := range x.s.relays {
		alive[x.s.relays[i].owner] = true
	}
	for owner := uint8(1); owner <= modelOwners; owner++ {
		if alive[owner] && x.s.budget.expire == 0 {
			continue
		}
		x.try(alive[owner], stepName("the lease of owner %d runs out", owner), func(m *modelRun) {
			if m.s.db.members[owner] == memberAlive {
				m.s.db.members[owner] = memberExpired
			}
			for lane := range m.world.lanes {
				if l := &m.s.db.lanes[lane]; l.owner == owner {
					l.expired = true
				}
			}
			if m.s.db != x.s.db && alive[owner] {
				m.s.budget.expire--
			}
			if m.keepsDisk() { // time passes on the disk, too
				m.expireOnDisk(owner)
			}
		})
	}
}

func (m *modelRun) expireOnDisk(owner uint8) {
	if m.s.disk.members[owner] == memberAlive {
		m.s.disk.members[owner] = memberExpired
	}
	for lane := range m.s.disk.lanes {
		if l := &m.s.disk.lanes[lane]; l.owner == owner {
			l.expired = true
		}
	}
}

// crash undoes changes that were not durable.
func (m *modelRun) crash(promoted bool) {
	was := m.s.tx
	m.s.db, m.s.ghost = m.s.disk, 0
	for ev := range uint8(len(m.world.keys)) {
		switch {
		case was[ev] == txOpen:
			m.s.tx[ev], m.s.drawn[ev] = txLost, 0
		case was[ev] == txDone && m.s.diskTx[ev] != txDone:
			m.s.tx[ev], m.s.drawn[ev] = txLost, 0
			m.s.lost |= 1 << ev
			if m.s.inLog>>ev&1 == 1 && (!promoted || m.world.standby) {
				m.fail("phantom: a published event is gone from the database")
			}
		}
	}
	m.s.diskTx = m.s.tx
	if promoted {
		m.s.server++
	}
	if m.world.hidden {
		return
	}
	for i := range m.s.relays {
		if m.s.relays[i].owner != 0 {
			m.s.relays[i].cut = 1<<pumpSession | 1<<keeperSession | 1<<proberSession | 1<<reviverSession
			if m.world.floors {
				m.s.relays[i].cut |= 1 << floorSession
			}
		}
	}
}

// operatorSteps emits the steps of an operator.
func (x *modelSteps) operatorSteps() {
	for _, letter := range []byte("ABCU") {
		if k := modelKeyOf[letter]; x.s.db.marks[k.mark] == markParked {
			x.try(false, stepName("an operator releases key %c", letter), func(m *modelRun) { m.releaseKey(k) })
		}
	}
	for ev := range uint8(len(x.w.keys)) {
		row, k := &x.s.db.rows[ev], x.w.of(ev)
		if row.place != inParked {
			continue
		}
		if row.alone && !row.releasing {
			x.try(false, stepName("an operator releases e%d", ev),
				func(m *modelRun) { m.operate(sql.ReleaseEvent, k.lane, int64(row.id)) })
		}
		if x.s.budget.discard > 0 {
			x.try(true, stepName("an operator discards e%d", ev), func(m *modelRun) {
				m.s.budget.discard--
				m.s.discarded |= 1 << ev
				m.operate(sql.DiscardEvent, k.lane, int64(row.id))
				if !row.alone {
					m.operate(sql.UnmarkEmpty, k.lane, "", k.topic, k.key)
				}
			})
		}
	}
	if x.s.budget.pause > 0 {
		x.try(true, stepName("an operator pauses topic t"), func(m *modelRun) { m.pause() })
	}
	if x.s.db.paused != 0 {
		x.try(false, stepName("an operator resumes topic t"), func(m *modelRun) { m.operate(sql.Resume, "t") })
	}
}

func (m *modelRun) pause() {
	m.s.budget.pause--
	m.operate(sql.Pause, "t", "o", "r")
}

func (m *modelRun) releaseKey(k modelKey) {
	if !m.world.rules.noBehind {
		m.operate(sql.Rejoin, "", k.topic, k.key, 0, 0)
	}
	m.operate(sql.ReleaseKey, "", k.topic, k.key)
	if !m.world.rules.intoOutbox {
		return
	}
	for _, ev := range m.listed(k.mark) { // the bug: released rows enter the outbox again
		m.s.db.last++
		m.s.drawn[ev] = m.s.db.last
		m.s.db.rows[ev] = modelRow{place: inEvent, id: m.s.db.last}
	}
	m.s.db.marks[k.mark] = unmarked
}

// operate runs a statement of an operator, whose transaction has the required locks.
func (m *modelRun) operate(sql string, args ...any) {
	m.world.ran[statementName(sql)] = true
	if _, err := modelOps[statementName(sql)](m, args); err != nil {
		m.fail("an operator's statement failed")
	}
	m.commit(pg.Standby, true)
}

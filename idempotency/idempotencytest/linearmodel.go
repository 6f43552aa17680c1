package idempotencytest

import (
	"fmt"

	"github.com/anishathalye/porcupine"

	"github.com/effectonce/effectonce/idempotency"
)

// linState is what a key may be between two steps. A lease that is short may have ended at any time, so that both are
// possible.
type linState struct {
	state idempotency.State // "" is nothing
	other bool              // it is the other command's
	token string
	fence int64 // of the holder; 0: it got it by a call whose reply was lost
	high  int64 // the highest that is known
	lease lease
	stuck bool
	body  string
}

// lease is a holder's: none, one that may have ended, or one that runs.
type lease int

const (
	none lease = iota
	short
	runs
)

// linModel is the state machine for porcupine. Where clients have clocks of their own, a lease that one of them noted
// as ended may still run for another.
func linModel(ownClocks bool) porcupine.Model {
	noted := none
	if ownClocks {
		noted = short
	}
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{linState{}} },
		Step: func(state, input, output any) []any {
			var next []any
			for _, b := range branches(state.(linState), input.(linIn), noted) {
				if s, possible := b.explains(state.(linState), output.(linOut)); possible {
					next = append(next, s)
				}
			}
			return next
		},
		DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
	}
	return m.ToModel()
}

// branch is a possible outcome of a call.
type branch struct {
	to     linState
	out    linOut // without the fence
	gives  bool   // a new fence
	claims bool   // the reply has the record
}

// explains reports whether a reply fits this branch, and returns the state after it.
func (b branch) explains(from linState, out linOut) (linState, bool) {
	to := b.to
	if out.state == "lost" {
		if b.gives {
			to.fence = 0
		}
		return to, true
	}
	fence := out.fence
	out.fence = 0
	if out != b.out {
		return to, false
	}
	switch {
	case b.gives:
		to.fence, to.high = fence, fence
		return to, fence > from.high
	case b.claims && from.fence != 0:
		return to, fence == from.fence
	case b.claims:
		to.fence, to.high = fence, max(fence, from.high)
		return to, fence > 0
	}
	return to, true
}

func leaseOf(in linIn) lease {
	if in.short {
		return short
	}
	return runs
}

// branches returns the possible outcomes of a call.
func branches(s linState, in linIn, noted lease) []branch {
	switch in.kind {
	case "claim", "rerun", "other":
		return claimed(s, in, noted)
	case "recover":
		taken := s
		taken.state, taken.token, taken.lease = idempotency.Unknown, in.token, leaseOf(in)
		nothing := branch{to: s} // a recoverer may skip a locked key
		if s.lease != runs && !s.stuck && (s.state == idempotency.InProgress || s.state == idempotency.Unknown) {
			return []branch{nothing, {to: taken, out: linOut{won: true, state: idempotency.Unknown}, gives: true}}
		}
		return []branch{nothing}
	}
	if s.token != in.token || s.fence != 0 && s.fence != in.fence || s.state == "" {
		return []branch{refusedOrGone(s, in)}
	}
	out := written(s, in)
	if s.fence == 0 { // it may be this holder, or one that sent the same claim again
		out = append(out, refusedOrGone(s, in))
		for i := range out[:len(out)-1] {
			out[i].to.fence, out[i].to.high = in.fence, max(s.high, in.fence)
		}
	}
	return out
}

func refusedOrGone(s linState, in linIn) branch {
	return branch{to: s, out: linOut{lost: in.kind != "release" || s.state != ""}}
}

// claimed returns the branches of a claim; ended is the lease after its end was recorded.
func claimed(s linState, in linIn, awaitLeaseEnd lease) []branch {
	if s.state == "" {
		to := linState{
			state: idempotency.InProgress, other: in.kind == "other", token: in.token, high: s.high,
			lease: leaseOf(in),
		}
		return []branch{{to: to, out: linOut{won: true, state: idempotency.InProgress}, gives: true, claims: true}}
	}
	denied := branch{to: s, out: linOut{state: s.state, body: s.body}, claims: true}
	if s.other != (in.kind == "other") {
		return []branch{denied}
	}
	taken := s
	taken.state, taken.token, taken.lease, taken.stuck = idempotency.InProgress, in.token, leaseOf(in), false
	takeOver := branch{to: taken, out: linOut{won: true, state: idempotency.InProgress}, gives: true, claims: true}
	switch {
	case s.state == idempotency.InProgress && s.token == in.token:
		again := s
		again.lease = leaseOf(in)
		return []branch{{to: again, out: linOut{won: true, state: s.state}, claims: true}}
	case s.state == idempotency.InProgress && s.lease == short && in.kind == "rerun":
		return []branch{denied, takeOver}
	case s.state == idempotency.InProgress && s.lease == short:
		noted := s
		noted.state, noted.lease = idempotency.Unknown, awaitLeaseEnd
		return []branch{denied, {to: noted, out: linOut{state: idempotency.Unknown}, claims: true}}
	case s.state == idempotency.Unknown && in.kind == "rerun" && s.lease == none:
		return []branch{takeOver}
	case s.state == idempotency.Unknown && in.kind == "rerun" && s.lease == short:
		return []branch{denied, takeOver}
	}
	return []branch{denied}
}

// written returns the branches of a holder's call.
func written(s linState, in linIn) []branch {
	to := s
	done, lost := branch{to: s}, branch{to: s, out: linOut{lost: true}}
	if s.state != idempotency.InProgress && s.state != idempotency.Unknown {
		if in.kind == "finish" {
			return []branch{done}
		}
		return []branch{lost}
	}
	switch in.kind {
	case "extend", "save":
		if in.kind == "extend" {
			to.lease = leaseOf(in)
			if s.state == idempotency.InProgress {
				return []branch{{to: to}}
			}
		}
		switch s.lease {
		case none:
			return []branch{lost}
		case short:
			return []branch{lost, {to: to}}
		}
	case "finish":
		to.state, to.lease, to.stuck, to.body = idempotency.Completed, none, false, fmt.Sprint(in.token, in.fence)
	case "release":
		to = linState{high: s.high}
	case "mark unknown", "stuck":
		if in.kind == "stuck" && s.state == idempotency.InProgress {
			return []branch{lost}
		}
		if !s.stuck {
			to.state, to.lease, to.stuck = idempotency.Unknown, none, in.kind == "stuck"
		}
	}
	return []branch{{to: to}}
}

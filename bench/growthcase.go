package main

import (
	"context"
	"fmt"
	"runtime"
)

// growthCase: a backlog of millions must drain as fast as one of 100,000. To separate the cost of the backlog's age
// from that of its length, the small one is drained both with and without a checkpoint before it: after a checkpoint
// the first delete on a page logs the whole page. The large one is drained once, in the middle of the small ones'
// turns.
func growthCase(ctx context.Context, s *stack, o options, rep *report) error {
	payload := payloads(distinct)
	big, small := nameBacklog(o.backlog), nameBacklog(o.backlogSmall)
	fresh := small + ", no checkpoint since"
	rep.note("growth", fmt.Sprintf("Backlogs of %d-byte events with %d keys. Each time is from Run to the last "+
		"settle. There is a checkpoint between fill and drain unless the row says otherwise. The largest backlog is "+
		"drained once, and its first, middle and last tenth are shown", payloadSize, keys))
	once := func(name string, turn, mark int, f filling) (answer, figure, error) {
		got, a, err := s.drainFilled(ctx, o, name, f, mark)
		if err == nil {
			got.Case, got.Turn = "growth", turn
			rep.add(got)
		}
		return a, got, err
	}
	var whole figure
	for turn := range o.repeats + 1 {
		if _, _, err := once(small, turn, 0, filling{n: o.backlogSmall, payload: payload, aged: true}); err != nil {
			return err
		}
		if _, _, err := once(fresh, turn, 0, filling{n: o.backlogSmall, payload: payload}); err != nil {
			return err
		}
		if turn != (o.repeats+1)/2 {
			continue
		}
		tenth := max(o.backlog/10, 1)
		a, f, err := once(big, 1, tenth, filling{n: o.backlog, payload: payload, aged: true, callers: runtime.NumCPU()})
		if err != nil {
			return err
		}
		whole = f
		for _, part := range tenths(a.Marks, tenth) {
			part.Name, part.Case, part.Turn = big+": "+part.Name, "growth", 1
			rep.add(part)
		}
	}
	for _, against := range []string{small, fresh} {
		var all []float64
		for _, rate := range rep.rates("growth", against) {
			all = append(all, whole.Rate/rate)
		}
		rep.goal("growth", big+" / "+against, 0.9, all)
	}
	rep.peaks("growth", "relay", big, small, fresh)
	return s.exec(ctx, queryEmptyOutbox)
}

func nameBacklog(n int) string { return fmt.Sprintf("backlog of %d", n) }

// tenths returns the first, middle and last part between marks that are n events apart. The first includes the start of
// the relay.
func tenths(marks []float64, n int) (out []figure) {
	if len(marks) < 3 {
		return nil
	}
	marks = append([]float64{0}, marks...)
	for _, part := range []struct {
		name string
		end  int
	}{{"first tenth", 1}, {"middle tenth", len(marks) / 2}, {"last tenth", len(marks) - 1}} {
		took := marks[part.end] - marks[part.end-1]
		out = append(out, figure{Name: part.name, Events: n, Seconds: took, Rate: float64(n) / max(took, 1e-9)})
	}
	return out
}

// drainFilled fills the outbox and lets a process drain it, which notes when each mark events were settled.
func (s *stack) drainFilled(ctx context.Context, o options, name string, fill filling, mark int) (figure, answer,
	error,
) {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return figure{}, answer{}, err
	}
	defer drop()
	fill.topic = topic
	if err := s.fillAs(ctx, fill); err != nil {
		return figure{}, answer{}, err
	}
	if fill.pinned {
		closeSnapshot, err := s.openSnapshot(ctx)
		if err != nil {
			return figure{}, answer{}, err
		}
		defer closeSnapshot()
	}
	return s.measuredAnswer(ctx, name, job{
		Kind: "relay", URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Events: fill.n, Pumps: o.pumps,
		ClaimEvents: o.claimEvents, Compression: o.compression, Mark: mark,
	})
}
